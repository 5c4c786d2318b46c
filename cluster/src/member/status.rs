//! The cluster as one of its members sees it, for operators.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Shared;
use super::message::kind;
use crate::id::{ClusterId, Epoch, NodeId, SessionId, Version};
use crate::keyring::KeyId;
use crate::shards::Host;
use crate::wire;

/// A cluster, to look at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Which.
    pub cluster: ClusterId,
    /// Who says so.
    pub told_by: NodeId,
    /// The leader, if there is one.
    pub leader: Option<NodeId>,
    /// The ring's version.
    pub epoch: Epoch,
    /// Shards on their way, by number.
    pub moves: Vec<u16>,
    /// Shards that nobody answers for: they were never held, or their holder is gone.
    pub unowned: usize,
    /// The last entry that the teller applied.
    pub applied: u64,
    /// The version of what the host has agreed on, as the teller has it applied.
    pub version: Version,
    /// The version of it that every session which may still answer has in force, when the teller leads.
    pub in_force: Option<Version>,
    /// Its members, by number.
    pub members: Vec<MemberStatus>,
    /// The keys of its secret.
    pub keys: Vec<KeyStatus>,
    /// What an operator should know.
    pub warnings: Vec<String>,
}

/// A member, to look at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its number.
    pub id: NodeId,
    /// Where peers reach it.
    pub address: String,
    /// What it is to Raft.
    pub role: Role,
    /// Its session, unless that is fenced.
    pub session: Option<SessionId>,
    /// At most so much of its lease is left, in milliseconds, by what the teller granted; `None` when the teller does not lead.
    pub lease_left_ms: Option<u64>,
    /// How many shards it is recorded to hold.
    pub shards: usize,
    /// Whether the ring names it.
    pub in_ring: bool,
    /// Whether gossip has heard of it lately.
    pub heard: bool,
    /// How many entries it is behind the leader, when the leader tells.
    pub lag: Option<u64>,
    /// What its host has in force, as it told the teller; `None` when the teller does not lead.
    pub in_force: Option<Version>,
}

/// What a member is to Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It leads.
    Leader,
    /// It votes.
    Voter,
    /// It follows without a vote.
    Learner,
    /// Raft does not know it yet.
    Joining,
}

/// A key, to look at.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyStatus {
    /// Its fingerprint.
    pub key: KeyId,
    /// Whether it is in use.
    pub in_use: bool,
    /// Who holds it.
    pub held_by: Vec<NodeId>,
}

/// What a member has counted since it started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Renewals that were granted.
    pub renewals: u64,
    /// Renewals that got no grant, by whatever cause.
    pub renewals_failed: u64,
    /// Times that a vital part had not come round, so that no renewal was asked for.
    pub stalls: u64,
    /// Fences seen in the log.
    pub fences: u64,
    /// Shards that started cold here.
    pub cold_starts: u64,
    /// Shards that came here with their state, or for the first time.
    pub openings: u64,
    /// Exports that were sent and taken.
    pub exports: u64,
    /// Sessions that this process has had.
    pub sessions: u64,
    /// Times that a peer that was alive was no longer heard of, by gossip.
    pub flaps: u64,
}

/// The leader's view, or this node's own where there is no leader to ask.
pub(super) async fn of<H: Host>(shared: &Arc<Shared<H>>) -> Option<Status> {
    let joined = shared.joined.get()?;
    let leader = joined.raft.leadership().borrow().leader;
    if let Some(leader) = leader.filter(|leader| *leader != joined.node)
        && let Ok(answer) = shared.ask(leader, kind::STATUS, Vec::new(), Duration::from_secs(1)).await
        && let Ok(Some(status)) = wire::decode::<Option<Status>>(&answer)
    {
        return Some(status);
    }
    here(shared)
}

/// This node's view.
pub(super) fn here<H: Host>(shared: &Shared<H>) -> Option<Status> {
    let joined = shared.joined.get()?;
    let authority = shared.authority()?;
    let leader = joined.raft.leadership().borrow().leader;
    let seats = joined.raft.members();
    let progress = joined.raft.progress();
    let seen = shared.gossip.get().map(|gossip| gossip.seen().borrow().clone()).unwrap_or_default();
    let shares = authority.shares();
    let now = shared.outside.clock.now();
    let core = shared.core();
    let members = authority.nodes().iter().map(|(&id, member)| MemberStatus {
        id,
        address: member.address.clone(),
        role: match () {
            () if leader == Some(id) => Role::Leader,
            () if seats.voters.contains(&id) => Role::Voter,
            () if seats.learners.contains(&id) => Role::Learner,
            () => Role::Joining,
        },
        session: member.session,
        lease_left_ms: core.desk.as_ref().map(|desk| {
            member.session.map_or(0, |session| desk.grantor.left(session, now).as_nanos() / 1_000_000)
        }),
        shards: member.session.and_then(|session| shares.get(&session)).copied().unwrap_or(0),
        in_ring: authority.ring().members().contains(&id),
        heard: id == joined.node || seen.get(&member.identity).is_some_and(|sighting| sighting.alive),
        in_force: core.desk.as_ref().map(|desk| {
            let of = |session| desk.in_force.get(&session).copied();
            member.session.and_then(of).unwrap_or_default()
        }),
        lag: (id != joined.node).then(|| progress.get(&id).map(|progress| progress.lag)).flatten(),
    });
    let keys = authority.keyring().keys().iter().map(|(&key, holders)| KeyStatus {
        key,
        in_use: authority.keyring().in_use() == Some(key),
        held_by: holders.iter().copied().collect(),
    });
    let held: usize = shares.values().sum();
    let mut status = Status {
        cluster: authority.cluster(),
        told_by: joined.node,
        leader,
        epoch: authority.epoch(),
        moves: authority.moving().map(crate::id::ShardId::number).collect(),
        unowned: usize::from(crate::id::SHARDS) - held,
        applied: authority.applied().map_or(0, |index| index.0),
        version: joined.raft.applied().borrow().agreed.version(),
        in_force: core.desk.as_ref().and_then(|desk| desk.acknowledged(&authority)),
        members: members.collect(),
        keys: keys.collect(),
        warnings: Vec::new(),
    };
    drop(core);
    status.warnings = warnings(&status);
    Some(status)
}

/// What is wrong with this cluster, in words.
fn warnings(status: &Status) -> Vec<String> {
    let mut warnings = Vec::new();
    let voters =
        status.members.iter().filter(|member| matches!(member.role, Role::Leader | Role::Voter)).count();
    match voters {
        2 => warnings.push(
            "two voters: when either stops, nothing can be admitted. Add a third node, or run one alone"
                .to_owned(),
        ),
        1 if status.members.len() > 1 => {
            warnings.push(
                "one voter: when it stops, nothing can be admitted. Others become voters shortly".to_owned(),
            );
        }
        _ => {}
    }
    if status.leader.is_none() {
        warnings.push("no leader: a majority of the voters do not reach each other".to_owned());
    }
    for member in status.members.iter().filter(|member| !member.heard) {
        warnings.push(format!(
            "node {} ({}) is not heard of: start it again, or remove it with `tollgate cluster remove {}`",
            member.id, member.address, member.id
        ));
    }
    if status.keys.len() > 1 {
        warnings.push("a rotation of the secret is not finished: `tollgate cluster keyring list`".to_owned());
    }
    warnings
}
