//! The comparison: every system under every fault, each in a run of its own, and what the worst-treated limit let through.

use std::fmt::Write as _;
use std::time::Duration;

use super::{System, redis};
use crate::checker::{Measured, measure};
use crate::history::History;
use crate::nemesis::{Nemesis, Role};
use crate::run::{Order, run};
use crate::workload::Workload;

/// The faults, whom they strike and for how many tenths of a lease; the first line is none.
const FAULTS: [(&str, Option<(Nemesis, u32)>); 6] = [
    ("none", None),
    ("`kill` of the owner, back at once", Some((Nemesis::Kill, 3))),
    ("`kill` of the owner, back after five leases", Some((Nemesis::Kill, 50))),
    ("`pause` of the owner for five leases", Some((Nemesis::Pause, 50))),
    ("`partition` of the owner for five leases", Some((Nemesis::Partition, 50))),
    ("`mess` between all for five leases", Some((Nemesis::Mess, 50))),
];

const SYSTEMS: [System; 4] = [System::Tollgate, System::Redis, System::RedisOpen, System::Counters];

/// Runs all of it; `order` makes the order of a run from a name and its system. The table, as Markdown.
///
/// # Errors
/// The harness failed, or there is no Redis here.
pub fn compare(order: impl Fn(&str, System) -> Result<Order, String>) -> Result<String, String> {
    redis::is_there()?;
    let mut table = "| fault |".to_owned();
    for system in SYSTEMS {
        let _ = write!(table, " {} |", system.name());
    }
    table += "\n|---|";
    table += &"---|".repeat(SYSTEMS.len());
    for (place, (words, fault)) in FAULTS.iter().enumerate() {
        let _ = write!(table, "\n| {words} |");
        for system in SYSTEMS {
            let mut order = order(&format!("peers-{place}-{}", system.name()), system)?;
            order.workload = Workload::Refilling;
            order.role = Some(Role::Owner);
            order.faults = fault.iter().map(|(nemesis, _)| *nemesis).collect();
            order.length = fault.map(|(_, tenths)| order.options.lease * tenths / 10);
            order.quiet = Duration::from_secs(8);
            order.recovery = Duration::from_secs(8);
            order.admissions = 1;
            let folder = order.folder.clone();
            run(order).map_err(|problem| format!("{} under {words}: {problem}", system.name()))?;
            let cell = cell(&History::read(&folder)?);
            eprintln!("{} under {words}: {cell}", system.name());
            let _ = write!(table, " {cell} |");
        }
    }
    Ok(table)
}

/// What was admitted in the worst interval of the worst tenant by what was allowed in it, how many too many that is, and the part of all
/// attempts that got no decision.
fn cell(history: &History) -> String {
    let undecided = history.attempts.iter().filter(|attempt| !attempt.outcome.is_decided()).count();
    let percent = undecided * 100 / history.attempts.len().max(1);
    match measure(history) {
        Some(Measured { percent: admitted, excess }) => {
            format!("**{}.{:02}** (+{excess}), {percent} %", admitted / 100, admitted % 100)
        }
        None => "nothing was admitted".to_owned(),
    }
}
