//! A member with a toy for a host.

#![allow(dead_code, reason = "each test takes of it what it needs")]

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tollgate_cluster::agreed::{Agreed, At};
use tollgate_cluster::handoff::Start;
use tollgate_cluster::id::{Epoch, NodeId, SessionId, ShardId, Version};
use tollgate_cluster::lease::Timing;
use tollgate_cluster::member::{Member, MemberOptions};
use tollgate_cluster::outside::{Clock, FileFolder, OsEntropy, Outside, TokioNetwork};
use tollgate_cluster::raft::RaftOptions;
use tollgate_cluster::secret::{Secret, Secrets};
use tollgate_cluster::shards::{Governing, Host, Payload, Shards};
use tollgate_cluster::time::{Moment, RHO, Span};

/// A shard is a number that grows by one whenever it is asked. Agreed on is how often something was.
#[derive(Default)]
pub struct Toy {
    /// What the test says that it has in force.
    pub in_force: AtomicU64,
    /// The wall clocks that it last heard of as the leader, in milliseconds since 1970.
    pub wall_clocks: Mutex<Vec<u64>>,
}

#[derive(Clone, Debug, Default)]
struct Count(u64);

impl Agreed for Count {
    fn apply(&mut self, _at: At<'_>, _command: &[u8]) -> Vec<u8> {
        self.0 += 1;
        self.written()
    }

    fn fenced(&mut self, _at: At<'_>, _session: SessionId) {}

    fn removed(&mut self, _at: At<'_>, _node: NodeId) {}

    fn version(&self) -> Version {
        Version(self.0)
    }

    fn fork(&self) -> Arc<dyn Agreed> {
        Arc::new(self.clone())
    }

    fn written(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn restored(&self, bytes: &[u8]) -> Result<Arc<dyn Agreed>, String> {
        Ok(Arc::new(Self(u64::from_le_bytes(bytes.try_into().map_err(|_| "not 8 bytes")?))))
    }
}

impl Host for Toy {
    type State = u64;

    fn open(&self, _shard: ShardId, start: Start<Payload>, _now: Moment) -> u64 {
        match start {
            Start::Imported(bytes) => u64::from_le_bytes(bytes[..].try_into().unwrap()),
            Start::First | Start::Cold => 0,
        }
    }

    fn export(&self, _shard: ShardId, state: u64, _now: Moment) -> Payload {
        state.to_le_bytes().as_slice().into()
    }

    fn holds_open(&self, _shard: ShardId) -> Payload {
        Arc::new([])
    }

    fn adopt(&self, _shard: ShardId, _state: &mut u64, _from: SessionId, _open: &[u8], _now: Moment) {}

    fn govern(&self, leading: &Governing<'_>) -> Vec<Payload> {
        *self.wall_clocks.lock().unwrap() = leading.wall_clocks.to_vec();
        Vec::new()
    }

    fn ended(&self, _shard: ShardId, _state: &mut u64, _sessions: &[SessionId], _now: Moment) {}

    fn agreed(&self) -> Arc<dyn Agreed> {
        Arc::new(Count::default())
    }

    fn in_force(&self) -> Version {
        Version(self.in_force.load(Ordering::SeqCst))
    }

    fn answer(&self, shards: &Shards<Self>, question: &[u8]) -> Vec<u8> {
        let number = |from: usize| u128::from_le_bytes(question[from..from + 16].try_into().unwrap());
        let shard = ShardId::new(number(0) as u16).unwrap();
        let answer = shards.decide(shard, Epoch(number(16) as u64), SessionId(number(32)), |state, _, _| {
            *state += 1;
            *state
        });
        answer.map_or(Vec::new(), |count| count.to_le_bytes().to_vec())
    }
}

/// A lease whose end is part of a story, so that the story is short.
pub const SHORT: Span = Span::from_millis(1500);

/// A lease for stories that are not about its end: a loaded machine does not lose it.
pub const LONG: Span = Span::from_millis(15_000);

pub struct Node {
    pub member: Member<Toy>,
    folder: TempDir,
    lease: Span,
}

struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods, reason = "a test's clock")]
    fn now(&self) -> Moment {
        static BEGAN: std::sync::LazyLock<std::time::Instant> =
            std::sync::LazyLock::new(std::time::Instant::now);
        Moment::from_nanos(1_000_000_000 + BEGAN.elapsed().as_nanos() as u64)
    }

