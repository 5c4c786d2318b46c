//! The façade: (state, now, command) → outcome.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::amount::{Amount, Dimension};
use super::books::Books;
use super::decision::{Decision, Denial, LevelView, Levels, Resolution, Resolved, Verdict};
use super::reservation::{IdempotencyDigest, Phase, Reservation, ReservationId};
use super::rules::{Name, Rules, Scope};
use super::tenant::TenantState;
use super::time::{Moment, Span};

/// Bounds of one limiter. A table that is full refuses new work ([`Denial::Full`]); it never forgets early.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// A reservation that has not ended after this long is closed at its estimate.
    pub reservation_deadline: Span,
    /// How long an ended reservation is remembered, so that a duplicate of its messages changes nothing.
    pub remember: Span,
    /// How long one that was closed at its deadline may still be trued up.
    pub late_settle: Span,
    /// How long an idempotency key stays taken after its request is over.
    pub idempotency: Span,
    /// The most reservations, open and remembered.
    pub max_reservations: usize,
    /// The most idempotency keys.
    pub max_idempotency_keys: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // Longer than the longest exchange that the edge allows, so that it only fires for a gateway that died or lost one.
            reservation_deadline: Span::from_secs(15 * 60),
            // Longer than a requester retries one id.
            remember: Span::from_secs(5),
            late_settle: Span::from_secs(10 * 60),
            idempotency: Span::from_secs(24 * 60 * 60),
            max_reservations: 1_000_000,
            max_idempotency_keys: 200_000,
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
    /// The key's project.
    pub project: Option<&'a str>,
    /// The resolved model.
    pub model: &'a str,
    /// The estimate.
    pub need: Amount,
    /// The caller's idempotency key, if it sent one.
    pub idempotency: Option<IdempotencyDigest>,
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
}

/// One scope of a tenant, to look at.
#[derive(Clone, Debug)]
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
#[derive(Clone, Debug, Default)]
pub struct TenantView {
    /// Reservations that have not ended.
    pub open: u32,
    /// Its scopes, as the policy lists them.
    pub scopes: Vec<ScopeView>,
}

/// All live state of the tenants of one shard.
#[derive(Debug)]
pub struct Limiter {
    options: Options,
    rules: Arc<Rules>,
    tenants: HashMap<Name, TenantState>,
    reservations: HashMap<ReservationId, Reservation>,
    deadlines: BTreeSet<(Moment, ReservationId)>,
    /// Ended reservations in the order in which they are forgotten; two queues, because each has one length of memory.
    over: VecDeque<(Moment, ReservationId)>,
    expired: VecDeque<(Moment, ReservationId)>,
    idempotency: HashMap<IdempotencyDigest, ReservationId>,
    idempotency_over: VecDeque<(Moment, IdempotencyDigest)>,
    /// Tenants to forget, each with the instant at which it may be idle and full.
    idle: BTreeSet<(Moment, Name)>,
    books: Books,
}

impl Limiter {
    /// A limiter without state.
    #[must_use]
    pub fn new(options: Options, rules: Arc<Rules>) -> Self {
        Self {
            options,
            rules,
            tenants: HashMap::new(),
            reservations: HashMap::new(),
            deadlines: BTreeSet::new(),
            over: VecDeque::new(),
            expired: VecDeque::new(),
            idempotency: HashMap::new(),
            idempotency_over: VecDeque::new(),
            idle: BTreeSet::new(),
            books: Books::default(),
        }
    }

    /// Puts a later version of the rules in force. Each tenant follows at its next command; what is used stays used.
    pub fn apply(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
    }

