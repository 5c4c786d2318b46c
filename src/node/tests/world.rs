//! The world of the stories: who is a member, who holds which shard, what the network does to a question.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tollgate_cluster::authority::{Authority, Command, Holding, Position};
use tollgate_cluster::handoff::Announcement;
use tollgate_cluster::id::{ClusterId, Identity, LogIndex, NodeId, SessionId, ShardId, Term, Version};
use tollgate_cluster::lease::{Answer, Holder, Progress, Reply, Required, Timing, Turn};
use tollgate_cluster::log_time::{LogTime, Stamp};
use tollgate_cluster::outside::Clock;
use tollgate_cluster::shards::{Facts, Host, Shards};
use tollgate_cluster::time::{Moment, RHO, Span};

use super::super::owners::shard_of;
use super::super::*;
use crate::policy::KeyHash;
use crate::route::Endpoint;

/// Tokio's clock, and what a machine that was suspended has beside it.
pub struct TestClock {
    origin: tokio::time::Instant,
    suspended: AtomicU64,
    /// A suspension that begins after so many more readings.
    armed: Mutex<Option<(u64, Span)>>,
    /// What the last reading showed.
    shown: AtomicU64,
}

impl TestClock {
    fn new() -> Self {
        let (suspended, shown) = (AtomicU64::default(), AtomicU64::default());
        Self { origin: crate::clock::timer_now(), suspended, armed: Mutex::default(), shown }
    }

    /// Lets the machine be suspended for `length` just after the reading that comes after `readings` more.
    pub fn suspend_after(&self, readings: u64, length: Span) {
        *self.armed.lock().unwrap() = Some((readings, length));
    }

    fn nanos(&self) -> u64 {
        let run = crate::clock::timer_now().duration_since(self.origin).as_nanos() as u64;
        3_600_000_000_000 + run + self.suspended.load(Ordering::Relaxed)
    }

    /// What the last reading showed.
    pub fn shown(&self) -> Moment {
        Moment::from_nanos(self.shown.load(Ordering::Relaxed))
    }
}

impl Clock for TestClock {
    fn now(&self) -> Moment {
        let shown = self.nanos();
        self.shown.store(shown, Ordering::Relaxed);
        let mut armed = self.armed.lock().unwrap();
        match *armed {
            Some((0, length)) => {
                self.suspended.fetch_add(length.as_nanos(), Ordering::Relaxed);
                *armed = None;
            }
            Some((left, length)) => *armed = Some((left - 1, length)),
            None => {}
        }
        Moment::from_nanos(shown)
    }

    fn wall_millis(&self) -> u64 {
        1_800_000_000_000 + self.nanos() / 1_000_000
    }
}

/// What happens to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not a byte goes out.
    NotSent,
    /// It is lost on its way.
    LoseQuestion,
    /// It is answered, and the answer is lost.
    LoseReply,
    /// It arrives twice.
    Twice,
    /// It arrives after this long, whether anybody still waits or not.
    Late(Duration),
    /// It is answered at once, and the answer takes this long.
    LateReply(Duration),
    /// While the answer is on its way the asker's machine is suspended for so many milliseconds.
    Suspend(u64),
}

/// Everything between the nodes.
pub struct Network {
    shards: Mutex<BTreeMap<NodeId, Arc<Shards<Tenants>>>>,
    faults: Mutex<VecDeque<Fault>>,
    pub clock: Arc<TestClock>,
    changed: watch::Sender<u64>,
    pub asked: AtomicU64,
}

struct Wire(Arc<Network>);

#[async_trait]
impl Carrier for Wire {
    async fn ask(&self, node: NodeId, question: Vec<u8>, _within: Duration) -> Result<Vec<u8>, Carry> {
        let network = &self.0;
        network.asked.fetch_add(1, Ordering::Relaxed);
        let fault = network.faults.lock().unwrap().pop_front();
        let there = network.shards.lock().unwrap().get(&node).cloned();
        let there = there.ok_or(Carry::NotSent)?;
        match fault {
            Some(Fault::NotSent) => return Err(Carry::NotSent),
            Some(Fault::LoseQuestion) => std::future::pending().await,
            Some(Fault::LoseReply) => {
                there.host().answer(&there, &question);
                std::future::pending::<()>().await;
            }
            Some(Fault::Twice) => _ = there.host().answer(&there, &question),
            Some(Fault::Late(late)) => {
                let arrival = tokio::spawn(async move {
                    pass(late).await;
                    there.host().answer(&there, &question)
                });
                return arrival.await.map_err(|_| Carry::Unknown);
            }
            Some(Fault::LateReply(late)) => {
                let reply = there.host().answer(&there, &question);
                pass(late).await;
                return Ok(reply);
            }
            Some(Fault::Suspend(millis)) => {
                let reply = there.host().answer(&there, &question);
                network.clock.suspended.fetch_add(millis * 1_000_000, Ordering::Relaxed);
                return Ok(reply);
            }
            None => {}
        }
        let reply = there.host().answer(&there, &question);
        pass(Duration::from_micros(200)).await;
        Ok(reply)
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }
}

