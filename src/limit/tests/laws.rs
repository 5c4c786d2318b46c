//! The laws of `limit/mod.rs` as properties: first of one bucket, then of the limiter, then of everything at once against the model.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

use super::model::{Ask, ExactBucket, MINUTE, Model, ScopeRule, TenantRule, USERS, seen};
use super::*;

/// Small enough that limits bind and large enough that fractions of a unit matter.
fn rate() -> impl Strategy<Value = Rate> {
    let per_minute = prop_oneof![1..=100u64, 1..=100_000u64, 1..=1_000_000_000_000u64];
    (per_minute, 1..=60u64).prop_map(|(per_minute, burst)| Rate::new(per_minute, burst))
}

/// From a nanosecond to an hour, each order of magnitude as likely.
fn nanos() -> impl Strategy<Value = u64> {
    (0..=41u32).prop_flat_map(|bits| 0..=(1u64 << bits))
}

// One bucket.

/// What happens to a bucket after some nanoseconds.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// This is debited if it fits.
    Ask(u64),
    /// This is given back, of what was admitted.
    Refund(u64),
    /// This is charged without asking.
    Overage(u64),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        5 => (0..=70u64).prop_map(Step::Ask),
        1 => (0..=20u64).prop_map(Step::Refund),
        1 => (0..=20u64).prop_map(Step::Overage),
    ];
    vec((nanos(), step), 1..60)
}

proptest! {
    /// Over every interval, whatever was refunded or overspent before it.
    #[test]
    fn no_overspend(rate in rate(), steps in steps()) {
        let mut bucket = Bucket::full(rate, Moment::default());
        let mut now = 0;
        // (instant, admitted, refunded)
        let mut events: Vec<(u64, i128, i128)> = Vec::new();
        for (wait, step) in steps {
            now += wait;
            bucket.refill(rate, Moment::from_nanos(now));
            match step {
                Step::Ask(need) if bucket.fit(rate, need) == Fit::Now => {
                    bucket.debit(need);
                    events.push((now, i128::from(need), 0));
                }
                Step::Ask(_) => {}
                Step::Refund(units) => {
                    bucket.refund(rate, units);
                    events.push((now, 0, i128::from(units)));
                }
                Step::Overage(units) => bucket.debit(units),
            }
        }
        for (first, from) in events.iter().enumerate() {
            let (mut admitted, mut refunded) = (0, 0);
            for to in &events[first..] {
                admitted += to.1;
                refunded += to.2;
                let accrued = i128::from(to.0 - from.0) * i128::from(rate.per_minute);
                prop_assert!((admitted - refunded - i128::from(rate.burst)) * MINUTE <= accrued, "{from:?} to {to:?}");
            }
        }
    }

    #[test]
    fn a_bucket_is_the_exact_one(rate in rate(), steps in steps()) {
        let mut bucket = Bucket::full(rate, Moment::default());
        let mut exact = ExactBucket::full(rate, 0);
        let mut now = 0;
        for (wait, step) in steps {
            now += wait;
            bucket.refill(rate, Moment::from_nanos(now));
            exact.at(now);
            match step {
                Step::Ask(units) | Step::Overage(units) => {
                    bucket.debit(units);
                    exact.change(-i128::from(units));
                }
                Step::Refund(units) => {
                    bucket.refund(rate, units);
                    exact.change(i128::from(units));
                }
            }
            prop_assert_eq!(i128::from(bucket.level()), exact.level());
            let full = u128::from(bucket.time_until_full(rate).as_nanos());
            prop_assert_eq!(full, exact.wait(rate.burst));
        }
    }

    #[test]
    fn refill_loses_nothing(rate in rate(), debt in 0..=100_000u64, waits in vec(nanos(), 1..40)) {
        let mut often = Bucket::full(rate, Moment::default());
        often.debit(debt);
        let mut once = often;
        let mut now = Moment::default();
        for wait in waits {
            now = now.plus(Span::from_nanos(wait));
            often.refill(rate, now);
        }
        once.refill(rate, now);
        prop_assert_eq!(often.level(), once.level());
        prop_assert_eq!(often.time_until_full(rate), once.time_until_full(rate));
    }

    #[test]
    fn an_idle_bucket_holds_exactly_burst(rate in rate(), spent in 0..=100u64, rest in nanos()) {
        let mut bucket = Bucket::full(rate, Moment::default());
        bucket.debit(spent);
        let full = Moment::default().plus(bucket.time_until_full(rate));
        bucket.refill(rate, full.plus(Span::from_nanos(rest)));
        prop_assert_eq!(bucket.level(), rate.burst as i64);
        // Nothing is carried beyond it: one unit later takes the time of one unit.
        bucket.debit(1);
        prop_assert_eq!(u128::from(bucket.time_until_full(rate).as_nanos()), (MINUTE as u128).div_ceil(u128::from(rate.per_minute)));
    }

    #[test]
    fn a_clock_that_stands_or_goes_back_credits_nothing(rate in rate(), at in nanos(), back in vec(nanos(), 1..20)) {
        let mut bucket = Bucket::empty(Moment::from_nanos(at));
        for back in back {
            bucket.refill(rate, Moment::from_nanos(at.saturating_sub(back)));
            prop_assert_eq!(bucket, Bucket::empty(Moment::from_nanos(at)));
        }
    }
}

