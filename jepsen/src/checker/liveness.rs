//! `liveness`: after a fault is over, every living node answers for every tenant within [`PROMISED`]: admitted or refused by a limit, not
//! `limiter_unavailable`, and not silence. Looked at are tenants that are asked for all the time, by callers or by applications.

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::{At, Attempt, History, SECOND, Window};

/// What is asserted on a loaded machine with a lease of three seconds or less.
const PROMISED: At = 15 * SECOND;

/// How long each window took until all was answered again, in order; `None` where it was not seen.
pub fn recoveries(history: &History) -> Vec<Option<At>> {
    let answered = by_pair(history);
    history.windows.iter().map(|window| recovery(&answered, history, window).ok().flatten()).collect()
}

/// For each window, the longest that a node which it does not strike left a tenant without an answer: what a fault costs those who ask
/// elsewhere. `None` where it strikes all.
pub fn silences(history: &History) -> Vec<Option<At>> {
    let pairs = by_pair(history);
    let of = |window: &Window| {
        let beside = pairs
            .iter()
            .filter(|((_, node), _)| window.living.contains(node) && !window.victims.contains(node));
        let gaps = beside.filter_map(|(_, attempts)| {
            let answered = attempts.iter().filter(|attempt| attempt.outcome.is_decided());
            let mut answered: Vec<At> = answered.map(|attempt| attempt.com).collect();
            // Callers of a node overlap: who asked first need not be answered first.
            answered.sort_unstable();
            let from = answered.partition_point(|at| *at < window.begin).saturating_sub(1);
            let inside = answered[from..].windows(2).take_while(|pair| pair[0] < window.healed);
            inside.map(|pair| pair[1] - pair[0]).max()
        });
        gaps.max()
    };
    history.windows.iter().map(of).collect()
}

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let answered = by_pair(history);
    let (mut seen, mut unseen, mut longest) = (0, Vec::new(), 0);
    for window in &history.windows {
        match recovery(&answered, history, window) {
            Ok(Some(took)) if took > PROMISED => {
                return Verdict::Invalid(format!(
                    "{} ({}) was over at {}; it took {} ms until every node answered for every tenant",
                    window.nemesis,
                    window.what,
                    window.healed,
                    took / 1_000_000
                ));
            }
            Ok(Some(took)) => {
                seen += 1;
                longest = longest.max(took);
            }
            Ok(None) => unseen.push(window.nemesis.clone()),
            Err(witness) => return Verdict::Invalid(witness),
        }
    }
    match (seen, unseen.is_empty()) {
        (_, false) => Verdict::Unknown(format!("not asked for long enough after: {}", unseen.join(", "))),
        (0, _) => Verdict::Valid("no fault to recover from".to_owned()),
        _ => Verdict::Valid(format!("{seen} recoveries, the longest {} ms", longest / 1_000_000)),
    }
}

type Pairs<'a> = BTreeMap<(&'a str, u8), Vec<&'a Attempt>>;

/// The attempts of tenants that are asked for all the time, by tenant and node, in order.
fn by_pair(history: &History) -> Pairs<'_> {
    let mut pairs: Pairs<'_> = BTreeMap::new();
    let plan = &history.plan;
    let asked = |tenant: &String| plan.saturated.contains(tenant) || plan.applications.contains(tenant);
    for attempt in history.attempts.iter().filter(|attempt| asked(&attempt.tenant)) {
        pairs.entry((&attempt.tenant, attempt.node)).or_default().push(attempt);
    }
    for attempts in pairs.values_mut() {
        attempts.sort_by_key(|attempt| attempt.inv);
    }
    pairs
}

/// How long until the last pair was answered; `None` where the next fault or the end of the run came before that could be seen.
fn recovery(pairs: &Pairs<'_>, history: &History, window: &Window) -> Result<Option<At>, String> {
    let next = history.windows.iter().map(|window| window.begin).filter(|begin| *begin > window.healed).min();
    let until = next.unwrap_or(history.span().1).min(window.healed + PROMISED * 2);
    let (mut longest, mut looked) = (0, false);
    for ((tenant, node), attempts) in pairs {
        if !window.living.contains(node) {
            continue;
        }
        let after = attempts.partition_point(|attempt| attempt.inv < window.healed);
        let mut asked = attempts[after..].iter().take_while(|attempt| attempt.inv < until);
        let answer = asked.find(|attempt| attempt.outcome.is_decided());
        match answer {
            Some(attempt) => longest = longest.max(attempt.com.saturating_sub(window.healed)),
            None if until >= window.healed + PROMISED && attempts.len() > after => {
                return Err(format!(
                    "{} ({}) was over at {}; n{node} has not answered for {tenant} in the {} s that followed",
                    window.nemesis,
                    window.what,
                    window.healed,
                    (until - window.healed) / SECOND
                ));
            }
            None => return Ok(None),
        }
        looked = true;
    }
    Ok(looked.then_some(longest))
}
