//! The policy documents that were agreed on, by version: the last one is in force, the ones before can be looked at and come back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Refusal;
use super::budget::{BudgetKey, BudgetTerms};
use crate::limit::{Name, Terms};

/// The most versions that are kept.
pub const VERSIONS_MAX: usize = 64;

/// The most bytes of all kept documents together, compressed. The last one is kept whatever it takes.
pub const BYTES_MAX: usize = 16 * 1024 * 1024;

/// The longest document, compressed: what one entry of the log takes, which must get through to everybody between two heartbeats.
pub const DOCUMENT_MAX: usize = tollgate_cluster::agreed::COMMAND_MAX - 4096;

/// The longest note of who proposed a version, in bytes; what is longer is cut.
pub const BY_MAX: usize = 200;

/// SHA-256 of a document's text.
pub type Digest = [u8; 32];

/// What a command says about a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The [`super::Control::version`] that it was checked against.
    pub basis: u64,
    /// The version of the policy that it is to replace; 0: there is to be none. Without it, whichever there is.
    pub expect: Option<u64>,
    /// The text, compressed by its proposer.
    pub document: Vec<u8>,
    /// Of the text.
    pub digest: Digest,
    /// Where it comes from.
    pub origin: Origin,
    /// Who proposed it, for people: at most [`BY_MAX`] bytes are kept.
    pub by: String,
    /// The proposer's wall clock, in milliseconds since 1970. For people.
    pub wall_millis: i64,
    /// What other parts of the state need of it.
    pub settings: Settings,
}

/// What the parts of the replicated state need of a policy, compiled by its proposer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// What holds of each pool.
    pub pools: BTreeMap<Name, Terms>,
    /// What holds of each budget.
    pub budgets: BTreeMap<BudgetKey, BudgetTerms>,
}

/// Where a version came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// The file of the first node that had one.
    Seed,
    /// The file of a node, edited.
    File,
    /// An operator.
    Operator,
    /// An operator, who took this earlier version.
    Rollback(u64),
}

/// One version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number.
    pub version: u64,
    /// The text, compressed.
    pub document: Vec<u8>,
    /// Of the text.
    pub digest: Digest,
    /// Where it came from.
    pub origin: Origin,
    /// Who proposed it.
    pub by: String,
    /// The proposer's wall clock, in milliseconds since 1970.
    pub wall_millis: i64,
}

/// The versions that are kept, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    entries: Vec<std::sync::Arc<Entry>>,
}

impl History {
    /// The version in force; none before the first.
    #[must_use]
    pub fn current(&self) -> Option<&Entry> {
        self.entries.last().map(|entry| &**entry)
    }

    /// The number of the version in force; 0 before the first.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.current().map_or(0, |entry| entry.version)
    }

    /// All that are kept, the oldest first.
    pub fn entries(&self) -> impl DoubleEndedIterator<Item = &Entry> + ExactSizeIterator {
        self.entries.iter().map(|entry| &**entry)
    }

    /// The policy that was in force in `version`, whether a policy or a key made that one. None when it is not kept.
    #[must_use]
    pub fn at(&self, version: u64) -> Option<&Entry> {
        self.entries().rev().find(|entry| entry.version <= version)
    }

    /// The newest version with this text.
    #[must_use]
    pub fn find(&self, digest: &Digest) -> Option<&Entry> {
        self.entries().rev().find(|entry| entry.digest == *digest)
    }

    /// Whether the policy in force is what `commit` says, and no other was to be replaced: a repetition, perhaps of one whose answer was lost.
    pub(super) fn is_already(&self, commit: &Commit) -> Option<u64> {
        let current = self.current().filter(|entry| entry.digest == commit.digest)?;
        let fits = commit.expect.is_none_or(|expected| expected <= current.version);
        fits.then_some(current.version)
    }

    pub(super) fn admits(&self, commit: &Commit) -> Result<(), Refusal> {
        let ours = self.version();
        match commit.expect {
            Some(expected) if expected != ours => Err(Refusal::Expected { expected, ours }),
            _ => Ok(()),
        }
    }

    pub(super) fn push(&mut self, version: u64, commit: Commit) {
        let Commit { document, digest, origin, mut by, wall_millis, .. } = commit;
        let end = (0..=BY_MAX.min(by.len())).rev().find(|end| by.is_char_boundary(*end));
        by.truncate(end.unwrap_or(0));
        let entry = Entry { version, document, digest, origin, by, wall_millis };
        self.entries.push(std::sync::Arc::new(entry));
        let mut bytes = 0;
        let fits = |entry: &&std::sync::Arc<Entry>| {
            bytes += entry.document.len();
            bytes <= BYTES_MAX
        };
        let kept = self.entries.iter().rev().take(VERSIONS_MAX).take_while(fits).count().max(1);
        self.entries.drain(..self.entries.len() - kept);
    }
}
