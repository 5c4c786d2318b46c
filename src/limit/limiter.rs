//! The façade: (state, now, command) → outcome.

mod export;
mod lost;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::amount::{Amount, Dimension};
use super::books::Books;
use super::cold::Cold;
use super::decision::{Decision, Denial, LevelView, Levels, Resolution, Resolved, Verdict};
use super::mutant;
use super::paid::{Difference, Free, Lane, Paid, Purser};
use super::reservation::{IdempotencyDigest, Phase, Reservation, ReservationId, UserDigest};
use super::rules::{Name, Rules, Scope};
use super::tenant::{Debited, Path, TenantState, Way};
use super::time::{Moment, Span};
use super::units::Units;
pub use lost::Announced;

/// Bounds of one limiter. A table that is full refuses new work ([`Denial::Full`]); it never forgets early. Only that of a tenant's
/// users does not refuse: who finds no place in it shares one.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A reservation that has not ended after this long is closed at its estimate.
    pub reservation_deadline: Span,
    /// How long an ended reservation is remembered, so that a duplicate of its messages changes nothing.
    pub remember: Span,
    /// How long one that was closed at its deadline may still be trued up.
    pub late_settle: Span,
    /// How long a gateway that is gone may still say how what it had open has ended: then it is closed for good.
    pub orphan_grace: Span,
    /// How long an idempotency key stays taken after its request is over.
    pub idempotency: Span,
    /// The most reservations, open and remembered.
    pub max_reservations: usize,
    /// The most idempotency keys.
    pub max_idempotency_keys: usize,
    /// The most end users of one tenant that have buckets of their own.
    pub max_users_per_tenant: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // Longer than the longest exchange that a policy may allow, so that it only fires for a gateway that died or lost one.
            reservation_deadline: Span::from_secs(65 * 60),
            // Longer than a requester retries one id.
            remember: Span::from_secs(5),
            late_settle: Span::from_secs(10 * 60),
            orphan_grace: Span::from_secs(10 * 60),
            idempotency: Span::from_secs(24 * 60 * 60),
            max_reservations: 1_000_000,
            max_idempotency_keys: 200_000,
            // Those who have asked lately: one whose buckets are full again needs no place. 2 MB of a tenant's state.
            max_users_per_tenant: 10_000,
        }
    }
}

/// What a reservation asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its id.
    pub id: ReservationId,
    /// The tenant that pays.
    pub tenant: &'a Name,
    /// The label of the key that asks.
    pub key: &'a str,
    /// The end user, if the request names one and the policy wants to know.
    pub user: Option<UserDigest>,
    /// The key's project.
    pub project: Option<&'a str>,
    /// The resolved model.
    pub model: &'a str,
    /// The estimate.
    pub need: Amount,
    /// The caller's idempotency key, if it sent one.
    pub idempotency: Option<IdempotencyDigest>,
    /// Whether it goes to the model that its caller asked for.
    pub lane: Lane,
}

impl<'a> Request<'a> {
    const fn way(&self) -> Way<'a> {
        Way { key: self.key, user: self.user, project: self.project, model: self.model }
    }
}

/// A reservation that reached its deadline and was closed at its estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired {
    /// Its id.
    pub id: ReservationId,
    /// Who was charged.
    pub tenant: Name,
    /// What was charged.
    pub held: Amount,
    /// What it had taken from purses.
    pub paid: Option<Box<Paid>>,
}

/// One scope of a tenant, to look at.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ScopeView {
    /// What is bound.
    pub scope: Scope,
    /// Its limits.
    pub limits: Vec<(Dimension, LevelView)>,
    /// Requests in flight.
    pub inflight: u32,
    /// The most allowed.
    pub max_inflight: Option<u32>,
}

/// One tenant, to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TenantView {
    /// Reservations that have not ended.
    pub open: u32,
    /// End users that have buckets of their own now.
    pub users: u32,
    /// Its scopes, as the policy lists them. That of users is what those share who found no place of their own.
    pub scopes: Vec<ScopeView>,
}