/// A node.
pub struct Member {
    pub id: NodeId,
    pub node: Arc<Node>,
    session: SessionId,
    shards: Arc<Shards<Tenants>>,
    holder: Holder,
    outbox: CancellationToken,
}

/// A cluster.
pub struct World {
    pub members: Vec<Member>,
    pub network: Arc<Network>,
    pub principal: Arc<Principal>,
    authority: Authority,
    index: u64,
    policy: crate::policy::Policy,
}

const TERM: Term = Term { number: 1, leader: NodeId(0) };
const MODEL: &str = "gpt-5";

impl World {
    /// `nodes` nodes, all of them in the ring, and tenant `acme` with these limits: the inside of a YAML flow mapping.
    pub fn of(nodes: usize, limits: &str) -> Self {
        let hash = KeyHash::of(b"production");
        let text = format!(
            "version: 1\nproviders: {{ p: {{ dialect: openai, base_url: 'http://127.0.0.1:1' }} }}\npools: {{}}\nmodels: {{}}\n\
             tiers: {{ t: {{ {limits} }} }}\ntenants: [ {{ id: acme, tier: t, keys: [ {{ label: production, hash: '{hash}' }} ] }} ]\n"
        );
        let policy =
            crate::policy::parse(&text, "the story's policy").unwrap_or_else(|problems| panic!("{problems}"));
        let clock = Arc::new(TestClock::new());
        let network = Arc::new(Network {
            shards: Mutex::default(),
            faults: Mutex::default(),
            clock,
            changed: watch::Sender::new(0),
            asked: AtomicU64::default(),
        });
        let principal =
            Arc::new(Principal::new("acme".into(), "production".into(), None, "t".into(), Some(0)));
        let authority = Authority::new(ClusterId(1));
        let mut world = Self { members: Vec::new(), network, principal, authority, index: 0, policy };
        for _ in 0..nodes {
            world.join();
        }
        world.ring(&world.members.iter().map(|member| member.id).collect::<Vec<_>>());
        world
    }

    /// A node joins; the ring stays as it is.
    pub fn join(&mut self) {
        let identity = Identity(u128::from(self.index));
        let id = NodeId(self.index);
        self.commit(Command::Admit { identity, address: format!("node-{}:1", id.0) });
        let session = SessionId(u128::from(self.index));
        self.commit(Command::Register { node: id, session });
        let (clock, snapshot) = (self.network.clock.clone(), Snapshot::first(self.policy.clone()));
        let tenants = Tenants::new(Options::default(), snapshot.rules.clone(), clock.clone());
        let shards = Arc::new(Shards::new(tenants, clock.clone()));
        let wire = Arc::new(Wire(self.network.clone()));
        let node = Arc::new(Node::member(snapshot, shards.clone(), clock, wire, Reach::default()));
        let outbox = CancellationToken::new();
        tokio::spawn({
            let (node, outbox) = (node.clone(), outbox.clone());
            async move { node.tell_owners(outbox).await }
        });
        self.network.shards.lock().unwrap().insert(id, shards.clone());
        let holder = self.lease(session);
        self.members.push(Member { id, node, session, shards, holder, outbox });
        self.spread();
    }

    /// A lease that outlasts any story.
    fn lease(&self, session: SessionId) -> Holder {
        let now = self.network.clock.now();
        let mut holder = Holder::new(session, Timing { lease: Span::from_millis(86_400_000), drift: RHO });
        let Turn::Renew(renewal) = holder.handle_timeout(now, Progress { disk: 1, shards: 1 }) else {
            panic!()
        };
        let answer = Answer::Granted(Required::default());
        holder.handle_reply(Reply { session, sequence: renewal.sequence, answer }, now).unwrap();
        holder
    }

