//! A node's part in its cluster: started, asked through, handed over and stopped.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tollgate_cluster::id::NodeId;
use tollgate_cluster::member::{Member, MemberOptions, StartError};
use tollgate_cluster::outside::Outside;
use tollgate_cluster::peer::CallError;
use tollgate_cluster::secret::Secrets;
use tollgate_cluster::shards::Shards;

use super::escrow::drawing::Log;
use super::{Audit, Carrier, Carry, Node, Reach, Snapshot, Tenants, UserKey};
use crate::ledger::Ledger;
use crate::limit::Options;
use crate::telemetry::Metrics;
use crate::telemetry::cluster::{so_far, so_far_by};

/// What a member of a cluster is started with.
pub struct MembershipOptions {
    /// Addresses, seeds and lengths of time.
    pub member: MemberOptions,
    /// The cluster's secret.
    pub secrets: Arc<Secrets>,
    /// Network, clocks, chance and disk.
    pub outside: Outside,
    /// How long a request waits for whom.
    pub reach: Reach,
    /// Who hears of all that owners here decide, from the first decision on.
    pub audit: Option<Arc<dyn Audit>>,
}

/// A running membership. Clones are the same one.
#[derive(Clone)]
pub struct Membership(Arc<Member<Tenants>>);

impl Membership {
    /// Starts a node as a member of a cluster. It can admit once [`Membership::waiting_for`] says nothing.
    ///
    /// # Errors
    /// A folder or an address cannot be used.
    pub async fn start(
        snapshot: Snapshot,
        limiter: Options,
        ledger: Option<Arc<Ledger>>,
        options: MembershipOptions,
    ) -> Result<(Arc<Node>, Self), StartError> {
        let clock = options.outside.clock.clone();
        let tenants = Tenants::new(limiter, snapshot.rules.clone(), clock.clone());
        let tenants = tenants.with_ledger(ledger.clone());
        if let Some(audit) = options.audit {
            tenants.audited_by(audit);
        }
        let shards = Arc::new(Shards::new(tenants, clock.clone()));
        let users = UserKey::Cluster(options.secrets.clone());
        let member = Member::start(options.member, options.outside, options.secrets, shards.clone()).await?;
        let membership = Self(Arc::new(member));
        let carrier = Arc::new(membership.clone());
        let node = Node::member(snapshot, shards, clock, carrier, options.reach);
        Ok((Arc::new(node.with_users(users).with_ledger(ledger)), membership))
    }

    /// The membership of a member that was started by itself, for a node that reaches the others in a way of its own.
    #[must_use]
    pub const fn of(member: Arc<Member<Tenants>>) -> Self {
        Self(member)
    }

    /// The member.
    #[must_use]
    pub fn member(&self) -> &Member<Tenants> {
        &self.0
    }

    /// The log, as purses are filled from it.
    #[must_use]
    pub fn log(&self) -> Arc<dyn Log> {
        self.0.clone()
    }

    /// What it waits for, in words; nothing while it can admit.
    #[must_use]
    pub fn waiting_for(&self) -> Option<String> {
        self.0.waiting_for().borrow().clone()
    }

    /// Tells `metrics` how the cluster does, as this node sees it.
    pub fn tell(&self, metrics: &Metrics) {
        let (cluster, member) = (&metrics.cluster, self.member());
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let counters = member.counters();
        cluster.lease_margin.set(member.lease_left().as_nanos() as f64 / 1e9);
        so_far_by(&cluster.lease_renewals, "result", "granted", counters.renewals);
        so_far_by(&cluster.lease_renewals, "result", "failed", counters.renewals_failed);
        so_far_by(&cluster.lease_renewals, "result", "stalled", counters.stalls);
        so_far(&cluster.fences, counters.fences);
        so_far(&cluster.cold_starts, counters.cold_starts);
        so_far(&cluster.shard_openings, counters.openings);
        so_far(&cluster.shard_exports, counters.exports);
        so_far(&cluster.sessions, counters.sessions);
        so_far(&cluster.gossip_flaps, counters.flaps);
        so_far(&cluster.owned_decisions, member.shards().host().decisions());
        let count = member.shards().count();
        cluster.shards_owned.set(gauge(count.serving as u64));
        cluster.shards_sealed.set(gauge(count.sealed as u64));
        cluster.shards_incomplete.set(gauge(count.incomplete as u64));
        if let Some(facts) = member.shards().facts() {
            cluster.ring_epoch.set(gauge(facts.authority.epoch().0));
        }
        if let Some(raft) = member.raft_stats() {
            so_far(&cluster.raft_entries, raft.entries_total);
            cluster.raft_term.set(gauge(raft.term));
            cluster.raft_leader.set(i64::from(raft.leader.is_some() && raft.leader == member.node()));
        }
        if let Some(gossip) = member.gossip_stats() {
            let outcomes = [
                ("sent", gossip.sent),
                ("taken", gossip.taken),
                ("unknown_key", gossip.unknown_key),
                ("bad_seal", gossip.bad_seal),
                ("replayed", gossip.replayed),
                ("malformed", gossip.malformed),
                ("oversize", gossip.oversize),
                ("send_errors", gossip.send_errors),
                ("receive_errors", gossip.receive_errors),
            ];
            for (outcome, count) in outcomes {
                so_far_by(&cluster.gossip_datagrams, "outcome", outcome, count);
            }
        }
        if let Some(peers) = member.peer_stats() {
            cluster.peer_connections.set(gauge(peers.open as u64));
            for (reason, count) in peers.refusals {
                so_far_by(&cluster.peer_refusals, "reason", reason, count);
            }
        }
    }

    /// Hands all shards over; `false` when nobody takes them within `patience`.
    pub async fn hand_over(&self, patience: Duration) -> bool {
        let handed_over = self.0.hand_over(patience, false).await;
        if handed_over {
            tracing::info!("all shards are handed over");
        }
        handed_over
    }

    /// Keeps on disk what nobody took over. Nothing is decided here any more.
    pub async fn keep_for_next_life(&self) {
        self.0.keep_for_next_life().await;
    }

    /// Stops. What has not been handed over is gone.
    pub async fn shut_down(&self) {
        self.0.shut_down().await;
    }
}

#[async_trait]
impl Carrier for Membership {
    async fn ask(&self, node: NodeId, question: Vec<u8>, within: Duration) -> Result<Vec<u8>, Carry> {
        match self.0.ask(node, question, within).await {
            Ok(answer) => Ok(answer),
            Err(CallError::Unreachable(_) | CallError::Refused(_)) => Err(Carry::NotSent),
            Err(CallError::Unknown(_)) => Err(Carry::Unknown),
        }
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.0.changed()
    }
}
