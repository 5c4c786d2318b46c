//! The leader's duties: whom to condemn and fence, what the ring should be, who votes, who is removed.
//!
//! Laws:
//! - a session is condemned for silence only: no renewal for [`SILENT`] when gossip has not heard of its node either, or for a
//!   whole lease whatever gossip says (a wedged node gossips on);
//! - it is fenced when the grantor says that every lease it can have is over;
//! - the ring names the members that have a session which got a lease, and nobody that wants to leave;
//! - one change of the ring, and one of the voters, at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::message::{Leave, Leaving};
use super::session::{Desk, due};
use super::{Joined, Shared};
use crate::authority::{Authority, Command};
use crate::gossip::Seen;
use crate::id::{Identity, NodeId, SessionId};
use crate::membership::{Candidate, choose_voters};
use crate::shards::{Governing, Host};
use crate::time::{Moment, Span};

/// The part of a lease after which a session that gossip does not hear of either is condemned: two renewals were missed.
const SILENT: u64 = 2;

/// How often what was proposed and led to nothing is proposed again.
const AGAIN: Span = Span::from_millis(500);

/// How often the voters are looked at.
const RESEAT: Span = Span::from_millis(500);

/// How long something must be wrong to be said.
const LASTING: Span = Span::from_millis(5_000);

/// The most entries that a node may be behind and still be given a vote.
const CAUGHT_UP: u64 = 100;

pub(super) fn turn<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: Moment) {
    let Some(authority) = shared.authority() else { return };
    let seen = shared.gossip.get().map(|gossip| gossip.seen().borrow().clone()).unwrap_or_default();
    let mut core = shared.core();
    let Some(desk) = core.desk.as_mut() else { return };
    let heard = heard(&authority, &seen, joined.node);
    let lost = desk.heard.difference(&heard).count();
    desk.heard.clone_from(&heard);
    let lease = shared.options.timing.lease;
    desk.leaving.retain(|_, asked| asked.is_none_or(|asked| now.since(asked) < lease));
    // Who has registered another session has thought better of it.
    desk.departed.retain(|node, session| {
        authority
            .nodes()
            .get(node)
            .is_some_and(|member| member.session.is_none_or(|newest| newest == *session))
    });
    condemn(desk, &authority, &heard, lease, now);
    let mut commands = desk.grantor.handle_timeout(now);
    if due(desk.governed, now, AGAIN) {
        let mut decided = ring(desk, &authority, shared.options.timing.lease, now);
        decided.extend(departed(desk, &authority));
        decided.extend(found(shared, joined, &authority));
        desk.governed = (!decided.is_empty()).then_some(now);
        commands.append(&mut decided);
    }
    commands.extend(govern(shared, joined, desk, &authority, now));
    let reseat = due(desk.reseated, now, RESEAT);
    if reseat {
        desk.reseated = Some(now);
    }
    core.counters.flaps += lost as u64;
    drop(core);
    if !commands.is_empty() {
        let shared = shared.clone();
        shared.clone().spawn(async move {
            shared.propose_here(commands).await;
            if let Some(desk) = shared.core().desk.as_mut() {
                desk.governed = None;
            }
            shared.wake.notify_one();
        });
    }
    if reseat {
        warn(shared, now);
        let shared = shared.clone();
        shared.clone().spawn(async move { seat(&shared, &authority, &heard).await });
    }
}

/// Says once what an operator should know and what has been so for a while: a cluster that comes up passes through much.
fn warn<H: Host>(shared: &Shared<H>, now: Moment) {
    let warnings = super::status::here(shared).map(|status| status.warnings).unwrap_or_default();
    let mut core = shared.core();
    let Some(desk) = core.desk.as_mut() else { return };
    desk.warned.retain(|warning, _| warnings.contains(warning));
    for warning in warnings {
        let (since, said) = desk.warned.entry(warning.clone()).or_insert((now, false));
        if !*said && now.since(*since) >= LASTING {
            *said = true;
            tracing::warn!("{warning}");
        }
    }
}

/// The members that gossip hears of, and this node.
fn heard(authority: &Authority, seen: &Seen, me: NodeId) -> BTreeSet<NodeId> {
    let alive = |node: &NodeId| {
        let member = authority.nodes().get(node);
        member.is_some_and(|member| seen.get(&member.identity).is_some_and(|sighting| sighting.alive))
    };
    authority.nodes().keys().copied().filter(|node| *node == me || alive(node)).collect()
}

