//! Stories of a lease, told from both sides.

use super::*;
use crate::authority::{Authority, Command, Position};
use crate::id::{ClusterId, Identity, LogIndex, NodeId, Term};
use crate::log_time::{LogTime, Stamp};
use crate::time::Moment;

const T1: Term = Term { number: 1, leader: NodeId(0) };
const T2: Term = Term { number: 2, leader: NodeId(0) };
const OURS: SessionId = SessionId(10);

fn at(millis: u64) -> Moment {
    Moment::from_nanos(1_000_000 * millis)
}

/// Parts that have come round `rounds` times.
fn rounds(rounds: u64) -> Progress {
    Progress { disk: rounds, shards: rounds }
}

fn needs(version: u64, epoch: u64) -> Required {
    Required { version: Version(version), epoch: Epoch(epoch) }
}

fn granted(sequence: u64) -> Reply {
    Reply { session: OURS, sequence, answer: Answer::Granted(Required::default()) }
}

fn holder() -> Holder {
    Holder::new(OURS, Timing::DEFAULT)
}

/// Asks at `millis`, with parts that have moved since; the number of the request.
fn ask(holder: &mut Holder, millis: u64) -> u64 {
    match holder.handle_timeout(at(millis), rounds(millis + 1)) {
        Turn::Renew(renewal) => renewal.sequence,
        turn => panic!("{turn:?}"),
    }
}

fn is_valid(holder: &Holder, millis: u64) -> bool {
    holder.check(at(millis), Required::default()).is_ok()
}

// The holder.

#[test]
fn a_lease_runs_from_when_it_was_asked_for_and_is_shorter_by_the_drift() {
    let mut holder = holder();
    let asked = ask(&mut holder, 0);
    assert_eq!(holder.check(at(0), Required::default()), Err(LeaseRefusal::None));
    holder.handle_reply(granted(asked), at(2000)).unwrap();
    // 3,000 / 1.005 = 2,985.07…
    assert!(is_valid(&holder, 2985) && !is_valid(&holder, 2986));
    assert_eq!(holder.left(at(2000)).as_nanos() / 1_000_000, 985);
    let end = Moment::from_nanos(2_985_074_626);
    let before = Moment::from_nanos(end.as_nanos() - 1);
    assert_eq!(holder.check(before, Required::default()), Ok(end));
    assert_eq!(holder.check(end, Required::default()), Err(LeaseRefusal::None), "the end is not part of it");
}

#[test]
fn it_is_renewed_every_quarter() {
    let mut holder = holder();
    assert_eq!(holder.poll_timeout(), Some(at(0)));
    ask(&mut holder, 0);
    assert_eq!(holder.poll_timeout(), Some(at(750)));
    assert_eq!(holder.handle_timeout(at(749), rounds(9)), Turn::Rest);
    assert_eq!(ask(&mut holder, 750), 2);
}

#[test]
fn replies_to_another_session_to_no_request_or_out_of_order_change_nothing() {
    let mut holder = holder();
    let (first, second) = (ask(&mut holder, 0), ask(&mut holder, 750));
    holder.handle_reply(granted(second), at(800)).unwrap();
    let before = holder.clone();
    let other = Reply { session: SessionId(11), ..granted(second) };
    assert_eq!(holder.handle_reply(other, at(900)), Err(Ignored::OtherSession(SessionId(11))));
    assert_eq!(holder.handle_reply(granted(second), at(900)), Err(Ignored::NotAsked(second)));
    assert_eq!(holder.handle_reply(granted(first), at(900)), Err(Ignored::NotAsked(first)));
    assert_eq!(holder.handle_reply(granted(99), at(900)), Err(Ignored::NotAsked(99)));
    assert_eq!(holder, before);
}

#[test]
fn a_grant_that_arrives_after_its_end_is_none() {
    let mut holder = holder();
    let asked = ask(&mut holder, 0);
    assert_eq!(holder.handle_reply(granted(asked), at(2986)), Err(Ignored::TooLate(asked)));
    assert!(!is_valid(&holder, 2986));
}