// The limiter, one law at a time.

proptest! {
    /// Told to wait, a request is admitted after exactly that wait and not a nanosecond earlier, however many buckets bind.
    #[test]
    fn honest_refusal(rates in vec(rate(), 3), spend in vec((nanos(), 0..=40u64), 0..20), need in 1..=60u64) {
        let scopes = [key("production", &rates[..1].iter().map(|r| tokens(r.per_minute, r.burst)).collect::<Vec<_>>()), tenant(&[
            tokens(rates[1].per_minute, rates[1].burst),
            RateLimit::new(Dimension::InputTokens, rates[2]),
        ])];
        let mut story = Story::of(&scopes);
        for (wait, need) in spend {
            story.now = story.now.plus(Span::from_nanos(wait));
            story.reserve(need);
        }
        let told = story.now;
        if let Verdict::Denied(Denial::Rate { wait, .. }) = story.reserve(need).1 {
            prop_assert!(wait > Span::default());
            story.now = Moment::from_nanos(told.as_nanos() + wait.as_nanos() - 1);
            story.refuse(need);
            story.now = told.plus(wait);
            story.admit(need);
        }
    }

    #[test]
    fn all_or_nothing(rates in vec(rate(), 3), needs in vec((nanos(), 0..=70u64), 1..40)) {
        let [a, b, c] = [0, 1, 2].map(|n: usize| tokens(rates[n].per_minute, rates[n].burst));
        let mut rules = rules_of(&[key("production", &[a]), limits(Scope::Tenant, &[b, requests(600, 5)], Some(3))]);
        rules.add_model(ModelMatch::Prefix("gpt".into()), limits(Scope::Model("gpt*".into()), &[c], None));
        let mut story = Story::with(vec![("acme".into(), rules)]);
        for (wait, need) in needs {
            story.now = story.now.plus(Span::from_nanos(wait));
            let look = |story: &mut Story| {
                let view = story.limiter.tenant(story.now, &"acme".into()).unwrap();
                (view.open, seen(view), story.limiter.books(), story.limiter.reservations_held())
            };
            let before = look(&mut story);
            let (_, verdict) = story.reserve(need);
            if verdict == Verdict::Admitted {
                prop_assert_ne!(before, look(&mut story));
            } else {
                prop_assert_eq!(before, look(&mut story));
            }
        }
    }

    #[test]
    fn resolved_once(ends in vec(how(), 2..6), need in 0..=50u64, expires: bool) {
        let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(1, 1_000_000)], Some(9))]);
        let id = story.admit(need);
        if expires {
            story.pass_deadline();
        }
        let mut over = false;
        for how in ends {
            let before = (story.level(), story.limiter.books());
            let corrects = matches!(how, Resolution::Settle(_) | Resolution::Cancel);
            let resolved = story.end(id, how);
            match resolved {
                Resolved::Now { .. } => prop_assert!(!over && !expires),
                Resolved::Late { .. } => prop_assert!(!over && expires && corrects),
                Resolved::Already => prop_assert!(over || (expires && !corrects)),
                Resolved::Unknown => prop_assert!(false, "{resolved:?}"),
            }
            if resolved == Resolved::Already {
                prop_assert_eq!(before, (story.level(), story.limiter.books()));
            } else {
                over = true;
            }
            prop_assert_eq!(story.view(&Scope::Tenant).inflight, 0);
            prop_assert!(story.limiter.books().balance());
        }
    }

    /// However many keys a tenant has and however large their limits, they share the tenant's.
    #[test]
    fn sub_limits_subdivide_and_never_add(burst in 1..=60u64, subs in vec(1..=200u64, 3), asks in vec((0..3usize, 1..=60u64), 1..40)) {
        const KEYS: [&str; 3] = ["production", "staging", "data-science"];
        let mut scopes: Vec<ScopeLimits> = subs.iter().zip(KEYS).map(|(burst, label)| key(label, &[tokens(1, *burst)])).collect();
        scopes.push(tenant(&[tokens(1, burst)]));
        let mut story = Story::of(&scopes);
        let mut spent = [0; 3];
        for (who, need) in asks {
            let id = story.next_id();
            let fits = spent[who] + need <= subs[who] && spent.iter().sum::<u64>() + need <= burst;
            let admitted = story.ask(id, "acme", KEYS[who], "m", need).verdict == Verdict::Admitted;
            prop_assert_eq!(admitted, fits);
            if admitted {
                spent[who] += need;
            }
        }
    }
}

