//! Two nodes and what is between them: calls both ways, one connection, secrets that differ or change, peers that die, bounds.
//!
//! Timing is under turmoil's clock; real sockets where only order matters.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]

mod turmoil_world;

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};
use tollgate_cluster::id::{ClusterId, Identity, NodeId};
use tollgate_cluster::outside::Outside;
use tollgate_cluster::peer::{
    Answer, Busy, CallError, Caller, ConnectError, Hello, Options, Peer, Peers, Serve, WIRE,
};
use tollgate_cluster::secret::{Secret, Secrets};

use turmoil_world::{real, simulated};

const ECHO: u8 = 0;
const ECHO_LATER: u8 = 1;
const NEVER: u8 = 2;
const WHO: u8 = 3;

const SECOND: Duration = Duration::from_secs(1);

/// Answers by kind, and counts.
#[derive(Default)]
struct Echo(AtomicU64);

impl Serve for Echo {
    fn serve(self: Arc<Self>, from: &Caller, kind: u8, body: Bytes) -> Answer {
        self.0.fetch_add(1, Ordering::Relaxed);
        match kind {
            ECHO => Answer::Now(body.to_vec()),
            ECHO_LATER => Answer::Later(Box::pin(async move {
                tokio::task::yield_now().await;
                body.to_vec()
            })),
            NEVER => Answer::Later(Box::pin(pending())),
            _ => Answer::Now(format!("{:?}", from.hello.node).into_bytes()),
        }
    }
}

fn secret(letter: u8) -> Secret {
    Secret::new([letter; 32]).unwrap()
}

fn hello(number: u128) -> Hello {
    Hello {
        wire: WIRE,
        cluster: Some(ClusterId(7)),
        identity: Identity(number),
        node: None,
        session: None,
        address: format!("n{number}:7000"),
    }
}

async fn start_with(outside: Outside, hello: Hello, secrets: Arc<Secrets>, at: SocketAddr) -> Arc<Peers> {
    let options = Options { in_flight: 8 };
    Peers::start(outside, secrets, hello, at, Arc::<Echo>::default(), options).await.unwrap()
}

fn held(letter: u8) -> Arc<Secrets> {
    Arc::new(Secrets::new(secret(letter)))
}

/// A node on this machine.
async fn node(number: u128) -> Arc<Peers> {
    start_with(real(number as u64), hello(number), held(b's'), ([127, 0, 0, 1], 0).into()).await
}

/// A node on a simulated host.
async fn host(number: u128, seed: u64) -> Arc<Peers> {
    start_with(simulated(seed), hello(number), held(b's'), ([0, 0, 0, 0], 7000).into()).await
}

fn at(peers: &Peers) -> Peer {
    Peer::at(peers.local_addr().to_string())
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let mut pause = tokio::time::interval(Duration::from_millis(5));
    let asked = async {
        while !holds() {
            pause.tick().await;
        }
    };
    timeout(10 * SECOND, asked).await.unwrap_or_else(|_| panic!("not within ten seconds: {what}"));
}

async fn echo(from: &Peers, to: &Peer, text: &str) -> Result<(), CallError> {
    let answer = from.call(to, ECHO, text.into(), SECOND).await?;
    assert_eq!(answer, text.as_bytes());
    Ok(())
}

#[tokio::test]
async fn calls_go_both_ways_over_one_connection() {
    let (a, b) = (node(1).await, node(2).await);
    echo(&a, &at(&b), "there").await.unwrap();
    // B never learnt where A is, only who: it uses the connection that A made.
    let a_known = Peer::known(Identity(1), "nowhere:1");
    eventually("B knows A", || b.stats().open == 1).await;
    echo(&b, &a_known, "and back").await.unwrap();
    let later = b.call(&a_known, ECHO_LATER, b"later".to_vec(), SECOND).await.unwrap();
    assert_eq!(later, &b"later"[..]);
    for peers in [&a, &b] {
        let stats = peers.stats();
        assert_eq!((stats.open, stats.peers.len(), stats.peers[0].connections), (1, 1, 1));
        assert!(stats.peers[0].connected && stats.peers[0].round_trip.is_some());
    }
}

