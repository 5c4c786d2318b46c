//! What a provider's answer says of how much more its account takes: refusals, and what its headers say is left.
//!
//! Absence: an answer that leaves plenty says nothing. What is left is told only when it is little ([`LITTLE`]): the guard rate keeps a
//! distance from the ceiling, and to tell of each answer would be to write each into the log.

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;

use super::retry;
use crate::control::pool::Feedback;
use crate::limit::{Dimension, Span};

/// Below this part of a limit what is left is little: a fiftieth. The guard and the burst of a pool leave a twentieth of the ceiling unless
/// the policy says otherwise, so with that a pool that keeps to them is not slowed down by what it hears of itself.
const LITTLE: u64 = 50;

/// How long a refusal counts that names no time.
const UNNAMED: Span = Span::from_secs(1);

/// The headers by which providers say what is left of each limit, what it is, and when it is whole again.
const HEADERS: [(Dimension, &str, &str, &str); 6] = [
    (
        Dimension::Tokens,
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-reset-tokens",
    ),
    (
        Dimension::Requests,
        "x-ratelimit-remaining-requests",
        "x-ratelimit-limit-requests",
        "x-ratelimit-reset-requests",
    ),
    (
        Dimension::Tokens,
        "anthropic-ratelimit-tokens-remaining",
        "anthropic-ratelimit-tokens-limit",
        "anthropic-ratelimit-tokens-reset",
    ),
    (
        Dimension::InputTokens,
        "anthropic-ratelimit-input-tokens-remaining",
        "anthropic-ratelimit-input-tokens-limit",
        "anthropic-ratelimit-input-tokens-reset",
    ),
    (
        Dimension::OutputTokens,
        "anthropic-ratelimit-output-tokens-remaining",
        "anthropic-ratelimit-output-tokens-limit",
        "anthropic-ratelimit-output-tokens-reset",
    ),
    (
        Dimension::Requests,
        "anthropic-ratelimit-requests-remaining",
        "anthropic-ratelimit-requests-limit",
        "anthropic-ratelimit-requests-reset",
    ),
];

/// What an answer with this status and these headers says; nothing if there is nothing to heed.
pub(super) fn of(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Option<Feedback> {
    if status == StatusCode::TOO_MANY_REQUESTS {
        let named = retry::retry_after(headers, now).map(|pause| nanos(pause.as_nanos()));
        let pause = named.unwrap_or(UNNAMED.as_nanos());
        return Some(Feedback { remaining: [Some(0); Dimension::ALL.len()], pause });
    }
    let mut feedback = Feedback { remaining: [None; Dimension::ALL.len()], pause: 0 };
    for (dimension, remaining, limit, reset) in HEADERS {
        let (Some(left), Some(limit)) = (number(headers, remaining), number(headers, limit)) else {
            continue;
        };
        if left < limit / LITTLE {
            let place = &mut feedback.remaining[dimension.index()];
            *place = [*place, Some(left)].into_iter().flatten().min();
            feedback.pause =
                feedback.pause.max(text(headers, reset).and_then(|at| until(at, now)).unwrap_or(0));
        }
    }
    (feedback.pause > 0).then_some(feedback)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    text(headers, name)?.parse().ok()
}

/// How long until a reset, in nanoseconds: an instant by RFC 3339, or a length as `6m0s` and `634ms`.
fn until(reset: &str, now: Timestamp) -> Option<u64> {
    if let Ok(at) = reset.parse::<Timestamp>() {
        return Some(nanos(u128::try_from(at.duration_since(now).as_nanos()).unwrap_or(0)));
    }
    let span: jiff::SignedDuration = reset.parse().ok()?;
    u128::try_from(span.as_nanos()).ok().map(nanos)
}

fn nanos(nanos: u128) -> u64 {
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn heard(status: u16, headers: &[(&'static str, &'static str)]) -> Option<Feedback> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, http::HeaderValue::from_static(value));
        }
        of(StatusCode::from_u16(status).unwrap(), &map, "2026-11-30T12:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_refusal_takes_nothing_for_as_long_as_it_names() {
        let nothing = [Some(0); 4];
        let named = heard(429, &[("retry-after", "7")]);
        assert_eq!(named, Some(Feedback { remaining: nothing, pause: 7 * SECOND }));
        assert_eq!(heard(429, &[]), Some(Feedback { remaining: nothing, pause: SECOND }));
        assert_eq!(heard(500, &[("retry-after", "7")]), None);
    }

    #[test]
    fn little_that_is_left_is_told_and_plenty_is_not() {
        let openai = |left| {
            heard(
                200,
                &[
                    ("x-ratelimit-remaining-tokens", left),
                    ("x-ratelimit-limit-tokens", "600000"),
                    ("x-ratelimit-reset-tokens", "1m30s"),
                ],
            )
        };
        assert_eq!(openai("12000"), None);
        let little = Feedback { remaining: [Some(11_999), None, None, None], pause: 90 * SECOND };
        assert_eq!(openai("11999"), Some(little));
        let anthropic = heard(
            200,
            &[
                ("anthropic-ratelimit-output-tokens-remaining", "5"),
                ("anthropic-ratelimit-output-tokens-limit", "8000"),
                ("anthropic-ratelimit-output-tokens-reset", "2026-11-30T12:00:20Z"),
            ],
        );
        let little = Feedback { remaining: [None, None, Some(5), None], pause: 20 * SECOND };
        assert_eq!(anthropic, Some(little));
        // When it is whole again is not said, or long ago: there is nothing to wait for.
        assert_eq!(
            heard(200, &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-limit-requests", "50")]),
            None
        );
    }
}
