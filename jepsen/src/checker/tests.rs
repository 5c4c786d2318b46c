//! Mutants of a history: each edit of a sound one flips the verdict that it should, and no other.

mod sdks;

use std::collections::BTreeMap;

use super::usefulness::of_one_machine;
use super::*;
use crate::history::{
    Arrival, At, Attempt, Bucket, Decided, End, Ended, Limits, MILLI, Outcome as Answer, Plan, Probe,
    Revoked, SECOND, View, Window, life,
};
use crate::nemesis::TOOK_ITS_PLACE;

const RATE: Limits = Limits { burst: 2, per_minute: 600, in_flight: None, tokens: None, budget: None };
/// Twenty are held of each request, eleven are given back, and ten requests are made a second.
const METERED: Limits = Limits { tokens: Some(Bucket { burst: 100, per_minute: 90 * 60 }), ..SLOTS };
const SLOTS: Limits =
    Limits { burst: 1_000, per_minute: 60_000, in_flight: Some(2), tokens: None, budget: None };

/// The node that owns the saturated tenant is killed at 30 s, is started at 32 s; another takes over at 33 s.
const KILLED: At = 30 * SECOND;
const STARTED: At = 32 * SECOND;
const TAKEN_OVER: At = 33 * SECOND;
const END: At = 70 * SECOND;

fn sound() -> History {
    let mut history = History {
        plan: Plan {
            seed: 1,
            nodes: 3,
            lease: SECOND,
            tenants: BTreeMap::from([
                ("sat0".to_owned(), RATE),
                ("slots0".to_owned(), SLOTS),
                ("metered0".to_owned(), Limits { in_flight: None, ..METERED }),
            ]),
            saturated: vec!["sat0".to_owned()],
            applications: Vec::new(),
            of_a_key: None,
            binary: "tollgate".to_owned(),
            audited: true,
            windows: 1,
            kinds: Vec::new(),
            admissions: 100,
            workload: "all".to_owned(),
        },
        attempts: Vec::new(),
        arrivals: Vec::new(),
        decided: Vec::new(),
        ended: Vec::new(),
        windows: vec![Window {
            nemesis: "kill".to_owned(),
            what: "n1, the owner of sat0".to_owned(),
            victims: vec![1],
            begin: KILLED,
            healed: STARTED,
            living: vec![1, 2, 3],
            percent: None,
            bounded: false,
            note: String::new(),
        }],
        views: vec![view(1, 0, "c1"), view(2, SECOND, "c1"), view(3, END, "c1")],
        ends: Vec::new(),
        revoked: Vec::new(),
        probes: vec![
            Probe::Gauge { node: 1, name: "tollgate_inflight".to_owned(), value: 0 },
            Probe::Burst { tenant: "slots0".to_owned(), wanted: 2, admitted: 2, refused: 0 },
        ],
    };
    // What one machine admits, before the owner dies and, from nothing, after another has taken over.
    let mut before = 0;
    for at in (0..END).step_by(20 * MILLI as usize) {
        let owner = match at {
            _ if at < KILLED => Some((1, "a")),
            _ if at < TAKEN_OVER => None,
            _ => Some((2, "b")),
        };
        let since = if at < KILLED { 0 } else { TAKEN_OVER };
        let admitted = owner.is_some() && {
            let all = of_one_machine((since..=at).step_by(20 * MILLI as usize), RATE);
            let admitted = all > before || (at == since && all > 0);
            before = all;
            admitted
        };
        ask(&mut history, "sat0", at, 5 * MILLI, owner, admitted);
    }
    for at in (0..END).step_by(500 * MILLI as usize) {
        ask(&mut history, "slots0", at + 7 * MILLI, 300 * MILLI, Some((3, "c")), true);
    }
    for at in (0..END).step_by(100 * MILLI as usize) {
        ask(&mut history, "metered0", at + 3 * MILLI, 300 * MILLI, Some((3, "c")), true);
    }
    history
}

fn view(node: u8, at: At, cluster: &str) -> View {
    let shards = BTreeMap::from([(1, 400), (2, 300), (3, 324)]);
    View { at, node, cluster: cluster.to_owned(), leader: Some(1), epoch: 1, shards }
}

