//! The laws of the replicated state.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tollgate_cluster::agreed::{Agreed, At};
use tollgate_cluster::authority::{Authority, Position};
use tollgate_cluster::id::{ClusterId, Identity, LogIndex, NodeId, SessionId, Term};
use tollgate_cluster::log_time::{LogTime, Stamp};

use super::budget::{BudgetCommand, BudgetRefusal};
use super::escrow::{Step, Stepped};
use super::exceptions;
use super::keys::{self, Change, KeyName, Limits};
use super::policy::{self, BYTES_MAX, Origin, Settings, VERSIONS_MAX};
use super::pool::PoolCommand;
use super::{Answer, Command, Control, Refusal, codec};
use crate::limit::{Dimension, Draw, Rate, Terms, Units};

fn obey(control: &mut Control, command: Command) -> Answer {
    obey_at(control, LogTime(0), command)
}

fn obey_at(control: &mut Control, time: LogTime, command: Command) -> Answer {
    let authority = Authority::new(ClusterId(1));
    let position =
        Position { index: LogIndex(control.version()), term: Term { number: 1, leader: NodeId(0) } };
    control.obey(&At { position, time, authority: &authority }, command)
}

fn text(name: u8, length: usize) -> policy::Commit {
    policy::Commit {
        basis: 0,
        expect: None,
        document: vec![name; length],
        digest: [name; 32],
        origin: Origin::Operator,
        by: "a test".to_owned(),
        wall_millis: 0,
        settings: settings(),
    }
}

/// A pool of 60 tokens a minute, of which 100 may be claimed at once.
fn settings() -> Settings {
    let terms = Terms::new([Some(Rate::new(60, 100)), None, None, None], true);
    Settings { pools: BTreeMap::from([("main".into(), terms)]), budgets: BTreeMap::new() }
}

/// The `seq`-th draw of a session, which has spent one unit for each before it.
fn draw(session: SessionId, seq: u64) -> Step {
    let spent = Units([seq - 1, 0, 0, 0]);
    let (returned, refunded) = (Units::NONE, Units::NONE);
    let draw = Draw { seq, spent, returned, refunded, wants: Units([10, 0, 0, 0]), weight: 1 };
    Step::Pool(PoolCommand::Draw { pool: "main".into(), session, draw })
}

fn granted(answer: &Answer) -> Vec<Option<u64>> {
    let Answer::Escrow(steps) = answer else { panic!("{answer:?}") };
    let of = |step: &Stepped| match step {
        Stepped::Pool(granted) => granted.ok().map(|granted| granted.units.of(Dimension::Tokens)),
        _ => None,
    };
    steps.iter().map(of).collect()
}

fn commit(control: &mut Control, name: u8, expect: Option<u64>) -> Answer {
    let basis = control.version();
    obey(control, Command::Policy(policy::Commit { basis, expect, ..text(name, 3) }))
}

fn change(control: &mut Control, wall_millis: i64, change: Change) -> Answer {
    let basis = control.version();
    obey(control, Command::Key(keys::Commit { basis, wall_millis, change }))
}

fn name(label: &str) -> KeyName {
    KeyName { tenant: "acme".to_owned(), label: label.to_owned() }
}

fn create(label: &str, hash: u8) -> Change {
    let limits = Limits { tokens_per_minute: Some(5), ..Limits::default() };
    Change::Create { name: name(label), hash: [hash; 32], project: None, limits, expires: None }
}

fn rotate(label: &str, hash: u8, until: i64) -> Change {
    Change::Rotate { name: name(label), hash: [hash; 32], until }
}

#[test]
fn a_policy_replaces_the_one_it_was_made_for() {
    let mut control = Control::default();
    assert_eq!(commit(&mut control, 1, Some(0)), Answer::Done { version: 1 });
    assert_eq!(commit(&mut control, 2, Some(0)), Answer::Refused(Refusal::Expected { expected: 0, ours: 1 }));
    assert_eq!(commit(&mut control, 2, Some(1)), Answer::Done { version: 2 });
    // The answer to it was lost, and it is said again.
    assert_eq!(commit(&mut control, 2, Some(1)), Answer::Already { version: 2 });
    assert_eq!(commit(&mut control, 1, None), Answer::Done { version: 3 });
    assert_eq!(control.policy().find(&[1; 32]).unwrap().version, 3);
    assert_eq!(control.policy().at(2).unwrap().digest, [2; 32]);
}

