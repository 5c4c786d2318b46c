//! Admission that does not know where the owner is: it asks whoever holds the tenant's shard, here or on another node, and asks
//! again, with the same id, whoever holds it then, until somebody has decided or its patience is over.
//!
//! Laws:
//! - a lost answer debits nothing twice: a repetition carries the same id;
//! - an id is of this gateway's present life when it is asked for: owners end with a life what it left open, and could never end what
//!   names another;
//! - an id that may have been admitted and is not used is cancelled, however its request ends (`Pending`);
//! - a grant that is older than [`Reach::grant_age`] is not used. Its id is cancelled and the request, which is the same to its
//!   caller, goes on with a fresh one: to repeat the old one would race with its own cancel;
//! - whether a grant is good (its age, its holder, this gateway's lease) is found by one reading of the clock, the last before it is
//!   used: a process may stand still between any two lines, and what it was told before that is old when it goes on;
//! - an answer counts only if whoever gave it is still the recorded holder, once the reservation stands in [`super::open`];
//! - a gateway without a lease of its own asks nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;
use tollgate_cluster::id::{Epoch, NodeId, SessionId, ShardId};
use tollgate_cluster::lease::Required;
use tollgate_cluster::mutant;
use tollgate_cluster::shards::Facts;
use tollgate_cluster::time;

use super::carrier::{Carrier, Carry};
use super::open::{Held, Open};
use super::outbox::{Outbox, Taken};
use super::owners::shard_of;
use super::reports::Number;
use super::tenants::{attempt_here, end_here, moment, reserve_here};
use super::wire::{End, Of, Question, RefusalCode, Reply, Reserve};
use super::{Asking, Node, codec};
use crate::limit::{
    Decision, Denial, Levels, Moment, Name, Request, ReservationId, Resolution, Resolved, Span, TenantView,
    Verdict,
};

/// How long a request waits for whom.
#[derive(Clone, Copy, Debug)]
pub struct Reach {
    /// For a decision, in all.
    pub patience: Duration,
    /// How old a grant may be when it is used, counted from when it was asked for. A holder may have been replaced meanwhile.
    pub grant_age: Span,
}

impl Default for Reach {
    fn default() -> Self {
        Self { patience: Duration::from_secs(2), grant_age: Span::from_millis(500) }
    }
}

/// What a node that is a member of a cluster has beside its limiters.
pub(super) struct Member {
    pub(super) carrier: Arc<dyn Carrier>,
    pub(super) outbox: Outbox,
    pub(super) reach: Reach,
}

/// Who was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    epoch: Epoch,
    node: NodeId,
    session: SessionId,
    here: bool,
}

/// A decision, when it was made, and the id that it was made for.
pub(super) struct Decided {
    pub(super) decision: Decision,
    pub(super) at: Moment,
    pub(super) id: ReservationId,
    /// What is held open, when something is.
    pub(super) held: Option<Held>,
}

/// What another node answered to the reservation; nothing if there was none, or it could not read the question.
type Told = Option<Result<Decision, RefusalCode>>;

#[allow(clippy::large_enum_variant, reason = "one at a time, for one call")]
enum Attempt {
    /// Somebody decided, and that was still good at this instant.
    Decided(Decision, Moment, Option<Held>),
    /// Admitted too long ago.
    Stale,
    /// A grant is on its way that it takes: the decision is made then, and this one if patience ends first.
    Waits(Decision),
    /// Nobody decided, and why.
    Again(&'static str),
}

/// An id that somebody may have admitted and that nobody uses yet. Dropped so, it is cancelled.
struct Pending<'a> {
    node: &'a Node,
    member: &'a Member,
    tenant: &'a Name,
    number: Number<'a>,
    arrived: bool,
}

impl Pending<'_> {
    const fn id(&self) -> ReservationId {
        self.number.id()
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.arrived {
            let of = Of::Id { tenant: self.tenant.clone(), id: self.id() };
            self.node.post(self.member, End { of, how: Resolution::Cancel });
        }
    }
}

