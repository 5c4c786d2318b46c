//! Members in one process: each with a disk in memory, on a network that can be cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, interval, timeout};

use super::host::Tally;
use crate::authority::{Authority, Command, Effect, Outcome};
use crate::id::{ClusterId, Identity, NodeId, SessionId};
use crate::outside::Clock;
use crate::raft::{
    ProposeError, Raft, RaftOptions, RpcKind, Transport, TransportError, seed_for_this_thread,
};
use crate::store::Store;
pub(super) use crate::store::tests::Seeded;
use crate::store::twin::MemoryFolder;
use crate::time::Moment;

pub(super) const CLUSTER: ClusterId = ClusterId(42);

/// How long a message is on its way.
const WAY: Duration = Duration::from_millis(1);

/// How often a test looks.
const TICK: Duration = Duration::from_millis(10);

/// tokio's clock as a lease clock.
pub(super) struct TokioClock(Instant);

impl TokioClock {
    pub(super) async fn new() -> Self {
        // An interval's first tick is now.
        Self(interval(TICK).tick().await)
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.elapsed().as_nanos() as u64)
    }

    fn wall_millis(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }
}

/// Who hears whom.
#[derive(Default)]
pub(super) struct Net {
    members: Mutex<BTreeMap<NodeId, Raft>>,
    addresses: Mutex<BTreeMap<NodeId, String>>,
    cut: Mutex<BTreeSet<NodeId>>,
    pub(super) snapshots: AtomicU64,
}

/// One life's end of it.
struct End {
    from: NodeId,
    alive: Arc<AtomicBool>,
    net: Arc<Net>,
}

#[async_trait]
impl Transport for End {
    async fn call(
        &self,
        node: NodeId,
        address: &str,
        kind: RpcKind,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<Vec<u8>, TransportError> {
        let lost = || {
            let cut = self.net.cut.lock().unwrap();
            !self.alive.load(Ordering::Relaxed) || cut.contains(&self.from) != cut.contains(&node)
        };
        if kind == RpcKind::Snapshot {
            self.net.snapshots.fetch_add(1, Ordering::Relaxed);
        }
        passes(WAY).await;
        if lost() {
            passes(within).await;
            return Err(TransportError::Unknown);
        }
        let member = self.net.members.lock().unwrap().get(&node).cloned();
        let moved = self.net.addresses.lock().unwrap().get(&node).is_none_or(|at| at != address);
        let Some(member) = member.filter(|_| !moved) else { return Err(TransportError::Unreachable) };
        let answer = member.handle(kind.into(), &body).await;
        passes(WAY).await;
        if lost() { Err(TransportError::Unknown) } else { Ok(answer) }
    }
}

/// Nobody else.
pub(super) struct Nobody;

#[async_trait]
impl Transport for Nobody {
    async fn call(
        &self,
        _: NodeId,
        _: &str,
        _: RpcKind,
        _: Vec<u8>,
        _: Duration,
    ) -> Result<Vec<u8>, TransportError> {
        Err(TransportError::Unreachable)
    }
}

/// The members that there are.
pub(super) struct Cluster {
    pub(super) net: Arc<Net>,
    pub(super) members: BTreeMap<NodeId, Member>,
    options: RaftOptions,
    pub(super) clock: Arc<TokioClock>,
    crashes: u64,
    next: u128,
}

pub(super) struct Member {
    pub(super) raft: Raft,
    pub(super) store: Store,
    pub(super) folder: MemoryFolder,
    alive: Arc<AtomicBool>,
}

pub(super) fn address(node: NodeId) -> String {
    format!("node-{node}:7700")
}

impl Cluster {
    /// A cluster of one, founded.
    pub(super) async fn founded(seed: u64, options: RaftOptions) -> Self {
        seed_for_this_thread(seed);
        let clock = Arc::new(TokioClock::new().await);
        let members = BTreeMap::new();
        let mut cluster = Self { net: Arc::default(), members, options, clock, crashes: seed, next: 1 };
        let node = NodeId(0);
        cluster.start(node, MemoryFolder::new("0")).await;
        cluster.raft(node).found(&address(node)).await.unwrap();
        let found = Command::Found { identity: Identity(0), address: address(node) };
        let effects = cluster.propose(found).await.unwrap();
        assert_eq!(effects, Ok(vec![Effect::Admitted { node }]));
        cluster
    }

    /// A cluster of `size` voters.
    pub(super) async fn of(size: usize, seed: u64) -> Self {
        let mut cluster = Self::founded(seed, RaftOptions::default()).await;
        while cluster.members.len() < size {
            cluster.join().await;
        }
        let all = cluster.members.keys().copied().collect();
        cluster.leader().await.set_voters(all).await.unwrap();
        cluster
    }

