//! Faults of membership: disks that are lost, nodes that come and go.

use std::time::Duration;

use tokio::time::sleep;

use super::{Stage, Struck, TOOK_ITS_PLACE};
use crate::cluster::look;
use crate::network::Host;
use crate::sys;

/// How long something that an operator waits for may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A lost disk, properly seen to: the old member is removed, the node joins anew.
pub async fn wipe(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    stage.cluster.node(victim).kill();
    stage.cluster.node(victim).wipe()?;
    sleep(length).await;
    remove(stage, victim).await?;
    stage.cluster.node(victim).start()?;
    Ok(Struck::new(whom, &[victim]))
}

/// A lost disk that nobody saw to: the node claims the place it had and must not get it.
pub async fn same_id_wipe(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    stage.cluster.node(victim).kill();
    stage.cluster.node(victim).wipe()?;
    stage.cluster.node(victim).start()?;
    sleep(length.max(stage.cluster.lease * 3)).await;
    let mut struck = Struck::new(whom, &[victim]);
    let taken = look::ready(victim).await.is_ok();
    struck.note = if taken { TOOK_ITS_PLACE } else { "refused, as it must be" }.to_owned();
    remove(stage, victim).await?;
    Ok(struck)
}

/// Restarts every node, each when the one before is ready again.
pub async fn rolling(stage: &mut Stage) -> Result<Struck, String> {
    let all = stage.cluster.running();
    for host in &all {
        stage.cluster.node(*host).stop().await?;
        stage.cluster.node(*host).start()?;
        until_ready(*host).await?;
    }
    Ok(Struck::new("all nodes, one after another", &all))
}

/// Another node joins, and leaves again after `length`.
pub async fn join_and_leave(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let spare = stage.spare;
    let mut members = stage.known.borrow().clone();
    stage.cluster.node(spare).start()?;
    until_ready(spare).await?;
    members.push(spare);
    stage.known.send_replace(members.clone());
    sleep(length).await;
    // Before it goes, as a balancer would.
    members.pop();
    stage.known.send_replace(members);
    leave(spare).await?;
    stage.cluster.node(spare).ends_removed(PATIENCE).await?;
    stage.cluster.node(spare).wipe()?;
    Ok(Struck::new(format!("n{spare}"), &[spare]))
}

/// Has `host` leave. Where nobody could take its shards in time, it is asked again, as an operator would.
async fn leave(host: Host) -> Result<(), String> {
    let deadline = sys::now() + PATIENCE.as_nanos() as u64;
    loop {
        match look::post(host, "/v1/cluster/leave", "{}").await {
            Ok(_) => return Ok(()),
            Err(why) if sys::now() > deadline => return Err(format!("n{host} cannot leave: {why}")),
            Err(_) => sleep(Duration::from_secs(1)).await,
        }
    }
}

/// Has the member that `host` was be forgotten.
async fn remove(stage: &Stage, host: Host) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..PATIENCE.as_secs() {
        for asked in stage.others(host) {
            match forget(asked, host).await {
                Ok(()) => return Ok(()),
                Err(why) => last = why,
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
    Err(format!("what n{host} was cannot be removed: {last}"))
}

async fn forget(asked: Host, host: Host) -> Result<(), String> {
    let seen = look::cluster(asked).await?;
    let Some(id) = seen.ids.iter().find(|(_, of)| **of == host).map(|(id, _)| *id) else { return Ok(()) };
    look::post(asked, "/v1/cluster/remove", &format!("{{\"id\":{id}}}")).await.map(drop)
}

async fn until_ready(host: Host) -> Result<(), String> {
    let mut last = String::new();
    for _ in 0..PATIENCE.as_millis() / 200 {
        match look::ready(host).await {
            Ok(()) => return Ok(()),
            Err(why) => last = why,
        }
        sleep(Duration::from_millis(200)).await;
    }
    Err(format!("n{host} is not ready after {} s: {last}", PATIENCE.as_secs()))
}
