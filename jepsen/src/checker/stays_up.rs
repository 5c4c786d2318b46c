//! `stays_up`: a node's process ends when it is told to, when its disk fails, and when its node was removed; not otherwise.

use super::Verdict;
use crate::history::History;

/// See the page of this file.
pub fn check(history: &History) -> Verdict {
    match history.ends.first() {
        None => Verdict::Valid("no process ended unasked".to_owned()),
        Some(end) => Verdict::Invalid(format!(
            "n{} ended unasked, seen at {}, with {}; {}",
            end.node,
            end.at,
            end.how,
            history.faults_around(end.at, end.at)
        )),
    }
}
