//! The turn: what a member does whenever something has changed, in one order, reading everything anew.

use std::sync::Arc;

use super::message::{Propose, Proposed, kind};
use super::{CALL, Joined, Shared, TURN, keys, mover, session, steward};
use crate::authority::{Authority, Command, Effect};
use crate::gossip::Card;
use crate::peer::Hello;
use crate::shards::{Event, Host};
use crate::wire;

/// Makes turns until it is told to stop.
pub(super) async fn run<H: Host>(shared: Arc<Shared<H>>) {
    let Some(joined) = shared.joined.get() else { return };
    shared.spawn(session::beat(shared.clone()));
    let mut applied = joined.raft.applied();
    let mut leadership = joined.raft.leadership();
    let mut turns = tokio::time::interval(TURN);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turn(&shared, joined);
        tokio::select! {
            biased;
            () = shared.stopping.cancelled() => return,
            _ = applied.changed() => {}
            _ = leadership.changed() => {}
            () = shared.wake.notified() => {}
            _ = turns.tick() => {}
        }
    }
}

fn turn<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined) {
    let now = shared.outside.clock.now();
    let news = follow(shared);
    keys::turn(shared, joined, now, news);
    session::keep_desk(shared, joined, now);
    session::keep(shared, joined, now);
    session::tell_in_force(shared, joined, now);
    session::renew(shared, now);
    mover::turn(shared, joined, now, news);
    steward::turn(shared, joined, now);
    say(shared, joined, now);
}

/// Publishes the log as it is applied now, and follows it with every shard. Whether there was anything new to follow: entries of the
/// host come by the hundred, and leave all that a shard goes by as it was.
fn follow<H: Host>(shared: &Arc<Shared<H>>) -> bool {
    let Some(authority) = shared.authority() else { return false };
    let mut core = shared.core();
    if authority.applied() <= core.applied && core.followed.is_some() {
        return false;
    }
    core.applied = authority.applied();
    shared.publish(&core);
    let session = core.holder.session();
    let same = |(before, by): &(Arc<Authority>, _)| *by == session && authority.is_but_later(before);
    if core.followed.as_ref().is_some_and(same) {
        return false;
    }
    core.followed = Some((authority, session));
    drop(core);
    let events = shared.shards.observe();
    let mut core = shared.core();
    let (mut cold, mut dropped) = (0, 0);
    for event in events {
        match event {
            Event::Opened { cold: true, .. } => cold += 1,
            Event::Opened { .. } => core.counters.openings += 1,
            Event::Ended { .. } => core.counters.fences += 1,
            Event::Dropped { .. } => dropped += 1,
        }
    }
    core.counters.cold_starts += cold;
    drop(core);
    if cold > 0 {
        tracing::warn!(shards = cold, "shards start cold here: their last holder is gone with what it knew");
    }
    if dropped > 0 {
        tracing::warn!(shards = dropped, "shards were taken away from here: the session is over");
    }
    true
}

/// Says what stands between this node and admitting.
fn say<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: crate::time::Moment) {
    let Some(authority) = shared.authority().filter(|_| shared.failed.borrow().is_none()) else { return };
    let core = shared.core();
    let leader = joined.raft.leadership().borrow().leader;
    let usable = shared.shards.facts().is_some_and(|facts| {
        let applied = crate::lease::Required { version: facts.version, epoch: facts.authority.epoch() };
        facts.holder.check(now, applied).is_ok()
    });
    let words = if usable && !authority.ring().members().is_empty() {
        None
    } else if leader.is_none() {
        Some("waiting for a leader: a majority of the voters must reach each other".to_owned())
    } else if !authority.nodes().contains_key(&joined.node) {
        Some("waiting for the log of the cluster".to_owned())
    } else if authority.standing(core.holder.session()).is_none() {
        Some("waiting for the session to be registered".to_owned())
    } else if authority.ring().members().is_empty() {
        Some("waiting for the first ring".to_owned())
    } else {
        Some("waiting for a lease: the leader must be reached, and the log be applied".to_owned())
    };
    drop(core);
    shared.say_waiting(words);
}

/// Tells peers and gossip who this node is now.
pub(super) fn introduce<H: Host>(shared: &Shared<H>) {
    if let Some(peers) = shared.peers.get() {
        peers.introduce(hello(shared));
    }
    if let Some(gossip) = shared.gossip.get() {
        gossip.tell(card(shared, None));
    }
}

pub(super) fn hello<H: Host>(shared: &Shared<H>) -> Hello {
    let joined = shared.joined.get();
    // As the folder says: who has a cluster vetoes the founding of another, before its log is open too.
    let membership = super::notes::membership(&shared.store).ok().flatten();
    Hello {
        wire: crate::peer::WIRE,
        cluster: membership.map(|membership| membership.cluster),
        identity: shared.identity,
        node: joined.map(|joined| joined.node),
        session: joined.map(|_| shared.core().holder.session()),
        address: shared.address.get().cloned().unwrap_or_default(),
    }
}

pub(super) fn card<H: Host>(shared: &Shared<H>, founder: Option<crate::gossip::FounderCard>) -> Card {
    let hello = hello(shared);
    Card {
        wire: hello.wire,
        identity: hello.identity,
        address: hello.address,
        cluster: hello.cluster,
        node: hello.node,
        session: hello.session,
        founder,
    }
}

impl<H: Host> Shared<H> {
    /// Has `commands` committed by the leader, whoever that is.
    pub(super) async fn propose(self: &Arc<Self>, commands: Vec<Command>) -> Proposed {
        let Some(joined) = self.joined.get() else { return Proposed::NotLeader(None) };
        let leader = joined.raft.leadership().borrow().leader;
        match leader {
            Some(leader) if leader == joined.node => self.propose_here(commands).await,
            Some(leader) => {
                let body = wire::encode(&Propose { commands });
                match self.ask(leader, kind::PROPOSE, body, CALL).await {
                    Ok(answer) => {
                        wire::decode(&answer).unwrap_or_else(|problem| Proposed::Unknown(problem.to_string()))
                    }
                    Err(problem) => Proposed::Unknown(problem.to_string()),
                }
            }
            None => Proposed::NotLeader(None),
        }
    }

    /// Has `commands` committed by this node, if it leads.
    pub(super) async fn propose_here(&self, commands: Vec<Command>) -> Proposed {
        let Some(joined) = self.joined.get() else { return Proposed::NotLeader(None) };
        match joined.raft.propose(commands).await {
            Ok(outcomes) => {
                let outcomes = outcomes.into_iter();
                Proposed::Committed(outcomes.map(|outcome| outcome.map_err(|why| why.to_string())).collect())
            }
            Err(crate::raft::ProposeError::NotLeader(leader)) => Proposed::NotLeader(leader),
            Err(problem) => Proposed::Unknown(problem.to_string()),
        }
    }

    /// [`Shared::propose`] for an operator: in words what stood against it.
    pub(super) async fn propose_and_say(
        self: &Arc<Self>,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Vec<Effect>, String>>, String> {
        match self.propose(commands).await {
            Proposed::Committed(outcomes) => Ok(outcomes),
            Proposed::NotLeader(_) => {
                Err("there is no leader now: try again when a majority of the voters reach each other"
                    .to_owned())
            }
            Proposed::Unknown(problem) => {
                Err(format!("it may or may not be done: {problem}; look and try again"))
            }
        }
    }
}
