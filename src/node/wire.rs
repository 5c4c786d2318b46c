//! What nodes ask each other about the tenants of a shard. The bytes are `codec`'s.
//!
//! Limits' own values travel as they are; the order of their fields and variants is pinned by the codec's golden bytes. A
//! question names the epoch and the holder's session that it was made for; who holds under others refuses.

use serde::{Deserialize, Serialize};
use tollgate_cluster::id::{Epoch, SessionId};
use tollgate_cluster::lease::LeaseRefusal;
use tollgate_cluster::view::Refusal;

use super::possessions;
use crate::limit::{
    Amount, Announced, Decision, Denial, IdempotencyDigest, Lane, Name, Request, ReservationId, Resolution,
    Resolved, TenantView, UserDigest,
};

/// A question to the holder of a shard.
#[allow(clippy::large_enum_variant, reason = "nearly every question is a decision")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// First end these reservations, in order, then decide on that one: so who asks again at once finds its refunds.
    Decide {
        /// The epoch that it was routed by.
        epoch: Epoch,
        /// The session that is asked.
        session: SessionId,
        /// Reservations that have ended.
        ends: Vec<End>,
        /// What is to be reserved.
        reserve: Option<Reserve>,
    },
    /// The provider is to be asked once more for a reservation that is open: whoever pays its pool pays again.
    Attempt {
        /// The epoch that it was routed by.
        epoch: Epoch,
        /// The session that is asked.
        session: SessionId,
        /// Which reservation.
        of: Of,
        /// The number of the attempt, from 2: the same in every repetition.
        attempt: u32,
    },
    /// What a tenant's limits hold, for a person to look at.
    Look {
        /// Whose.
        tenant: Name,
    },
    /// Whose is what a provider keeps.
    Kept(possessions::Question),
}

/// The end of a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Which.
    pub of: Of,
    /// How it ended.
    pub how: Resolution,
}

/// A reservation, as its gateway names it to the owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Of {
    /// One that was admitted, with all that a holder needs that has not heard of it.
    Held(Announced),
    /// One that may not have been admitted, or that holds nothing.
    Id {
        /// The tenant that asked.
        tenant: Name,
        /// Its id.
        id: ReservationId,
    },
}

impl Of {
    /// Its id.
    #[must_use]
    pub const fn id(&self) -> ReservationId {
        match self {
            Self::Held(open) => open.id,
            Self::Id { id, .. } => *id,
        }
    }

    /// Whose it is.
    #[must_use]
    pub const fn tenant(&self) -> &Name {
        match self {
            Self::Held(open) => &open.tenant,
            Self::Id { tenant, .. } => tenant,
        }
    }
}

/// A reservation that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserve {
    /// Its id: the same in every repetition.
    pub id: ReservationId,
    /// The tenant that pays.
    pub tenant: Name,
    /// The label of the key that asks.
    pub key: Name,
    /// The end user.
    pub user: Option<UserDigest>,
    /// The key's project.
    pub project: Option<Name>,
    /// The resolved model.
    pub model: Name,
    /// The estimate.
    pub need: Amount,
    /// The caller's idempotency key.
    pub idempotency: Option<IdempotencyDigest>,
    /// Whether it goes to the model that its caller asked for.
    pub lane: Lane,
}

impl Reserve {
    /// As the limiter takes it.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request {
            id: self.id,
            tenant: &self.tenant,
            key: &self.key,
            user: self.user,
            project: self.project.as_deref(),
            model: &self.model,
            need: self.need,
            idempotency: self.idempotency,
            lane: self.lane,
        }
    }
}

/// The answer to a question.
#[allow(clippy::large_enum_variant, reason = "one at a time, for one call")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Question::Decide`].
    Decided {
        /// Of each end, in order.
        ends: Vec<Result<Resolved, RefusalCode>>,
        /// Of what was to be reserved.
        reserved: Option<Result<Decision, RefusalCode>>,
    },
    /// To [`Question::Look`]; none when it is not served here, or the rules do not name the tenant.
    Looked(Option<TenantView>),
    /// To [`Question::Attempt`].
    Attempted(Result<Result<(), Denial>, RefusalCode>),
    /// The question is of another version of this program, or broken.
    Unreadable,
    /// To [`Question::Kept`].
    Kept(possessions::Answer),
}

/// Why nothing was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// Another session answers there.
    OtherSession,
    /// The ring is at another epoch there.
    OtherEpoch(Epoch),
    /// The session that was asked is over.
    Fenced,
    /// The shard is on its way to another.
    Sealed,
    /// The shard is not served there.
    NotHere,
    /// There is no lease there. It may have run out while the answer was made, and what was debited stays so under its id.
    NoLease,
}

impl RefusalCode {
    /// For a metric's label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OtherSession => "other_session",
            Self::OtherEpoch(_) => "other_epoch",
            Self::Fenced => "fenced",
            Self::Sealed => "sealed",
            Self::NotHere => "not_here",
            Self::NoLease => "no_lease",
        }
    }

    /// Whether it is certain that nothing was debited.
    #[must_use]
    pub const fn is_clean(self) -> bool {
        !matches!(self, Self::NoLease)
    }
}

impl From<Refusal> for RefusalCode {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OtherSession { .. } => Self::OtherSession,
            Refusal::OtherEpoch { ours } => Self::OtherEpoch(ours),
            Refusal::Fenced => Self::Fenced,
            Refusal::Sealed { .. } => Self::Sealed,
            Refusal::NotHere { .. } => Self::NotHere,
            Refusal::Lease(LeaseRefusal::None | LeaseRefusal::Behind(_)) => Self::NoLease,
        }
    }
}
