//! A running member: gossip, Raft, the lease and the shards, put together and kept going.
//!
//! One task, the engine, makes a turn whenever something has changed and at least every [`TURN`]: it follows the log, keeps the
//! session and its lease, moves shards, and, while this node leads, decides what only a leader may. What a turn wants from others
//! it asks in tasks of their own, and their answers wake it. All that it rests on is read again at each turn, so an answer that is lost
//! costs time and nothing else.
//!
//! In reading order:
//! - [`beginning`](self): from an empty folder to a number in a cluster; `admission`: whom the cluster lets in;
//! - `engine`: the turn; `session`: the lease, from both sides;
//! - `mover`: seals, exports, claims, announcements; `sealed`: what a node without an heir leaves to its next life;
//! - `steward`: the leader's duties: whom to condemn and fence, the ring, the voters;
//! - `host`: what the host has agreed on through this node;
//! - `serve`: what other nodes ask; `status`: what operators ask; `keys`: the secret's rotation.
//!
//! Laws:
//! - **gossip proposes, Raft decides, the owner checks at the moment it spends**: what is heard by gossip is only ever a reason to
//!   propose something;
//! - a folder that ever joined never founds again: its note is on disk before the cluster it names can exist for it;
//! - a session begins with nothing, and is replaced as soon as it is condemned.
//!
//! Never here: what a shard is.

mod admission;
mod beginning;
mod clocks;
mod engine;
mod host;
mod keys;
mod message;
mod mover;
pub(crate) mod notes;
mod sealed;
mod serve;
mod session;
mod status;
mod steward;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::host::HostError;
pub use self::message::{Leaving, kind};
pub use self::status::{Counters, KeyStatus, MemberStatus, Role, Status};
use crate::agreed::Agreed;
use crate::authority::Authority;
use crate::gossip::{Gossip, GossipStats};
use crate::id::{Identity, NodeId, SessionId, Version};
use crate::lease::{Progress, Timing};
use crate::log_time::LogTime;
use crate::outside::Outside;
use crate::peer::{CallError, Peer, PeerStats, Peers};
use crate::raft::{Raft, RaftOptions, RaftStats};
use crate::secret::Secrets;
use crate::shards::{Host, Shards};
use crate::store::{Shelf, Store};
use crate::time::Span;

/// The longest time between two turns of the engine.
pub const TURN: Duration = Duration::from_millis(25);

/// How long one call to another member may take, from when it is asked to its answer.
const CALL: Duration = Duration::from_secs(2);

/// How long the second half of a call through another member may take: what is left of [`CALL`] is for the first.
const DETOUR: Duration = Duration::from_secs(1);

/// What a member is started with.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// Where peers connect, by TCP and UDP.
    pub peer: SocketAddr,
    /// `host:port` at which peers reach this node; none: the address it listens on.
    pub advertise: Option<String>,
    /// `host:port` of nodes to begin with. A name may stand for many addresses.
    pub join: Vec<String>,
    /// How many founders a cluster needs that does not exist yet; `None`: this node only joins.
    pub founders: Option<usize>,
    /// Lengths of the lease.
    pub timing: Timing,
    /// How long a voter may be silent until another takes its vote.
    pub voter_grace: Span,
    /// Settings of Raft.
    pub raft: RaftOptions,
}

/// Why a member could not be started, for a person.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The folder cannot be used.
    #[error("{0}")]
    Folder(String),
    /// An address cannot be had.
    #[error("cannot listen on {address} (--peer): {problem}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why not.
        problem: String,
    },
    /// Raft cannot go on from what the folder holds.
    #[error("{0}")]
    Raft(String),
    /// The cluster does not want this node, and trying again will not help.
    #[error("{0}")]
    Refused(String),
    /// It was told to stop before it was a member.
    #[error("told to stop before it was a member")]
    Stopped,
}

/// A running member.
pub struct Member<H: Host> {
    shared: Arc<Shared<H>>,
}

/// What all tasks of a member share.
struct Shared<H: Host> {
    outside: Outside,
    options: MemberOptions,
    shards: Arc<Shards<H>>,
    secrets: Arc<Secrets>,
    store: Store,
    identity: Identity,
    /// Where peers reach this node.
    address: OnceLock<String>,
    peers: OnceLock<Arc<Peers>>,
    gossip: OnceLock<Gossip>,
    /// This node's number and its part in Raft, once it is a member.
    joined: OnceLock<Joined>,
    core: Mutex<session::Core>,
    /// Rounds through the disk.
    disk_rounds: AtomicU64,
    /// Something has changed: make a turn.
    wake: Notify,
    /// Grows whenever the facts change.
    changed: watch::Sender<u64>,
    /// What this node waits for, in words.
    waiting: watch::Sender<Option<String>>,
    /// Why it cannot go on, once that is so.
    failed: watch::Sender<Option<String>>,
    stopping: CancellationToken,
    background: TaskTracker,
}

struct Joined {
    node: NodeId,
    raft: Arc<Raft>,
}