#[test]
fn a_node_whose_disk_or_shards_stand_still_lets_its_lease_run_out() {
    for stuck in [Progress { disk: 1, shards: 9 }, Progress { disk: 9, shards: 1 }] {
        let mut holder = holder();
        assert_eq!(holder.handle_timeout(at(0), rounds(0)), Turn::Stalled, "nothing has ever come round");
        let Turn::Renew(first) = holder.handle_timeout(at(750), rounds(1)) else { panic!("it has moved") };
        holder.handle_reply(granted(first.sequence), at(751)).unwrap();
        for millis in [1500, 2250, 3000] {
            assert_eq!(holder.handle_timeout(at(millis), stuck), Turn::Stalled);
        }
        assert!(!is_valid(&holder, 3736));
        assert_eq!(ask(&mut holder, 3750), 2, "and asks again once they move");
    }
}

#[test]
fn rule_13_a_lease_counts_once_what_was_committed_is_applied() {
    let mut holder = holder();
    let asked = ask(&mut holder, 0);
    let reply = Reply { answer: Answer::Granted(needs(7, 3)), ..granted(asked) };
    holder.handle_reply(reply, at(10)).unwrap();
    assert_eq!(holder.check(at(20), needs(6, 3)), Err(LeaseRefusal::Behind(needs(7, 3))));
    assert_eq!(holder.check(at(20), needs(7, 2)), Err(LeaseRefusal::Behind(needs(7, 3))));
    assert!(holder.check(at(20), needs(7, 3)).is_ok());

    // A commit does not interrupt who is about to apply it: the older lease goes on to its own end.
    let asked = ask(&mut holder, 750);
    let reply = Reply { answer: Answer::Granted(needs(8, 3)), ..granted(asked) };
    holder.handle_reply(reply, at(760)).unwrap();
    assert!(holder.check(at(2985), needs(7, 3)).is_ok());
    assert_eq!(holder.check(at(2986), needs(7, 3)), Err(LeaseRefusal::Behind(needs(8, 3))));
    assert!(holder.check(at(2986), needs(8, 3)).is_ok());
}

#[test]
fn a_session_that_is_told_it_is_condemned_lets_go_at_once() {
    let mut holder = holder();
    let first = ask(&mut holder, 0);
    holder.handle_reply(granted(first), at(1)).unwrap();
    let second = ask(&mut holder, 750);
    let third = ask(&mut holder, 1500);
    let condemned = Reply { answer: Answer::Refused(RenewalRefusal::Condemned), ..granted(second) };
    holder.handle_reply(condemned, at(1501)).unwrap();
    assert!(holder.is_condemned() && !is_valid(&holder, 1501));
    assert_eq!(holder.poll_timeout(), None);
    assert_eq!(holder.handle_reply(granted(third), at(1502)), Err(Ignored::TooLate(third)));
    assert!(!is_valid(&holder, 1502));
}

// The grantor.

/// A node with session 10, and what applying more does.
fn authority() -> Authority {
    let mut authority = Authority::new(ClusterId(1));
    apply(&mut authority, Command::Admit { identity: Identity(1), address: "a:1".into() });
    apply(&mut authority, Command::Register { node: NodeId(0), session: OURS });
    authority
}

fn apply(authority: &mut Authority, command: Command) {
    let index = LogIndex(authority.applied().map_or(0, |index| index.0 + 1));
    let stamp = Stamp { term: T1, time: LogTime(0) };
    authority.apply(Position { index, term: T1 }, stamp, command).unwrap();
}

fn grantor(authority: &Authority) -> Grantor {
    Grantor::new(T1, Timing::DEFAULT, at(0), authority)
}

/// A whole round: the renewal arrives, the leader confirms itself, all at `millis`.
fn renew(grantor: &mut Grantor, authority: &Authority, sequence: u64, millis: u64) -> Answer {
    assert!(grantor.arrive(Renewal { session: OURS, sequence }));
    let round = grantor.begin_confirmation(at(millis)).unwrap();
    let replies = grantor.confirmed(round, T1, at(millis), authority, Version(4));
    let [reply] = replies[..] else { panic!("{replies:?}") };
    assert_eq!((reply.session, reply.sequence), (OURS, sequence));
    reply.answer
}

#[test]
fn a_grant_names_what_is_committed() {
    let authority = authority();
    let answer = renew(&mut grantor(&authority), &authority, 1, 5);
    assert_eq!(answer, Answer::Granted(needs(4, 0)));
}

