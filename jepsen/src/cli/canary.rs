//! The canary: the product with a fault built in must be caught, or a green run says nothing.
//!
//! It takes a binary that was built with `--cfg mutant`. The variable `MUTANT` names the fault that is in force, and `FAILPOINT` a place
//! where the process now and then stands still.

use std::time::Duration;

use super::{Common, order};
use crate::checker::{Judgement, Outcome, Verdict, judge};
use crate::history::{History, SECOND};
use crate::nemesis::{Nemesis, Role};
use crate::report;
use crate::run::run;
use crate::sys;
use crate::workload::Workload;

/// A fault in the product, the traffic and the fault outside that bring it about, and what must catch it.
struct Mutant {
    name: &'static str,
    workload: Workload,
    nemesis: Nemesis,
    windows: usize,
    role: Role,
    /// The length of a lease.
    lease: Duration,
    /// How long each fault lasts.
    length: Duration,
    /// The first node stands still behind a debit for three leases, once in so many.
    stalls: Option<u32>,
    /// One of these must be broken.
    guarantees: &'static [&'static str],
}

const LEASE: Duration = Duration::from_millis(1_500);

const fn mutant(
    name: &'static str,
    workload: Workload,
    nemesis: Nemesis,
    guarantees: &'static [&'static str],
) -> Mutant {
    Mutant {
        name,
        workload,
        nemesis,
        windows: 2,
        role: Role::Owner,
        lease: LEASE,
        length: Duration::from_millis(4_500),
        stalls: None,
        guarantees,
    }
}

const OVERSPENT: &[&str] = &["no_overspend", "no_overspend_at_provider", "no_overspend_at_owners"];

const MUTANTS: &[Mutant] = &[
    // The owner stalls between its debit and its answer for longer than its lease; nobody looks at the lease again. What leaks is one
    // decision each time, too little to be seen from outside, so the owners' audit shows it.
    Mutant {
        windows: 3,
        length: LEASE,
        stalls: Some(1_000),
        ..mutant("before_only", Workload::Saturating, Nemesis::Duplicate, &["one_owner"])
    },
    // An owner that nobody hears goes on deciding.
    mutant("no_expiry", Workload::Saturating, Nemesis::Partition, &["one_owner"]),
    // Buckets that take 20 s to refill are spent when their owner is killed, and start full at the next one.
    mutant("cold_full", Workload::Drained, Nemesis::Kill, OVERSPENT),
    // The lease is so long that its owner is condemned, after half of it, well before it ends: who led then is dead, and who leads now
    // must wait all the same.
    Mutant {
        windows: 1,
        lease: Duration::from_secs(10),
        length: Duration::from_secs(14),
        ..mutant("no_wait_out", Workload::Saturating, Nemesis::Succession, &["one_owner"])
    },
    // The owner hears and is not heard: it is told of ends, its answers are lost, and it is told again. Each end gives back twenty times
    // what was used. What it gives back twice the audit does not say, but it is spent.
    Mutant {
        windows: 3,
        length: Duration::from_millis(900),
        ..mutant("double_settle", Workload::Metered, Nemesis::PartitionOneWay, OVERSPENT)
    },
    // A gateway is killed with a third of a burst held in streams. Once its session is fenced, that is closed at its estimate; what is
    // given back instead is spent again.
    Mutant {
        windows: 1,
        role: Role::Any,
        length: Duration::from_secs(6),
        ..mutant("release_on_timeout", Workload::Held, Nemesis::Kill, OVERSPENT)
    },
    // Callers leave in the middle, and their slots are not given back.
    Mutant {
        windows: 1,
        length: LEASE,
        ..mutant("slot_leak", Workload::InFlight, Nemesis::Duplicate, &["nothing_leaked"])
    },
];

/// Runs every mutant, or the one that is named. Kept: each was caught.
///
/// # Errors
/// The harness failed.
pub fn canary(common: &Common, only: Option<&str>) -> Result<Outcome, String> {
    let mut missed = Vec::new();
    let chosen: Vec<&Mutant> =
        MUTANTS.iter().filter(|mutant| only.is_none_or(|name| name == mutant.name)).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        return Err(format!("no such mutant; there are {}", names.join(", ")));
    }
    for mutant in &chosen {
        let begun = sys::now();
        let caught = caught(common, mutant)?;
        let took = (sys::now() - begun) / SECOND;
        match &caught {
            Some(Judgement { guarantee, verdict }) => {
                println!("mutant {}: caught by {guarantee} in {took} s: {verdict:?}", mutant.name);
            }
            None => {
                println!("mutant {}: NOT caught in {took} s", mutant.name);
                missed.push(mutant.name);
            }
        }
    }
    if missed.is_empty() {
        println!("{0} of {0} mutants caught", chosen.len());
        return Ok(Outcome::Kept);
    }
    println!("NOT caught: {}. Was the binary built with RUSTFLAGS=\"--cfg mutant\"?", missed.join(", "));
    Ok(Outcome::Broken)
}

fn caught(common: &Common, mutant: &Mutant) -> Result<Option<Judgement>, String> {
    let environment = vec![("MUTANT".to_owned(), mutant.name.to_owned())];
    let faults = vec![mutant.nemesis; mutant.windows];
    let common = Common { lease: mutant.lease.as_millis() as u64, ..common.clone() };
    let mut order = order(&common, &format!("canary-{}", mutant.name), faults, environment)?;
    order.options.failpoint =
        mutant.stalls.map(|every| format!("debited:{}:{every}", order.options.lease.as_millis() * 3));
    order.workload = mutant.workload;
    order.role = Some(mutant.role);
    order.length = Some(mutant.length);
    order.quiet = Duration::from_secs(3);
    order.recovery = Duration::from_secs(5);
    order.admissions = 1;
    let folder = order.folder.clone();
    // A mutant may well keep the cluster from becoming whole again: what was seen until then is judged.
    if let Err(problem) = run(order) {
        eprintln!("the run of {} did not come to its end: {problem}", mutant.name);
    }
    let history = History::read(&folder)?;
    report::write(&folder, &history)?;
    let broken = judge(&history).into_iter().find(|judgement| {
        mutant.guarantees.contains(&&*judgement.guarantee) && matches!(judgement.verdict, Verdict::Invalid(_))
    });
    Ok(broken)
}
