//! Stories of a handoff and of what may be answered meanwhile.

use super::*;
use crate::authority::{Authority, Basis, Command, Position, Rejection};
use crate::id::{ClusterId, Identity, LogIndex, NodeId, Term};
use crate::lease::{Answer, Holder, LeaseRefusal, Progress as Rounds, Reply, Required, Timing, Turn};
use crate::log_time::{LogTime, Stamp};
use crate::ring::Ring;
use crate::time::Moment;
use crate::view::{Refusal, View};

const TERM: Term = Term { number: 1, leader: NodeId(0) };
const A: SessionId = SessionId(10);
const B: SessionId = SessionId(20);

/// Two nodes, one log that both have applied as far as it goes. A payload is a number: what is left of something.
struct Cluster {
    authority: Authority,
    a: NodeId,
    b: NodeId,
    /// The shard that is to move, as its old owner and its new one have it.
    old: Slot<u32>,
    new: Slot<u32>,
}

impl Cluster {
    /// `a` is fenced and `b` has started its shard cold; `third` is the session of another node, which may hold something open.
    fn cold_beside(third: SessionId) -> (Self, ShardId, NodeId) {
        let (mut cluster, shard) = Self::changing();
        cluster.apply(Command::Admit { identity: Identity(3), address: "c:1".into() });
        let node = *cluster.authority.nodes().keys().max().unwrap();
        cluster.apply(Command::Register { node, session: third });
        cluster.fence(A);
        cluster.observe();
        cluster.propose(B).unwrap();
        cluster.observe();
        (cluster, shard, node)
    }

    /// `a` serves the shard; the ring has just been changed to give it to `b`.
    fn changing() -> (Self, ShardId) {
        let (a, b) = (NodeId(0), NodeId(1));
        let shard = Ring::new(Epoch(2), [a, b]).shards_of(b).next().unwrap();
        let (old, new) = (Slot::new(shard, a, A), Slot::new(shard, b, B));
        let mut cluster = Self { authority: Authority::new(ClusterId(1)), a, b, old, new };
        for identity in [1, 2] {
            let address = format!("node-{identity}:1");
            cluster.apply(Command::Admit { identity: Identity(identity), address });
        }
        cluster.apply(Command::Register { node: a, session: A });
        cluster.apply(Command::Register { node: b, session: B });
        cluster.change(&[a]);
        assert_eq!(cluster.observe(), (None, None));
        cluster.propose(A).unwrap();
        assert_eq!(cluster.observe(), (Some(Change::Open(Start::First)), None));
        cluster.close();
        cluster.change(&[a, b]);
        assert_eq!(cluster.observe(), (None, None));
        (cluster, shard)
    }

    fn try_apply(&mut self, command: Command) -> Result<(), Rejection> {
        let index = LogIndex(self.authority.applied().map_or(0, |index| index.0 + 1));
        let stamp = Stamp { term: TERM, time: LogTime(index.0) };
        self.authority.apply(Position { index, term: TERM }, stamp, command).map(|_| ())
    }

    fn apply(&mut self, command: Command) {
        self.try_apply(command).unwrap();
    }

    fn change(&mut self, members: &[NodeId]) {
        let epoch = self.authority.epoch().next();
        self.apply(Command::ChangeRing { epoch, members: members.to_vec(), term: TERM });
    }

    fn close(&mut self) {
        self.apply(Command::CloseChange { epoch: self.authority.epoch(), term: TERM });
    }

    fn fence(&mut self, session: SessionId) {
        self.apply(Command::Fence { session, term: TERM });
    }

    fn observe(&mut self) -> (Option<Change<u32>>, Option<Change<u32>>) {
        (self.old.observe(&self.authority), self.new.observe(&self.authority))
    }

    /// Applies what the slot of `session` wants from the log.
    fn propose(&mut self, session: SessionId) -> Option<Command> {
        let slot = if session == A { &self.old } else { &self.new };
        let command = slot.proposal(&self.authority)?;
        self.apply(command.clone());
        Some(command)
    }

    /// The export, sealed with `payload` and renounced.
    fn export(&mut self, payload: u32) -> Export<u32> {
        self.old.seal(Version(3), payload).unwrap();
        self.propose(A).unwrap();
        self.observe();
        self.old.export(&self.authority).unwrap()
    }

