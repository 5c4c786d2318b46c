//! The stable names of refusals: one word each, in answers, metrics and logs alike.

use crate::limit::{BudgetKey, Cycle, Denial, Lack, Part, Scope, Unit};

/// The code of a denial, as `x-tollgate-error` and the metrics carry it.
#[must_use]
pub const fn code(denial: &Denial) -> &'static str {
    match denial {
        Denial::Rate { scope, .. } => match scope {
            Scope::Key(_) => "key_rate_limit_exceeded",
            Scope::User => "user_rate_limit_exceeded",
            Scope::Project(_) => "project_rate_limit_exceeded",
            Scope::Tenant => "tenant_rate_limit_exceeded",
            Scope::Model(_) => "model_rate_limit_exceeded",
        },
        Denial::Never { .. } => "request_too_large_for_limit",
        Denial::Inflight { .. } => "inflight_limit_exceeded",
        Denial::IdempotencyInProgress => "idempotency_in_progress",
        Denial::AlreadyDispatched => "already_dispatched",
        Denial::Cancelled
        | Denial::UnknownTenant
        | Denial::Full
        | Denial::Recovering
        | Denial::Unavailable => "limiter_unavailable",
        Denial::Suspended => "tenant_suspended",
        Denial::Revoked => "unauthenticated",
        Denial::Pool { lack: Lack::Never { .. }, .. } => "request_too_large_for_limit",
        Denial::Pool { .. } => "global_capacity",
        Denial::Budget { .. } => "budget_exhausted",
        Denial::Granting(inside) => code(inside),
    }
}

/// The limit that a denial names, for a metric label: `tenant/tokens_per_minute`, `key/max_inflight`.
#[must_use]
pub fn limit(denial: &Denial) -> String {
    match denial {
        Denial::Rate { scope, dimension, .. } | Denial::Never { scope, dimension, .. } => {
            format!("{}/{}", scope.kind(), dimension.limit_name())
        }
        Denial::Inflight { scope, .. } => format!("{}/max_inflight", scope.kind()),
        Denial::Pool { lack: Lack::Later { dimension, .. } | Lack::Never { dimension, .. }, .. } => {
            format!("pool/{}", dimension.limit_name())
        }
        Denial::Pool { .. } => "pool".to_owned(),
        Denial::Budget { budget, .. } => format!("budget/{}", period(budget.cycle)),
        Denial::Granting(inside) => limit(inside),
        other => code(other).to_owned(),
    }
}

/// What a denial says to a person: which limit, what is needed, what there is, when it fits.
#[must_use]
pub fn sentence(tenant: &str, denial: &Denial) -> String {
    match denial {
        Denial::Rate { scope, dimension, need, level, capacity, wait } => {
            let (unit, limit) = (dimension.unit(), dimension.limit_name());
            let seconds = wait.as_millis_up().div_ceil(1000).max(1);
            let of = whose(tenant, scope);
            let holds = match u64::try_from(*level) {
                Ok(level) => format!("has {} of {} left", thousands(level), thousands(*capacity)),
                Err(_) => format!("is {} in debt", thousands(level.unsigned_abs())),
            };
            format!(
                "Rate limit reached: {limit} of {of} {holds}; this request needs {need} and will fit in {seconds} s.",
                need = counted(*need, unit)
            )
        }
        Denial::Never { scope, dimension, need, capacity } => {
            let (unit, limit, of) = (dimension.unit(), dimension.limit_name(), whose(tenant, scope));
            format!(
                "Request too large: it needs {}, and {limit} of {of} never holds more than {}. Waiting does not help: send a \
                 shorter prompt or a lower output ceiling, or ask for a larger burst.",
                counted(*need, unit),
                thousands(*capacity)
            )
        }
        Denial::Inflight { scope, max } => format!(
            "Too many requests in flight: max_inflight of {} is {max}. Try again when one of them has ended.",
            whose(tenant, scope)
        ),
        Denial::Pool { pool, lack } => of_pool(pool, *lack),
        Denial::Budget { budget, need, remaining, resets } => of_budget(budget, *need, *remaining, *resets),
        Denial::Granting(inside) => sentence(tenant, inside),
        Denial::IdempotencyInProgress => {
            "A request with this Idempotency-Key is still being served. Wait for its answer.".to_owned()
        }
        Denial::AlreadyDispatched => {
            "A request with this Idempotency-Key was already sent to the provider. Use a new key to send another.".to_owned()
        }
        Denial::Recovering => {
            "The limiter of this tenant has just moved and is still learning what is in flight. Try again.".to_owned()
        }
        Denial::Unavailable => "The limiter of this tenant cannot be reached at the moment. Try again.".to_owned(),
        Denial::Suspended => {
            format!("Tenant {tenant} is suspended by this gateway's operator. Ask them; trying again does not help.")
        }
        Denial::Revoked => "This key was revoked while the request was on its way. Send another one; trying again does not help.".to_owned(),
        Denial::Cancelled | Denial::UnknownTenant | Denial::Full => {
            "The limiter cannot answer for this tenant at the moment. Try again.".to_owned()
        }
    }
}