#[tokio::test]
async fn a_peer_is_told_what_became_of_a_node() {
    let (a, b) = (node(1).await, node(2).await);
    let who = async || a.call(&at(&b), WHO, Vec::new(), SECOND).await.unwrap();
    assert_eq!(who().await, &b"None"[..]);
    a.introduce(Hello { node: Some(NodeId(5)), ..hello(1) });
    // In order: the call is behind the introduction.
    assert_eq!(who().await, &b"Some(NodeId(5))"[..]);
    assert_eq!(a.hello(&at(&b).address, SECOND).await.unwrap(), hello(2));

    b.introduce(Hello { cluster: Some(ClusterId(8)), ..hello(2) });
    eventually("another cluster has no connection", || a.stats().open == 0).await;
    let refused = a.hello(&at(&b).address, SECOND).await.unwrap_err();
    assert!(matches!(refused, ConnectError::OtherCluster { theirs: ClusterId(8), .. }), "{refused}");
}

#[tokio::test]
async fn a_large_message_does_not_hold_up_small_ones() {
    let (a, b) = (node(1).await, node(2).await);
    echo(&a, &at(&b), "connected").await.unwrap();
    let large = vec![7; 48 << 20];
    let to = at(&b);
    let transfer = a.call(&to, ECHO, large.clone(), 60 * SECOND);
    tokio::pin!(transfer);
    let mut meanwhile = 0;
    let answer = loop {
        tokio::select! {
            biased;
            answer = &mut transfer => break answer.unwrap(),
            small = echo(&a, &to, "small") => small.unwrap(),
        }
        meanwhile += 1;
    };
    assert!(answer == large);
    // Each waits for what the kernel has taken already, up to some 10 MiB, of the two times 48 MiB.
    assert!(meanwhile > 5, "{meanwhile} small calls during the large one");
}

#[tokio::test]
async fn what_stands_between_two_nodes_is_said_in_a_sentence() {
    let a = node(1).await;
    let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
    let place = |peers: &Peers| at(peers).address;
    let dialled = async |to: &str| a.hello(to, SECOND).await.unwrap_err();

    let stranger = start_with(real(2), hello(2), held(b'x'), loopback).await;
    assert_eq!(
        dialled(&place(&stranger)).await.to_string(),
        format!(
            "{} does not hold the cluster secret {} that this node uses: give both the same --secret-file, or finish the \
             rotation on it (`tollgate cluster keyring`)",
            place(&stranger),
            secret(b's').id()
        )
    );
    assert_eq!(stranger.stats().refusals, [("foreign_key", 1)]);

    let foreign = Hello { cluster: Some(ClusterId(8)), ..hello(3) };
    let foreign = start_with(real(3), foreign, held(b's'), loopback).await;
    assert_eq!(
        dialled(&place(&foreign)).await.to_string(),
        format!(
            "{} belongs to cluster {} and this node to {}: correct --join, or start this node with the data folder of that \
             cluster or with an empty one",
            place(&foreign),
            ClusterId(8),
            ClusterId(7)
        )
    );

    let newer = start_with(real(4), Hello { wire: (2, 3), ..hello(4) }, held(b's'), loopback).await;
    assert_eq!(
        dialled(&place(&newer)).await.to_string(),
        format!(
            "{} and this node (wire versions 1 to 1) have no wire version in common: upgrade the older one first to a \
             release between the two",
            place(&newer)
        )
    );
    assert_eq!(newer.stats().refusals, [("wire", 1)]);

    assert_eq!(
        dialled(&place(&a)).await.to_string(),
        format!("{} is this node itself: --join needs the address of another one", place(&a))
    );
    let twin = start_with(real(5), hello(1), held(b's'), loopback).await;
    assert_eq!(dialled(&place(&twin)).await.reason(), "twin");

    let b = node(6).await;
    let refused = a.call(&Peer::known(Identity(9), place(&b)), ECHO, Vec::new(), SECOND).await;
    let expected = format!(
        "{} is node {}, not {}: the address was given to another node, or the node's data folder was wiped. Correct \
         --advertise, or remove the old node (`tollgate cluster remove`)",
        place(&b),
        Identity(6),
        Identity(9)
    );
    assert_eq!(refused, Err(CallError::Unreachable(expected)));
    echo(&a, &at(&b), "the connection serves").await.unwrap();
    assert_eq!(a.stats().open, 1);

    let silent = tokio::net::TcpListener::bind(loopback).await.unwrap();
    let silent_at = silent.local_addr().unwrap().to_string();
    let (error, _) = tokio::join!(dialled(&silent_at), async {
        let (mut stream, _) = silent.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    });
    assert_eq!(error, ConnectError::NotAPeer { at: silent_at });
    drop(silent);
}

