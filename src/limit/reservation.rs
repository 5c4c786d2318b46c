//! A held estimate, and the one way in which it ended.

use super::amount::Amount;
use super::rules::Name;
use super::tenant::{Debited, Path};
use super::time::Moment;

/// A reservation's id: 128 bits, made by the gateway, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub u128);

impl std::fmt::Display for ReservationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ReservationId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

/// An `Idempotency-Key` with the tenant that sent it, as a 128-bit digest made by the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyDigest(pub u128);

#[derive(Debug)]
pub(super) struct Reservation {
    /// Made by a cancel that came before the reservation it cancels.
    pub(super) barred: bool,
    pub(super) tenant: Name,
    pub(super) path: Path,
    pub(super) held: Amount,
    /// No bit is set, and no slot is taken, for a tenant in shadow whose request would have been refused.
    pub(super) debited: Debited,
    pub(super) shadowed: bool,
    /// Of the rules it was debited under.
    pub(super) version: u64,
    pub(super) idempotency: Option<IdempotencyDigest>,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not ended; closed at its estimate when the deadline passes.
    Held { deadline: Moment },
    /// Closed at its deadline. A late settle trues it up, once.
    Expired,
    /// Ended for good. Remembered so that a duplicate changes nothing.
    Over,
}

impl Reservation {
    /// What a cancel leaves behind when it finds nothing: its reservation, should it still come, must debit nothing.
    pub(super) fn barred() -> Self {
        Self {
            barred: true,
            tenant: Name::from(""),
            path: Path::default(),
            held: Amount::default(),
            debited: 0,
            shadowed: true,
            version: 0,
            idempotency: None,
            phase: Phase::Over,
        }
    }
}
