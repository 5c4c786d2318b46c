//! `budget_holds`: what the provider has billed of a budget and what is held for requests that are open never come to more than the budget, but
//! for answers that used more than was held for them. And in the end every node says the same of it: used is what was billed, where the
//! bill was told and heard, and for the rest at least what was billed and at most what was held.
//!
//! Once a budget is used up nothing more is admitted of it: one request more, with what is held for it, is too much at the instant at which
//! it arrives.

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::{Arrival, At, Attempt, Decided, History, Outcome, Probe, SECOND};

/// The code of a refusal because a budget is used up.
const USED_UP: &str = "budget_exhausted";

/// A gateway that is struck so soon after an answer may have had no time to write down what it came to: it is charged what was held.
const UNWRITTEN: At = 2 * SECOND;

/// One request of a budget: what is known of it.
struct Spent<'a> {
    arrival: &'a Arrival,
    /// What its owner held for it; nothing where the audit does not name it.
    held: Option<u64>,
    /// The bill was told, the caller heard the end, and so did the gateway's journal.
    certain: bool,
}

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let budgets =
        history.plan.tenants.iter().filter_map(|(tenant, limits)| Some((&**tenant, limits.budget?)));
    let budgets: Vec<(&str, u64)> = budgets.collect();
    if budgets.is_empty() {
        return Verdict::Valid("no tenant of this workload has a budget".to_owned());
    }
    if !history.plan.audited {
        return Verdict::Unknown("the owners kept no audit of what they held".to_owned());
    }
    let (mut used_up, mut requests, mut unread) = (0, 0, Vec::new());
    for (tenant, limit) in &budgets {
        let spent = spent(history, tenant);
        requests += spent.len();
        let held = never_beyond(history, tenant, *limit, &spent).and_then(|()| {
            let said = said_in_the_end(history, tenant)?;
            said.as_ref().map_or(Ok(()), |said| adds_up(tenant, *limit, &spent, said))?;
            Ok(said.is_some())
        });
        match held {
            Err(witness) => return Verdict::Invalid(witness),
            Ok(true) => {}
            Ok(false) => unread.push(*tenant),
        }
        let refused = |attempt: &Attempt| attempt.tenant == *tenant && attempt.code.ends_with(USED_UP);
        used_up += usize::from(history.attempts.iter().any(refused));
    }
    if !unread.is_empty() {
        return Verdict::Unknown(format!("nobody said in the end what is used of {}", unread.join(", ")));
    }
    match used_up {
        0 => Verdict::Unknown("no budget was used up".to_owned()),
        _ => Verdict::Valid(format!("{used_up} of {} budgets used up, {requests} requests", budgets.len())),
    }
}

/// The requests of `tenant` that reached the provider.
fn spent<'a>(history: &'a History, tenant: &str) -> Vec<Spent<'a>> {
    let attempts = history.by_op();
    let own = |decided: &&Decided| decided.admitted && decided.tenant == tenant;
    let held: BTreeMap<&str, u64> =
        history.decided.iter().filter(own).map(|decided| (&*decided.id, decided.cost)).collect();
    let of = |arrival: &'a Arrival| {
        let attempt = attempts.get(&arrival.op).filter(|attempt| attempt.tenant == tenant)?;
        let heard = attempt.outcome == Outcome::Admitted && attempt.complete;
        let struck = history.windows.iter().any(|window| {
            window.victims.contains(&arrival.node)
                && window.begin <= arrival.end + UNWRITTEN
                && arrival.at <= window.healed + UNWRITTEN
        });
        let held = held.get(&*arrival.decision).copied();
        let certain = arrival.reported && arrival.whole && heard && !struck && held.is_some();
        Some(Spent { arrival, held, certain })
    };
    history.arrivals.iter().filter_map(of).collect()
}

/// At every instant: billed and held are at most the limit and what was used beyond what was held.
fn never_beyond(history: &History, tenant: &str, limit: u64, spent: &[Spent<'_>]) -> Result<(), String> {
    let mut moves: Vec<(At, i128)> = Vec::new();
    for Spent { arrival, held, .. } in spent {
        let held = i128::from(held.unwrap_or(0));
        // What goes beyond the limit by an answer's own excess is allowed, so it counts for as much as was held.
        moves.push((arrival.at, held));
        moves.push((arrival.end.max(arrival.at), i128::from(arrival.billed).min(held) - held));
    }
    // What is freed at an instant may have been before what is held at it.
    moves.sort_unstable();
    let (mut level, mut count) = (0, 0);
    for (at, amount) in moves {
        level += amount;
        count += u64::from(amount > 0);
        if level > i128::from(limit) {
            return Err(format!(
                "{tenant} (a budget of {limit} tokens): {level} billed and held at {at}, of {count} requests; {}",
                history.faults_around(at, at)
            ));
        }
    }
    Ok(())
}

/// What all nodes say of the budget in the end, if somebody does.
fn said_in_the_end(history: &History, whose: &str) -> Result<Option<(u64, u64)>, String> {
    let mut said: Option<(u8, u64, u64)> = None;
    for probe in &history.probes {
        let Probe::Budget { node, tenant, used, escrow } = probe else { continue };
        let Some(used) = used.filter(|_| tenant == whose) else { continue };
        match said {
            Some((first, other, _)) if other != used => {
                return Err(format!(
                    "{whose}: n{first} says that {other} is used of its budget, n{node} says {used}"
                ));
            }
            _ => said = Some((*node, used, *escrow)),
        }
    }
    Ok(said.map(|(_, used, escrow)| (used, escrow)))
}

/// What was said in the end is what was billed.
fn adds_up(tenant: &str, limit: u64, spent: &[Spent<'_>], said: &(u64, u64)) -> Result<(), String> {
    let (used, escrow) = *said;
    let (mut billed, mut least, mut most, mut beyond) = (0, 0, 0, 0);
    for Spent { arrival, held, certain } in spent {
        billed += arrival.billed;
        beyond += arrival.billed.saturating_sub(held.unwrap_or(0));
        least += if *certain { arrival.billed } else { 0 };
        most += if *certain { arrival.billed } else { arrival.billed.max(held.unwrap_or(0)) };
    }
    let unnamed = spent.iter().any(|spent| spent.held.is_none());
    let problem = if used < least {
        format!("{used} is used in the end, {least} was billed and told")
    } else if used + escrow < billed {
        format!("{used} is used and {escrow} held in the end, {billed} was billed")
    } else if used > most && !unnamed {
        format!("{used} is used in the end, and no more than {most} was billed and held")
    } else if used + escrow > limit + beyond {
        format!("{used} is used and {escrow} held in the end, {beyond} of it beyond what was held")
    } else {
        return Ok(());
    };
    Err(format!("{tenant} (a budget of {limit} tokens): {problem}"))
}
