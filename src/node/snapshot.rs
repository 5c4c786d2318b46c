//! One version of everything that a request reads: made whole from a policy, then swapped in.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::compile::{encoding_of, tenant_rules};
use super::principal::Principal;
use crate::auth::KeyTable;
use crate::estimate::Encoding;
use crate::limit::{Moment, Name, Rules, TenantRules};
use crate::policy::{Model, Policy, Tenant};
use crate::route::Dialect;
use crate::upstream::{Upstream, Upstreams};

/// A policy in force.
pub struct Snapshot {
    /// Counts up with each policy that this node puts in force.
    pub version: u64,
    /// The document.
    pub policy: Policy,
    /// Its limits, as the limiter reads them.
    pub rules: Arc<Rules>,
    /// Its keys.
    pub keys: KeyTable<Principal>,
    /// Its providers, ready to be called.
    pub upstreams: Upstreams,
    /// Its models, each with the name that every limit and log line shares.
    models: BTreeMap<String, Name>,
    /// Who an unknown caller is: only while limits are off because the policy is invalid.
    pub everyone: Option<Arc<Principal>>,
}

impl Snapshot {
    /// The first policy of a node.
    #[must_use]
    pub fn first(policy: Policy) -> Self {
        let rules = Rules::first(tenant_rules(&policy));
        let upstreams = Upstreams::new(&policy.providers, None);
        Self::make(policy, rules, upstreams)
    }

    /// The policy after this one, in force from `now`. Providers whose settings did not change keep their connections.
    #[must_use]
    pub fn next(&self, policy: Policy, now: Moment) -> Self {
        let rules = self.rules.next(tenant_rules(&policy), now);
        let upstreams = Upstreams::new(&policy.providers, Some(&self.upstreams));
        Self::make(policy, rules, upstreams)
    }

    fn make(policy: Policy, rules: Rules, upstreams: Upstreams) -> Self {
        let mut keys = Vec::new();
        for (place, tenant) in policy.tenants.iter().enumerate() {
            let (id, tier): (Name, Name) = (tenant.id.as_str().into(), tenant.tier.as_str().into());
            for key in &tenant.keys {
                let project = key.project.as_deref().map(Name::from);
                let principal =
                    Principal::new(id.clone(), key.label.as_str().into(), project, tier.clone(), Some(place));
                keys.push((key.hash, key.expires, Arc::new(principal)));
            }
        }
        let models = policy.models.keys().map(|name| (name.clone(), Name::from(name.as_str()))).collect();
        Self {
            version: rules.version(),
            rules: Arc::new(rules),
            keys: KeyTable::new(keys),
            upstreams,
            models,
            everyone: None,
            policy,
        }
    }

    /// Lets every caller in, known or not: the limits are off.
    pub fn open_to_everyone(&mut self) {
        let name = || Name::from("without-limits");
        let rules = tenant_rules(&self.policy).into_iter().chain([(name(), TenantRules::unlimited())]);
        self.rules = Arc::new(Rules::first(rules.collect()));
        self.everyone = Some(Arc::new(Principal::new(name(), name(), None, name(), None)));
    }

    /// A provider of `dialect`: for a model that the policy does not have, while the limits are off.
    #[must_use]
    pub fn any_upstream(&self, dialect: Dialect) -> Option<&Arc<Upstream>> {
        self.everyone.as_ref()?;
        self.upstreams.iter().find(|upstream| upstream.dialect == dialect)
    }

    /// How the texts of its models are counted.
    pub fn encodings(&self) -> impl Iterator<Item = Encoding> {
        self.policy.models.values().map(|model| encoding_of(&model.tokenizer))
    }

    /// The tenant of a principal.
    #[must_use]
    pub fn tenant_of(&self, principal: &Principal) -> Option<&Tenant> {
        self.policy.tenants.get(principal.place?)
    }

    /// The model that a name or an alias stands for, with its shared name and its provider.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<(&Model, &Name, &Arc<Upstream>)> {
        let model = self.policy.resolve_model(name)?;
        Some((model, self.models.get(&model.name)?, self.upstreams.get(&model.provider)?))
    }
}