    fn commit(&mut self, command: Command) {
        let position = Position { index: LogIndex(self.index), term: TERM };
        self.index += 1;
        let stamp = Stamp { term: TERM, time: LogTime(self.index) };
        self.authority.apply(position, stamp, command).unwrap();
    }

    /// Every node that lives learns what the log says.
    fn spread(&self) {
        for member in &self.members {
            member.publish(&self.authority);
            member.shards.observe();
        }
        self.network.changed.send_modify(|count| *count += 1);
    }

    /// The ring becomes these, and every shard reaches its owner.
    pub fn ring(&mut self, members: &[NodeId]) {
        self.ring_begins(members);
        self.moves();
    }

    /// The ring becomes these; nothing has moved yet.
    pub fn ring_begins(&mut self, members: &[NodeId]) {
        let epoch = self.authority.epoch().next();
        self.commit(Command::ChangeRing { epoch, members: members.to_vec(), term: TERM });
        self.spread();
        // A shard that started cold goes on only once everybody has announced.
        self.authority.moving().for_each(|shard| self.announce_of(shard));
        for member in &self.members {
            for shard in member.shards.leaving() {
                member.shards.seal(shard);
            }
        }
    }

    /// What waits to move moves.
    pub fn moves(&mut self) {
        loop {
            let proposals: Vec<Command> =
                self.members.iter().flat_map(|member| member.shards.proposals()).collect();
            let done = proposals.is_empty();
            for command in proposals {
                self.commit(command);
            }
            self.spread();
            let exports: Vec<_> = self.members.iter().flat_map(|member| member.shards.exports()).collect();
            let sent = !exports.is_empty();
            for export in exports {
                let importer = self.members.iter().find(|member| member.session == export.importer);
                _ = importer.map(|importer| importer.shards.import(export));
            }
            if done && !sent {
                break;
            }
        }
        let epoch = self.authority.epoch();
        self.commit(Command::CloseChange { epoch, term: TERM });
        self.spread();
    }

    /// A node dies, is fenced, and the others take its shards over with nothing. Nobody has announced anything yet.
    pub fn kill(&mut self, id: NodeId) -> Member {
        let place = self.members.iter().position(|member| member.id == id).unwrap();
        let dead = self.members.remove(place);
        dead.outbox.cancel();
        self.network.shards.lock().unwrap().remove(&id);
        dead.shards.withdraw();
        self.commit(Command::Fence { session: dead.session, term: TERM });
        self.ring(&self.members.iter().map(|member| member.id).collect::<Vec<_>>());
        dead
    }

    /// Every gateway tells the holder of acme's shard what it holds open.
    pub fn announce(&self) {
        self.announce_of(self.shard());
    }

    fn announce_of(&self, shard: ShardId) {
        let Some(Holding::Held { session, epoch, .. }) = self.authority.holding(shard) else { return };
        let Some(owner) = self.members.iter().find(|member| member.session == session) else { return };
        for member in &self.members {
            let open = member.shards.host().holds_open(shard);
            let announcement = Announcement { shard, holder: session, epoch, from: member.session };
            owner.shards.announced(&announcement, &open);
        }
    }

    pub fn shard(&self) -> ShardId {
        shard_of("acme")
    }

    /// Who holds acme's shard.
    pub fn owner(&self) -> &Member {
        let (id, _) = self.authority.holder(self.shard()).unwrap();
        self.members.iter().find(|member| member.id == id).unwrap()
    }

    /// A node that does not.
    pub fn other(&self) -> &Member {
        let owner = self.owner().id;
        self.members.iter().find(|member| member.id != owner).unwrap()
    }

    /// That one, from now on beside the others and without a lease.
    pub fn other_without_lease(&mut self) -> Member {
        let id = self.other().id;
        let place = self.members.iter().position(|member| member.id == id).unwrap();
        let mut member = self.members.remove(place);
        member.loses_its_lease(self);
        member
    }

