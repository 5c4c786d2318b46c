//! The old owner's side, from the seal on.

use super::Export;
use crate::authority::{Authority, Command, Holding};
use crate::id::{Epoch, SessionId, ShardId, Version};

/// A shard that this session has sealed. There is no way back to serving it but an import.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outgoing<P> {
    shard: ShardId,
    session: SessionId,
    version: Version,
    payload: P,
}

/// How far a sealed shard has come, by what is applied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Progress {
    /// The log still records this session as the holder.
    Sealed,
    /// The log says it is renounced: it may be exported.
    Renounced {
        /// To whom.
        importer: SessionId,
        /// Under which ring.
        epoch: Epoch,
    },
    /// Claimed, or nobody is left who could use the export: forget it.
    Gone,
}

impl<P> Outgoing<P> {
    /// Seals `shard`, which `session` serves, with the state it has at this instant, made under `version`.
    #[must_use]
    pub const fn seal(shard: ShardId, session: SessionId, version: Version, payload: P) -> Self {
        Self { shard, session, version, payload }
    }

    /// Which shard.
    #[must_use]
    pub const fn shard(&self) -> ShardId {
        self.shard
    }

    /// The version that it was sealed under.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The state that it was sealed with.
    #[must_use]
    pub const fn payload(&self) -> &P {
        &self.payload
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self, authority: &Authority) -> Progress {
        match authority.holding(self.shard) {
            _ if authority.is_fenced(self.session) => Progress::Gone,
            Some(Holding::Held { session, .. }) if session == self.session => Progress::Sealed,
            Some(Holding::Renounced { from, importer, epoch })
                if from == self.session && !authority.is_fenced(importer) =>
            {
                Progress::Renounced { importer, epoch }
            }
            _ => Progress::Gone,
        }
    }

    /// What to propose: the renunciation, while the log does not have it and the ring's owner has a session to renounce to.
    #[must_use]
    pub fn renounce(&self, authority: &Authority) -> Option<Command> {
        if self.progress(authority) != Progress::Sealed {
            return None;
        }
        let importer = authority.serving(authority.ring().owner(self.shard)?)?;
        let epoch = authority.epoch();
        Some(Command::Renounce { shard: self.shard, session: self.session, epoch, importer })
    }

    /// What to send to the importer, until [`Progress::Gone`]: it may be lost, and a second copy does nothing.
    #[must_use]
    pub fn export(&self, authority: &Authority) -> Option<Export<P>>
    where
        P: Clone,
    {
        let Progress::Renounced { importer, epoch } = self.progress(authority) else { return None };
        Some(Export {
            shard: self.shard,
            epoch,
            from: self.session,
            importer,
            version: self.version,
            payload: self.payload.clone(),
        })
    }

    /// The state, for an import by the session that sealed it.
    pub(super) fn into_payload(self) -> P {
        self.payload
    }
}