    fn import(&mut self, export: &Export<u32>) -> Result<(), ImportRefusal> {
        self.new.import(export.clone(), &self.authority, Version(3))
    }
}

#[test]
fn a_shard_moves_with_its_state() {
    let (mut cluster, _) = Cluster::changing();
    assert!(cluster.old.is_leaving(&cluster.authority) && !cluster.new.is_leaving(&cluster.authority));
    cluster.old.seal(Version(3), 42).unwrap();
    assert_eq!(cluster.old.export(&cluster.authority), None, "nothing is exported before the log has it");

    cluster.propose(A).unwrap();
    let export = cluster.old.export(&cluster.authority).unwrap();
    assert_eq!((export.from, export.importer, export.epoch), (A, B, Epoch(2)));
    cluster.import(&export).unwrap();
    assert!(cluster.new.serving().is_none(), "nothing is served before the log has the claim");

    cluster.propose(B).unwrap();
    let (_, opened) = cluster.observe();
    assert_eq!(opened, Some(Change::Open(Start::Imported(42))));
    assert!(cluster.new.serving().is_some_and(Serving::is_complete), "the export held all that was open");
    assert!(cluster.old.export(&cluster.authority).is_none() && !cluster.old.is_sealed());
    assert_eq!(cluster.observe(), (None, None), "a start is handed out once");
}

#[test]
fn rule_6_a_sealed_shard_never_unseals() {
    let (mut cluster, shard) = Cluster::changing();
    cluster.old.seal(Version(3), 42).unwrap();
    assert_eq!(cluster.old.seal(Version(3), 43), Err(NotServing(shard)));
    // The new owner dies and the ring gives the shard back.
    cluster.fence(B);
    cluster.observe();
    cluster.close();
    cluster.change(&[cluster.a]);
    cluster.observe();
    assert!(cluster.old.serving().is_none());

    // It comes back as it went: renounced, to its own session, and claimed.
    cluster.propose(A).unwrap();
    assert_eq!(cluster.observe().0, None);
    assert!(cluster.old.serving().is_none());
    cluster.propose(A).unwrap();
    assert_eq!(cluster.observe().0, Some(Change::Open(Start::Imported(42))));
}

#[test]
fn rule_6_a_lost_export_is_sent_again_and_a_second_copy_does_nothing() {
    let (mut cluster, shard) = Cluster::changing();
    let export = cluster.export(42);
    assert_eq!(cluster.old.export(&cluster.authority).as_ref(), Some(&export), "until it is claimed");
    cluster.import(&export).unwrap();
    assert_eq!(cluster.import(&export), Err(ImportRefusal::Repeated(shard)));
    cluster.propose(B).unwrap();
    cluster.observe();
    assert_eq!(cluster.import(&export), Err(ImportRefusal::NotAwaited(shard)));
}

#[test]
fn rule_6_an_export_of_an_earlier_move_does_nothing_in_a_later_one() {
    let (mut cluster, shard) = Cluster::changing();
    let late = cluster.export(42);
    cluster.fence(A);
    cluster.observe();
    // The copy is still on its way when the importer has given it up and started cold.
    let claim = cluster.propose(B).unwrap();
    assert!(matches!(claim, Command::Claim { basis: Basis::Cold, .. }));
    assert_eq!(cluster.import(&late), Err(ImportRefusal::NotRenounced(shard)));
    assert_eq!(cluster.observe().1, Some(Change::Open(Start::Cold)));
}

/// The export arrives between the proposal of a cold start and its commit: what the log says counts.
#[test]
fn rule_6_a_cold_start_voids_an_import_that_came_meanwhile() {
    let (mut cluster, shard) = Cluster::changing();
    let late = cluster.export(42);
    cluster.fence(A);
    cluster.observe();
    let cold = cluster.new.proposal(&cluster.authority).unwrap();
    cluster.import(&late).unwrap();
    cluster.apply(cold);
    assert_eq!(cluster.observe().1, Some(Change::Open(Start::Cold)));
    assert!(!cluster.new.serving().unwrap().is_complete());
    assert_eq!(cluster.import(&late), Err(ImportRefusal::NotAwaited(shard)));
}

