//! When to try again, and after how long: full jitter, and the provider's own word where it gives one.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;

/// The longest that a caller is kept waiting between two attempts. A provider that asks for more gets no second attempt: its answer
/// goes to the caller, whose SDK waits by itself.
const LONGEST_WAIT: Duration = Duration::from_secs(8);
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

/// Whether an answer with this status is worth another attempt.
pub(super) fn worth_retrying(status: StatusCode) -> bool {
    matches!(status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504 | 529)
}

/// How long to wait before the attempt after number `attempt` (1 is the first); none when that is too long.
///
/// `random` is uniform in 0..=u32::MAX: full jitter takes a uniform part of the doubled back-off. What the provider asked for is a
/// lower bound.
pub(super) fn wait(attempt: u32, asked: Option<Duration>, random: u32) -> Option<Duration> {
    if asked.is_some_and(|asked| asked > LONGEST_WAIT) {
        return None;
    }
    let ceiling = FIRST_BACKOFF.saturating_mul(1 << attempt.saturating_sub(1).min(5));
    let millis = ceiling.as_millis() * u128::from(random) / u128::from(u32::MAX);
    let jittered = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
    Some(asked.unwrap_or_default() + jittered)
}

/// What `retry-after-ms` or `Retry-After` (seconds or an HTTP date, RFC 9110 §10.2.3) asks for.
#[must_use]
pub fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(millis) = text("retry-after-ms").and_then(whole_part) {
        return Some(Duration::from_millis(millis));
    }
    let value = text(RETRY_AFTER.as_str())?;
    if let Some(seconds) = whole_part(value) {
        return Some(Duration::from_secs(seconds));
    }
    let at = httpdate::parse_http_date(value).ok()?;
    let at = Timestamp::try_from(at).ok()?;
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

/// "2" and "1.5" as whole units, rounded up.
fn whole_part(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = whole.parse().ok()?;
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    let more = fraction.bytes().any(|byte| byte != b'0');
    digits.then(|| whole.saturating_add(u64::from(more)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(name: &'static str, value: &'static str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(name, http::HeaderValue::from_static(value));
        retry_after(&headers, "2026-11-30T12:00:00Z".parse().unwrap())
    }

    #[test]
    fn every_form_of_retry_after_is_understood() {
        assert_eq!(asked("retry-after", "2"), Some(Duration::from_secs(2)));
        assert_eq!(asked("retry-after", "1.2"), Some(Duration::from_secs(2)));
        assert_eq!(asked("retry-after-ms", "350.5"), Some(Duration::from_millis(351)));
        assert_eq!(asked("retry-after", "Mon, 30 Nov 2026 12:00:03 GMT"), Some(Duration::from_secs(3)));
        assert_eq!(asked("retry-after", "Mon, 30 Nov 2026 11:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(asked("retry-after", "soon"), None);
        assert_eq!(asked("retry-after", "-1"), None);
    }

    #[test]
    fn the_wait_is_jittered_doubles_and_honours_the_provider() {
        assert_eq!(wait(1, None, u32::MAX), Some(Duration::from_millis(250)));
        assert_eq!(wait(2, None, u32::MAX), Some(Duration::from_millis(500)));
        assert_eq!(wait(2, None, 0), Some(Duration::ZERO));
        assert_eq!(wait(1, Some(Duration::from_secs(2)), 0), Some(Duration::from_secs(2)));
        assert_eq!(wait(1, Some(Duration::from_secs(3600)), 0), None);
    }

    #[test]
    fn only_failures_of_the_provider_are_tried_again() {
        let again = |status: u16| worth_retrying(StatusCode::from_u16(status).unwrap());
        assert!([408, 429, 500, 502, 503, 504, 529].into_iter().all(again));
        assert!(![200, 301, 400, 401, 403, 404, 409, 413, 422].into_iter().any(again));
    }
}
