//! What applications do with official SDKs, edited: what an SDK was told, and what it made of that.

use super::*;
use crate::history::OfSdk;

/// What flips when an application makes three calls in an otherwise sound history, and these attempts of them are edited: the first call is
/// refused for 60 ms and admitted 70 ms later, the second may never come back, and the third finds nobody who can decide, thrice.
fn with_calls(edit: impl FnOnce(&mut [Attempt])) -> Vec<String> {
    after(|history| {
        history.plan.tenants.insert("sdk0".to_owned(), Limits { in_flight: None, ..SLOTS });
        history.plan.applications.push("sdk0".to_owned());
        let before = history.attempts.len();
        let at = 50 * SECOND;
        let mut made = |at: At, owner, admitted, call, retry, code: &str, told: (bool, Option<u64>)| {
            ask(history, "sdk0", at, 5 * MILLI, owner, admitted);
            let attempt = history.attempts.last_mut().unwrap();
            let (stop, wait) = told;
            attempt.code = code.to_owned();
            attempt.sdk = Some(OfSdk {
                name: "openai".to_owned(),
                call,
                retry,
                stop,
                wait: wait.map(|millis| millis * MILLI),
                ended: None,
            });
        };
        let owner = Some((2, "b"));
        made(at, owner, false, 1, 0, "429 tenant_rate_limit_exceeded", (false, Some(60)));
        made(at + 72 * MILLI, owner, true, 1, 1, "200", (false, None));
        made(at, owner, false, 2, 0, "429 request_too_large_for_limit", (true, None));
        for retry in 0..3 {
            let at = at + retry * 1_100 * MILLI;
            made(at, None, false, 3, retry, "503 limiter_unavailable", (false, Some(1_000)));
        }
        // Every node answers for it once the fault is over.
        for number in 0..3 {
            ask(history, "sdk0", STARTED + SECOND + number, 5 * MILLI, owner, true);
        }
        let attempts = &mut history.attempts[before..];
        let mut ends = |place: usize, how: &str| {
            attempts[place].sdk.as_mut().unwrap().ended = Some(how.to_owned());
        };
        ends(1, "answer");
        ends(2, "RateLimitError");
        ends(5, "InternalServerError");
        edit(attempts);
    })
}

fn told(attempt: &mut Attempt) -> &mut OfSdk {
    attempt.sdk.as_mut().unwrap()
}

#[test]
fn an_sdk_that_does_as_it_is_told_is_sound() {
    assert_eq!(with_calls(|_| ()), [""; 0]);
}

#[test]
fn an_sdk_that_comes_back_too_early_or_after_it_was_told_not_to_is_seen() {
    assert_eq!(with_calls(|attempts| told(&mut attempts[0]).wait = Some(80 * MILLI)), ["sdks_heed"]);
    assert_eq!(with_calls(|attempts| told(&mut attempts[0]).stop = true), ["sdks_heed"]);
    assert_eq!(with_calls(|attempts| told(&mut attempts[5]).retry = 3), ["sdks_heed"]);
}

#[test]
fn a_refusal_that_says_neither_when_nor_never_is_seen() {
    assert_eq!(with_calls(|attempts| told(&mut attempts[2]).stop = false), ["sdks_heed"]);
    assert_eq!(with_calls(|attempts| told(&mut attempts[5]).wait = Some(3_600 * SECOND)), ["sdks_heed"]);
    assert_eq!(with_calls(|attempts| told(&mut attempts[5]).wait = None), ["sdks_heed"]);
}

#[test]
fn an_error_that_is_not_promised_is_seen_and_silence_is_none() {
    let other = |attempts: &mut [Attempt]| {
        (attempts[5].outcome, attempts[5].code) = (Answer::Unknown, "502 upstream_broken".to_owned());
    };
    assert_eq!(with_calls(other), ["sdks_heed"]);
    let silence = |attempts: &mut [Attempt]| {
        (attempts[5].outcome, attempts[5].code) = (Answer::Unknown, "no answer".to_owned());
        told(&mut attempts[5]).ended = Some("APITimeoutError".to_owned());
    };
    assert_eq!(with_calls(silence), [""; 0]);
}

#[test]
fn a_call_that_ends_otherwise_than_it_was_answered_is_seen() {
    let ends = |place: usize, how: &'static str| {
        with_calls(move |attempts| told(&mut attempts[place]).ended = Some(how.to_owned()))
    };
    assert_eq!(ends(1, "JSONDecodeError"), ["sdks_heed"]);
    assert_eq!(ends(2, "InternalServerError"), ["sdks_heed"]);
    assert_eq!(ends(5, "answer"), ["sdks_heed"]);
    assert_eq!(ends(1, "ReadTimeout"), [""; 0]);
}

#[test]
fn applications_that_were_never_refused_show_nothing() {
    let at_ease = |attempts: &mut [Attempt]| attempts.iter_mut().for_each(|attempt| attempt.sdk = None);
    assert_eq!(with_calls(at_ease), ["sdks_heed"], "unknown is no pass");
}
