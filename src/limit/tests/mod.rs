//! Proofs of the limiter's laws: `laws` states each law of `limit/mod.rs` as a property, `model` says naively what is right, and
//! `transcripts` are stories to read.
//!
//! Each law can fail. A build with `--cfg mutant` has `cold_full`, `credit_before`, `dedup_early`, `release_on_timeout`,
//! `double_settle` and `slot_leak`, and each of them turns some of these red. One line changed in the code turns these red:
//!
//! | the change | kills |
//! |---|---|
//! | `Bucket::refill`: `accrued.div_ceil` in place of `accrued / MINUTE_NANOS` | `no_overspend`, `refill_loses_nothing` |
//! | `Bucket::refill`: the carry becomes 0 | `refill_loses_nothing`, `honest_refusal` |
//! | `Bucket::refill`: the level is not cut to `burst` | `an_idle_bucket_holds_exactly_burst` |
//! | `Bucket::refund`: the carry of a full bucket stays | `the_limiter_is_the_model` |
//! | `Bucket::fit`: `>` in place of `>=` | `honest_refusal` |
//! | `Bucket::time_until`: `/` in place of `div_ceil` | `honest_refusal` |
//! | `Bucket::debit`: stops at 0 | `overage_is_debt_that_only_time_repays` |
//! | `Bucket::follow`: the level becomes the new burst | `an_edit_keeps_what_is_used` |
//! | `TenantState::check`: the tenant's own scope is skipped | `sub_limits_subdivide_and_never_add` |
//! | `Limiter::reserve`: a denial debits the first bucket | `all_or_nothing` |
//! | `TenantState::true_up`: refunds whatever `debited` says | `a_refund_goes_only_where_it_was_debited` |
//! | `TenantState::idle_in`: ignores what is named | `a_late_settle_finds_the_bucket_that_it_debited` |
//! | `Limiter::resolve`: an ended reservation may end again | `resolved_once` |
//! | `Limiter::expire`: the slot is not freed | `a_slot_is_freed_once_whatever_ends_its_request` |
//! | `Limiter::bar`: does nothing | `a_cancel_bars_the_reservation_that_it_overtakes` |
//! | `TenantRules::model_rule`: the shortest prefix wins | `one_model_rule_applies` |
//! | `Rules::succeed`: what comes back starts full | `a_limit_that_comes_back_starts_empty` |
//! | `Rules::succeed`: the instant of an edit is 0 | `an_edit_counts_from_its_instant_however_late_the_tenant_follows` |
//! | `TenantState::receive`: the bucket does not follow to the rate of here | `an_importer_with_other_rates_follows_to_them` |
//! | `TenantState::receive`: a limit that came back is the one that was exported | `an_importer_that_knows_a_limit_to_have_gone_and_come_back_does_not_refund_it` |
//! | `Cold::bucket`: an edit is not looked at | `a_rate_that_was_raised_after_a_cold_start_does_not_count_from_before` |
//! | `Limiter::adopt`: debits | `reported_work_takes_its_slot_and_gets_nothing_back` |
//! | `Limiter::may_have_lost`: always | `who_lost_nothing_takes_no_reports` |
//! | `TenantState::newcomer`: begins full whatever the shared slot holds | `a_user_and_its_tenant_stay_below_their_limits` |
//! | `Slot::refunds`: always | `a_user_and_its_tenant_stay_below_their_limits` |
//! | `TenantState::beside`: nothing | `who_leaves_the_shared_slot_takes_its_work_in_flight_along` |
//! | `TenantState::turn_away`: does nothing | `a_million_users_in_a_minute` |
//! | `TenantState::forget_some`: looks at no name | `a_late_settle_finds_the_user_that_it_debited` |
//! | `TenantState::forget_some`: forgets whoever is asked | `a_user_who_is_forgotten_had_all_it_may_have` |
//! | `free_idempotency_key`: whoever holds it | `an_idempotency_key_is_taken_while_its_request_runs_and_after_it_was_sent` |

use std::sync::Arc;

use super::*;

mod laws;
mod model;
mod paid;
mod transcripts;
mod travel;
mod users;

/// A rate that refills `per_minute` and holds `burst`, on total tokens.
fn tokens(per_minute: u64, burst: u64) -> RateLimit {
    RateLimit::new(Dimension::Tokens, Rate::new(per_minute, burst))
}

/// A rate on requests.
fn requests(per_minute: u64, burst: u64) -> RateLimit {
    RateLimit::new(Dimension::Requests, Rate::new(per_minute, burst))
}

fn limits(scope: Scope, rates: &[RateLimit], max_inflight: Option<u32>) -> ScopeLimits {
    ScopeLimits { scope, rates: rates.to_vec(), max_inflight }
}