impl Node {
    /// Asks whoever holds the tenant's shard, until somebody decides.
    pub(super) async fn reserve_at_holder(&self, member: &Member, asking: &Asking<'_>) -> Decided {
        let mut wait = self.wait();
        let deadline = wait.deadline;
        let tenant = &asking.principal.tenant;
        let mut pending =
            Pending { node: self, member, tenant, number: self.begin_for(asking), arrived: false };
        loop {
            if pending.id().life() != self.life() {
                // The session has been replaced since: owners end what an earlier one made, or have done so and will not again.
                pending = Pending { node: self, member, tenant, number: self.begin(), arrived: false };
            }
            match self.attempt(member, asking, &mut pending, deadline).await {
                Attempt::Decided(decision, at, held) => {
                    let id = pending.id();
                    if decision.is_paid_by_budgets() {
                        pending.number.keep();
                    }
                    if held.is_some() || matches!(decision.verdict, Verdict::Shadowed(_)) {
                        pending.arrived = false;
                    }
                    return Decided { decision, at, id, held };
                }
                Attempt::Waits(mut decision) => {
                    if !wait.for_grant().await {
                        decision.give_up_waiting();
                        return Decided { decision, at: self.now(), id: pending.id(), held: None };
                    }
                }
                Attempt::Stale => {
                    self.asked_again("stale_grant");
                    pending = Pending { node: self, member, tenant, number: self.begin(), arrived: false };
                }
                Attempt::Again(why) => {
                    self.asked_again(why);
                    if crate::clock::timer_now() >= deadline {
                        let decision = unavailable();
                        return Decided { decision, at: self.now(), id: pending.id(), held: None };
                    }
                    if mutant::is("forward_per_reply") {
                        pending.number = self.begin();
                    }
                    wait_for_change(member, deadline).await;
                }
            }
        }
    }

    async fn attempt(
        &self,
        member: &Member,
        asking: &Asking<'_>,
        pending: &mut Pending<'_>,
        deadline: tokio::time::Instant,
    ) -> Attempt {
        let shard = shard_of(&asking.principal.tenant);
        let sent = self.clock.now();
        let asked = match self.whom_to_ask(shard, sent) {
            Ok(asked) => asked,
            Err(why) => return Attempt::Again(why),
        };
        // Its lease holds, so that it has applied what was agreed on before it was granted.
        if let Some(refusal) = self.refusal(asking) {
            return Attempt::Decided(refusal, moment(sent), None);
        }
        let decision = if asked.here {
            self.ask_here(asked, &asking.request(pending.id()), pending)
        } else {
            self.ask_there(member, asked, asking, pending, deadline).await
        };
        let decision = match decision {
            Ok(decision) => decision,
            Err(why) => return Attempt::Again(why),
        };
        if decision.is_granting() {
            return Attempt::Waits(decision);
        }
        if let Verdict::Denied(_) = decision.verdict {
            let now = self.clock.now();
            let current = self.whom_to_ask(shard, now) == Ok(asked);
            return match current {
                true => Attempt::Decided(decision, moment(now), None),
                false => Attempt::Again("former_holder"),
            };
        }

        pending.arrived = true;
        let open = self.open();
        let held = (decision.verdict == Verdict::Admitted).then(|| Held {
            principal: asking.principal.clone(),
            user: asking.user,
            model: asking.model.clone(),
            amount: asking.estimate,
            deadline: self.now().plus(self.owners().shards().host().options().reservation_deadline),
            idempotency: asking.idempotency,
            paid: decision.paid.clone(),
        });
        if let Some(held) = &held
            && !open.add(shard, pending.id(), held.clone())
        {
            return Attempt::Again("too_much_open");
        }
        let now = self.clock.now();
        let age = moment(now).since(moment(sent));
        let stale = !asked.here && age > member.reach.grant_age && !mutant::is("use_old_grant");
        let current = self.whom_to_ask(shard, now) == Ok(asked) && pending.id().life() == self.life();
        if stale || !current {
            open.remove(shard, pending.id());
            return if stale { Attempt::Stale } else { Attempt::Again("former_holder") };
        }
        if let Some(refusal) = self.refusal(asking) {
            // It came while the owner was asked. What that has admitted is cancelled.
            open.remove(shard, pending.id());
            return Attempt::Decided(refusal, moment(now), None);
        }
        let counter = if asked.here { &self.metrics.decided_here } else { &self.metrics.decided_elsewhere };
        counter.inc();
        Attempt::Decided(decision, moment(now), held)
    }

    /// Why nobody has to be asked: the tenant was suspended, or the key revoked, since the request was read. To be looked up while a lease
    /// holds: before that this node may know an old policy only, from its disk, and a request that it has read under that may wait for the lease.
    pub(super) fn refusal(&self, asking: &Asking<'_>) -> Option<Decision> {
        self.snapshot.load().refusal(asking.principal).map(denied)
    }