    fn wall_millis(&self) -> u64 {
        wall_millis()
    }
}

/// The wall clock, in milliseconds since 1970.
#[allow(clippy::disallowed_methods, reason = "a test's clock")]
pub fn wall_millis() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    since.as_millis() as u64
}

/// This machine, and its disk at `folder`.
pub fn outside(folder: &Path) -> Outside {
    Outside {
        network: Arc::new(TokioNetwork),
        clock: Arc::new(SystemClock),
        entropy: Arc::new(OsEntropy),
        folder: Arc::new(FileFolder(Path::to_owned(folder))),
    }
}

/// The secret of every cluster here.
pub fn secrets() -> Arc<Secrets> {
    Arc::new(Secrets::new(Secret::new(*b"a secret of forty bytes or so, for tests").unwrap()))
}

impl Node {
    pub async fn founds(lease: Span) -> Self {
        Self::start(tempfile::tempdir().unwrap(), lease, Some(1), Vec::new()).await
    }

    pub async fn joins(seed: &Node) -> Self {
        let at = vec![seed.member.local_addr().unwrap().to_string()];
        Self::start(tempfile::tempdir().unwrap(), seed.lease, None, at).await
    }

    pub async fn resumes(folder: TempDir, lease: Span) -> Self {
        Self::start(folder, lease, None, Vec::new()).await
    }

    async fn start(folder: TempDir, lease: Span, founders: Option<usize>, join: Vec<String>) -> Self {
        let options = MemberOptions {
            peer: "127.0.0.1:0".parse().unwrap(),
            advertise: None,
            join,
            founders,
            timing: Timing { lease, drift: RHO },
            voter_grace: Span::from_millis(10_000),
            raft: RaftOptions::default(),
        };
        let outside = outside(folder.path());
        let shards = Arc::new(Shards::new(Toy::default(), outside.clock.clone()));
        let member = Member::start(options, outside, secrets(), shards).await.unwrap();
        Self { member, folder, lease }
    }

    pub async fn until_admits(&self) {
        eventually("the node admits", || {
            let waiting = self.member.waiting_for().borrow().clone();
            waiting.is_none()
        })
        .await;
    }

    /// Has the host put this version in force.
    pub fn puts_in_force(&self, version: u64) {
        self.member.shards().host().in_force.store(version, Ordering::SeqCst);
        self.member.refresh();
    }

    /// Whether its log has `node` as a member.
    pub fn names(&self, node: NodeId) -> bool {
        self.member.shards().facts().is_some_and(|facts| facts.authority.nodes().contains_key(&node))
    }

    pub fn voters(&self) -> usize {
        self.member.raft_voters().len()
    }

    /// Asks whoever holds the shard to count.
    pub async fn add(&self, shard: ShardId) -> Option<u64> {
        let mut tries = tokio::time::interval(Duration::from_millis(10));
        for _ in 0..400 {
            if let Some(count) = self.try_add(shard).await {
                return Some(count);
            }
            tries.tick().await;
        }
        None
    }

    async fn try_add(&self, shard: ShardId) -> Option<u64> {
        let shards = self.member.shards();
        let facts = shards.facts()?;
        let (node, session) = facts.authority.holder(shard)?;
        let mut question = Vec::new();
        question.extend(u128::from(shard.number()).to_le_bytes());
        question.extend(u128::from(facts.authority.epoch().0).to_le_bytes());
        question.extend(session.0.to_le_bytes());
        let answer = if Some(node) == self.member.node() {
            shards.host().answer(shards, &question)
        } else {
            self.member.ask(node, question, Duration::from_secs(1)).await.ok()?
        };
        Some(u64::from_le_bytes(answer[..].try_into().ok()?))
    }

    pub async fn stop(self) -> TempDir {
        self.member.shut_down().await;
        self.folder
    }
}

/// Asks until it is so.
pub async fn eventually(what: &str, so: impl Fn() -> bool) {
    let asking = async {
        let mut questions = tokio::time::interval(Duration::from_millis(10));
        while !so() {
            questions.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), asking).await.unwrap_or_else(|_| panic!("never: {what}"));
}
