//! The limiter: arithmetic that knows no machine. (state, now, command) → outcome.
//!
//! A tenant's request resolves to a **path** of scopes: key → user → project → tenant → model rule, each with up to four rates and a cap on
//! what is in flight. [`Limiter::reserve`] checks all of them and then debits all of them, or changes nothing;
//! [`Limiter::resolve`] ends the reservation once and trues it up with what was used.
//!
//! Laws (each is a property in `tests/laws.rs`, against a model that does it naively):
//! - `no_overspend`: over every interval `[s, t]` a bucket admits at most `burst + rate·(t − s)`, plus refunds made in it;
//! - `all_or_nothing`: a denial changes no level, takes no slot, remembers no key;
//! - what else pays ([`Purser`]) is asked between the checks and the debits: if it denies, nothing is debited here, and if anything here
//!   denies, it is not asked;
//! - `resolved_once`: a reservation ends once, settled, closed, abandoned or cancelled; what comes after changes nothing, but
//!   that a settle trues up, once, what was closed at its deadline;
//! - the books balance after every command: `reserved − refunded + overage = settled + closed + abandoned + open`;
//! - `honest_refusal`: with no competing traffic, a request that was told to wait is admitted after that wait, and not a
//!   nanosecond earlier;
//! - at one instant and under the same rules, [`Limiter::export`] and [`Limiter::import`] change no answer, and no time on the way
//!   credits anything;
//! - after [`Limiter::cold`] a bucket has admitted at most `rate·t`, and nothing is refunded that was not debited since;
//! - an edit of a limit keeps what is used; a limit that is new starts full, one that comes back starts empty;
//! - a user has at most what the rules give each user, and the tenant what they give it, whoever else asks; the users that are known are
//!   a bounded number, and beyond it those who come share what one may have;
//! - a tenant, and a user, is forgotten only when nothing distinguishes it from one that never came.
//!
//! In `limiter.rs` the commands, in `limiter/export.rs` the way to another node, in `limiter/lost.rs` and `cold.rs` what is done when
//! that way was not taken.
//!
//! Never here: async, I/O, clocks, locks, logs, randomness, floats, iteration over a hash map.

mod amount;
mod books;
mod bucket;
mod cold;
mod decision;
mod draw;
mod exported;
mod limiter;
mod paid;
mod purse;
mod purses;
mod reservation;
mod rules;
mod tenant;
#[cfg(test)]
mod tests;
mod time;
mod units;

pub use amount::{Amount, Dimension};
pub use books::Books;
pub use bucket::{Bucket, Fit, Rate};
pub use decision::{Decision, Denial, LevelView, Levels, Resolution, Resolved, Verdict};
pub use draw::{BudgetDraw, BudgetGranted, Draw, Granted, Terms};
pub use exported::{Exported, Unsound};
pub use limiter::{Announced, Expired, Limiter, Options, Request, ScopeView, TenantView};
pub use paid::{
    Account, BudgetKey, Cycle, Difference, Free, Lane, Paid, Part, PeriodId, PurseOwner, Purser, Unit,
};
pub use purse::{BudgetPurse, Haste, Lack, Left, Purse, ROUND};
pub use purses::{Payment, Purses, Unpaid};
pub use reservation::{IdempotencyDigest, ReservationId, UserDigest};
pub use rules::{ModelMatch, Name, RateLimit, Rules, Scope, ScopeLimits, TenantRules};
pub use time::{MINUTE_NANOS, Moment, Span};
use tollgate_cluster::mutant;
pub use units::Units;
