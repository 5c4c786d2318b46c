//! The limits in force, as the limiter reads them: one version, compiled from a policy, never changed in place.
//!
//! Absences: no budgets, pools or windows here yet; no state. A tenant that the rules do not name has no limits and is not
//! admitted.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};
use serde::{Deserialize, Serialize};

use super::amount::Dimension;
use super::bucket::{Bucket, Rate};
use super::time::Moment;

/// A tenant's id, a key's label, a project's id, a model rule's pattern.
pub type Name = Arc<str>;

/// What a limit binds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// One key of the tenant, by label. Subdivides the tenant, never adds to it.
    Key(Name),
    /// An end user of the tenant, whoever it is. Subdivides it: each has buckets of its own. Their names are not known here.
    User,
    /// One project of the tenant. Subdivides it.
    Project(Name),
    /// The tenant.
    Tenant,
    /// One model rule of the tenant, named by its pattern: `gpt-5`, or `gpt-*` for a prefix.
    Model(Name),
}

impl Scope {
    /// The scope's kind: `key`, `user`, `project`, `tenant`, `model`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::User => "user",
            Self::Project(_) => "project",
            Self::Tenant => "tenant",
            Self::Model(_) => "model",
        }
    }

    /// The name within its kind; none for the tenant itself and for users.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Key(name) | Self::Project(name) | Self::Model(name) => Some(name),
            Self::Tenant | Self::User => None,
        }
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{} {name}", self.kind()),
            None => f.write_str(self.kind()),
        }
    }
}

/// Where a bucket that has no state yet stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// Full: no version of the rules held this limit before, so nobody can have spent from it.
    Full,
    /// As a bucket stands that was empty when the limit came back, and that nobody has drawn from since.
    Undrawn(Bucket),
}

/// One rate limit on one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// What it counts.
    pub dimension: Dimension,
    /// How fast it refills and how much it holds.
    pub rate: Rate,
    /// Decided by [`Rules::next`].
    pub(super) start: Start,
    /// The version in which it came, or came back. Decided by [`Rules::next`]; tells one life of a limit from another.
    pub(super) since: u64,
    /// The lowest rate and the largest capacity that it ever had: an empty bucket was full after its filling time, whatever was edited
    /// meanwhile. Decided by [`Rules::next`].
    pub(super) slowest: Rate,
}

impl RateLimit {
    /// A limit whose bucket starts full unless an earlier version of the rules held it.
    #[must_use]
    pub const fn new(dimension: Dimension, rate: Rate) -> Self {
        Self { dimension, rate, start: Start::Full, since: 0, slowest: rate }
    }

    /// Carries on from `old`, the same limit before an edit made at `edited`.
    fn carry_on(&mut self, old: &Self, edited: Moment) {
        self.since = old.since;
        self.start = old.start;
        self.slowest = Rate {
            per_minute: self.rate.per_minute.min(old.slowest.per_minute),
            burst: self.rate.burst.max(old.slowest.burst),
        };
        if let Start::Undrawn(bucket) = &mut self.start
            && self.rate != old.rate
        {
            bucket.follow(old.rate, self.rate, edited);
        }
    }
}

/// All limits on one scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeLimits {
    /// What they bind.
    pub scope: Scope,
    /// At most one per dimension.
    pub rates: Vec<RateLimit>,
    /// The most requests in flight at once.
    pub max_inflight: Option<u32>,
}

/// How a model rule is matched against a resolved model's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelMatch {
    /// The whole name.
    Exact(Name),
    /// The beginning of the name.
    Prefix(Name),
}

/// One tenant's limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantRules {
    /// The scopes. A request's path visits at most one of each kind.
    scopes: Vec<ScopeLimits>,
    /// Verdicts are counted and nothing is refused.
    pub shadow: bool,
    /// When its last edit came into force.
    edited: Moment,
    tenant: Option<u32>,
    users: Option<u32>,
    keys: HashMap<Name, u32>,
    projects: HashMap<Name, u32>,
    models: Vec<(ModelMatch, u32)>,
}

/// The scopes that one request must pass, in the order in which they are checked: key, user, project, tenant, model. Each is an
/// index into [`TenantRules::scopes`].
pub(super) type RulePath = [Option<u32>; STEPS];

/// How many scopes a path has at most.
pub(super) const STEPS: usize = 5;

/// The place of the user in a path.
pub(super) const USER: usize = 1;