impl<H: Host> Member<H> {
    /// Starts a member. It is not one yet when this returns: [`Member::waiting_for`] says what it waits for.
    ///
    /// # Errors
    ///
    /// [`StartError`]: the folder or an address cannot be used.
    pub async fn start(
        options: MemberOptions,
        outside: Outside,
        secrets: Arc<Secrets>,
        shards: Arc<Shards<H>>,
    ) -> Result<Self, StartError> {
        let shared = beginning::prepare(options, outside, secrets, shards).await?;
        let tasks = shared.clone();
        shared.spawn(async move { beginning::run(tasks).await });
        Ok(Self { shared })
    }

    /// The shards.
    #[must_use]
    pub fn shards(&self) -> &Arc<Shards<H>> {
        &self.shared.shards
    }

    /// Where it listens for peers.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        Some(self.shared.peers.get()?.local_addr())
    }

    /// Where peers reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        self.shared.address.get().map_or("", String::as_str)
    }

    /// This node's number, once it is a member.
    #[must_use]
    pub fn node(&self) -> Option<NodeId> {
        Some(self.shared.joined.get()?.node)
    }

    /// Grows whenever what [`Shards::facts`] says has changed.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// What it waits for, in words; nothing while it can admit.
    #[must_use]
    pub fn waiting_for(&self) -> watch::Receiver<Option<String>> {
        self.shared.waiting.subscribe()
    }

    /// Waits until this node cannot go on, and says why and what to do: its disk failed, it was removed, its folder is of no use. It has let
    /// its lease go and is to be stopped.
    pub async fn failed(&self) -> String {
        let mut failed = self.shared.failed.subscribe();
        let told = failed.wait_for(Option::is_some).await;
        told.ok().and_then(|why| why.clone()).unwrap_or_default()
    }

    /// Asks the host on `node`.
    ///
    /// # Errors
    ///
    /// [`CallError`]: whether the question may have arrived.
    pub async fn ask(&self, node: NodeId, question: Vec<u8>, within: Duration) -> Result<Vec<u8>, CallError> {
        self.shared.ask(node, kind::HOST, question, within).await
    }

    /// Has the host on `node` look something up.
    ///
    /// # Errors
    ///
    /// [`CallError`]: there is no answer.
    pub async fn look_up(
        &self,
        node: NodeId,
        question: Vec<u8>,
        within: Duration,
    ) -> Result<Vec<u8>, CallError> {
        self.shared.ask(node, kind::LOOK_UP, question, within).await
    }

    /// The cluster, by the leader's view if it can be had, else by this node's own.
    #[must_use]
    pub async fn status(&self) -> Option<Status> {
        status::of(&self.shared).await
    }

    /// What it has counted since it started.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.core().counters
    }

    /// What is left of this node's lease.
    #[must_use]
    pub fn lease_left(&self) -> Span {
        let now = self.shared.outside.clock.now();
        self.shared.core().holder.left(now)
    }

    /// What its connections count.
    #[must_use]
    pub fn peer_stats(&self) -> Option<PeerStats> {
        Some(self.shared.peers.get()?.stats())
    }

    /// What Raft counts.
    #[must_use]
    pub fn raft_stats(&self) -> Option<RaftStats> {
        Some(self.shared.joined.get()?.raft.stats())
    }

    /// The time that the log would come to with an entry of now; none unless this node leads.
    #[must_use]
    pub fn log_time(&self) -> Option<LogTime> {
        self.shared.joined.get()?.raft.log_time()
    }

    /// The nodes that vote, as this node's log says; none while that changes.
    #[must_use]
    pub fn raft_voters(&self) -> BTreeSet<NodeId> {
        let members = self.shared.joined.get().map(|joined| joined.raft.members());
        members.filter(|members| !members.changing).map(|members| members.voters).unwrap_or_default()
    }

    /// What gossip counts.
    #[must_use]
    pub fn gossip_stats(&self) -> Option<GossipStats> {
        Some(self.shared.gossip.get()?.stats())
    }

    /// Hands all shards over to others; `true` once nothing is left here, `false` when there is no heir or `within` is over.
    /// With `for_good`, the cluster then forgets this node.
    pub async fn hand_over(&self, within: Duration, for_good: bool) -> bool {
        let handed_over = mover::hand_over(&self.shared, for_good);
        let handed_over = tokio::time::timeout(within, handed_over).await.unwrap_or(false);
        if !handed_over {
            // It goes on as a member: its session is replaced again when that must go.
            self.shared.core().departing = false;
        }
        handed_over
    }

    /// Seals what is still here and keeps it on disk for this node's next life. Nothing is answered for any more.
    pub async fn keep_for_next_life(&self) {
        sealed::leave(&self.shared).await;
    }

    /// Removes another node from the cluster, for ever. It must be out of the ring, with no session that may live.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    pub async fn remove(&self, node: NodeId) -> Result<(), String> {
        let outcomes = self.shared.propose_and_say(vec![crate::authority::Command::Remove { node }]).await?;
        outcomes.into_iter().next().unwrap_or(Ok(Vec::new())).map(|_| ())
    }

    /// What the host has agreed on, as far as it is applied here. Nothing before this node is a member. [`Member::changed`] tells of
    /// a later one.
    #[must_use]
    pub fn agreed(&self) -> Option<Arc<dyn Agreed>> {
        Some(self.shared.joined.get()?.raft.applied().borrow().agreed.clone())
    }

    /// Has a command of the host committed and applied by the leader: what the host's state answered there. It may be applied here a
    /// moment later.
    ///
    /// # Errors
    /// [`HostError`]: whether it may yet be committed.
    pub async fn propose(&self, command: Vec<u8>) -> Result<Arc<[u8]>, HostError> {
        host::propose(&self.shared, command).await
    }

    /// What the host keeps on the same disk.
    #[must_use]
    pub fn shelf(&self) -> Shelf {
        Shelf::of(self.shared.store.clone())
    }

    /// Tells that the host has another version in force: see [`Host::in_force`].
    pub fn refresh(&self) {
        self.shared.wake.notify_one();
    }

    /// Waits until nobody answers any more who does not have `version` in force, which [`Member::propose`] has answered before: every
    /// session has said that it does (`true`), or every lease is over that was granted before it was committed.
    pub async fn in_force_everywhere(&self, version: Version) -> bool {
        host::in_force_everywhere(&self.shared, version).await
    }

    /// Gives a new key of the cluster's secret to every live node.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    pub async fn install_key(&self, secret: Vec<u8>) -> Result<crate::keyring::KeyId, String> {
        keys::install(&self.shared, secret).await
    }

    /// Seals with `key` from now on.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    pub async fn use_key(&self, key: crate::keyring::KeyId) -> Result<(), String> {
        keys::step(&self.shared, crate::keyring::KeyringCommand::Use { key }).await
    }

    /// Stops reading what is sealed with `key`.
    ///
    /// # Errors
    ///
    /// Why not, in words.
    pub async fn remove_key(&self, key: crate::keyring::KeyId) -> Result<(), String> {
        keys::step(&self.shared, crate::keyring::KeyringCommand::Remove { key }).await
    }

    /// Stops. What is still here is not handed over: [`Member::hand_over`] does that.
    pub async fn shut_down(&self) {
        let shared = &self.shared;
        if let Some(joined) = shared.joined.get() {
            steward::give_up_leadership(shared, joined).await;
        }
        shared.stopping.cancel();
        shared.shards.withdraw();
        shared.background.close();
        shared.background.wait().await;
        if let Some(joined) = shared.joined.get() {
            joined.raft.shut_down().await;
        }
        if let Some(gossip) = shared.gossip.get() {
            gossip.shut_down().await;
        }
        if let Some(peers) = shared.peers.get() {
            peers.shut_down().await;
        }
        shared.store.close().await;
    }
}

