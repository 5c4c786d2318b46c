//! One version of everything that a request reads: made whole from a policy, then swapped in.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::compile::{encoding_of, excepted, tenant_rules};
use super::escrow::Tariff;
use super::issuers::Issuers;
use super::principal::Principal;
use crate::auth::{Credential, KeyTable, NoCredential};
use crate::control::exceptions::Exceptions;
use crate::control::keys::Keys;
use crate::control::terms;
use crate::estimate::Encoding;
use crate::limit::{Denial, Moment, Name, Rules, TenantRules};
use crate::policy::{ANONYMOUS, Anonymous, KeyHash, Model, OnExhausted, Policy, Tenant, Users};
use crate::route::{Dialect, Endpoint};
use crate::upstream::{Upstream, Upstreams};

/// The label under which callers with a token count, since they have no key.
const SIGNED: &str = "token";

/// The numbers of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Of policy and keys together.
    pub all: u64,
    /// In which the policy's document came.
    pub policy: u64,
}

/// What is agreed on beside the document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// Keys.
    pub keys: Arc<Keys>,
    /// Tenants that are suspended, and limits that are overridden.
    pub exceptions: Arc<Exceptions>,
}

/// A policy in force.
pub struct Snapshot {
    /// The version of what is agreed on: of policy and keys together. 0 before anything is.
    pub version: u64,
    /// The version in which its document came.
    pub policy_version: u64,
    /// The document.
    pub document: Arc<Policy>,
    /// The document as it holds now: with the limits that are overridden.
    pub policy: Arc<Policy>,
    /// The keys that are agreed on beside the document's.
    pub agreed_keys: Arc<Keys>,
    /// What is excepted from the document.
    pub exceptions: Arc<Exceptions>,
    /// Its limits, as the limiter reads them.
    pub rules: Arc<Rules>,
    /// What a request costs beside its tenant's own limits.
    pub tariff: Arc<Tariff>,
    /// Its keys.
    pub keys: KeyTable<Principal>,
    /// The labels of its keys, by tenant.
    labels: HashMap<Name, HashSet<Name>>,
    /// Those who may sign tokens.
    pub issuers: Issuers,
    /// Whom a token may speak for, by tenant.
    signed: BTreeMap<String, Arc<Principal>>,
    /// Callers without a credential, if the policy has them.
    pub anonymous: Option<Arc<Principal>>,
    /// Its providers, ready to be called.
    pub upstreams: Upstreams,
    /// Its models, each with the name that every limit and log line shares.
    models: BTreeMap<String, Name>,
    /// Who an unknown caller is: only while limits are off because the policy is invalid.
    pub everyone: Option<Arc<Principal>>,
}

impl Snapshot {
    /// No policy yet: nobody is known.
    #[must_use]
    pub fn nothing() -> Self {
        let parts =
            (Arc::new(Rules::default()), Upstreams::new(&BTreeMap::new(), None), Issuers::new(&[], None));
        Self::make(Versions { all: 0, policy: 0 }, Arc::new(Policy::nothing()), Beside::default(), parts)
    }

    /// The first policy of a node.
    #[must_use]
    pub fn first(policy: Policy) -> Self {
        Self::nothing().next(policy, Moment::default())
    }

    /// The policy after this one, in force from `now`, on a node that agrees with nobody.
    #[must_use]
    pub fn next(&self, policy: Policy, now: Moment) -> Self {
        let version = self.version + 1;
        let versions = Versions { all: version, policy: version };
        self.succeeded_by(versions, Arc::new(policy), self.beside(), now)
    }

    /// What is agreed on after this, in force from `now`. Providers whose settings did not change keep their connections.
    #[must_use]
    pub fn succeeded_by(
        &self,
        versions: Versions,
        document: Arc<Policy>,
        beside: Beside,
        now: Moment,
    ) -> Self {
        let policy = excepted(&document, &beside.exceptions);
        let rules = self.rules.succeeded_by(versions.all, tenant_rules(&policy, &beside.keys), now);
        let upstreams = Upstreams::new(&policy.providers, Some(&self.upstreams));
        let issuers = Issuers::new(&policy.identity, Some(&self.issuers));
        Self::make(versions, document, beside, (Arc::new(rules), upstreams, issuers))
    }

    /// The same, its secrets read again: a policy names them and does not hold them, and one may have changed.
    #[must_use]
    pub fn read_again(&self) -> Self {
        let upstreams = Upstreams::new(&self.policy.providers, Some(&self.upstreams));
        let issuers = Issuers::new(&self.policy.identity, Some(&self.issuers));
        let versions = Versions { all: self.version, policy: self.policy_version };
        let parts = (self.rules.clone(), upstreams, issuers);
        let mut again = Self::make(versions, self.document.clone(), self.beside(), parts);
        again.everyone.clone_from(&self.everyone);
        again.tariff.clone_from(&self.tariff);
        again
    }