/// One attempt with all that it leaves behind.
fn ask(history: &mut History, tenant: &str, inv: At, lasts: At, owner: Option<(u8, &str)>, admitted: bool) {
    let op = history.attempts.len() as u64 + 1;
    let outcome = match owner {
        None => Answer::Unavailable,
        Some(_) if admitted => Answer::Admitted,
        Some(_) => Answer::Limited,
    };
    let node = 1 + (op % 3) as u8;
    history.attempts.push(Attempt {
        op,
        request: op,
        tenant: tenant.to_owned(),
        secret: String::new(),
        node,
        inv,
        com: inv + 2 * MILLI + if admitted { lasts } else { 0 },
        stayed: inv + 2 * MILLI + if admitted { lasts } else { 0 },
        outcome,
        code: String::new(),
        keyed: true,
        aborted: false,
        complete: true,
        sdk: None,
    });
    let Some((by, session)) = owner else { return };
    let (shard, id) = (tenant.len() as u16, format!("{node:016x}{op:016x}"));
    history.decided.push(Decided {
        asked: inv + MILLI,
        lo: inv + MILLI,
        hi: inv + MILLI,
        shard,
        epoch: u64::from(by),
        session: session.to_owned(),
        id: id.clone(),
        tenant: tenant.to_owned(),
        cost: 20,
        admitted,
        node: by,
    });
    if !admitted {
        return;
    }
    history.arrivals.push(Arrival {
        op,
        decision: id.clone(),
        node,
        at: inv + 2 * MILLI,
        end: inv + 2 * MILLI + lasts,
        billed: 9,
        reported: true,
        whole: true,
    });
    history.ended.push(Ended {
        at: inv + 3 * MILLI + lasts,
        shard,
        epoch: u64::from(by),
        session: session.to_owned(),
        id,
        tenant: tenant.to_owned(),
        how: "now".to_owned(),
        refunded: 11,
        overage: 0,
        node: by,
    });
}

/// The guarantees whose verdict is not valid after `edit`.
fn after(edit: impl FnOnce(&mut History)) -> Vec<String> {
    let mut history = sound();
    edit(&mut history);
    let judgements = judge(&history);
    let flipped = judgements.iter().filter(|judgement| !matches!(judgement.verdict, Verdict::Valid(_)));
    flipped.map(|judgement| judgement.guarantee.clone()).collect()
}

fn position(history: &History, tenant: &str, from: At, outcome: Answer) -> usize {
    let found = history
        .attempts
        .iter()
        .position(|attempt| attempt.tenant == tenant && attempt.inv >= from && attempt.outcome == outcome);
    found.expect("the sound history has one")
}

#[test]
fn a_sound_history_is_valid_in_everything() {
    let judgements = judge(&sound());
    assert_eq!(outcome(&judgements), Outcome::Kept, "{judgements:#?}");
}

#[test]
fn nothing_judged_is_no_pass() {
    assert_eq!(outcome(&[]), Outcome::Inconclusive);
}

#[test]
fn nine_more_admissions_at_once_are_too_many_on_every_side() {
    // At the provider half a second of refill is allowed for grants that are used late: five.
    let flipped = after(|history| {
        for _ in 0..9 {
            ask(history, "sat0", 50 * SECOND, 5 * MILLI, Some((2, "b")), true);
        }
    });
    assert_eq!(flipped, ["no_overspend", "no_overspend_at_provider", "no_overspend_at_owners"]);
}

#[test]
fn how_much_too_much_is_measured_where_it_is_most() {
    let mut history = sound();
    let kept = measure(&history).unwrap();
    assert!(kept.excess == 0 && (50..=100).contains(&kept.percent), "{kept:?}");
    for _ in 0..9 {
        ask(&mut history, "sat0", 50 * SECOND, 5 * MILLI, Some((2, "b")), true);
    }
    // Nine and one in an instant in which two were allowed.
    let over = measure(&history).unwrap();
    assert!((7..=9).contains(&over.excess) && (300..=500).contains(&over.percent), "{over:?}");
    history.arrivals.clear();
    assert_eq!(measure(&history), None);
}