#[test]
fn a_key_makes_a_version_and_the_policy_of_it_is_the_last_one() {
    let mut control = Control::default();
    commit(&mut control, 1, None);
    assert_eq!(change(&mut control, 0, create("a", 7)), Answer::Done { version: 2 });
    assert_eq!((control.policy().version(), control.version()), (1, 2));
    assert_eq!(control.policy().at(2).unwrap().version, 1);
    // What an operator expects is a version of the policy.
    assert_eq!(commit(&mut control, 2, Some(1)), Answer::Done { version: 3 });
}

#[test]
fn what_was_checked_against_another_version_is_refused() {
    let mut control = Control::default();
    commit(&mut control, 1, None);
    let stale = Answer::Refused(Refusal::Stale { basis: 0, ours: 1 });
    assert_eq!(obey(&mut control, Command::Policy(text(2, 3))), stale);
    let create = keys::Commit { basis: 0, wall_millis: 0, change: create("a", 7) };
    assert_eq!(obey(&mut control, Command::Key(create)), stale);
    assert_eq!(control.version(), 1);
}

#[test]
fn versions_are_kept_as_far_as_there_is_room_and_the_last_one_always() {
    let mut control = Control::default();
    for round in 0..100 {
        commit(&mut control, round, None);
    }
    assert_eq!(control.policy().entries().len(), VERSIONS_MAX);
    assert_eq!(control.policy().entries().next().unwrap().version, 37);
    assert!(control.policy().at(36).is_none());
    for (round, kept) in [(200, 17), (201, 2)] {
        let length = if round == 200 { BYTES_MAX - 48 } else { 100 };
        let long = policy::Commit { basis: control.version(), ..text(round, length) };
        assert!(matches!(obey(&mut control, Command::Policy(long)), Answer::Done { .. }));
        let entries = control.policy().entries();
        assert!(entries.len() <= kept, "{}", entries.len());
        let bytes: usize = control.policy().entries().map(|entry| entry.document.len()).sum();
        assert!(bytes <= BYTES_MAX);
    }
    let longest = policy::Commit { basis: control.version(), ..text(202, BYTES_MAX + 1) };
    obey(&mut control, Command::Policy(longest));
    assert_eq!(control.policy().entries().len(), 1);
}

#[test]
fn the_note_of_who_proposed_it_is_cut_between_characters() {
    let mut control = Control::default();
    let by = "ä".repeat(policy::BY_MAX);
    obey(&mut control, Command::Policy(policy::Commit { by, ..text(1, 1) }));
    assert_eq!(control.policy().current().unwrap().by.chars().count(), policy::BY_MAX / 2);
}

#[test]
fn the_steps_of_a_command_are_done_one_by_one_and_make_no_version() {
    let mut control = Control::default();
    commit(&mut control, 1, None);
    let (life, other) = (SessionId(1), SessionId(2));
    // Nobody draws whose life does not count.
    assert_eq!(granted(&obey(&mut control, Command::Escrow(vec![draw(life, 1)]))), [None]);
    let steps = vec![Step::Live(life), draw(life, 1), draw(other, 1), draw(life, 1), draw(life, 2)];
    // The repeated one is the same, and counts once.
    let answer = obey(&mut control, Command::Escrow(steps));
    assert_eq!(granted(&answer), [None, Some(10), None, Some(10), Some(10)]);
    let level = control.pools().view("main").unwrap().levels[0];
    assert_eq!((level.level, level.outstanding, control.version()), (80, 19, 1));
}

