//! Faults of clocks, by the shim. Clocks are only edited while the process is stopped, so that no reading runs back within a wait.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use super::{Nemesis, Stage, Struck};
use crate::cluster::table::{Clock, Table};
use crate::network::Host;

const SECOND: i64 = 1_000_000_000;

/// By how far a wall clock jumps: within and beyond what NTP steps, an hour, a period of a budget, a year back.
const JUMPS: [i64; 8] = [
    -300_000_000,
    300_000_000,
    -30 * SECOND,
    30 * SECOND,
    3_600 * SECOND,
    25 * 3_600 * SECOND,
    40 * 86_400 * SECOND,
    -365 * 86_400 * SECOND,
];

/// Clocks that are wrong and go on being so for a while.
pub async fn bend(stage: &mut Stage, nemesis: Nemesis, length: Duration) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    let forwards = stage.chance.below(2) == 0;
    let sign = if forwards { 1 } else { -1 };
    match nemesis {
        Nemesis::WallJump => {
            let by = *stage.chance.pick(&JUMPS);
            edit(stage, victim, |table| table.step(Clock::Realtime, by))?;
            sleep(length).await;
            edit(stage, victim, |table| table.step(Clock::Realtime, -by))?;
            Ok(Struck::new(format!("{whom}, by {} ms and back", by / 1_000_000), &[victim]))
        }
        Nemesis::Slew => {
            let slewed = [Clock::Realtime, Clock::Monotonic, Clock::Boottime];
            gain(stage, victim, &slewed, sign * 80_000, length).await?;
            Ok(Struck::new(format!("{whom}, {} %", sign * 8), &[victim]))
        }
        _ => {
            gain(stage, victim, &Clock::ALL, sign * 4_000, length).await?;
            Ok(Struck::new(format!("{whom}, {} ‰", sign * 4), &[victim]))
        }
    }
}

/// A pause that some clocks do not show, or none.
async fn sleep_of(stage: &mut Stage, victim: Host, clocks: &[Clock], length: Duration) -> Result<(), String> {
    let node = stage.cluster.node(victim);
    node.signal(Signal::STOP);
    let begun = crate::sys::now();
    sleep(length).await;
    let slept = i64::try_from(crate::sys::now() - begun).unwrap_or(i64::MAX);
    for clock in clocks {
        node.table.step(*clock, -slept).map_err(|error| error.to_string())?;
    }
    node.signal(Signal::CONT);
    Ok(())
}

/// A machine that sleeps, or one that is paused from outside.
pub async fn sleep_or_freeze(
    stage: &mut Stage,
    nemesis: Nemesis,
    length: Duration,
) -> Result<Struck, String> {
    let (victim, whom) = stage.victim().await?;
    let hidden = nemesis == Nemesis::Frozen;
    let clocks: &[Clock] = if hidden { &Clock::ALL } else { &[Clock::Monotonic, Clock::Raw] };
    sleep_of(stage, victim, clocks, length).await?;
    Ok(Struck { bounded: hidden, ..Struck::new(whom, &[victim]) })
}

async fn gain(
    stage: &mut Stage,
    victim: Host,
    clocks: &[Clock],
    millionths: i64,
    length: Duration,
) -> Result<(), String> {
    let set = |table: &Table, rate| clocks.iter().try_for_each(|clock| table.gain(*clock, rate));
    edit(stage, victim, |table| set(table, millionths))?;
    sleep(length).await;
    edit(stage, victim, |table| set(table, 0))
}

fn edit(
    stage: &mut Stage,
    victim: Host,
    change: impl Fn(&Table) -> std::io::Result<()>,
) -> Result<(), String> {
    let node = stage.cluster.node(victim);
    node.signal(Signal::STOP);
    let changed = change(&node.table);
    node.signal(Signal::CONT);
    changed.map_err(|error| error.to_string())
}
