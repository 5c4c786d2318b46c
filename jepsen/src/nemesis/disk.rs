//! Faults of the disk, by the shim: only what is in the data folder of the victim is struck.

use std::time::Duration;

use tokio::time::sleep;

use super::{Nemesis, Stage, Struck};
use crate::cluster::table::Disk;

/// For how long a node that met a broken disk may go on before that ends it.
const SEEN: Duration = Duration::from_secs(1);

/// Breaks the disk of one node for `length`. Another is restarted meanwhile, so that there is something to write: each life of a node is an
/// entry of the log.
pub async fn fail(stage: &mut Stage, nemesis: Nemesis, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    let disk = match nemesis {
        Nemesis::DiskEio => Disk::Eio,
        Nemesis::DiskFull => Disk::Full,
        Nemesis::DiskSlow => Disk::Slow(400),
        Nemesis::DiskHung => Disk::Hung,
        _ => Disk::Torn(i64::try_from(stage.chance.below(64)).unwrap_or(0)),
    };
    let io = |error: std::io::Error| error.to_string();
    let before = stage.cluster.node(victim).table.met();
    stage.cluster.node(victim).table.disk(disk).map_err(io)?;
    let others = stage.others(victim);
    let other = (!others.is_empty()).then(|| *stage.chance.pick(&others));
    if let Some(other) = other {
        stage.cluster.node(other).kill();
        stage.cluster.node(other).start()?;
    }
    sleep(length).await;
    let node = stage.cluster.node(victim);
    node.table.disk(Disk::Well).map_err(io)?;
    let met = node.table.met() - before;
    // What it met it may have yet to see.
    node.may_end = met > 0;
    let ended = if node.may_end { node.until_ended(SEEN).await } else { node.ended() };
    let mut struck = Struck::new(format!("{whom}, met {met} times"), &[victim]);
    struck.victims.extend(other);
    if let Some(status) = ended {
        struck.note = format!("n{victim} ended with {status}");
        stage.cluster.node(victim).start()?;
    }
    Ok(struck)
}
