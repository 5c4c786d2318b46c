//! A held estimate, and the one way in which it ended.

use serde::{Deserialize, Serialize};

use super::amount::Amount;
use super::decision::Denial;
use super::paid::Paid;
use super::rules::Name;
use super::tenant::{Debited, Path};
use super::time::Moment;

/// A reservation's id: 128 bits, made by the gateway, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ReservationId(pub u128);

impl ReservationId {
    /// The `number`-th of the gateway's life `life`.
    #[must_use]
    pub const fn new(life: u64, number: u64) -> Self {
        Self((life as u128) << 64 | number as u128)
    }

    /// The life of the gateway that made it.
    #[must_use]
    pub const fn life(self) -> u64 {
        // The upper half.
        (self.0 >> 64) as u64
    }

    /// Which of that life's reservations it is.
    #[must_use]
    pub const fn number(self) -> u64 {
        // The lower half.
        self.0 as u64
    }
}

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdempotencyDigest(pub u128);

/// An end user of a tenant, as a 128-bit digest made by the gateway: who that is, nobody here can tell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct UserDigest(pub u128);

/// A pseudonym is personal data too: it goes into no log, not even by accident.
impl std::fmt::Debug for UserDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserDigest(…)")
    }
}

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
    /// It was debited in a state that is lost, and reported by its gateway.
    pub(super) adopted: bool,
    /// How often the provider may have been asked: each time its pool was paid.
    pub(super) attempts: u32,
    /// What it took from purses.
    pub(super) paid: Option<Box<Paid>>,
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
        Self::ended(Phase::Cancelled, None)
    }

    /// One of which nothing is left but the answer that it got.
    pub(super) fn ended(phase: Phase, shadowed: Option<Box<Denial>>) -> Self {
        Self {
            tenant: Name::from(""),
            path: Path::default(),
            held: Amount::default(),
            debited: Debited::default(),
            shadowed,
            version: 0,
            idempotency: None,
            phase,
            adopted: false,
            attempts: 0,
            paid: None,
        }
    }
}
