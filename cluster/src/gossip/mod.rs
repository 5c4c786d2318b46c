//! Who seems alive, at which address, at which wire version: hints, spread from node to node.
//!
//! Laws:
//! - gossip proposes and authorises nothing: no right follows from a [`Sighting`], nor from its absence;
//! - only who holds the cluster's secret is heard, and it is verified before anything of a datagram is read (`seal`);
//! - what a node says of itself is one [`Card`], and the card of its latest start replaces all earlier ones;
//! - at most [`CARDS_MAX`] cards are shown, those of the living first.
//!
//! A killed node is seen as dead after one to two seconds: eight times the mean pause between its signs of life. Never here: a
//! decision.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chitchat::{Chitchat, ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::gossip::seal::{Opener, Sealer};
use crate::gossip::transport::{Counters, Sealed};
use crate::id::{ClusterId, Identity, NodeId, SessionId};
use crate::outside::{Entropy, Outside};
use crate::secret::Secrets;
use crate::wire;

mod seal;
mod transport;

pub use self::transport::GossipStats;

/// How many cards are shown.
pub const CARDS_MAX: usize = 512;

/// How often a node says something.
const INTERVAL: Duration = Duration::from_millis(200);
/// So many mean pauses without a sign of life are a death. Lower makes a stall of a second look like one.
const PHI: f64 = 8.0;
/// Samples of which the mean is taken: about a minute.
const SAMPLES: usize = 300;
/// How long the dead are remembered. The same on all nodes, since a node that forgets earlier would learn of them again.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Every so many rounds, a seed that is not among the living is tried again: it may be the only way back to a part of the cluster.
const SEED_ROUNDS: u32 = 5;
/// The layout of a card.
const CARD_FORMAT: u8 = 1;
/// Which key of the gossip has it.
const CARD: &str = "card";
/// The library asks for a name of the cluster, which a fresh node does not know: the secret is what tells clusters apart.
const CLUSTER: &str = "tollgate";

/// What a node says of itself to whoever holds the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// The wire versions that it speaks.
    pub wire: (u16, u16),
    /// Its data folder.
    pub identity: Identity,
    /// Where its peers reach it, `host:port`.
    pub address: String,
    /// Its cluster; `None` before it has one.
    pub cluster: Option<ClusterId>,
    /// Its number; `None` before it was admitted.
    pub node: Option<NodeId>,
    /// Its session; `None` before it has registered.
    pub session: Option<SessionId>,
    /// What it says while it helps to found a cluster.
    pub founder: Option<FounderCard>,
}

/// What a founder says: see [`crate::membership`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FounderCard {
    /// How many founders it waits for.
    pub expects: usize,
    /// Whom it proposes, once it has seen them all.
    pub proposal: Option<BTreeSet<Identity>>,
}

/// What is seen of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// What it last said of itself.
    pub card: Card,
    /// Whether it seems alive.
    pub alive: bool,
}

/// Everybody else, by identity.
pub type Seen = Arc<BTreeMap<Identity, Sighting>>;

/// A node's part in the gossip. Ends when it is dropped.
pub struct Gossip {
    card: watch::Sender<Card>,
    seeds: watch::Sender<Vec<SocketAddr>>,
    seen: watch::Receiver<Seen>,
    counters: Arc<Counters>,
    local_addr: SocketAddr,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Gossip {
    /// Begins to gossip at `at`, telling others to use `advertised`, and asking at `seeds` for the rest. `generation` is higher
    /// than at any earlier start on the same data folder. An advertised port of 0 stands for the one that is listened on.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn start(
        outside: &Outside,
        secrets: Arc<Secrets>,
        card: Card,
        generation: u64,
        at: SocketAddr,
        advertised: SocketAddr,
        seeds: Vec<SocketAddr>,
    ) -> io::Result<Self> {
        let datagrams = outside.network.datagrams(at).await?;
        let local_addr = datagrams.local_addr()?;
        let port = if advertised.port() == 0 { local_addr.port() } else { advertised.port() };
        let advertised = SocketAddr::new(advertised.ip(), port);
        let counters = Arc::<Counters>::default();
        let sealer =
            Sealer::new(Arc::clone(&secrets), Arc::clone(&outside.entropy), card.identity, generation);
        let opener = Opener::new(secrets, card.identity);
        let transport = Sealed::new(datagrams, sealer, opener, Arc::clone(&counters));
        let config = ChitchatConfig {
            chitchat_id: ChitchatId::new(card.identity.to_string(), generation, advertised),
            cluster_id: String::from(CLUSTER),
            gossip_interval: INTERVAL,
            listen_addr: local_addr,
            // This node's own task asks them: the library would keep the ones that it began with.
            seed_nodes: Vec::new(),
            failure_detector_config: FailureDetectorConfig::new(
                PHI,
                SAMPLES,
                INTERVAL * 5,
                INTERVAL,
                REMEMBERED,
            ),
            marked_for_deletion_grace_period: REMEMBERED,
            catchup_callback: None,
            extra_liveness_predicate: None,
        };
        let first = vec![(String::from(CARD), written(&card))];
        let handle = chitchat::spawn_chitchat(config, first, &transport).await.map_err(io::Error::other)?;

        let (card, cards) = watch::channel(card);
        let (seeds, seeds_told) = watch::channel(seeds);
        let (shown, seen) = watch::channel(Seen::default());
        let own = vec![local_addr, advertised];
        let stop = CancellationToken::new();
        let task = Task {
            handle,
            shown,
            cards,
            seeds: seeds_told,
            own,
            entropy: Arc::clone(&outside.entropy),
            stop: stop.clone(),
        };
        let task = Mutex::new(Some(tokio::spawn(task.run())));
        Ok(Self { card, seeds, seen, counters, local_addr, stop, task })
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Says something else of this node from now on.
    pub fn tell(&self, card: Card) {
        self.card.send_if_modified(|told| {
            let differs = *told != card;
            *told = card;
            differs
        });
    }

    /// Whom this node sees, itself excluded, now and whenever that changes.
    #[must_use]
    pub fn seen(&self) -> watch::Receiver<Seen> {
        self.seen.clone()
    }

    /// Asks at `seeds` from now on: their names were resolved again.
    pub fn reseed(&self, seeds: Vec<SocketAddr>) {
        self.seeds.send_replace(seeds);
    }

    /// What was measured.
    #[must_use]
    pub fn stats(&self) -> GossipStats {
        self.counters.read()
    }

    /// Says no more. The others see that after one to two seconds.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        let task = self.task.lock().ok().and_then(|mut task| task.take());
        if let Some(task) = task {
            // A panic in it has been reported, and there is nothing to save.
            let _ = task.await;
        }
    }
}