fn condemn(desk: &mut Desk, authority: &Authority, heard: &BTreeSet<NodeId>, lease: Span, now: Moment) {
    for (id, session) in authority.unfenced() {
        let silence = desk.grantor.silence(id, now);
        let dead = !heard.contains(&session.node) && silence >= lease.divided(SILENT);
        if dead || silence >= lease {
            desk.grantor.condemn(id, now);
        }
    }
}

/// The sessions that get leases now, by node.
fn leased(desk: &Desk, authority: &Authority, lease: Span, now: Moment) -> BTreeMap<NodeId, SessionId> {
    let serving = authority.nodes().keys().filter_map(|&node| Some((node, authority.serving(node)?)));
    serving.filter(|(_, session)| desk.grantor.is_leased(*session, now, lease)).collect()
}

fn ring(desk: &Desk, authority: &Authority, lease: Span, now: Moment) -> Vec<Command> {
    let (epoch, term) = (authority.epoch(), desk.term);
    if authority.is_changing() {
        let over = authority.moving().next().is_none();
        return if over { vec![Command::CloseChange { epoch, term }] } else { Vec::new() };
    }
    let leased = leased(desk, authority, lease, now);
    let stays = |node: &NodeId| {
        let wanted = |session: SessionId| !desk.leaving.contains_key(&session);
        let known = authority.serving(*node).is_some_and(wanted);
        // Who is in the ring stays until its session is over; who is not comes in with its first lease.
        known && (leased.contains_key(node) || authority.ring().members().contains(node))
    };
    let members: Vec<NodeId> = authority.nodes().keys().copied().filter(stays).collect();
    if members.is_empty() || members.iter().eq(authority.ring().members()) {
        return Vec::new();
    }
    vec![Command::ChangeRing { epoch: epoch.next(), members, term }]
}

/// Nodes that went for good: their sessions are let go, and once those are over, the nodes are removed.
fn departed(desk: &Desk, authority: &Authority) -> Vec<Command> {
    let gone = authority.nodes().iter().filter(|(node, member)| {
        let departing = desk.departed.contains_key(node);
        departing && member.session.is_none() && !authority.ring().members().contains(node)
    });
    gone.map(|(&node, _)| Command::Remove { node }).collect()
}

/// What the host would have its leader commit.
fn govern<H: Host>(
    shared: &Shared<H>,
    joined: &Joined,
    desk: &Desk,
    authority: &Authority,
    now: Moment,
) -> Vec<Command> {
    let agreed = joined.raft.applied().borrow().agreed.clone();
    let acknowledged = desk.acknowledged(authority);
    let wall_clocks = desk.wall_clocks.readings();
    let leading = Governing {
        term: desk.term,
        now,
        authority,
        agreed: &agreed,
        acknowledged,
        log_time: joined.raft.log_time().unwrap_or(authority.log_time()),
        wall_clocks: &wall_clocks,
    };
    shared.shards.host().govern(&leading).into_iter().map(Command::Host).collect()
}

/// A cluster without members: this node founded it.
fn found<H: Host>(shared: &Shared<H>, joined: &Joined, authority: &Authority) -> Vec<Command> {
    if !authority.nodes().is_empty() || joined.node != NodeId(0) {
        return Vec::new();
    }
    let address = shared.address.get().cloned().unwrap_or_default();
    let mut commands = vec![Command::Found { identity: shared.identity, address }];
    commands.extend(super::keys::first(shared, joined.node));
    commands
}

/// The node whose folder is `identity` wants to hand over.
pub(super) fn leave<H: Host>(shared: &Shared<H>, identity: Identity, leave: Leave) -> Leaving {
    let Some(authority) = shared.authority() else { return Leaving::NotLeader };
    let now = shared.outside.clock.now();
    let lease = shared.options.timing.lease;
    let mut core = shared.core();
    let Some(desk) = core.desk.as_mut() else { return Leaving::NotLeader };
    let Some(node) = authority.node_of(identity) else {
        // Who is not named here yet is not forgotten.
        return if authority.removed_as(identity).is_some() {
            Leaving::Forgotten
        } else {
            Leaving::NotLeader
        };
    };
    if authority.session(leave.session).is_none_or(|leaver| leaver.node != node) {
        // It has not registered, and will not any more: it holds nothing. What an earlier life of it holds is first to be over.
        if leave.for_good {
            desk.departed.insert(node, leave.session);
        }
        return Leaving::Noted;
    }
    desk.leaving.retain(|session, _| !authority.is_fenced(*session));
    let in_ring = authority.ring().members().contains(&node);
    let heirs = leased(desk, &authority, lease, now);
    let heir = heirs.values().any(|heir| *heir != leave.session && !desk.leaving.contains_key(heir));
    if in_ring && !heir {
        // It goes on, or stops as it is: nothing is to be taken from it later.
        desk.leaving.remove(&leave.session);
        return Leaving::NoHeir;
    }
    desk.leaving.insert(leave.session, leave.for_good.then_some(now));
    let holds = authority.holds(leave.session);
    if leave.for_good && !in_ring && !holds && !authority.is_changing() {
        desk.departed.insert(node, leave.session);
        desk.grantor.condemn(leave.session, now);
    }
    drop(core);
    shared.wake.notify_one();
    Leaving::Noted
}

