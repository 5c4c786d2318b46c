//! The whole cluster through seeded trouble: real members and gateways, on a simulated network, disks that forget and clocks that drift.
//!
//! ```text
//! cargo test --workspace --test simulation                              five seeds of each profile
//! cargo test --workspace --test simulation -- --seeds 300               more of them
//! cargo test --workspace --test simulation -- --seed 7 --profile F      one, and what was wrong
//! cargo test --workspace --test simulation -- --twice 7 --profile F     one twice: the same history to the last event
//! RUSTC_WORKSPACE_WRAPPER=.ci/rustc-with-faults cargo test --workspace --test simulation -- --mutants
//! ```
//!
//! Laws:
//! - a seed decides everything: the network, the disks, the clocks, chance, the scheduler;
//! - what is judged is the history alone, in true time: `one_owner`, `no_overspend`, `guard_holds`, `resolved_once`, `nothing_lost`, of
//!   budgets `budget_holds`, `alert_once`, `rolls_by_majority` and `one_state`, and after the heal that everything is answered for again and nothing stays open;
//! - a run that admits next to nothing, and a run of all seeds in which something never happened, fail too.
//!
//! Each seed has a process of its own, since the chance of a process can be seeded once.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]

#[path = "simulation/budgets.rs"]
mod budgets;
#[path = "simulation/carrier.rs"]
mod carrier;
#[path = "simulation/children.rs"]
mod children;
#[path = "simulation/clock.rs"]
mod clock;
#[path = "simulation/edits.rs"]
mod edits;
#[path = "simulation/history.rs"]
mod history;
#[path = "simulation/host.rs"]
mod host;
#[path = "simulation/load.rs"]
mod load;
#[path = "simulation/mutants.rs"]
mod mutants;
#[path = "simulation/nemesis.rs"]
mod nemesis;
#[path = "simulation/profile.rs"]
mod profile;
#[path = "simulation/run.rs"]
mod run;
#[path = "../cluster/tests/turmoil_world/mod.rs"]
mod turmoil_world;
#[path = "simulation/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use rand::SeedableRng as _;

use children::{Job, run_all};
use profile::Profile;
use run::Report;

/// Seeds of each profile, unless it is said how many.
const SEEDS: u64 = 5;

/// What must have happened somewhere in all runs of all seeds.
const MUST_HAPPEN: &[&str] = &[
    "again: no_lease",
    "again: no_answer",
    "again: former_holder",
    "alerts",
    "answers lost",
    "budget refusals",
    "budgets written off",
    "closed at estimates",
    "cold starts",
    "delayed",
    "duplicates",
    "ends refused",
    "ends replayed",
    "ends retried",
    "ends told twice",
    "expired",
    "exports",
    "fault: crash",
    "fault: cut",
    "fault: paused",
    "fences",
    "grants waited for",
    "handed over",
    "imports and first openings",
    "joined",
    "late",
    "purses written off",
    "rollovers",
];

/// Lets time pass.
async fn pass(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let after = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag)?;
        Some(arguments.get(at + 1).cloned().unwrap_or_default())
    };
    let number = |flag: &str| after(flag).and_then(|text| text.parse::<u64>().ok());
    let profile = after("--profile").and_then(|name| Profile::of(&name));
    let filter = arguments.first().filter(|first| !first.starts_with('-'));
    if arguments.iter().any(|argument| argument == "--list")
        || filter.is_some_and(|filter| !"simulation".contains(filter.as_str()))
    {
        return result(0, 0);
    }
    if let Some(nodes) = number("--measure") {
        return alone(nodes, arguments.contains(&"--json".to_owned()), move || run::measure(nodes as usize));
    }
    if let Some(seed) = number("--seed") {
        let Some(profile) = profile else { return usage("--seed needs --profile E, F, G, H, P, Q or B") };
        return alone(seed, arguments.contains(&"--json".to_owned()), move || run::run(profile, seed));
    }
    if let Some(seed) = number("--twice") {
        let Some(profile) = profile else { return usage("--twice needs --profile E, F, G, H, P, Q or B") };
        return result(1, usize::from(!twice(profile, seed)));
    }
    if let Some(mutant) = after("--hunt") {
        return hunt(&mutant, profile, number("--seeds").unwrap_or(SEEDS));
    }
    if arguments.iter().any(|argument| argument == "--mutants") {
        if !cfg!(mutant) {
            return usage(
                "this build holds no mutants: RUSTC_WORKSPACE_WRAPPER=.ci/rustc-with-faults makes one that does",
            );
        }
        let survivors = mutants::survivors();
        return result(mutants::MUTANTS.len(), survivors.len());
    }
    let each = number("--seeds").map_or(SEEDS, |all| all.div_ceil(Profile::ALL.len() as u64).max(1));
    everything(each)
}

/// All profiles on their first seeds.
fn everything(each: u64) -> ExitCode {
    let seeds =
        (0..each).flat_map(|seed| Profile::ALL.map(|profile| Job::Seed { profile, seed, mutant: None }));
    let jobs: Vec<Job> = seeds.collect();
    let count = jobs.len();
    let mut failed = 0;
    let reports = run_all(jobs, |job, report| {
        let Job::Seed { profile, seed, .. } = job else { return };
        let verdict = if report.broken.is_empty() { "ok" } else { "FAILED" };
        let recovery = report.recovery.map_or_else(|| "never".to_owned(), |took| format!("{took} ms"));
        println!("test {profile:?} {seed} … {verdict} ({} admitted, answered after {recovery})", report.used);
        if !report.broken.is_empty() {
            failed += 1;
            tell_broken(report);
            println!("    again: {}", job.command());
        }
    });
    for profile in [Profile::F, Profile::B] {
        failed += usize::from(!twice(profile, 1));
    }
    let all = sum(&reports);
    for what in MUST_HAPPEN.iter().filter(|what| all.get(**what).is_none_or(|count| *count == 0)) {
        println!("vacuous: in no run there was any of: {what}");
        failed += 1;
    }
    summary(&reports, &all);
    if !measured() {
        failed += 1;
    }
    result(count, failed.min(count))
}

