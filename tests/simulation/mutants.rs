//! The faults that can be compiled into the product, each with a seed on which a guarantee must break: a check that cannot fail says
//! nothing when it passes.

use super::children::{Job, run_all};
use super::profile::Profile;

/// One fault, and what finds it.
pub struct Mutant {
    pub name: &'static str,
    pub profile: Profile,
    pub seed: u64,
    /// What must break.
    pub guarantee: &'static str,
}

/// All that some seed finds. Those that the timing of a whole cluster hides are found by tests of their own, which `.ci/mutants` names.
/// What hides them:
/// - `from_receipt`: a session is fenced a whole lease after it was condemned, and that is half a lease after it was last granted
///   anything: an answer has to be later than that, and the last one;
/// - `no_incarnation`: an answer comes by the call that asked, so none reaches another life of the process;
/// - `stale_epoch_renewal`: a grant to a condemned session moves its fence, and a lease counts only once the ring is applied by which it
///   was granted;
/// - `stale_handoff`: of all claims on a renunciation the log takes one;
/// - `lease_read`: what an old leader grants by its clock, its successor waits out.
///
/// Of `refill_after_report` no seed is pinned yet, nor of `refund_all`: the pool of profile Q credits no refunds. `purse_outlives_session`
/// shows on one seed of B in ten at most. All three are found where pools and budgets are tested by themselves.
pub const MUTANTS: &[Mutant] = &[
    find("no_expiry", Profile::F, 1, "one_owner"),
    find("before_only", Profile::F, 12, "one_owner"),
    find("cold_full", Profile::H, 4, "no_overspend"),
    find("no_wait_out", Profile::E, 15, "one_owner"),
    find("forward_per_reply", Profile::F, 6, "nothing_leaked"),
    find("no_seal", Profile::H, 0, "no_overspend"),
    find("dedup_early", Profile::F, 1, "resolved_once"),
    find("double_settle", Profile::F, 2, "no_overspend"),
    find("release_on_timeout", Profile::E, 0, "no_overspend"),
    find("slot_leak", Profile::E, 0, "nothing_leaked"),
    find("credit_before", Profile::E, 3, "no_overspend"),
    find("ack_before_fsync", Profile::H, 1, "panic"),
    find("bootstrap_ignores_cluster", Profile::H, 4, "one_cluster"),
    find("use_old_grant", Profile::F, 51, "no_old_grant"),
    find("old_version_answers", Profile::P, 1, "no_overspend"),
    find("escrow_reissue", Profile::B, 3, "budget_holds"),
    find("double_report", Profile::B, 1, "budget_holds"),
    find("alert_each_time", Profile::B, 1, "alert_once"),
    find("report_unkept", Profile::B, 4, "nothing_lost"),
    // What it holds of a session that is over stands in the way of what the next one asks for.
    find("rollover_one_clock", Profile::B, 1, "rolls_by_majority"),
];

const fn find(name: &'static str, profile: Profile, seed: u64, guarantee: &'static str) -> Mutant {
    Mutant { name, profile, seed, guarantee }
}

/// How many seeds beside the pinned one are tried. A change of the product moves what a seed does, not what the checks see.
const OTHERS: u64 = 6;

/// Runs each on its seed, and on others where that finds nothing; those that were not found.
pub fn survivors() -> Vec<String> {
    let mut hiding: Vec<&Mutant> = MUTANTS.iter().collect();
    for round in 0..=OTHERS {
        let jobs = hiding.iter().map(|mutant| Job::Seed {
            profile: mutant.profile,
            seed: mutant.seed + round,
            mutant: Some(mutant.name.to_owned()),
        });
        let mut found = Vec::new();
        run_all(jobs.collect(), |job, report| {
            let Job::Seed { mutant: Some(name), .. } = job else { return };
            let Some(mutant) = MUTANTS.iter().find(|mutant| mutant.name == name) else { return };
            match report.broken.iter().find(|broken| broken.starts_with(mutant.guarantee)) {
                Some(broken) => {
                    println!("mutant {name}: found: {broken}");
                    found.push(mutant.name);
                }
                None => {
                    let (guarantee, command) = (mutant.guarantee, job.command());
                    println!("mutant {name}: not found by {guarantee}: {:?}\n    {command}", report.broken);
                }
            }
        });
        hiding.retain(|mutant| !found.contains(&mutant.name));
    }
    hiding.into_iter().map(|mutant| mutant.name.to_owned()).collect()
}
