//! Nodes that find each other by gossip, and what must not disturb that: other secrets, changed and repeated datagrams, errors of
//! the network. Under turmoil's clock.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]

mod turmoil_world;

use std::future::pending;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, timeout};
use tollgate_cluster::gossip::{Card, FounderCard, Gossip, Sighting};
use tollgate_cluster::id::{ClusterId, Identity, SessionId};
use tollgate_cluster::outside::{Datagrams, Listener, Network, Outside, Stream};
use tollgate_cluster::peer::WIRE;
use tollgate_cluster::secret::{Secret, Secrets};

use turmoil_world::{TurmoilNetwork, real, simulated};

const SECOND: Duration = Duration::from_secs(1);
const PORT: u16 = 7000;

fn secret(letter: u8) -> Secret {
    Secret::new([letter; 32]).unwrap()
}

fn held(letter: u8) -> Arc<Secrets> {
    Arc::new(Secrets::new(secret(letter)))
}

fn card(number: u128) -> Card {
    Card {
        wire: WIRE,
        identity: Identity(number),
        address: format!("n{number}:{PORT}"),
        cluster: None,
        node: None,
        session: None,
        founder: Some(FounderCard { expects: 3, proposal: None }),
    }
}

fn place(number: u128) -> SocketAddr {
    SocketAddr::new(turmoil::lookup(format!("n{number}")), PORT)
}

async fn gossip_with(
    outside: &Outside,
    secrets: Arc<Secrets>,
    number: u128,
    generation: u64,
    seeds: &[u128],
) -> Gossip {
    let seeds = seeds.iter().map(|&seed| place(seed)).collect();
    let any = SocketAddr::new(IpAddr::from([0, 0, 0, 0]), PORT);
    Gossip::start(outside, secrets, card(number), generation, any, place(number), seeds).await.unwrap()
}

async fn gossip(number: u128, generation: u64, seeds: &[u128]) -> Gossip {
    let outside = simulated(number as u64 * 1000 + generation);
    gossip_with(&outside, held(b's'), number, generation, seeds).await
}

/// A host that gossips with the secret `letter`, each start under a higher generation.
fn host(sim: &mut turmoil::Sim<'_>, number: u128, letter: u8, seeds: &'static [u128]) {
    let generations = Arc::new(AtomicU64::new(1));
    sim.host(format!("n{number}"), move || {
        let generation = generations.fetch_add(1, Ordering::Relaxed);
        async move {
            let outside = simulated(number as u64 * 1000 + generation);
            let gossip = gossip_with(&outside, held(letter), number, generation, seeds).await;
            gossip.tell(Card { session: Some(SessionId(u128::from(generation))), ..card(number) });
            pending().await
        }
    });
}

fn simulation<'a>(seed: u64) -> turmoil::Sim<'a> {
    turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(120 * SECOND)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        .build()
}

/// Waits until `number` is seen as `expected` says, and says how long that took.
async fn until(gossip: &Gossip, number: u128, expected: impl Fn(Option<&Sighting>) -> bool) -> Duration {
    let from = Instant::now();
    let mut seen = gossip.seen();
    let met = seen.wait_for(|seen| expected(seen.get(&Identity(number))));
    if timeout(20 * SECOND, met).await.is_err() {
        panic!("node {number} is still seen as {:?}", gossip.seen().borrow().get(&Identity(number)));
    }
    from.elapsed()
}

fn alive(sighting: Option<&Sighting>) -> bool {
    sighting.is_some_and(|sighting| sighting.alive)
}

fn of_session(number: u128) -> impl Fn(Option<&Sighting>) -> bool {
    move |sighting| sighting.is_some_and(|seen| seen.alive && seen.card.session == Some(SessionId(number)))
}

