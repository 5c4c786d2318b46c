//! `usefulness`: a cluster that refuses everything overspends nothing. While nothing is broken, each saturated tenant is admitted at least
//! 95 % of what one machine with its limits would admit of the same requests.

use super::Verdict;
use crate::history::{At, History, Limits, Outcome, SECOND};

/// The shortest time without a fault that is looked at.
const QUIET: At = 12 * SECOND;

/// How long after a fault things are not yet as they were.
const AFTERWARDS: At = 8 * SECOND;

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let stretches = quiet(history);
    if history.plan.saturated.is_empty() {
        return Verdict::Valid("no tenant is saturated by this workload".to_owned());
    }
    let (mut admitted_all, mut ideal_all) = (0, 0);
    for tenant in &history.plan.saturated {
        let limits = history.plan.tenants[tenant];
        let (mut admitted, mut ideal) = (0, 0);
        for (from, to) in &stretches {
            let mut asked: Vec<(At, bool)> = history
                .attempts
                .iter()
                .filter(|attempt| attempt.tenant == *tenant && (*from..*to).contains(&attempt.inv))
                .map(|attempt| (attempt.inv, attempt.outcome == Outcome::Admitted))
                .collect();
            asked.sort_unstable();
            admitted += asked.iter().filter(|(_, admitted)| *admitted).count() as u64;
            ideal += of_one_machine(asked.iter().map(|(at, _)| *at), limits);
        }
        if admitted * 100 < ideal * 95 {
            return Verdict::Invalid(format!(
                "{tenant}: {admitted} admitted while nothing was broken; one machine would have admitted {ideal}"
            ));
        }
        admitted_all += admitted;
        ideal_all += ideal;
    }
    match ideal_all {
        0 => Verdict::Unknown(format!("there were no {} s without a fault", QUIET / SECOND)),
        _ => Verdict::Valid(format!(
            "{admitted_all} admitted in {} quiet stretches; one machine would have admitted {ideal_all}",
            stretches.len()
        )),
    }
}

/// The times without a fault.
fn quiet(history: &History) -> Vec<(At, At)> {
    let (mut from, end) = history.span();
    let mut stretches = Vec::new();
    for window in &history.windows {
        stretches.push((from, window.begin));
        from = window.healed + AFTERWARDS;
    }
    stretches.push((from, end));
    stretches.retain(|(from, to)| to.saturating_sub(*from) >= QUIET);
    stretches
}

/// How many of these one bucket admits that begins empty.
pub(super) fn of_one_machine(asked: impl Iterator<Item = At>, limits: Limits) -> u64 {
    const MINUTE: u128 = 60_000_000_000;
    let full = u128::from(limits.burst) * MINUTE;
    let (mut level, mut last, mut admitted) = (0, None, 0);
    for at in asked {
        let passed = at - last.unwrap_or(at);
        level = (level + u128::from(passed) * u128::from(limits.per_minute)).min(full);
        last = Some(at);
        if level >= MINUTE {
            level -= MINUTE;
            admitted += 1;
        }
    }
    admitted
}