impl<H: Host> Shared<H> {
    /// A panic while it was locked leaves a core whose lease is what the clock says: going on is no danger.
    fn core(&self) -> MutexGuard<'_, session::Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does `work` beside the engine, until it is done or this node stops.
    fn spawn(&self, work: impl Future<Output: Send> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.background.spawn(async move {
            tokio::select! {
                biased;
                () = stopping.cancelled() => {}
                _ = work => {}
            }
        });
    }

    /// The log as far as it is applied here.
    fn authority(&self) -> Option<Arc<Authority>> {
        Some(self.joined.get()?.raft.applied().borrow().authority.clone())
    }

    fn peer(&self, node: NodeId) -> Option<Peer> {
        let authority = self.authority()?;
        let member = authority.nodes().get(&node)?;
        Some(Peer { address: member.address.clone(), identity: Some(member.identity) })
    }

    /// Calls `node` as the log knows it.
    async fn ask(
        &self,
        node: NodeId,
        kind: u8,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let unknown = || CallError::Unreachable(format!("node {node} is not a member"));
        let peer = self.peer(node).ok_or_else(unknown)?;
        let peers = self.peers.get().ok_or_else(unknown)?;
        peers.call(&peer, kind, body, within).await.map(|answer| answer.to_vec())
    }

    /// This node cannot go on: it answers for nothing any more, and waits to be stopped.
    fn give_up(&self, why: String) {
        tracing::error!("{why}");
        self.core().kept = true;
        self.shards.withdraw();
        self.say_waiting(Some(why.clone()));
        self.failed.send_replace(Some(why));
    }

    /// Says what this node waits for, once per change.
    fn say_waiting(&self, words: Option<String>) {
        self.waiting.send_if_modified(|waiting| {
            let news = *waiting != words;
            if news {
                match &words {
                    Some(words) => tracing::info!("{words}"),
                    None => tracing::info!("this node can admit"),
                }
                *waiting = words;
            }
            news
        });
    }

    fn progress(&self, shards: u64) -> Progress {
        Progress { disk: self.disk_rounds.load(std::sync::atomic::Ordering::Acquire), shards }
    }
}

/// Of each shard, to whom and in which tenure this node has announced what it holds open.
type Announced = BTreeMap<crate::id::ShardId, (SessionId, crate::id::Epoch)>;