fn of_pool(pool: &str, lack: Lack) -> String {
    match lack {
        Lack::Later { dimension, need, wait, .. } => format!(
            "The provider's capacity is used up: pool {pool} hands out no more {unit} at the moment than others have asked for; this \
             request needs {need} and may fit in {seconds} s. It is no limit of yours that was reached.",
            unit = dimension.unit(),
            need = counted(need, dimension.unit()),
            seconds = wait.as_millis_up().div_ceil(1000).max(1)
        ),
        Lack::Never { dimension, need, capacity } => format!(
            "Request too large: it needs {}, and pool {pool} never hands out more than {} at once. Waiting does not help: send a shorter \
             prompt or a lower output ceiling.",
            counted(need, dimension.unit()),
            thousands(capacity)
        ),
        Lack::Paused { wait } => format!(
            "The provider takes nothing at the moment: pool {pool} is paused for {} s, as the provider asked.",
            wait.as_millis_up().div_ceil(1000).max(1)
        ),
    }
}

fn of_budget(budget: &BudgetKey, need: u64, remaining: u64, resets: Option<i64>) -> String {
    let of = match &budget.part {
        Part::Tenant => format!("tenant {}", budget.tenant),
        Part::Project(name) => format!("project {name} of tenant {}", budget.tenant),
        Part::Key(label) => format!("key {label} of tenant {}", budget.tenant),
    };
    let amount = |units: u64| match budget.unit {
        Unit::Tokens => counted(units, "tokens"),
        Unit::MicroDollars => format!("${}.{:06}", thousands(units / 1_000_000), units % 1_000_000),
    };
    let until = resets.and_then(|at| jiff::Timestamp::from_second(at).ok());
    let until = until.map_or_else(|| "when the period ends".to_owned(), |at| format!("at {at}"));
    format!(
        "Budget exhausted: the {} budget of {of} has {} left; this request needs {}. It begins anew {until}.",
        period(budget.cycle),
        amount(remaining),
        amount(need)
    )
}

const fn period(cycle: Cycle) -> &'static str {
    match cycle {
        Cycle::Hour => "hourly",
        Cycle::Day => "daily",
        Cycle::Week => "weekly",
        Cycle::Month => "monthly",
    }
}

/// "1 request", "5,000 tokens".
fn counted(number: u64, unit: &str) -> String {
    let unit = if number == 1 { unit.trim_end_matches('s') } else { unit };
    format!("{} {unit}", thousands(number))
}

fn whose(tenant: &str, scope: &Scope) -> String {
    match scope {
        Scope::Tenant => format!("tenant {tenant}"),
        // Who that is, the caller knows, and nobody else is to.
        Scope::User => format!("this user of tenant {tenant}"),
        Scope::Key(_) | Scope::Project(_) | Scope::Model(_) => format!("{scope} of tenant {tenant}"),
    }
}

/// 1234567 → "1,234,567".
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Dimension, Span};

    #[test]
    fn a_refusal_names_the_limit_the_need_the_level_and_when_it_fits() {
        let denial = Denial::Rate {
            scope: Scope::Key("staging".into()),
            dimension: Dimension::Tokens,
            need: 5_000,
            level: 1_200,
            capacity: 20_000,
            wait: Span::from_millis(11_400),
        };
        assert_eq!(
            sentence("northwind", &denial),
            "Rate limit reached: tokens_per_minute of key staging of tenant northwind has 1,200 of 20,000 left; this request needs \
             5,000 tokens and will fit in 12 s."
        );
        assert_eq!(limit(&denial), "key/tokens_per_minute");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let grouped = [0, 7, 999, 1_000, 12_345, 1_234_567].map(thousands);
        assert_eq!(grouped, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
    }
}
