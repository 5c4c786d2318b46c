//! What a node agrees on that is its own cluster: the same log over the same store, with one voter that nobody else reaches.
//!
//! There is no session, no lease and no ring: such a node decides for every shard, for as long as its process runs. Its folder can
//! found a cluster later, and then brings along what it has agreed on.
//!
//! Laws:
//! - what [`Alone::propose`] answered is on disk;
//! - a folder of a member of a cluster is not used: what others have agreed on since would be missing.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::agreed::{Agreed, COMMAND_MAX};
use crate::authority::{Command, Effect};
use crate::id::{ClusterId, NodeId};
use crate::log_time::LogTime;
use crate::member::{HostError, StartError, notes};
use crate::outside::{Clock, Entropy, Folder};
use crate::raft::{FoundError, ProposeError, Raft, RaftOptions, RpcKind, State, Transport, TransportError};
use crate::shards::Governing;
use crate::store::{Broken, Shelf, Store};
use crate::time::Moment;

/// What the log has as the address of a node that listens to nobody.
const NOWHERE: &str = "alone:0";

/// The log of a node that is its own cluster.
pub struct Alone {
    raft: Raft,
    store: Store,
}

impl Alone {
    /// Opens what `folder` holds, or begins it with `agreed`. All of it is applied when this returns.
    ///
    /// # Errors
    /// [`StartError`]: the folder cannot be used, or is of a member of a cluster.
    pub async fn open(
        folder: &dyn Folder,
        clock: Arc<dyn Clock>,
        entropy: &dyn Entropy,
        agreed: Arc<dyn Agreed>,
    ) -> Result<Self, StartError> {
        let store = Store::open(folder).map_err(|problem| StartError::Folder(problem.to_string()))?;
        if let Some(membership) = notes::membership(&store)? {
            return Err(StartError::Folder(format!(
                "the data folder {} is of node {} of cluster {}: start it with --peer as before, or with another --data",
                store.folder(),
                membership.node,
                membership.cluster
            )));
        }
        let cluster = match notes::alone(&store)? {
            Some(cluster) => cluster,
            None => {
                notes::identity(&store, entropy).await?;
                let cluster = ClusterId(entropy.number());
                notes::be_alone(&store, cluster).await?;
                cluster
            }
        };
        let options = RaftOptions::default();
        let node = NodeId(0);
        let opened = Raft::open(node, cluster, store.clone(), clock, Arc::new(Nobody), agreed, options).await;
        let raft = opened.map_err(|problem| StartError::Raft(problem.to_string()))?;
        let stopped = |why: String| StartError::Raft(why);
        match raft.found(NOWHERE).await {
            Ok(()) => {}
            // Nobody else can lead, so there is nothing to wait for.
            Err(FoundError::Founded) => {
                raft.elect().await.map_err(|problem| stopped(problem.to_string()))?;
            }
            Err(problem) => return Err(stopped(problem.to_string())),
        }
        // Once it leads, everything that was ever acknowledged is applied, whatever a crash left of what was known to be committed.
        let led = raft.leadership().wait_for(|now| now.leading.is_some()).await.is_ok();
        if !led {
            return Err(stopped("raft has stopped".to_owned()));
        }
        Ok(Self { raft, store })
    }

    /// The log as far as it is applied.
    #[must_use]
    pub fn applied(&self) -> watch::Receiver<Arc<State>> {
        self.raft.applied()
    }

