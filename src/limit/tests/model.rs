//! What is right, said naively: exact arithmetic in `i128`, lists that are searched from end to end, nothing forgotten early.
//!
//! A level is counted in *grains*, of which a unit has [`MINUTE`]: a rate of `r` units per minute is then `r` grains per nanosecond,
//! and no division loses anything.

use super::*;

/// Grains in a unit.
pub(super) const MINUTE: i128 = 60_000_000_000;

/// A bucket that cannot round.
#[derive(Clone, Debug)]
pub(super) struct ExactBucket {
    pub(super) grains: i128,
    pub(super) rate: Rate,
    at: u64,
}

impl ExactBucket {
    pub(super) fn full(rate: Rate, now: u64) -> Self {
        Self { grains: i128::from(rate.burst) * MINUTE, rate, at: now }
    }

    pub(super) fn at(&mut self, now: u64) -> &mut Self {
        let elapsed = i128::from(now.saturating_sub(self.at));
        self.at = self.at.max(now);
        self.raise(elapsed * i128::from(self.rate.per_minute))
    }

    fn raise(&mut self, grains: i128) -> &mut Self {
        self.grains = (self.grains + grains).min(i128::from(self.rate.burst) * MINUTE);
        self
    }

    /// By so many units; negative takes out.
    pub(super) fn change(&mut self, units: i128) {
        self.raise(units * MINUTE);
    }

    fn edit(&mut self, rate: Rate, now: u64) {
        self.at(now);
        self.grains += (i128::from(rate.burst) - i128::from(self.rate.burst)) * MINUTE;
        self.rate = rate;
    }

    pub(super) fn level(&self) -> i128 {
        self.grains.div_euclid(MINUTE)
    }

    /// Nanoseconds until it holds `units`.
    pub(super) fn wait(&self, units: u64) -> u128 {
        let missing = (i128::from(units) * MINUTE - self.grains).max(0) as u128;
        missing.div_ceil(u128::from(self.rate.per_minute))
    }
}

/// A scope, and which user it is of if it is that of users; none for what users share.
pub(super) type Who = (Scope, Option<u128>);

/// Users, by number.
pub(super) const USERS: u128 = 3;

/// One scope's rules: the scope, how a model is matched if it is a model rule, rates, slots.
#[derive(Clone, Debug)]
pub(super) struct ScopeRule {
    pub(super) scope: Scope,
    pub(super) prefix: bool,
    pub(super) rates: Vec<(Dimension, Rate)>,
    pub(super) max_inflight: Option<u32>,
}

/// One tenant's rules.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantRule {
    pub(super) scopes: Vec<ScopeRule>,
    pub(super) shadow: bool,
}

impl TenantRule {
    /// The same, as the limiter reads it.
    pub(super) fn compile(&self) -> TenantRules {
        let mut rules = TenantRules::unlimited();
        rules.shadow = self.shadow;
        for rule in &self.scopes {
            let rates: Vec<RateLimit> =
                rule.rates.iter().map(|(dimension, rate)| RateLimit::new(*dimension, *rate)).collect();
            let limits = limits(rule.scope.clone(), &rates, rule.max_inflight);
            match &rule.scope {
                Scope::Model(pattern) if rule.prefix => {
                    let prefix = pattern.trim_end_matches('*').into();
                    rules.add_model(ModelMatch::Prefix(prefix), limits);
                }
                _ => rules.add(limits),
            }
        }
        rules
    }

