//! One running node, put together: limiter, callers' edge, operators' edge, and what watches over them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tollgate_cluster::alone::Alone;
use tollgate_cluster::outside::{FileFolder, OsEntropy};
use tollgate_cluster::store::twin::MemoryFolder;

use crate::admin::{Admin, AdminServer, AdminToken};
use crate::alert;
use crate::clock::Clocks;
use crate::control::Control;
use crate::control::policy::Origin;
use crate::ledger::{Ledger, LedgerOptions};
use crate::limit::Options;
use crate::node::agreement::{Agreement, Proposal, Source};
use crate::node::closing;
use crate::node::escrow::drawing;
use crate::node::membership::{Membership, MembershipOptions};
use crate::node::{Node, Snapshot, UserKey};
use crate::proxy::{Edge, EdgeOptions, Server, ServerOptions, TlsFiles};
use crate::reload::PolicyFile;

/// What a node is started with.
pub struct GatewayOptions {
    /// Where callers connect.
    pub listen: SocketAddr,
    /// Where operators connect.
    pub admin: SocketAddr,
    /// A certificate and its key for operators' connections; none: plain HTTP.
    pub admin_tls: Option<TlsFiles>,
    /// Who may operate.
    pub token: AdminToken,
    /// What users' names are made digests with by a node that is its own cluster; none: what is gone with the process. A member
    /// derives its key from the cluster's secret.
    pub users: Option<UserKey>,
    /// Where the usage ledger is kept; none: there is none.
    pub ledger: Option<LedgerOptions>,
    /// The policy file to follow; none: the policy changes by operators' commands alone.
    pub policy_file: Option<PathBuf>,
    /// Where a node keeps what is agreed on that is its own cluster; nowhere: it is gone with the process.
    pub data: Option<PathBuf>,
    /// Bounds of the limiter.
    pub limiter: Options,
    /// Bounds of requests.
    pub edge: EdgeOptions,
    /// Bounds of connections.
    pub server: ServerOptions,
}

/// The policy that a node begins with.
pub enum First {
    /// A document, for a cluster that has no policy yet.
    Document {
        /// Its text.
        text: String,
        /// What problems call it.
        name: String,
    },
    /// The gate is open and nothing is limited, until there is a policy.
    Open(Box<Snapshot>),
    /// Whatever its cluster has agreed on.
    Agreed,
}

/// A running node.
pub struct Gateway {
    node: Arc<Node>,
    agreement: Arc<Agreement>,
    /// None for a node that is its own cluster.
    membership: Option<Membership>,
    server: Server,
    admin: AdminServer,
    ready: Arc<AtomicBool>,
    leave: CancellationToken,
    stopping: CancellationToken,
    background: TaskTracker,
}

/// How long a node that stops waits until owners know what has ended. What they do not know by then they close at their estimates.
const TELL: Duration = Duration::from_secs(3);

/// How long a node that stops waits until its purses are given back. What they hold then is written off.
const RETURN: Duration = Duration::from_secs(1);

/// How often the limiter is asked whether a deadline has passed. Deadlines are minutes away; nobody waits for this.
const TICK: Duration = Duration::from_millis(250);

impl Gateway {
    /// Starts a node that is its own cluster. `first` counts if it has agreed on no policy yet.
    ///
    /// # Errors
    /// An address cannot be listened on, the data folder or the ledger's cannot be used, or the first policy cannot.
    pub async fn start(first: First, mut options: GatewayOptions) -> io::Result<Self> {
        let users = options.users.take().unwrap_or_else(UserKey::random);
        let ledger = options.ledger.take().map(Ledger::open).transpose()?;
        let clock = Arc::new(Clocks);
        let control = Arc::new(Control::default());
        let opened = match &options.data {
            Some(data) => Alone::open(&FileFolder(data.clone()), clock.clone(), &OsEntropy, control).await,
            None => {
                tracing::info!("no --data: policy and keys that are agreed on are gone when this node stops");
                Alone::open(&MemoryFolder::new("memory"), clock.clone(), &OsEntropy, control).await
            }
        };
        let alone = opened.map_err(io::Error::other)?;
        let node = Node::alone(opening(&first), options.limiter, clock);
        let node = Arc::new(node.with_users(users).with_ledger(ledger));
        let agreement = Arc::new(Agreement::new(node, Source::Alone(Arc::new(alone))));
        agreement.catch_up().await;
        if let First::Document { text, name } = &first
            && agreement.control().version() == 0
        {
            let (expect, by) = (Some(0), name);
            let seed = Proposal { text, name, expect, origin: Origin::Seed, by };
            agreement.propose(seed).await.map_err(io::Error::other)?;
        }
        Self::open(agreement, None, &first, options).await
    }

    /// Starts a node as a member of a cluster. It listens when this returns; `/readyz` says when it can admit. A policy it gets from its
    /// cluster; where there is none, its policy file is proposed.
    ///
    /// # Errors
    /// An address cannot be listened on, or the data folder cannot be used.
    pub async fn join(
        first: First,
        mut options: GatewayOptions,
        membership: MembershipOptions,
    ) -> io::Result<Self> {
        let ledger = options.ledger.take().map(Ledger::open).transpose()?;
        let started = Membership::start(opening(&first), options.limiter, ledger, membership).await;
        let (node, membership) = started.map_err(io::Error::other)?;
        let agreement = Arc::new(Agreement::new(node, Source::Member(membership.clone())));
        Self::open(agreement, Some(membership), &first, options).await
    }