    /// What is agreed on beside the document.
    #[must_use]
    pub fn beside(&self) -> Beside {
        Beside { keys: self.agreed_keys.clone(), exceptions: self.exceptions.clone() }
    }

    /// Why nothing of `principal` is admitted under this policy, if so. It may be one that another policy knew.
    #[must_use]
    pub fn refusal(&self, principal: &Principal) -> Option<Denial> {
        if self.exceptions.suspended().contains_key(&*principal.tenant) {
            return Some(Denial::Suspended);
        }
        (!self.knows(principal)).then_some(Denial::Revoked)
    }

    fn knows(&self, principal: &Principal) -> bool {
        let same = |own: &Arc<Principal>| own.tenant == principal.tenant && own.key == principal.key;
        let keys =
            || self.labels.get(&principal.tenant).is_some_and(|labels| labels.contains(&principal.key));
        let signed = || self.signed.get(&*principal.tenant).is_some_and(same);
        keys() || signed() || self.anonymous.as_ref().is_some_and(same) || self.everyone.is_some()
    }

    /// Whether there is no policy at all.
    #[must_use]
    pub const fn is_nothing(&self) -> bool {
        self.version == 0 && self.everyone.is_none()
    }

    fn make(
        versions: Versions,
        document: Arc<Policy>,
        beside: Beside,
        (rules, upstreams, issuers): (Arc<Rules>, Upstreams, Issuers),
    ) -> Self {
        let Beside { keys: agreed_keys, exceptions } = beside;
        let policy = excepted(&document, &exceptions);
        let mut keys = Vec::new();
        let mut signed = BTreeMap::new();
        for (place, tenant) in policy.tenants.iter().enumerate() {
            let (id, tier): (Name, Name) = (tenant.id.as_str().into(), tenant.tier.as_str().into());
            if !issuers.is_empty() {
                let principal = Principal::new(id.clone(), SIGNED.into(), None, tier.clone(), Some(place));
                signed.insert(tenant.id.clone(), Arc::new(principal));
            }
            for key in tenant.keys.iter().filter(|key| agreed_keys.revoked(&key.hash.0).is_none()) {
                let project = key.project.as_deref().map(Name::from);
                let principal =
                    Principal::new(id.clone(), key.label.as_str().into(), project, tier.clone(), Some(place));
                keys.push((key.hash, key.expires, Arc::new(principal)));
            }
            for (name, key) in agreed_keys.of_tenant(&tenant.id) {
                let project = key.project.as_deref().map(Name::from);
                let label = name.label.as_str().into();
                let principal =
                    Arc::new(Principal::new(id.clone(), label, project, tier.clone(), Some(place)));
                keys.extend(key.secrets.iter().map(|secret| {
                    let over = [key.expires, secret.until].into_iter().flatten().min();
                    (KeyHash(secret.hash), over.map(instant), principal.clone())
                }));
            }
        }
        let mut labels: HashMap<Name, HashSet<Name>> = HashMap::new();
        for (.., principal) in &keys {
            labels.entry(principal.tenant.clone()).or_default().insert(principal.key.clone());
        }
        let anonymous = policy.anonymous.as_ref().map(|_| {
            Arc::new(Principal::new(ANONYMOUS.into(), ANONYMOUS.into(), None, ANONYMOUS.into(), None))
        });
        let models = policy.models.keys().map(|name| (name.clone(), Name::from(name.as_str()))).collect();
        Self {
            version: versions.all,
            policy_version: versions.policy,
            rules,
            tariff: Arc::new(Tariff::of(&policy)),
            keys: KeyTable::new(keys),
            labels,
            issuers,
            signed,
            anonymous,
            upstreams,
            models,
            everyone: None,
            agreed_keys,
            exceptions,
            document,
            policy,
        }
    }

    /// Lets every caller in, known or not: the limits are off.
    pub fn open_to_everyone(&mut self) {
        let name = || Name::from("without-limits");
        let rules = tenant_rules(&self.policy, &self.agreed_keys);
        let rules = rules.into_iter().chain([(name(), TenantRules::unlimited())]);
        // What is agreed on later is a later version.
        (self.version, self.policy_version) = (0, 0);
        self.rules = Arc::new(Rules::default().succeeded_by(0, rules.collect(), Moment::default()));
        self.tariff = Arc::default();
        self.everyone = Some(Arc::new(Principal::new(name(), name(), None, name(), None)));
    }

    /// A provider of `dialect`: for a model that the policy does not have, while the limits are off.
    #[must_use]
    pub fn any_upstream(&self, dialect: Dialect) -> Option<&Arc<Upstream>> {
        self.everyone.as_ref()?;
        self.upstreams.iter().find(|upstream| upstream.dialect == dialect)
    }

