//! Judges a history: one guarantee per file, each a function of the history alone.
//!
//! A verdict is *valid*, *invalid* with the smallest witness that was found, or *unknown* where the history cannot tell. A run passes when
//! every verdict is valid and enough has happened ([`coverage`]): what was not looked at has not been kept.

mod budget_holds;
pub mod coverage;
mod in_flight;
mod keys;
mod liveness;
mod no_overspend;
mod nothing_leaked;
mod one_cluster;
mod one_owner;
mod resolved_once;
mod sdks_heed;
mod stays_up;
#[cfg(test)]
mod tests;
mod tree;
mod usefulness;

use serde::{Deserialize, Serialize};

use crate::history::History;

pub use liveness::{recoveries, silences};
pub use no_overspend::{Measured, measure};

/// What is to be said of a guarantee.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// It was kept, as far as was looked at: what that was.
    Valid(String),
    /// It was broken: the witness.
    Invalid(String),
    /// It cannot be said, and why.
    Unknown(String),
}

/// A guarantee and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// Of which guarantee.
    pub guarantee: String,
    /// What.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// All kept, and enough was looked at.
    Kept,
    /// Inconclusive, or a failure of the harness.
    Inconclusive,
    /// A guarantee is broken.
    Broken,
}

impl Outcome {
    /// The exit code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Kept => 0,
            Self::Broken => 1,
            Self::Inconclusive => 2,
        }
    }

    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Kept => "kept: every guarantee held and enough was looked at",
            Self::Broken => "BROKEN: a guarantee did not hold",
            Self::Inconclusive => "inconclusive: nothing broken was seen, and not enough was looked at",
        }
    }
}

/// A checker's function.
type Check = fn(&History) -> Verdict;

/// All checkers, by the names of their guarantees.
pub const CHECKS: &[(&str, Check)] = &[
    ("no_overspend", no_overspend::at_callers),
    ("no_overspend_at_provider", no_overspend::at_provider),
    ("no_overspend_at_owners", no_overspend::at_owners),
    ("one_owner", one_owner::check),
    ("budget_holds", budget_holds::check),
    ("in_flight", in_flight::check),
    ("keys_hold", keys::check),
    ("resolved_once", resolved_once::check),
    ("nothing_leaked", nothing_leaked::check),
    ("liveness", liveness::check),
    ("sdks_heed", sdks_heed::check),
    ("stays_up", stays_up::check),
    ("usefulness", usefulness::check),
    ("one_cluster", one_cluster::check),
    ("coverage", coverage::check),
];

/// Judges everything.
pub fn judge(history: &History) -> Vec<Judgement> {
    let judged = CHECKS
        .iter()
        .map(|(name, check)| Judgement { guarantee: (*name).to_owned(), verdict: check(history) });
    judged.collect()
}

/// What all verdicts together say.
pub fn outcome(judgements: &[Judgement]) -> Outcome {
    let of = |judgement: &Judgement| match judgement.verdict {
        Verdict::Valid(_) => Outcome::Kept,
        Verdict::Unknown(_) => Outcome::Inconclusive,
        Verdict::Invalid(_) => Outcome::Broken,
    };
    // Nothing was judged: that is no pass.
    judgements.iter().map(of).max().unwrap_or(Outcome::Inconclusive)
}