    async fn open(
        agreement: Arc<Agreement>,
        membership: Option<Membership>,
        first: &First,
        options: GatewayOptions,
    ) -> io::Result<Self> {
        let node = agreement.node().clone();
        if let Some(data) = options.data.clone() {
            let possessions = node.possessions.clone();
            let opening = tokio::task::spawn_blocking(move || possessions.keep_in(&data));
            opening.await.map_err(io::Error::other)??;
        }
        let ready = Arc::new(AtomicBool::new(false));
        let stopping = CancellationToken::new();
        let background = TaskTracker::new();

        let snapshot = node.snapshot();
        let warming = tokio::task::spawn_blocking(move || crate::estimate::warm_up(snapshot.encodings()));
        warming.await.map_err(io::Error::other)?;
        let leave = CancellationToken::new();
        let edge = Arc::new(Edge { node: node.clone(), options: options.edge });
        let server = Server::bind(options.listen, edge, options.server)
            .await
            .map_err(|error| at(options.listen, "--listen", &error))?;
        let file = options
            .policy_file
            .map(|path| Arc::new(PolicyFile::new(agreement.clone(), path, options.data.as_deref())));
        if let (Some(file), First::Document { text, .. }) = (&file, first) {
            file.began_with(text);
        }
        let admin = Admin {
            node: node.clone(),
            agreement: agreement.clone(),
            file: file.clone(),
            token: options.token,
            ready: ready.clone(),
            callers: server.local_addr(),
            tls: options.admin_tls,
            membership: membership.clone(),
            leave: leave.clone(),
        };
        let admin = AdminServer::bind(options.admin, admin)
            .await
            .map_err(|error| at(options.admin, "--admin", &error))?;
        background.spawn(tick(node.clone(), stopping.clone()));
        background.spawn(crate::issuers::follow(node.clone(), stopping.clone()));
        background.spawn(crate::secrets::follow(agreement.clone(), stopping.clone()));
        if membership.is_some() {
            let (telling, until) = (node.clone(), stopping.clone());
            background.spawn(async move { telling.tell_owners(until).await });
            let (telling, until) = (node.clone(), stopping.clone());
            background.spawn(async move { telling.tell_possessions(until).await });
        }
        background.spawn(agreement.clone().follow(stopping.clone()));
        background.spawn(drawing::draw(node.clone(), agreement.log(), stopping.clone()));
        background.spawn(agreement.clone().govern(stopping.clone()));
        background.spawn(closing::run(agreement.clone(), stopping.clone()));
        background.spawn(alert::run(agreement.clone(), stopping.clone()));
        background.spawn(agreement.clone().report(stopping.clone()));
        if let Some(file) = file {
            background.spawn(file.follow(stopping.clone()));
        }
        background.close();
        ready.store(true, Ordering::Release);
        Ok(Self { node, agreement, membership, server, admin, ready, leave, stopping, background })
    }

    /// The node.
    #[must_use]
    pub const fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// What is agreed on, as this node has it.
    #[must_use]
    pub const fn agreement(&self) -> &Arc<Agreement> {
        &self.agreement
    }

    /// What it waits for, in words; nothing while it can admit.
    #[must_use]
    pub fn waiting_for(&self) -> Option<String> {
        let membership = self.membership.as_ref().and_then(Membership::waiting_for);
        membership.or_else(|| self.agreement.waiting_for())
    }

    /// Where callers connect.
    #[must_use]
    pub const fn callers(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Its part in a cluster, if it has one.
    #[must_use]
    pub const fn membership(&self) -> Option<&Membership> {
        self.membership.as_ref()
    }

    /// Waits until an operator has had this node leave its cluster for good: it is to stop then.
    pub async fn left(&self) {
        self.leave.cancelled().await;
    }

    /// Waits until this node cannot go on, and says why and what to do: its disk has failed, or its cluster will not have it.
    pub async fn failed(&self) -> String {
        self.agreement.failed().await
    }

    /// Whether callers connect by TLS.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.server.is_tls()
    }

    /// Whether operators connect by TLS.
    #[must_use]
    pub const fn is_admin_tls(&self) -> bool {
        self.admin.is_tls()
    }

    /// Where operators connect.
    #[must_use]
    pub const fn operators(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    /// Stops: `/readyz` turns first. After `drain_delay` (so that balancers notice) a member hands its shards over while it still takes
    /// requests, so that nobody is refused. Then no more requests are taken; what runs may end within `patience` and is cut then. What
    /// nobody took over is kept on disk for the node's next life.
    pub async fn shut_down(self, drain_delay: Duration, patience: Duration) {
        self.ready.store(false, Ordering::Release);
        tokio::time::sleep(drain_delay).await;
        let handed_over = match &self.membership {
            Some(membership) => membership.hand_over(patience).await,
            None => true,
        };
        self.server.shut_down(patience).await;
        if self.membership.is_some() {
            self.node.told(TELL).await;
        }
        self.node.reported(TELL).await;
        // Nothing is admitted here any more, and what has ended is known: what the purses still hold is others' to spend.
        self.node.return_purses(RETURN).await;
        if let Some(membership) = &self.membership {
            if !handed_over {
                membership.keep_for_next_life().await;
            }
            membership.shut_down().await;
        }
        self.stopping.cancel();
        self.background.wait().await;
        self.agreement.close().await;
        self.admin.shut_down().await;
        if let Some(ledger) = self.node.ledger().cloned() {
            // Every request has ended, so every row is noted.
            let _ = tokio::task::spawn_blocking(move || ledger.close()).await;
        }
    }
}

/// What is in force before anything is agreed on.
fn opening(first: &First) -> Snapshot {
    match first {
        First::Open(open) => open.read_again(),
        First::Document { .. } | First::Agreed => Snapshot::nothing(),
    }
}

async fn tick(node: Arc<Node>, stopping: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = ticks.tick() => node.tick(),
        }
    }
}

fn at(address: SocketAddr, flag: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot listen on {address} ({flag}): {error}"))
}
