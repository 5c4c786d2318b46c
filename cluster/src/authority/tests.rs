//! Stories of the replicated state, told through its log, and the laws that hold for every log.

use proptest::prelude::*;

use super::*;
use crate::agreed::Nothing;
use crate::id::Term;
use crate::keyring::{KeyId, KeyringCommand, KeyringRefusal};
use crate::log_time::Stamp;

const T1: Term = Term { number: 1, leader: NodeId(0) };
const T2: Term = Term { number: 2, leader: NodeId(1) };

/// A log under one leader, each entry a second of log time after the last.
struct Log {
    authority: Authority,
    next: u64,
    term: Term,
}

impl Log {
    fn new() -> Self {
        Self { authority: Authority::new(ClusterId(1)), next: 0, term: T1 }
    }

    fn try_apply(&mut self, command: Command) -> Result<Vec<Effect>, Rejection> {
        let position = Position { index: LogIndex(self.next), term: self.term };
        let stamp = Stamp { term: self.term, time: LogTime(self.next) };
        self.next += 1;
        self.authority.apply(position, stamp, command)
    }

    fn apply(&mut self, command: Command) -> Vec<Effect> {
        self.try_apply(command).unwrap()
    }

    /// Asserts that a rejection changes nothing that anyone can see but the position and log time.
    fn rejects(&mut self, command: Command) -> Rejection {
        let before = self.authority.clone();
        let rejection = self.try_apply(command).unwrap_err();
        let mut after = self.authority.clone();
        (after.applied, after.log_time) = (before.applied, before.log_time);
        assert_eq!(after, before);
        rejection
    }

    fn admit(&mut self, identity: u128) -> NodeId {
        let address = format!("node-{identity}:7700");
        let effects = self.apply(Command::Admit { identity: Identity(identity), address });
        let [Effect::Admitted { node }] = effects[..] else { panic!("{effects:?}") };
        node
    }

    fn register(&mut self, node: NodeId, session: u128) -> SessionId {
        self.apply(Command::Register { node, session: SessionId(session) });
        SessionId(session)
    }

    fn ring(&mut self, members: &[NodeId]) {
        self.apply(self.change_to(members));
    }

    fn change_to(&self, members: &[NodeId]) -> Command {
        Command::ChangeRing {
            epoch: self.authority.epoch().next(),
            members: members.to_vec(),
            term: self.term,
        }
    }

    fn fence(&mut self, session: SessionId) {
        self.apply(Command::Fence { session, term: self.term });
    }

    fn claim(&self, shard: ShardId, session: SessionId, basis: Basis) -> Command {
        Command::Claim { shard, session, epoch: self.authority.epoch(), basis }
    }

    fn renounce(&self, shard: ShardId, session: SessionId, importer: SessionId) -> Command {
        Command::Renounce { shard, session, epoch: self.authority.epoch(), importer }
    }

    fn close(&self) -> Command {
        Command::CloseChange { epoch: self.authority.epoch(), term: self.term }
    }

    fn claim_all(&mut self, node: NodeId, session: SessionId, basis: Basis) {
        let shards: Vec<ShardId> = self.authority.ring().shards_of(node).collect();
        for shard in shards {
            if self.authority.holder(shard).is_none_or(|(holder, _)| holder != node) {
                self.apply(self.claim(shard, session, basis));
            }
        }
    }
}

/// Two nodes, `a` and `b`; `a` held all shards and the ring now wants some at `b`: the first of those, and a log to go on with.
fn moving() -> (Log, ShardId, SessionId, SessionId) {
    let mut log = Log::new();
    let (a, b) = (log.admit(1), log.admit(2));
    let (held, importer) = (log.register(a, 10), log.register(b, 20));
    log.ring(&[a]);
    log.claim_all(a, held, Basis::First);
    log.apply(log.close());
    log.ring(&[a, b]);
    let shard = log.authority.ring().shards_of(b).next().unwrap();
    (log, shard, held, importer)
}