#[test]
fn admissions_that_a_dead_owner_had_yet_to_refill_show_at_the_new_one() {
    // A bucket that starts full after a crash: the burst of the old owner, and another of the new one, at the edge of a pause too short
    // to refill it.
    let flipped = after(|history| {
        history.windows[0].healed = KILLED + MILLI;
        for attempt in &mut history.attempts {
            if attempt.outcome == Answer::Unavailable {
                attempt.outcome = Answer::Limited;
            }
        }
        for _ in 0..9 {
            ask(history, "sat0", KILLED + 2 * MILLI, 5 * MILLI, Some((2, "b")), true);
        }
    });
    assert_eq!(flipped[..3], ["no_overspend", "no_overspend_at_provider", "no_overspend_at_owners"]);
}

#[test]
fn grants_that_were_used_late_together_show_at_the_provider_alone() {
    let flipped = after(|history| {
        let late: Vec<usize> = (0..history.arrivals.len())
            .filter(|place| history.arrivals[*place].end - history.arrivals[*place].at < 100 * MILLI)
            .collect();
        let together = history.arrivals[late[100]].at;
        // Eleven that are a second old: more than a burst and what a grant's age allows.
        for place in &late[90..100] {
            history.arrivals[*place].at = together;
            history.arrivals[*place].end = together + MILLI;
        }
    });
    assert_eq!(flipped, ["no_overspend_at_provider"]);
}

#[test]
fn tokens_that_nobody_gave_back_and_that_are_spent_again_show_at_the_owners() {
    // As if each had been given back a second time, which the audit does not tell.
    let flipped = after(|history| {
        let mut kept = 0;
        history.ended.retain(|ended| {
            kept += u32::from(ended.tenant == "metered0");
            ended.tenant != "metered0" || kept > 40
        });
    });
    assert_eq!(flipped, ["no_overspend_at_owners"]);
}

#[test]
fn an_answer_that_is_given_again_by_whom_the_shard_has_moved_to_is_one_admission() {
    let flipped = after(|history| {
        let admitted = history.decided.iter().filter(|decided| decided.tenant == "sat0" && decided.admitted);
        let twice: Vec<Decided> = admitted.skip(20).take(20).cloned().collect();
        for again in twice {
            history.decided.push(Decided { session: "d".to_owned(), ..again });
        }
    });
    assert!(!flipped.contains(&"no_overspend_at_owners".to_owned()), "{flipped:?}");
}

#[test]
fn a_decision_of_the_old_owner_after_the_new_one_began_is_a_second_owner() {
    let flipped = after(|history| {
        let late = history.decided.iter().position(|decided| decided.session == "b" && !decided.admitted);
        let late = &mut history.decided[late.unwrap() + 50];
        (late.session, late.epoch, late.node) = ("a".to_owned(), 1, 1);
    });
    assert_eq!(flipped, ["one_owner"]);
}

#[test]
fn a_pause_between_the_look_and_the_line_accuses_nobody() {
    let flipped = after(|history| {
        let last = history.decided.iter_mut().rev().find(|decided| decided.session == "a").unwrap();
        last.hi += 20 * SECOND;
    });
    assert_eq!(flipped, [""; 0]);
}

#[test]
fn a_second_forward_is_seen() {
    let flipped = after(|history| {
        let again =
            history.arrivals.iter().find(|arrival| arrival.end - arrival.at > 100 * MILLI).unwrap().clone();
        history.arrivals.push(Arrival { at: again.at + MILLI, end: again.at + 2 * MILLI, ..again });
    });
    assert_eq!(flipped, ["resolved_once"]);
}

#[test]
fn a_forward_that_nobody_admitted_is_seen() {
    let flipped = after(|history| {
        let used = history.arrivals[5].decision.clone();
        history.decided.retain(|decided| decided.id != used);
    });
    assert_eq!(flipped, ["resolved_once"]);
}

/// The reservation of arrival `which` is made anew, `late` if an owner had admitted the first one; by the same gateway, or by `other`.
fn make_anew(history: &mut History, which: usize, late: bool, other: Option<u8>) {
    let named = history.arrivals[which].decision.clone();
    let anew = match other {
        Some(life) => format!("{life:016x}{:016x}", 0xA000 + which),
        None => format!("{}{:016x}", life(&named), 0xA000 + which),
    };
    let decided = history.decided.iter_mut().find(|decided| decided.id == named).unwrap();
    let first = Decided { asked: decided.asked - MILLI, lo: decided.lo - MILLI, ..decided.clone() };
    decided.id.clone_from(&anew);
    let ended = history.ended.iter_mut().find(|ended| ended.id == named).unwrap();
    // Cancelled: all of it is given back.
    let cancelled = Ended { at: first.hi, refunded: first.cost, ..ended.clone() };
    ended.id = anew;
    if late {
        history.ended.push(cancelled);
        history.decided.push(first);
    }
}

