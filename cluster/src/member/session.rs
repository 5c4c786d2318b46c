//! This node's session and its lease, and the desk at which the leader grants leases to all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use super::clocks::WallClocks;
use super::message::{InForce, Noted, Renew, Renewed, kind};
use super::{Announced, CALL, Counters, Joined, Shared};
use crate::authority::{Authority, Command, Standing};
use crate::id::{NodeId, SessionId, ShardId, Term, Version};
use crate::lease::{Confirmation, Grantor, Holder, Renewal, Reply, Timing, Turn};
use crate::outside::Outside;
use crate::shards::{Facts, Host};
use crate::time::{Moment, Span};
use crate::wire;

/// What changes from turn to turn, under one lock that is never held across an await.
pub(super) struct Core {
    /// The lease of this node's session.
    pub holder: Holder,
    /// The desk, while this node leads.
    pub desk: Option<Desk>,
    /// When the registration was last asked for.
    pub registered: Option<Moment>,
    /// Rounds through all shards.
    pub rounds: u64,
    /// The shards' proposals that are under way, and since when.
    pub proposing: Option<Moment>,
    /// When each export was last sent.
    pub exported: BTreeMap<ShardId, (SessionId, Moment)>,
    /// What was announced, and what is being announced and since when.
    pub announced: Announced,
    pub announcing: Option<Moment>,
    /// How many announcements found their holder's node out of reach: each asks another member to pass it on.
    pub detours: usize,
    /// Whether anything was left to announce when that was last looked at.
    pub owing: bool,
    /// Something has come that the log does not show: an import, an announcement.
    pub stirred: bool,
    /// This node leaves its cluster for good.
    pub departing: bool,
    /// What was here is sealed and kept for the next life: nothing of it is published, proposed or opened any more.
    pub kept: bool,
    /// Sealed shards of an earlier life of this node.
    pub inherited: super::sealed::Inherited,
    /// The log as it was at the last turn that had news of it, and the session that followed it.
    pub followed: Option<(Arc<Authority>, SessionId)>,
    /// How far the log was applied at the last turn.
    pub applied: Option<crate::id::LogIndex>,
    /// The keys that the log named at the last turn, and when this node last said which it holds.
    /// What the host had in force at the last turn, which leadership took note of what, and when that was last said.
    pub in_force: Version,
    pub noted: Option<(Term, InForce)>,
    pub telling: Option<Moment>,
    pub keys: BTreeSet<crate::keyring::KeyId>,
    pub said_keys: Option<Moment>,
    pub counters: Counters,
}

/// What a leader knows and its successor does not.
pub(super) struct Desk {
    pub term: Term,
    pub grantor: Grantor,
    /// Who waits for the answer to which request.
    waiters: BTreeMap<(SessionId, u64), oneshot::Sender<Reply>>,
    /// What the host of each session has in force, as it said itself.
    pub in_force: BTreeMap<SessionId, Version>,
    /// What the wall clock of each node read when it last asked for its lease.
    pub wall_clocks: WallClocks,
    /// Sessions that asked to hand over. One whose node goes for good may think better of it: when it last asked.
    pub leaving: BTreeMap<SessionId, Option<Moment>>,
    /// When each decision was last proposed, so that one under way is not proposed again at once.
    pub governed: Option<Moment>,
    pub reseated: Option<Moment>,
    /// Nodes that were heard of at the last look.
    pub heard: BTreeSet<NodeId>,
    /// Since when each other member has not been heard of.
    pub silent: BTreeMap<NodeId, Moment>,
    /// Nodes that have handed over for good, each with the session that said so.
    pub departed: BTreeMap<NodeId, SessionId>,
    /// What an operator should know, since when, and whether it was said.
    pub warned: BTreeMap<String, (Moment, bool)>,
}

impl Core {
    pub(super) fn new(outside: &Outside, timing: Timing) -> Self {
        Self {
            holder: Holder::new(SessionId(outside.entropy.number()), timing),
            desk: None,
            registered: None,
            rounds: 0,
            proposing: None,
            exported: BTreeMap::new(),
            announced: BTreeMap::new(),
            announcing: None,
            detours: 0,
            owing: false,
            stirred: false,
            departing: false,
            kept: false,
            inherited: super::sealed::Inherited::new(),
            followed: None,
            applied: None,
            in_force: Version(0),
            noted: None,
            telling: None,
            keys: BTreeSet::new(),
            said_keys: None,
            counters: Counters { sessions: 1, ..Counters::default() },
        }
    }
}

impl<H: Host> Shared<H> {
    /// Publishes what this node knows now. Under the core's lock, so that what is published later was true later.
    pub(super) fn publish(&self, core: &Core) {
        let Some(joined) = self.joined.get().filter(|_| !core.kept) else { return };
        let (authority, agreed) = {
            let applied = joined.raft.applied();
            let applied = applied.borrow();
            (applied.authority.clone(), applied.agreed.version())
        };
        let version = self.shards.host().in_force();
        let facts = Facts { node: joined.node, authority, holder: core.holder.clone(), version, agreed };
        self.shards.publish(facts);
        self.changed.send_modify(|changes| *changes += 1);
    }
}