#[test]
fn it_is_but_later_after_entries_of_the_host_and_rejections_and_after_nothing_else() {
    let mut log = Log::new();
    let node = log.admit(1);
    let before = log.authority.clone();
    log.apply(Command::Host([7].as_slice().into()));
    log.rejects(Command::Fence { session: SessionId(9), term: T1 });
    assert_ne!(log.authority, before);
    assert!(log.authority.is_but_later(&before));
    log.register(node, 9);
    assert!(!log.authority.is_but_later(&before));
}

#[test]
fn a_node_is_numbered_by_the_entry_that_admits_it_and_keeps_its_number() {
    let mut log = Log::new();
    let first = log.admit(1);
    assert_eq!((first, log.admit(2)), (NodeId(0), NodeId(1)));
    assert_eq!(log.admit(1), first, "the same folder is the same node");

    let moved = Command::Admit { identity: Identity(1), address: "elsewhere:7700".into() };
    assert_eq!(log.apply(moved), [Effect::Admitted { node: first }]);
    assert_eq!(log.authority.nodes()[&first].address, "elsewhere:7700");
}

#[test]
fn an_empty_folder_at_a_known_address_is_refused_until_the_old_number_is_removed() {
    let mut log = Log::new();
    let node = log.admit(1);
    let wiped = Command::Admit { identity: Identity(9), address: "node-1:7700".into() };
    let address = "node-1:7700".to_owned();
    assert_eq!(log.rejects(wiped.clone()), Rejection::AddressTaken { address, node });
    log.apply(Command::Remove { node });
    let effects = log.apply(wiped);
    assert_ne!(effects, [Effect::Admitted { node }], "a number is never used again");
    // And the old folder stays out, wherever it comes back.
    let back = Command::Admit { identity: Identity(1), address: "other:7700".into() };
    assert_eq!(log.rejects(back), Rejection::RemovedIdentity { node });
}

#[test]
fn a_log_that_does_not_name_a_node_yet_does_not_say_that_it_is_removed() {
    let mut log = Log::new();
    log.admit(1);
    let next = NodeId(log.next);
    assert!(!log.authority.nodes().contains_key(&next) && !log.authority.is_removed(next));
    assert_eq!((log.admit(2), log.authority.node_of(Identity(2))), (next, Some(next)));
    log.apply(Command::Remove { node: next });
    assert!(log.authority.is_removed(next));
    assert_eq!(log.authority.node_of(Identity(2)), None);
}

#[test]
fn that_a_removed_nodes_last_session_is_over_stays_known() {
    let mut log = Log::new();
    let node = log.admit(1);
    for session in 20..30 {
        let session = log.register(node, session);
        log.fence(session);
    }
    log.apply(Command::Remove { node });
    // A shard that was sealed before the fence and is opened after the removal has yet to be told.
    assert!(log.authority.is_fenced(SessionId(29)));
    assert_eq!(log.authority.ended().count(), ENDED_REMOVED_MAX);
}

#[test]
fn a_node_in_service_is_not_removed() {
    let mut log = Log::new();
    let (a, b) = (log.admit(1), log.admit(2));
    let session = log.register(b, 20);
    assert_eq!(log.rejects(Command::Remove { node: b }), Rejection::InService { node: b });
    log.fence(session);
    log.ring(&[a, b]);
    assert_eq!(log.rejects(Command::Remove { node: b }), Rejection::InService { node: b });
    log.apply(log.close());
    log.ring(&[a]);
    assert_eq!(log.apply(Command::Remove { node: b }), [Effect::Removed { node: b }]);
    assert_eq!(
        log.rejects(Command::Register { node: b, session: SessionId(21) }),
        Rejection::NoSuchNode { node: b }
    );
}

