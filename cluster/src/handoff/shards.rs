//! All shards of one session: which come, which are served, which go. It follows the applied log.

use std::collections::BTreeMap;

use super::{Announcement, Export, ImportRefusal, Incoming, Outgoing, Progress, Serving, Start};
use crate::authority::{Authority, Command, Holding};
use crate::id::{NodeId, SessionId, ShardId, Version};

/// The shards of `session`, which is a life of `node`. A new life begins with none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shards<P> {
    node: NodeId,
    session: SessionId,
    stages: BTreeMap<ShardId, Stage<P>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage<P> {
    Incoming(Incoming<P>),
    Serving(Serving),
    Outgoing(Outgoing<P>),
}

/// What the host must do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Change<P> {
    /// Serve the shard, beginning with this. Handed out once per claim.
    Open {
        /// What.
        shard: ShardId,
        /// With what.
        start: Start<P>,
    },
    /// Throw the shard's state away: the session is over, and others may serve it.
    Drop {
        /// What.
        shard: ShardId,
    },
}

/// A shard cannot be sealed that is not served here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} is not served by this session: there is nothing to seal")]
pub struct NotServing(pub ShardId);

impl<P> Shards<P> {
    /// The shards of a session that has just been registered.
    #[must_use]
    pub const fn new(node: NodeId, session: SessionId) -> Self {
        Self { node, session, stages: BTreeMap::new() }
    }

    /// Whose they are.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// Follows the log. To be called after entries are applied.
    pub fn observe(&mut self, authority: &Authority) -> Vec<Change<P>> {
        let mut changes = Vec::new();
        let over = authority.is_fenced(self.session);
        for shard in ShardId::all() {
            let stage = self.stages.remove(&shard);
            if let Some(stage) = self.advance(shard, stage, over, authority, &mut changes) {
                self.stages.insert(shard, stage);
            }
        }
        changes
    }

    /// The shards to seal now: the ring gives them to another node, and that has a session to take them.
    pub fn to_seal(&self, authority: &Authority) -> impl Iterator<Item = ShardId> {
        self.stages.iter().filter_map(move |(&shard, stage)| {
            let owner = authority.ring().owner(shard)?;
            let leaves = owner != self.node && authority.serving(owner).is_some();
            (leaves && matches!(stage, Stage::Serving(_))).then_some(shard)
        })
    }

    /// Seals `shard` with the state that it has at this instant, made under `version`. It answers nothing more.
    ///
    /// # Errors
    ///
    /// [`NotServing`] when it is not served here: a shard is sealed once.
    pub fn seal(&mut self, shard: ShardId, version: Version, payload: P) -> Result<(), NotServing> {
        match self.stages.get_mut(&shard) {
            Some(stage @ Stage::Serving(_)) => {
                *stage = Stage::Outgoing(Outgoing::seal(shard, self.session, version, payload));
                Ok(())
            }
            _ => Err(NotServing(shard)),
        }
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
        match self.stages.get_mut(&export.shard) {
            Some(Stage::Incoming(incoming)) => incoming.import(export, authority, applied),
            _ => Err(ImportRefusal::NotAwaited(export.shard)),
        }
    }

    /// Takes an announcement of open work; the host has entered that work before. One to another tenure counts for nothing.
    pub fn announced(&mut self, announcement: &Announcement) {
        if let Some(Stage::Serving(serving)) = self.stages.get_mut(&announcement.shard)
            && announcement.holder == self.session
        {
            serving.announced(announcement);
        }
    }

    /// All that this session wants from the log now. Proposals can be lost: ask again after a while.
    #[must_use]
    pub fn proposals(&self, authority: &Authority) -> Vec<Command> {
        let wanted = self.stages.values().filter_map(|stage| match stage {
            Stage::Incoming(incoming) => incoming.claim(authority),
            Stage::Outgoing(outgoing) => outgoing.renounce(authority),
            Stage::Serving(_) => None,
        });
        wanted.collect()
    }

    /// All exports that are to be sent now, and again after a while.
    #[must_use]
    pub fn exports(&self, authority: &Authority) -> Vec<Export<P>>
    where
        P: Clone,
    {
        let outgoing = self.stages.values().filter_map(|stage| match stage {
            Stage::Outgoing(outgoing) => outgoing.export(authority),
            Stage::Incoming(_) | Stage::Serving(_) => None,
        });
        outgoing.collect()
    }

    /// The shard, if it is served here: claimed, and not sealed.
    #[must_use]
    pub fn serving(&self, shard: ShardId) -> Option<&Serving> {
        match self.stages.get(&shard) {
            Some(Stage::Serving(serving)) => Some(serving),
            _ => None,
        }
    }

    /// Whether the shard was sealed here and not claimed since.
    #[must_use]
    pub fn is_sealed(&self, shard: ShardId) -> bool {
        matches!(self.stages.get(&shard), Some(Stage::Outgoing(_)))
    }

    fn advance(
        &self,
        shard: ShardId,
        stage: Option<Stage<P>>,
        over: bool,
        authority: &Authority,
        changes: &mut Vec<Change<P>>,
    ) -> Option<Stage<P>> {
        match stage {
            Some(Stage::Serving(mut serving)) => {
                let ours = matches!(authority.holding(shard), Some(Holding::Held { session, .. }) if session == self.session);
                if over || !ours {
                    changes.push(Change::Drop { shard });
                    return None;
                }
                serving.observe(authority);
                Some(Stage::Serving(serving))
            }
            _ if over => None,
            Some(Stage::Outgoing(outgoing)) => match outgoing.progress(authority) {
                Progress::Renounced { importer, .. } if importer == self.session => {
                    let payload = outgoing.into_payload();
                    Some(Stage::Incoming(Incoming::returned(shard, self.session, payload)))
                }
                Progress::Sealed | Progress::Renounced { .. } => Some(Stage::Outgoing(outgoing)),
                // The ring may already give it back, to be claimed cold.
                Progress::Gone => self.awaited(shard, authority),
            },
            Some(Stage::Incoming(incoming)) => match incoming.claimed(authority) {
                Ok((serving, start)) => {
                    changes.push(Change::Open { shard, start });
                    Some(Stage::Serving(serving))
                }
                Err(incoming) => {
                    let awaited = authority.ring().owner(shard) == Some(self.node);
                    awaited.then_some(Stage::Incoming(incoming))
                }
            },
            None => self.awaited(shard, authority),
        }
    }

    /// The stage of a shard that this session has nothing of.
    fn awaited(&self, shard: ShardId, authority: &Authority) -> Option<Stage<P>> {
        let ours = authority.ring().owner(shard) == Some(self.node);
        ours.then(|| Stage::Incoming(Incoming::new(shard, self.session)))
    }
}