/// Replaces a session that must go, and registers one that the log does not know.
pub(super) fn keep<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: Moment) {
    let Some(authority) = shared.authority() else { return };
    let mut core = shared.core();
    if core.departing {
        // It is to end with this session.
        return;
    }
    let session = core.holder.session();
    let standing = authority.standing(session);
    let broken = shared.shards.is_broken(session);
    if broken {
        tracing::error!(%session, "a shard broke an invariant: all that this session holds is given up");
    }
    if broken || core.holder.is_condemned() || standing.is_some_and(|standing| standing > Standing::Serving) {
        let next = SessionId(shared.outside.entropy.number());
        tracing::warn!(old = %session, new = %next, "the session is over: it is replaced, and what it held is given up");
        core.holder = Holder::new(next, shared.options.timing);
        core.registered = None;
        core.exported.clear();
        core.announced.clear();
        core.counters.sessions += 1;
        shared.publish(&core);
        drop(core);
        super::engine::introduce(shared);
        return;
    }
    if standing.is_none()
        && authority.nodes().contains_key(&joined.node)
        && due(core.registered, now, shared.options.timing.renewal())
    {
        core.registered = Some(now);
        drop(core);
        let shared = shared.clone();
        let register = Command::Register { node: joined.node, session };
        shared.clone().spawn(async move { shared.propose(vec![register]).await });
    }
}

/// Asks for the lease when that is due.
pub(super) fn renew<H: Host>(shared: &Arc<Shared<H>>, now: Moment) {
    let mut core = shared.core();
    // Until it is registered a renewal would only be refused.
    let registered = shared
        .authority()
        .is_some_and(|authority| authority.standing(core.holder.session()) == Some(Standing::Serving));
    if !registered || core.holder.poll_timeout().is_none_or(|due| now < due) {
        return;
    }
    shared.shards.come_round();
    core.rounds += 1;
    let progress = shared.progress(core.rounds);
    let turn = core.holder.handle_timeout(now, progress);
    match turn {
        Turn::Rest => {}
        Turn::Stalled => {
            core.counters.stalls += 1;
            tracing::warn!("the disk has not come round since the last renewal: the lease is let run out");
        }
        Turn::Renew(renewal) => {
            drop(core);
            let shared = shared.clone();
            shared.clone().spawn(async move { ask_for_it(&shared, renewal).await });
        }
    }
}

async fn ask_for_it<H: Host>(shared: &Arc<Shared<H>>, renewal: Renewal) {
    let reply = granted(shared, renewal).await;
    let mut core = shared.core();
    let now = shared.outside.clock.now();
    let before = core.holder.left(now);
    match reply.map(|reply| core.holder.handle_reply(reply, now)) {
        Some(Ok(())) if core.holder.left(now) > before => core.counters.renewals += 1,
        _ => core.counters.renewals_failed += 1,
    }
    shared.publish(&core);
    drop(core);
    shared.wake.notify_one();
}

async fn granted<H: Host>(shared: &Arc<Shared<H>>, renewal: Renewal) -> Renewed {
    let joined = shared.joined.get()?;
    let leader = joined.raft.leadership().borrow().leader?;
    let renew = Renew { renewal, wall_millis: shared.outside.clock.wall_millis() };
    if leader == joined.node {
        return arrive(shared, renew).await;
    }
    let lease = std::time::Duration::from_nanos(shared.options.timing.lease.as_nanos());
    let answer = shared.ask(leader, kind::RENEW, wire::encode(&renew), lease).await.ok()?;
    wire::decode::<Renewed>(&answer).ok()?
}

