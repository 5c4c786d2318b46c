//! Pools, for operators: what each has, who holds it, and what its provider has said.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::{Admin, json_page};
use crate::control::pool::{LevelView, PoolView};
use crate::limit::Dimension;
use crate::node::escrow::PurseView;

/// All pools that the policy names, as this node has them applied.
pub(super) async fn page(State(admin): State<Arc<Admin>>) -> Response {
    let control = admin.agreement.control();
    let pools = control.pools();
    let purses = admin.node.escrow().purses(admin.node.now());
    let pools: Vec<Value> = pools
        .names()
        .filter_map(|name| {
            let purse = purses.iter().find(|purse| purse.pool == *name);
            Some(pool_json(name, &pools.view(name)?, purse))
        })
        .collect();
    json_page(&json!({ "pools": pools }))
}

fn pool_json(name: &str, view: &PoolView, purse: Option<&PurseView>) -> Value {
    let levels: Vec<Value> = view.levels.iter().map(|level| level_json(level, purse)).collect();
    let paused = view.brake.map_or(0, |brake| brake.until.0.saturating_sub(view.at.0) / 1_000_000);
    json!({
        "id": name,
        "refund_credit": if view.terms.refunds { "full" } else { "none" },
        "sessions": view.sessions,
        "levels": levels,
        // What is left of a pause that its provider asked for.
        "paused_ms": paused,
        "scarce_here": purse.is_some_and(|purse| purse.scarce),
    })
}

fn level_json(level: &LevelView, purse: Option<&PurseView>) -> Value {
    let LevelView { dimension, per_minute, burst, level, outstanding, books } = level;
    let held = |purse: &PurseView| purse.held[Dimension::index(*dimension)];
    json!({
        "limit": dimension.limit_name(),
        "guard_per_minute": per_minute,
        "burst": burst,
        "level": level,
        "outstanding": outstanding,
        "purse_here": purse.map(held),
        "spent": books.spent,
        "written_off": books.written_off,
    })
}
