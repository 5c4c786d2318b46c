//! Stories of the shards of one node as it follows the log.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

use std::sync::{Arc, Mutex};

use tollgate_cluster::authority::{Authority, Basis, Command, Position};
use tollgate_cluster::handoff::{Announcement, Start};
use tollgate_cluster::id::{ClusterId, Epoch, Identity, LogIndex, NodeId, SessionId, ShardId, Term, Version};
use tollgate_cluster::lease::{Holder, Timing};
use tollgate_cluster::log_time::{LogTime, Stamp};
use tollgate_cluster::outside::Clock;
use tollgate_cluster::shards::{Facts, Host, Payload, Shards};
use tollgate_cluster::time::Moment;

const TERM: Term = Term { number: 1, leader: NodeId(0) };
const OURS: SessionId = SessionId(10);
const OLD: SessionId = SessionId(20);
const NEW: SessionId = SessionId(21);

/// Notes which ends it hears of.
#[derive(Default)]
struct Ends(Mutex<Vec<(ShardId, SessionId)>>);

struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment::from_nanos(1)
    }

    fn wall_millis(&self) -> u64 {
        0
    }
}

impl Host for Ends {
    type State = ();

    fn open(&self, _: ShardId, _: Start<Payload>, _: Moment) {}

    fn export(&self, _: ShardId, (): (), _: Moment) -> Payload {
        Arc::new([])
    }

    fn holds_open(&self, _: ShardId) -> Payload {
        Arc::new([])
    }

    fn adopt(&self, _: ShardId, (): &mut (), _: SessionId, _: &[u8], _: Moment) {}

    fn ended(&self, shard: ShardId, (): &mut (), sessions: &[SessionId], _: Moment) {
        self.0.lock().unwrap().extend(sessions.iter().map(|session| (shard, *session)));
    }

    fn answer(&self, _: &Shards<Self>, _: &[u8]) -> Vec<u8> {
        Vec::new()
    }
}

/// One node that holds every shard, cold, and another that is a gateway.
struct World {
    authority: Authority,
    shards: Shards<Ends>,
    us: NodeId,
    gateway: NodeId,
}

impl World {
    fn new() -> Self {
        let shards = Shards::new(Ends::default(), Arc::new(Still));
        let (us, gateway) = (NodeId(0), NodeId(1));
        let mut world = Self { authority: Authority::new(ClusterId(1)), shards, us, gateway };
        for identity in [1, 2] {
            world.apply(Command::Admit {
                identity: Identity(identity),
                address: format!("node-{identity}:1"),
            });
        }
        world.apply(Command::Register { node: us, session: SessionId(9) });
        world.apply(Command::Register { node: gateway, session: OLD });
        world.apply(Command::ChangeRing { epoch: Epoch(1), members: vec![us], term: TERM });
        world.claim(SessionId(9), Basis::First);
        world.apply(Command::Register { node: us, session: OURS });
        world.apply(Command::Fence { session: SessionId(9), term: TERM });
        world.observe();
        world.claim(OURS, Basis::Cold);
        world.observe();
        world
    }

    fn apply(&mut self, command: Command) {
        let index = LogIndex(self.authority.applied().map_or(0, |index| index.0 + 1));
        let stamp = Stamp { term: TERM, time: LogTime(index.0) };
        self.authority.apply(Position { index, term: TERM }, stamp, command).unwrap();
    }

    fn claim(&mut self, session: SessionId, basis: Basis) {
        for shard in ShardId::all() {
            self.apply(Command::Claim { shard, session, epoch: Epoch(1), basis });
        }
    }

    fn observe(&self) {
        self.observe_as(OURS);
    }

    fn observe_as(&self, session: SessionId) {
        self.observe_with(session, Version(0), Version(0));
    }

    /// With `version` in force here, of what the log has in version `agreed`.
    fn observe_with(&self, session: SessionId, version: Version, agreed: Version) {
        let holder = Holder::new(session, Timing::DEFAULT);
        let authority = Arc::new(self.authority.clone());
        self.shards.publish(Facts { node: self.us, authority, holder, version, agreed });
        self.shards.observe();
    }