/// How long an idle tenant's state is kept at least, so that one who sends now and then is not made anew each time.
const LINGER: Span = Span::from_secs(60);

/// How many idle tenants one call looks at. A million that came at once also go at once, and to forget them all took 3 s; this
/// many take a few milliseconds, and the next call goes on.
const FORGET_AT_ONCE: usize = 1_000;

/// All live state of the tenants of one shard.
///
/// A reading of the clock that is earlier than one before counts as that one.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub struct Limiter {
    /// The latest reading of the clock.
    now: Moment,
    options: Options,
    rules: Arc<Rules>,
    tenants: HashMap<Name, TenantState>,
    /// Users of all tenants.
    users: usize,
    reservations: HashMap<ReservationId, Reservation>,
    deadlines: BTreeSet<(Moment, ReservationId)>,
    /// Ended reservations in the order in which they are forgotten; two queues, because each has one length of memory.
    over: VecDeque<(Moment, ReservationId)>,
    expired: VecDeque<(Moment, ReservationId)>,
    idempotency: HashMap<IdempotencyDigest, ReservationId>,
    /// With the reservation that held the key, for the key may since have been freed and taken by another.
    idempotency_over: VecDeque<(Moment, (IdempotencyDigest, ReservationId))>,
    /// Tenants to forget, each with the instant at which it may be idle and full.
    idle: BTreeSet<(Moment, Name)>,
    books: Books,
    /// Since when it knows what is spent, if its predecessor's state was lost.
    cold: Option<Cold>,
}

impl Limiter {
    /// A limiter of tenants that nobody has answered for before.
    #[must_use]
    pub fn first(options: Options, rules: Arc<Rules>) -> Self {
        Self {
            now: Moment::default(),
            options,
            rules,
            tenants: HashMap::new(),
            users: 0,
            reservations: HashMap::new(),
            deadlines: BTreeSet::new(),
            over: VecDeque::new(),
            expired: VecDeque::new(),
            idempotency: HashMap::new(),
            idempotency_over: VecDeque::new(),
            idle: BTreeSet::new(),
            books: Books::default(),
            cold: None,
        }
    }

    /// Puts a later version of the rules in force. Each tenant follows at its next command; what is used stays used.
    pub fn apply(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
    }

    /// Checks every limit on the request's path, then debits all of them, or none. A repeated id gets the answer that it got,
    /// with the levels of now; one that was cancelled is denied. While not all open work is known (`complete`), nothing is
    /// admitted whose path has a cap on what is in flight.
    pub fn reserve(&mut self, now: Moment, request: &Request<'_>, complete: bool) -> Decision {
        self.reserve_paid(now, request, complete, &mut Free)
    }