#[test]
fn a_reservation_made_anew_stands_in_for_the_one_that_came_too_late_and_for_no_second() {
    assert_eq!(after(|history| make_anew(history, 5, true, None)), [""; 0]);
    let twice = after(|history| {
        make_anew(history, 5, true, None);
        make_anew(history, 6, true, None);
        // Only one of the two that were made anew was admitted.
        let second = history.decided.iter().position(|decided| decided.id.ends_with("a006")).unwrap();
        history.decided.remove(second);
    });
    assert_eq!(twice, ["resolved_once"]);
}

#[test]
fn nothing_stands_in_for_what_nobody_had_admitted_nor_what_another_gateway_holds() {
    assert_eq!(after(|history| make_anew(history, 5, false, None)), ["resolved_once"]);
    let node = sound().arrivals[5].node;
    let other = 1 + node % 3;
    assert_eq!(after(|history| make_anew(history, 5, true, Some(other))), ["resolved_once"]);
    // Unless it may have been reported as void: where there are budgets, and the number that stands in is a later one.
    let reported = |history: &mut History| {
        history.plan.tenants.insert("budget1".to_owned(), Limits { budget: Some(1), ..SLOTS });
        make_anew(history, 5, false, None);
    };
    assert!(!after(reported).contains(&"resolved_once".to_owned()));
}

#[test]
fn the_next_life_of_the_same_gateway_may_make_it_anew() {
    let flipped = after(|history| {
        make_anew(history, 5, false, Some(9));
        // That life goes on to make reservations of its own.
        let node = history.arrivals[5].node;
        let at = (100..history.arrivals.len()).find(|at| history.arrivals[*at].node == node).unwrap();
        let (named, id) = (history.arrivals[at].decision.clone(), format!("{:016x}{at:016x}", 9));
        history.arrivals[at].decision.clone_from(&id);
        for decided in history.decided.iter_mut().filter(|decided| decided.id == named) {
            decided.id.clone_from(&id);
        }
        for ended in history.ended.iter_mut().filter(|ended| ended.id == named) {
            ended.id.clone_from(&id);
        }
    });
    assert_eq!(flipped, [""; 0]);
}

#[test]
fn a_forward_of_what_was_refused_is_seen() {
    let flipped = after(|history| {
        let place = position(history, "slots0", 3 * SECOND, Answer::Admitted);
        history.attempts[place].outcome = Answer::Limited;
    });
    assert_eq!(flipped, ["resolved_once"]);
}

#[test]
fn a_bill_that_differs_from_what_was_settled_is_seen() {
    assert_eq!(after(|history| history.arrivals[7].billed += 1), ["resolved_once"]);
    assert_eq!(after(|history| history.ended[7].refunded += 1), ["resolved_once"]);
}

#[test]
fn a_second_settlement_is_seen() {
    let flipped = after(|history| {
        let again = history.ended[9].clone();
        history.ended.push(again);
    });
    assert_eq!(flipped, ["resolved_once"]);
}

#[test]
fn two_dispatches_under_one_idempotency_key_are_seen_unless_an_owner_crashed_between() {
    let same = |history: &mut History, first: At, second: At| {
        let (one, two) = (
            position(history, "sat0", first, Answer::Admitted),
            position(history, "sat0", second, Answer::Admitted),
        );
        history.attempts[two].request = history.attempts[one].request;
    };
    assert_eq!(after(|history| same(history, 40 * SECOND, 50 * SECOND)), ["resolved_once"]);
    assert_eq!(after(|history| same(history, 10 * SECOND, 50 * SECOND)), [""; 0]);
}

#[test]
fn an_answer_that_an_owner_gave_twice_is_one_admission() {
    let flipped = after(|history| {
        let again = history.decided.iter().find(|decided| decided.admitted).unwrap().clone();
        history.decided.push(Decided { asked: again.hi, lo: again.hi, ..again });
    });
    assert_eq!(flipped, [""; 0]);
}