#[test]
fn rule_5_a_renewal_waits_for_a_round_that_began_after_it_arrived() {
    let authority = authority();
    let mut grantor = grantor(&authority);
    assert!(grantor.begin_confirmation(at(0)).is_none(), "nobody waits");
    grantor.arrive(Renewal { session: OURS, sequence: 1 });
    let first = grantor.begin_confirmation(at(0)).unwrap();
    grantor.arrive(Renewal { session: OURS, sequence: 2 });
    assert!(grantor.begin_confirmation(at(0)).is_none(), "one round at a time");
    let replies = grantor.confirmed(first, T1, at(1), &authority, Version(0));
    assert_eq!(replies.iter().map(|reply| reply.sequence).collect::<Vec<_>>(), [1]);
    assert_eq!(grantor.confirmed(first, T1, at(1), &authority, Version(0)), [], "a round answers once");

    let second = grantor.begin_confirmation(at(0)).unwrap();
    let replies = grantor.confirmed(second, T1, at(2), &authority, Version(0));
    assert_eq!(replies.iter().map(|reply| reply.sequence).collect::<Vec<_>>(), [2]);
}

#[test]
fn one_round_answers_all_that_wait_and_a_failed_one_answers_nobody() {
    let mut authority = authority();
    apply(&mut authority, Command::Admit { identity: Identity(2), address: "b:1".into() });
    apply(&mut authority, Command::Register { node: NodeId(2), session: SessionId(20) });
    let mut grantor = grantor(&authority);
    for session in [OURS, SessionId(20), SessionId(99)] {
        grantor.arrive(Renewal { session, sequence: 1 });
    }
    let failed = grantor.begin_confirmation(at(0)).unwrap();
    grantor.unconfirmed(failed);
    assert_eq!(grantor.confirmed(failed, T1, at(1), &authority, Version(0)), []);
    assert_eq!(grantor.silence(OURS, at(1)), Span::from_millis(1), "nothing was granted");

    for session in [OURS, SessionId(20), SessionId(99)] {
        grantor.arrive(Renewal { session, sequence: 2 });
    }
    let round = grantor.begin_confirmation(at(0)).unwrap();
    let answers: Vec<Answer> = grantor
        .confirmed(round, T1, at(2), &authority, Version(0))
        .iter()
        .map(|reply| reply.answer)
        .collect();
    let granted = Answer::Granted(needs(0, 0));
    assert_eq!(answers, [granted, granted, Answer::Refused(RenewalRefusal::Unknown)]);
}

/// Found by the simulation: a round whose outcome never came kept the whole cluster without leases.
#[test]
fn a_round_that_hangs_is_given_up_after_a_quarter_of_a_lease() {
    let authority = authority();
    let mut grantor = grantor(&authority);
    grantor.arrive(Renewal { session: OURS, sequence: 1 });
    let hangs = grantor.begin_confirmation(at(100)).unwrap();
    grantor.arrive(Renewal { session: OURS, sequence: 2 });
    assert!(grantor.begin_confirmation(at(849)).is_none());
    let next = grantor.begin_confirmation(at(850)).unwrap();
    assert_eq!(grantor.confirmed(hangs, T1, at(900), &authority, Version(0)), []);
    assert_eq!(grantor.confirmed(next, T1, at(900), &authority, Version(0)).len(), 1);
}

#[test]
fn rule_4_a_leader_of_another_term_grants_nothing() {
    let authority = authority();
    let mut grantor = grantor(&authority);
    grantor.arrive(Renewal { session: OURS, sequence: 1 });
    let round = grantor.begin_confirmation(at(0)).unwrap();
    let replies = grantor.confirmed(round, T2, at(1), &authority, Version(0));
    assert_eq!(replies[0].answer, Answer::Refused(RenewalRefusal::NotLeading));
}

#[test]
fn rule_5_the_wait_runs_from_the_later_of_the_last_grant_and_the_condemnation() {
    let authority = authority();
    let mut grantor = grantor(&authority);
    assert!(!grantor.may_fence(OURS, at(100_000)), "it is not condemned");
    renew(&mut grantor, &authority, 1, 1000);
    grantor.condemn(OURS, at(5000));
    grantor.condemn(OURS, at(6000));
    assert_eq!(renew(&mut grantor, &authority, 2, 7000), Answer::Refused(RenewalRefusal::Condemned));
    // 5,000 + 3,000 · 1.005.
    assert!(!grantor.may_fence(OURS, at(8014)) && grantor.may_fence(OURS, at(8015)));

    // The clock was read before the lock was taken, and a grant came in between.
    let mut grantor = self::grantor(&authority);
    renew(&mut grantor, &authority, 1, 1000);
    grantor.condemn(OURS, at(990));
    assert!(!grantor.may_fence(OURS, at(4014)) && grantor.may_fence(OURS, at(4015)));

    // A round that began before the condemnation is answered after it: refused.
    let mut grantor = self::grantor(&authority);
    grantor.arrive(Renewal { session: OURS, sequence: 1 });
    let round = grantor.begin_confirmation(at(0)).unwrap();
    grantor.condemn(OURS, at(10));
    let replies = grantor.confirmed(round, T1, at(11), &authority, Version(0));
    assert_eq!(replies[0].answer, Answer::Refused(RenewalRefusal::Condemned));
}