    /// [`Limiter::reserve`], where `purser` pays for what stands behind the tenant's own limits: it is asked when nothing here refuses,
    /// and nothing here is debited when it refuses.
    pub fn reserve_paid(
        &mut self,
        now: Moment,
        request: &Request<'_>,
        complete: bool,
        purser: &mut impl Purser,
    ) -> Decision {
        let now = self.read(now);
        if let Some(known) = self.reservations.get(&request.id) {
            let verdict = match (known.phase, &known.shadowed) {
                (Phase::Cancelled, _) => Verdict::Denied(Denial::Cancelled),
                (_, Some(denial)) => Verdict::Shadowed(Denial::clone(denial)),
                (_, None) => Verdict::Admitted,
            };
            let (version, paid) = (known.version, known.paid.clone());
            return Decision { verdict, version, paid, levels: self.levels(now, request) };
        }
        let version = self.rules.version();
        let answer = |verdict, levels| Decision { verdict, levels, version, paid: None };
        let denied = |denial| answer(Verdict::Denied(denial), Levels::default());
        if let Err(denial) = self.admissible(request) {
            return denied(denial);
        }

        let tenant = match self.tenants.entry(request.tenant.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => match self.rules.tenant(request.tenant) {
                Some(rules) => entry.insert(TenantState::new(rules, version, now, self.cold.as_ref())),
                None => return denied(Denial::UnknownTenant),
            },
        };
        tenant.follow(&self.rules, request.tenant);
        if !tenant.in_force {
            return denied(Denial::UnknownTenant);
        }
        let (users, most) = (tenant.users_held(), self.options.max_users_per_tenant);
        let (path, newcomer) = tenant.enter(&request.way(), now, self.cold.as_ref(), most);
        tenant.refill(&path, now);
        let checked = tenant.check(&path, request.need, complete).and_then(|()| purser.pay(now, request));
        let (verdict, path, debited, paid) = match checked {
            Ok(paid) => (Verdict::Admitted, path, tenant.debit(&path, request.need), paid),
            // What is on its way is waited for in shadow too: it is no refusal.
            Err(denial) if tenant.shadow() && !denial.is_granting() => {
                tenant.turn_away(newcomer);
                (Verdict::Shadowed(denial), Path::default(), 0, None)
            }
            Err(denial) => {
                let levels = tenant.levels(&path);
                tenant.turn_away(newcomer);
                self.users = self.users + tenant.users_held() - users;
                self.watch_for_idleness(now, request.tenant);
                return answer(Verdict::Denied(denial), levels);
            }
        };
        self.users = self.users + tenant.users_held() - users;
        tenant.open += 1;
        tenant.assert_invariants(&path);
        let levels = tenant.levels(&path);
        let shadowed = match &verdict {
            Verdict::Shadowed(denial) => Some(Box::new(denial.clone())),
            _ => None,
        };
        if shadowed.is_none() {
            self.books.reserve(request.need.total);
        }
        let deadline = now.plus(self.options.reservation_deadline);
        self.deadlines.insert((deadline, request.id));
        if let Some(digest) = request.idempotency {
            self.idempotency.insert(digest, request.id);
        }
        self.reservations.insert(
            request.id,
            Reservation {
                tenant: request.tenant.clone(),
                path,
                held: request.need,
                debited,
                shadowed,
                version,
                idempotency: request.idempotency,
                phase: Phase::Held { deadline },
                adopted: false,
                attempts: 1,
                paid: paid.clone(),
            },
        );
        self.assert_invariants();
        Decision { verdict, levels, version, paid }
    }

    /// Ends a reservation, once. A late settle of one that was closed at its deadline trues it up, once.
    pub fn resolve(&mut self, now: Moment, id: ReservationId, resolution: Resolution) -> Resolved {
        self.resolve_paid(now, id, resolution, &mut Free)
    }