    /// Has `govern` look at the log as a leader does that nobody else is: with this node's own wall clock, in milliseconds since 1970. None
    /// while the log cannot be written.
    pub fn governing<T>(
        &self,
        now: Moment,
        wall_millis: u64,
        govern: impl FnOnce(&Governing<'_>) -> T,
    ) -> Option<T> {
        let term = self.raft.leadership().borrow().leading?.term;
        let state = self.applied().borrow().clone();
        Some(govern(&Governing {
            term,
            now,
            authority: &state.authority,
            agreed: &state.agreed,
            acknowledged: None,
            log_time: self.raft.log_time().unwrap_or(state.authority.log_time()),
            wall_clocks: &[wall_millis],
        }))
    }

    /// Why nothing can be agreed on any more, once that is so: the disk failed.
    #[must_use]
    pub fn broken(&self) -> watch::Receiver<Option<Broken>> {
        self.store.broken()
    }

    /// What the host keeps on the same disk.
    #[must_use]
    pub fn shelf(&self) -> Shelf {
        Shelf::of(self.store.clone())
    }

    /// The time that the log would come to with an entry of now.
    #[must_use]
    pub fn log_time(&self) -> Option<LogTime> {
        self.raft.log_time()
    }

    /// Commits and applies a command of the host: what its state answered.
    ///
    /// # Errors
    /// [`HostError`]: whether it may yet be committed.
    pub async fn propose(&self, command: Vec<u8>) -> Result<Arc<[u8]>, HostError> {
        if command.len() > COMMAND_MAX {
            let length = command.len();
            let why = format!("a command of {length} bytes is longer than {COMMAND_MAX}: do less at once");
            return Err(HostError::NotProposed(why));
        }
        let outcomes = self.raft.propose(vec![Command::Host(command.into())]).await.map_err(of_raft)?;
        let effects = outcomes.into_iter().flatten().flatten();
        let told = effects.into_iter().find_map(|effect| match effect {
            Effect::Host(answer) => Some(answer),
            _ => None,
        });
        told.ok_or_else(|| HostError::Unknown("there is no answer to it".to_owned()))
    }

    /// Stops. Nothing is written afterwards.
    pub async fn close(&self) {
        self.raft.shut_down().await;
        self.store.close().await;
    }
}

fn of_raft(problem: ProposeError) -> HostError {
    match problem {
        ProposeError::NotLeader(_) | ProposeError::TooLarge { .. } => {
            HostError::NotProposed(problem.to_string())
        }
        ProposeError::Unknown | ProposeError::Stopped(_) => HostError::Unknown(problem.to_string()),
    }
}

impl std::fmt::Debug for Alone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Alone").field("folder", &self.store.folder()).finish_non_exhaustive()
    }
}

/// There is no other node.
struct Nobody;

#[async_trait]
impl Transport for Nobody {
    async fn call(
        &self,
        _node: NodeId,
        _address: &str,
        _kind: RpcKind,
        _body: Vec<u8>,
        _within: std::time::Duration,
    ) -> Result<Vec<u8>, TransportError> {
        Err(TransportError::Unreachable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agreed::Nothing;
    use crate::outside::OsEntropy;
    use crate::store::twin::MemoryFolder;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Moment {
            Moment::from_nanos(1_000)
        }

        fn wall_millis(&self) -> u64 {
            0
        }
    }

    async fn open(folder: &MemoryFolder) -> Result<Alone, StartError> {
        Alone::open(folder, Arc::new(Still), &OsEntropy, Arc::new(Nothing)).await
    }

    #[tokio::test]
    async fn what_was_answered_is_there_after_a_crash() {
        let folder = MemoryFolder::new("alone");
        for round in 1..4 {
            let alone = open(&folder).await.unwrap();
            alone.propose(vec![1, 2, 3]).await.unwrap();
            let applied = alone.applied().borrow().applied.unwrap();
            assert!(applied.0 >= round, "{applied:?}");
            folder.crash(&OsEntropy);
            drop(alone);
        }
        let too_long = open(&folder).await.unwrap().propose(vec![0; COMMAND_MAX + 1]).await;
        assert!(matches!(too_long, Err(HostError::NotProposed(_))), "{too_long:?}");
    }

    #[tokio::test]
    async fn the_folder_of_a_member_is_not_used() {
        let folder = MemoryFolder::new("member");
        let store = Store::open(&folder).unwrap();
        let membership = notes::Membership { cluster: ClusterId(5), node: NodeId(3), founder: false };
        notes::join(&store, membership).await.unwrap();
        store.close().await;
        drop(store);
        let refused = open(&folder).await.unwrap_err().to_string();
        assert!(refused.contains("of node 3 of cluster") && refused.contains("--peer"), "{refused}");
    }
}