#[test]
fn rule_6_a_restarted_importer_cannot_use_what_was_meant_for_its_earlier_life() {
    let (mut cluster, shard) = Cluster::changing();
    let export = cluster.export(42);
    cluster.apply(Command::Register { node: cluster.b, session: SessionId(21) });
    cluster.new = Slot::new(shard, cluster.b, SessionId(21));
    cluster.observe();
    assert_eq!(cluster.import(&export), Err(ImportRefusal::NotAwaited(shard)));
    // Not even by wearing the name: the old session is over for the log.
    cluster.new = Slot::new(shard, cluster.b, B);
    cluster.observe();
    cluster.import(&export).unwrap();
    let claim = cluster.new.proposal(&cluster.authority).unwrap();
    assert_eq!(cluster.try_apply(claim), Err(Rejection::SessionOver { session: B }));
}

#[test]
fn rule_7_an_export_waits_for_the_version_it_was_made_under() {
    let (mut cluster, shard) = Cluster::changing();
    let export = cluster.export(42);
    let behind = ImportRefusal::Behind { shard, needed: Version(3), applied: Version(2) };
    assert_eq!(cluster.new.import(export.clone(), &cluster.authority, Version(2)), Err(behind));
    cluster.import(&export).unwrap();
}

#[test]
fn an_export_that_the_log_does_not_confirm_is_refused() {
    let (mut cluster, shard) = Cluster::changing();
    let forged = Export { shard, epoch: Epoch(2), from: A, importer: B, version: Version(0), payload: 1_000 };
    assert_eq!(cluster.import(&forged), Err(ImportRefusal::NotRenounced(shard)));
    let export = cluster.export(42);
    for wrong in [Export { epoch: Epoch(1), ..export.clone() }, Export { from: B, ..export.clone() }] {
        assert_eq!(cluster.import(&wrong), Err(ImportRefusal::NotRenounced(shard)));
    }
}

#[test]
fn rule_6_a_dead_owners_shards_start_cold_after_its_fence_and_not_before() {
    let (mut cluster, _) = Cluster::changing();
    assert_eq!(cluster.new.proposal(&cluster.authority), None);
    cluster.fence(A);
    assert_eq!(cluster.observe(), (Some(Change::Drop), None));
    cluster.propose(B).unwrap();
    assert_eq!(cluster.observe().1, Some(Change::Open(Start::Cold)));
}

#[test]
fn rule_8_a_cold_start_is_complete_once_every_unfenced_session_has_announced_or_is_fenced() {
    let gone = SessionId(30);
    let (mut cluster, shard, _) = Cluster::cold_beside(gone);
    let complete = |cluster: &Cluster| cluster.new.serving().unwrap().is_complete();
    assert!(!complete(&cluster));

    let own = Announcement { shard, holder: B, epoch: Epoch(2), from: B };
    cluster.new.announced(&Announcement { epoch: Epoch(1), ..own });
    cluster.new.announced(&Announcement { holder: A, ..own });
    assert_eq!(cluster.new.serving().unwrap().awaited().len(), 2, "to an earlier tenure or another holder");
    cluster.new.announced(&own);
    assert_eq!(cluster.new.serving().unwrap().awaited(), &[gone].into());
    cluster.fence(gone);
    cluster.observe();
    assert!(complete(&cluster));
}

/// Fenced and removed in one step, as a snapshot shows it: the log does not know the session any more.
#[test]
fn rule_8_a_session_that_the_log_has_forgotten_is_not_waited_for() {
    let gone = SessionId(30);
    let (mut cluster, shard, c) = Cluster::cold_beside(gone);
    cluster.new.announced(&Announcement { shard, holder: B, epoch: Epoch(2), from: B });
    assert_eq!(cluster.new.serving().unwrap().awaited(), &[gone].into());
    cluster.fence(gone);
    cluster.apply(Command::Remove { node: c });
    cluster.observe();
    assert!(cluster.new.serving().unwrap().is_complete());
}

