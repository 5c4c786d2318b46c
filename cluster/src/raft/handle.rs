//! A member's Raft: open it, begin the log, propose, confirm, answer its peers.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use openraft::alias::WatchReceiverOf;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{
    ClientWriteError, Fatal, ForwardReason, InitializeError, LinearizableReadError, RaftError,
};
use openraft::metrics::RaftServerMetrics;
use openraft::{Config, LinearizerOption, LogIdOptionExt as _, ServerState};
use tokio::sync::{Mutex, watch};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::log::Log;
use super::machine::{Machine, Own};
use super::network::{Addresses, Envelope, Peers};
use super::serve::Server;
use super::types::{Address, Batch, Types, term_of};
use super::{
    COMMANDS_MAX, ENTRY_MAX, FoundError, Leadership, Leading, NotConfirmed, OpenError, ProposeError,
    RaftOptions, RaftStats, State, Stopped, Transport,
};
use crate::agreed::Agreed;
use crate::authority::{Command, FOUNDER, Outcome};
use crate::id::{ClusterId, NodeId};
use crate::log_time::LogTime;
use crate::mutant;
use crate::outside::Clock;
use crate::store::{Broken, Store};
use crate::wire;

/// How long to wait before asking a leader again that has not heard from a majority of late.
pub(super) const AGAIN: Duration = Duration::from_millis(5);

/// A follower counts as caught up when it lacks no more entries than this.
pub(super) const LAG: u64 = 8;

/// How many entries one message takes, if their bytes allow it.
const ENTRIES: u64 = 128;

/// How many calls, messages to itself and pieces of work may wait inside; then callers wait.
const QUEUE: u64 = 1024;

/// A member's Raft. Clones are the same one.
#[derive(Clone)]
pub struct Raft {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) me: NodeId,
    pub(super) raft: openraft::Raft<Types, Machine>,
    pub(super) options: RaftOptions,
    /// Held while the membership is changed.
    pub(super) change: Mutex<()>,
    machine: Machine,
    server: Server,
    clock: Arc<dyn Clock>,
    broken: watch::Receiver<Option<Broken>>,
    leadership: watch::Receiver<Leadership>,
    _watching: AbortOnDropHandle<()>,
    _compacting: AbortOnDropHandle<()>,
}

impl Raft {
    /// Starts the Raft of node `me` of `cluster`, and waits until what its store knows to be committed is applied. `agreed` is the host's
    /// state before the first entry.
    ///
    /// It asks nobody for that, so it can be opened before [`Raft::handle`] can be reached.
    ///
    /// # Errors
    /// The options or the store cannot be used.
    pub async fn open(
        me: NodeId,
        cluster: ClusterId,
        store: Store,
        clock: Arc<dyn Clock>,
        transport: Arc<dyn Transport>,
        agreed: Arc<dyn Agreed>,
        options: RaftOptions,
    ) -> Result<Self, OpenError> {
        let unusable = |why: String| OpenError::Store { folder: store.folder().to_owned(), why };
        let config = config(&options).validate().map_err(|error| OpenError::Options(error.to_string()))?;
        let machine = Machine::open(me, cluster, store.clone(), Arc::clone(&clock), agreed)
            .map_err(|error| unusable(error.to_string()))?;
        let log = Log { store: store.clone() };
        let committed = log.check().map_err(|error| unusable(error.to_string()))?;
        let addresses = Addresses::default();
        let peers = Peers { cluster, transport, addresses: Arc::clone(&addresses) };
        let raft = openraft::Raft::new(me.0, Arc::new(config), peers, log, machine.clone())
            .await
            .map_err(|fatal| unusable(fatal.to_string()))?;
        raft.wait(None)
            .applied_index_at_least(committed.map(|at| at.index), "what was committed")
            .await
            .map_err(|error| unusable(error.to_string()))?;

        let (told, leadership) = watch::channel(Leadership::default());
        let watching = Watching {
            metrics: raft.server_metrics(),
            own: machine.own(),
            broken: store.broken(),
            addresses,
            told,
        };
        let watching = AbortOnDropHandle::new(tokio::spawn(watching.run()));
        let compacting = compact_every(options.snapshot_every, raft.clone(), machine.published());
        let compacting = AbortOnDropHandle::new(tokio::spawn(compacting));
        let server = Server::new(raft.clone(), Envelope { cluster, to: me });
        let inner = Inner {
            me,
            raft,
            options,
            change: Mutex::new(()),
            machine,
            server,
            clock,
            broken: store.broken(),
            leadership,
            _watching: watching,
            _compacting: compacting,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Begins the log, with this node at `address` as the only voter.
    ///
    /// # Errors
    /// This is not node 0, or there is a log.
    pub async fn found(&self, address: &str) -> Result<(), FoundError> {
        let node = self.inner.me;
        if node != FOUNDER {
            return Err(FoundError::NotFounder { node });
        }
        let members = BTreeMap::from([(node.0, Address(address.to_owned()))]);
        self.inner.raft.initialize(members).await.map_err(|error| match error {
            RaftError::APIError(InitializeError::NotAllowed(_) | InitializeError::NotInMembers(_)) => {
                FoundError::Founded
            }
            RaftError::Fatal(fatal) => self.stopped(&fatal).into(),
        })
    }

    /// Has this node elected without waiting until it misses a leader: for one that is alone.
    ///
    /// # Errors
    /// Raft has stopped.
    pub async fn elect(&self) -> Result<(), Stopped> {
        self.inner.raft.trigger().elect(false).await.map_err(|fatal| self.stopped(&fatal))
    }

    /// This node's number.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.inner.me
    }

    /// The log as far as it is applied here, after every step.
    #[must_use]
    pub fn applied(&self) -> watch::Receiver<Arc<State>> {
        self.inner.machine.published()
    }

    /// Who leads.
    #[must_use]
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.clone()
    }