#[test]
fn a_cluster_is_founded_once_and_its_founder_is_number_0() {
    let found =
        |identity, address: &str| Command::Found { identity: Identity(identity), address: address.into() };
    let mut log = Log::new();
    log.next = 2;
    assert_eq!(log.apply(found(1, "a:1")), [Effect::Admitted { node: FOUNDER }]);
    assert_eq!(log.apply(found(1, "a:2")), [Effect::Admitted { node: FOUNDER }], "a repeat, moved house");
    assert_eq!(log.authority.nodes()[&FOUNDER].address, "a:2");
    assert_eq!(log.rejects(found(2, "b:1")), Rejection::Founded);
    log.apply(Command::Remove { node: FOUNDER });
    assert_eq!(log.rejects(found(2, "b:1")), Rejection::Founded);
    assert_eq!(log.rejects(found(1, "a:1")), Rejection::Founded);
}

#[test]
fn an_entry_of_several_commands_numbers_one_node_and_a_rejection_does_not_stop_the_next() {
    let mut authority = Authority::new(ClusterId(1));
    let admit =
        |identity, address: &str| Command::Admit { identity: Identity(identity), address: address.into() };
    let (at, stamp) = (LogIndex(7), Stamp { term: T1, time: LogTime(0) });
    let entry = vec![
        admit(1, ""),
        admit(1, "a:1"),
        admit(2, "b:1"),
        Command::Remove { node: NodeId(7) },
        admit(2, "b:1"),
        Command::Register { node: NodeId(7), session: SessionId(1) },
    ];
    let admitted = Ok(vec![Effect::Admitted { node: NodeId(7) }]);
    assert_eq!(
        authority.apply_all(Position { index: at, term: T1 }, stamp, entry.clone(), &mut Nothing),
        [
            Err(Rejection::BadAddress { length: 0 }),
            admitted,
            Err(Rejection::NumberGiven { index: at }),
            Ok(vec![Effect::Removed { node: NodeId(7) }]),
            Err(Rejection::NumberGiven { index: at }),
            Err(Rejection::NoSuchNode { node: NodeId(7) }),
        ]
    );
    let again = authority.apply_all(Position { index: at, term: T1 }, stamp, entry, &mut Nothing);
    assert_eq!(again, vec![Err(Rejection::Repeated { index: at }); 6]);
}

#[test]
fn members_and_addresses_are_bounded() {
    let mut log = Log::new();
    let long = Command::Admit { identity: Identity(0), address: "x".repeat(ADDRESS_MAX + 1) };
    assert_eq!(log.rejects(long), Rejection::BadAddress { length: ADDRESS_MAX + 1 });
    for identity in 0..NODES_MAX as u128 {
        log.admit(identity);
    }
    let surplus = Command::Admit { identity: Identity(999), address: "more:7700".into() };
    assert_eq!(log.rejects(surplus), Rejection::Full);
}

#[test]
fn rule_3_registering_condemns_the_older_session_and_does_not_fence_it() {
    let mut log = Log::new();
    let a = log.admit(1);
    let old = log.register(a, 10);
    log.ring(&[a]);
    log.claim_all(a, old, Basis::First);
    let new = SessionId(11);
    let effects = log.apply(Command::Register { node: a, session: new });
    assert_eq!(effects, [Effect::Condemned { session: old }, Effect::Registered { node: a, session: new }]);
    assert_eq!(log.authority.standing(old), Some(Standing::Condemned));

    // The new life gets nothing of the old one's before the fence: its lease may still run.
    let shard = ShardId::all().next().unwrap();
    assert_eq!(log.rejects(log.claim(shard, new, Basis::Cold)), Rejection::NotYours { shard });
    log.fence(old);
    log.apply(log.claim(shard, new, Basis::Cold));
}

#[test]
fn a_late_duplicate_of_a_registration_revives_nobody() {
    let mut log = Log::new();
    let a = log.admit(1);
    let old = log.register(a, 10);
    let new = log.register(a, 11);
    let late = Command::Register { node: a, session: old };
    assert_eq!(log.rejects(late.clone()), Rejection::SessionUsed { session: old });
    log.fence(old);
    assert_eq!(log.rejects(late), Rejection::SessionUsed { session: old });
    assert_eq!(
        log.apply(Command::Register { node: a, session: new }),
        [],
        "a repeat of the newest is no news"
    );
    assert_eq!(log.authority.serving(a), Some(new));
}