#[tokio::test]
async fn noise_at_the_port_is_refused_and_counted() {
    let (a, b) = (node(1).await, node(2).await);
    for seed in 0..50u8 {
        let mut stream = tokio::net::TcpStream::connect(a.local_addr()).await.unwrap();
        let bytes: Vec<u8> = (0..200u8).map(|at| at.wrapping_mul(seed.wrapping_add(31))).collect();
        stream.write_all(&bytes).await.unwrap();
        // To its end, however it comes.
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
    // The right beginning, and then what only resembles a proof.
    let mut stream = tokio::net::TcpStream::connect(a.local_addr()).await.unwrap();
    let key = secret(b's').id().0.to_le_bytes();
    let hail = [&b"TGP\x01\0\x01\0"[..], &key, &[5; 48]].concat();
    stream.write_all(&hail).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, [2], "one byte: a bad proof");
    assert_eq!(a.stats().refusals, [("bad_proof", 1), ("not_a_peer", 50)]);
    echo(&b, &at(&a), "still there").await.unwrap();
}

#[tokio::test]
async fn calls_beyond_the_bound_are_refused() {
    let (a, b) = (node(1).await, node(2).await);
    let to = at(&b);
    echo(&a, &to, "connected").await.unwrap();
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let (a, to) = (Arc::clone(&a), to.clone());
            tokio::spawn(async move { a.call(&to, NEVER, Vec::new(), 60 * SECOND).await })
        })
        .collect();
    eventually("eight calls wait", || a.stats().peers[0].in_flight == 8).await;
    assert_eq!(a.call(&to, ECHO, Vec::new(), SECOND).await, Err(CallError::Refused(Busy::Here)));
    assert_eq!(a.stats().peers[0].refused_here, 1);
    // Who gives up makes room.
    waiting[0].abort();
    eventually("seven wait", || a.stats().peers[0].in_flight == 7).await;
    echo(&a, &to, "room").await.unwrap();
    // Whoever is gone, the rest learn that they will not know.
    b.shut_down().await;
    for call in waiting.into_iter().skip(1) {
        assert!(matches!(call.await.unwrap(), Err(CallError::Unknown(_))));
    }
}

#[tokio::test]
async fn a_shutdown_lets_calls_finish() {
    let (a, b) = (node(1).await, node(2).await);
    let to = at(&b);
    echo(&a, &to, "connected").await.unwrap();
    let body = vec![1; 8 << 20];
    let call = a.call(&to, ECHO, body.clone(), 10 * SECOND);
    tokio::pin!(call);
    // Until some of it has left.
    tokio::select! {
        biased;
        answer = &mut call => panic!("{answer:?}"),
        () = eventually("the call is out", || a.stats().peers[0].in_flight == 1) => {}
    }
    let (answer, ()) = tokio::join!(call, a.shut_down());
    assert!(answer.unwrap() == body);
    assert_eq!(a.stats().open, 0);
    assert!(matches!(echo(&a, &to, "over").await, Err(CallError::Unreachable(_))));
}

#[tokio::test]
async fn the_secret_is_changed_while_calls_run() {
    let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
    let secrets = [held(b's'), held(b's')];
    let a = start_with(real(1), hello(1), Arc::clone(&secrets[0]), loopback).await;
    let b = start_with(real(2), hello(2), Arc::clone(&secrets[1]), loopback).await;
    let to = at(&b);
    echo(&a, &to, "connected").await.unwrap();
    let running = {
        let (a, to) = (Arc::clone(&a), to.clone());
        tokio::spawn(async move {
            for count in 0u64.. {
                if let Err(error) = echo(&a, &to, "running").await {
                    panic!("call {count}: {error}");
                }
                tokio::task::yield_now().await;
            }
        })
    };
    let old = secret(b's').id();
    for secrets in &secrets {
        secrets.hold(secret(b't')).unwrap();
    }
    for secrets in &secrets {
        secrets.use_key(secret(b't').id()).unwrap();
        eventually("the old connection is left", || {
            a.stats().peers[0].connections == 2 && a.stats().open == 1
        })
        .await;
    }
    for secrets in &secrets {
        secrets.forget(old).unwrap();
        echo(&a, &to, "the new one stays").await.unwrap();
    }
    assert!(!running.is_finished());
    running.abort();
    assert_eq!((a.stats().open, a.stats().peers[0].connections), (1, 2));

    // Who only holds the old one is no peer any more.
    let late = start_with(real(3), hello(3), held(b's'), loopback).await;
    let refused = late.hello(&to.address, SECOND).await.unwrap_err();
    assert!(matches!(refused, ConnectError::UnknownKey { key, .. } if key == old), "{refused}");
}