    /// The time that the log would come to with an entry of now. Only who leads knows.
    #[must_use]
    pub fn log_time(&self) -> Option<LogTime> {
        let term = self.inner.leadership.borrow().leading?.term;
        let own = (*self.inner.machine.own().borrow()).filter(|own| own.term == term)?;
        Some(own.clock.stamp(self.inner.clock.now()).time)
    }

    /// Makes one entry of `commands`, and waits until it is applied here. As many outcomes as commands.
    ///
    /// # Errors
    /// This node does not lead, or it is not known what became of the entry.
    pub async fn propose(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, ProposeError> {
        let bytes = wire::encode(&commands).len();
        if commands.len() > COMMANDS_MAX || bytes > ENTRY_MAX {
            return Err(ProposeError::TooLarge { commands: commands.len(), bytes });
        }
        let proposed = timeout(self.inner.options.within, self.propose_patiently(commands)).await;
        proposed.unwrap_or(Err(ProposeError::Unknown))
    }

    async fn propose_patiently(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, ProposeError> {
        let mut leadership = self.leadership();
        // A leader that lost its majority is asked no longer than a new election takes.
        let mut patience = pin!(sleep(self.inner.options.election.1));
        loop {
            let seen = *leadership.borrow_and_update();
            let own = *self.inner.machine.own().borrow();
            let Some(Own { clock, .. }) =
                own.filter(|own| seen.leading.is_some_and(|now| now.term == own.term))
            else {
                if seen.leader != Some(self.inner.me) {
                    return Err(ProposeError::NotLeader(seen.leader));
                }
                // Elected, and its first entry not applied yet.
                if leadership.changed().await.is_err() {
                    return Err(ProposeError::NotLeader(None));
                }
                continue;
            };
            let batch = Batch { stamp: clock.stamp(self.inner.clock.now()), commands: commands.clone() };
            match self.inner.raft.client_write(batch).await {
                Ok(written) => return Ok(written.data),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                    let leader = forward.leader_id.map(NodeId).filter(|&leader| leader != self.inner.me);
                    if forward.reason == ForwardReason::NotLeader {
                        return Err(ProposeError::NotLeader(leader));
                    }
                    // Nothing was written: the leader waits to hear from a majority, or for its successor.
                    tokio::select! {
                        biased;
                        () = &mut patience => return Err(ProposeError::NotLeader(leader)),
                        () = sleep(AGAIN) => {}
                    }
                }
                // An entry without a membership has no other error.
                Err(RaftError::APIError(_)) => return Err(ProposeError::Unknown),
                Err(RaftError::Fatal(fatal)) => return Err(self.stopped(&fatal).into()),
            }
        }
    }

    /// Confirms with a majority, asked after this was called, that this node leads; and that everything committed before is applied here.
    ///
    /// # Errors
    /// It does not, or no majority answered.
    pub async fn confirm(&self) -> Result<(), NotConfirmed> {
        // No answer that a majority gave before counts, however young: it has to be asked. The weaker way trusts a clock instead.
        let ask = if mutant::is("lease_read") {
            LinearizerOption::new(None, false).with_wait_timeout(Duration::ZERO)
        } else {
            LinearizerOption::new(Some(Duration::ZERO), true)
        };
        let confirmed = timeout(self.inner.options.within, self.inner.raft.ensure_linearizable(ask)).await;
        match confirmed {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)))) => {
                let leader = forward.leader_id.map(NodeId).filter(|&leader| leader != self.inner.me);
                Err(NotConfirmed::NotLeader(leader))
            }
            Ok(Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_)))) | Err(_) => {
                Err(NotConfirmed::NoMajority)
            }
            Ok(Err(RaftError::Fatal(fatal))) => Err(self.stopped(&fatal).into()),
        }
    }

    /// Answers a message of another node's [`Transport`].
    pub async fn handle(&self, kind: u8, body: &[u8]) -> Vec<u8> {
        self.inner.server.handle(kind, body).await
    }

    /// Numbers for whoever watches.
    #[must_use]
    pub fn stats(&self) -> RaftStats {
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        RaftStats {
            entries_total: self.inner.machine.entries(),
            term: metrics.current_term,
            last_log: metrics.last_log_index,
            applied: metrics.last_applied.index(),
            snapshot: metrics.snapshot.index(),
            purged: metrics.purged.index(),
            leader: metrics.current_leader.map(NodeId),
        }
    }

    /// Makes a snapshot now and cuts the log, without waiting for either.
    ///
    /// # Errors
    /// Raft has stopped.
    pub async fn compact(&self) -> Result<(), Stopped> {
        self.inner.raft.trigger().snapshot().await.map_err(|fatal| self.stopped(&fatal))
    }

    /// Stops. What is under way fails; the store stays open.
    pub async fn shut_down(&self) {
        if let Err(error) = self.inner.raft.shutdown().await {
            tracing::warn!(%error, "raft ended before it was shut down");
        }
    }

    pub(super) fn stopped(&self, fatal: &Fatal<Types>) -> Stopped {
        let broken = self.inner.broken.borrow().clone();
        broken.map_or_else(|| Stopped::Other(fatal.to_string()), Stopped::Disk)
    }
}

