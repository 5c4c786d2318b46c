//! The document's scalars: single words and quantities, each checked as far as it can be alone.
//!
//! Every function reads the value under its cursor, or reports what it is not and how to write it. What may be a secret (a
//! key's hash, a reference, a URL) is never repeated in a report. Which scalar stands where is `document`'s.

use std::time::Duration;

use super::cursor::{Cursor, excerpt};
use super::secret::SecretReference;
use super::types::{
    Class, EnforcementMode, FieldPath, KeyHash, MAX_AMOUNT, OnDisconnect, OnUnavailable, UserSource,
};
use super::units::{self, IpNetwork, MicroDollars, Ratio};

/// The longest name of a tenant, tier, key, project, pool, provider or tool. They become metric labels and log fields.
pub(super) const MAX_NAME: usize = 64;
/// The longest model name, alias, path or URL.
pub(super) const MAX_LONG_NAME: usize = 256;
/// The largest weight: beyond it a share is rounding.
const MAX_WEIGHT: u64 = 1_000_000;
/// The longest time-out: a day.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn enforcement_mode(at: Cursor<'_>) -> Option<EnforcementMode> {
    at.choice(&[
        ("enforce", EnforcementMode::Enforce),
        ("shadow", EnforcementMode::Shadow),
        ("enforce_new_tenants", EnforcementMode::EnforceNewTenants),
    ])
}

pub(super) fn on_unavailable(at: Cursor<'_>) -> Option<OnUnavailable> {
    at.choice(&[("refuse", OnUnavailable::Refuse), ("admit", OnUnavailable::Admit)])
}

pub(super) fn on_disconnect(at: Cursor<'_>) -> Option<OnDisconnect> {
    at.choice(&[("counted", OnDisconnect::Counted), ("estimate", OnDisconnect::Estimate)])
}

pub(super) fn class(at: Cursor<'_>) -> Option<Class> {
    at.choice(&[("interactive", Class::Interactive), ("batch", Class::Batch)])
}

pub(super) fn amount(at: Cursor<'_>) -> Option<u64> {
    at.count(1..=MAX_AMOUNT)
}

pub(super) fn weight(at: Cursor<'_>) -> Option<u64> {
    at.count(1..=MAX_WEIGHT)
}

pub(super) fn share(at: Cursor<'_>) -> Option<Ratio> {
    let ratio = share_or_nothing(at.clone())?;
    if ratio.parts_per_million() == 0 {
        at.error("is zero", "write a share above 0 and at most 1, such as 0.85");
    }
    Some(ratio)
}

pub(super) fn share_or_nothing(at: Cursor<'_>) -> Option<Ratio> {
    at.parse(Ratio::parse, "write a share above 0 and at most 1, such as 0.85")
}

pub(super) fn money(at: &Cursor<'_>) -> Option<MicroDollars> {
    at.parse(MicroDollars::parse, "write dollars with at most six decimal places, such as 1.25")
}

pub(super) fn duration(at: Cursor<'_>) -> Option<Duration> {
    let duration = at.parse(units::parse_duration, "write a whole number and ms, s, m or h, such as 10s")?;
    if duration.is_zero() || duration > MAX_TIMEOUT {
        at.error("is not between 1ms and 24h", "");
    }
    Some(duration)
}

pub(super) fn zone(at: Cursor<'_>) -> Option<String> {
    let text = at.text()?;
    if jiff::tz::TimeZone::get(text).is_err() {
        at.error(
            format!("`{}` is not a time zone", excerpt(text)),
            "write an IANA name, such as Europe/Berlin or UTC",
        );
    }
    Some(text.to_owned())
}

/// Minutes since midnight, up to and with `24:00`.
pub(super) fn minute_of_day(at: Cursor<'_>) -> Option<u64> {
    at.parse(minutes_since_midnight, "write hours and minutes in quotes, such as \"06:30\"")
}

fn minutes_since_midnight(text: &str) -> Result<u64, &'static str> {
    const SHAPE: &str = "is not a time of day";
    let (hours, minutes) = text.split_once(':').ok_or(SHAPE)?;
    let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    if !two_digits(hours) || !two_digits(minutes) {
        return Err(SHAPE);
    }
    let hours: u64 = hours.parse().map_err(|_| SHAPE)?;
    let minutes: u64 = minutes.parse().map_err(|_| SHAPE)?;
    if minutes > 59 || hours * 60 + minutes > 24 * 60 { Err(SHAPE) } else { Ok(hours * 60 + minutes) }
}

pub(super) fn network(at: Cursor<'_>) -> Option<IpNetwork> {
    at.parse(IpNetwork::parse, "write a network such as 10.0.0.0/8, or one address")
}

