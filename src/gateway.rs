//! One running node, put together: limiter, callers' edge, operators' edge, and what watches over them.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{Admin, AdminServer, AdminToken};
use crate::limit::Options;
use crate::node::{Node, Snapshot};
use crate::proxy::{Edge, EdgeOptions, Server, ServerOptions};
use crate::reload;

/// What a node is started with.
pub struct GatewayOptions {
    /// Where callers connect.
    pub listen: SocketAddr,
    /// Where operators connect.
    pub admin: SocketAddr,
    /// Who may operate.
    pub token: AdminToken,
    /// The policy file to follow; none: the policy never changes.
    pub policy_file: Option<PathBuf>,
    /// Bounds of the limiter.
    pub limiter: Options,
    /// Bounds of requests.
    pub edge: EdgeOptions,
    /// Bounds of connections.
    pub server: ServerOptions,
}

/// A running node.
pub struct Gateway {
    node: Arc<Node>,
    server: Server,
    admin: AdminServer,
    ready: Arc<AtomicBool>,
    stopping: CancellationToken,
    background: TaskTracker,
}

/// How often the limiter is asked whether a deadline has passed. Deadlines are minutes away; nobody waits for this.
const TICK: Duration = Duration::from_millis(250);

impl Gateway {
    /// Starts a node with its first policy.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub async fn start(snapshot: Snapshot, options: GatewayOptions) -> io::Result<Self> {
        let node = Arc::new(Node::new(snapshot, options.limiter));
        let ready = Arc::new(AtomicBool::new(false));
        let stopping = CancellationToken::new();
        let background = TaskTracker::new();

        let first = node.snapshot();
        let warming = tokio::task::spawn_blocking(move || crate::estimate::warm_up(first.encodings()));
        warming.await.map_err(io::Error::other)?;
        let edge = Arc::new(Edge { node: node.clone(), options: options.edge });
        let server = Server::bind(options.listen, edge, options.server)
            .await
            .map_err(|error| at(options.listen, "--listen", &error))?;
        let admin = Admin {
            node: node.clone(),
            token: options.token,
            ready: ready.clone(),
            callers: server.local_addr(),
        };
        let admin = AdminServer::bind(options.admin, admin)
            .await
            .map_err(|error| at(options.admin, "--admin", &error))?;
        background.spawn(tick(node.clone(), stopping.clone()));
        if let Some(file) = options.policy_file {
            background.spawn(reload::follow(node.clone(), file, stopping.clone()));
        }
        background.close();
        ready.store(true, Ordering::Release);
        Ok(Self { node, server, admin, ready, stopping, background })
    }

    /// The node.
    #[must_use]
    pub const fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Where callers connect.
    #[must_use]
    pub const fn callers(&self) -> SocketAddr {
        self.server.local_addr()
    }

    /// Where operators connect.
    #[must_use]
    pub const fn operators(&self) -> SocketAddr {
        self.admin.local_addr()
    }

    /// Stops: `/readyz` turns first, then, after `drain_delay` (so that balancers notice), no more requests are taken; what runs may
    /// end within `patience` and is cut then.
    pub async fn shut_down(self, drain_delay: Duration, patience: Duration) {
        self.ready.store(false, Ordering::Release);
        tokio::time::sleep(drain_delay).await;
        self.server.shut_down(patience).await;
        self.stopping.cancel();
        self.background.wait().await;
        self.admin.shut_down().await;
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
