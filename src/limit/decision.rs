//! What the limiter answers: values, never errors.

use serde::{Deserialize, Serialize};

use super::amount::Dimension;
use super::paid::{BudgetKey, Paid};
use super::purse::Lack;
use super::rules::{Name, Scope};
use super::time::Span;

/// Why a reservation was refused. A refusal has changed no counter and charged nothing (`all_or_nothing`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Denial {
    /// A bucket on the path does not hold enough now.
    Rate {
        /// Whose bucket: the first on the path that refuses.
        scope: Scope,
        /// What it counts.
        dimension: Dimension,
        /// What the request needs.
        need: u64,
        /// What the bucket holds; negative is debt.
        level: i64,
        /// What it holds when full.
        capacity: u64,
        /// When every bucket of the path will hold enough, if nothing else is admitted meanwhile.
        wait: Span,
    },
    /// The request is larger than a bucket on the path: no wait helps.
    Never {
        /// Whose bucket.
        scope: Scope,
        /// What it counts.
        dimension: Dimension,
        /// What the request needs.
        need: u64,
        /// The most that it could ever get.
        capacity: u64,
    },
    /// As many requests as allowed are in flight. When one ends is not known.
    Inflight {
        /// Whose slots.
        scope: Scope,
        /// How many there are.
        max: u32,
    },
    /// A request with the same idempotency key is still open.
    IdempotencyInProgress,
    /// A request with the same idempotency key was sent to a provider and is over.
    AlreadyDispatched,
    /// It was cancelled before it arrived.
    Cancelled,
    /// The tenant is not in the rules.
    UnknownTenant,
    /// A bounded table of the limiter is full; it refuses rather than forget early.
    Full,
    /// The path has a cap on what is in flight, and not all that is in flight is known here yet.
    Recovering,
    /// Nobody who may decide could be asked in time. Never an answer of a limiter: what its requester makes of its silence.
    Unavailable,
    /// An operator has suspended the tenant. Never an answer of a limiter: its gateway knows.
    Suspended,
    /// The pool of the model does not pay.
    Pool {
        /// Which.
        pool: Name,
        /// Why not.
        lack: Lack,
    },
    /// A budget does not have what is needed.
    Budget {
        /// Which.
        budget: BudgetKey,
        /// What the request needs, in the budget's unit.
        need: u64,
        /// What nobody holds and nobody has used.
        remaining: u64,
        /// When the period ends, in seconds since 1970; none while that is not known.
        resets: Option<i64>,
    },
    /// A purse is short and a grant for it is on its way. Never what a caller is told: whoever asked asks again with the same id, and if
    /// its patience ends first, says what is inside.
    Granting(Box<Denial>),
    /// The key was revoked after the request had shown it. Never an answer of a limiter: its gateway knows.
    Revoked,
}

impl Denial {
    /// Whether it is worth asking again in a moment.
    #[must_use]
    pub const fn is_granting(&self) -> bool {
        matches!(self, Self::Granting(_))
    }

    /// Whether whoever has waited for the provider already may as well wait for this: a grant that is on its way, or a pause that the
    /// provider asked for.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Granting(_) | Self::Pool { lack: Lack::Paused { .. }, .. })
    }
}

/// One bucket as a caller may see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LevelView {
    /// The configured rate, in units per minute.
    pub per_minute: u64,
    /// What it holds when full.
    pub capacity: u64,
    /// What it holds; negative is debt.
    pub level: i64,
    /// How long until it is full.
    pub until_full: Span,
}

/// Of each dimension, the bucket on the path that has the least left, indexed by [`Dimension::index`].
pub type Levels = [Option<LevelView>; 4];

/// The answer's kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Everything on the path was debited.
    Admitted,
    /// It would have been refused, but its tenant is in shadow: let through, nothing debited.
    Shadowed(Denial),
    /// Refused.
    Denied(Denial),
}

/// The answer to a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Admitted or not.
    pub verdict: Verdict,
    /// The path's levels after the answer.
    pub levels: Levels,
    /// The version of the rules it was made under.
    pub version: u64,
    /// What it took from purses, if it was admitted.
    pub paid: Option<Box<Paid>>,
}

impl Decision {
    /// Whether it is worth asking again in a moment.
    #[must_use]
    pub const fn is_granting(&self) -> bool {
        matches!(&self.verdict, Verdict::Denied(denial) if denial.is_granting())
    }

    /// Nobody waits any longer: a denial is what it would be without the grant that is on its way.
    pub fn give_up_waiting(&mut self) {
        if let Verdict::Denied(Denial::Granting(inside)) = &mut self.verdict {
            self.verdict = Verdict::Denied(std::mem::replace(inside, Denial::Unavailable));
        }
    }
}

impl Decision {
    /// Whether it was admitted, and budgets pay for it.
    #[must_use]
    pub fn is_paid_by_budgets(&self) -> bool {
        self.verdict == Verdict::Admitted && self.paid.as_ref().is_some_and(|paid| !paid.budgets.is_empty())
    }
}

/// How a reservation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolution {
    /// True up to what was used: a signed delta, debt allowed.
    Settle(super::amount::Amount),
    /// No better number than the estimate: it stands.
    Close,
    /// Dropped by its holder: the estimate stands.
    Abandon,
    /// Nothing was sent to a provider: everything is refunded, the request too.
    Cancel,
}

/// What resolving did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Resolved {
    /// It ended now. In total tokens.
    Now {
        /// Held and not used: given back.
        refunded: u64,
        /// Used beyond what was held: charged, into debt if need be.
        overage: u64,
    },
    /// It had been closed at its deadline and is now trued up, once.
    Late {
        /// Held and not used.
        refunded: u64,
        /// Used beyond what was held.
        overage: u64,
    },
    /// It had ended before; nothing changed.
    Already,
    /// No such reservation here; nothing changed.
    Unknown,
}
