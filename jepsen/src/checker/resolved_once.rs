//! `resolved_once`: what reaches the provider was admitted, once, and ends once, at what the provider billed.
//!
//! A gateway asks under another id than the one it names, which nothing outside knows, in three cases: the answer to the first came too late
//! (then an owner has admitted that one), its session was replaced (then the new id is of another life of the same node), or, where there are
//! budgets, it had reported the first as void before it asked (then the new one is a later one of the same life). The reservation that stands in
//! is one of that tenant and that gateway, admitted between the attempt and its arrival, that no other arrival is by and that was not taken
//! back.
//!
//! - An attempt arrives at the provider at most once, no two by the same decision, and none that its caller was refused.
//! - With the audit: an arrival's decision is one that an owner admitted, or one of the same tenant stands in for it; one session ends an id at most once; and where the bill was told
//!   and the caller stayed to the end, held − refunded + overage is what was billed, id by id.
//! - Two arrivals under one idempotency key were not admitted by the same session: an owner that crashes forgets keys, a living one does not.

use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use crate::history::{At, Decided, History, Outcome, life};

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    match broken(history) {
        Err(witness) => Verdict::Invalid(witness),
        Ok(_) if history.arrivals.is_empty() => {
            Verdict::Unknown("nothing arrived at the provider".to_owned())
        }
        Ok(settled) => Verdict::Valid(format!(
            "{} arrivals, {} ends, {settled} settled at what was billed",
            history.arrivals.len(),
            history.ended.len()
        )),
    }
}

fn broken(history: &History) -> Result<usize, String> {
    forwarded_once(history)?;
    if !history.plan.audited {
        return Ok(0);
    }
    // Given back whole: it came too late, and nothing was sent by it.
    let given_back: BTreeSet<(&str, &str, u64)> =
        history.ended.iter().map(|ended| (&*ended.id, &*ended.session, ended.refunded)).collect();
    let mut admitted: BTreeMap<&str, Vec<&Decided>> = BTreeMap::new();
    for decided in history.decided.iter().filter(|decided| decided.admitted) {
        if !given_back.contains(&(&*decided.id, &*decided.session, decided.cost)) {
            admitted.entry(&decided.id).or_default().push(decided);
        }
    }
    all_admitted(history, &admitted)?;
    one_key_one_dispatch(history, &admitted)?;
    settled_as_billed(history, &admitted)
}

fn forwarded_once(history: &History) -> Result<(), String> {
    let (mut ops, mut decisions) = (BTreeMap::new(), BTreeMap::new());
    for arrival in &history.arrivals {
        let twice = ops.insert(arrival.op, arrival).or(decisions.insert(&arrival.decision, arrival));
        if let Some(first) = twice {
            return Err(format!(
                "attempt {} (decision {}) arrived at {} and attempt {} (decision {}) at {}; {}",
                first.op,
                first.decision,
                first.at,
                arrival.op,
                arrival.decision,
                arrival.at,
                history.faults_around(first.at, arrival.at)
            ));
        }
    }
    for attempt in &history.attempts {
        let refused = matches!(attempt.outcome, Outcome::Limited | Outcome::Unavailable | Outcome::Duplicate);
        if let Some(arrival) = ops.get(&attempt.op).filter(|_| refused) {
            return Err(format!(
                "attempt {} of {} was refused ({}) and arrived at {}; {}",
                attempt.op,
                attempt.tenant,
                attempt.code,
                arrival.at,
                history.faults_around(attempt.inv, attempt.com)
            ));
        }
    }
    Ok(())
}