#[test]
fn rule_8_a_shard_is_not_sealed_before_all_that_is_open_is_known() {
    let (mut cluster, shard) = Cluster::changing();
    cluster.fence(A);
    cluster.observe();
    cluster.propose(B).unwrap();
    cluster.observe();
    // The first node is back, and the ring wants the shard there.
    cluster.apply(Command::Register { node: cluster.a, session: SessionId(11) });
    for moving in cluster.authority.moving().collect::<Vec<_>>() {
        let epoch = cluster.authority.epoch();
        cluster.apply(Command::Claim { shard: moving, session: B, epoch, basis: Basis::Cold });
    }
    cluster.close();
    cluster.change(&[cluster.a]);
    cluster.observe();
    assert!(!cluster.new.is_leaving(&cluster.authority));
    cluster.new.announced(&Announcement { shard, holder: B, epoch: Epoch(2), from: B });
    assert!(cluster.new.is_leaving(&cluster.authority));
}

// What may be answered.

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

/// A lease that was asked for at 0 and runs for 2,985 ms.
fn leased(session: SessionId) -> Holder {
    let mut holder = Holder::new(session, Timing::DEFAULT);
    let Turn::Renew(renewal) = holder.handle_timeout(at(0), Rounds { disk: 1, shards: 1 }) else { panic!() };
    let answer = Answer::Granted(Required::default());
    holder.handle_reply(Reply { session, sequence: renewal.sequence, answer }, at(1)).unwrap();
    holder
}

fn view<'a>(cluster: &'a Cluster, holder: &'a Holder) -> View<'a, u32> {
    View { authority: &cluster.authority, holder, slot: &cluster.old, version: Version(0) }
}

#[test]
fn an_answer_needs_a_lease_before_and_after_the_debit() {
    let (cluster, _) = Cluster::changing();
    let holder = leased(A);
    let view = view(&cluster, &holder);
    let permit = view.may_answer(Epoch(2), A, at(2984)).unwrap();
    assert_eq!(permit.redeem(at(2985)).unwrap().at(), at(2985));
    // The process is paused between the debit and the answer.
    let permit = view.may_answer(Epoch(2), A, at(2984)).unwrap();
    assert_eq!(permit.redeem(at(2986)), Err(Refusal::Lease(LeaseRefusal::None)));
    assert_eq!(view.may_answer(Epoch(2), A, at(2986)), Err(Refusal::Lease(LeaseRefusal::None)));
}

#[test]
fn a_request_for_another_session_or_epoch_is_told_what_holds_here() {
    let (cluster, _) = Cluster::changing();
    let holder = leased(A);
    let view = view(&cluster, &holder);
    assert_eq!(view.may_answer(Epoch(1), A, at(1)), Err(Refusal::OtherEpoch { ours: Epoch(2) }));
    assert_eq!(view.may_answer(Epoch(2), B, at(1)), Err(Refusal::OtherSession { ours: A }));
}

#[test]
fn a_shard_is_answered_for_until_it_is_sealed_and_by_its_importer_from_the_claim_on() {
    let (mut cluster, shard) = Cluster::changing();
    let (ours, theirs) = (leased(A), leased(B));
    assert!(view(&cluster, &ours).may_answer(Epoch(2), A, at(1)).is_ok());
    let export = cluster.export(42);
    assert_eq!(view(&cluster, &ours).may_answer(Epoch(2), A, at(1)), Err(Refusal::Sealed { shard }));

    let new = |cluster: &Cluster| {
        let view =
            View { authority: &cluster.authority, holder: &theirs, slot: &cluster.new, version: Version(0) };
        view.may_answer(Epoch(2), B, at(1)).map(|permit| permit.is_complete())
    };
    cluster.import(&export).unwrap();
    assert_eq!(new(&cluster), Err(Refusal::NotHere { shard, holder: None }));
    cluster.propose(B).unwrap();
    cluster.observe();
    assert_eq!(new(&cluster), Ok(true));
    let moved = Refusal::NotHere { shard, holder: Some(B) };
    assert_eq!(view(&cluster, &ours).may_answer(Epoch(2), A, at(1)), Err(moved));
}

#[test]
fn a_fenced_session_answers_nothing_even_before_it_has_thrown_its_shards_away() {
    let (mut cluster, _) = Cluster::changing();
    let holder = leased(A);
    cluster.fence(A);
    assert_eq!(view(&cluster, &holder).may_answer(Epoch(2), A, at(1)), Err(Refusal::Fenced));
}