#[test]
fn ended_sessions_are_remembered_within_a_bound_and_as_long_as_a_shard_names_them() {
    let (mut log, shard, holder, importer) = moving();
    let (a, _) = log.authority.holder(shard).unwrap();
    for session in 100..100 + 3 * ENDED_MAX as u128 {
        let ended = log.register(a, session);
        log.fence(ended);
    }
    log.fence(holder);
    assert_eq!(log.authority.sessions.len(), ENDED_MAX + 2);
    assert!(log.authority.is_fenced(holder), "shards still name it");
    log.apply(log.claim(shard, importer, Basis::Cold));
}

#[test]
fn rule_4_a_decision_of_another_term_is_void() {
    let mut log = Log::new();
    let a = log.admit(1);
    let session = log.register(a, 10);
    let fence = Command::Fence { session, term: T1 };
    let (change, close) = (log.change_to(&[a]), log.close());
    log.term = T2;
    for command in [fence.clone(), change, close] {
        assert_eq!(log.rejects(command), Rejection::OtherTerm { decided: T1, committed: T2 });
    }
    // Nor does another leader of the same term number speak for it.
    log.term = Term { number: 1, leader: NodeId(1) };
    assert!(matches!(log.rejects(fence), Rejection::OtherTerm { .. }));
    assert!(!log.authority.is_fenced(session));
}

#[test]
fn rule_15_log_time_never_goes_back_and_a_stamp_of_another_term_counts_for_nothing() {
    let mut authority = Authority::new(ClusterId(1));
    let mut at = |index, term, stamped, time| {
        let command = Command::Keyring(KeyringCommand::Install { key: KeyId(1) });
        let stamp = Stamp { term: stamped, time: LogTime(time) };
        authority.apply(Position { index: LogIndex(index), term }, stamp, command).unwrap();
        authority.log_time()
    };
    assert_eq!(at(0, T1, T1, 50), LogTime(50));
    assert_eq!(at(1, T1, T1, 40), LogTime(50));
    assert_eq!(at(2, T2, T1, 90), LogTime(50));
    assert_eq!(at(3, T2, T2, 60), LogTime(60));
}

#[test]
fn an_entry_is_applied_once() {
    let mut authority = Authority::new(ClusterId(1));
    let admit = Command::Admit { identity: Identity(1), address: "a:1".into() };
    let mut at = |index| {
        let stamp = Stamp { term: T1, time: LogTime(0) };
        authority.apply(Position { index: LogIndex(index), term: T1 }, stamp, admit.clone())
    };
    at(5).unwrap();
    for index in [5, 4] {
        assert_eq!(at(index), Err(Rejection::Repeated { index: LogIndex(index) }));
    }
}

#[test]
fn rule_6_a_shard_moves_by_renounce_and_claim() {
    let (mut log, shard, holder, importer) = moving();
    assert_eq!(log.rejects(log.claim(shard, importer, Basis::Import)), Rejection::NotYours { shard });
    assert_eq!(log.rejects(log.claim(shard, importer, Basis::First)), Rejection::NotYours { shard });
    let stranger = log.renounce(shard, importer, importer);
    assert_eq!(log.rejects(stranger), Rejection::NotHolder { shard, session: importer });
    let astray = log.renounce(shard, holder, holder);
    assert_eq!(log.rejects(astray), Rejection::NotOwner { shard, session: holder });

    log.apply(log.renounce(shard, holder, importer));
    assert_eq!(log.authority.holder(shard), None);
    assert_eq!(
        log.rejects(log.claim(shard, holder, Basis::Import)),
        Rejection::NotOwner { shard, session: holder }
    );
    log.apply(log.claim(shard, importer, Basis::Import));
    assert_eq!(log.authority.holder(shard).map(|(_, session)| session), Some(importer));
    // The export is used: a second claim by it finds no renounced shard.
    assert_eq!(log.rejects(log.claim(shard, importer, Basis::Import)), Rejection::NotYours { shard });
}