#[test]
fn the_life_before_is_written_off_and_none_counts_once_the_log_has_members() {
    let mut control = Control::default();
    commit(&mut control, 1, None);
    let (first, second) = (SessionId(1), SessionId(2));
    obey(&mut control, Command::Escrow(vec![Step::Live(first), draw(first, 1)]));
    obey(&mut control, Command::Escrow(vec![Step::Live(second), draw(second, 1)]));
    let written_off = |control: &Control| {
        let level = control.pools().view("main").unwrap().levels[0];
        (level.level, level.outstanding, level.books.written_off)
    };
    assert_eq!(written_off(&control), (80, 10, 10));
    // Said again by the life that runs, it changes nothing.
    let before = control.clone();
    obey(&mut control, Command::Escrow(vec![Step::Live(second)]));
    assert_eq!(control, before);

    let mut authority = Authority::new(ClusterId(1));
    let position = Position { index: LogIndex(9), term: Term { number: 1, leader: NodeId(0) } };
    let stamp = Stamp { term: position.term, time: LogTime(0) };
    let found = tollgate_cluster::authority::Command::Found { identity: Identity(1), address: "a:1".into() };
    authority.apply(position, stamp, found).unwrap();
    let at = At { position, time: LogTime(0), authority: &authority };
    let answer = control.obey(&at, Command::Escrow(vec![Step::Live(first), draw(second, 2)]));
    assert_eq!(granted(&answer), [None, None]);
    assert!(matches!(&answer, Answer::Escrow(steps) if steps[0] == Stepped::Live(false)));
    assert_eq!(written_off(&control), (80, 0, 20));
}

#[test]
fn a_session_that_is_over_is_over_for_every_part() {
    let mut control = Control::default();
    commit(&mut control, 1, None);
    obey(&mut control, Command::Escrow(vec![Step::Live(SessionId(1)), draw(SessionId(1), 1)]));
    let authority = Authority::new(ClusterId(1));
    let position = Position { index: LogIndex(5), term: Term { number: 1, leader: NodeId(0) } };
    let at = At { position, time: LogTime(7), authority: &authority };
    Agreed::fenced(&mut control, at, SessionId(1));
    assert_eq!(control.pools().view("main").unwrap().levels[0].books.written_off, 10);
    assert_eq!(control.budgets().fenced_gateways().collect::<Vec<_>>(), [(SessionId(1), LogTime(7))]);
}

#[test]
fn a_label_and_a_hash_are_given_once() {
    let mut control = Control::default();
    change(&mut control, 0, create("a", 1));
    let taken = Refusal::HashTaken { tenant: "acme".into(), label: "a".into() };
    assert!(matches!(change(&mut control, 0, create("a", 2)), Answer::Refused(Refusal::KeyExists { .. })));
    assert_eq!(change(&mut control, 0, create("b", 1)), Answer::Refused(taken.clone()));
    assert_eq!(change(&mut control, 0, rotate("a", 1, 5)), Answer::Refused(taken));
    assert!(matches!(change(&mut control, 0, rotate("c", 3, 5)), Answer::Refused(Refusal::NoSuchKey { .. })));
    assert_eq!(control.version(), 1, "a refused command changes nothing");
}

#[test]
fn a_rotation_leaves_the_older_secret_its_grace_and_the_key_what_it_is() {
    let mut control = Control::default();
    change(&mut control, 10, create("a", 1));
    let before = control.keys().get(&name("a")).unwrap().clone();
    change(&mut control, 20, rotate("a", 2, 120));
    change(&mut control, 30, rotate("a", 3, 300));
    let key = control.keys().get(&name("a")).unwrap();
    assert_eq!((key.limits, key.since), (before.limits, before.since));
    let until: Vec<_> = key.secrets.iter().map(|secret| (secret.hash[0], secret.until)).collect();
    // A grace that runs is not made longer.
    assert_eq!(until, [(1, Some(120)), (2, Some(300)), (3, None)]);
    change(&mut control, 40, rotate("a", 4, 500));
    assert!(matches!(
        change(&mut control, 50, rotate("a", 5, 500)),
        Answer::Refused(Refusal::TooMany { most: 4, .. })
    ));
    // The first grace is over: there is room again.
    assert!(matches!(change(&mut control, 120, rotate("a", 5, 500)), Answer::Done { .. }));
    assert_eq!(control.keys().of_hash(&[1; 32]), None);
}

#[test]
fn a_revoked_key_is_gone_and_a_revoked_hash_of_the_policy_stays_so() {
    let mut control = Control::default();
    change(&mut control, 0, create("a", 1));
    let revoke = |label: &str, hashes: Vec<keys::Hash>| Change::Revoke { name: name(label), hashes };
    change(&mut control, 0, revoke("a", Vec::new()));
    assert_eq!(control.keys().iter().len(), 0);
    assert!(matches!(
        change(&mut control, 0, revoke("a", Vec::new())),
        Answer::Refused(Refusal::NoSuchKey { .. })
    ));
    change(&mut control, 0, revoke("in the document", vec![[9; 32]]));
    assert_eq!(control.keys().revoked(&[9; 32]), Some(3));
    assert_eq!(change(&mut control, 0, create("a", 1)), Answer::Done { version: 4 });
}

