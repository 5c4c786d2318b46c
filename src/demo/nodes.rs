//! The demo's nodes: one that is its own cluster, or several that are one, each with a folder and ports of its own.
//!
//! The first founds, the others join it; a port is the system's choice, so any number of demos run side by side.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tollgate_cluster::id::SHARDS;
use tollgate_cluster::lease::Timing;
use tollgate_cluster::member::MemberOptions;
use tollgate_cluster::outside::{FileFolder, OsEntropy, Outside, TokioNetwork};
use tollgate_cluster::raft::RaftOptions;
use tollgate_cluster::secret::{Secret, Secrets};
use tollgate_cluster::time::Span;

use super::stage::loopback;
use crate::admin::AdminToken;
use crate::clock::Clocks;
use crate::gateway::{First, Gateway, GatewayOptions};
use crate::ledger::LedgerOptions;
use crate::limit::Options;
use crate::node::Reach;
use crate::node::membership::{Membership, MembershipOptions};
use crate::proxy::{EdgeOptions, ServerOptions};

/// How long the nodes may take to become one cluster.
const TOGETHER: Duration = Duration::from_secs(30);
/// Between two questions whether they are.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How often a node is started when its port for peers, chosen by the system for TCP, is another's for UDP.
const TRIES: u32 = 5;
/// How long requests that run may take to end when the demo is over.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a voter may be silent until another takes its vote. No node of a demo is silent that long.
const VOTER_GRACE: Span = Span::from_millis(60_000);

/// What all nodes of a demo have in common.
pub(super) struct Company<'a> {
    /// Where the policy lies.
    pub path: &'a Path,
    pub token: &'a AdminToken,
    /// What they keep lies below it.
    pub folder: &'a Path,
}

impl Company<'_> {
    /// Starts so many nodes; returns when all of them can admit and each owns its part.
    pub(super) async fn start(&self, count: usize) -> Result<Vec<Gateway>, String> {
        if count <= 1 {
            return Ok(vec![self.alone().await?]);
        }
        // One secret for all of them, known to nobody else.
        let secret: [u8; 32] = rand::random();
        let first = self.member(1, &secret, Vec::new()).await?;
        let seed: Vec<String> = members(std::slice::from_ref(&first))
            .map(|membership| membership.member().address().to_owned())
            .collect();
        let others = (2..=count).map(|number| self.member(number, &secret, seed.clone()));
        let mut nodes = vec![first];
        match try_join_all(others).await {
            Ok(others) => nodes.extend(others),
            Err(problem) => {
                stop(nodes).await;
                return Err(problem);
            }
        }
        let together = async {
            while apart(&nodes).await.is_some() {
                tokio::time::sleep(ASK_AGAIN).await;
            }
        };
        if tokio::time::timeout(TOGETHER, together).await.is_err() {
            let reason = apart(&nodes).await.unwrap_or_else(|| "they are now".to_owned());
            stop(nodes).await;
            return Err(format!("the nodes are not one cluster after {} s: {reason}", TOGETHER.as_secs()));
        }
        Ok(nodes)
    }

    async fn alone(&self) -> Result<Gateway, String> {
        Gateway::start(self.first()?, self.options(1, false))
            .await
            .map_err(|error| format!("cannot start the node: {error}"))
    }

    /// A member: the founder, unless there are seeds.
    async fn member(&self, number: usize, secret: &[u8; 32], seeds: Vec<String>) -> Result<Gateway, String> {
        let mut tries = 0;
        loop {
            tries += 1;
            let membership = self.membership(number, secret, seeds.clone())?;
            match Gateway::join(self.first()?, self.options(number, true), membership).await {
                Ok(gateway) => return Ok(gateway),
                Err(_taken) if tries < TRIES => {}
                Err(error) => return Err(format!("cannot start node {number}: {error}")),
            }
        }
    }

    fn membership(
        &self,
        number: usize,
        secret: &[u8; 32],
        join: Vec<String>,
    ) -> Result<MembershipOptions, String> {
        let secret = Secret::new(*secret).and_then(|secret| Secrets::of(vec![secret]));
        let outside = Outside {
            network: Arc::new(TokioNetwork),
            clock: Arc::new(Clocks),
            entropy: Arc::new(OsEntropy),
            folder: Arc::new(FileFolder(self.folder(number))),
        };
        let member = MemberOptions {
            peer: loopback(),
            advertise: None,
            founders: join.is_empty().then_some(1),
            join,
            timing: Timing::DEFAULT,
            voter_grace: VOTER_GRACE,
            raft: RaftOptions::default(),
        };
        let secrets = Arc::new(secret.map_err(|problem| problem.to_string())?);
        Ok(MembershipOptions { member, secrets, outside, reach: Reach::default(), audit: None })
    }

    fn folder(&self, number: usize) -> PathBuf {
        self.folder.join(format!("node-{number}"))
    }

    fn first(&self) -> Result<First, String> {
        let name = self.path.display().to_string();
        let text = std::fs::read_to_string(self.path).map_err(|error| format!("{name}: {error}"))?;
        Ok(First::Document { text, name })
    }

    /// One that is its own cluster keeps what is agreed on in memory.
    fn options(&self, number: usize, member: bool) -> GatewayOptions {
        let folder = self.folder(number);
        GatewayOptions {
            listen: loopback(),
            admin: loopback(),
            token: self.token.clone(),
            admin_tls: None,
            users: None,
            ledger: Some(LedgerOptions::of_data(&folder)),
            policy_file: Some(self.path.to_owned()),
            data: member.then_some(folder),
            limiter: Options::default(),
            edge: EdgeOptions::default(),
            server: ServerOptions::default(),
        }
    }
}

/// Stops them all at once: none has an heir, and nobody waits for one.
pub(super) async fn stop(nodes: Vec<Gateway>) {
    join_all(nodes.into_iter().map(|node| node.shut_down(Duration::ZERO, PATIENCE))).await;
}

/// Why the nodes are not one cluster yet, in which each owns its part.
async fn apart(nodes: &[Gateway]) -> Option<String> {
    let mut served = 0;
    for (place, node) in nodes.iter().enumerate() {
        if let Some(waiting) = node.waiting_for() {
            return Some(format!("node {} is {waiting}", place + 1));
        }
    }
    for (place, membership) in members(nodes).enumerate() {
        let serving = membership.member().shards().count().serving;
        if serving == 0 {
            return Some(format!("node {} owns nothing", place + 1));
        }
        served += serving;
    }
    let all = usize::from(SHARDS);
    if served != all {
        return Some(format!("{served} of {all} shards have an owner"));
    }
    // Everybody owns something and nothing is missing; a further move may still be planned.
    for membership in members(nodes) {
        let Some(status) = membership.member().status().await else {
            return Some("a node does not know its cluster".to_owned());
        };
        let ring = status.members.iter().filter(|member| member.in_ring).count();
        if ring != nodes.len() || !status.moves.is_empty() {
            return Some(format!("{ring} nodes are in the ring, {} shards on their way", status.moves.len()));
        }
    }
    None
}

fn members(nodes: &[Gateway]) -> impl Iterator<Item = &Membership> {
    nodes.iter().filter_map(Gateway::membership)
}
