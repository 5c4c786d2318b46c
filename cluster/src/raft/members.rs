//! Who has the log, who votes, how far each is; and how that is changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ChangeMembershipError, ClientWriteError, ForwardReason, RaftError};
use openraft::{ChangeMembers, Instant as _, LogIdOptionExt as _};
use tokio::time::{sleep, timeout};

use super::handle::{AGAIN, LAG};
use super::types::Address;
use super::{ChangeError, Progress, Raft, RaftMembers};
use crate::id::{LogIndex, NodeId};

type Change = ChangeMembers<u64, Address>;

impl Raft {
    /// Who has the log, as this node's log says, committed or not.
    #[must_use]
    pub fn members(&self) -> RaftMembers {
        let config = self.inner.raft.metrics().borrow_watched().membership_config.clone();
        let addresses: BTreeMap<NodeId, String> =
            config.nodes().map(|(&node, at)| (NodeId(node), at.0.clone())).collect();
        let voters: BTreeSet<NodeId> = config.voter_ids().map(NodeId).collect();
        let learners = addresses.keys().copied().filter(|node| !voters.contains(node)).collect();
        RaftMembers {
            voters,
            learners,
            addresses,
            changing: config.membership().get_joint_config().len() > 1,
        }
    }

    /// How far each member is; empty unless this node leads.
    #[must_use]
    pub fn progress(&self) -> BTreeMap<NodeId, Progress> {
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        let Some(replication) = metrics.replication else { return BTreeMap::new() };
        let last = metrics.last_log_index.map_or(0, |last| last + 1);
        let heard = metrics.heartbeat.unwrap_or_default();
        let progress = |node: u64, matched: Option<u64>| {
            let mut heard = heard.get(&node).copied().flatten().map(|at| at.elapsed());
            let mut matched = matched;
            if node == self.inner.me.0 {
                (matched, heard) = (metrics.last_log_index, Some(Duration::ZERO));
            }
            let lag = last.saturating_sub(matched.map_or(0, |matched| matched + 1));
            (NodeId(node), Progress { matched: matched.map(LogIndex), lag, heard })
        };
        replication.into_iter().map(|(node, matched)| progress(node, matched.index())).collect()
    }

    /// Makes `node` a follower without a vote, or tells everybody that it is at a new address.
    ///
    /// # Errors
    /// This node does not lead, or it is not known what became of it.
    pub async fn add_learner(&self, node: NodeId, address: &str) -> Result<(), ChangeError> {
        let _one_at_a_time = self.inner.change.lock().await;
        self.finish().await?;
        let at = BTreeMap::from([(node.0, Address(address.to_owned()))]);
        match self.members().addresses.get(&node) {
            Some(known) if known == address => Ok(()),
            // It is the same folder, somewhere else: nobody votes twice by it.
            Some(_) => self.change(Change::SetNodes(at)).await,
            None => self.change(Change::AddNodes(at)).await,
        }
    }

    /// Waits until `node` lacks next to nothing, at most `within` that time; says whether it does.
    pub async fn caught_up(&self, node: NodeId, within: Duration) -> bool {
        let wait = async {
            let mut metrics = self.inner.raft.metrics();
            while !self.progress().get(&node).is_some_and(|at| at.matched.is_some() && at.lag <= LAG) {
                if metrics.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        timeout(within, wait).await.unwrap_or(false)
    }

    /// Lets exactly `voters` vote, all of them members; who loses its vote goes on as a learner.
    ///
    /// # Errors
    /// This node does not lead, one of them is no member, or it is not known what became of it.
    pub async fn set_voters(&self, voters: BTreeSet<NodeId>) -> Result<(), ChangeError> {
        let _one_at_a_time = self.inner.change.lock().await;
        self.finish().await?;
        let members = self.members();
        if voters.is_empty() {
            return Err(ChangeError::NoVoters);
        }
        if let Some(&stranger) = voters.iter().find(|node| !members.addresses.contains_key(node)) {
            return Err(ChangeError::NotMember(stranger));
        }
        if voters == members.voters {
            return Ok(());
        }
        self.change(Change::ReplaceAllVoters(voters.into_iter().map(|node| node.0).collect())).await
    }

    /// Takes the log, and its vote if it has one, from `node`.
    ///
    /// # Errors
    /// This node does not lead, `node` is the last voter, or it is not known what became of it.
    pub async fn remove(&self, node: NodeId) -> Result<(), ChangeError> {
        let _one_at_a_time = self.inner.change.lock().await;
        self.finish().await?;
        let members = self.members();
        if !members.addresses.contains_key(&node) {
            return Ok(());
        }
        if members.voters.contains(&node) {
            if members.voters.len() == 1 {
                return Err(ChangeError::NoVoters);
            }
            self.change(Change::RemoveVoters(BTreeSet::from([node.0]))).await?;
        }
        self.change(Change::RemoveNodes(BTreeSet::from([node.0]))).await
    }

    /// Asks `node` to lead, and waits until somebody else does.
    ///
    /// # Errors
    /// This node does not lead, or nobody took over in time: look again who leads.
    pub async fn transfer_to(&self, node: NodeId) -> Result<(), ChangeError> {
        let mut leadership = self.leadership();
        let seen = *leadership.borrow_and_update();
        if seen.leader != Some(self.inner.me) {
            return Err(ChangeError::NotLeader(seen.leader));
        }
        if node == self.inner.me {
            return Ok(());
        }
        if !self.members().voters.contains(&node) {
            return Err(ChangeError::Refused(format!("node {node} does not vote")));
        }
        let asked = self.inner.raft.trigger().transfer_leader(node.0).await;
        asked.map_err(|fatal| self.stopped(&fatal))?;
        let elsewhere = leadership.wait_for(|now| now.leader.is_some_and(|leader| leader != self.inner.me));
        match timeout(self.inner.options.within, elsewhere).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(ChangeError::Unknown),
        }
    }

    /// Finishes a change that an earlier leader left half-way.
    async fn finish(&self) -> Result<(), ChangeError> {
        if self.members().changing { self.change(Change::AddVoterIds(BTreeSet::new())).await } else { Ok(()) }
    }

    async fn change(&self, change: Change) -> Result<(), ChangeError> {
        let changed = timeout(self.inner.options.within, self.change_patiently(change)).await;
        changed.unwrap_or(Err(ChangeError::Unknown))
    }

    async fn change_patiently(&self, change: Change) -> Result<(), ChangeError> {
        loop {
            let error = match self.inner.raft.change_membership(change.clone(), true).await {
                Ok(_) => return Ok(()),
                Err(RaftError::Fatal(fatal)) => return Err(self.stopped(&fatal).into()),
                Err(RaftError::APIError(error)) => error,
            };
            match error {
                ClientWriteError::ForwardToLeader(forward) if forward.reason == ForwardReason::NotLeader => {
                    return Err(ChangeError::NotLeader(forward.leader_id.map(NodeId)));
                }
                // Nothing was written: the leader has not heard from a majority of late, has not committed what it began with,
                // or a change that an earlier call gave up on is still under way.
                ClientWriteError::ForwardToLeader(_)
                | ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_),
                ) => sleep(AGAIN).await,
                ClientWriteError::LogEntryDiscarded(_) => return Err(ChangeError::Unknown),
                error => return Err(ChangeError::Refused(error.to_string())),
            }
        }
    }
}