// Everything at once.

const TENANTS: [&str; 3] = ["acme", "northwind", "umbrella"];
const KEYS: [&str; 3] = ["production", "staging", "unlisted"];
const MODELS: [&str; 4] = ["gpt-5", "gpt-5-mini", "gpt-4", "claude"];
/// Patterns of model rules; one with a star is a prefix.
const PATTERNS: [&str; 4] = ["gpt-5", "gpt-*", "gpt-5*", "claude"];

#[derive(Clone, Debug)]
enum Command {
    Reserve(Ask),
    Resolve(u128, Resolution),
    Pass(u64),
    /// The next reading of the clock is earlier by so much.
    StepBack(u64),
    Timeout,
    /// As far as the limiter says that it has nothing to do.
    TimeoutWhenAsked,
    Edit(usize, Option<TenantRule>),
    /// To another limiter and on from there.
    Travel,
}

fn amount() -> impl Strategy<Value = Amount> {
    (0..=40u64, 0..=25u64, 0..=25u64)
        .prop_map(|(total, input, output)| Amount::with_total(total, input, output))
}

fn how() -> impl Strategy<Value = Resolution> {
    prop_oneof![
        4 => amount().prop_map(Resolution::Settle),
        1 => Just(Resolution::Close),
        1 => Just(Resolution::Abandon),
        2 => Just(Resolution::Cancel),
    ]
}

fn scope_rule(scope: Scope, prefix: bool) -> impl Strategy<Value = Option<ScopeRule>> {
    let rates = vec(option::weighted(0.5, small_rate()), 4);
    let rule = (rates, option::weighted(0.3, 1..4u32)).prop_map(move |(rates, max_inflight)| {
        let rates = Dimension::ALL.into_iter().zip(rates);
        let rates = rates.filter_map(|(dimension, rate)| Some((dimension, rate?))).collect();
        ScopeRule { scope: scope.clone(), prefix, rates, max_inflight }
    });
    option::weighted(0.6, rule)
}