/// The limits of the tenant itself.
fn tenant(rates: &[RateLimit]) -> ScopeLimits {
    limits(Scope::Tenant, rates, None)
}

fn key(label: &str, rates: &[RateLimit]) -> ScopeLimits {
    limits(Scope::Key(label.into()), rates, None)
}

fn rules_of(scopes: &[ScopeLimits]) -> TenantRules {
    let mut rules = TenantRules::unlimited();
    for limits in scopes {
        rules.add(limits.clone());
    }
    rules
}

fn seconds(seconds: u64) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000)
}

/// A limiter, its clock in seconds, and ids that count up: what a story needs and no more.
struct Story {
    limiter: Limiter,
    rules: Arc<Rules>,
    now: Moment,
    ids: u128,
    options: Options,
}

impl Story {
    /// Tenant `acme` alone, with these scopes.
    fn of(scopes: &[ScopeLimits]) -> Self {
        Self::with(vec![("acme".into(), rules_of(scopes))])
    }

    fn with(tenants: Vec<(Name, TenantRules)>) -> Self {
        Self::bounded(Options::default(), tenants)
    }

    fn bounded(options: Options, tenants: Vec<(Name, TenantRules)>) -> Self {
        let rules = Arc::new(Rules::first(tenants));
        let limiter = Limiter::first(options, rules.clone());
        Self { limiter, rules, now: Moment::default(), ids: 0, options }
    }

    fn at(&mut self, second: u64) -> &mut Self {
        self.now = seconds(second);
        self
    }

    fn edit(&mut self, tenants: Vec<(Name, TenantRules)>) {
        self.rules = Arc::new(self.rules.next(tenants, self.now));
        self.limiter.apply(self.rules.clone());
    }

    fn edit_acme(&mut self, scopes: &[ScopeLimits]) {
        self.edit(vec![("acme".into(), rules_of(scopes))]);
    }

    fn next_id(&mut self) -> ReservationId {
        self.ids += 1;
        ReservationId(self.ids)
    }

    fn ask(&mut self, id: ReservationId, tenant: &str, key: &str, model: &str, need: u64) -> Decision {
        let tenant = Name::from(tenant);
        self.limiter.reserve(self.now, &request(id, &tenant, key, model, Amount::new(need, 0)), true)
    }

    /// Acme asks for `need` tokens.
    fn reserve(&mut self, need: u64) -> (ReservationId, Verdict) {
        let id = self.next_id();
        let verdict = self.ask(id, "acme", "production", "gpt-5", need).verdict;
        (id, verdict)
    }

    /// Acme is admitted with `need` tokens.
    fn admit(&mut self, need: u64) -> ReservationId {
        let (id, verdict) = self.reserve(need);
        assert_eq!(verdict, Verdict::Admitted);
        id
    }

    /// Acme is refused `need` tokens, for this reason.
    fn refuse(&mut self, need: u64) -> Denial {
        match self.reserve(need).1 {
            Verdict::Denied(denial) => denial,
            verdict => panic!("{verdict:?}"),
        }
    }

    fn settle(&mut self, id: ReservationId, used: u64) -> Resolved {
        self.limiter.resolve(self.now, id, Resolution::Settle(Amount::new(used, 0)))
    }

    fn end(&mut self, id: ReservationId, how: Resolution) -> Resolved {
        self.limiter.resolve(self.now, id, how)
    }

    fn timeout(&mut self) -> Vec<ReservationId> {
        self.limiter.handle_timeout(self.now).into_iter().map(|expired| expired.id).collect()
    }

    /// Past the deadline of all that is open: closed at the estimate.
    fn pass_deadline(&mut self) -> Vec<ReservationId> {
        self.now = self.now.plus(self.options.reservation_deadline);
        self.timeout()
    }

    fn view(&mut self, scope: &Scope) -> ScopeView {
        let view = self.limiter.tenant(self.now, &"acme".into()).unwrap();
        view.scopes.into_iter().find(|view| view.scope == *scope).unwrap()
    }

    fn level_of(&mut self, scope: &Scope) -> i64 {
        self.view(scope).limits[0].1.level
    }

    /// The level of acme's own first limit.
    fn level(&mut self) -> i64 {
        self.level_of(&Scope::Tenant)
    }
}

fn request<'a>(
    id: ReservationId,
    tenant: &'a Name,
    key: &'a str,
    model: &'a str,
    need: Amount,
) -> Request<'a> {
    Request {
        id,
        tenant,
        key,
        user: None,
        project: None,
        model,
        need,
        idempotency: None,
        lane: Lane::Regular,
    }
}
