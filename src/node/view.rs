//! A tenant's limits and levels, and its budgets, as JSON: the same for the caller itself and for an operator.

use serde_json::{Value, json};

use crate::control::budget::{BudgetKey, BudgetView, Part, Unit};
use crate::control::period::Cycle;
use crate::limit::{Dimension, LevelView, Scope, TenantView};

/// The limits of a tenant with their levels, for people and programs.
pub fn limits_json(view: &TenantView, wanted: impl Fn(&Scope) -> bool) -> Vec<Value> {
    let mut limits = Vec::new();
    for scope in view.scopes.iter().filter(|scope| wanted(&scope.scope)) {
        for (dimension, level) in &scope.limits {
            limits.push(rate_json(&scope.scope, *dimension, level));
        }
        if let Some(max) = scope.max_inflight {
            limits.push(json!({
                "scope": scope.scope.kind(),
                "name": scope.scope.name(),
                "limit": "max_inflight",
                "max": max,
                "used": scope.inflight,
                "remaining": max.saturating_sub(scope.inflight),
            }));
        }
    }
    limits
}

fn rate_json(scope: &Scope, dimension: Dimension, level: &LevelView) -> Value {
    json!({
        "scope": scope.kind(),
        "name": scope.name(),
        "limit": dimension.limit_name(),
        "per_minute": level.per_minute,
        "burst": level.capacity,
        "level": level.level,
        "used": i128::from(level.capacity) - i128::from(level.level),
        "remaining": level.level.max(0),
        "full_in_ms": level.until_full.as_millis_up(),
    })
}

fn key_json(key: &BudgetKey) -> Value {
    let (project, label) = match &key.part {
        Part::Tenant => (None, None),
        Part::Project(project) => (Some(&**project), None),
        Part::Key(label) => (None, Some(&**label)),
    };
    json!({
        "tenant": &*key.tenant,
        "project": project,
        "key": label,
        "cycle": cycle_name(key.cycle),
        "unit": unit_name(key.unit),
    })
}

/// A budget with its current period; without one as long as its calendar has not begun.
pub fn budget_json(key: &BudgetKey, view: Option<&BudgetView>) -> Value {
    let mut page = key_json(key);
    let Some(view) = view else { return page };
    let at = |seconds| jiff::Timestamp::from_second(seconds).map(|at| at.to_string()).unwrap_or_default();
    let more = json!({
        "period": view.period.id.0,
        "begins": at(view.period.id.0),
        "ends": at(view.period.end),
        "limit": view.terms.as_ref().map(|terms| terms.limit),
        "zone": view.terms.as_ref().map(|terms| &*terms.zone),
        "used": view.used,
        "escrow": view.escrow,
        "written_off": view.written_off,
        "remaining": view.remaining,
        "remaining_degraded": view.remaining_degraded,
        "settled": view.books.settled,
        "closed": view.books.closed,
        "overage": view.books.overage,
        "degraded": view.books.degraded,
        "released": view.books.released,
    });
    if let (Some(page), Value::Object(more)) = (page.as_object_mut(), more) {
        page.extend(more);
    }
    page
}

/// How long its periods are.
pub const fn cycle_name(cycle: Cycle) -> &'static str {
    match cycle {
        Cycle::Hour => "hour",
        Cycle::Day => "day",
        Cycle::Week => "week",
        Cycle::Month => "month",
    }
}

/// What it counts.
pub const fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Tokens => "tokens",
        Unit::MicroDollars => "micro_dollars",
    }
}