#[test]
fn rule_3_a_session_that_another_replaced_is_condemned_and_fenced_only_after_the_wait() {
    let mut authority = authority();
    let mut grantor = grantor(&authority);
    renew(&mut grantor, &authority, 1, 1000);
    apply(&mut authority, Command::Register { node: NodeId(0), session: SessionId(11) });
    // The log alone is enough, even before the grantor has taken note of it.
    assert_eq!(renew(&mut grantor, &authority, 2, 1500), Answer::Refused(RenewalRefusal::Condemned));
    assert!(!grantor.may_fence(OURS, at(4514)) && grantor.may_fence(OURS, at(4515)));
    assert_eq!(grantor.poll_timeout(), Some(at(4515)));
    assert_eq!(grantor.handle_timeout(at(4514)), []);
    let fence = Command::Fence { session: OURS, term: T1 };
    assert_eq!(grantor.handle_timeout(at(4515)), std::slice::from_ref(&fence));

    // A proposal that was lost is made again, until the log has it.
    assert_eq!(grantor.handle_timeout(at(4516)), []);
    assert_eq!(grantor.poll_timeout(), Some(at(5265)));
    assert_eq!(grantor.handle_timeout(at(5265)), std::slice::from_ref(&fence));
    apply(&mut authority, fence);
    grantor.observe(&authority, at(5300));
    assert_eq!(grantor.poll_timeout(), None);
}

/// Found by the model: a fenced session is forgotten, so an older copy of the log must not speak for it.
#[test]
fn a_log_that_is_older_than_one_shown_before_answers_nobody() {
    let before = authority();
    let mut after = before.clone();
    let mut grantor = grantor(&before);
    grantor.arrive(Renewal { session: OURS, sequence: 1 });
    let round = grantor.begin_confirmation(at(0)).unwrap();
    apply(&mut after, Command::Fence { session: OURS, term: T1 });
    grantor.observe(&after, at(1));
    assert_eq!(grantor.confirmed(round, T1, at(2), &before, Version(0)), []);
}

#[test]
fn a_new_leader_waits_from_its_own_first_entry_whoever_was_condemned_before() {
    let mut authority = authority();
    apply(&mut authority, Command::Register { node: NodeId(0), session: SessionId(11) });
    let mut grantor = Grantor::new(T1, Timing::DEFAULT, at(9000), &authority);
    assert!(!grantor.may_fence(OURS, at(12_014)) && grantor.may_fence(OURS, at(12_015)));
    // Nor is a session that it condemns itself judged by a clock that began before it led.
    grantor.condemn(SessionId(11), at(9001));
    assert!(!grantor.may_fence(SessionId(11), at(12_015)) && grantor.may_fence(SessionId(11), at(12_016)));
}

/// Found by the simulation: a session that has just registered is not silent for as long as its leader leads.
#[test]
fn silence_counts_from_the_last_grant_or_from_when_the_session_was_first_known() {
    let mut authority = authority();
    let mut grantor = grantor(&authority);
    renew(&mut grantor, &authority, 1, 1000);
    apply(&mut authority, Command::Register { node: NodeId(0), session: SessionId(11) });
    grantor.observe(&authority, at(9000));
    assert_eq!(grantor.silence(OURS, at(9500)), Span::from_millis(8500));
    assert_eq!(grantor.silence(SessionId(11), at(9500)), Span::from_millis(500));
}

#[test]
fn who_waits_is_bounded() {
    let authority = authority();
    let mut grantor = grantor(&authority);
    let fits =
        (0..5000).filter(|&at| grantor.arrive(Renewal { session: SessionId(at), sequence: 1 })).count();
    assert_eq!(fits, 1024);
    assert!(grantor.arrive(Renewal { session: SessionId(0), sequence: 2 }), "who waits already may ask anew");
}