    /// [`Limiter::resolve`], where `purser` paid.
    pub fn resolve_paid(
        &mut self,
        now: Moment,
        id: ReservationId,
        resolution: Resolution,
        purser: &mut impl Purser,
    ) -> Resolved {
        let now = self.read(now);
        let Some(reservation) = self.reservations.get_mut(&id) else {
            if resolution == Resolution::Cancel {
                self.bar(now, id);
            }
            return Resolved::Unknown;
        };
        let late = match (reservation.phase, resolution) {
            (Phase::Held { deadline }, _) => {
                self.deadlines.remove(&(deadline, id));
                false
            }
            (Phase::Expired, Resolution::Settle(_) | Resolution::Cancel) => true,
            (Phase::Over, Resolution::Settle(used)) if mutant::is("double_settle") => {
                let Reservation { path, held, debited, version, .. } = *reservation;
                if let Some(tenant) = self.tenants.get_mut(&reservation.tenant) {
                    tenant.true_up(&path, debited, version, held, Some(used), now);
                }
                return Resolved::Already;
            }
            _ => return Resolved::Already,
        };
        let cancelled = resolution == Resolution::Cancel;
        let deadline = match reservation.phase {
            Phase::Held { deadline } => Some(deadline),
            _ => None,
        };
        reservation.phase = if cancelled { Phase::Cancelled } else { Phase::Over };
        let used = match resolution {
            Resolution::Settle(used) => Some(used),
            Resolution::Close | Resolution::Abandon => Some(reservation.held),
            Resolution::Cancel => None,
        };

        let Reservation { path, held, debited, version, .. } = *reservation;
        if let Some(paid) = &reservation.paid {
            let cancelled = cancelled && !reservation.adopted;
            let (had, took) = (Units::from(held), used.map_or(Units::NONE, Units::from));
            // What was debited in a state that is lost is refunded by nobody.
            let spared = if reservation.adopted { Units::NONE } else { had.minus(took) };
            purser.true_up(now, paid, Difference { spared, exceeded: took.minus(had), cancelled });
        }
        match self.tenants.get_mut(&reservation.tenant) {
            Some(tenant) => {
                tenant.follow(&self.rules, &reservation.tenant);
                tenant.true_up(&path, debited, version, held, used, now);
                if mutant::is("slot_leak") && resolution == Resolution::Abandon {
                    return Resolved::Already;
                }
                if !late {
                    tenant.open -= 1;
                    tenant.free_slots(&path);
                }
                tenant.leave(&path);
                tenant.assert_invariants(&path);
            }
            None => {
                assert!(late && path == Path::default(), "{id}: its tenant was forgotten before it ended")
            }
        }
        let (refunded, overage) = match reservation.shadowed {
            Some(_) => (0, 0),
            None => self.books.resolve(held.total, resolution, late),
        };
        if let Some(digest) = reservation.idempotency {
            if cancelled {
                free_idempotency_key(&mut self.idempotency, digest, id);
            } else if !late {
                self.idempotency_over.push_back((now.plus(self.options.idempotency), (digest, id)));
            }
        }
        let (tenant, adopted) = (reservation.tenant.clone(), reservation.adopted);
        let reported = adopted || deadline.is_some_and(|deadline| self.might_be_adopted(now, deadline));
        if mutant::is("dedup_early") {
            self.reservations.remove(&id);
        } else if reported && !late {
            // A report of it may be on its way longer than any message that was sent once.
            self.expired.push_back((now.plus(self.options.late_settle), id));
        } else if !late {
            // One that expired stands in its own queue already.
            self.over.push_back((now.plus(self.options.remember), id));
        }
        self.watch_for_idleness(now, &tenant);
        self.assert_invariants();
        if late { Resolved::Late { refunded, overage } } else { Resolved::Now { refunded, overage } }
    }

    /// The provider is to be asked once more for a reservation that is held: attempt number `attempt`, from 2. Whoever pays the
    /// provider's pool pays again, once for each number; its tenant has paid.
    ///
    /// # Errors
    /// It is not paid for, or [`Denial::Cancelled`]: there is no such reservation any more.
    pub fn attempt(
        &mut self,
        now: Moment,
        id: ReservationId,
        attempt: u32,
        purser: &mut impl Purser,
    ) -> Result<(), Denial> {
        let now = self.read(now);
        let held = |known: &&mut Reservation| matches!(known.phase, Phase::Held { .. });
        let Some(known) = self.reservations.get_mut(&id).filter(held) else {
            return Err(Denial::Cancelled);
        };
        if attempt <= known.attempts {
            return Ok(());
        }
        if let Some(pool) = known.paid.as_ref().and_then(|paid| paid.pool.as_ref()) {
            purser.pay_again(now, pool, known.held.into())?;
        }
        known.attempts = attempt;
        Ok(())
    }