    /// One more, as a learner that has caught up.
    pub(super) async fn join(&mut self) -> NodeId {
        let identity = Identity(self.next);
        self.next += 1;
        let place = format!("place-{}:1", identity.0);
        let effects = self.propose(Command::Admit { identity, address: place }).await.unwrap().unwrap();
        let [Effect::Admitted { node }] = effects[..] else { panic!("{effects:?}") };
        self.start(node, MemoryFolder::new(node.to_string())).await;
        let leader = self.leader().await;
        leader.add_learner(node, &address(node)).await.unwrap();
        assert!(leader.caught_up(node, Duration::from_secs(10)).await);
        node
    }

    pub(super) async fn start(&mut self, node: NodeId, folder: MemoryFolder) {
        let store = Store::open(&folder).unwrap();
        let alive = Arc::new(AtomicBool::new(true));
        let end = End { from: node, alive: Arc::clone(&alive), net: Arc::clone(&self.net) };
        let raft = Raft::open(
            node,
            CLUSTER,
            store.clone(),
            self.clock.clone(),
            Arc::new(end),
            Tally::fresh(),
            self.options.clone(),
        );
        let raft = raft.await.unwrap();
        self.net.members.lock().unwrap().insert(node, raft.clone());
        self.net.addresses.lock().unwrap().entry(node).or_insert_with(|| address(node));
        self.members.insert(node, Member { raft, store, folder, alive });
    }

    /// The power of `node` goes; what is on its disk is kept for another start.
    pub(super) fn crash(&mut self, node: NodeId) -> MemoryFolder {
        let member = self.members.remove(&node).unwrap();
        member.alive.store(false, Ordering::Relaxed);
        self.net.members.lock().unwrap().remove(&node);
        self.crashes += 1;
        member.folder.crash(&Seeded::new(self.crashes));
        member.folder
    }

    pub(super) async fn restart(&mut self, node: NodeId) {
        let folder = self.crash(node);
        self.start(node, folder).await;
    }

    /// Nobody hears `nodes`, nor they anybody, except one another.
    pub(super) fn cut(&self, nodes: impl IntoIterator<Item = NodeId>) {
        *self.net.cut.lock().unwrap() = nodes.into_iter().collect();
    }

    pub(super) fn moves(&self, node: NodeId, to: &str) {
        self.net.addresses.lock().unwrap().insert(node, to.into());
    }

    pub(super) fn raft(&self, node: NodeId) -> &Raft {
        &self.members[&node].raft
    }

    /// A leader that can be reached by most.
    pub(super) async fn leader(&self) -> Raft {
        let cut = self.net.cut.lock().unwrap().clone();
        let reached = self.members.iter().filter(|(node, _)| !cut.contains(node));
        until("a leader", || {
            let leads = |member: &Member| member.raft.leadership().borrow().leading.is_some();
            reached.clone().find(|(_, member)| leads(member)).map(|(_, member)| member.raft.clone())
        })
        .await
    }

    /// Has `command` in the log, whoever leads.
    pub(super) async fn propose(&self, command: Command) -> Result<Outcome, ProposeError> {
        let leader = self.leader().await;
        let mut outcomes = leader.propose(vec![command]).await?;
        Ok(outcomes.remove(0))
    }

    /// `count` entries that change something.
    pub(super) async fn fill(&mut self, count: u64) {
        for _ in 0..count {
            self.next += 1;
            let register = Command::Register { node: NodeId(0), session: SessionId(self.next) };
            self.propose(register).await.unwrap().unwrap();
        }
    }

    /// Waits until all have applied the same; what that is.
    pub(super) async fn agreed(&self) -> Arc<Authority> {
        let agreed = until("all to agree", || {
            let mut states = self.members.values().map(|member| Arc::clone(&member.raft.applied().borrow()));
            let first = states.next()?;
            states.all(|state| state.applied == first.applied).then(|| Arc::clone(&first.authority))
        })
        .await;
        for member in self.members.values() {
            assert_eq!(member.raft.applied().borrow().authority, agreed);
        }
        agreed
    }
}

/// Looks again and again, a minute of the test's clock long.
pub(super) async fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let mut ticks = interval(TICK);
    let found = timeout(Duration::from_secs(60), async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            ticks.tick().await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("waited a minute for {what}"))
}

/// Time that a message takes, or that simply goes by: on the test's clock.
pub(super) async fn passes(span: Duration) {
    let _ = timeout(span, std::future::pending::<()>()).await;
}
