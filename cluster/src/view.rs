//! What one node may answer for a shard now: the applied log, its lease and its hold on the shard, combined at one instant.
//!
//! Laws:
//! - `one_owner`: an answer stands only if the lease was valid *after* the debit. The check before it saves work; the one after
//!   makes it safe, since a process can be paused in between. A [`Permit`] is all that the first check gives, and only
//!   redeeming it with a second reading of the clock gives the [`Answerable`] that an answer needs;
//! - a permit borrows the shard: it cannot be sealed between the two checks;
//! - epoch and session of the request must be this node's: a request that was meant for an earlier life, or routed by another
//!   ring, is refused with what holds here, and retried by whom it concerns;
//! - what was debited under a permit that could not be redeemed is forfeited: the answer is a refusal.
//!
//! Never here: reading a clock, deciding amounts.

use std::marker::PhantomData;

use crate::authority::Authority;
use crate::handoff::Slot;
use crate::id::{Epoch, SessionId, ShardId, Version};
use crate::lease::{Holder, LeaseRefusal, Required};
use crate::mutant;
use crate::time::Moment;

/// A node's own state, as whoever decides for one of its shards sees it at one instant.
#[derive(Debug)]
pub struct View<'a, P> {
    /// The log as far as it is applied here.
    pub authority: &'a Authority,
    /// This session's lease.
    pub holder: &'a Holder,
    /// The shard, as this session has it.
    pub slot: &'a Slot<P>,
    /// The version of what the host replicates, as far as it is applied here.
    pub version: Version,
}

/// The first check passed: debit, then redeem. Dropping it is a refusal.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an answer needs the second check: redeem the permit after the debit"]
pub struct Permit<'a> {
    until: Moment,
    complete: bool,
    slot: PhantomData<&'a ()>,
}

/// Both checks passed: the decision stands, as of the second reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answerable {
    at: Moment,
}

/// Why this node does not answer. A caller may retry with the same request id: nothing was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request was for another session.
    #[error("this is session {ours}: look again who holds the shard")]
    OtherSession {
        /// Who answers here.
        ours: SessionId,
    },
    /// The request was routed by another ring.
    #[error("the ring is at epoch {ours} here: catch up, or try again when this node has")]
    OtherEpoch {
        /// What is applied here.
        ours: Epoch,
    },
    /// This session is over.
    #[error("this session is fenced: the node registers a new one, try again")]
    Fenced,
    /// The shard is on its way to another.
    #[error("shard {shard} is sealed here: ask its next holder, shortly")]
    Sealed {
        /// What.
        shard: ShardId,
    },
    /// The shard is not served here.
    #[error("shard {shard} is not served here: ask {holder:?}")]
    NotHere {
        /// What.
        shard: ShardId,
        /// Who is recorded as its holder, if anybody.
        holder: Option<SessionId>,
    },
    /// No lease allows it.
    #[error(transparent)]
    Lease(#[from] LeaseRefusal),
}

impl<'a, P> View<'a, P> {
    /// Whether a request about this shard, made for `session` under `epoch`, may be decided here at `now`.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: what stands against it, and what to do.
    pub fn may_answer(&self, epoch: Epoch, session: SessionId, now: Moment) -> Result<Permit<'a>, Refusal> {
        let ours = self.slot.session();
        if session != ours || session != self.holder.session() {
            return Err(Refusal::OtherSession { ours });
        }
        if epoch != self.authority.epoch() {
            return Err(Refusal::OtherEpoch { ours: self.authority.epoch() });
        }
        if self.authority.is_fenced(session) {
            return Err(Refusal::Fenced);
        }
        let complete = self.serves()?;
        let until = self.holder.check(now, Required { version: self.version, epoch })?;
        Ok(Permit { until, complete, slot: PhantomData })
    }

    /// Whether the shard is served here, and if so, whether all open work is known.
    fn serves(&self) -> Result<bool, Refusal> {
        let shard = self.slot.shard();
        if self.slot.is_sealed() {
            if mutant::is("no_seal") {
                return Ok(true);
            }
            return Err(Refusal::Sealed { shard });
        }
        let holder = self.authority.holder(shard).map(|(_, session)| session);
        match self.slot.serving() {
            Some(serving) if holder == Some(self.slot.session()) => Ok(serving.is_complete()),
            _ => Err(Refusal::NotHere { shard, holder }),
        }
    }
}

impl Permit<'_> {
    /// Whether everybody has announced what it holds open: until then nothing that counts open work may be admitted.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The second check, with a clock reading made after the debit.
    ///
    /// # Errors
    ///
    /// [`Refusal::Lease`] when the lease ran out since the first: what was debited is forfeited.
    pub fn redeem(self, now: Moment) -> Result<Answerable, Refusal> {
        if now < self.until { Ok(Answerable { at: now }) } else { Err(Refusal::Lease(LeaseRefusal::None)) }
    }
}

impl Answerable {
    /// The decision's instant, on this node's lease clock.
    #[must_use]
    pub const fn at(self) -> Moment {
        self.at
    }
}