    fn path(&self, ask: &Ask) -> Vec<(Who, &ScopeRule)> {
        let Ask { key, user, project, model, .. } = *ask;
        let mut models: Vec<&ScopeRule> = self
            .scopes
            .iter()
            .filter(|rule| match &rule.scope {
                Scope::Model(pattern) if rule.prefix => model.starts_with(pattern.trim_end_matches('*')),
                Scope::Model(name) => &**name == model,
                _ => false,
            })
            .collect();
        models.sort_by_key(|rule| (rule.prefix, usize::MAX - rule.scope.name().unwrap().len()));
        let find = |wanted: Scope| self.scopes.iter().find(|rule| rule.scope == wanted);
        [
            find(Scope::Key(key.into())),
            user.and_then(|_| find(Scope::User)),
            project.and_then(|id| find(Scope::Project(id.into()))),
            find(Scope::Tenant),
            models.first().copied(),
        ]
        .into_iter()
        .flatten()
        .map(|rule| ((rule.scope.clone(), user.filter(|_| rule.scope == Scope::User)), rule))
        .collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Held,
    Expired,
    Over,
    Cancelled,
}

#[derive(Clone, Debug)]
struct Entry {
    id: u128,
    tenant: usize,
    path: Vec<Who>,
    /// The buckets that it debited, by scope, dimension and life.
    debited: Vec<(Who, Dimension, u64)>,
    need: Amount,
    shadowed: Option<Denial>,
    version: u64,
    idempotency: Option<u128>,
    state: State,
    /// When its state ends by itself.
    until: u64,
}

#[derive(Clone, Debug)]
struct ModelBucket {
    tenant: usize,
    who: Who,
    dimension: Dimension,
    life: u64,
    bucket: ExactBucket,
}

/// Everything that ever happened to the books: how it ended, what was held, what was used, and whether it was late.
#[derive(Clone, Copy, Debug)]
enum Event {
    Reserved(u64),
    Expired(u64),
    Ended { held: u64, how: Resolution, late: bool },
}

/// The limiter, naively.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) now: u64,
    options: Options,
    version: u64,
    rules: Vec<Option<TenantRule>>,
    buckets: Vec<ModelBucket>,
    /// Tenant, scope and dimension that any version held.
    ever: Vec<(usize, Who, Dimension)>,
    entries: Vec<Entry>,
    keys: Vec<(u128, u128, Option<u64>)>,
    events: Vec<Event>,
}

/// A question to the model, with the tenant by its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) id: u128,
    pub(super) tenant: usize,
    pub(super) key: &'static str,
    pub(super) user: Option<u128>,
    pub(super) project: Option<&'static str>,
    pub(super) model: &'static str,
    pub(super) need: Amount,
    pub(super) idempotency: Option<u128>,
}

impl Model {
    pub(super) fn new(options: Options, rules: Vec<Option<TenantRule>>) -> Self {
        let mut model = Self {
            now: 0,
            options,
            version: 0,
            rules: vec![None; rules.len()],
            buckets: Vec::new(),
            ever: Vec::new(),
            entries: Vec::new(),
            keys: Vec::new(),
            events: Vec::new(),
        };
        model.edit(rules);
        model
    }