    /// These happen to the next questions, one each.
    pub fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.network.faults.lock().unwrap().extend(faults);
    }

    /// The owner's level of acme's first limit.
    pub fn level(&self) -> i64 {
        self.view().scopes[0].limits[0].1.level
    }

    /// What the owner has in flight for acme.
    pub fn inflight(&self) -> u32 {
        self.view().scopes[0].inflight
    }

    pub fn view(&self) -> crate::limit::TenantView {
        self.owner().node.owners().tenant(&"acme".into()).unwrap()
    }

    /// How many nodes the ring has.
    pub fn ring_size(&self) -> usize {
        self.authority.ring().members().len()
    }

    /// No more faults.
    pub fn heals(&self) {
        self.network.faults.lock().unwrap().clear();
    }

    /// Acme asks for `tokens` at `member`.
    pub async fn ask(&self, member: &Member, tokens: u64) -> Reserved {
        ask(member.node.clone(), self.principal.clone(), tokens).await
    }

    /// The same, admitted.
    pub async fn hold(&self, member: &Member, tokens: u64) -> Guard {
        match self.ask(member, tokens).await {
            Reserved::Held(guard) => guard,
            Reserved::Denied(denial, _) => panic!("{denial:?}"),
        }
    }

    /// The same, refused.
    pub async fn refused(&self, member: &Member, tokens: u64) -> Denial {
        match self.ask(member, tokens).await {
            Reserved::Held(_) => panic!("admitted"),
            Reserved::Denied(denial, _) => denial,
        }
    }

    /// Waits until no node has anything left to tell anybody, and this much is still held.
    pub async fn comes_to_rest_but(&self, held: usize) {
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(20)).await;
            if self.members.iter().all(|member| member.waits() == 0) {
                break;
            }
        }
        let open: usize = self.members.iter().map(|member| member.shards.host().open().len()).sum();
        assert_eq!(open, held);
    }

    /// Waits until no node has anything left to tell anybody, then asserts that nothing is open anywhere and all books balance.
    pub async fn comes_to_rest(&self) {
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(100)).await;
            if self.members.iter().all(|member| member.waits() == 0) {
                break;
            }
        }
        for member in &self.members {
            assert_eq!(member.waits(), 0, "node {} still tells", member.id);
            assert_eq!(member.shards.host().open().len(), 0, "node {} still holds", member.id);
            assert_eq!(member.node.metrics.inflight.get(), 0);
            assert_eq!(member.node.owners().held().open, 0, "node {} has something open", member.id);
            assert!(member.node.owners().books().balance());
        }
    }
}

impl Member {
    fn publish(&self, authority: &Authority) {
        self.shards.publish(Facts {
            node: self.id,
            authority: Arc::new(authority.clone()),
            holder: self.holder.clone(),
            version: Version(0),
            agreed: Version(0),
        });
    }

    /// Its lease ends.
    pub fn loses_its_lease(&mut self, authority: &World) {
        self.holder = Holder::new(self.session, Timing::DEFAULT);
        self.publish(&authority.authority);
    }

    /// It gets another.
    pub fn gets_a_lease(&mut self, world: &World) {
        self.holder = world.lease(self.session);
        self.publish(&world.authority);
    }

    /// Has a policy in force in which acme has no key any more.
    pub fn hears_of_a_revocation(&self) {
        let snapshot = self.node.snapshot();
        let mut policy = (*snapshot.policy).clone();
        policy.tenants[0].keys.clear();
        self.node.apply(snapshot.next(policy, self.node.now()));
    }

    fn waits(&self) -> usize {
        self.node.member.as_ref().map_or(0, |member| member.outbox.len())
    }
}

/// Lets so much of the paused clock go by.
pub async fn pass(time: Duration) {
    let _elapsed = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

/// Acme asks at `node`.
pub async fn ask(node: Arc<Node>, principal: Arc<Principal>, tokens: u64) -> Reserved {
    let asking = Asking {
        id: node.new_id(),
        principal: &principal,
        endpoint: Endpoint::ChatCompletions,
        user: None,
        model_asked: MODEL,
        model: &MODEL.into(),
        provider: "simulated",
        estimate: Amount::new(tokens, 0),
        idempotency: None,
        lane: Lane::Regular,
    };
    node.reserve(asking).await
}

/// Nodes that are not `except`.
pub fn others(world: &World, except: NodeId) -> Vec<NodeId> {
    let ids: BTreeSet<NodeId> = world.members.iter().map(|member| member.id).collect();
    ids.into_iter().filter(|id| *id != except).collect()
}
