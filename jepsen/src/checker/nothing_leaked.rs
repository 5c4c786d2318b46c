//! `nothing_leaked`: when all is quiet, nothing is open anywhere, and every tenant with slots has all of them.

use super::Verdict;
use crate::history::{History, Probe};

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    let mut unread = Vec::new();
    for probe in &history.probes {
        match probe {
            Probe::Gauge { node, name, value } if *value < 0 => unread.push(format!("{name} of n{node}")),
            Probe::Gauge { node, name, value } if *value > 0 => {
                return Verdict::Invalid(format!(
                    "{name} of n{node} is {value} when nobody asks for anything"
                ));
            }
            Probe::Burst { tenant, wanted, admitted, refused } if *refused > 0 => {
                return Verdict::Invalid(format!(
                    "{tenant} may have {wanted} open and has none: {admitted} of {wanted} were admitted, {refused} refused"
                ));
            }
            Probe::Burst { tenant, wanted, admitted, .. } if admitted < wanted => {
                unread.push(format!("{admitted} of {wanted} of {tenant} were answered"));
            }
            Probe::Gauge { .. } | Probe::Burst { .. } | Probe::Budget { .. } => {}
        }
    }
    match (history.probes.len(), unread.is_empty()) {
        (0, _) => Verdict::Unknown("nobody looked: the run did not come to its end".to_owned()),
        (_, false) => Verdict::Unknown(format!("not to be had: {}", unread.join(", "))),
        (probes, true) => Verdict::Valid(format!("{probes} probes")),
    }
}