#[test]
fn rule_6_a_cold_start_needs_the_fence_of_the_recorded_holder() {
    let (mut log, shard, holder, importer) = moving();
    assert_eq!(log.rejects(log.claim(shard, importer, Basis::Cold)), Rejection::NotYours { shard });
    let (a, _) = log.authority.holder(shard).unwrap();
    log.register(a, 11);
    // Condemned is not fenced.
    assert_eq!(log.rejects(log.claim(shard, importer, Basis::Cold)), Rejection::NotYours { shard });
    log.fence(holder);
    log.apply(log.claim(shard, importer, Basis::Cold));
}

#[test]
fn rule_6_a_renounced_shard_starts_cold_only_once_nobody_can_import_it() {
    let (mut log, shard, holder, importer) = moving();
    log.apply(log.renounce(shard, holder, importer));
    let b = log.authority.session(importer).unwrap().node;
    let next = log.register(b, 21);
    log.fence(holder);
    for basis in [Basis::Import, Basis::Cold, Basis::First] {
        assert_eq!(log.rejects(log.claim(shard, next, basis)), Rejection::NotYours { shard });
    }
    log.fence(importer);
    log.apply(log.claim(shard, next, Basis::Cold));
}

#[test]
fn rule_6_an_importer_whose_export_died_with_its_maker_starts_cold_and_voids_the_export() {
    let (mut log, shard, holder, importer) = moving();
    log.apply(log.renounce(shard, holder, importer));
    assert_eq!(log.rejects(log.claim(shard, importer, Basis::Cold)), Rejection::NotYours { shard });
    log.fence(holder);
    log.apply(log.claim(shard, importer, Basis::Cold));
    assert_eq!(log.rejects(log.claim(shard, importer, Basis::Import)), Rejection::NotYours { shard });
}

#[test]
fn a_session_that_is_condemned_or_fenced_claims_nothing() {
    let (mut log, shard, holder, importer) = moving();
    log.apply(log.renounce(shard, holder, importer));
    let b = log.authority.session(importer).unwrap().node;
    log.register(b, 21);
    for _ in 0..2 {
        let claim = log.claim(shard, importer, Basis::Import);
        assert_eq!(log.rejects(claim), Rejection::SessionOver { session: importer });
        let _ = log.try_apply(Command::Fence { session: importer, term: T1 });
    }
    assert!(log.authority.is_fenced(importer));
}

#[test]
fn a_claim_of_an_older_epoch_is_rejected() {
    let (mut log, shard, _, importer) = moving();
    let stale = Command::Claim { shard, session: importer, epoch: Epoch(1), basis: Basis::Cold };
    assert_eq!(log.rejects(stale), Rejection::OtherEpoch { theirs: Epoch(1), ours: Epoch(2) });
}

#[test]
fn one_ring_change_at_a_time() {
    let (mut log, _, holder, importer) = moving();
    let nodes: Vec<NodeId> = log.authority.nodes().keys().copied().collect();
    assert_eq!(log.rejects(log.change_to(&nodes[..1])), Rejection::ChangeOpen { epoch: Epoch(2) });
    assert!(matches!(log.rejects(log.close()), Rejection::Moving { .. }));
    for shard in log.authority.moving().collect::<Vec<_>>() {
        log.apply(log.renounce(shard, holder, importer));
        log.apply(log.claim(shard, importer, Basis::Import));
    }
    assert_eq!(log.apply(log.close()), [Effect::ChangeClosed { epoch: Epoch(2) }]);
    assert_eq!(log.rejects(log.close()), Rejection::NoChangeOpen);
    log.ring(&nodes[..1]);
}

#[test]
fn a_change_whose_new_owner_died_can_be_closed_and_undone() {
    let (mut log, shard, holder, importer) = moving();
    log.apply(log.renounce(shard, holder, importer));
    log.fence(importer);
    log.apply(log.close());
    let a = log.authority.session(holder).unwrap().node;
    log.ring(&[a]);
    log.apply(log.claim(shard, holder, Basis::Cold));
}