#[tokio::test]
async fn a_node_that_is_behind_in_a_rotation_is_reached_with_the_older_secret() {
    let loopback: SocketAddr = ([127, 0, 0, 1], 0).into();
    let ahead = Arc::new(Secrets::of(vec![secret(b't'), secret(b's')]).unwrap());
    let a = start_with(real(1), hello(1), Arc::clone(&ahead), loopback).await;
    let b = node(2).await;
    echo(&a, &at(&b), "with the old one").await.unwrap();
    // And not any more once that is forgotten.
    ahead.forget(secret(b's').id()).unwrap();
    eventually("its connection is closed", || a.stats().open == 0).await;
    let refused = a.hello(&at(&b).address, SECOND).await.unwrap_err();
    assert!(matches!(refused, ConnectError::UnknownKey { key, .. } if key == secret(b't').id()), "{refused}");
}

// Under simulated time.

fn simulation<'a>(seed: u64) -> turmoil::Sim<'a> {
    turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(120 * SECOND)
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(8))
        .build()
}

/// A host that only answers.
fn idle_host(sim: &mut turmoil::Sim<'_>, number: u128) {
    let starts = Arc::new(AtomicU64::new(number as u64 * 1000));
    sim.host(format!("n{number}"), move || {
        let seed = starts.fetch_add(1, Ordering::Relaxed);
        async move {
            let _peers = host(number, seed).await;
            pending().await
        }
    });
}

#[test]
fn of_two_that_dial_at_once_one_connection_stays() {
    for seed in 0..20 {
        let mut sim = simulation(seed);
        for (number, other) in [(1, 2), (2, 1)] {
            sim.client(format!("n{number}"), async move {
                let peers = host(number, seed * 10 + number as u64).await;
                let to = Peer::known(Identity(other), format!("n{other}:7000"));
                // The other may not listen yet.
                while echo(&peers, &to, "hello").await.is_err() {
                    tokio::time::interval(Duration::from_millis(1)).tick().await;
                }
                // Calls run all the while, and none fails.
                let from = Instant::now();
                while from.elapsed() < 5 * SECOND {
                    echo(&peers, &to, "again").await.unwrap();
                }
                let stats = peers.stats();
                assert_eq!(stats.open, 1, "seed {seed}: {stats:?}");
                assert!(stats.peers[0].connections <= 3, "seed {seed}: {stats:?}");
                // Longer than the other, which may have begun later.
                let _ = timeout(2 * SECOND, pending::<()>()).await;
                Ok(())
            });
        }
        sim.run().unwrap();
    }
}

