//! Where purses are filled from: one task that takes their draws to the agreed state.
//!
//! Laws:
//! - at most one command is on its way; all draws that are due go in it, and what is not answered goes again as it was, byte for byte;
//! - a node's share of the log does not grow with its requests, nor with its purses: `tempo` says when the next command goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tollgate_cluster::alone::Alone;
use tollgate_cluster::id::SessionId;
use tollgate_cluster::member::{HostError, Member};

use super::Escrow;
use super::tempo::Tempo;
use crate::control::escrow::{Step, Stepped};
use crate::control::{Answer, Command, Control, codec};
use crate::limit::Haste;
use crate::node::{Node, Tenants};

/// How long an answer is waited for before the same is said again.
const ANSWER: Duration = Duration::from_secs(2);

/// How long after a command that was not answered the next one goes.
const AGAIN: Duration = Duration::from_millis(100);

/// How often this node looks whose purses it should have: a session that is new is seen within this.
const LOOK: Duration = Duration::from_millis(50);

/// The log that purses are filled from.
#[async_trait]
pub trait Log: Send + Sync + 'static {
    /// Has a command committed, and brings its answer.
    ///
    /// # Errors
    /// [`HostError`]: whether it may yet be committed.
    async fn propose(&self, command: Vec<u8>) -> Result<Arc<[u8]>, HostError>;

    /// What is agreed on, as far as it is applied here; none before this node is a member of its cluster.
    fn control(&self) -> Option<Control>;

    /// Counts up when what this node knows of its cluster changes; none where nothing does.
    fn changed(&self) -> Option<watch::Receiver<u64>>;
}

#[async_trait]
impl Log for Alone {
    async fn propose(&self, command: Vec<u8>) -> Result<Arc<[u8]>, HostError> {
        Self::propose(self, command).await
    }

    fn control(&self) -> Option<Control> {
        self.applied().borrow().agreed.downcast::<Control>().cloned()
    }

    fn changed(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

#[async_trait]
impl Log for Member<Tenants> {
    async fn propose(&self, command: Vec<u8>) -> Result<Arc<[u8]>, HostError> {
        Self::propose(self, command).await
    }

    fn control(&self) -> Option<Control> {
        self.agreed()?.downcast::<Control>().cloned()
    }

    fn changed(&self) -> Option<watch::Receiver<u64>> {
        Some(Self::changed(self))
    }
}

/// Fills the purses of `node` until `stopping`.
pub async fn draw(node: Arc<Node>, log: Arc<dyn Log>, stopping: CancellationToken) {
    let escrow = node.escrow().clone();
    let working = async {
        let mut alone = node.is_alone();
        let mut changed = log.changed();
        let mut tempo = Tempo::default();
        loop {
            if alone {
                alone = !live(&*log, node.purse_session()).await;
            }
            if !alone && let Some(session) = node.purse_session() {
                escrow.begin(session);
            }
            if let Some(control) = log.control() {
                escrow.heed(&control, node.now(), node.today());
            }
            // Whoever comes to wait from here on wakes this task, unless that would change nothing.
            escrow.hurried.store(false, Ordering::Release);
            let next = escrow.next(node.now(), &tempo);
            if next.is_some_and(|(at, haste)| haste >= Haste::Waits && at > node.now()) {
                escrow.hurried.store(true, Ordering::Release);
            }
            if let Some((_, haste)) = next.filter(|(at, _)| *at <= node.now())
                && let Some((session, steps)) = escrow.due(node.now())
            {
                tempo.sent(node.now(), haste);
                match say(&*log, &steps).await {
                    Some(answers) => escrow.answer(session, &steps, answers),
                    None => {
                        escrow.unanswered(steps);
                        tokio::time::sleep(AGAIN).await;
                    }
                }
                escrow.counts.commands.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let until = next.map_or(LOOK, |(at, _)| Duration::from(at.since(node.now())).min(LOOK));
            rest(&escrow, until, changed.as_mut()).await;
        }
    };
    tokio::select! {
        () = stopping.cancelled() => {}
        () = working => {}
    }
}

/// For so long, unless something may have changed before.
async fn rest(escrow: &Escrow, until: Duration, changed: Option<&mut watch::Receiver<u64>>) {
    let changes = async {
        let more = match changed {
            Some(changed) => changed.changed().await.is_ok(),
            None => false,
        };
        if !more {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = escrow.wake.notified() => {}
        () = changes => {}
        // Never at once: what is due and not made yet would keep a thread busy.
        () = tokio::time::sleep(until.max(Duration::from_millis(1))) => {}
    }
}

/// Says to the log of a node that is its own cluster that this life of it begins. Whether it counts.
async fn live(log: &dyn Log, session: Option<SessionId>) -> bool {
    let Some(session) = session else { return false };
    let answers = say(log, &[Step::Live(session)]).await;
    let lives = matches!(answers.as_deref(), Some([Stepped::Live(true)]));
    if !lives {
        tokio::time::sleep(AGAIN).await;
    }
    lives
}

async fn say(log: &dyn Log, steps: &[Step]) -> Option<Vec<Stepped>> {
    let command = codec::command(&Command::Escrow(steps.to_vec()));
    match tokio::time::timeout(ANSWER, log.propose(command)).await {
        Ok(Ok(answer)) => match codec::read_answer(&answer) {
            Ok(Answer::Escrow(answers)) if answers.len() == steps.len() => Some(answers),
            answer => {
                tracing::error!(
                    ?answer,
                    "draws were answered by something else: is a node of another version of this program?"
                );
                None
            }
        },
        Ok(Err(problem)) => {
            tracing::debug!(%problem, "draws are not answered; said again");
            None
        }
        Err(_elapsed) => None,
    }
}