impl std::fmt::Debug for Raft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Raft").field("me", &self.inner.me).finish_non_exhaustive()
    }
}

/// Puts together who leads, and where everybody is, whenever one of them changes.
struct Watching {
    metrics: WatchReceiverOf<Types, RaftServerMetrics<Types>>,
    own: watch::Receiver<Option<Own>>,
    broken: watch::Receiver<Option<Broken>>,
    addresses: Addresses,
    told: watch::Sender<Leadership>,
}

impl Watching {
    async fn run(mut self) {
        loop {
            let metrics = self.metrics.borrow_and_update().clone();
            let broken = self.broken.borrow_and_update().is_some();
            let now = leadership(&metrics, *self.own.borrow_and_update(), broken);
            {
                let nodes = metrics.membership_config.nodes().map(|(&node, at)| (node, at.clone())).collect();
                *self.addresses.write().unwrap_or_else(PoisonError::into_inner) = nodes;
            }
            self.told.send_if_modified(|told| std::mem::replace(told, now) != now);
            let more = tokio::select! {
                // In this order, so that the same seed is the same story.
                biased;
                changed = self.metrics.changed() => changed.is_ok(),
                changed = self.own.changed() => changed.is_ok(),
                changed = self.broken.changed() => changed.is_ok(),
            };
            if !more {
                // Raft has stopped.
                self.told.send_replace(Leadership::default());
                return;
            }
        }
    }
}

/// Makes a snapshot whenever `every` entries were applied since the last, or since that was last tried.
async fn compact_every(
    every: u64,
    raft: openraft::Raft<Types, Machine>,
    mut applied: watch::Receiver<Arc<State>>,
) {
    let mut tried = 0;
    while applied.changed().await.is_ok() {
        let next = applied.borrow_and_update().applied.map_or(0, |at| at.0 + 1);
        let kept = raft.metrics().borrow_watched().snapshot.next_index();
        if next >= kept.max(tried) + every {
            tried = next;
            if raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
    }
}

fn leadership(metrics: &RaftServerMetrics<Types>, own: Option<Own>, broken: bool) -> Leadership {
    if broken || metrics.state == ServerState::Shutdown {
        return Leadership::default();
    }
    let term = metrics.vote.is_committed().then(|| term_of(metrics.vote.leader_id()));
    let leading = own
        .filter(|own| metrics.state == ServerState::Leader && term == Some(own.term))
        .map(|own| Leading { term: own.term, since: own.since });
    Leadership { leader: metrics.current_leader.map(NodeId), term, leading }
}

fn config(options: &RaftOptions) -> Config {
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Config {
        cluster_name: "cluster".into(),
        heartbeat_interval: millis(options.heartbeat),
        election_timeout_min: millis(options.election.0),
        election_timeout_max: millis(options.election.1),
        // Ours is the time for one piece of a snapshot, or to install one.
        install_snapshot_timeout: 10_000,
        max_payload_entries: ENTRIES,
        replication_lag_threshold: LAG,
        max_in_snapshot_log_to_keep: options.keep,
        api_channel_size: Some(QUEUE),
        notification_channel_size: Some(QUEUE),
        enable_pre_vote: Some(true),
        // A leader that restarts does not know what it granted: it is elected again, and waits.
        enable_leader_restore: Some(false),
        backoff: "25ms 50ms 100ms ...200ms".into(),
        ..Config::default()
    }
}
