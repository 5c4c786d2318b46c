//! `sdks_heed`: what official SDKs are told is what they can act upon, and they do: their retries are the gateway's to steer.
//!
//! - Nothing is answered but a provider's answer, a limit, a duplicate, or that nobody can decide: no other error, and no other 5xx.
//! - Every refusal says either not to come back or after how long, which is no more than [`PATIENCE`].
//! - A call that was told not to come back ends there; one that was told when does not come before; none comes more than twice again.
//! - A call ends well where its last attempt was answered, and else by what its SDK raises for that answer or for none.
//!
//! How a stream ends that its gateway did not live to end is not asked: an SDK that reads one does not come back by itself.

use std::collections::BTreeMap;

use super::Verdict;
use crate::history::{Attempt, History, MILLI, OfSdk, Outcome, SECOND};

/// The longest that an SDK is asked to wait: a minute, and what spreads callers over the time after it.
const PATIENCE: u64 = 62 * SECOND;

/// How often an SDK comes back, as it is shipped.
const RETRIES: u64 = 2;

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let mut calls: BTreeMap<u64, Vec<(&Attempt, &OfSdk)>> = BTreeMap::new();
    for attempt in &history.attempts {
        if let Some(sdk) = &attempt.sdk {
            calls.entry(sdk.call).or_default().push((attempt, sdk));
        }
    }
    if history.plan.applications.is_empty() && calls.is_empty() {
        return Verdict::Valid("no application uses an SDK in this workload".to_owned());
    }
    let (mut attempts, mut stopped, mut waited) = (0, 0, 0);
    for call in calls.values_mut() {
        call.sort_by_key(|(attempt, _)| attempt.inv);
        if let Err((attempt, what)) = broken(call) {
            return Verdict::Invalid(format!(
                "attempt {} of {} at n{} ({}) {what}; {}",
                attempt.op,
                attempt.tenant,
                attempt.node,
                attempt.code,
                history.faults_around(attempt.inv, attempt.com)
            ));
        }
        attempts += call.len();
        stopped += call.iter().filter(|(_, sdk)| sdk.stop).count();
        waited += call.windows(2).filter(|pair| pair[0].1.wait.is_some()).count();
    }
    let what = format!(
        "{} calls of SDKs, {attempts} attempts; {stopped} told not to come back, {waited} came back when they were told",
        calls.len()
    );
    if stopped == 0 || waited == 0 { Verdict::Unknown(what) } else { Verdict::Valid(what) }
}

type Broken<'a> = (&'a Attempt, String);

/// The attempts of one call, in order.
fn broken<'a>(call: &[(&'a Attempt, &OfSdk)]) -> Result<(), Broken<'a>> {
    for (attempt, sdk) in call {
        let refused =
            is_refused(attempt).ok_or_else(|| (*attempt, "is nothing that a caller is told".to_owned()))?;
        let fits = |wait: u64| (MILLI..=PATIENCE).contains(&wait);
        if refused && !sdk.stop && !sdk.wait.is_some_and(fits) {
            return Err((attempt, format!("says neither not to come back nor when: {:?}", sdk.wait)));
        }
        if sdk.retry > RETRIES {
            return Err((attempt, format!("is the retry {} of its call", sdk.retry)));
        }
    }
    for pair in call.windows(2) {
        let ((attempt, sdk), (next, _)) = (pair[0], pair[1]);
        if sdk.stop {
            return Err((attempt, format!("said not to come back, and attempt {} did", next.op)));
        }
        // The clock that a process sleeps by is slewed, that of the stamps is not.
        let wait = sdk.wait.unwrap_or(0);
        let after = next.inv.saturating_sub(attempt.com);
        if after < wait - wait / 100 {
            return Err((
                attempt,
                format!(
                    "said to wait {} ms, and attempt {} came after {} ms",
                    wait / MILLI,
                    next.op,
                    after / MILLI
                ),
            ));
        }
    }
    // The run may end before the call does.
    let Some((attempt, Some(ended))) = call.last().map(|(attempt, sdk)| (*attempt, sdk.ended.as_deref()))
    else {
        return Ok(());
    };
    if ends_so(attempt, ended) { Ok(()) } else { Err((attempt, format!("ended its call as {ended:?}"))) }
}

/// Whether a caller was refused; nothing where it was told what no caller should be.
fn is_refused(attempt: &Attempt) -> Option<bool> {
    match attempt.outcome {
        Outcome::Admitted => Some(false),
        Outcome::Limited | Outcome::Unavailable | Outcome::Duplicate => Some(true),
        // Without a status there was no answer.
        Outcome::NotSent | Outcome::Unknown => {
            (!attempt.code.starts_with(|first: char| first.is_ascii_digit())).then_some(false)
        }
    }
}

/// Whether an SDK may end a call so after this attempt.
fn ends_so(attempt: &Attempt, ended: &str) -> bool {
    match attempt.outcome {
        Outcome::Admitted => match ended {
            "answer" | "left" => true,
            // Its gateway died, or stood still, before the end of the answer.
            _ => is_of_the_connection(ended),
        },
        Outcome::Limited => ended == "RateLimitError",
        Outcome::Duplicate => ended == "ConflictError",
        Outcome::Unavailable => matches!(ended, "InternalServerError" | "ServiceUnavailableError"),
        Outcome::NotSent | Outcome::Unknown => is_of_the_connection(ended),
    }
}

/// What is raised for a connection that cannot be had, breaks or stays silent; in the middle of a stream that is the library's own class.
fn is_of_the_connection(ended: &str) -> bool {
    matches!(
        ended,
        "APIConnectionError" | "APITimeoutError" | "RemoteProtocolError" | "ReadError" | "ReadTimeout"
    )
}
