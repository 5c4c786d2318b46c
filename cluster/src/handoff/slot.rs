//! One shard as one session has it: awaited, served, sealed or not at all. It follows the applied log.

use super::{Announcement, Export, ImportRefusal, Incoming, Outgoing, Progress, Serving, Start};
use crate::authority::{Authority, Command, Holding};
use crate::id::{NodeId, SessionId, ShardId, Version};

/// A shard, in the hands of one task: whoever has it may seal it, and nobody decides under it meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot<P> {
    shard: ShardId,
    node: NodeId,
    session: SessionId,
    stage: Stage<P>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage<P> {
    /// Nothing of it is here, and nothing is awaited.
    Elsewhere,
    Incoming(Incoming<P>),
    Serving(Serving),
    Outgoing(Outgoing<P>),
}

/// What the host must do with the shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change<P> {
    /// Serve it, beginning with this. Handed out once per claim.
    Open(Start<P>),
    /// Throw its state away: the session is over, and others may serve it.
    Drop,
}

/// A shard cannot be sealed that is not served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} is not served by this session: there is nothing to seal")]
pub struct NotServing(pub ShardId);

impl<P> Slot<P> {
    /// `shard`, for a session of `node` that has just been registered: a new life begins with nothing.
    #[must_use]
    pub const fn new(shard: ShardId, node: NodeId, session: SessionId) -> Self {
        Self { shard, node, session, stage: Stage::Elsewhere }
    }

    /// Which shard.
    #[must_use]
    pub const fn shard(&self) -> ShardId {
        self.shard
    }

    /// Whose session has it.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// Follows the log. To be called after entries are applied.
    pub fn observe(&mut self, authority: &Authority) -> Option<Change<P>> {
        let over = authority.is_fenced(self.session);
        let (stage, change) = match std::mem::replace(&mut self.stage, Stage::Elsewhere) {
            Stage::Serving(_) if over || !self.is_recorded(authority) => {
                (Stage::Elsewhere, Some(Change::Drop))
            }
            _ if over => (Stage::Elsewhere, None),
            Stage::Serving(mut serving) => {
                serving.observe(authority);
                (Stage::Serving(serving), None)
            }
            Stage::Outgoing(outgoing) => (self.handed_over(outgoing, authority), None),
            Stage::Incoming(incoming) => match incoming.claimed(authority) {
                Ok((serving, start)) => (Stage::Serving(serving), Some(Change::Open(start))),
                Err(incoming) if self.is_ours(authority) => (Stage::Incoming(incoming), None),
                Err(_) => (Stage::Elsewhere, None),
            },
            Stage::Elsewhere => (self.awaited(authority), None),
        };
        self.stage = stage;
        change
    }

    /// Whether to seal it now: the ring gives it to another node, and that has a session to take it. Not before everybody has
    /// announced what it holds open: an export is taken to hold all of it.
    #[must_use]
    pub fn is_leaving(&self, authority: &Authority) -> bool {
        let owner = authority.ring().owner(self.shard);
        let wanted = owner.is_some_and(|owner| owner != self.node && authority.serving(owner).is_some());
        wanted && matches!(&self.stage, Stage::Serving(serving) if serving.is_complete())
    }

    /// Seals it with the state that it has at this instant, made under `version`. It answers nothing more.
    ///
    /// # Errors
    ///
    /// [`NotServing`] when it is not served here: a shard is sealed once.
    pub fn seal(&mut self, version: Version, payload: P) -> Result<(), NotServing> {
        if !matches!(self.stage, Stage::Serving(_)) {
            return Err(NotServing(self.shard));
        }
        self.stage = Stage::Outgoing(Outgoing::seal(self.shard, self.session, version, payload));
        Ok(())
    }

    /// Takes an export.
    ///
    /// # Errors
    ///
    /// [`ImportRefusal`] unless this session waits for exactly this export.
    pub fn import(
        &mut self,
        export: Export<P>,
        authority: &Authority,
        applied: Version,
    ) -> Result<(), ImportRefusal> {
        match &mut self.stage {
            Stage::Incoming(incoming) => incoming.import(export, authority, applied),
            _ => Err(ImportRefusal::NotAwaited(export.shard)),
        }
    }

    /// Takes an announcement of open work; the host has entered that work before. One to another tenure counts for nothing.
    pub fn announced(&mut self, announcement: &Announcement) {
        if let Stage::Serving(serving) = &mut self.stage
            && (announcement.shard, announcement.holder) == (self.shard, self.session)
        {
            serving.announced(announcement);
        }
    }

    /// What this session wants from the log now. Proposals can be lost: ask again after a while.
    #[must_use]
    pub fn proposal(&self, authority: &Authority) -> Option<Command> {
        match &self.stage {
            Stage::Incoming(incoming) => incoming.claim(authority),
            Stage::Outgoing(outgoing) => outgoing.renounce(authority),
            Stage::Serving(_) | Stage::Elsewhere => None,
        }
    }

    /// The export that is to be sent now, and again after a while.
    #[must_use]
    pub fn export(&self, authority: &Authority) -> Option<Export<P>>
    where
        P: Clone,
    {
        match &self.stage {
            Stage::Outgoing(outgoing) => outgoing.export(authority),
            _ => None,
        }
    }

    /// Its tenure, if it is served here: claimed, and not sealed.
    #[must_use]
    pub const fn serving(&self) -> Option<&Serving> {
        match &self.stage {
            Stage::Serving(serving) => Some(serving),
            _ => None,
        }
    }

    /// What was sealed here and not claimed since.
    #[must_use]
    pub const fn outgoing(&self) -> Option<&Outgoing<P>> {
        match &self.stage {
            Stage::Outgoing(outgoing) => Some(outgoing),
            _ => None,
        }
    }

    /// Whether it was sealed here and not claimed since.
    #[must_use]
    pub const fn is_sealed(&self) -> bool {
        matches!(self.stage, Stage::Outgoing(_))
    }

    fn handed_over(&self, outgoing: Outgoing<P>, authority: &Authority) -> Stage<P> {
        match outgoing.progress(authority) {
            Progress::Renounced { importer, .. } if importer == self.session => {
                Stage::Incoming(Incoming::returned(self.shard, self.session, outgoing.into_payload()))
            }
            Progress::Sealed | Progress::Renounced { .. } => Stage::Outgoing(outgoing),
            // The ring may already give it back, to be claimed cold.
            Progress::Gone => self.awaited(authority),
        }
    }

    fn awaited(&self, authority: &Authority) -> Stage<P> {
        if self.is_ours(authority) {
            return Stage::Incoming(Incoming::new(self.shard, self.session));
        }
        Stage::Elsewhere
    }

    /// The ring gives it to this node.
    fn is_ours(&self, authority: &Authority) -> bool {
        authority.ring().owner(self.shard) == Some(self.node)
    }

    /// The log has this session as its holder.
    fn is_recorded(&self, authority: &Authority) -> bool {
        matches!(authority.holding(self.shard), Some(Holding::Held { session, .. }) if session == self.session)
    }
}