/// What runs beside the library: cards to it, sightings from it, and seeds.
struct Task {
    handle: ChitchatHandle,
    shown: watch::Sender<Seen>,
    cards: watch::Receiver<Card>,
    seeds: watch::Receiver<Vec<SocketAddr>>,
    own: Vec<SocketAddr>,
    entropy: Arc<dyn Entropy>,
    stop: CancellationToken,
}

impl Task {
    async fn run(mut self) {
        let mut living = self.handle.chitchat().lock().await.live_nodes_watcher();
        let mut rounds = tokio::time::interval(INTERVAL);
        let mut round = 0u32;
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                told = self.cards.changed() => {
                    // The handle is gone: so are we.
                    if told.is_err() {
                        break;
                    }
                    let card = written(&self.cards.borrow_and_update());
                    self.handle.chitchat().lock().await.self_node_state().set(CARD, card);
                }
                // The library holds the sender for as long as the handle lives.
                Ok(()) = living.changed() => {
                    drop(living.borrow_and_update());
                    self.look(round).await;
                }
                _ = rounds.tick() => {
                    round = round.wrapping_add(1);
                    // The watcher does not tell when one of the dead is forgotten.
                    self.look(round).await;
                }
            }
        }
        if let Err(error) = self.handle.shutdown().await {
            tracing::warn!(%error, "gossip ended badly");
        }
    }

    /// Shows who is there, and asks at a seed if need be.
    async fn look(&self, round: u32) {
        let chitchat = self.handle.chitchat();
        let chitchat = chitchat.lock().await;
        let seen = sightings(&chitchat);
        let living: HashSet<SocketAddr> = chitchat.live_nodes().map(|id| id.gossip_advertise_addr).collect();
        drop(chitchat);
        self.shown.send_if_modified(|shown| {
            let differs = **shown != seen;
            if differs {
                *shown = Arc::new(seen);
            }
            differs
        });
        // Whoever is alone asks in every round.
        if living.len() > 1 && !round.is_multiple_of(SEED_ROUNDS) {
            return;
        }
        let missing: Vec<SocketAddr> = {
            let seeds = self.seeds.borrow();
            seeds.iter().copied().filter(|seed| !living.contains(seed) && !self.own.contains(seed)).collect()
        };
        if !missing.is_empty() {
            let one = missing[self.entropy.below(missing.len() as u64) as usize];
            if let Err(error) = self.handle.gossip(one) {
                tracing::error!(%error, "gossip has stopped");
            }
        }
    }
}

/// Everybody but this node, each as its latest start says.
fn sightings(chitchat: &Chitchat) -> BTreeMap<Identity, Sighting> {
    let living: HashSet<&ChitchatId> = chitchat.live_nodes().collect();
    let own = &chitchat.self_chitchat_id().node_id;
    let others = chitchat.node_states().iter().filter(|(id, _)| id.node_id != *own);
    // Ordered by name and then by generation: the last of each name with a card is its latest start.
    let mut latest: BTreeMap<&str, (bool, Card)> = BTreeMap::new();
    for (id, state) in others {
        if let Some(card) = read(id, state) {
            latest.insert(&id.node_id, (living.contains(id), card));
        }
    }
    let (alive, dead): (Vec<_>, Vec<_>) = latest.into_values().partition(|(alive, _)| *alive);
    let shown = alive.into_iter().chain(dead).take(CARDS_MAX);
    shown.map(|(alive, card)| (card.identity, Sighting { card, alive })).collect()
}

/// The card of a node, unless it is in a layout that this build does not know, or not its own.
fn read(id: &ChitchatId, state: &NodeState) -> Option<Card> {
    let text = state.get(CARD)?;
    let bytes = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes: Vec<u8> = bytes.collect::<Option<_>>()?;
    let (&CARD_FORMAT, bytes) = bytes.split_first()? else { return None };
    let card: Card = wire::decode(bytes).ok()?;
    (card.identity.to_string() == *id.node_id).then_some(card)
}

/// A card as the library takes it: a text.
fn written(card: &Card) -> String {
    use std::fmt::Write as _;
    let mut text = format!("{CARD_FORMAT:02x}");
    for byte in wire::encode(card) {
        // A `String` takes whatever is written to it.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
