//! The body of an alert's webhook, and its signature.

use ring::hmac;
use serde_json::json;

use crate::control::budget::{Alert, Part, Unit};
use crate::control::period::Cycle;

/// What has happened, as the body and a header say it.
pub(super) const EVENT: &str = "budget.threshold_crossed";

/// What is posted. The same alert always has the same bytes.
pub(super) fn body(alert: &Alert) -> String {
    let Alert { budget, period, threshold, limit, used } = alert;
    let (project, key) = match &budget.part {
        Part::Tenant => (None, None),
        Part::Project(project) => (Some(&**project), None),
        Part::Key(label) => (None, Some(&**label)),
    };
    let begins = jiff::Timestamp::from_second(period.0).map(|begins| begins.to_string()).unwrap_or_default();
    json!({
        "id": alert.id(),
        "type": EVENT,
        "tenant": &*budget.tenant,
        "project": project,
        "key": key,
        "cycle": cycle(budget.cycle),
        "period_begins": begins,
        "unit": unit(budget.unit),
        "threshold": part(*threshold),
        "limit": limit,
        "used": used,
    })
    .to_string()
}

/// `v1=` and the HMAC-SHA256 of the timestamp, a dot and the body, in hex: by the timestamp a receiver turns old copies away.
pub(super) fn signature(secret: &[u8], timestamp: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let tag = hmac::sign(&key, format!("{timestamp}.{body}").as_bytes());
    format!("v1={}", hex::encode(tag))
}

/// Millionths as a part of one.
pub(super) fn part(millionths: u32) -> f64 {
    f64::from(millionths) / 1e6
}

const fn cycle(cycle: Cycle) -> &'static str {
    match cycle {
        Cycle::Hour => "hour",
        Cycle::Day => "day",
        Cycle::Week => "week",
        Cycle::Month => "month",
    }
}

const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Tokens => "tokens",
        Unit::MicroDollars => "micro_dollars",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::budget::BudgetKey;
    use crate::control::period::PeriodId;

    #[test]
    fn a_body_says_whose_budget_crossed_what_and_never_changes() {
        let budget = BudgetKey {
            tenant: "acme".into(),
            part: Part::Project("lab".into()),
            cycle: Cycle::Month,
            unit: Unit::Tokens,
        };
        let period = PeriodId(1_793_491_200);
        let alert = Alert { budget, period, threshold: 950_000, limit: 1_000_000, used: 951_200 };
        insta::assert_snapshot!(body(&alert));
    }

    #[test]
    fn a_signature_is_of_the_timestamp_and_the_body() {
        let signed = signature(b"secret", "1793491200", "{}");
        // From a second implementation: HMAC-SHA256 of "1793491200.{}" under "secret".
        assert_eq!(signed, "v1=e95113f1e83deaee99146b2c0526420284cde289ef0910130297b2ad5a1b0b8d");
        assert_ne!(signature(b"secret", "1793491201", "{}"), signed);
        assert_ne!(signature(b"other", "1793491200", "{}"), signed);
    }
}