fn except(control: &mut Control, time: u64, change: exceptions::Change) -> Answer {
    let basis = control.version();
    let commit = exceptions::Commit { basis, wall_millis: 1_000, tenant: "acme".to_owned(), change };
    obey_at(control, LogTime(time), Command::Exception(commit))
}

fn overriding(tokens: u64, length: u64) -> exceptions::Change {
    let limits = Limits { tokens_per_minute: Some(tokens), ..Limits::default() };
    exceptions::Change::Override { limits, length }
}

#[test]
fn an_override_ends_once_by_the_logs_time_whoever_says_so_and_whenever() {
    let mut control = Control::default();
    assert_eq!(except(&mut control, 100, overriding(5, 3_000_000)), Answer::Done { version: 1 });
    let held = *control.exceptions().overrides().get("acme").unwrap();
    assert_eq!((held.until, held.wall_until, held.since), (LogTime(3_000_100), 1_003, 1));
    assert_eq!(obey_at(&mut control, LogTime(3_000_099), Command::Lapse), Answer::Already { version: 1 });
    assert_eq!(control.exceptions().overrides().len(), 1);
    // Another one in its place has a time of its own.
    assert_eq!(except(&mut control, 3_000_099, overriding(6, 10)), Answer::Done { version: 2 });
    assert_eq!(obey_at(&mut control, LogTime(3_000_100), Command::Lapse), Answer::Already { version: 2 });
    assert_eq!(obey_at(&mut control, LogTime(3_000_109), Command::Lapse), Answer::Done { version: 3 });
    assert_eq!(control.exceptions().next_lapse(), None);
    assert_eq!(obey_at(&mut control, LogTime(3_000_110), Command::Lapse), Answer::Already { version: 3 });
    assert!(matches!(
        except(&mut control, 3_000_110, exceptions::Change::Restore),
        Answer::Refused(Refusal::NoChange(_))
    ));
}

#[test]
fn a_suspension_and_an_override_of_one_tenant_do_not_know_each_other() {
    let mut control = Control::default();
    assert_eq!(except(&mut control, 0, exceptions::Change::Suspend), Answer::Done { version: 1 });
    assert_eq!(except(&mut control, 0, overriding(5, u64::MAX)), Answer::Done { version: 2 });
    let until = control.exceptions().next_lapse();
    assert_eq!(until, Some(LogTime(exceptions::OVERRIDE_LONGEST)), "no longer than that");
    assert!(matches!(
        except(&mut control, 0, exceptions::Change::Suspend),
        Answer::Refused(Refusal::NoChange(_))
    ));
    assert_eq!(except(&mut control, 0, exceptions::Change::Restore), Answer::Done { version: 3 });
    assert_eq!(control.exceptions().suspended().get("acme").map(|one| one.since), Some(1));
    assert_eq!(except(&mut control, 0, exceptions::Change::Resume), Answer::Done { version: 4 });
    assert_eq!(**control.exceptions(), exceptions::Exceptions::default());
}

#[test]
fn a_decision_of_a_leader_is_void_in_another_leadership() {
    let mut control = Control::default();
    let command = BudgetCommand::CloseGateway { gateway: SessionId(1), grace: 0 };
    let mut said = |step| obey(&mut control, Command::Escrow(vec![step]));
    let void = Answer::Escrow(vec![Stepped::Budget(Err(BudgetRefusal::NotLed))]);
    let led = |number| Step::Led { term: Term { number, leader: NodeId(0) }, command: command.clone() };
    assert_eq!(said(led(2)), void);
    assert_eq!(said(Step::Budget(command.clone())), void, "nor may anybody else say it");
    assert_ne!(said(led(1)), void);
}

