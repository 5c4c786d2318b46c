//! A limiter whose predecessor is gone with all that it knew: it begins cold, and learns from the gateways what is open.
//!
//! Laws:
//! - an open reservation that is reported here takes its slots and debits nothing; when it ends it refunds nothing, since nothing
//!   was debited in this state, and what it used beyond its estimate is debt (`resolved_once`, by its id);
//! - reporting it again, or after its end, changes nothing;
//! - a limiter that lost nothing takes no reports: an id that it does not know is over, or was never admitted. Neither does one that
//!   began cold take a report of what was admitted after that: it knows such an id, or has known and forgotten it.

use super::super::cold::Cold;
use super::{
    Amount, Arc, Debited, IdempotencyDigest, Limiter, Moment, Name, Options, Paid, Phase, Purser,
    Reservation, ReservationId, Resolution, Resolved, Rules, Span, TenantState, UserDigest, Way,
};

/// What a gateway knows of a reservation that it holds open.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Announced {
    /// Its id.
    pub id: ReservationId,
    /// The tenant that pays.
    pub tenant: Name,
    /// The label of the key that asked.
    pub key: Name,
    /// The end user, if it named one.
    pub user: Option<UserDigest>,
    /// The key's project.
    pub project: Option<Name>,
    /// The resolved model.
    pub model: Name,
    /// The estimate.
    pub held: Amount,
    /// How long until it would be closed at its deadline.
    pub remaining: Span,
    /// The caller's idempotency key.
    pub idempotency: Option<IdempotencyDigest>,
    /// What it took from purses.
    pub paid: Option<Box<Paid>>,
}

/// How much younger than it is a reservation may look when it is reported: its gateway counts from an answer that is used within half a
/// second, and its report is on its way for as long.
const ANSWERED_WITHIN: Span = Span::from_millis(1_500);

/// By which part of a length two clocks may differ about it: twice ρ.
const CLOCKS_APART: u64 = 100;

impl Limiter {
    /// A limiter whose predecessor's state is lost: every bucket of every tenant is empty at `now` and refills from then.
    #[must_use]
    pub fn cold(now: Moment, options: Options, rules: Arc<Rules>) -> Self {
        let cold = Cold::new(now, Span::default(), rules.version());
        Self { now, cold: Some(cold), ..Self::first(options, rules) }
    }

    /// Whether it began cold so lately that reservations of before may still be open.
    #[must_use]
    pub fn may_have_lost(&self, now: Moment) -> bool {
        self.cold.is_some_and(|cold| cold.age(now) < self.options.reservation_deadline)
    }

    /// Whether a reservation may have been admitted before this limiter began cold, by how long it has `remaining` until its deadline.
    fn may_be_of_before(&self, now: Moment, remaining: Span, doubt: Span) -> bool {
        let age = self.options.reservation_deadline.as_nanos().saturating_sub(remaining.as_nanos());
        self.cold.is_some_and(|cold| age.saturating_add(doubt.as_nanos()) >= cold.age(now).as_nanos())
    }

    /// Whether a report of a reservation that ends here now would be taken for one of before, once it is forgotten: then it has to be
    /// remembered for as long as it may be reported.
    pub(super) fn might_be_adopted(&self, now: Moment, deadline: Moment) -> bool {
        let late = self.options.late_settle.as_nanos();
        let doubt = ANSWERED_WITHIN.as_nanos() + late / CLOCKS_APART;
        self.may_have_lost(now) && self.may_be_of_before(now, deadline.since(now), Span::from_nanos(doubt))
    }

    /// Enters a reservation that its gateway holds open. Whether it is open here now.
    pub fn adopt(&mut self, now: Moment, open: &Announced) -> bool {
        let now = self.read(now);
        if let Some(known) = self.reservations.get(&open.id) {
            return matches!(known.phase, Phase::Held { .. });
        }
        let age = self.options.reservation_deadline.as_nanos().saturating_sub(open.remaining.as_nanos());
        let doubt = Span::from_nanos(ANSWERED_WITHIN.as_nanos() + age / CLOCKS_APART);
        let lost = self.may_have_lost(now) && self.may_be_of_before(now, open.remaining, doubt);
        if !lost || self.reservations.len() >= self.options.max_reservations {
            return false;
        }
        let version = self.rules.version();
        let Some(rules) = self.rules.tenant(&open.tenant) else { return false };
        let tenant = self
            .tenants
            .entry(open.tenant.clone())
            .or_insert_with(|| TenantState::new(rules, version, now, self.cold.as_ref()));
        tenant.follow(&self.rules, &open.tenant);
        let (users, most) = (tenant.users_held(), self.options.max_users_per_tenant);
        let project = open.project.as_deref();
        let way = Way { key: &open.key, user: open.user, project, model: &open.model };
        let (path, _) = tenant.enter(&way, now, self.cold.as_ref(), most);
        self.users = self.users + tenant.users_held() - users;
        tenant.name(&path, true);
        tenant.assert_invariants(&path);
        self.books.reserve(open.held.total);
        let deadline = now.plus(open.remaining.min(self.options.reservation_deadline));
        self.deadlines.insert((deadline, open.id));
        let key = open.idempotency.filter(|digest| {
            let taken = self.idempotency.contains_key(digest);
            !taken && self.idempotency.len() < self.options.max_idempotency_keys
        });
        if let Some(digest) = key {
            self.idempotency.insert(digest, open.id);
        }
        let reservation = Reservation {
            tenant: open.tenant.clone(),
            path,
            held: open.held,
            debited: Debited::default(),
            shadowed: None,
            version,
            idempotency: key,
            phase: Phase::Held { deadline },
            adopted: true,
            attempts: 1,
            paid: open.paid.clone(),
        };
        self.reservations.insert(open.id, reservation);
        self.assert_invariants();
        true
    }

    /// [`Limiter::resolve`] by a gateway that also says what it held. If it is not known here because it was lost with the last
    /// holder, it is entered first: so its overage becomes debt, once, and nothing is refunded.
    pub fn resolve_reported(
        &mut self,
        now: Moment,
        open: &Announced,
        resolution: Resolution,
        purser: &mut impl Purser,
    ) -> Resolved {
        // Nothing was sent, so there is nothing to charge; it only must not be admitted any more.
        if resolution != Resolution::Cancel {
            self.adopt(now, open);
        }
        self.resolve_paid(now, open.id, resolution, purser)
    }
}
