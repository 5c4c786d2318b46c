//! What the host has its cluster agree on: a state of its own beside the authority, in the same log, applied in the same step and
//! part of the same snapshot.
//!
//! Laws, which the host keeps and this crate relies on:
//! - deterministic: what [`Agreed::apply`] does depends on the state, the place in the log and the command, and on nothing else;
//! - a snapshot and the entries after it give what the whole log gives;
//! - bounded: its bytes fit a message with the authority's beside them ([`crate::wire::MESSAGE_MAX`]);
//! - a [`Agreed::fork`] is cheap: one is made for every state that somebody still reads while the next entry is applied.
//!
//! [`Agreed::version`] is how the lease knows that a node is up to date. It grows when something changed that every node must put in
//! force before it may answer again; what else is agreed on, however often, leaves it as it is.
//!
//! Never here: what is agreed on.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use crate::authority::{Authority, Position};
use crate::id::{NodeId, SessionId, Version};
use crate::log_time::LogTime;

/// The most bytes of one command of the host. With what stands around it, it fits an entry.
pub const COMMAND_MAX: usize = crate::raft::ENTRY_MAX - 4096;

/// Where in the log something happens.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The entry and its leadership. Commands of one entry have the same.
    pub position: Position,
    /// The time that the log has come to: never back, never faster than true time.
    pub time: LogTime,
    /// Members and sessions, all earlier commands of the entry being applied.
    pub authority: &'a Authority,
}

/// A host's replicated state.
pub trait Agreed: Any + Debug + Send + Sync {
    /// Applies a command that somebody proposed; what comes back is the proposer's answer. Bytes that cannot be read change nothing.
    fn apply(&mut self, at: At<'_>, command: &[u8]) -> Vec<u8>;

    /// `session` is over, in this very entry: what was given to it and not reported is lost.
    fn fenced(&mut self, at: At<'_>, session: SessionId);

    /// `node` is a member no more, in this very entry.
    fn removed(&mut self, at: At<'_>, node: NodeId);

    /// Grows with each change that every node must have in force.
    fn version(&self) -> Version;

    /// The same state, to be changed apart from this one.
    fn fork(&self) -> Arc<dyn Agreed>;

    /// Its bytes, to be read by this version of the host or a later one.
    fn written(&self) -> Vec<u8>;

    /// The state that these bytes are. Asked of any state of the kind.
    ///
    /// # Errors
    /// Why they cannot be read, in words.
    fn restored(&self, bytes: &[u8]) -> Result<Arc<dyn Agreed>, String>;
}

impl dyn Agreed {
    /// The state as what it is, to its host.
    #[must_use]
    pub fn downcast<T: Agreed>(&self) -> Option<&T> {
        let any: &dyn Any = self;
        any.downcast_ref()
    }
}

/// The one in `shared` if nobody else reads it, else a fork in its place.
pub(crate) fn make_mut(shared: &mut Arc<dyn Agreed>) -> &mut dyn Agreed {
    if Arc::get_mut(shared).is_none() {
        *shared = shared.fork();
    }
    // A fork has one owner.
    Arc::get_mut(shared).unwrap_or_else(|| unreachable!("a fork that somebody else has already"))
}

/// A host that has nothing to agree on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nothing;

impl Agreed for Nothing {
    fn apply(&mut self, _at: At<'_>, _command: &[u8]) -> Vec<u8> {
        Vec::new()
    }

    fn fenced(&mut self, _at: At<'_>, _session: SessionId) {}

    fn removed(&mut self, _at: At<'_>, _node: NodeId) {}

    fn version(&self) -> Version {
        Version(0)
    }

    fn fork(&self) -> Arc<dyn Agreed> {
        Arc::new(Self)
    }

    fn written(&self) -> Vec<u8> {
        Vec::new()
    }

    fn restored(&self, _bytes: &[u8]) -> Result<Arc<dyn Agreed>, String> {
        Ok(Arc::new(Self))
    }
}