#[test]
fn a_connection_lost_in_a_call_leaves_it_unknown_and_then_the_peer_is_unreachable_at_once() {
    let mut sim = simulation(1);
    idle_host(&mut sim, 2);
    sim.client("n1", async {
        let peers = host(1, 1).await;
        let to = Peer::known(Identity(2), "n2:7000");
        echo(&peers, &to, "hello").await.unwrap();
        let asked = Instant::now();
        let call = peers.call(&to, NEVER, Vec::new(), 60 * SECOND);
        let (lost, ()) = tokio::join!(call, async {
            eventually("the call is out", || peers.stats().peers[0].in_flight == 1).await;
            let _ = timeout(Duration::from_millis(50), pending::<()>()).await;
            turmoil::partition("n1", "n2");
        });
        assert!(matches!(&lost, Err(CallError::Unknown(why)) if why.contains("silent for 3s")), "{lost:?}");
        assert!(asked.elapsed() < Duration::from_millis(3600), "{:?}", asked.elapsed());

        // The first attempt has to find out, those in its pause know.
        let unreachable = peers.call(&to, ECHO, Vec::new(), 5 * SECOND).await;
        assert!(matches!(unreachable, Err(CallError::Unreachable(_))), "{unreachable:?}");
        let asked = Instant::now();
        assert!(matches!(echo(&peers, &to, "pause").await, Err(CallError::Unreachable(_))));
        assert_eq!(asked.elapsed(), Duration::ZERO);
        // Nor does anybody wait long for the attempts between the pauses, which take a second each.
        for _ in 0..100 {
            let asked = Instant::now();
            assert!(matches!(echo(&peers, &to, "doubt").await, Err(CallError::Unreachable(_))));
            assert!(asked.elapsed() < Duration::from_millis(110), "{:?}", asked.elapsed());
            let _ = timeout(Duration::from_millis(50), pending::<()>()).await;
        }
        assert!(
            peers.stats().refusals.iter().map(|(_, count)| count).sum::<u64>() < 15,
            "{:?}",
            peers.stats()
        );

        turmoil::repair("n1", "n2");
        let healed = Instant::now();
        while echo(&peers, &to, "healed").await.is_err() {
            tokio::time::interval(Duration::from_millis(20)).tick().await;
            let _ = timeout(Duration::from_millis(20), pending::<()>()).await;
        }
        assert!(healed.elapsed() < 3 * SECOND, "{:?}", healed.elapsed());
        assert_eq!(peers.stats().open, 1);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_call_has_its_deadline_and_a_late_answer_is_dropped() {
    let mut sim = simulation(2);
    idle_host(&mut sim, 2);
    sim.client("n1", async {
        let peers = host(1, 1).await;
        let to = Peer::at("n2:7000");
        echo(&peers, &to, "hello").await.unwrap();
        let asked = Instant::now();
        turmoil::hold("n1", "n2");
        let late = peers.call(&to, ECHO, Vec::new(), Duration::from_millis(500)).await;
        assert!(matches!(late, Err(CallError::Unknown(_))), "{late:?}");
        assert!(asked.elapsed() < Duration::from_millis(510));
        turmoil::release("n1", "n2");
        echo(&peers, &to, "again").await.unwrap();
        let stats = peers.stats();
        assert_eq!((stats.peers[0].timed_out, stats.peers[0].connections, stats.open), (1, 1, 1));
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_quiet_connection_stays() {
    let mut sim = simulation(3);
    idle_host(&mut sim, 2);
    sim.client("n1", async {
        let peers = host(1, 1).await;
        let to = Peer::at("n2:7000");
        echo(&peers, &to, "hello").await.unwrap();
        let _ = timeout(30 * SECOND, pending::<()>()).await;
        echo(&peers, &to, "still").await.unwrap();
        assert_eq!(peers.stats().peers[0].connections, 1);
        Ok(())
    });
    sim.run().unwrap();
}

#[test]
fn a_peer_that_starts_again_is_reached_again() {
    let mut sim = simulation(4);
    idle_host(&mut sim, 2);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    sim.client("n1", async move {
        let peers = host(1, 1).await;
        let to = Peer::known(Identity(2), "n2:7000");
        let mut lost = 0;
        let from = Instant::now();
        while from.elapsed() < 20 * SECOND {
            match echo(&peers, &to, "hello").await {
                Ok(()) => drop(counted.fetch_add(1, Ordering::Relaxed)),
                Err(_) => {
                    lost += 1;
                    let _ = timeout(Duration::from_millis(10), pending::<()>()).await;
                }
            }
        }
        let stats = peers.stats();
        assert_eq!((stats.peers[0].connections, stats.open), (2, 1), "{lost} lost: {stats:?}");
        echo(&peers, &to, "at the end").await.unwrap();
        Ok(())
    });
    while calls.load(Ordering::Relaxed) < 100 {
        sim.step().unwrap();
    }
    sim.crash("n2");
    for _ in 0..1000 {
        sim.step().unwrap();
    }
    sim.bounce("n2");
    sim.run().unwrap();
}

#[test]
fn a_simulation_replays() {
    let run = |seed| {
        let mut sim = simulation(seed);
        idle_host(&mut sim, 2);
        let trace = Arc::new(std::sync::Mutex::new(Vec::new()));
        let traced = Arc::clone(&trace);
        sim.client("n1", async move {
            let peers = host(1, seed).await;
            for _ in 0..50 {
                echo(&peers, &Peer::at("n2:7000"), "hello").await.unwrap();
                traced.lock().unwrap().push(turmoil::elapsed());
            }
            Ok(())
        });
        sim.run().unwrap();
        std::mem::take(&mut *trace.lock().unwrap())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