    /// Checks every limit on the request's path, then debits all of them, or none.
    pub fn reserve(&mut self, now: Moment, request: &Request<'_>) -> Decision {
        let version = self.rules.version();
        let answer = |verdict, levels| Decision { verdict, levels, version };
        let denied = |denial| answer(Verdict::Denied(denial), Levels::default());

        if let Some(known) = self.reservations.get(&request.id) {
            if known.barred {
                return denied(Denial::Cancelled);
            }
            return answer(Verdict::Admitted, self.levels_of(known));
        }
        let Some(rules) = self.rules.tenant(request.tenant) else { return denied(Denial::UnknownTenant) };
        if self.reservations.len() >= self.options.max_reservations {
            return denied(Denial::Full);
        }
        if let Some(digest) = request.idempotency {
            match self.idempotency.get(&digest).map(|id| self.reservations.get(id)) {
                Some(Some(Reservation { phase: Phase::Held { .. }, .. })) => {
                    return denied(Denial::IdempotencyInProgress);
                }
                Some(_) => return denied(Denial::AlreadyDispatched),
                None if self.idempotency.len() >= self.options.max_idempotency_keys => {
                    return denied(Denial::Full);
                }
                None => {}
            }
        }

        let tenant = match self.tenants.entry(request.tenant.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(TenantState::new(rules, version, now)),
        };
        tenant.adopt(rules, version, now);
        let path = tenant.path(request.key, request.project, request.model);
        let checked = tenant.check(&path, request.need, now);
        let (verdict, debited) = match checked {
            Ok(()) => (Verdict::Admitted, tenant.debit(&path, request.need)),
            Err(denial) if tenant.shadow() => (Verdict::Shadowed(denial), 0),
            Err(denial) => {
                let levels = tenant.levels(&path);
                self.watch_for_idleness(now, request.tenant);
                return answer(Verdict::Denied(denial), levels);
            }
        };
        let shadowed = matches!(verdict, Verdict::Shadowed(_));
        tenant.open += 1;
        tenant.assert_invariants();
        let levels = tenant.levels(&path);

        let deadline = now.plus(self.options.reservation_deadline);
        self.deadlines.insert((deadline, request.id));
        if let Some(digest) = request.idempotency {
            self.idempotency.insert(digest, request.id);
        }
        if !shadowed {
            self.books.reserved += u128::from(request.need.total);
            self.books.open += u128::from(request.need.total);
        }
        self.reservations.insert(
            request.id,
            Reservation {
                barred: false,
                tenant: request.tenant.clone(),
                path,
                held: request.need,
                debited,
                shadowed,
                version,
                idempotency: request.idempotency,
                phase: Phase::Held { deadline },
            },
        );
        self.assert_invariants();
        answer(verdict, levels)
    }

    /// Ends a reservation, once. A late settle of one that was closed at its deadline trues it up, once.
    pub fn resolve(&mut self, now: Moment, id: ReservationId, resolution: Resolution) -> Resolved {
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
            (Phase::Expired | Phase::Over, _) => return Resolved::Already,
        };
        reservation.phase = Phase::Over;
        let held = reservation.held;
        let used = match resolution {
            Resolution::Settle(used) => Some(used),
            Resolution::Close | Resolution::Abandon => Some(held),
            Resolution::Cancel => None,
        };
        let spent = used.map_or(0, |used| used.total);
        let (mut refunded, mut overage) =
            (held.total.saturating_sub(spent), spent.saturating_sub(held.total));

        if let Some(tenant) = self.tenants.get_mut(&reservation.tenant) {
            if !reservation.shadowed {
                let Reservation { path, debited, version, .. } = reservation;
                tenant.true_up(path, *debited, *version, held, used, now);
            }
            if !late {
                release(tenant, reservation);
            }
            tenant.assert_invariants();
        }
        if reservation.shadowed {
            (refunded, overage) = (0, 0);
        } else {
            if late {
                self.books.closed -= u128::from(held.total);
            } else {
                self.books.open -= u128::from(held.total);
            }
            self.books.refunded += u128::from(refunded);
            self.books.overage += u128::from(overage);
            match resolution {
                Resolution::Settle(used) => self.books.settled += u128::from(used.total),
                Resolution::Close => self.books.closed += u128::from(held.total),
                Resolution::Abandon => self.books.abandoned += u128::from(held.total),
                Resolution::Cancel => {}
            }
        }
        if let Some(digest) = reservation.idempotency.filter(|_| !late) {
            if resolution == Resolution::Cancel {
                self.idempotency.remove(&digest);
            } else {
                self.idempotency_over.push_back((now.plus(self.options.idempotency), digest));
            }
        }
        let tenant = reservation.tenant.clone();
        if !late {
            // One that expired stands in its own queue already.
            self.over.push_back((now.plus(self.options.remember), id));
        }
        self.watch_for_idleness(now, &tenant);
        self.assert_invariants();
        if late { Resolved::Late { refunded, overage } } else { Resolved::Now { refunded, overage } }
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

