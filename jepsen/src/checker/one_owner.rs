//! `one_owner`: of each shard, the decisions of one claim (a session, and the epoch that it holds the shard since) end before those of
//! another begin.
//!
//! A decision happened somewhere between two instants, so two claims are only wrong when neither can have been wholly before the other:
//! `max lo(A) > min hi(B)` and `max lo(B) > min hi(A)`. Refusals are decisions too: who may not answer may not refuse either.

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::{At, Decided, History, MILLI};

/// When a claim was certainly in use.
#[derive(Clone, Copy, Debug)]
struct Used {
    node: u8,
    /// The latest `lo`: it still decided then.
    last: At,
    /// The earliest `hi`: it had decided by then.
    first: At,
}

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    if !history.plan.audited {
        return Verdict::Unknown("the owners kept no audit".to_owned());
    }
    let mut claims: BTreeMap<u16, BTreeMap<(&str, u64), Used>> = BTreeMap::new();
    // An owner that does not know its claim's epoch at that moment means the one before: lines of a node are in order.
    let mut epochs: BTreeMap<(&str, u16), u64> = BTreeMap::new();
    let mut decided: Vec<&Decided> = history.decided.iter().collect();
    decided.sort_by_key(|decided| decided.hi);
    for decided in decided {
        let known = epochs.entry((&decided.session, decided.shard)).or_insert(decided.epoch);
        if decided.epoch != 0 {
            *known = decided.epoch;
        }
        let claim = claims.entry(decided.shard).or_default().entry((&decided.session, *known));
        let used = claim.or_insert(Used { node: decided.node, last: decided.lo, first: decided.hi });
        used.last = used.last.max(decided.lo);
        used.first = used.first.min(decided.hi);
    }
    let (mut overlaps, mut hidden, mut many) = (Vec::new(), 0, 0);
    for (shard, claims) in &claims {
        let mut claims: Vec<_> = claims.iter().collect();
        many += claims.len();
        claims.sort_by_key(|(_, used)| used.first);
        for (place, (one, used)) in claims.iter().enumerate() {
            for (other, later) in claims[place + 1..].iter().take_while(|(_, later)| later.first < used.last)
            {
                if later.last <= used.first {
                    continue;
                }
                let (from, to) = (later.first, used.last.min(later.last));
                // A pause that no clock shows may leave the old owner answering: bounded, not exact.
                let excused = |node: u8| {
                    let around = |at: At, begin: At| begin <= at && at <= begin + 60_000 * MILLI;
                    history.windows.iter().any(|window| {
                        window.bounded && window.victims.contains(&node) && around(to, window.begin)
                    })
                };
                if excused(used.node) || excused(later.node) {
                    hidden += 1;
                    continue;
                }
                overlaps.push((to.saturating_sub(from), format!(
                    "shard {shard}: n{} (session {}, epoch {}) still decides at {} though n{} (session {}, epoch {}) has decided at {}, {} ms before; {}",
                    used.node, one.0, one.1, used.last, later.node, other.0, other.1, later.first,
                    (used.last - later.first) / MILLI, history.faults_around(later.first, used.last)
                )));
            }
        }
    }
    if let Some((_, witness)) = overlaps.iter().min() {
        return Verdict::Invalid(format!("{witness} ({} such pairs)", overlaps.len()));
    }
    match history.decided.len() {
        0 => Verdict::Unknown("no owner decided anything".to_owned()),
        decisions => {
            let excused = if hidden > 0 {
                format!("; {hidden} overlaps that hidden pauses excuse")
            } else {
                String::new()
            };
            Verdict::Valid(format!(
                "{decisions} decisions under {many} claims on {} shards{excused}",
                claims.len()
            ))
        }
    }
}
