//! A held estimate, and the one way in which it ended.

use super::amount::Amount;
use super::decision::Denial;
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

#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) tenant: Name,
    /// The slots that it names: none when it was let through in shadow.
    pub(super) path: Path,
    pub(super) held: Amount,
    pub(super) debited: Debited,
    /// Why it would have been refused, had its tenant not been in shadow. Such a one debited nothing and took no slot.
    pub(super) shadowed: Option<Box<Denial>>,
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
    /// Nothing was sent, nothing is charged, and whoever asks again is not admitted.
    Cancelled,
}

impl Reservation {
    /// What a cancel leaves behind when it finds nothing: its reservation, should it still come, must debit nothing.
    pub(super) fn barred() -> Self {
        Self {
            tenant: Name::from(""),
            path: Path::default(),
            held: Amount::default(),
            debited: Debited::default(),
            shadowed: None,
            version: 0,
            idempotency: None,
            phase: Phase::Cancelled,
        }
    }
}
