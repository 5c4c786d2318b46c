//! What operators have excepted from the policy, tenant by tenant: those that are suspended, and limits that are overridden for a while.
//!
//! Laws:
//! - an exception stands beside the document: an edit of that neither ends nor changes one, and nothing of it is written there;
//! - an override ends by itself, once, in an entry that every node puts in force like any other version (`Exceptions::lapse`). Its end is
//!   in **log time**, so that no wall clock shortens or lengthens it; the time in which the cluster has no leader does not count;
//! - a second override of a tenant replaces the first, and a suspension is not changed by it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate_cluster::log_time::LogTime;

use super::Refusal;
use super::keys::Limits;

/// The most tenants that are suspended at once.
pub const SUSPENDED_MAX: usize = 65_536;

/// The most tenants whose limits are overridden at once.
pub const OVERRIDES_MAX: usize = 4_096;

/// The longest override: a week, in nanoseconds. What is to hold longer belongs into the policy.
pub const OVERRIDE_LONGEST: u64 = 7 * 24 * 3_600 * 1_000_000_000;

/// A change of an exception.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The [`super::Control::version`] that it was checked against.
    pub basis: u64,
    /// The proposer's wall clock, in milliseconds since 1970. For people.
    pub wall_millis: i64,
    /// Whose.
    pub tenant: String,
    /// What.
    pub change: Change,
}

/// What is done to a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// Nothing of it is admitted any more. What is open goes on.
    Suspend,
    /// It is admitted again.
    Resume,
    /// These limits hold instead of the policy's, so long.
    Override {
        /// What is absent stays as the policy has it.
        limits: Limits,
        /// In nanoseconds; at most [`OVERRIDE_LONGEST`] counts.
        length: u64,
    },
    /// The policy's limits hold again.
    Restore,
}

/// A tenant of which nothing is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspension {
    /// The version that it came in.
    pub since: u64,
    /// The proposer's wall clock then, in milliseconds since 1970.
    pub wall_millis: i64,
}

/// Limits that hold instead of the policy's for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// What is absent stays as the policy has it.
    pub limits: Limits,
    /// The version that it came in.
    pub since: u64,
    /// When it ends.
    pub until: LogTime,
    /// When that is about, by the proposer's wall clock, in milliseconds since 1970. For people.
    pub wall_until: i64,
}

/// All exceptions, by tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exceptions {
    suspended: BTreeMap<String, Suspension>,
    overrides: BTreeMap<String, Override>,
}

impl Exceptions {
    /// Who is suspended.
    #[must_use]
    pub const fn suspended(&self) -> &BTreeMap<String, Suspension> {
        &self.suspended
    }

    /// Whose limits are overridden.
    #[must_use]
    pub const fn overrides(&self) -> &BTreeMap<String, Override> {
        &self.overrides
    }

    /// When the next override ends.
    #[must_use]
    pub fn next_lapse(&self) -> Option<LogTime> {
        self.overrides.values().map(|one| one.until).min()
    }

    /// Makes a change at `now`, in `version`, or refuses it whole.
    pub(super) fn apply(&mut self, now: LogTime, version: u64, commit: Commit) -> Result<(), Refusal> {
        let Commit { wall_millis, tenant, change, .. } = commit;
        match change {
            Change::Suspend => {
                if self.suspended.contains_key(&tenant) {
                    return Err(Refusal::NoChange(format!("tenant {tenant} is suspended already")));
                }
                if self.suspended.len() >= SUSPENDED_MAX {
                    let what = "tenants are suspended: take some out of the policy instead";
                    return Err(too_many(what, SUSPENDED_MAX));
                }
                self.suspended.insert(tenant, Suspension { since: version, wall_millis });
            }
            Change::Resume => {
                if self.suspended.remove(&tenant).is_none() {
                    return Err(Refusal::NoChange(format!("tenant {tenant} is not suspended")));
                }
            }
            Change::Override { limits, length } => {
                if !self.overrides.contains_key(&tenant) && self.overrides.len() >= OVERRIDES_MAX {
                    let what = "tenants' limits are overridden: write them into the policy instead";
                    return Err(too_many(what, OVERRIDES_MAX));
                }
                let length = length.min(OVERRIDE_LONGEST);
                let until = LogTime(now.0.saturating_add(length));
                let millis = i64::try_from(length / 1_000_000).unwrap_or(i64::MAX);
                let wall_until = wall_millis.saturating_add(millis);
                self.overrides.insert(tenant, Override { limits, since: version, until, wall_until });
            }
            Change::Restore => {
                if self.overrides.remove(&tenant).is_none() {
                    return Err(Refusal::NoChange(format!("no limit of tenant {tenant} is overridden")));
                }
            }
        }
        Ok(())
    }

    /// Whether an override has ended at `now`.
    pub(super) fn has_lapsed(&self, now: LogTime) -> bool {
        self.next_lapse().is_some_and(|next| next <= now)
    }

    /// Ends what has ended at `now`.
    pub(super) fn lapse(&mut self, now: LogTime) {
        self.overrides.retain(|_, one| one.until > now);
    }
}

fn too_many(what: &str, most: usize) -> Refusal {
    Refusal::TooMany { what: what.to_owned(), most: u64::try_from(most).unwrap_or(u64::MAX) }
}
