//! The new owner's side, up to serving.

use std::collections::BTreeSet;

use super::{Announcement, Export, Start};
use crate::authority::{Authority, Basis, Command, Holding, Standing};
use crate::id::{Epoch, SessionId, ShardId, Version};
use crate::mutant;

/// A shard that the ring gives to this session and that it does not serve yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incoming<P> {
    shard: ShardId,
    session: SessionId,
    imported: Option<P>,
}

/// A shard that this session answers for, while it has a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Serving {
    epoch: Epoch,
    /// Sessions that have not announced what they hold open.
    awaited: BTreeSet<SessionId>,
}

/// Why an export was not taken. It changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportRefusal {
    /// This session does not wait for it: it serves the shard already, or the ring gives it to another.
    #[error("shard {0} is not awaited here: the export is late or astray, dropped")]
    NotAwaited(ShardId),
    /// An earlier copy was taken.
    #[error("the state of shard {0} is here already: dropped")]
    Repeated(ShardId),
    /// The log, as far as it is applied here, does not say that its giver renounced to this session in that epoch.
    #[error(
        "the log does not say that shard {0} was renounced to this session so: the giver sends it again once it does"
    )]
    NotRenounced(ShardId),
    /// It was made under a version that is not applied here yet.
    #[error(
        "the export of shard {shard} needs version {needed}, here is {applied}: the giver sends it again"
    )]
    Behind {
        /// Of what.
        shard: ShardId,
        /// What it was made under.
        needed: Version,
        /// What is applied here.
        applied: Version,
    },
}

impl<P> Incoming<P> {
    /// `session` waits for `shard`.
    #[must_use]
    pub const fn new(shard: ShardId, session: SessionId) -> Self {
        Self { shard, session, imported: None }
    }

    /// The shard that comes back to the session that sealed it, now that the log says so.
    pub(super) const fn returned(shard: ShardId, session: SessionId, payload: P) -> Self {
        Self { shard, session, imported: Some(payload) }
    }

    /// Takes the state.
    ///
    /// # Errors
    ///
    /// [`ImportRefusal`] unless the log says that exactly this export was meant for exactly this session, once.
    pub fn import(
        &mut self,
        export: Export<P>,
        authority: &Authority,
        applied: Version,
    ) -> Result<(), ImportRefusal> {
        let shard = self.shard;
        if export.shard != shard || export.importer != self.session {
            return Err(ImportRefusal::NotAwaited(export.shard));
        }
        let renounced =
            Holding::Renounced { from: export.from, epoch: export.epoch, importer: export.importer };
        let now = authority.holding(shard) == Some(renounced) && export.epoch == authority.epoch();
        if !now && !mutant::is("stale_handoff") {
            return Err(ImportRefusal::NotRenounced(shard));
        }
        if applied < export.version {
            return Err(ImportRefusal::Behind { shard, needed: export.version, applied });
        }
        if self.imported.is_some() {
            return Err(ImportRefusal::Repeated(shard));
        }
        self.imported = Some(export.payload);
        Ok(())
    }

    /// What to propose: the claim, as soon as there is a legal one.
    #[must_use]
    pub fn claim(&self, authority: &Authority) -> Option<Command> {
        let bases: &[Basis] = match self.imported {
            Some(_) => &[Basis::Import],
            None => &[Basis::First, Basis::Cold],
        };
        let legal = |basis: &&Basis| authority.may_start(self.shard, self.session, **basis);
        let &basis = bases.iter().find(legal)?;
        Some(Command::Claim { shard: self.shard, session: self.session, epoch: authority.epoch(), basis })
    }

    /// Begins to serve, if the log says that the claim was accepted; else gives itself back.
    ///
    /// # Errors
    ///
    /// Itself, unchanged, while the claim is not applied here.
    pub fn claimed(self, authority: &Authority) -> Result<(Serving, Start<P>), Self> {
        let Some(Holding::Held { session, epoch, basis }) = authority.holding(self.shard) else {
            return Err(self);
        };
        if session != self.session {
            return Err(self);
        }
        let start = match (basis, self.imported) {
            (Basis::Import, Some(payload)) => Start::Imported(payload),
            (Basis::First, _) => Start::First,
            // What came after a cold claim was proposed was voided by it. An import without a payload cannot have been
            // proposed by this session; empty is safe whatever happened.
            (Basis::Cold, _) | (Basis::Import, None) => Start::Cold,
        };
        // Sessions registered after the claim are among these too; they adopt this holder first thing.
        let awaited = match start {
            Start::Cold => authority.unfenced().map(|(session, _)| session).collect(),
            Start::First | Start::Imported(_) => BTreeSet::new(),
        };
        Ok((Serving { epoch, awaited }, start))
    }
}

impl Serving {
    /// The epoch of its claim.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether everybody who may hold something open has said so: what counts open work may be decided.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Who has not announced yet.
    #[must_use]
    pub const fn awaited(&self) -> &BTreeSet<SessionId> {
        &self.awaited
    }

    /// `announcement.from` has told all; counts only when it was told to this tenure.
    pub(super) fn announced(&mut self, announcement: &Announcement) {
        if announcement.epoch == self.epoch {
            self.awaited.remove(&announcement.from);
        }
    }

    /// Stops waiting for who is over: fenced, or so long ago that the log has forgotten it.
    pub(super) fn observe(&mut self, authority: &Authority) {
        let lives = |session| authority.standing(session).is_some_and(|standing| standing < Standing::Fenced);
        self.awaited.retain(|&session| lives(session));
    }
}