/// Slow enough that buckets stay low for a while and fast enough that they fill again.
fn small_rate() -> impl Strategy<Value = Rate> {
    (prop_oneof![1..=60u64, 60..=6_000u64], 1..=50u64)
        .prop_map(|(per_minute, burst)| Rate::new(per_minute, burst))
}

fn tenant_rule() -> impl Strategy<Value = TenantRule> {
    let scopes = [
        scope_rule(Scope::Key(KEYS[0].into()), false).boxed(),
        scope_rule(Scope::Key(KEYS[1].into()), false).boxed(),
        scope_rule(Scope::User, false).boxed(),
        scope_rule(Scope::Project("search".into()), false).boxed(),
        scope_rule(Scope::Tenant, false).boxed(),
    ];
    let models =
        PATTERNS.map(|pattern| scope_rule(Scope::Model(pattern.into()), pattern.ends_with('*')).boxed());
    let scopes: Vec<_> = scopes.into_iter().chain(models).collect();
    (scopes, prop::bool::weighted(0.1), any::<prop::sample::Index>()).prop_map(|(scopes, shadow, turn)| {
        let mut scopes: Vec<ScopeRule> = scopes.into_iter().flatten().collect();
        // The order of a policy's lines decides nothing.
        let turn = turn.index(scopes.len().max(1));
        scopes.rotate_left(turn);
        TenantRule { scopes, shadow }
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    let names =
        (0..TENANTS.len(), select(&KEYS), option::of(0..USERS), option::of(Just("search")), select(&MODELS));
    (0..10u128, names, amount(), option::weighted(0.3, 0..3u128)).prop_map(|(id, names, need, digest)| {
        let (tenant, key, user, project, model) = names;
        // A digest covers the tenant as well.
        let idempotency = digest.map(|digest| digest * 10 + tenant as u128);
        Ask { id, tenant, key, user, project, model, need, idempotency }
    })
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        8 => ask().prop_map(Command::Reserve),
        5 => (0..10u128, how()).prop_map(|(id, how)| Command::Resolve(id, how)),
        4 => nanos().prop_map(Command::Pass),
        1 => nanos().prop_map(Command::StepBack),
        2 => Just(Command::Timeout),
        2 => Just(Command::TimeoutWhenAsked),
        1 => Just(Command::Travel),
        1 => (0..TENANTS.len(), option::weighted(0.8, tenant_rule())).prop_map(|(tenant, rule)| Command::Edit(tenant, rule)),
    ]
}

/// Short memories, so that a test of a minute sees each of them end, and small tables, so that it sees them full.
const OPTIONS: Options = Options {
    orphan_grace: Span::from_secs(600),
    reservation_deadline: Span::from_secs(20),
    remember: Span::from_secs(5),
    late_settle: Span::from_secs(40),
    idempotency: Span::from_secs(90),
    max_reservations: 8,
    max_idempotency_keys: 1_000,
    max_users_per_tenant: 1_000,
};

/// The limiter and the model, given the same commands.
struct Pair {
    limiter: Limiter,
    rules: Arc<Rules>,
    model: Model,
    tenants: Vec<Option<TenantRule>>,
    /// Tenants whose rules were edited at least once.
    edited: [bool; TENANTS.len()],
    /// Versions that earlier answers named are then no more comparable.
    travelled: bool,
    /// What the clock reads; may be earlier than before.
    clock: u64,
}

impl Pair {
    fn new(tenants: Vec<Option<TenantRule>>) -> Self {
        let rules = Arc::new(Rules::first(Self::compile(&tenants)));
        let limiter = Limiter::first(OPTIONS, rules.clone());
        let model = Model::new(OPTIONS, tenants.clone());
        Self { limiter, rules, model, tenants, edited: Default::default(), travelled: false, clock: 0 }
    }

    fn compile(tenants: &[Option<TenantRule>]) -> Vec<(Name, TenantRules)> {
        let named = TENANTS.iter().zip(tenants);
        named.filter_map(|(name, rule)| Some(((*name).into(), rule.as_ref()?.compile()))).collect()
    }

    fn now(&self) -> Moment {
        Moment::from_nanos(self.clock)
    }

    fn give(&mut self, command: Command) -> Result<(), TestCaseError> {
        let now = self.now();
        match command {
            Command::Pass(nanos) => self.clock = self.model.now.max(self.clock) + nanos,
            Command::StepBack(nanos) => self.clock = self.clock.saturating_sub(nanos),
            Command::Reserve(ask) => self.reserve(ask)?,
            Command::Resolve(id, how) => {
                let resolved = self.limiter.resolve(now, ReservationId(id), how);
                prop_assert_eq!(resolved, self.model.resolve(self.clock, id, how));
            }
            Command::Timeout => self.timeout()?,
            Command::TimeoutWhenAsked => self.timeout_when_asked()?,
            Command::Travel => {
                self.model.view(self.clock, 0);
                let now = Moment::from_nanos(self.model.now);
                let exported = self.limiter.clone().export(now);
                let arrived = Limiter::import(now, OPTIONS, self.rules.clone(), exported);
                self.limiter = arrived.map_err(|unsound| TestCaseError::fail(unsound.to_string()))?;
                self.travelled = true;
            }
            Command::Edit(tenant, rule) => {
                // Of several edits a tenant counts the instant of the last only, so it follows the last before this one.
                if std::mem::replace(&mut self.edited[tenant], true) {
                    self.limiter.tenant(now, &TENANTS[tenant].into());
                }
                // Both read the clock; the limiter touches nobody.
                self.limiter.tenant(now, &"nobody".into());
                self.model.view(self.clock, tenant);
                self.tenants[tenant] = rule;
                self.rules = Arc::new(
                    self.rules.next(Self::compile(&self.tenants), Moment::from_nanos(self.model.now)),
                );
                self.limiter.apply(self.rules.clone());
                self.model.edit(self.tenants.clone());
            }
        }
        self.compare()
    }

    fn reserve(&mut self, ask: Ask) -> Result<(), TestCaseError> {
        let name = Name::from(TENANTS[ask.tenant]);
        let request = Request {
            id: ReservationId(ask.id),
            tenant: &name,
            key: ask.key,
            user: ask.user.map(UserDigest),
            project: ask.project,
            model: ask.model,
            need: ask.need,
            idempotency: ask.idempotency.map(IdempotencyDigest),
            lane: Lane::Regular,
        };
        let decision = self.limiter.reserve(self.now(), &request, true);
        let (verdict, version) = self.model.reserve(self.clock, ask);
        prop_assert_eq!(decision.verdict, verdict);
        prop_assert!(self.travelled || decision.version == version);
        for view in decision.levels.into_iter().flatten() {
            prop_assert!(view.level <= view.capacity as i64);
        }
        Ok(())
    }

    fn timeout(&mut self) -> Result<(), TestCaseError> {
        let mut expired: Vec<u128> =
            self.limiter.handle_timeout(self.now()).iter().map(|expired| expired.id.0).collect();
        let mut right = self.model.timeout(self.clock);
        if self.travelled {
            // Of deadlines that had passed on the way none is earlier than another.
            expired.sort_unstable();
            right.sort_unstable();
        }
        prop_assert_eq!(expired, right);
        let next = self.limiter.poll_timeout();
        prop_assert!(
            next.is_none_or(|next| next.as_nanos() > self.model.now),
            "asks for an instant that is past: {next:?}"
        );
        Ok(())
    }

    /// A nanosecond before the instant that it asked for there is nothing to close.
    fn timeout_when_asked(&mut self) -> Result<(), TestCaseError> {
        let Some(next) = self.limiter.poll_timeout() else {
            prop_assert_eq!(self.limiter.open(), 0);
            return Ok(());
        };
        if next.as_nanos() > self.model.now + 1 {
            self.clock = next.as_nanos() - 1;
            let held = self.limiter.reservations_held();
            self.timeout()?;
            prop_assert_eq!(self.limiter.reservations_held(), held);
        }
        self.clock = self.clock.max(next.as_nanos());
        self.timeout()
    }

    /// On a copy, because a look lets a tenant follow its rules.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.limiter.books(), self.model.books());
        prop_assert!(self.limiter.books().balance());
        prop_assert_eq!(self.limiter.open(), self.model.open());
        prop_assert_eq!(self.limiter.reservations_held(), self.model.remembered());
        let (mut copy, mut model) = (self.limiter.clone(), self.model.clone());
        for (tenant, name) in TENANTS.into_iter().enumerate() {
            let view = copy.tenant(self.now(), &name.into()).map(seen);
            prop_assert_eq!(view, model.view(self.clock, tenant), "{}", name);
        }
        Ok(())
    }

    /// Everything ends by itself: no slot taken, no reservation remembered, no tenant held.
    fn drain(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..1_000 {
            let Some(next) = self.limiter.poll_timeout() else { break };
            self.clock = self.clock.max(next.as_nanos());
            self.timeout()?;
        }
        prop_assert_eq!(self.limiter.open(), 0);
        prop_assert_eq!(self.limiter.reservations_held(), 0);
        prop_assert_eq!((self.limiter.tenants_held(), self.limiter.users_held()), (0, 0));
        self.compare()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    /// Any commands in any order, ids repeated, reordered and reused: verdicts, ends, levels, slots, books and memory are the model's.
    #[test]
    fn the_limiter_is_the_model(rules in vec(option::weighted(0.9, tenant_rule()), 3), commands in vec(command(), 1..80)) {
        let mut pair = Pair::new(rules);
        for command in commands {
            pair.give(command)?;
        }
        pair.drain()?;
    }
}

proptest! {
    /// What one tenant does changes nothing for another.
    #[test]
    fn tenants_do_not_affect_each_other(rule in tenant_rule(), commands in vec(command(), 1..60)) {
        let roomy = Options { max_reservations: 1_000, ..OPTIONS };
        let names: Vec<(Name, TenantRules)> = TENANTS.iter().map(|name| ((*name).into(), rule.compile())).collect();
        let rules = Arc::new(Rules::first(names));
        let mut crowd = Limiter::first(roomy, rules.clone());
        let mut alone = Limiter::first(roomy, rules);
        let mut clock = Moment::default();
        let mut owner = std::collections::BTreeMap::new();
        for command in commands {
            match command {
                Command::Pass(nanos) => clock = clock.plus(Span::from_nanos(nanos)),
                Command::Reserve(ask) => {
                    let name = Name::from(TENANTS[ask.tenant]);
                    // Ids are never used by two tenants.
                    let id = ReservationId(ask.id * 10 + ask.tenant as u128);
                    owner.insert(ask.id, (id, ask.tenant));
                    let user = ask.user.map(UserDigest);
                    let request = Request { user, project: ask.project, ..request(id, &name, ask.key, ask.model, ask.need) };
                    let decision = crowd.reserve(clock, &request, true);
                    if ask.tenant == 0 {
                        prop_assert_eq!(decision, alone.reserve(clock, &request, true));
                    }
                }
                Command::Resolve(id, how) => {
                    let Some((id, tenant)) = owner.get(&id) else { continue };
                    let resolved = crowd.resolve(clock, *id, how);
                    if *tenant == 0 {
                        prop_assert_eq!(resolved, alone.resolve(clock, *id, how));
                    }
                }
                Command::Timeout => _ = (crowd.handle_timeout(clock), alone.handle_timeout(clock)),
                Command::StepBack(_) | Command::TimeoutWhenAsked | Command::Edit(..) | Command::Travel => {}
            }
        }
        let views = [crowd.tenant(clock, &"acme".into()), alone.tenant(clock, &"acme".into())];
        let [crowd, alone] = views.map(|view| view.map(seen));
        prop_assert_eq!(crowd, alone);
    }
}
