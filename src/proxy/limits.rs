//! What is left of a caller's limits, in the headers of its dialect and in those of the IETF draft.
//!
//! OpenAI: `x-ratelimit-{limit,remaining,reset}-{requests,tokens}`. Anthropic:
//! `anthropic-ratelimit-{requests,tokens,input-tokens,output-tokens}-{limit,remaining,reset}`. Everywhere: `RateLimit-Policy` and
//! `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10). Numbers are never negative. The tightest bucket on the path speaks for
//! its dimension, and the levels are those of the moment of the decision.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use jiff::{SignedDuration, Timestamp};

use crate::limit::{Dimension, LevelView, Levels, Span};
use crate::node::escrow::BudgetStanding;
use crate::route::Dialect;

/// The headers of one dimension in a dialect.
struct Names {
    dimension: Dimension,
    limit: HeaderName,
    remaining: HeaderName,
    reset: HeaderName,
}

const OPENAI: [Names; 2] = [
    Names {
        dimension: Dimension::Requests,
        limit: HeaderName::from_static("x-ratelimit-limit-requests"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-requests"),
        reset: HeaderName::from_static("x-ratelimit-reset-requests"),
    },
    Names {
        dimension: Dimension::Tokens,
        limit: HeaderName::from_static("x-ratelimit-limit-tokens"),
        remaining: HeaderName::from_static("x-ratelimit-remaining-tokens"),
        reset: HeaderName::from_static("x-ratelimit-reset-tokens"),
    },
];

const ANTHROPIC: [Names; 4] = [
    Names {
        dimension: Dimension::Requests,
        limit: HeaderName::from_static("anthropic-ratelimit-requests-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-requests-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-requests-reset"),
    },
    Names {
        dimension: Dimension::Tokens,
        limit: HeaderName::from_static("anthropic-ratelimit-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-tokens-reset"),
    },
    Names {
        dimension: Dimension::InputTokens,
        limit: HeaderName::from_static("anthropic-ratelimit-input-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-input-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-input-tokens-reset"),
    },
    Names {
        dimension: Dimension::OutputTokens,
        limit: HeaderName::from_static("anthropic-ratelimit-output-tokens-limit"),
        remaining: HeaderName::from_static("anthropic-ratelimit-output-tokens-remaining"),
        reset: HeaderName::from_static("anthropic-ratelimit-output-tokens-reset"),
    },
];

const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// Adds the limit headers of `dialect`.
pub fn add(headers: &mut HeaderMap, dialect: Dialect, levels: &Levels, now: Timestamp) {
    match dialect {
        Dialect::OpenAi => dialects_own(headers, OPENAI, levels, clock_like),
        Dialect::Anthropic => dialects_own(headers, ANTHROPIC, levels, |until_full| instant(now, until_full)),
        // It has none of its own.
        Dialect::Gemini => {}
    }
    ietf(headers, levels);
}

fn dialects_own(
    headers: &mut HeaderMap,
    names: impl IntoIterator<Item = Names>,
    levels: &Levels,
    reset_text: impl Fn(Span) -> String,
) {
    for Names { dimension, limit, remaining, reset } in names {
        let Some(level) = levels[dimension.index()] else { continue };
        headers.insert(limit, HeaderValue::from(level.per_minute));
        headers.insert(remaining, HeaderValue::from(left(&level)));
        text(headers, reset, reset_text(level.until_full));
    }
}

fn ietf(headers: &mut HeaderMap, levels: &Levels) {
    use std::fmt::Write;
    let (mut policies, mut states) = (String::new(), String::new());
    for dimension in Dimension::ALL {
        let Some(level) = levels[dimension.index()] else { continue };
        let name = match dimension {
            Dimension::Tokens => "tpm",
            Dimension::InputTokens => "itpm",
            Dimension::OutputTokens => "otpm",
            Dimension::Requests => "rpm",
        };
        let comma = if policies.is_empty() { "" } else { ", " };
        // Writing to a String does not fail.
        let _ = write!(policies, "{comma}\"{name}\";q={};w=60", level.per_minute);
        let _ = write!(states, "{comma}\"{name}\";r={};t={}", left(&level), seconds_up(level.until_full));
    }
    if !policies.is_empty() {
        text(headers, RATELIMIT_POLICY, policies);
        text(headers, RATELIMIT, states);
    }
}

/// Anthropic's spelling: the instant, RFC 3339.
fn instant(now: Timestamp, until: Span) -> String {
    let seconds = i64::try_from(seconds_up(until)).unwrap_or(0).min(31_536_000);
    (now + SignedDuration::from_secs(seconds)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn left(level: &LevelView) -> u64 {
    u64::try_from(level.level).unwrap_or(0)
}

fn seconds_up(span: Span) -> u64 {
    span.as_millis_up().div_ceil(1000)
}

/// OpenAI's spelling of a length of time: `634ms`, `12s`, `6m0s`, `1h0m0s`.
fn clock_like(span: Span) -> String {
    let millis = span.as_millis_up();
    let seconds = millis.div_ceil(1000);
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        _ if millis == 0 => "0s".to_owned(),
        _ if millis < 1000 => format!("{millis}ms"),
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

fn text(headers: &mut HeaderMap, name: HeaderName, value: String) {
    if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
        headers.insert(name, value);
    }
}

/// Adds where the caller's tightest budget stands, in its unit; reset as an instant, since that may be a month away.
pub(super) fn add_budget(headers: &mut HeaderMap, budget: Option<BudgetStanding>) {
    let Some(budget) = budget else { return };
    headers.insert("x-tollgate-budget-limit", HeaderValue::from(budget.limit));
    headers.insert("x-tollgate-budget-remaining", HeaderValue::from(budget.remaining));
    let resets = Timestamp::from_second(budget.resets).map(|at| at.to_string()).unwrap_or_default();
    if let Ok(resets) = HeaderValue::try_from(resets) {
        headers.insert("x-tollgate-budget-reset", resets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels() -> Levels {
        let level = |per_minute, level, until_full| {
            Some(LevelView { per_minute, capacity: per_minute, level, until_full })
        };
        [
            level(120_000, 5_000, Span::from_millis(57_500)),
            None,
            level(6_000, -300, Span::from_secs(63)),
            level(600, 599, Span::from_millis(100)),
        ]
    }

    fn rendered(dialect: Dialect) -> Vec<String> {
        let mut headers = HeaderMap::new();
        add(&mut headers, dialect, &levels(), "2026-11-30T12:00:00Z".parse().unwrap());
        let mut lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[test]
    fn openai_clients_read_their_own_headers() {
        assert_eq!(
            rendered(Dialect::OpenAi),
            [
                "ratelimit-policy: \"tpm\";q=120000;w=60, \"otpm\";q=6000;w=60, \"rpm\";q=600;w=60",
                "ratelimit: \"tpm\";r=5000;t=58, \"otpm\";r=0;t=63, \"rpm\";r=599;t=1",
                "x-ratelimit-limit-requests: 600",
                "x-ratelimit-limit-tokens: 120000",
                "x-ratelimit-remaining-requests: 599",
                "x-ratelimit-remaining-tokens: 5000",
                "x-ratelimit-reset-requests: 100ms",
                "x-ratelimit-reset-tokens: 58s",
            ]
        );
    }

    #[test]
    fn anthropic_clients_read_theirs_with_instants_and_never_a_negative_number() {
        let lines = rendered(Dialect::Anthropic);
        assert!(
            lines.contains(&"anthropic-ratelimit-tokens-reset: 2026-11-30T12:00:58Z".to_owned()),
            "{lines:?}"
        );
        assert!(lines.contains(&"anthropic-ratelimit-output-tokens-remaining: 0".to_owned()), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("input-tokens")), "{lines:?}");
    }

    #[test]
    fn lengths_of_time_are_spelled_as_openai_does() {
        let spelled =
            [0, 1, 634, 1_000, 12_400, 360_000, 3_600_000].map(|ms| clock_like(Span::from_millis(ms)));
        assert_eq!(spelled, ["0s", "1ms", "634ms", "1s", "13s", "6m0s", "1h0m0s"]);
    }
}
