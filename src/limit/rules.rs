//! The limits in force, as the limiter reads them: one version, compiled from a policy, never changed in place.
//!
//! Absences: no budgets, pools or windows here yet; no state. A tenant that the rules do not name has no limits and is not
//! admitted.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::amount::Dimension;
use super::bucket::Rate;
use super::time::Moment;

/// A tenant's id, a key's label, a project's id, a model rule's pattern.
pub type Name = Arc<str>;

/// What a limit binds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// One key of the tenant, by label. Subdivides the tenant, never adds to it.
    Key(Name),
    /// One project of the tenant. Subdivides it.
    Project(Name),
    /// The tenant.
    Tenant,
    /// One model rule of the tenant, named by its pattern: `gpt-5`, or `gpt-*` for a prefix.
    Model(Name),
}

impl Scope {
    /// The scope's kind: `key`, `project`, `tenant`, `model`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Key(_) => "key",
            Self::Project(_) => "project",
            Self::Tenant => "tenant",
            Self::Model(_) => "model",
        }
    }

    /// The name within its kind; none for the tenant itself.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Key(name) | Self::Project(name) | Self::Model(name) => Some(name),
            Self::Tenant => None,
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
pub enum Start {
    /// Full: no version of the policy ever held this scope, so nobody can have spent from it.
    Full,
    /// Empty at that instant, refilling since: the scope was removed and came back, or its state was lost.
    EmptyAt(Moment),
}

/// One rate limit on one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// What it counts.
    pub dimension: Dimension,
    /// How fast it refills and how much it holds.
    pub rate: Rate,
    /// Where its bucket starts. Whoever compiles a policy leaves it [`Start::Full`]; [`Rules::next`] decides.
    pub start: Start,
}

impl RateLimit {
    /// A limit whose bucket starts full unless an earlier version of the rules held it.
    #[must_use]
    pub const fn new(dimension: Dimension, rate: Rate) -> Self {
        Self { dimension, rate, start: Start::Full }
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
#[derive(Clone, Debug, Default)]
pub struct TenantRules {
    /// The scopes. A request's path visits at most one of each kind.
    scopes: Vec<ScopeLimits>,
    /// Verdicts are counted and nothing is refused.
    pub shadow: bool,
    tenant: Option<u16>,
    keys: HashMap<Name, u16>,
    projects: HashMap<Name, u16>,
    models: Vec<(ModelMatch, u16)>,
}

/// The scopes that one request must pass, in the order in which they are checked: key, project, tenant, model. Each is an
/// index into [`TenantRules::scopes`].
pub(super) type RulePath = [Option<u16>; 4];

impl TenantRules {
    /// Rules without a limit.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::default()
    }

    /// Adds the limits of the tenant itself, a key or a project. A second set for the same scope replaces nothing: the first
    /// one found is the one in force, and a validated policy has no second.
    pub fn add(&mut self, limits: ScopeLimits) {
        let Some(index) = self.next_index() else { return };
        match &limits.scope {
            Scope::Tenant => self.tenant = self.tenant.or(Some(index)),
            Scope::Key(label) => {
                self.keys.entry(label.clone()).or_insert(index);
            }
            Scope::Project(id) => {
                self.projects.entry(id.clone()).or_insert(index);
            }
            Scope::Model(pattern) => self.models.push((ModelMatch::Exact(pattern.clone()), index)),
        }
        self.scopes.push(limits);
    }

    /// Adds a model rule. At most one applies to a request: an exact match wins over a prefix, a longer prefix over a shorter.
    pub fn add_model(&mut self, matches: ModelMatch, limits: ScopeLimits) {
        let Some(index) = self.next_index() else { return };
        self.models.push((matches, index));
        self.scopes.push(limits);
    }

    /// The scopes, in the order in which they were added.
    #[must_use]
    pub fn scopes(&self) -> &[ScopeLimits] {
        &self.scopes
    }

    fn start_of(&self, scope: &Scope, dimension: Dimension) -> Option<Start> {
        let limits = self.scopes.iter().find(|limits| limits.scope == *scope)?;
        limits.rates.iter().find(|limit| limit.dimension == dimension).map(|limit| limit.start)
    }

    pub(super) fn path(&self, key: &str, project: Option<&str>, model: &str) -> RulePath {
        [
            self.keys.get(key).copied(),
            project.and_then(|id| self.projects.get(id)).copied(),
            self.tenant,
            self.model_rule(model),
        ]
    }

    fn model_rule(&self, model: &str) -> Option<u16> {
        let mut longest: Option<(usize, u16)> = None;
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

    /// A tenant with more than 65,535 scopes is refused by the policy's own bounds.
    fn next_index(&self) -> Option<u16> {
        u16::try_from(self.scopes.len()).ok()
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
        let mut next =
            Self { version: self.version + 1, tenants: HashMap::new(), ever_held: self.ever_held.clone() };
        for (name, mut rules) in tenants {
            let before = self.tenants.get(&name);
            for limits in &mut rules.scopes {
                for limit in &mut limits.rates {
                    let held = (name.clone(), limits.scope.clone(), limit.dimension);
                    limit.start =
                        match before.and_then(|rules| rules.start_of(&limits.scope, limit.dimension)) {
                            Some(start) => start,
                            None if self.ever_held.contains(&held) => Start::EmptyAt(now),
                            None => Start::Full,
                        };
                    next.ever_held.insert(held);
                }
            }
            next.tenants.insert(name, Arc::new(rules));
        }
        next
    }

    /// Counts up by one with each [`Rules::next`].
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