fn sum(reports: &[(Job, Report)]) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (_, report) in reports {
        for (what, count) in &report.counters {
            *all.entry(what.clone()).or_default() += count;
        }
    }
    all
}

fn summary(reports: &[(Job, Report)], all: &BTreeMap<String, u64>) {
    let simulated: u64 = reports.iter().map(|(_, report)| report.simulated_millis).sum();
    let used: u64 = reports.iter().map(|(_, report)| report.used).sum();
    let mut recoveries: Vec<u64> = reports.iter().filter_map(|(_, report)| report.recovery).collect();
    recoveries.sort_unstable();
    let middle = recoveries.get(recoveries.len() / 2).copied().unwrap_or(0);
    let most = recoveries.last().copied().unwrap_or(0);
    println!(
        "\nsimulated {} s; {used} requests admitted; answered again after {middle} ms (p50), {most} ms (max)",
        simulated / 1000
    );
    let mut refused: BTreeMap<&str, u64> = BTreeMap::new();
    for (why, count) in reports.iter().flat_map(|(_, report)| &report.refused) {
        *refused.entry(why).or_default() += count;
    }
    println!("refused: {refused:?}");
    for (what, count) in all {
        println!("  {count:>8} {what}");
    }
}

/// Messages per decision must not grow with the number of nodes.
fn measured() -> bool {
    let reports = run_all([3, 5, 9].map(|nodes| Job::Measure { nodes }).into(), |_, _| {});
    let mut figures: Vec<(usize, f64)> = reports
        .iter()
        .filter_map(|(job, report)| {
            let Job::Measure { nodes } = job else { return None };
            let count = |what: &str| report.counters.get(what).copied().unwrap_or(0) as f64;
            Some((*nodes, count("questions") / count("decisions")))
        })
        .collect();
    figures.sort_by_key(|(nodes, _)| *nodes);
    println!("questions to other nodes per decision, by nodes: {figures:.2?}");
    // At most one for the decision and one for its end; with more nodes fewer decisions are made where they are asked for.
    figures.len() == 3 && figures.iter().all(|(_, each)| *each < 2.0)
}

/// One seed in two processes, with one history.
fn twice(profile: Profile, seed: u64) -> bool {
    let job = Job::Seed { profile, seed, mutant: None };
    let reports = run_all(vec![job.clone(), job], |_, _| {});
    let same = reports[0].1.fingerprint == reports[1].1.fingerprint && reports[0].1.used > 0;
    println!("test {profile:?} {seed} twice … {}", if same { "ok" } else { "FAILED: two histories" });
    same
}

/// Looks for seeds that find `mutant`.
fn hunt(mutant: &str, profile: Option<Profile>, seeds: u64) -> ExitCode {
    let profiles = profile.map_or(Profile::ALL.to_vec(), |profile| vec![profile]);
    let jobs = (0..seeds).flat_map(|seed| {
        profiles.iter().map(move |&profile| Job::Seed { profile, seed, mutant: Some(mutant.to_owned()) })
    });
    run_all(jobs.collect(), |job, report| {
        let Job::Seed { profile, seed, .. } = job else { return };
        println!("{mutant} {profile:?} {seed}: {} {:?}", report.broken.len(), report.broken.first());
    });
    ExitCode::SUCCESS
}

/// A run in this process, which was not used for anything before.
fn alone(seed: u64, json: bool, run: impl FnOnce() -> Report + Send + 'static) -> ExitCode {
    children::bound_this_process();
    if let Ok(filter) = std::env::var("SIMULATION_LOG") {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .without_time()
            .with_ansi(false)
            .with_writer(std::io::stderr)
            .init();
    }
    std::panic::set_hook(Box::new(|panic| {
        if let Ok(mut panics) = run::PANICS.lock() {
            panics.push(panic.to_string());
        }
        eprintln!("{panic}");
    }));
    mad_turmoil::rand::set_rng(rand::rngs::StdRng::seed_from_u64(seed));
    // A thread of its own: what std draws once per thread is drawn by the seed.
    let judged = std::thread::spawn(move || {
        tollgate_cluster::raft::seed_for_this_thread(seed);
        let _clocks = mad_turmoil::time::SimClocksGuard::init();
        run()
    });
    let report = judged.join().unwrap_or_else(|_| {
        let panics = run::PANICS.lock().map(|panics| panics.clone()).unwrap_or_default();
        Report {
            broken: panics.into_iter().map(|panic| format!("panic: {panic}")).collect(),
            ..Report::default()
        }
    });
    if json {
        println!("{}", serde_json::to_string(&report).unwrap());
        return ExitCode::SUCCESS;
    }
    tell_broken(&report);
    println!(
        "{} admitted, refused {:?}, answered after {:?} ms, fingerprint {:x}",
        report.used, report.refused, report.recovery, report.fingerprint
    );
    println!("{:#?}", report.counters);
    result(1, usize::from(!report.broken.is_empty()))
}

fn tell_broken(report: &Report) {
    for broken in report.broken.iter().take(10) {
        println!("    {broken}");
    }
    if report.broken.len() > 10 {
        println!("    … and {} more", report.broken.len() - 10);
    }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}");
    ExitCode::from(2)
}

/// The line that whoever counts tests reads.
fn result(count: usize, failed: usize) -> ExitCode {
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {verdict}. {} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out",
        count - failed
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