/// The leader's side: waits until the leader has confirmed itself.
pub(super) async fn arrive<H: Host>(shared: &Arc<Shared<H>>, renew: Renew) -> Renewed {
    let Renew { renewal, wall_millis } = renew;
    let authority = shared.authority();
    let answer = {
        let mut core = shared.core();
        let desk = core.desk.as_mut()?;
        if let Some(authority) = authority {
            desk.wall_clocks.heard(&authority, renewal.session, wall_millis);
        }
        if !desk.grantor.arrive(renewal) {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        desk.waiters.retain(|_, waiter| !waiter.is_closed());
        desk.waiters.insert((renewal.session, renewal.sequence), sender);
        receiver
    };
    confirm(shared);
    answer.await.ok()
}

/// Begins a round for the renewals that wait, unless one is in flight.
pub(super) fn confirm<H: Host>(shared: &Arc<Shared<H>>) {
    let now = shared.outside.clock.now();
    let round = shared.core().desk.as_mut().and_then(|desk| desk.grantor.begin_confirmation(now));
    let Some(round) = round else { return };
    let shared = shared.clone();
    shared.clone().spawn(async move {
        finish(&shared, round).await;
        confirm(&shared);
    });
}

async fn finish<H: Host>(shared: &Arc<Shared<H>>, round: Confirmation) {
    let Some(joined) = shared.joined.get() else { return };
    let confirmed = joined.raft.confirm().await.is_ok();
    let leading = joined.raft.leadership().borrow().leading;
    let state = joined.raft.applied().borrow().clone();
    let mut core = shared.core();
    let Some(desk) = core.desk.as_mut() else { return };
    let (Some(leading), true) = (leading, confirmed) else {
        desk.grantor.unconfirmed(round);
        return;
    };
    let now = shared.outside.clock.now();
    let committed = state.agreed.version();
    for reply in desk.grantor.confirmed(round, leading.term, now, &state.authority, committed) {
        // An older request of the same session that still waits is answered by nothing: its sender has asked again.
        if let Some(waiter) = desk.waiters.remove(&(reply.session, reply.sequence)) {
            let _ = waiter.send(reply);
        }
    }
}

/// Makes, keeps or drops the desk, as this node leads or not.
pub(super) fn keep_desk<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: Moment) {
    let leading = joined.raft.leadership().borrow().leading;
    let Some(authority) = shared.authority() else { return };
    let mut core = shared.core();
    match (leading, &mut core.desk) {
        (None, desk) => {
            if desk.take().is_some() {
                tracing::info!("this node does not lead any more");
            }
        }
        (Some(leading), Some(desk)) if desk.term == leading.term => {
            desk.grantor.observe(&authority, now);
            let lives =
                |session| authority.standing(session).is_some_and(|standing| standing < Standing::Fenced);
            desk.in_force.retain(|session, _| lives(*session));
            desk.wall_clocks.keep(&authority);
        }
        (Some(leading), desk) => {
            tracing::info!(term = %leading.term, "this node leads");
            let grantor = Grantor::new(leading.term, shared.options.timing, leading.since, &authority);
            *desk = Some(Desk {
                term: leading.term,
                grantor,
                waiters: BTreeMap::new(),
                in_force: BTreeMap::new(),
                wall_clocks: WallClocks::default(),
                leaving: BTreeMap::new(),
                governed: None,
                reseated: None,
                heard: BTreeSet::new(),
                silent: BTreeMap::new(),
                departed: BTreeMap::new(),
                warned: BTreeMap::new(),
            });
        }
    }
}

/// Says to the leader what the host has in force, whenever either has changed; and publishes it, since a lease may count by it.
pub(super) fn tell_in_force<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: Moment) {
    let version = shared.shards.host().in_force();
    let mut core = shared.core();
    if core.in_force != version {
        core.in_force = version;
        core.telling = None;
        // Shards may have waited for it.
        core.stirred = true;
        shared.publish(&core);
    }
    let leadership = *joined.raft.leadership().borrow();
    let (Some(leader), Some(term)) = (leadership.leader, leadership.term) else { return };
    let said = InForce { session: core.holder.session(), version };
    if core.noted == Some((term, said)) || !due(core.telling, now, shared.options.timing.renewal()) {
        return;
    }
    core.telling = Some(now);
    drop(core);
    let (shared, here) = (shared.clone(), leader == joined.node);
    shared.clone().spawn(async move {
        let noted = if here {
            note_in_force(&shared, said)
        } else {
            let answer = shared.ask(leader, kind::IN_FORCE, wire::encode(&said), CALL).await;
            answer.is_ok_and(|answer| wire::decode::<Noted>(&answer).is_ok_and(|noted| noted.0))
        };
        if noted {
            shared.core().noted = Some((term, said));
        }
    });
}

/// The leader's side of [`tell_in_force`]. Only of a session that lives, so that what is kept is bounded by them.
pub(super) fn note_in_force<H: Host>(shared: &Shared<H>, said: InForce) -> bool {
    let Some(authority) = shared.authority() else { return false };
    let lives = authority.standing(said.session).is_some_and(|standing| standing < Standing::Fenced);
    let mut core = shared.core();
    let Some(desk) = core.desk.as_mut().filter(|_| lives) else { return false };
    let newest = desk.in_force.entry(said.session).or_default();
    // Two of its messages may have overtaken one another; a host does not go back.
    *newest = said.version.max(*newest);
    true
}

impl Desk {
    /// The version that every session which may still answer has in force.
    pub(super) fn acknowledged(&self, authority: &Authority) -> Option<Version> {
        let of = |session| self.in_force.get(&session).copied().unwrap_or_default();
        authority.unfenced().map(|(session, _)| of(session)).min()
    }
}

/// Whether something last done at `last` is to be done again, `every` so often.
pub(super) fn due(last: Option<Moment>, now: Moment, every: Span) -> bool {
    last.is_none_or(|last| now >= last.plus(every))
}

/// Writes a record to disk and syncs it, again and again: a lease is renewed only while that gets round.
pub(super) async fn beat<H: Host>(shared: Arc<Shared<H>>) {
    let pause = std::time::Duration::from_nanos(shared.options.timing.renewal().divided(3).as_nanos());
    loop {
        match shared.store.heartbeat().await {
            Ok(_) => shared.disk_rounds.fetch_add(1, Ordering::Release),
            Err(problem) => {
                return shared.give_up(format!("{problem}: start this node again when the disk is well"));
            }
        };
        tokio::select! {
            () = shared.stopping.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
    }
}