    /// The recorded holder of `shard`, if this node may ask for anything at `now`.
    fn whom_to_ask(&self, shard: ShardId, now: time::Moment) -> Result<Asked, &'static str> {
        let facts = self.owners().shards().facts().ok_or("not_a_member")?;
        let epoch = facts.authority.epoch();
        let lease = facts.holder.check(now, Required { version: facts.version, epoch });
        if lease.is_err() {
            return Err("no_lease_of_ours");
        }
        holder(&facts, shard).ok_or("no_holder")
    }

    /// A function call: no await, nothing on the wire.
    fn ask_here(
        &self,
        asked: Asked,
        request: &Request<'_>,
        pending: &mut Pending<'_>,
    ) -> Result<Decision, &'static str> {
        let decided = reserve_here(self.owners().shards(), asked.epoch, asked.session, request);
        decided.map_err(|refusal| {
            let code = RefusalCode::from(refusal);
            pending.arrived |= !code.is_clean();
            code.name()
        })
    }

    async fn ask_there(
        &self,
        member: &Member,
        asked: Asked,
        asking: &Asking<'_>,
        pending: &mut Pending<'_>,
        deadline: tokio::time::Instant,
    ) -> Result<Decision, &'static str> {
        let shard = shard_of(&asking.principal.tenant);
        let ends = member.outbox.take([shard]);
        let arrived_before = std::mem::replace(&mut pending.arrived, true);
        let left = deadline.saturating_duration_since(crate::clock::timer_now());
        // An answer that takes longer is not used.
        let within = left.min(member.reach.grant_age.into());
        let reserve = Some(asking.on_the_wire(pending.id()));
        let reserved = match self.ask(member, asked, ends, reserve, within).await {
            Ok(told) => told,
            Err(Carry::NotSent) => {
                pending.arrived = arrived_before;
                return Err("not_sent");
            }
            Err(Carry::Unknown) => return Err("no_answer"),
        };
        match reserved {
            Some(Ok(decision)) => {
                if let Verdict::Denied(_) = decision.verdict {
                    pending.arrived = arrived_before;
                }
                Ok(decision)
            }
            Some(Err(code)) => {
                pending.arrived = arrived_before || !code.is_clean();
                Err(code.name())
            }
            None => {
                pending.arrived = arrived_before;
                Err("other_version")
            }
        }
    }

    /// Asks another node.
    async fn ask(
        &self,
        member: &Member,
        asked: Asked,
        mut ends: Taken<'_>,
        reserve: Option<Reserve>,
        within: Duration,
    ) -> Result<Told, Carry> {
        let now = self.now();
        self.metrics.outbox_retries.inc_by(ends.trying(asked.session, now));
        let ended = ends.ends(now);
        let question = Question::Decide { epoch: asked.epoch, session: asked.session, ends: ended, reserve };
        let question = codec::question(&question).map_err(|_too_large| Carry::NotSent)?;
        let sent = self.now();
        let reply = tokio::time::timeout(within, member.carrier.ask(asked.node, question, within)).await;
        let reply = reply.map_err(|_elapsed| Carry::Unknown)??;
        self.metrics.peer_round_trip.observe_span(self.now().since(sent));
        match codec::read_reply(&reply) {
            Ok(Reply::Decided { ends: answers, reserved }) => {
                ends.acknowledge(&answers, self.open());
                Ok(reserved)
            }
            Ok(Reply::Unreadable | Reply::Looked(_) | Reply::Attempted(_) | Reply::Kept(_)) => Ok(None),
            // It has answered, so it may have decided.
            Err(_unreadable) => Err(Carry::Unknown),
        }
    }

    /// How a request waits for a grant, whoever decides it.
    pub(super) fn wait(&self) -> Wait<'_> {
        let patience = self.member.as_ref().map_or(Reach::default().patience, |member| member.reach.patience);
        Wait { node: self, deadline: crate::clock::timer_now() + patience, answered: None, times: 0 }
    }

    /// Asks whoever holds the tenant's shard to pay the pool for one more attempt of a reservation that is open.
    ///
    /// # Errors
    /// Why it is not paid for: then there is to be no such attempt.
    pub(super) async fn attempt_at_holder(&self, member: &Member, of: Of, number: u32) -> Result<(), Denial> {
        let mut wait = self.wait();
        loop {
            let denial = match self.attempt_once(member, &of, number).await {
                Ok(Err(denial)) if denial.is_passing() => denial,
                Ok(decided) => return decided,
                Err(why) => {
                    self.asked_again(why);
                    wait_for_change(member, wait.deadline).await;
                    if crate::clock::timer_now() < wait.deadline {
                        continue;
                    }
                    return Err(Denial::Unavailable);
                }
            };
            if !wait.for_grant().await {
                return Err(denial);
            }
        }
    }

    async fn attempt_once(
        &self,
        member: &Member,
        of: &Of,
        number: u32,
    ) -> Result<Result<(), Denial>, &'static str> {
        let asked = self.whom_to_ask(shard_of(of.tenant()), self.clock.now())?;
        if asked.here {
            let attempted = attempt_here(self.owners().shards(), asked.epoch, asked.session, of, number);
            return attempted.map_err(|refusal| RefusalCode::from(refusal).name());
        }
        let question =
            Question::Attempt { epoch: asked.epoch, session: asked.session, of: of.clone(), attempt: number };
        let question = codec::question(&question).map_err(|_too_large| "not_sent")?;
        let within = member.reach.grant_age.into();
        let reply = tokio::time::timeout(within, member.carrier.ask(asked.node, question, within)).await;
        let reply = reply.map_err(|_elapsed| "no_answer")?.map_err(|carry| match carry {
            Carry::NotSent => "not_sent",
            Carry::Unknown => "no_answer",
        })?;
        match codec::read_reply(&reply) {
            Ok(Reply::Attempted(attempted)) => attempted.map_err(RefusalCode::name),
            _ => Err("other_version"),
        }
    }

    /// Ends a reservation: at once if its owner is here; else its owner will be told. What it did, if that is known.
    pub(super) fn end_at_holder(&self, member: &Member, end: End) -> Option<Resolved> {
        let shard = shard_of(end.of.tenant());
        let facts = self.owners().shards().facts();
        if let Some(asked) = facts.and_then(|facts| holder(&facts, shard)).filter(|asked| asked.here)
            && let Ok(resolved) = end_here(self.owners().shards(), asked.epoch, asked.session, &end)
        {
            self.open().remove(shard, end.of.id());
            return Some(resolved);
        }
        self.post(member, end);
        None
    }

    fn post(&self, member: &Member, end: End) {
        let now = self.now();
        let give_up = now.plus(self.owners().shards().host().options().reservation_deadline);
        let (shard, id) = (shard_of(end.of.tenant()), end.of.id());
        if !member.outbox.post(end, now, give_up) {
            // Its owner closes it at its deadline.
            self.open().remove(shard, id);
            self.metrics.outbox_dropped.inc();
        }
    }

    /// Tells owners on other nodes what has ended, until `stopping`. A node that is its own cluster has nobody to tell.
    pub async fn tell_owners(&self, stopping: CancellationToken) {
        let Some(member) = &self.member else { return };
        let mut changed = member.carrier.changed();
        let mut sending = FuturesUnordered::new();
        let mut busy: BTreeSet<NodeId> = BTreeSet::new();
        loop {
            self.metrics.outbox_dropped.inc_by(member.outbox.expire(self.now(), self.open()) as u64);
            for (asked, shards) in self.destinations(member, &busy) {
                busy.insert(asked.node);
                let ends = member.outbox.take(shards);
                sending.push(async move {
                    self.tell(member, asked, ends).await;
                    asked.node
                });
            }
            tokio::select! {
                () = stopping.cancelled() => return,
                () = member.outbox.wake.notified() => {}
                Some(node) = sending.next(), if !sending.is_empty() => {
                    busy.remove(&node);
                }
                Ok(()) = changed.changed() => {}
                // What waits for a shard that nobody holds, or that must not wait any longer.
                () = tokio::time::sleep(member.outbox.rest(self.now(), LOOK_AGAIN).into()), if !member.outbox.is_empty() => {}
            }
        }
    }

    /// Who is to be told something, and about which shards.
    fn destinations(&self, member: &Member, busy: &BTreeSet<NodeId>) -> Vec<(Asked, Vec<ShardId>)> {
        let Some(facts) = self.owners().shards().facts() else { return Vec::new() };
        let free = |shard| {
            let asked = holder(&facts, shard).filter(|asked| !busy.contains(&asked.node))?;
            Some((asked.session, asked))
        };
        let mut destinations: BTreeMap<NodeId, (Asked, Vec<ShardId>)> = BTreeMap::new();
        for (shard, asked) in member.outbox.due(self.now(), free) {
            let (_, shards) = destinations.entry(asked.node).or_insert((asked, Vec::new()));
            shards.push(shard);
        }
        destinations.into_values().collect()
    }

    async fn tell(&self, member: &Member, asked: Asked, mut ends: Taken<'_>) {
        if ends.is_empty() {
            return;
        }
        if asked.here {
            let now = self.now();
            self.metrics.outbox_retries.inc_by(ends.trying(asked.session, now));
            let shards = self.owners().shards();
            let answers: Vec<_> =
                ends.ends(now).iter().map(|end| end_here(shards, asked.epoch, asked.session, end)).collect();
            ends.acknowledge(&answers, self.open());
        } else {
            let within = member.reach.grant_age.into();
            // What was not acknowledged waits again, and for a while.
            let _told = self.ask(member, asked, ends, None, within).await;
        }
    }

    /// What a tenant's limits hold and which node says so: none when nobody who holds them could be asked.
    pub async fn look(&self, tenant: &Name) -> (Option<NodeId>, Option<TenantView>) {
        let Some(member) = &self.member else { return (Some(NodeId(1)), self.owners().tenant(tenant)) };
        let facts = self.owners().shards().facts();
        let Some(asked) = facts.and_then(|facts| holder(&facts, shard_of(tenant))) else {
            return (None, None);
        };
        if asked.here {
            return (Some(asked.node), self.owners().tenant(tenant));
        }
        let Ok(question) = codec::question(&Question::Look { tenant: tenant.clone() }) else {
            return (Some(asked.node), None);
        };
        let within = member.reach.grant_age.into();
        let reply = tokio::time::timeout(within, member.carrier.ask(asked.node, question, within)).await;
        let view = match reply.ok().and_then(Result::ok).map(|reply| codec::read_reply(&reply)) {
            Some(Ok(Reply::Looked(view))) => view,
            _ => None,
        };
        (Some(asked.node), view)
    }

    fn asked_again(&self, why: &str) {
        self.metrics.asked_again.with(vec![("reason", why.to_owned())]).inc();
    }

    fn open(&self) -> &Open {
        self.owners().shards().host().open()
    }
}