fn commands() -> impl Strategy<Value = Vec<(u64, Command)>> {
    let policy = (0..4_u8, proptest::option::of(0..6_u64))
        .prop_map(|(name, expect)| Command::Policy(policy::Commit { expect, ..text(name, 3) }));
    let label = prop_oneof![Just("a"), Just("b")];
    let key = (label, 0..6_u8, 0..3_u8, 0..9_i64).prop_map(|(label, hash, what, wall_millis)| {
        let change = match what {
            0 => create(label, hash),
            1 => rotate(label, hash, wall_millis + 3),
            _ => Change::Revoke { name: name(label), hashes: vec![[hash; 32]] },
        };
        Command::Key(keys::Commit { basis: 0, wall_millis, change })
    });
    let exception = (0..5_u8).prop_map(|what| {
        let change = match what {
            0 => exceptions::Change::Suspend,
            1 => exceptions::Change::Resume,
            2 => overriding(9, 0),
            3 => exceptions::Change::Restore,
            _ => return Command::Lapse,
        };
        let tenant = "acme".to_owned();
        Command::Exception(exceptions::Commit { basis: 0, wall_millis: 0, tenant, change })
    });
    // How far off the basis is: as a rule not at all.
    let off = prop_oneof![4 => Just(0_u64), 1 => Just(1_u64)];
    let step = (0..4_u8, 1..3_u128, 1..4_u64).prop_map(|(what, session, seq)| match what {
        0 => Step::Live(SessionId(session)),
        _ => draw(SessionId(session), seq),
    });
    let escrow = proptest::collection::vec(step, 1..3).prop_map(Command::Escrow);
    proptest::collection::vec((off, prop_oneof![policy, key, exception, escrow]), 0..40)
}

fn with_basis(command: Command, basis: u64) -> Command {
    match command {
        Command::Policy(commit) => Command::Policy(policy::Commit { basis, ..commit }),
        Command::Key(commit) => Command::Key(keys::Commit { basis, ..commit }),
        Command::Exception(commit) => Command::Exception(exceptions::Commit { basis, ..commit }),
        Command::Lapse => Command::Lapse,
        escrow @ Command::Escrow(_) => escrow,
    }
}

proptest! {
    #[test]
    fn the_same_log_is_the_same_state_and_a_snapshot_may_stand_anywhere_in_it(
        log in commands(), cut in 0..40_usize,
    ) {
        let (mut whole, mut again) = (Control::default(), Control::default());
        let mut restored: Option<Control> = None;
        for (at, (off, command)) in log.into_iter().enumerate() {
            let command = with_basis(command, whole.version() + off);
            if at == cut {
                let bytes = whole.written();
                let read = whole.restored(&bytes).unwrap();
                restored = read.downcast::<Control>().cloned();
                prop_assert_eq!(restored.as_ref(), Some(&whole));
            }
            let before = whole.clone();
            let answer = obey(&mut whole, command.clone());
            prop_assert_eq!(&obey(&mut again, codec::read_command(&codec::command(&command)).unwrap()), &answer);
            if let Some(restored) = &mut restored {
                prop_assert_eq!(&obey(restored, command), &answer);
            }
            match answer {
                Answer::Done { version } => {
                    prop_assert_eq!((version, whole.version()), (before.version() + 1, before.version() + 1));
                }
                Answer::Escrow(_) => prop_assert_eq!(before.version(), whole.version()),
                _ => prop_assert_eq!(&before, &whole),
            }
            let secrets = whole.keys().iter().flat_map(|(_, key)| key.secrets.iter().map(|secret| secret.hash));
            let mut hashes: Vec<_> = secrets.collect();
            let all = hashes.len();
            hashes.sort_unstable();
            hashes.dedup();
            prop_assert_eq!(hashes.len(), all, "a hash is of one key");
        }
        prop_assert_eq!(&whole, &again);
        if let Some(restored) = restored {
            prop_assert_eq!(whole, restored);
        }
    }

    #[test]
    fn no_bytes_are_trusted(bytes: Vec<u8>) {
        let _ = codec::read_command(&bytes);
        let _ = codec::read_state(&bytes);
        let mut control = Control::default();
        let authority = Authority::new(ClusterId(1));
        let position = Position { index: LogIndex(0), term: Term { number: 1, leader: NodeId(0) } };
        let answer = control.apply(At { position, time: LogTime(0), authority: &authority }, &bytes);
        prop_assert!(codec::read_answer(&answer).is_ok());
    }
}
