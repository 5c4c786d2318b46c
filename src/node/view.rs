//! A tenant's limits and levels as JSON: the same for the caller itself and for an operator.

use serde_json::{Value, json};

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