    /// The provider of a path that is served only because a route of the policy names it.
    #[must_use]
    pub fn passed_through(&self, path: &str) -> Option<&Arc<Upstream>> {
        self.upstreams.get(self.policy.route_of(path)?.provider.as_deref()?)
    }

    /// How the texts of its models are counted.
    pub fn encodings(&self) -> impl Iterator<Item = Encoding> {
        self.policy.models.values().map(|model| encoding_of(&model.tokenizer))
    }

    /// Whom a credential speaks for: a key by its hash, a token by its signature. Who has none at all is anonymous, if the policy
    /// has such callers; who has a wrong one is nobody.
    #[must_use]
    pub fn principal(
        &self,
        credential: Result<Credential<'_>, NoCredential>,
        now: Timestamp,
    ) -> Option<&Arc<Principal>> {
        let known = match credential {
            Ok(credential) => self.keys.find(credential, now).or_else(|| {
                let tenant = self.issuers.tenant(credential.expose(), now)?;
                self.signed.get(&tenant)
            }),
            Err(NoCredential::Missing) => self.anonymous.as_ref(),
            Err(NoCredential::Conflicting | NoCredential::Malformed) => None,
        };
        known.or(self.everyone.as_ref())
    }

    /// Whether a principal may use a model, by its name in the policy.
    #[must_use]
    pub fn may_use(&self, principal: &Principal, model: &str) -> bool {
        self.allowed_models(principal).is_none_or(|allowed| allowed.iter().any(|name| name == model))
    }

    /// The models that a principal may use; all if none.
    #[must_use]
    pub fn allowed_models(&self, principal: &Principal) -> Option<&[String]> {
        match self.tenant_of(principal) {
            Some(tenant) => tenant.allow_models.as_deref(),
            None => self.anonymous_limits(principal)?.allow_models.as_deref(),
        }
    }

    /// The limits of callers without a credential, for one of them.
    #[must_use]
    pub fn anonymous_limits(&self, principal: &Principal) -> Option<&Anonymous> {
        self.policy
            .anonymous
            .as_ref()
            .filter(|_| principal.place.is_none() && &*principal.tenant == ANONYMOUS)
    }

    /// The tenant of a principal.
    #[must_use]
    pub fn tenant_of(&self, principal: &Principal) -> Option<&Tenant> {
        self.policy.tenants.get(principal.place?)
    }

    /// The limits of each of a principal's end users, if its tenant's policy has any.
    #[must_use]
    pub fn users_of(&self, principal: &Principal) -> Option<&Users> {
        self.policy.users_of(self.tenant_of(principal)?)
    }

    /// What the policy says of requests that a budget denies; nothing of another denial.
    #[must_use]
    pub fn on_exhausted(&self, denial: &Denial) -> Option<&OnExhausted> {
        match denial {
            Denial::Budget { budget, .. } => Some(&terms::budget_of(&self.policy, budget)?.on_exhausted),
            _ => None,
        }
    }

    /// The cheaper model that goes on where a budget denies, if the policy names one and it speaks what `endpoint` does.
    #[must_use]
    pub fn cheaper(&self, denial: &Denial, endpoint: Endpoint) -> Option<&str> {
        let Some(OnExhausted::Degrade { to, .. }) = self.on_exhausted(denial) else { return None };
        let (_, _, upstream) = self.model(to)?;
        (endpoint != Endpoint::PassedThrough && upstream.dialect == endpoint.spoken()).then_some(to)
    }

    /// The model that a name or an alias stands for, with its shared name and its provider.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<(&Model, &Name, &Arc<Upstream>)> {
        let model = self.policy.resolve_model(name)?;
        Some((model, self.models.get(&model.name)?, self.upstreams.get(&model.provider)?))
    }

    /// The same for a name in any of its forms, with the name that the provider is to be told: a dated snapshot stays one.
    #[must_use]
    pub fn model_asked(&self, name: &str) -> Option<(&Model, &Name, &Arc<Upstream>, String)> {
        let (model, snapshot) = match self.policy.resolve_model(name) {
            Some(model) => (model, ""),
            None => self.policy.resolve_model_loosely(name)?,
        };
        let upstream_model = format!("{}{snapshot}", model.upstream_model);
        let shared = self.models.get(&model.name)?;
        Some((model, shared, self.upstreams.get(&model.provider)?, upstream_model))
    }
}

/// An instant by its milliseconds since 1970; one beyond the calendar is its end.
fn instant(millis: i64) -> Timestamp {
    Timestamp::from_millisecond(millis).unwrap_or(if millis < 0 { Timestamp::MIN } else { Timestamp::MAX })
}