fn all_admitted(history: &History, admitted: &BTreeMap<&str, Vec<&Decided>>) -> Result<(), String> {
    let attempts = history.by_op();
    let used: BTreeSet<&str> = history.arrivals.iter().map(|arrival| &*arrival.decision).collect();
    let ever: BTreeSet<&str> =
        history.decided.iter().filter(|decided| decided.admitted).map(|decided| &*decided.id).collect();
    // A node's lives are those by which it has sent anything.
    let nodes: BTreeMap<&str, u8> =
        history.arrivals.iter().map(|arrival| (life(&arrival.decision), arrival.node)).collect();
    let reports = history.plan.tenants.values().any(|limits| limits.budget.is_some());
    // What was admitted under an id that no arrival names, by tenant, gateway and time.
    let mut unnamed: BTreeMap<(&str, u8), BTreeSet<(At, &str)>> = BTreeMap::new();
    for decided in admitted.values().flatten().filter(|decided| !used.contains(&*decided.id)) {
        if let Some(node) = nodes.get(life(&decided.id)) {
            unnamed.entry((&decided.tenant, *node)).or_default().insert((decided.lo, &decided.id));
        }
    }
    let mut arrivals: Vec<_> =
        history.arrivals.iter().filter(|arrival| !admitted.contains_key(&*arrival.decision)).collect();
    // Whose time ends first takes the first that fits: no other choice leaves more for the rest.
    arrivals.sort_by_key(|arrival| arrival.at);
    for arrival in arrivals {
        let stands_in = attempts.get(&arrival.op).and_then(|attempt| {
            let unnamed = unnamed.get_mut(&(&*attempt.tenant, arrival.node))?;
            let named = &*arrival.decision;
            let later = |id: &str| reports && id > named;
            let may = |id: &str| ever.contains(named) || life(id) != life(named) || later(id);
            let first = *unnamed.range((attempt.inv, "")..(arrival.at, "")).find(|(_, id)| may(id))?;
            Some(unnamed.remove(&first))
        });
        if stands_in.is_none() {
            return Err(format!(
                "attempt {} arrived at {} by decision {}, which no owner has admitted, nor another in its place; {}",
                arrival.op,
                arrival.at,
                arrival.decision,
                history.faults_around(arrival.at, arrival.at)
            ));
        }
    }
    Ok(())
}

fn one_key_one_dispatch(history: &History, admitted: &BTreeMap<&str, Vec<&Decided>>) -> Result<(), String> {
    let attempts = history.by_op();
    let mut sessions: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    for arrival in &history.arrivals {
        let Some(attempt) = attempts.get(&arrival.op).filter(|attempt| attempt.keyed) else { continue };
        // An answer that was given twice is one admission.
        let by: BTreeSet<&str> =
            admitted.get(&*arrival.decision).into_iter().flatten().map(|decided| &*decided.session).collect();
        let before = sessions.entry(attempt.request).or_default();
        for session in by {
            if !before.insert(session) {
                return Err(format!(
                    "request {} of {} was dispatched twice under one idempotency key, both times by session {session}: attempt {} at {}; {}",
                    attempt.request,
                    attempt.tenant,
                    arrival.op,
                    arrival.at,
                    history.faults_around(arrival.at, arrival.at)
                ));
            }
        }
    }
    Ok(())
}

fn settled_as_billed(history: &History, admitted: &BTreeMap<&str, Vec<&Decided>>) -> Result<usize, String> {
    let mut ends = BTreeMap::new();
    for ended in history.ended.iter().filter(|ended| ended.how == "now" || ended.how == "late") {
        if let Some(first) = ends.insert((&*ended.id, &*ended.session), ended) {
            return Err(format!(
                "{} of {} ended twice at session {}: {} at {}, {} at {}; {}",
                ended.id,
                ended.tenant,
                ended.session,
                first.how,
                first.at,
                ended.how,
                ended.at,
                history.faults_around(first.at, ended.at)
            ));
        }
    }
    let attempts = history.by_op();
    let mut settled = 0;
    for arrival in history.arrivals.iter().filter(|arrival| arrival.reported && arrival.whole) {
        let stayed = attempts
            .get(&arrival.op)
            .is_some_and(|attempt| attempt.outcome == Outcome::Admitted && attempt.complete);
        for decided in admitted.get(&*arrival.decision).into_iter().flatten() {
            let Some(ended) = ends.get(&(&*decided.id, &*decided.session)).filter(|_| stayed) else {
                continue;
            };
            let charged = decided.cost + ended.overage - ended.refunded.min(decided.cost);
            if charged != arrival.billed {
                return Err(format!(
                    "attempt {} (decision {}): {} billed, {charged} settled (held {}, refunded {}, overage {}); {}",
                    arrival.op,
                    arrival.decision,
                    arrival.billed,
                    decided.cost,
                    ended.refunded,
                    ended.overage,
                    history.faults_around(arrival.at, ended.at)
                ));
            }
            settled += 1;
        }
    }
    Ok(settled)
}
