//! `in_flight`: at every instant no more of a tenant's requests run at the provider than it may have open.
//!
//! Not counted, as is not promised: what a gateway ran whose session was fenced meanwhile. Its slots are free then though the provider still
//! works. That can be only where a fault struck the gateway, and never where the same session has used another grant since: that takes
//! a lease, and an id names the session that it was made by.

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::{Arrival, At, History, MILLI, life};

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let attempts = history.by_op();
    let lived = lived_until(history);
    let mut running: BTreeMap<&str, Vec<(At, i64, u64)>> = BTreeMap::new();
    let mut skipped = 0;
    for arrival in &history.arrivals {
        let Some(attempt) = attempts.get(&arrival.op) else { continue };
        let bounded =
            history.plan.tenants.get(&attempt.tenant).is_some_and(|limits| limits.in_flight.is_some());
        if !bounded {
            continue;
        }
        let ran_on = lived.get(life(&arrival.decision)).is_some_and(|until| *until >= arrival.end);
        if !ran_on && is_struck(history, arrival) {
            skipped += 1;
            continue;
        }
        let events = running.entry(&attempt.tenant).or_default();
        events.push((arrival.at, 1, arrival.op));
        // A gateway that lets go frees the slot at once, and the provider hears of it later: all that is certain is that it ran until the
        // caller left, or until the answer was over.
        let end = if arrival.whole { arrival.end } else { arrival.end.min(attempt.stayed).max(arrival.at) };
        events.push((end, -1, arrival.op));
    }
    let mut counted = 0;
    for (tenant, mut events) in running {
        let most = history.plan.tenants[tenant].in_flight.unwrap_or(u64::MAX);
        counted += events.len() / 2;
        // What ends at an instant makes room for what begins at it.
        events.sort_by_key(|(at, step, _)| (*at, *step));
        let (mut open, mut ops) = (0_i64, Vec::new());
        for (at, step, op) in events {
            open += step;
            if step > 0 {
                ops.push(op);
            } else {
                ops.retain(|running| *running != op);
            }
            if u64::try_from(open).unwrap_or(0) > most {
                return Verdict::Invalid(format!(
                    "{tenant}: {open} run at {at}, {most} may: attempts {ops:?}; {}",
                    history.faults_around(at, at)
                ));
            }
        }
    }
    match counted {
        0 => Verdict::Valid("no tenant with slots asked for anything".to_owned()),
        _ => Verdict::Valid(format!(
            "{counted} requests that hold slots; {skipped} of struck gateways not counted"
        )),
    }
}

/// Until when each life of a gateway was certainly not fenced: it used what it was granted then, under a lease of its own.
fn lived_until(history: &History) -> BTreeMap<&str, At> {
    let admitted = history.decided.iter().filter(|decided| decided.admitted);
    let admitted: BTreeMap<&str, At> = admitted.map(|decided| (&*decided.id, decided.lo)).collect();
    let mut until = BTreeMap::new();
    for arrival in &history.arrivals {
        if let Some(granted) = admitted.get(&*arrival.decision) {
            let until: &mut At = until.entry(life(&arrival.decision)).or_default();
            *until = (*granted).max(*until);
        }
    }
    until
}

/// Whether a fault may have had the arrival's gateway fenced while it ran. Who is condemned is so within a lease of the fault's end, and
/// begins nothing when the last lease is over that it had then.
fn is_struck(history: &History, arrival: &Arrival) -> bool {
    let afterwards = 2 * history.plan.lease + 500 * MILLI;
    history.windows.iter().any(|window| {
        window.victims.contains(&arrival.node)
            && window.begin <= arrival.end
            && window.healed + afterwards >= arrival.at
    })
}