    fn read(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// New rules, in force from the last reading: every bucket follows at once.
    pub(super) fn edit(&mut self, rules: Vec<Option<TenantRule>>) {
        self.version += 1;
        let mut buckets = Vec::new();
        for (tenant, rule) in rules.iter().enumerate() {
            let scopes = rule.iter().flat_map(|rule| &rule.scopes).flat_map(|rule| {
                let users = if rule.scope == Scope::User { USERS } else { 0 };
                let users = (0..users).map(Some).chain([None]);
                users.map(move |user| ((rule.scope.clone(), user), rule))
            });
            for (who, scope) in scopes {
                for (dimension, rate) in &scope.rates {
                    let name = (tenant, who.clone(), *dimension);
                    let old = self
                        .buckets
                        .iter()
                        .find(|bucket| (bucket.tenant, bucket.who.clone(), bucket.dimension) == name);
                    let (life, bucket) = match old {
                        Some(old) => {
                            let mut bucket = old.bucket.clone();
                            bucket.edit(*rate, self.now);
                            (old.life, bucket)
                        }
                        None => {
                            let mut bucket = ExactBucket::full(*rate, self.now);
                            if self.ever.contains(&name) {
                                bucket.grains = 0;
                            }
                            (self.version, bucket)
                        }
                    };
                    self.ever.push(name);
                    let (who, dimension) = (who.clone(), *dimension);
                    buckets.push(ModelBucket { tenant, who, dimension, life, bucket });
                }
            }
        }
        self.buckets = buckets;
        self.rules = rules;
    }

    fn bucket(&mut self, tenant: usize, who: &Who, dimension: Dimension) -> Option<&mut ModelBucket> {
        let now = self.now;
        let mut buckets = self.buckets.iter_mut();
        let found = buckets
            .find(|bucket| bucket.tenant == tenant && bucket.who == *who && bucket.dimension == dimension)?;
        found.bucket.at(now);
        Some(found)
    }

    fn inflight(&self, tenant: usize, who: &Who) -> u32 {
        let holds =
            |entry: &&Entry| entry.tenant == tenant && entry.state == State::Held && entry.path.contains(who);
        self.entries.iter().filter(holds).count() as u32
    }

    pub(super) fn open(&self) -> usize {
        self.entries.iter().filter(|entry| entry.state == State::Held).count()
    }

    pub(super) fn remembered(&self) -> usize {
        self.entries.len()
    }

    /// The verdict, and the version of the rules that it was made under.
    pub(super) fn reserve(&mut self, now: u64, ask: Ask) -> (Verdict, u64) {
        self.read(now);
        let Some(known) = self.entries.iter().find(|entry| entry.id == ask.id) else {
            return (self.decide(ask), self.version);
        };
        let verdict = match (known.state, &known.shadowed) {
            (State::Cancelled, _) => Verdict::Denied(Denial::Cancelled),
            (_, Some(denial)) => Verdict::Shadowed(denial.clone()),
            _ => Verdict::Admitted,
        };
        (verdict, known.version)
    }

    fn decide(&mut self, ask: Ask) -> Verdict {
        if self.entries.len() >= self.options.max_reservations {
            return Verdict::Denied(Denial::Full);
        }
        let taken = self.keys.iter().find(|(key, ..)| Some(*key) == ask.idempotency);
        if let Some((_, id, _)) = taken {
            let held = self.entries.iter().any(|entry| entry.id == *id && entry.state == State::Held);
            let denial = if held { Denial::IdempotencyInProgress } else { Denial::AlreadyDispatched };
            return Verdict::Denied(denial);
        }
        let Some(rule) = self.rules[ask.tenant].clone() else {
            return Verdict::Denied(Denial::UnknownTenant);
        };
        let path = rule.path(&ask);
        let denial = self.refusal(&ask, &path);
        if let (Some(denial), false) = (&denial, rule.shadow) {
            return Verdict::Denied(denial.clone());
        }
        let mut entry = Entry {
            id: ask.id,
            tenant: ask.tenant,
            path: Vec::new(),
            debited: Vec::new(),
            need: ask.need,
            shadowed: denial.clone(),
            version: self.version,
            idempotency: ask.idempotency,
            state: State::Held,
            until: self.now + self.options.reservation_deadline.as_nanos(),
        };
        if denial.is_none() {
            for (who, rule) in &path {
                entry.path.push(who.clone());
                for (dimension, _) in &rule.rates {
                    let bucket = self.bucket(ask.tenant, who, *dimension).unwrap();
                    bucket.bucket.change(-i128::from(ask.need.of(*dimension)));
                    entry.debited.push((who.clone(), *dimension, bucket.life));
                }
            }
            self.events.push(Event::Reserved(ask.need.total));
        }
        if let Some(key) = ask.idempotency {
            self.keys.push((key, ask.id, None));
        }
        self.entries.push(entry);
        denial.map_or(Verdict::Admitted, Verdict::Shadowed)
    }

    fn refusal(&mut self, ask: &Ask, path: &[(Who, &ScopeRule)]) -> Option<Denial> {
        let mut refusals = Vec::new();
        for (who, rule) in path {
            for (dimension, rate) in &rule.rates {
                let need = ask.need.of(*dimension);
                let bucket = &self.bucket(ask.tenant, who, *dimension).unwrap().bucket;
                let (scope, dimension, capacity) = (rule.scope.clone(), *dimension, rate.burst);
                if need == 0 || bucket.level() >= i128::from(need) {
                    continue;
                }
                if need > capacity {
                    refusals.push((0, Denial::Never { scope, dimension, need, capacity }));
                } else {
                    let wait = Span::from_nanos(bucket.wait(need) as u64);
                    let level = bucket.level() as i64;
                    refusals.push((1, Denial::Rate { scope, dimension, need, level, capacity, wait }));
                }
            }
        }
        for (who, rule) in path {
            if let Some(max) = rule.max_inflight
                && self.inflight(ask.tenant, who) >= max
            {
                refusals.push((2, Denial::Inflight { scope: rule.scope.clone(), max }));
            }
        }
        let longest = refusals.iter().filter_map(|(_, denial)| match denial {
            Denial::Rate { wait, .. } => Some(*wait),
            _ => None,
        });
        let longest = longest.max();
        refusals.sort_by_key(|(rank, _)| *rank);
        let mut denial = refusals.into_iter().next()?.1;
        if let (Denial::Rate { wait, .. }, Some(longest)) = (&mut denial, longest) {
            *wait = longest;
        }
        Some(denial)
    }

    pub(super) fn resolve(&mut self, now: u64, id: u128, how: Resolution) -> Resolved {
        self.read(now);
        let now = self.now;
        let Some(place) = self.entries.iter().position(|entry| entry.id == id) else {
            if how == Resolution::Cancel && self.entries.len() < self.options.max_reservations {
                self.entries.push(Entry {
                    id,
                    tenant: usize::MAX,
                    path: Vec::new(),
                    debited: Vec::new(),
                    need: Amount::default(),
                    shadowed: None,
                    version: 0,
                    idempotency: None,
                    state: State::Cancelled,
                    until: now + self.options.remember.as_nanos(),
                });
            }
            return Resolved::Unknown;
        };
        let entry = self.entries[place].clone();
        let corrects = matches!(how, Resolution::Settle(_) | Resolution::Cancel);
        let late = match entry.state {
            State::Held => false,
            State::Expired if corrects => true,
            _ => return Resolved::Already,
        };
        let cancelled = how == Resolution::Cancel;
        self.entries[place].state = if cancelled { State::Cancelled } else { State::Over };
        if !late {
            self.entries[place].until = now + self.options.remember.as_nanos();
        }
        if let Some(key) = entry.idempotency
            && let Some(taken) = self.keys.iter().position(|(taken, by, _)| (*taken, *by) == (key, id))
        {
            if cancelled {
                self.keys.remove(taken);
            } else if !late {
                self.keys[taken].2 = Some(now + self.options.idempotency.as_nanos());
            }
        }
        let mut refunded = 0;
        let mut overage = 0;
        if entry.shadowed.is_none() {
            self.events.push(Event::Ended { held: entry.need.total, how, late });
            let used = used(how, entry.need);
            (refunded, overage) =
                (entry.need.total.saturating_sub(used.0), used.0.saturating_sub(entry.need.total));
            self.true_up(&entry, how);
        }
        if late { Resolved::Late { refunded, overage } } else { Resolved::Now { refunded, overage } }
    }

    fn true_up(&mut self, entry: &Entry, how: Resolution) {
        for who in &entry.path {
            for dimension in Dimension::ALL {
                let Some(bucket) = self.bucket(entry.tenant, who, dimension) else { continue };
                let (total, input, output, request) = used(how, entry.need);
                let used = match dimension {
                    Dimension::Tokens => total,
                    Dimension::InputTokens => input,
                    Dimension::OutputTokens => output,
                    Dimension::Requests => request,
                };
                let back = i128::from(entry.need.of(dimension)) - i128::from(used);
                if back < 0 || entry.debited.contains(&(who.clone(), dimension, bucket.life)) {
                    bucket.bucket.change(back);
                }
            }
        }
    }

    pub(super) fn timeout(&mut self, now: u64) -> Vec<u128> {
        self.read(now);
        let now = self.now;
        let mut due: Vec<(u64, u128)> = Vec::new();
        for entry in self.entries.iter_mut().filter(|entry| entry.state == State::Held && entry.until <= now)
        {
            due.push((entry.until, entry.id));
            entry.state = State::Expired;
            entry.until = now + self.options.late_settle.as_nanos();
            if entry.shadowed.is_none() {
                self.events.push(Event::Expired(entry.need.total));
            }
            let holds =
                |key: &&mut (u128, u128, Option<u64>)| (Some(key.0), key.1) == (entry.idempotency, entry.id);
            if let Some(key) = self.keys.iter_mut().find(holds) {
                key.2 = Some(now + self.options.idempotency.as_nanos());
            }
        }
        self.entries.retain(|entry| entry.state == State::Held || entry.until > now);
        self.keys.retain(|(_, _, until)| until.is_none_or(|until| until > now));
        due.sort();
        due.into_iter().map(|(_, id)| id).collect()
    }

    /// The books, added up from everything that ever happened.
    pub(super) fn books(&self) -> Books {
        let mut books = Books::default();
        for event in &self.events {
            match *event {
                Event::Reserved(held) => {
                    books.reserved += u128::from(held);
                    books.open += u128::from(held);
                }
                Event::Expired(held) => {
                    books.open -= u128::from(held);
                    books.closed += u128::from(held);
                }
                Event::Ended { held, how, late } => {
                    *(if late { &mut books.closed } else { &mut books.open }) -= u128::from(held);
                    let used = match how {
                        Resolution::Settle(used) => {
                            books.settled += u128::from(used.total);
                            used.total
                        }
                        Resolution::Close => {
                            books.closed += u128::from(held);
                            held
                        }
                        Resolution::Abandon => {
                            books.abandoned += u128::from(held);
                            held
                        }
                        Resolution::Cancel => 0,
                    };
                    books.refunded += u128::from(held.saturating_sub(used));
                    books.overage += u128::from(used.saturating_sub(held));
                }
            }
        }
        books
    }

    /// What a look at a tenant must show: per scope its levels and who is in flight.
    pub(super) fn view(&mut self, now: u64, tenant: usize) -> Option<SeenTenant> {
        self.read(now);
        let rule = self.rules[tenant].clone()?;
        let mut seen = Vec::new();
        for scope in &rule.scopes {
            let mut levels = Vec::new();
            let who = (scope.scope.clone(), None);
            for (dimension, _) in &scope.rates {
                let bucket = &self.bucket(tenant, &who, *dimension).unwrap().bucket;
                let full = bucket.wait(bucket.rate.burst) as u64;
                levels.push((*dimension, bucket.level() as i64, full));
            }
            seen.push((scope.scope.clone(), levels, self.inflight(tenant, &who)));
        }
        Some(seen)
    }
}

/// Scope, its levels with the nanoseconds until each is full, and requests in flight.
pub(super) type SeenTenant = Vec<(Scope, Vec<(Dimension, i64, u64)>, u32)>;

/// The same of the limiter.
pub(super) fn seen(view: TenantView) -> SeenTenant {
    let scopes = view.scopes.into_iter().map(|scope| {
        let levels =
            scope.limits.iter().map(|(dimension, view)| (*dimension, view.level, view.until_full.as_nanos()));
        (scope.scope.clone(), levels.collect(), scope.inflight)
    });
    scopes.collect()
}

fn used(how: Resolution, need: Amount) -> (u64, u64, u64, u64) {
    match how {
        Resolution::Settle(used) => (used.total, used.input, used.output, 1),
        Resolution::Close | Resolution::Abandon => (need.total, need.input, need.output, 1),
        Resolution::Cancel => (0, 0, 0, 0),
    }
}