/// The owner was gone when the change was closed, and is back: what is renounced to it now can be used in this epoch only.
#[test]
fn a_ring_does_not_change_under_a_move_that_began_after_the_last_change_was_closed() {
    let (mut log, shard, holder, importer) = moving();
    let (a, b) = (log.authority.session(holder).unwrap().node, log.authority.session(importer).unwrap().node);
    log.fence(importer);
    log.apply(log.close());
    let back = log.register(b, 21);
    log.apply(log.renounce(shard, holder, back));
    assert!(matches!(log.rejects(log.change_to(&[a])), Rejection::Moving { .. }));

    log.apply(log.claim(shard, back, Basis::Import));
    for shard in log.authority.moving().collect::<Vec<_>>() {
        log.apply(log.renounce(shard, holder, back));
        log.apply(log.claim(shard, back, Basis::Import));
    }
    log.ring(&[a]);
}

#[test]
fn a_late_copy_of_a_renunciation_to_oneself_takes_nothing_away() {
    let (mut log, shard, holder, importer) = moving();
    let a = log.authority.session(holder).unwrap().node;
    // The new owner dies, and the ring gives the sealed shard back to who sealed it.
    log.fence(importer);
    log.apply(log.close());
    log.ring(&[a]);
    let renounce = log.renounce(shard, holder, holder);
    log.apply(renounce.clone());
    log.apply(log.claim(shard, holder, Basis::Import));
    assert_eq!(log.rejects(renounce), Rejection::NotHolder { shard, session: holder });
}

#[test]
fn a_ring_names_members_and_differs_from_the_last() {
    let mut log = Log::new();
    let a = log.admit(1);
    assert_eq!(log.rejects(log.change_to(&[])), Rejection::SameRing);
    assert_eq!(log.rejects(log.change_to(&[NodeId(77)])), Rejection::NoSuchNode { node: NodeId(77) });
    log.ring(&[a]);
    log.apply(log.close());
    assert_eq!(log.rejects(log.change_to(&[a, a])), Rejection::SameRing);
    let skipped = Command::ChangeRing { epoch: Epoch(9), members: vec![a], term: T1 };
    assert_eq!(log.rejects(skipped), Rejection::OtherEpoch { theirs: Epoch(9), ours: Epoch(1) });
}

#[test]
fn the_old_secret_stays_while_a_live_node_lacks_the_new_one() {
    let mut log = Log::new();
    let (a, b) = (log.admit(1), log.admit(2));
    log.register(a, 10);
    let late = log.register(b, 20);
    let mut step = |step| log.try_apply(Command::Keyring(step));
    for key in [KeyId(1), KeyId(2)] {
        step(KeyringCommand::Install { key }).unwrap();
        step(KeyringCommand::Hold { node: a, key }).unwrap();
    }
    let lacking = Err(Rejection::Keyring(KeyringRefusal::Lacking { node: b }));
    assert_eq!(step(KeyringCommand::Use { key: KeyId(2) }), lacking);
    log.fence(late);
    for step in [KeyringCommand::Use { key: KeyId(2) }, KeyringCommand::Remove { key: KeyId(1) }] {
        log.apply(Command::Keyring(step));
    }
}