/// Four requests at once in two slots, while a fault strikes their gateways; `lives` says whether their sessions go on.
fn too_many_at_struck_gateways(history: &mut History, at: At, lives: bool) {
    let before = history.arrivals.len();
    for more in 0..4 {
        ask(history, "slots0", at + more * MILLI, 200 * MILLI, Some((3, "c")), true);
    }
    for arrival in history.arrivals[before..].iter_mut().filter(|_| !lives) {
        let id = format!("dead{:028}", arrival.op);
        let of = |other: &str| other == arrival.decision;
        for decided in history.decided.iter_mut().filter(|decided| of(&decided.id)) {
            decided.id.clone_from(&id);
        }
        for ended in history.ended.iter_mut().filter(|ended| of(&ended.id)) {
            ended.id.clone_from(&id);
        }
        arrival.decision = id;
    }
    let (begin, healed) = (60 * SECOND, 60 * SECOND + MILLI);
    let strike = Window { victims: vec![1, 2, 3], begin, healed, ..history.windows[0].clone() };
    history.windows.push(strike);
}

#[test]
fn a_third_request_in_two_slots_is_seen_unless_its_gateway_was_fenced() {
    let flipped = after(|history| {
        for more in 0..4 {
            ask(history, "slots0", 60 * SECOND + more * MILLI, 200 * MILLI, Some((3, "c")), true);
        }
    });
    assert_eq!(flipped, ["in_flight"]);
    let seen = |at: At, lives: bool| {
        let flipped = after(|history| too_many_at_struck_gateways(history, at, lives));
        flipped.contains(&"in_flight".to_owned())
    };
    assert!(!seen(60 * SECOND, false), "their sessions may have been fenced");
    assert!(seen(60 * SECOND, true), "sessions that go on were not");
    assert!(seen(65 * SECOND, false), "a fault that is long over excuses nobody");
}

#[test]
fn a_stream_that_is_left_holds_its_slot_until_then() {
    let left = |history: &mut History, stayed: At| {
        let before = history.attempts.len();
        for more in 0..4 {
            ask(history, "slots0", 60 * SECOND + more * MILLI, 200 * MILLI, Some((3, "c")), true);
        }
        for attempt in &mut history.attempts[before..] {
            (attempt.aborted, attempt.complete) = (true, false);
            attempt.com = attempt.inv + 3 * MILLI;
            attempt.stayed = attempt.inv + stayed;
        }
        let arrivals = history.arrivals.len() - 4;
        for arrival in &mut history.arrivals[arrivals..] {
            (arrival.whole, arrival.reported) = (false, false);
        }
    };
    assert_eq!(after(|history| left(history, 100 * MILLI)), ["in_flight"]);
    assert_eq!(after(|history| left(history, 2 * MILLI)), [""; 0]);
}

#[test]
fn what_is_left_open_is_seen() {
    let gauge = |value| Probe::Gauge { node: 2, name: "tollgate_open_reservations".to_owned(), value };
    assert_eq!(after(|history| history.probes.push(gauge(1))), ["nothing_leaked"]);
    let burst = Probe::Burst { tenant: "slots0".to_owned(), wanted: 2, admitted: 1, refused: 1 };
    assert_eq!(after(|history| history.probes.push(burst)), ["nothing_leaked"]);
    assert_eq!(after(|history| history.probes.push(gauge(-1))), ["nothing_leaked"], "unknown is no pass");
    assert_eq!(after(|history| history.probes.clear()), ["nothing_leaked"], "unknown is no pass");
}

#[test]
fn a_node_that_does_not_answer_after_a_fault_is_seen() {
    let flipped = after(|history| {
        for attempt in
            history.attempts.iter_mut().filter(|attempt| attempt.tenant == "sat0" && attempt.node == 3)
        {
            if attempt.inv > STARTED
                && attempt.inv < STARTED + 32 * SECOND
                && attempt.outcome == Answer::Limited
            {
                attempt.outcome = Answer::Unknown;
            }
            if attempt.inv > STARTED
                && attempt.inv < STARTED + 32 * SECOND
                && attempt.outcome == Answer::Admitted
            {
                attempt.node = 2;
            }
        }
    });
    assert_eq!(flipped, ["liveness"]);
}

