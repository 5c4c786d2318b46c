//! A limiter on its way to another node: plain data without an instant in it, only levels and lengths of time as of one.
//!
//! What another node reads of it depends on the order of these fields and variants; the codec's golden bytes pin it. Never here:
//! what is granted from elsewhere, which its holder gives back before it exports.

use serde::{Deserialize, Serialize};

use super::amount::{Amount, Dimension};
use super::books::Books;
use super::bucket::Rate;
use super::decision::Denial;
use super::paid::Paid;
use super::reservation::{IdempotencyDigest, ReservationId, UserDigest};
use super::rules::{Name, STEPS, Scope};
use super::time::Span;

/// All live state of one limiter. As large as its tables, which are bounded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exported {
    /// How long ago it began cold, if it did.
    pub(super) cold: Option<Span>,
    /// By name.
    pub(super) tenants: Vec<ExportedTenant>,
    /// Reservations that have not ended, by deadline; the first number is what remains until it.
    pub(super) held: Vec<(Span, ExportedReservation)>,
    /// Those closed at their deadline that a late settle may true up, with what remains of that time.
    pub(super) expired: Vec<(Span, ExportedReservation)>,
    /// The answers remembered for ids that are over, and for how long.
    pub(super) over: Vec<(Span, ExportedEnd)>,
    /// Idempotency keys whose request is over, and for how long they stay taken.
    pub(super) keys: Vec<(Span, IdempotencyDigest, ReservationId)>,
    pub(super) books: Books,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExportedTenant {
    pub(super) name: Name,
    /// Those that a rule binds, those that a reservation names, and users.
    pub(super) scopes: Vec<ExportedScope>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExportedScope {
    pub(super) scope: Scope,
    pub(super) holder: ExportedHolder,
    pub(super) buckets: Vec<ExportedBucket>,
}

/// Who holds a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ExportedHolder {
    /// The scope.
    Scope,
    /// One user; `beside` those who share one place and may be the same.
    User { digest: UserDigest, beside: bool },
    /// A user that was forgotten: no reservation names the place.
    Nobody,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExportedBucket {
    pub(super) dimension: Dimension,
    pub(super) rate: Rate,
    pub(super) level: i64,
    pub(super) carry: u64,
    /// Whether its limit had been removed once and come back.
    pub(super) came_back: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExportedReservation {
    pub(super) id: ReservationId,
    pub(super) tenant: Name,
    /// Its scopes, as places in the tenant's list above.
    pub(super) path: [Option<u32>; STEPS],
    pub(super) held: Amount,
    /// Which of the buckets above it debited: bit `4·step + dimension`.
    pub(super) debited: u32,
    pub(super) shadowed: Option<Box<Denial>>,
    pub(super) idempotency: Option<IdempotencyDigest>,
    pub(super) attempts: u32,
    pub(super) paid: Option<Box<Paid>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExportedEnd {
    pub(super) id: ReservationId,
    pub(super) cancelled: bool,
    pub(super) shadowed: Option<Box<Denial>>,
}

/// What an export says cannot have been a limiter's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsound {
    /// A level above its capacity, or a fraction that is more than a unit.
    #[error("a bucket holds what no bucket can hold")]
    Bucket,
    /// An id, a tenant, a scope or a user that is there twice.
    #[error("something is listed twice")]
    Twice,
    /// A reservation of a scope or a tenant that is not listed.
    #[error("a reservation names what is not listed")]
    Astray,
    /// The totals do not add up, or not to what is open.
    #[error("the books do not balance")]
    Books,
}
