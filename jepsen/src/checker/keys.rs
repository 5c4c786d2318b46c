//! `keys_hold`: once a revocation has returned, nothing is admitted by that key, through no node and by none of its secrets; and all secrets of
//! a key together have its one bucket, until its revocation is asked for: an owner that has heard of that knows the key's bucket no more, and
//! what a gateway that has yet to hear of it asks for meanwhile is bound by the tenant's limits alone.

use std::collections::BTreeMap;

use super::Verdict;
use super::no_overspend::certainly_over;
use crate::history::{Attempt, Bucket, History, Outcome, Revoked};

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let Some(bucket) = history.plan.of_a_key else {
        return Verdict::Valid("no key is rotated by this workload".to_owned());
    };
    match broken(history, bucket) {
        Err(witness) => Verdict::Invalid(witness),
        Ok((_, 0, _)) => Verdict::Unknown("nobody used a key that was revoked".to_owned()),
        Ok((_, _, 0)) => Verdict::Unknown("nobody was admitted by a rotated key".to_owned()),
        Ok((keys, refused, rotated)) => Verdict::Valid(format!(
            "{keys} keys; {refused} requests after {} revocations refused, {rotated} admitted by rotated keys",
            history.revoked.len()
        )),
    }
}

/// How many keys there were, how many requests came after their key's revocation, and how many were admitted by a second secret.
fn broken(history: &History, bucket: Bucket) -> Result<(usize, usize, usize), String> {
    let revoked: BTreeMap<(&str, &str), &Revoked> =
        history.revoked.iter().map(|one| ((&*one.tenant, &*one.label), one)).collect();
    let arrived: BTreeMap<u64, u64> =
        history.arrivals.iter().map(|arrival| (arrival.op, arrival.at)).collect();
    let mut spent: BTreeMap<(&str, &str), Vec<(u64, u64)>> = BTreeMap::new();
    let (mut refused, mut rotated) = (0, 0);
    for attempt in &history.attempts {
        let Some((label, generation)) = named(attempt) else { continue };
        let key = (&*attempt.tenant, label);
        let at = arrived.get(&attempt.op);
        let revocation = revoked.get(&key);
        let late = revocation.and_then(|revoked| revoked.at).is_some_and(|revoked| attempt.inv > revoked);
        if late && (at.is_some() || attempt.outcome.is_decided()) {
            return Err(format!(
                "attempt {} of {} by the key {label} (secret {generation}) at n{} came after that was revoked, and was {:?} ({}); {}",
                attempt.op,
                attempt.tenant,
                attempt.node,
                attempt.outcome,
                attempt.code,
                history.faults_around(attempt.inv, attempt.com)
            ));
        }
        refused += usize::from(late);
        rotated += usize::from(generation != "1" && attempt.outcome == Outcome::Admitted);
        let before = |at: &&u64| revocation.is_none_or(|revoked| **at < revoked.asked);
        if let Some(at) = at.filter(before) {
            spent.entry(key).or_default().push((attempt.inv, *at));
        }
    }
    for ((tenant, label), spent) in &spent {
        if let Some((from, to, excess)) = certainly_over(spent, bucket) {
            return Err(format!(
                "the key {label} of {tenant} (burst {}, {} a minute): {excess} too many from {from} to {to}; {}",
                bucket.burst,
                bucket.per_minute,
                history.faults_around(from, to)
            ));
        }
    }
    Ok((spent.len(), refused, rotated))
}

/// The label of the key that an attempt is made with, and which of its secrets it is; nothing for a tenant's own key.
fn named(attempt: &Attempt) -> Option<(&str, &str)> {
    attempt.secret.split_once('/')?.1.split_once('/')
}
