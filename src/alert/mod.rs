//! Soft thresholds, told to people: a line and a metric on every node, and one webhook.
//!
//! Laws (`alert_once`):
//! - what is told was committed: the entry that makes a budget cross a threshold is the only one that raises its alert
//!   ([`crate::control::budget`]), under one name, and that is the webhook's idempotency key whoever delivers it, however often;
//! - each node says each alert once, in the order in which they were raised; those that were raised before it started are not said again;
//! - only the leader calls the webhook. Once it was taken, that is committed too, and nobody calls it again. A leader that falls in between
//!   leaves it to its successor: the receiver may see a second one under the same key;
//! - what is not taken is tried again, later and later, until it is, or until [`crate::control::budget::ALERTS_MOST`] newer ones wait;
//! - bounded: so many calls at once, each for so long.
//!
//! In reading order: `message` (the body and its signature), `courier` (pure: whom to call when), [`run`].
//!
//! Never here: whether a threshold is crossed.

mod courier;
mod message;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, HeaderValue};
use tokio_util::sync::CancellationToken;

use self::courier::Courier;
use crate::control::budget::{Alert, BudgetCommand};
use crate::node::agreement::Agreement;
use crate::policy::Alerts;
use crate::upstream::webhook;

/// How often it is looked whether a call is due.
const LOOK: Duration = Duration::from_millis(250);

/// Says what is raised, and delivers it while this node leads, until `stopping`.
pub async fn run(agreement: Arc<Agreement>, stopping: CancellationToken) {
    let mut told = None;
    let mut courier = Courier::default();
    let mut calls = FuturesUnordered::new();
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            Some((number, taken)) = calls.next(), if !calls.is_empty() => {
                let now = agreement.node().now();
                agreement.node().metrics.budgets.webhooks.with(vec![("outcome", outcome(&taken).to_owned())]).inc();
                match taken {
                    Ok(()) => courier.taken(number),
                    Err(problem) => {
                        tracing::warn!(alert = number, problem, "an alert's webhook was not taken; it is tried again");
                        courier.not_taken(number, now, rand::random());
                    }
                }
            }
            _ = looks.tick() => {}
        }
        let control = agreement.control();
        let budgets = control.budgets();
        if told.is_none() && agreement.is_in_step() {
            told = Some(budgets.alerts_raised());
        }
        let Some(last) = told else { continue };
        for alert in budgets.recent_alerts().range(last + 1..).map(|(_, alert)| alert) {
            say(&agreement, alert);
        }
        told = Some(budgets.alerts_raised().max(last));
        if !agreement.leads() {
            courier = Courier::default();
            continue;
        }
        courier.follow(budgets.alerts().keys().copied());
        let snapshot = agreement.node().snapshot();
        let Some(alerts) = snapshot.policy.alerts.clone() else {
            // Nobody is to be called.
            deliver(&agreement, budgets.alerts().keys().copied().collect()).await;
            continue;
        };
        for number in courier.due(agreement.node().now()) {
            if let Some(alert) = budgets.alerts().get(&number).cloned() {
                let alerts = alerts.clone();
                calls.push(async move { (number, call(&alerts, &alert).await) });
            }
        }
        deliver(&agreement, courier.uncommitted(agreement.node().now())).await;
    }
}

/// Has it committed that these were delivered. If it is not, that is done again.
async fn deliver(agreement: &Agreement, alerts: Vec<u64>) {
    if !alerts.is_empty()
        && let Err(problem) = agreement.budget(BudgetCommand::Delivered { alerts }).await
    {
        tracing::debug!(%problem, "that alerts were delivered is not committed; it is said again");
    }
}

fn outcome(taken: &Result<(), String>) -> &'static str {
    if taken.is_ok() { "taken" } else { "failed" }
}

/// A line and a metric.
fn say(agreement: &Agreement, alert: &Alert) {
    let threshold = message::part(alert.threshold);
    let labels = vec![("tenant", alert.budget.tenant.to_string()), ("threshold", threshold.to_string())];
    agreement.node().metrics.budgets.alerts.with(labels).inc();
    tracing::warn!(
        id = alert.id(),
        tenant = &*alert.budget.tenant,
        threshold,
        used = alert.used,
        limit = alert.limit,
        "a budget has crossed a soft threshold"
    );
}

/// Calls the webhook once. It has taken the alert if it says so with a 2xx.
async fn call(alerts: &Alerts, alert: &Alert) -> Result<(), String> {
    let body = message::body(alert);
    let timestamp = crate::clock::wall_now().as_second().to_string();
    let mut headers = HeaderMap::new();
    let mut add = |name: &'static str, value: String| {
        let value = HeaderValue::try_from(value).map_err(|_| format!("{name} cannot be a header"))?;
        headers.insert(name, value);
        Ok::<(), String>(())
    };
    add("idempotency-key", alert.id())?;
    add("x-tollgate-event", message::EVENT.to_owned())?;
    add("x-tollgate-timestamp", timestamp.clone())?;
    if let Some(reference) = &alerts.secret {
        let secret = reference.resolve().map_err(|problem| problem.to_string())?;
        add("x-tollgate-signature", message::signature(secret.expose().as_bytes(), &timestamp, &body))?;
    }
    let status = webhook::post(&alerts.webhook, headers, body.into(), alerts.allow_private).await?;
    if status.is_success() { Ok(()) } else { Err(format!("it answered {}", status.as_u16())) }
}