pub(super) fn secret_reference(at: Cursor<'_>) -> Option<SecretReference> {
    let reference = SecretReference::parse(at.text()?);
    if reference.is_none() {
        // What stands here may be the secret itself: it is not repeated.
        at.error(
            "is not a reference to a secret",
            "write env:NAME or file:PATH; a policy is shown and replicated, so it holds no secrets",
        );
    }
    reference
}

pub(super) fn url(at: Cursor<'_>) -> Option<String> {
    const HINT: &str = "write scheme, host and optional port and path, such as https://api.openai.com";
    let text = at.text()?;
    let uri: Option<http::Uri> = text.parse().ok().filter(|_| text.len() <= MAX_LONG_NAME);
    let Some(uri) =
        uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
    else {
        // Webhook addresses carry secrets: the text is not repeated.
        at.error("is not an http or https URL", HINT);
        return None;
    };
    if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        at.error("carries credentials", "use `api_key` or `secret` with a reference");
    }
    if uri.query().is_some() {
        at.error("has a query", HINT);
    }
    Some(text.trim_end_matches('/').to_owned())
}

pub(super) fn route_path(at: Cursor<'_>) -> Option<String> {
    let text = at.text()?;
    let well_formed = text.starts_with('/')
        && text.len() <= MAX_LONG_NAME
        && !text.contains("//")
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'?' | b'#' | b'%' | b'\\'));
    if !well_formed {
        at.error(
            format!("`{}` is not a path", excerpt(text)),
            "write it as requested, such as /v1/chat/completions",
        );
    }
    Some(text.to_owned())
}

pub(super) fn user_source(at: Cursor<'_>) -> Option<UserSource> {
    // Deeper than any SDK nests a user id, and a bound on the walk through each request.
    const MAX_STEPS: usize = 4;
    let text = at.text()?;
    let token = |part: &str| {
        (1..=MAX_NAME).contains(&part.len())
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let source = match text.split_once('.') {
        Some(("body", path)) => {
            let steps: Vec<String> = path.split('.').map(str::to_owned).collect();
            (steps.len() <= MAX_STEPS && steps.iter().all(|step| token(step)))
                .then_some(UserSource::Body(steps))
        }
        Some(("header", header)) => token(header).then(|| UserSource::Header(header.to_ascii_lowercase())),
        _ => None,
    };
    if source.is_none() {
        at.error(
            format!("`{}` does not say where a request names its user", excerpt(text)),
            "write `body.FIELD`, such as body.user or body.metadata.user_id, or `header.NAME`",
        );
    }
    source
}

pub(super) fn key_hash(at: Cursor<'_>) -> Option<KeyHash> {
    let hash = KeyHash::parse(at.text()?);
    if hash.is_none() {
        // What stands here may be the key itself: it is not repeated.
        at.error(
            "is not `sha256:` and 64 lowercase hexadecimal digits",
            "`tollgate keys new` prints a key and its hash; `tollgate keys hash` hashes a key you have",
        );
    }
    hash
}

/// A list of members that no request may have, each once.
pub(super) fn forbidden_fields(at: Cursor<'_>) -> Option<Vec<FieldPath>> {
    // Each is looked for in each request.
    const MOST: usize = 64;
    let mut seen: Vec<FieldPath> = Vec::new();
    at.short_list(MOST, |at| {
        let text = at.text()?;
        let Some(field) = FieldPath::parse(text) else {
            at.error(
                format!("`{}` is not a member of a request", excerpt(text)),
                "write it as requests have it, such as logit_bias or generationConfig.responseLogprobs",
            );
            return None;
        };
        if seen.iter().any(|earlier| earlier.is_same(&field)) {
            at.error(format!("`{field}` is here twice"), "case and underscores make no difference");
        }
        seen.push(field.clone());
        Some(field)
    })
}

pub(super) fn name(at: &Cursor<'_>) -> Option<String> {
    let text = at.text()?;
    checked_name(text, MAX_NAME, at);
    Some(text.to_owned())
}

pub(super) fn long_name(at: &Cursor<'_>) -> Option<String> {
    let text = at.text()?;
    checked_name(text, MAX_LONG_NAME, at);
    Some(text.to_owned())
}

/// Whether a text may be the name of a tenant, tier, key, project, pool, provider or tool.
#[must_use]
pub fn is_name(text: &str) -> bool {
    well_formed(text, MAX_NAME)
}

fn well_formed(text: &str, longest: usize) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':' | b'/' | b'@');
    (1..=longest).contains(&text.len())
        && text.bytes().all(allowed)
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
}

/// Names go into metric labels, log fields and headers: letters, digits and `. _ - : / @`, beginning with a letter or digit.
pub(super) fn checked_name(text: &str, longest: usize, at: &Cursor<'_>) {
    if !well_formed(text, longest) {
        at.error(
            format!("`{}` is not a name", excerpt(text)),
            format!("use 1 to {longest} letters, digits and . _ - : / @, beginning with a letter or digit"),
        );
    }
}