    /// Closes the reservations whose deadline has passed, and forgets what has been remembered long enough.
    pub fn handle_timeout(&mut self, now: Moment) -> Vec<Expired> {
        let mut expired = Vec::new();
        while let Some(&(at, id)) = self.deadlines.first().filter(|(at, _)| *at <= now) {
            self.deadlines.remove(&(at, id));
            expired.extend(self.expire(now, id));
        }
        while let Some((_, id)) = self.over.pop_front_if(|(at, _)| *at <= now) {
            self.reservations.remove(&id);
        }
        while let Some((_, id)) = self.expired.pop_front_if(|(at, _)| *at <= now) {
            self.reservations.remove(&id);
        }
        while let Some((_, digest)) = self.idempotency_over.pop_front_if(|(at, _)| *at <= now) {
            self.idempotency.remove(&digest);
        }
        while let Some((_, name)) = pop_due(&mut self.idle, now) {
            self.forget_if_idle(now, name);
        }
        self.assert_invariants();
        expired
    }

    /// A tenant's levels as of `now`; none when the rules do not name it.
    pub fn tenant(&mut self, now: Moment, name: &Name) -> Option<TenantView> {
        let rules = self.rules.tenant(name)?;
        let version = self.rules.version();
        let Some(tenant) = self.tenants.get_mut(name) else {
            let scopes = TenantState::new(rules, version, now).scopes(now);
            return Some(TenantView { open: 0, scopes });
        };
        tenant.adopt(rules, version, now);
        Some(TenantView { open: tenant.open, scopes: tenant.scopes(now) })
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

    /// Reservations held in memory, open and remembered.
    #[must_use]
    pub fn reservations_held(&self) -> usize {
        self.reservations.len()
    }

    fn levels_of(&self, reservation: &Reservation) -> Levels {
        self.tenants
            .get(&reservation.tenant)
            .map(|tenant| tenant.levels(&reservation.path))
            .unwrap_or_default()
    }

    fn expire(&mut self, now: Moment, id: ReservationId) -> Option<Expired> {
        let reservation = self.reservations.get_mut(&id)?;
        reservation.phase = Phase::Expired;
        if let Some(tenant) = self.tenants.get_mut(&reservation.tenant) {
            release(tenant, reservation);
        }
        if !reservation.shadowed {
            self.books.open -= u128::from(reservation.held.total);
            self.books.closed += u128::from(reservation.held.total);
        }
        if let Some(digest) = reservation.idempotency {
            self.idempotency_over.push_back((now.plus(self.options.idempotency), digest));
        }
        let expired = Expired { id, tenant: reservation.tenant.clone(), held: reservation.held };
        self.expired.push_back((now.plus(self.options.late_settle), id));
        self.watch_for_idleness(now, &expired.tenant);
        Some(expired)
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
        let Some(wait) = tenant.idle_in(now) else { return };
        tenant.queued = true;
        self.idle.insert((now.plus(wait), name.clone()));
    }

    /// A tenant is forgotten only when it is full with nothing open: then a bucket made anew is no different.
    fn forget_if_idle(&mut self, now: Moment, name: Name) {
        let Entry::Occupied(mut entry) = self.tenants.entry(name) else { return };
        let tenant = entry.get_mut();
        tenant.queued = false;
        match tenant.idle_in(now) {
            Some(wait) if wait == Span::default() => {
                entry.remove();
            }
            Some(wait) => {
                tenant.queued = true;
                let name = entry.key().clone();
                self.idle.insert((now.plus(wait), name));
            }
            None => {}
        }
    }

    fn assert_invariants(&self) {
        assert!(self.books.balance(), "the books do not balance: {:?}", self.books);
        debug_assert!(self.deadlines.len() <= self.reservations.len());
    }
}

/// The slot and the place among the open: freed once, whatever ends the reservation.
fn release(tenant: &mut TenantState, reservation: &Reservation) {
    tenant.open = tenant.open.saturating_sub(1);
    if !reservation.shadowed {
        tenant.free_slots(&reservation.path);
    }
}

fn pop_due(queue: &mut BTreeSet<(Moment, Name)>, now: Moment) -> Option<(Moment, Name)> {
    if queue.first()?.0 > now {
        return None;
    }
    queue.pop_first()
}