/// What waits in the outbox for nobody in particular is looked at again after this long.
const LOOK_AGAIN: Span = Span::from_millis(50);

/// The recorded holder of `shard`.
fn holder(facts: &Facts, shard: ShardId) -> Option<Asked> {
    let (node, session) = facts.authority.holder(shard)?;
    let here = node == facts.node && session == facts.holder.session();
    Some(Asked { epoch: facts.authority.epoch(), node, session, here })
}

/// Until what is known of the cluster changes, but not long: a change may be one that only another node sees.
async fn wait_for_change(member: &Member, deadline: tokio::time::Instant) {
    let mut changed = member.carrier.changed();
    tokio::select! {
        Ok(()) = changed.changed() => {}
        () = tokio::time::sleep(jitter()) => {}
        () = tokio::time::sleep_until(deadline) => {}
    }
}

/// Spreads repetitions, so that those whom one change has woken do not all ask at once.
fn jitter() -> Duration {
    Duration::from_millis(rand::random_range(5..=25))
}

/// A request that waits for a grant that is on its way.
pub(super) struct Wait<'n> {
    node: &'n Node,
    deadline: tokio::time::Instant,
    /// Kept from the first time on, so that no answer is missed between two.
    answered: Option<tokio::sync::watch::Receiver<u64>>,
    times: u32,
}

impl Wait<'_> {
    /// Waits until it may be there: `false` once patience is over. A request that waits is counted once.
    pub(super) async fn for_grant(&mut self) -> bool {
        if self.times == 0 {
            self.node.metrics.grant_waits.inc();
        }
        if crate::clock::timer_now() >= self.deadline {
            return false;
        }
        // Many that wait for long would keep those busy whom they wait for.
        let pause = jitter() * (1 << self.times.min(WAITS_DOUBLE));
        self.times += 1;
        let answered = self.answered.get_or_insert_with(|| self.node.escrow().answered());
        tokio::select! {
            Ok(()) = answered.changed() => {}
            // The purse may be another node's.
            () = tokio::time::sleep(pause) => {}
            () = tokio::time::sleep_until(self.deadline) => {}
        }
        true
    }
}

/// How often the pause doubles between two looks for a grant: it ends at a tenth of a second at most.
const WAITS_DOUBLE: u32 = 2;

/// Nobody decided.
pub(super) fn unavailable() -> Decision {
    denied(Denial::Unavailable)
}

fn denied(denial: Denial) -> Decision {
    Decision { verdict: Verdict::Denied(denial), levels: Levels::default(), version: 0, paid: None }
}
