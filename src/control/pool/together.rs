//! Purses and a pool together, through a log that takes its time: what the guard is worth, and what it costs.

use std::collections::VecDeque;

use proptest::prelude::*;
use tollgate_cluster::id::SessionId;

use super::*;
use crate::limit::{Haste, Lack, Moment, Purse, Rate};

const MILLI: u64 = 1_000_000;

/// How far apart draws are that nobody waits for, in milliseconds.
const CALM: u64 = 1_000;

/// A node: its purse, and requests that wait for a grant.
struct Node {
    purse: Purse,
    waiting: VecDeque<(u64, u64)>,
    /// When its draw reaches the log, and when its answer comes back.
    commit: Option<u64>,
    answer: Option<(u64, Granted)>,
    /// When it last made one.
    drawn: u64,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Result {
    paid: u64,
    requests: u64,
    waited: u64,
    denied: u64,
    draws: u64,
    busiest_minute: u64,
    per_node: [u64; 3],
    offered: [u64; 3],
}

/// Three nodes for so many seconds; each asks for `demand[n]` tokens a second on average, in requests of up to `largest`.
fn run(terms: Terms, seconds: u64, demand: [u64; 3], largest: u64, seed: u64) -> Result {
    let mut pools = Pools::default();
    pools.adopt(LogTime(0), &BTreeMap::from([("main".into(), terms)]));
    let mut nodes = [0, 1, 2].map(|_| Node {
        purse: Purse::new(terms),
        waiting: VecDeque::new(),
        commit: None,
        answer: None,
        drawn: 0,
    });
    let mut chance = seed | 1;
    let mut random = move |below: u64| {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        chance % below.max(1)
    };
    let mut result = Result::default();
    let mut history: VecDeque<(u64, u64)> = VecDeque::new();
    let mut in_window = 0;
    for milli in 0..seconds * 1_000 {
        let now = Moment::from_nanos(milli * MILLI);
        for (which, node) in nodes.iter_mut().enumerate() {
            // One request every `gap` milliseconds on average; sizes from 1 to `largest`, half of that on average.
            if random(largest * 500 + 1) < demand[which] {
                result.requests += 1;
                let need = 1 + random(largest);
                result.offered[which] += need;
                node.waiting.push_back((milli, need));
            }
            let mut left = VecDeque::new();
            while let Some((came, need)) = node.waiting.pop_front() {
                let units = Units([need, 0, 0, 1]);
                match node.purse.check(now, units) {
                    Ok(()) => {
                        node.purse.debit(now, units);
                        result.paid += need;
                        result.per_node[which] += need;
                        history.push_back((milli, need));
                        in_window += need;
                        result.waited += u64::from(came < milli);
                    }
                    Err(Lack::Later { .. }) => {
                        if came == milli {
                            node.purse.miss(now, units);
                        }
                        // It waits for a round or two.
                        if milli < came + 500 {
                            left.push_back((came, need));
                        } else {
                            result.denied += 1;
                        }
                    }
                    Err(_) => result.denied += 1,
                }
            }
            node.waiting = left;
            if node.commit == Some(milli) {
                node.commit = None;
                let draw = *node.purse.flight().unwrap();
                let command =
                    PoolCommand::Draw { pool: "main".into(), session: SessionId(which as u128), draw };
                let answer =
                    pools.apply(LogTime(milli * MILLI), |_| Some(Standing::Serving), &command).unwrap();
                node.answer = Some((milli + 3, answer));
            }
            if let Some((_, granted)) = node.answer.take_if(|(at, _)| *at == milli) {
                node.purse.granted(&granted);
            }
            let due = node.purse.due(now).is_some_and(|(due, haste)| {
                let pause = if haste == Haste::Calm { CALM } else { 0 };
                due <= now && milli >= node.drawn + pause
            });
            if due && node.purse.poll(now).is_some() {
                result.draws += 1;
                node.drawn = milli;
                node.commit = Some(milli + 5);
            }
        }
        while history.front().is_some_and(|(at, _)| at + 60_000 <= milli) {
            in_window -= history.pop_front().map_or(0, |(_, need)| need);
        }
        result.busiest_minute = result.busiest_minute.max(in_window);
    }
    result
}

/// A ceiling of 600,000 tokens a minute with the default guard and burst.
fn account(refunds: bool) -> Terms {
    let tokens = Rate::new(510_000, 60_000);
    Terms::new([Some(tokens), None, None, Some(Rate::new(60_000, 6_000))], refunds)
}

#[test]
fn a_pool_that_is_asked_for_more_than_it_has_hands_out_all_of_its_guard() {
    for demand in [[4_500, 4_500, 4_500], [12_000, 800, 500], [9_000, 9_000, 0]] {
        let result = run(account(false), 300, demand, 3_000, 7);
        assert!(result.busiest_minute <= 570_000, "{result:?}");
        // Of what five minutes hand out, beside the burst at the beginning.
        assert!(result.paid >= 5 * 510_000 * 98 / 100, "{result:?}");
        assert!(result.draws <= 300 * 15, "{result:?}");
    }
}

#[test]
fn who_asks_for_less_than_its_share_is_never_short_while_others_want_everything() {
    let result = run(account(false), 120, [1_000, 15_000, 15_000], 1_000, 3);
    // It is short only of what comes faster than its share for a moment.
    assert!(result.per_node[0] * 100 >= result.offered[0] * 90, "{result:?}");
    let (second, third) = (result.per_node[1], result.per_node[2]);
    assert!(second.abs_diff(third) * 20 <= second, "{result:?}");
}

#[test]
fn while_there_is_enough_hardly_anybody_waits_and_draws_are_few() {
    let result = run(account(true), 600, [2_000, 1_500, 800], 400, 5);
    assert_eq!(result.denied, 0, "{result:?}");
    assert!(result.waited * 1_000 <= result.requests, "{result:?}");
    assert!(result.draws <= 600 * 4, "{result:?}");
}

#[test]
fn two_large_requests_do_not_wait_for_each_other_for_ever() {
    // Each needs more than half of the burst.
    let terms = Terms::new([Some(Rate::new(60_000, 10_000)), None, None, None], false);
    let mut paid = 0;
    for seed in 1..5 {
        let result = run(terms, 60, [40_000, 40_000, 0], 9_999, seed);
        paid += result.paid;
    }
    assert!(paid >= 4 * 60_000 * 9 / 10, "{paid}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Whatever is asked for: never more in a minute than burst and guard.
    #[test]
    fn no_minute_is_sent_more_than_the_ceiling(
        demand in proptest::array::uniform3(0..20_000u64),
        largest in 100..20_000u64,
        seed: u64,
    ) {
        let result = run(account(false), 90, demand, largest, seed);
        prop_assert!(result.busiest_minute <= 570_000, "{result:?}");
    }
}
