//! What is said to the budgets through this node: operators' words, owners' closes, the gateway's reports, and a lone node's own decisions.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use tollgate_cluster::id::SessionId;
use tollgate_cluster::member::HostError;
use tollgate_cluster::shards::Host as _;

use super::{Agreement, Disagreement, Source};
use crate::control::budget::{Batch, BudgetAnswer, BudgetCommand, BudgetRefusal};
use crate::control::escrow::{Step, Stepped};
use crate::control::{Answer, Command, codec};
use crate::limit::Moment;
use crate::node::reports::Agree;

impl Agreement {
    /// Whether this node leads, as far as it knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        match &self.source {
            Source::Alone(_) => true,
            Source::Member(membership) => {
                let member = membership.member();
                let leader = member.raft_stats().and_then(|stats| stats.leader);
                leader.is_some() && leader == member.node()
            }
        }
    }

    /// Whether this node follows the log: what it has to catch up with after a start, it has.
    #[must_use]
    pub fn is_in_step(&self) -> bool {
        match &self.source {
            Source::Alone(_) => true,
            Source::Member(membership) => membership.waiting_for().is_none(),
        }
    }

    /// Has something said to the budgets.
    ///
    /// # Errors
    /// [`Disagreement::Refused`] if they refuse it, else whether it may yet be committed.
    pub async fn budget(&self, command: BudgetCommand) -> Result<BudgetAnswer, Disagreement> {
        match self.say(&Command::Escrow(vec![Step::Budget(command)])).await? {
            Answer::Escrow(answers) => match answers.into_iter().next() {
                Some(Stepped::Budget(answer)) => {
                    answer.map_err(|refusal| Disagreement::Refused(refusal.to_string()))
                }
                _ => Err(Disagreement::Unknown("the budgets gave no answer".to_owned())),
            },
            _ => Err(Disagreement::Refused("the leader is of another version of this program".to_owned())),
        }
    }

    /// Journals and reports what this gateway owes the budgets, until `stopping`.
    pub async fn report(self: Arc<Self>, stopping: CancellationToken) {
        self.node.reports().run(self.shelf(), &*self, stopping).await;
    }

    /// Moves calendars on and closes gateways that are gone, on a node that is its own cluster, until `stopping`. A member's leader does so at
    /// its desk.
    pub async fn govern(self: Arc<Self>, stopping: CancellationToken) {
        let Source::Alone(alone) = &self.source else { return };
        let mut looks = tokio::time::interval(Duration::from_millis(250));
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = looks.tick() => {}
            }
            let host = self.node.owners().shards().host();
            let (now, wall_millis) = self.node.clocks();
            let decided = alone.governing(now, wall_millis, |leading| host.govern(leading));
            for command in decided.unwrap_or_default() {
                if let Err(problem) = alone.propose(command.to_vec()).await {
                    tracing::debug!(%problem, "a calendar could not be moved on; it is tried again");
                }
            }
        }
    }
}

#[async_trait]
impl Agree for Agreement {
    async fn settle(&self, batch: &Batch) -> Result<Result<BudgetAnswer, BudgetRefusal>, HostError> {
        let command = Command::Escrow(vec![Step::Budget(BudgetCommand::Settle(batch.clone()))]);
        let answer = self.log().propose(codec::command(&command)).await?;
        match codec::read_answer(&answer) {
            Ok(Answer::Escrow(answers)) => match answers.into_iter().next() {
                Some(Stepped::Budget(answer)) => Ok(answer),
                _ => Err(HostError::Unknown("the budgets gave no answer".to_owned())),
            },
            _ => Err(HostError::Unknown("the leader is of another version of this program".to_owned())),
        }
    }

    fn watermark(&self, gateway: SessionId) -> u64 {
        self.control().budgets().watermark(gateway)
    }

    fn now(&self) -> Moment {
        self.node.now()
    }
}