#[test]
fn a_cluster_that_refuses_too_much_is_seen() {
    let flipped = after(|history| {
        let refused: Vec<u64> = history
            .attempts
            .iter_mut()
            .filter(|attempt| attempt.tenant == "sat0" && attempt.outcome == Answer::Admitted)
            .filter(|attempt| attempt.op % 8 == 0)
            .map(|attempt| {
                attempt.outcome = Answer::Limited;
                attempt.op
            })
            .collect();
        history.arrivals.retain(|arrival| !refused.contains(&arrival.op));
    });
    assert_eq!(flipped, ["usefulness"]);
}

/// What flips when a tenant with a budget of `limit` tokens makes ten requests, each of which holds 20 and uses 9, is refused one, and every
/// node says in the end that `used` is used; then `edit`.
fn with_a_budget(limit: u64, used: u64, edit: impl FnOnce(&mut History)) -> Vec<String> {
    after(|history| {
        let budget = Limits { budget: Some(limit), in_flight: None, ..SLOTS };
        history.plan.tenants.insert("budget0".to_owned(), budget);
        for number in 0..11 {
            ask(history, "budget0", (5 + number) * SECOND, 300 * MILLI, Some((3, "c")), number < 10);
        }
        history.attempts.last_mut().unwrap().code = "429 budget_exhausted".to_owned();
        for node in 1..=3 {
            let tenant = "budget0".to_owned();
            history.probes.push(Probe::Budget { node, tenant, used: Some(used), escrow: 0 });
        }
        edit(history);
    })
}

#[test]
fn a_budget_is_spent_to_its_end_and_not_beyond_it() {
    // The last one arrives when 81 are used, and holds 20.
    assert_eq!(with_a_budget(101, 90, |_| ()), [""; 0]);
    assert_eq!(with_a_budget(100, 90, |_| ()), ["budget_holds"]);
    let two_at_once = |history: &mut History| {
        let last = history.arrivals.len() - 1;
        history.arrivals[last - 1].end = history.arrivals[last].at + MILLI;
    };
    assert_eq!(with_a_budget(101, 90, two_at_once), ["budget_holds"], "one is open when the next arrives");
}

#[test]
fn an_answer_that_uses_more_than_was_held_goes_beyond_a_budget_by_that_and_no_more() {
    let excess = |by: u64| {
        move |history: &mut History| {
            let last = history.arrivals.len() - 1;
            history.arrivals[last].billed = 30;
            let ended = history.ended.len() - 1;
            (history.ended[ended].refunded, history.ended[ended].overage) = (0, by);
        }
    };
    assert_eq!(with_a_budget(101, 111, excess(10)), [""; 0]);
    assert_eq!(with_a_budget(100, 111, excess(10)), ["budget_holds"]);
}

#[test]
fn what_nodes_say_of_a_budget_in_the_end_is_what_was_billed() {
    assert_eq!(with_a_budget(101, 89, |_| ()), ["budget_holds"], "one token was lost");
    assert_eq!(with_a_budget(101, 91, |_| ()), ["budget_holds"], "one token was charged twice");
    let differently = |history: &mut History| {
        let tenant = "budget0".to_owned();
        history.probes.push(Probe::Budget { node: 2, tenant, used: Some(91), escrow: 0 });
    };
    assert_eq!(with_a_budget(101, 90, differently), ["budget_holds"]);
    let at_the_estimate = |history: &mut History| {
        history.attempts.iter_mut().for_each(|attempt| {
            attempt.complete &= attempt.tenant != "budget0" || attempt.inv > 6 * SECOND;
        })
    };
    // Its caller left: it may be charged what was held.
    assert_eq!(with_a_budget(112, 101, at_the_estimate), [""; 0]);
}

#[test]
fn a_budget_of_which_nothing_is_said_or_that_is_not_used_up_was_not_looked_at() {
    let silent =
        |history: &mut History| history.probes.retain(|probe| !matches!(probe, Probe::Budget { .. }));
    assert_eq!(with_a_budget(101, 90, silent), ["budget_holds"]);
    let never = |history: &mut History| history.attempts.last_mut().unwrap().code.clear();
    assert_eq!(with_a_budget(101, 90, never), ["budget_holds"]);
}

