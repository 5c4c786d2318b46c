//! Edits of the policy while it is asked for all that it allows: limits are loosened, tightened and put back.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::{Stage, Struck};
use crate::cluster::{look, policy};
use crate::history::Limits;
use crate::sys;

/// What becomes of the limits of requests, in hundredths of what the plan says, one after another.
const EDITS: [u64; 3] = [150, 50, 120];

/// How long an edit may take until it is in force everywhere.
const PATIENCE: Duration = Duration::from_secs(60);

/// Edits the policy through whichever node, and puts it back.
pub async fn edit(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    for percent in EDITS {
        apply(stage, percent).await?;
        sleep(length / EDITS.len() as u32).await;
    }
    apply(stage, 100).await?;
    let mut struck = Struck::new(format!("limits of requests at {EDITS:?} % and back"), &[]);
    struck.percent = EDITS.into_iter().max();
    Ok(struck)
}

/// Puts the plan's limits in force, at so many hundredths. It replaces the version that was looked at and no other: one that was proposed
/// before and is late changes nothing any more.
async fn apply(stage: &mut Stage, percent: u64) -> Result<(), String> {
    let scaled = stage.limits.iter().map(|(tenant, limits)| (tenant.clone(), scaled(*limits, percent)));
    let text = policy(&scaled.collect());
    let deadline = sys::now() + PATIENCE.as_nanos() as u64;
    loop {
        let node = *stage.chance.pick(&stage.cluster.running());
        match replace(node, &text).await {
            Ok(()) => return Ok(()),
            Err(why) if sys::now() > deadline => {
                return Err(format!("the policy cannot be edited: n{node}: {why}"));
            }
            Err(_) => sleep(Duration::from_millis(300)).await,
        }
    }
}

async fn replace(node: u8, text: &str) -> Result<(), String> {
    let page: Value =
        serde_json::from_str(&look::get(node, "/v1/policy").await?).map_err(|error| error.to_string())?;
    let version = page["version"].as_u64().ok_or("no version")?;
    look::post(node, &format!("/v1/policy?expect={version}"), text).await.map(drop)
}

/// Requests alone: what else bounds a tenant stays.
fn scaled(limits: Limits, percent: u64) -> Limits {
    let of = |amount: u64| (amount * percent / 100).max(1);
    Limits { burst: of(limits.burst), per_minute: of(limits.per_minute), ..limits }
}