    /// The next instant at which [`Limiter::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Moment> {
        let deadline = self.deadlines.first().map(|(at, _)| *at);
        let queues = [
            self.over.front().map(|(at, _)| *at),
            self.expired.front().map(|(at, _)| *at),
            self.idempotency_over.front().map(|(at, _)| *at),
            self.idle.first().map(|(at, _)| *at),
        ];
        queues.into_iter().flatten().chain(deadline).min()
    }

    /// Closes the reservations whose deadline has passed, and forgets what has been remembered long enough. Of idle tenants it
    /// forgets only so many at a time, so that [`Limiter::poll_timeout`] may name an instant that is past: call again soon.
    pub fn handle_timeout(&mut self, now: Moment) -> Vec<Expired> {
        let now = self.read(now);
        let mut expired = Vec::new();
        while let Some(&(at, id)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            expired.extend(self.expire(now, id));
        }
        while let Some(id) = pop_due(&mut self.over, now) {
            self.reservations.remove(&id);
        }
        while let Some(id) = pop_due(&mut self.expired, now) {
            self.forget_expired(now, id);
        }
        while let Some((digest, id)) = pop_due(&mut self.idempotency_over, now) {
            free_idempotency_key(&mut self.idempotency, digest, id);
        }
        for _ in 0..FORGET_AT_ONCE {
            let Some(first) = self.idle.first().filter(|(at, _)| *at <= now).cloned() else { break };
            self.idle.remove(&first);
            self.forget_if_idle(now, first.1);
        }
        self.assert_invariants();
        expired
    }

    /// Closes at their estimates the reservations that gateways made whose life is over, and frees their slots. The upper half of an id
    /// names the life of the gateway that made it. A late settle trues one up, once.
    pub fn end_lives(&mut self, now: Moment, lives: &BTreeSet<u64>) -> Vec<Expired> {
        let now = self.read(now);
        let over = |id: &ReservationId| lives.contains(&id.life());
        let orphans: Vec<(Moment, ReservationId)> =
            self.deadlines.iter().filter(|(_, id)| over(id)).copied().collect();
        let mut ended = Vec::new();
        for orphan in orphans {
            self.deadlines.remove(&orphan);
            ended.extend(self.expire(now, orphan.1));
        }
        self.assert_invariants();
        ended
    }

    /// A tenant's levels as of `now`; none when the rules do not name it.
    pub fn tenant(&mut self, now: Moment, name: &Name) -> Option<TenantView> {
        let now = self.read(now);
        let rules = self.rules.tenant(name)?;
        let version = self.rules.version();
        let Some(tenant) = self.tenants.get_mut(name) else {
            let scopes = TenantState::new(rules, version, now, self.cold.as_ref()).scopes(now);
            return Some(TenantView { open: 0, users: 0, scopes });
        };
        tenant.follow(&self.rules, name);
        let users = u32::try_from(tenant.users_held()).unwrap_or(u32::MAX);
        Some(TenantView { open: tenant.open, users, scopes: tenant.scopes(now) })
    }

    /// The books.
    #[must_use]
    pub const fn books(&self) -> Books {
        self.books
    }

    /// Reservations that have not ended.
    #[must_use]
    pub fn open(&self) -> usize {
        self.deadlines.len()
    }

    /// Tenants that have state.
    #[must_use]
    pub fn tenants_held(&self) -> usize {
        self.tenants.len()
    }

    /// End users that have state.
    #[must_use]
    pub const fn users_held(&self) -> usize {
        self.users
    }

    /// Reservations held in memory, open and remembered.
    #[must_use]
    pub fn reservations_held(&self) -> usize {
        self.reservations.len()
    }

    fn read(&mut self, now: Moment) -> Moment {
        self.now = self.now.max(now);
        self.now
    }

    /// What refuses a request before any limit is looked at.
    fn admissible(&self, request: &Request<'_>) -> Result<(), Denial> {
        if self.reservations.len() >= self.options.max_reservations {
            return Err(Denial::Full);
        }
        let Some(digest) = request.idempotency else { return Ok(()) };
        if let Some(holder) = self.idempotency.get(&digest) {
            return match self.reservations.get(holder).map(|holder| holder.phase) {
                Some(Phase::Held { .. }) => Err(Denial::IdempotencyInProgress),
                _ => Err(Denial::AlreadyDispatched),
            };
        }
        let keys = self.idempotency.len().max(self.idempotency_over.len());
        if keys >= self.options.max_idempotency_keys { Err(Denial::Full) } else { Ok(()) }
    }

    /// The levels on a request's path.
    fn levels(&mut self, now: Moment, request: &Request<'_>) -> Levels {
        let Some(tenant) = self.tenants.get_mut(request.tenant) else { return Levels::default() };
        tenant.follow(&self.rules, request.tenant);
        let path = tenant.path(&request.way());
        tenant.refill(&path, now);
        tenant.levels(&path)
    }

    fn expire(&mut self, now: Moment, id: ReservationId) -> Option<Expired> {
        let reservation = self.reservations.get_mut(&id)?;
        reservation.phase = Phase::Expired;
        if let Some(tenant) = self.tenants.get_mut(&reservation.tenant) {
            tenant.open -= 1;
            tenant.free_slots(&reservation.path);
            if mutant::is("release_on_timeout") {
                let Reservation { path, held, debited, version, .. } = *reservation;
                tenant.true_up(&path, debited, version, held, None, now);
            }
        }
        if reservation.shadowed.is_none() {
            self.books.expire(reservation.held.total);
        }
        if let Some(digest) = reservation.idempotency {
            self.idempotency_over.push_back((now.plus(self.options.idempotency), (digest, id)));
        }
        let (tenant, paid) = (reservation.tenant.clone(), reservation.paid.clone());
        let expired = Expired { id, tenant, held: reservation.held, paid };
        self.expired.push_back((now.plus(self.options.late_settle), id));
        self.watch_for_idleness(now, &expired.tenant);
        Some(expired)
    }

    /// The time for a late settle is over.
    fn forget_expired(&mut self, now: Moment, id: ReservationId) {
        let Some(reservation) = self.reservations.remove(&id) else { return };
        if reservation.phase == Phase::Expired
            && let Some(tenant) = self.tenants.get_mut(&reservation.tenant)
        {
            tenant.leave(&reservation.path);
            self.watch_for_idleness(now, &reservation.tenant);
        }
    }

    /// A cancel overtook the reservation it cancels: when that arrives, it must find this and debit nothing.
    fn bar(&mut self, now: Moment, id: ReservationId) {
        if self.reservations.len() >= self.options.max_reservations {
            return;
        }
        self.reservations.insert(id, Reservation::barred());
        self.over.push_back((now.plus(self.options.remember), id));
    }

    /// Queues a tenant with nothing open, so that it is forgotten once it is full.
    fn watch_for_idleness(&mut self, now: Moment, name: &Name) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        if tenant.queued {
            return;
        }
        tenant.follow(&self.rules, name);
        let Some(wait) = tenant.idle_in(now) else { return };
        let wait = wait.max(self.made_anew_is_full_in(now, name));
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        tenant.queued = true;
        self.idle.insert((now.plus(wait.max(LINGER)), name.clone()));
    }

    /// A tenant is forgotten only when it is full with nothing open: then a bucket made anew is no different.
    fn forget_if_idle(&mut self, now: Moment, name: Name) {
        let Some(tenant) = self.tenants.get_mut(&name) else { return };
        tenant.queued = false;
        tenant.follow(&self.rules, &name);
        let full = tenant.idle_in(now) == Some(Span::default());
        if full && self.made_anew_is_full_in(now, &name) == Span::default() {
            self.users -= self.tenants.remove(&name).map_or(0, |tenant| tenant.users_held());
        } else {
            self.watch_for_idleness(now, &name);
        }
    }

    /// How long until a tenant without state would stand full: at once, unless this limiter began cold.
    fn made_anew_is_full_in(&self, now: Moment, name: &Name) -> Span {
        let (Some(cold), Some(rules)) = (&self.cold, self.rules.tenant(name)) else { return Span::default() };
        let mut anew = TenantState::new(rules, self.rules.version(), now, Some(cold));
        anew.idle_in(now).unwrap_or_default()
    }

    fn assert_invariants(&self) {
        assert!(self.books.balance(), "the books do not balance: {:?}", self.books);
        debug_assert!(self.deadlines.len() <= self.reservations.len());
    }
}

/// Frees a key, unless another reservation has taken it since.
fn free_idempotency_key(
    keys: &mut HashMap<IdempotencyDigest, ReservationId>,
    digest: IdempotencyDigest,
    id: ReservationId,
) {
    if keys.get(&digest) == Some(&id) {
        keys.remove(&digest);
    }
}

fn pop_due<T>(queue: &mut VecDeque<(Moment, T)>, now: Moment) -> Option<T> {
    queue.front().filter(|(at, _)| *at <= now)?;
    queue.pop_front().map(|(_, due)| due)
}