    fn announce(&self, shard: ShardId, from: SessionId) -> bool {
        self.shards.announced(&Announcement { shard, holder: OURS, epoch: Epoch(1), from }, &[])
    }

    fn ends(&self) -> Vec<(ShardId, SessionId)> {
        std::mem::take(&mut *self.shards.host().0.lock().unwrap())
    }
}

fn first() -> ShardId {
    ShardId::all().next().unwrap()
}

#[test]
fn the_end_of_a_session_that_the_log_has_forgotten_since_is_told_too() {
    let mut world = World::new();
    world.ends();
    // Both are applied before the shards follow, as when a snapshot is installed.
    world.apply(Command::Fence { session: OLD, term: TERM });
    world.apply(Command::Remove { node: world.gateway });
    world.observe();
    assert!(world.ends().contains(&(first(), OLD)));
    world.observe();
    assert_eq!(world.ends(), [], "once");
}

/// The gateway's session was replaced while its process went on: what it made before is over, and is announced by the new one.
#[test]
fn what_is_announced_of_a_session_that_is_over_ends_at_once() {
    let mut world = World::new();
    world.apply(Command::Register { node: world.gateway, session: NEW });
    world.apply(Command::Fence { session: OLD, term: TERM });
    world.observe();
    world.ends();
    assert!(world.announce(first(), NEW));
    assert_eq!(world.ends(), [(first(), OLD)]);
}

#[test]
fn a_shard_is_not_sealed_at_a_stop_before_all_that_is_open_is_known() {
    let world = World::new();
    assert!(world.announce(first(), OURS) && world.announce(first(), OLD));
    let sealed: Vec<ShardId> = world.shards.seal_all().iter().map(|outgoing| outgoing.shard()).collect();
    assert_eq!(sealed, [first()]);
    assert_eq!(world.shards.count().incomplete, ShardId::all().count() - 1);
}

/// What a host does when it finds an invariant of its own violated.
fn breaks(shards: &Shards<Ends>) {
    let breaking = std::panic::AssertUnwindSafe(|| {
        shards.look(first(), |(), _| panic!("an invariant of the host does not hold"));
    });
    assert!(std::panic::catch_unwind(breaking).is_err());
}

#[test]
fn a_broken_shard_answers_nothing_until_its_session_is_given_up() {
    let mut world = World::new();
    assert!(!world.shards.is_broken(OURS));
    breaks(&world.shards);
    assert!(world.shards.is_broken(OURS));
    assert!(world.shards.look(first(), |(), _| ()).is_none());
    world.observe();
    assert!(world.shards.look(first(), |(), _| ()).is_none(), "the same session stays away from it");

    let next = SessionId(11);
    world.apply(Command::Register { node: world.us, session: next });
    world.apply(Command::Fence { session: OURS, term: TERM });
    world.observe_as(next);
    world.claim(next, Basis::Cold);
    world.observe_as(next);
    assert!(!world.shards.is_broken(next));
    assert!(world.shards.look(first(), |(), _| ()).is_some(), "the next starts it cold");
}

#[test]
fn nothing_is_claimed_cold_before_what_is_agreed_on_is_in_force() {
    let mut world = World::new();
    let next = SessionId(11);
    world.apply(Command::Register { node: world.us, session: next });
    world.apply(Command::Fence { session: OURS, term: TERM });
    // A process that has just begun: its log is applied, and what that says is still being read.
    world.observe_with(next, Version(0), Version(1));
    assert_eq!(world.shards.proposals(), []);
    world.observe_with(next, Version(1), Version(1));
    let claims = world.shards.proposals();
    assert_eq!(claims.len(), ShardId::all().count());
    assert!(claims.iter().all(|claim| matches!(claim, Command::Claim { basis: Basis::Cold, .. })));
}

#[test]
fn where_nobody_could_take_it_over_a_broken_shard_starts_cold_at_once() {
    let shards = Shards::alone(Ends::default(), Arc::new(Still));
    breaks(&shards);
    assert!(shards.look(first(), |(), _| ()).is_some());
    assert!(!shards.is_broken(OURS));
}