/// Logs that get somewhere: few names, so that entries meet.
fn entries() -> impl Strategy<Value = Vec<(Term, Stamp, Command)>> {
    let session = || (0..5u128).prop_map(SessionId);
    let node = || (0..6u64).prop_map(NodeId);
    let shard = || (0..3u16).prop_filter_map("a shard", ShardId::new);
    let epoch = || (0..4u64).prop_map(Epoch);
    let term = || prop_oneof![8 => Just(T1), 1 => Just(T2)];
    let basis = prop_oneof![Just(Basis::First), Just(Basis::Import), Just(Basis::Cold)];
    let command = prop_oneof![
        1 => (0..3u128).prop_map(|at| Command::Found { identity: Identity(at), address: format!("{at}:1") }),
        2 => (0..4u128).prop_map(|at| Command::Admit { identity: Identity(at), address: format!("{}:1", at % 3) }),
        4 => (node(), session()).prop_map(|(node, session)| Command::Register { node, session }),
        3 => (session(), term()).prop_map(|(session, term)| Command::Fence { session, term }),
        2 => (epoch(), prop::collection::vec(node(), 1..3), term())
            .prop_map(|(epoch, members, term)| Command::ChangeRing { epoch, members, term }),
        4 => (shard(), session(), epoch(), session())
            .prop_map(|(shard, session, epoch, importer)| Command::Renounce { shard, session, epoch, importer }),
        6 => (shard(), session(), epoch(), basis)
            .prop_map(|(shard, session, epoch, basis)| Command::Claim { shard, session, epoch, basis }),
        1 => (epoch(), term()).prop_map(|(epoch, term)| Command::CloseChange { epoch, term }),
        1 => node().prop_map(|node| Command::Remove { node }),
    ];
    let entry = (term(), term(), 0..100u64, command).prop_map(|(term, stamped, time, command)| {
        (term, Stamp { term: stamped, time: LogTime(time) }, command)
    });
    prop::collection::vec(entry, 0..80)
}

fn apply(
    authority: &mut Authority,
    index: usize,
    entry: &(Term, Stamp, Command),
) -> Result<Vec<Effect>, Rejection> {
    let position = Position { index: LogIndex(index as u64), term: entry.0 };
    authority.apply(position, entry.1, entry.2.clone())
}

proptest! {
    /// An entry of one command is that command.
    #[test]
    fn one_command_alone_is_an_entry_of_one(log in entries()) {
        let (mut alone, mut listed) = (Authority::new(ClusterId(1)), Authority::new(ClusterId(1)));
        for (index, (term, stamp, command)) in log.into_iter().enumerate() {
            let position = Position { index: LogIndex(index as u64), term };
            let outcome = alone.apply(position, stamp, command.clone());
            prop_assert_eq!(listed.apply_all(position, stamp, vec![command], &mut Nothing), vec![outcome]);
            prop_assert_eq!(&alone, &listed);
        }
    }

    /// Any snapshot and the entries after it, some of them repeated, give what the whole log gives.
    #[test]
    fn a_snapshot_and_a_suffix_are_the_whole_log(log in entries(), cut in 0..80usize, overlap in 0..10usize) {
        let mut whole = Authority::new(ClusterId(1));
        let mut snapshot = None;
        for (index, entry) in log.iter().enumerate() {
            if index == cut.min(log.len()) {
                snapshot = Some(whole.clone());
            }
            let _ = apply(&mut whole, index, entry);
        }
        let mut resumed = snapshot.unwrap_or_else(|| whole.clone());
        for (index, entry) in log.iter().enumerate().skip(cut.saturating_sub(overlap)) {
            let _ = apply(&mut resumed, index, entry);
        }
        prop_assert_eq!(resumed, whole);
    }

    /// A shard changes hands only when its last holder cannot answer any more.
    #[test]
    fn a_shard_never_has_two_holders_that_may_answer(log in entries()) {
        let mut authority = Authority::new(ClusterId(1));
        for (index, entry) in log.iter().enumerate() {
            let before = authority.clone();
            let outcome = apply(&mut authority, index, entry);
            prop_assert!(authority.log_time() >= before.log_time());
            for shard in ShardId::all().take(3) {
                let (was, is) = (before.holding(shard), authority.holding(shard));
                if was == is {
                    continue;
                }
                prop_assert!(outcome.is_ok());
                let over = match was {
                    None => true,
                    Some(Holding::Held { session, .. }) => {
                        before.is_fenced(session)
                            || matches!(is, Some(Holding::Renounced { from, .. }) if from == session)
                    }
                    Some(Holding::Renounced { from, importer, .. }) => match is {
                        Some(Holding::Held { session, .. }) => {
                            session == importer || before.is_fenced(importer) || before.is_fenced(from)
                        }
                        _ => false,
                    },
                };
                prop_assert!(over, "{was:?} became {is:?}");
            }
        }
    }
}