/// Keeps Raft's members what the log says, and its voters who they should be.
async fn seat<H: Host>(shared: &Arc<Shared<H>>, authority: &Authority, heard: &BTreeSet<NodeId>) {
    let Some(joined) = shared.joined.get() else { return };
    let raft = &joined.raft;
    let seats = raft.members();
    let known: BTreeSet<NodeId> = seats.voters.union(&seats.learners).copied().collect();
    for (&node, member) in authority.nodes() {
        let address = seats.addresses.get(&node);
        let moved = address.is_some_and(|address| *address != member.address);
        if (moved || !known.contains(&node))
            && let Err(problem) = raft.add_learner(node, &member.address).await
        {
            tracing::debug!(%node, %problem, "a member could not be added to Raft; tried again");
            return;
        }
    }
    let progress = raft.progress();
    let now = shared.outside.clock.now();
    let silences: BTreeMap<NodeId, Span> = {
        let mut core = shared.core();
        let Some(desk) = core.desk.as_mut() else { return };
        desk.silent.retain(|node, _| !heard.contains(node) && authority.nodes().contains_key(node));
        for &node in authority.nodes().keys().filter(|node| !heard.contains(node)) {
            desk.silent.entry(node).or_insert(now);
        }
        desk.silent.iter().map(|(&node, &since)| (node, now.since(since))).collect()
    };
    let candidate = |node: &NodeId| Candidate {
        // Heard of no more, it has been silent for something.
        silent: silences.get(node).map_or(Span::default(), |silent| (*silent).max(Span::from_nanos(1))),
        caught_up: *node == joined.node
            || progress.get(node).is_some_and(|progress| progress.lag <= CAUGHT_UP),
    };
    let going = {
        let core = shared.core();
        core.desk.as_ref().map(|desk| desk.departed.clone()).unwrap_or_default()
    };
    let candidates: BTreeMap<NodeId, Candidate> = authority
        .nodes()
        .keys()
        .filter(|node| !going.contains_key(node))
        .map(|node| (*node, candidate(node)))
        .collect();
    if let Some(voters) = choose_voters(&seats.voters, &candidates, shared.options.voter_grace) {
        tracing::info!(?voters, "the voters change");
        if let Err(problem) = raft.set_voters(voters).await {
            tracing::debug!(%problem, "the voters could not be changed; tried again");
        }
        return;
    }
    for node in known.iter().filter(|node| !authority.nodes().contains_key(node)) {
        // One that still votes is unseated first, above.
        if !seats.voters.contains(node)
            && let Err(problem) = raft.remove(*node).await
        {
            tracing::debug!(%node, %problem, "a node that is no member could not be taken out of Raft; tried again");
        }
    }
}

/// Before this node stops: another leads.
pub(super) async fn give_up_leadership<H: Host>(shared: &Shared<H>, joined: &Joined) {
    if joined.raft.leadership().borrow().leading.is_none() {
        return;
    }
    let voters = joined.raft.members().voters;
    let progress = joined.raft.progress();
    let heard = shared.core().desk.as_ref().map(|desk| desk.heard.clone()).unwrap_or_default();
    let best = voters
        .into_iter()
        .filter(|node| *node != joined.node && heard.contains(node))
        .min_by_key(|node| progress.get(node).map_or(u64::MAX, |progress| progress.lag));
    if let Some(successor) = best
        && let Err(problem) = joined.raft.transfer_to(successor).await
    {
        tracing::debug!(%successor, %problem, "leadership was not handed over: an election decides");
    }
}