impl TenantRules {
    /// Rules without a limit.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::default()
    }

    /// Adds the limits of the tenant itself, a key, each user, a project, or a model by its exact name. Of two sets for one scope the first
    /// is in force; a validated policy has no second.
    pub fn add(&mut self, limits: ScopeLimits) {
        if self.place_of(&limits.scope).is_some() {
            return;
        }
        let place = self.push(limits.clone());
        match limits.scope {
            Scope::Tenant => self.tenant = Some(place),
            Scope::User => self.users = Some(place),
            Scope::Key(label) => _ = self.keys.insert(label, place),
            Scope::Project(id) => _ = self.projects.insert(id, place),
            Scope::Model(name) => self.models.push((ModelMatch::Exact(name), place)),
        }
    }

    /// Adds a model rule. At most one applies to a request: an exact match wins over a prefix, a longer prefix over a shorter.
    /// Of two rules with one scope the first is in force.
    pub fn add_model(&mut self, matches: ModelMatch, limits: ScopeLimits) {
        if self.place_of(&limits.scope).is_none() {
            let place = self.push(limits);
            self.models.push((matches, place));
        }
    }

    /// The scopes, in the order in which they were added.
    #[must_use]
    pub fn scopes(&self) -> &[ScopeLimits] {
        &self.scopes
    }

    /// When the last edit of them came into force.
    pub(super) const fn edited(&self) -> Moment {
        self.edited
    }

    fn push(&mut self, limits: ScopeLimits) -> u32 {
        // Only a policy of more than 4 billion scopes has no place left; none fits in memory.
        let place = u32::try_from(self.scopes.len()).unwrap_or(u32::MAX);
        self.scopes.push(limits);
        place
    }

    fn place_of(&self, scope: &Scope) -> Option<u32> {
        match scope {
            Scope::Tenant => self.tenant,
            Scope::User => self.users,
            Scope::Key(label) => self.keys.get(label).copied(),
            Scope::Project(id) => self.projects.get(id).copied(),
            Scope::Model(_) => {
                let mut places = self.models.iter().map(|(_, place)| *place);
                places.find(|place| self.scopes[*place as usize].scope == *scope)
            }
        }
    }

    pub(super) fn limit(&self, scope: &Scope, dimension: Dimension) -> Option<&RateLimit> {
        let limits = &self.scopes[self.place_of(scope)? as usize];
        limits.rates.iter().find(|limit| limit.dimension == dimension)
    }

    /// The limits of each user, as a place among the scopes.
    pub(super) const fn users(&self) -> Option<u32> {
        self.users
    }

    pub(super) fn path(&self, key: &str, has_user: bool, project: Option<&str>, model: &str) -> RulePath {
        [
            self.keys.get(key).copied(),
            self.users.filter(|_| has_user),
            project.and_then(|id| self.projects.get(id)).copied(),
            self.tenant,
            self.model_rule(model),
        ]
    }

    fn model_rule(&self, model: &str) -> Option<u32> {
        let mut longest: Option<(usize, u32)> = None;
        for (matches, index) in &self.models {
            match matches {
                ModelMatch::Exact(name) if &**name == model => return Some(*index),
                ModelMatch::Prefix(prefix)
                    if model.starts_with(&**prefix)
                        && longest.is_none_or(|(length, _)| prefix.len() > length) =>
                {
                    longest = Some((prefix.len(), *index));
                }
                _ => {}
            }
        }
        longest.map(|(_, index)| index)
    }
}

/// One version of the limits of all tenants.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    version: u64,
    tenants: HashMap<Name, Arc<TenantRules>>,
    /// Every limit that this or an earlier version held, so that one that comes back starts empty. Grows only by what an
    /// operator writes into a policy.
    ever_held: HashSet<(Name, Scope, Dimension)>,
}

impl Rules {
    /// The first version: no scope was ever held before it, so every bucket starts full.
    #[must_use]
    pub fn first(tenants: Vec<(Name, TenantRules)>) -> Self {
        Self::default().next(tenants, Moment::default())
    }

    /// The version after this one, in force from `now`. A limit that is new starts full; one that was held once, then removed,
    /// and is back, starts empty at `now`; one that stays keeps its start (and its state: see the limiter).
    #[must_use]
    pub fn next(&self, tenants: Vec<(Name, TenantRules)>, now: Moment) -> Self {
        self.succeeded_by(self.version + 1, tenants, now)
    }

    /// [`Rules::next`], where somebody else counts the versions. `version` is later than this one.
    #[must_use]
    pub fn succeeded_by(&self, version: u64, tenants: Vec<(Name, TenantRules)>, now: Moment) -> Self {
        let mut next = Self { version, tenants: HashMap::new(), ever_held: self.ever_held.clone() };
        for (name, rules) in tenants {
            let limits = rules.scopes().iter().flat_map(|ScopeLimits { scope, rates, .. }| {
                rates.iter().map(|limit| (name.clone(), scope.clone(), limit.dimension))
            });
            next.ever_held.extend(limits);
            next.tenants.insert(name.clone(), self.succeed(version, &name, rules, now));
        }
        next
    }

    /// A tenant's rules in the next version: each limit is told where it starts, and rules that say what they said stay as they are.
    fn succeed(&self, version: u64, name: &Name, mut rules: TenantRules, now: Moment) -> Arc<TenantRules> {
        let before = self.tenants.get(name);
        for ScopeLimits { scope, rates, .. } in &mut rules.scopes {
            for limit in rates {
                match before.and_then(|before| before.limit(scope, limit.dimension)) {
                    Some(old) => limit.carry_on(old, now),
                    None => {
                        let held = (name.clone(), scope.clone(), limit.dimension);
                        let came_back = self.ever_held.contains(&held);
                        limit.start =
                            if came_back { Start::Undrawn(Bucket::empty(now)) } else { Start::Full };
                        limit.since = version;
                    }
                }
            }
        }
        if let Some(before) = before {
            rules.edited = before.edited;
            if rules == **before {
                return before.clone();
            }
        }
        rules.edited = now;
        Arc::new(rules)
    }

    /// Counts up with each [`Rules::next`].
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The rules of `tenant`.
    #[must_use]
    pub fn tenant(&self, tenant: &str) -> Option<&Arc<TenantRules>> {
        self.tenants.get(tenant)
    }
}