#[test]
fn nodes_with_one_seed_find_each_other_and_hear_what_changes() {
    let mut sim = simulation(1);
    host(&mut sim, 2, b's', &[1]);
    host(&mut sim, 3, b's', &[1]);
    sim.client("n1", async {
        let gossip = gossip(1, 1, &[1]).await;
        for number in [2, 3] {
            let took = until(&gossip, number, of_session(1)).await;
            assert!(took < 3 * SECOND, "node {number} after {took:?}");
        }
        let seen = gossip.seen().borrow().clone();
        assert_eq!(seen.len(), 2, "without itself");
        let session = Some(SessionId(1));
        assert_eq!(seen[&Identity(3)].card, Card { session, ..card(3) });
        gossip.shut_down().await;
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn what_a_node_tells_reaches_the_others() {
    let mut sim = simulation(2);
    sim.client("n1", async {
        let gossip = gossip(1, 1, &[2]).await;
        until(&gossip, 2, alive).await;
        gossip.tell(Card { cluster: Some(ClusterId(9)), founder: None, ..card(1) });
        let _ = timeout(5 * SECOND, pending::<()>()).await;
        Ok(())
    });
    sim.client("n2", async {
        let gossip = gossip(2, 1, &[]).await;
        let founded =
            |seen: Option<&Sighting>| seen.is_some_and(|seen| seen.card.cluster == Some(ClusterId(9)));
        until(&gossip, 1, founded).await;
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_killed_node_is_dead_within_three_seconds_and_its_next_life_replaces_it() {
    for seed in 0..5 {
        let mut sim = simulation(seed);
        host(&mut sim, 2, b's', &[1, 3]);
        host(&mut sim, 3, b's', &[1, 2]);
        let (ready, killed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (is_ready, is_killed) = (Arc::clone(&ready), Arc::clone(&killed));
        sim.client("n1", async move {
            let gossip = gossip(1, 1, &[2, 3]).await;
            until(&gossip, 2, of_session(1)).await;
            until(&gossip, 3, of_session(1)).await;
            // Long enough for the pauses to have settled.
            let _ = timeout(10 * SECOND, pending::<()>()).await;
            is_ready.store(true, Ordering::Relaxed);
            let took = until(&gossip, 2, |seen| !alive(seen)).await;
            assert!(took < 3 * SECOND, "seed {seed}: dead after {took:?}");
            assert!(alive(gossip.seen().borrow().get(&Identity(3))));
            is_killed.store(true, Ordering::Relaxed);
            let took = until(&gossip, 2, of_session(2)).await;
            assert!(took < 3 * SECOND, "seed {seed}: back after {took:?}");
            assert_eq!(gossip.seen().borrow().len(), 2);
            Ok(())
        });
        while !ready.load(Ordering::Relaxed) {
            sim.step().unwrap();
        }
        sim.crash("n2");
        while !killed.load(Ordering::Relaxed) {
            sim.step().unwrap();
        }
        sim.bounce("n2");
        sim.run().unwrap();
    }
}

#[test]
fn who_lacks_the_secret_sees_nobody_and_is_seen_by_nobody() {
    let mut sim = simulation(3);
    host(&mut sim, 2, b's', &[1, 3]);
    host(&mut sim, 3, b'x', &[1, 2]);
    sim.client("n1", async {
        let gossip = gossip(1, 1, &[2, 3]).await;
        until(&gossip, 2, alive).await;
        let _ = timeout(10 * SECOND, pending::<()>()).await;
        assert_eq!(gossip.seen().borrow().keys().copied().collect::<Vec<_>>(), [Identity(2)]);
        let stats = gossip.stats();
        assert!(stats.unknown_key > 10, "{stats:?}");
        assert_eq!((stats.bad_seal, stats.replayed, stats.malformed), (0, 0, 0), "{stats:?}");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn the_secret_is_changed_while_nodes_gossip() {
    let mut sim = simulation(4);
    let secrets: Vec<_> = (0..2).map(|_| held(b's')).collect();
    let theirs = Arc::clone(&secrets[1]);
    sim.host("n2", move || {
        let theirs = Arc::clone(&theirs);
        async move {
            let _gossip = gossip_with(&simulated(2), theirs, 2, 1, &[1]).await;
            pending().await
        }
    });
    sim.client("n1", async move {
        let gossip = gossip_with(&simulated(1), Arc::clone(&secrets[0]), 1, 1, &[2]).await;
        until(&gossip, 2, alive).await;
        let (old, new) = (secret(b's').id(), secret(b't').id());
        let pause = async || drop(timeout(3 * SECOND, pending::<()>()).await);
        for step in 0..3 {
            for secrets in &secrets {
                match step {
                    0 => drop(secrets.hold(secret(b't')).unwrap()),
                    1 => secrets.use_key(new).unwrap(),
                    _ => secrets.forget(old).unwrap(),
                }
                pause().await;
                assert!(alive(gossip.seen().borrow().get(&Identity(2))), "step {step}");
            }
        }
        assert_eq!(gossip.stats().unknown_key, 0);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn other_seeds_can_be_given_later() {
    let mut sim = simulation(5);
    host(&mut sim, 2, b's', &[]);
    sim.client("n1", async {
        let gossip = gossip(1, 1, &[9]).await;
        let _ = timeout(3 * SECOND, pending::<()>()).await;
        assert!(gossip.seen().borrow().is_empty());
        gossip.reseed(vec![place(1), place(2)]);
        let took = until(&gossip, 2, alive).await;
        assert!(took < 2 * SECOND, "{took:?}");
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn two_halves_find_back_together() {
    let mut sim = simulation(6);
    host(&mut sim, 2, b's', &[1]);
    sim.client("n1", async {
        let gossip = gossip(1, 1, &[2]).await;
        until(&gossip, 2, alive).await;
        turmoil::partition("n1", "n2");
        until(&gossip, 2, |seen| !alive(seen)).await;
        let _ = timeout(20 * SECOND, pending::<()>()).await;
        turmoil::repair("n1", "n2");
        let took = until(&gossip, 2, alive).await;
        assert!(took < 3 * SECOND, "{took:?}");
        Ok(())
    });
    sim.run().unwrap();
}

#[tokio::test]
async fn two_nodes_find_each_other_over_real_sockets() {
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let start = async |number: u64, seeds| {
        let (outside, card) = (real(number), card(u128::from(number)));
        Gossip::start(&outside, held(b's'), card, 1, any, any, seeds).await.unwrap()
    };
    let first = start(1, Vec::new()).await;
    let second = start(2, vec![first.local_addr()]).await;
    until(&first, 2, alive).await;
    until(&second, 1, alive).await;
    second.shut_down().await;
    until(&first, 2, |seen| !alive(seen)).await;
}

/// A network that repeats and changes datagrams, adds some of its own, and fails every other time.
struct Meddling(TurmoilNetwork);

#[async_trait]
impl Network for Meddling {
    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        self.0.connect(to).await
    }

    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        self.0.listen(at).await
    }

    async fn datagrams(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        let inner = self.0.datagrams(at).await?;
        Ok(Arc::new(Meddled { inner, turns: AtomicU64::new(0) }))
    }

    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        self.0.resolve(name).await
    }
}

struct Meddled {
    inner: Arc<dyn Datagrams>,
    turns: AtomicU64,
}

#[async_trait]
impl Datagrams for Meddled {
    async fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        let mut changed = datagram.to_vec();
        changed[datagram.len() / 2] ^= 1;
        // What the library would take, had it no seal around it: its magic number, version, and an empty request.
        let plain = [45_139u16.to_le_bytes().as_slice(), &[0, 0, 0, 0, 8, 0], b"tollgate"].concat();
        for sent in [datagram, datagram, &changed, &plain] {
            self.inner.send_to(sent, to).await?;
        }
        Err(io::ErrorKind::HostUnreachable.into())
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        if self.turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        self.inner.recv_from(buffer).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

#[test]
fn what_is_changed_repeated_or_unsealed_is_dropped_and_no_error_ends_the_gossip() {
    let mut sim = simulation(7);
    let meddled = |seed| Outside { network: Arc::new(Meddling(TurmoilNetwork)), ..simulated(seed) };
    sim.host("n2", move || async move {
        let _gossip = gossip_with(&meddled(2), held(b's'), 2, 1, &[1]).await;
        pending().await
    });
    sim.client("n1", async move {
        let gossip = gossip_with(&meddled(1), held(b's'), 1, 1, &[2]).await;
        until(&gossip, 2, alive).await;
        let _ = timeout(10 * SECOND, pending::<()>()).await;
        assert!(alive(gossip.seen().borrow().get(&Identity(2))));
        let stats = gossip.stats();
        assert!(stats.taken > 50 && stats.receive_errors > 50 && stats.send_errors > 50, "{stats:?}");
        // Each datagram came twice, changed, and unsealed; those on their way make the difference.
        for dropped in [stats.replayed, stats.bad_seal, stats.malformed] {
            assert!(dropped.abs_diff(stats.taken) < 10, "{stats:?}");
        }
        assert_eq!(gossip.seen().borrow().len(), 1);
        Ok(())
    });
    sim.run().unwrap();
}