/// What flips when a key with a burst of two is used by two secrets, once a second by both, and is revoked; then `edit`.
fn with_a_key(edit: impl FnOnce(&mut History)) -> Vec<String> {
    after(|history| {
        history.plan.of_a_key = Some(Bucket { burst: 2, per_minute: 120 });
        history.plan.tenants.insert("rotated0".to_owned(), Limits { in_flight: None, ..SLOTS });
        for number in 0..12 {
            let at = (5 + number / 2) * SECOND;
            ask(history, "rotated0", at, 5 * MILLI, (number < 10).then_some((3, "c")), true);
            let attempt = history.attempts.last_mut().unwrap();
            attempt.secret = format!("rotated0/k1/{}", 1 + number % 2);
        }
        let (tenant, label) = ("rotated0".to_owned(), "k1".to_owned());
        let asked = 9 * SECOND + 400 * MILLI;
        history.revoked.push(Revoked { asked, at: Some(asked + 100 * MILLI), tenant, label });
        edit(history);
    })
}

#[test]
fn what_is_admitted_by_a_revoked_key_is_seen_and_so_is_a_bucket_for_each_secret() {
    assert_eq!(with_a_key(|_| ()), [""; 0]);
    assert_eq!(with_a_key(|history| history.revoked[0].at = Some(8 * SECOND + 500 * MILLI)), ["keys_hold"]);
    let third = |history: &mut History| {
        ask(history, "rotated0", 8 * SECOND, 5 * MILLI, Some((3, "c")), true);
        history.attempts.last_mut().unwrap().secret = "rotated0/k1/1".to_owned();
    };
    assert_eq!(with_a_key(third), ["keys_hold"]);
    let while_it_is_revoked = |history: &mut History| {
        third(history);
        history.revoked[0].asked = 7 * SECOND;
    };
    assert_eq!(with_a_key(while_it_is_revoked), [""; 0]);
    assert_eq!(with_a_key(|history| history.revoked.clear()), ["keys_hold"], "unknown is no pass");
}

#[test]
fn a_process_that_ends_unasked_is_seen() {
    let end = End { at: 50 * SECOND, node: 2, how: "signal: 6 (SIGABRT)".to_owned() };
    assert_eq!(after(|history| history.ends.push(end)), ["stays_up"]);
}

#[test]
fn a_second_cluster_is_seen() {
    assert_eq!(after(|history| history.views.push(view(2, END, "c2"))), ["one_cluster"]);
    assert_eq!(after(|history| history.windows[0].note = TOOK_ITS_PLACE.to_owned()), ["one_cluster"]);
}

#[test]
fn what_did_not_happen_was_not_kept() {
    assert_eq!(after(|history| history.plan.windows = 2), ["coverage"]);
    assert_eq!(after(|history| history.plan.admissions = 1_000_000), ["coverage"]);
    let asked = |kinds: &[&str]| kinds.iter().map(|kind| (*kind).to_owned()).collect();
    assert!(after(|history| history.plan.kinds = asked(&["kill"])).is_empty());
    assert_eq!(after(|history| history.plan.kinds = asked(&["kill", "frozen"])), ["coverage"]);
    let nobody = after(|history| {
        history.plan.kinds = asked(&["kill"]);
        history.plan.tenants.insert("sdk0".to_owned(), RATE);
    });
    assert_eq!(nobody, ["coverage"]);
    let idle =
        after(|history| history.attempts.retain(|attempt| attempt.inv < KILLED || attempt.inv > STARTED));
    assert_eq!(idle, ["coverage"]);
}

#[test]
fn an_edit_of_the_limits_allows_more_while_it_is_in_force_and_not_afterwards() {
    let more = |at: At| {
        move |history: &mut History| {
            history.windows[0].percent = Some(1_000);
            for _ in 0..9 {
                ask(history, "sat0", at, 5 * MILLI, Some((1, "a")), true);
            }
        }
    };
    assert_eq!(after(more(KILLED + MILLI)), [""; 0]);
    assert!(after(more(KILLED - SECOND)).contains(&"no_overspend".to_owned()));
    assert!(after(more(STARTED + 30 * SECOND)).contains(&"no_overspend".to_owned()));
}

#[test]
fn a_hidden_pause_excuses_a_burst_and_no_more() {
    let overspent = |more: usize| {
        move |history: &mut History| {
            history.windows[0].bounded = true;
            for _ in 0..more {
                ask(history, "sat0", KILLED + 200 * MILLI, 5 * MILLI, Some((1, "a")), true);
            }
        }
    };
    assert_eq!(after(overspent(3)), [""; 0]);
    assert!(after(overspent(30)).contains(&"no_overspend".to_owned()));
}
