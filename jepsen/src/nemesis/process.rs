//! Faults of processes: ended, paused, starved.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::{Stage, Struck};
use crate::network::switch::Rule;
use crate::sys;

/// SIGKILL; started again after `length`.
pub async fn kill(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    stage.cluster.node(victim).kill();
    sleep(length).await;
    stage.cluster.node(victim).start()?;
    Ok(Struck::new(whom, &[victim]))
}

/// SIGKILL for all; started again after `length`.
pub async fn kill_all(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let all = stage.cluster.running();
    for host in &all {
        stage.cluster.node(*host).kill();
    }
    sleep(length).await;
    for host in &all {
        stage.cluster.node(*host).start()?;
    }
    Ok(Struck::new("all nodes", &all))
}

/// SIGKILL for the leader while an owner is alone; the leader is started again at once, so that a majority lives.
pub async fn succession(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let leader = stage.cluster.leader().await.ok_or("nobody leads")?;
    // One that decides for somebody who asks.
    let mut owners = Vec::new();
    for tenant in &stage.tenants {
        owners.extend(stage.cluster.owner_of(tenant).await.filter(|owner| *owner != leader));
    }
    if owners.is_empty() {
        return Err("nobody but the leader owns a tenant that asks".to_owned());
    }
    let owner = *stage.chance.pick(&owners);
    let rest = stage.others(owner);
    stage.cluster.wires.apply(vec![Rule::cut(&[owner], &rest), Rule::cut(&rest, &[owner])]);
    stage.cluster.node(leader).kill();
    stage.cluster.node(leader).start()?;
    sleep(length).await;
    Ok(Struck::new(format!("n{leader}, the leader, killed; n{owner}, an owner, alone"), &[leader, owner]))
}

/// SIGTERM; started again `length` after its end.
pub async fn restart(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    stage.cluster.node(victim).stop().await?;
    sleep(length).await;
    stage.cluster.node(victim).start()?;
    Ok(Struck::new(whom, &[victim]))
}

/// SIGSTOP, SIGCONT.
pub async fn pause(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    stage.cluster.node(victim).signal(Signal::STOP);
    sleep(length).await;
    stage.cluster.node(victim).signal(Signal::CONT);
    Ok(Struck::new(whom, &[victim]))
}

/// Stopped for 95 of every 100 ms: what a quota of 5 % does, without a control group.
pub async fn starve(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    let until = sys::now() + length.as_nanos() as u64;
    while sys::now() < until {
        stage.cluster.node(victim).signal(Signal::STOP);
        sleep(Duration::from_millis(95)).await;
        stage.cluster.node(victim).signal(Signal::CONT);
        sleep(Duration::from_millis(5)).await;
    }
    Ok(Struck::new(whom, &[victim]))
}

/// No more than two files or connections beyond those that are open.
pub async fn descriptors(stage: &mut Stage, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    let node = stage.cluster.node(victim);
    let open = node.open_descriptors();
    let before = node.descriptors(open + 2)?;
    sleep(length).await;
    // It may have ended: then there is nothing to lift, but it is to run again.
    let ended = node.ended();
    if let Some(status) = ended {
        node.start()?;
        let mut struck = Struck::new(whom, &[victim]);
        struck.note = format!("it ended with {status}");
        return Ok(struck);
    }
    node.descriptors(before)?;
    node.may_end = true;
    Ok(Struck::new(format!("{whom}, {open} + 2"), &[victim]))
}
