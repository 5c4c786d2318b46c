//! The limiter: arithmetic that knows no machine. (state, now, command) → outcome.
//!
//! A tenant's request resolves to a **path** of scopes: key → project → tenant → model rule, each with up to four rates and a cap on
//! what is in flight. [`Limiter::reserve`] checks all of them and then debits all of them, or changes nothing;
//! [`Limiter::resolve`] ends the reservation once and trues it up with what was used.
//!
//! Laws (each is a property in `tests/laws.rs`, against a model that does it naively):
//! - `no_overspend`: over every interval `[s, t]` a bucket admits at most `burst + rate·(t − s)`, plus refunds made in it;
//! - `all_or_nothing`: a denial changes no level, takes no slot, remembers no key;
//! - `resolved_once`: a reservation ends once, settled, closed, abandoned or cancelled; what comes after changes nothing, but
//!   that a settle trues up, once, what was closed at its deadline;
//! - the books balance after every command: `reserved − refunded + overage = settled + closed + abandoned + open`;
//! - `honest_refusal`: with no competing traffic, a request that was told to wait is admitted after that wait, and not a
//!   nanosecond earlier;
//! - an edit of a limit keeps what is used; a limit that is new starts full, one that comes back starts empty;
//! - a tenant is forgotten only when nothing distinguishes it from one that never came.
//!
//! Never here: async, I/O, clocks, locks, logs, randomness, floats, iteration over a hash map.

mod amount;
mod books;
mod bucket;
mod decision;
mod limiter;
mod reservation;
mod rules;
mod tenant;
#[cfg(test)]
mod tests;
mod time;

pub use amount::{Amount, Dimension};
pub use books::Books;
pub use bucket::{Bucket, Fit, Rate};
pub use decision::{Decision, Denial, LevelView, Levels, Resolution, Resolved, Verdict};
pub use limiter::{Expired, Limiter, Options, Request, ScopeView, TenantView};
pub use reservation::{IdempotencyDigest, ReservationId};
pub use rules::{ModelMatch, Name, RateLimit, Rules, Scope, ScopeLimits, TenantRules};
pub use time::{MINUTE_NANOS, Moment, Span};
