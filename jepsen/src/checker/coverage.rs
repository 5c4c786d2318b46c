//! Coverage: a run in which little happened proves little. What was planned must have happened, and under traffic.

use std::collections::BTreeSet;

use super::Verdict;
use crate::history::{History, Outcome};

/// How many admissions a history has.
pub fn admissions(history: &History) -> usize {
    history.attempts.iter().filter(|attempt| attempt.outcome == Outcome::Admitted).count()
}

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let (plan, admitted) = (&history.plan, admissions(history));
    let mut missing = Vec::new();
    if history.windows.len() < plan.windows {
        missing.push(format!("{} of {} faults were made", history.windows.len(), plan.windows));
    }
    if admitted < plan.admissions {
        missing.push(format!("{admitted} of {} admissions", plan.admissions));
    }
    let refused = history.attempts.iter().filter(|attempt| attempt.outcome == Outcome::Limited).count();
    if refused == 0 {
        missing.push("no limit ever refused anything".to_owned());
    }
    for window in &history.windows {
        let during = |at| window.begin <= at && at <= window.healed;
        if !history.attempts.iter().any(|attempt| during(attempt.inv)) {
            missing.push(format!("nobody asked for anything during {}", window.nemesis));
        }
        if window.what.contains("met 0 times") {
            missing.push(format!("{} was never met", window.nemesis));
        }
    }
    for kind in &plan.kinds {
        if !history.windows.iter().any(|window| window.nemesis == *kind) {
            missing.push(format!("{kind} never happened"));
        }
    }
    if !plan.kinds.is_empty() {
        let admitted = history.attempts.iter().filter(|attempt| attempt.outcome == Outcome::Admitted);
        let served: BTreeSet<&str> = admitted.map(|attempt| attempt.tenant.as_str()).collect();
        let idle = plan.tenants.keys().filter(|tenant| !served.contains(tenant.as_str()));
        missing.extend(idle.map(|tenant| format!("nothing of {tenant} was admitted")));
    }
    if missing.is_empty() {
        Verdict::Valid(format!("{} faults, {admitted} admitted, {refused} refused", history.windows.len()))
    } else {
        Verdict::Unknown(missing.join("; "))
    }
}
