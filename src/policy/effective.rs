//! What a policy means for one tenant, model or route: inheritance and defaults, in one place.
//!
//! Laws: a tenant's settings replace its tier's one by one, its budgets replace the tier's as a whole; a rate without a burst
//! holds one minute of itself; a part's burst is never larger than the whole's unless it is written so.

use std::net::IpAddr;

use super::types::{
    Budget, Enforcement, EnforcementMode, Floor, LimitSettings, Limits, Model, ModelPattern, ModelRule,
    OnDisconnect, OnUnavailable, Policy, Rate, Route, Tenant, Tier, Users,
};

impl Policy {
    /// The model of a name or an alias, exactly as written; `None` when there is no such model.
    #[must_use]
    pub fn resolve_model(&self, name: &str) -> Option<&Model> {
        self.models.get(name).or_else(|| self.models.get(self.aliases.get(name)?))
    }

    /// The model of a name in any of the forms in which SDKs and people write it: with `models/` before it, in another case,
    /// or as a dated snapshot (`gpt-5-2025-08-07`, `claude-haiku-4-5@20251001`, `gpt-4-0613`), whose limits are those of its
    /// model. With it, what follows the model's name in a snapshot; empty otherwise.
    #[must_use]
    pub fn resolve_model_loosely<'n>(&self, name: &'n str) -> Option<(&Model, &'n str)> {
        let bare = name.strip_prefix("models/").unwrap_or(name);
        if let Some(model) = self.resolve_model(bare).or_else(|| self.resolve_model_in_any_case(bare)) {
            return Some((model, ""));
        }
        let base = &bare[..bare.len() - snapshot_suffix(bare)?.len()];
        let model = self.resolve_model(base).or_else(|| self.resolve_model_in_any_case(base))?;
        Some((model, &bare[base.len()..]))
    }

    /// Two models whose names differ in case alone stay apart: neither is found by a third spelling.
    fn resolve_model_in_any_case(&self, name: &str) -> Option<&Model> {
        let own = self.models.keys().map(|known| (known, known));
        let mut same = own.chain(&self.aliases).filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let (_, model) = same.next()?;
        same.all(|(_, other)| other == model).then(|| self.models.get(model)).flatten()
    }

    /// Whether `X-Forwarded-For` from this address is believed.
    #[must_use]
    pub fn trusts_proxy(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(address))
    }

    /// The tenant of an id, found by looking through all of them: for operators' questions, not for requests.
    #[must_use]
    pub fn tenant(&self, id: &str) -> Option<&Tenant> {
        self.tenants.iter().find(|tenant| tenant.id == id)
    }

    /// The route of a path, exactly as written; `None` means a route of Tollgate's own with default settings, or none at all.
    #[must_use]
    pub fn route_of(&self, path: &str) -> Option<&Route> {
        self.routes.iter().find(|route| route.path == path)
    }

    /// A tenant's limits outside its windows: its tier's, each replaced by its own where it has one.
    #[must_use]
    pub fn effective_limits(&self, tenant: &Tenant) -> Limits {
        self.settings_of(tenant).resolve()
    }

    /// The settings behind [`Policy::effective_limits`], before capacities are filled in.
    #[must_use]
    pub fn settings_of(&self, tenant: &Tenant) -> LimitSettings {
        match self.tiers.get(&tenant.tier) {
            Some(tier) => tenant.limits.or(&tier.limits),
            None => tenant.limits,
        }
    }

    /// A tenant's budgets: its own when it has any, else its tier's.
    #[must_use]
    pub fn budgets_of<'a>(&'a self, tenant: &'a Tenant) -> &'a [Budget] {
        match self.tiers.get(&tenant.tier) {
            Some(tier) if tenant.budgets.is_empty() => &tier.budgets,
            _ => &tenant.budgets,
        }
    }

    /// The limits of each end user of a tenant: its own entry when it has one, else its tier's.
    #[must_use]
    pub fn users_of<'a>(&'a self, tenant: &'a Tenant) -> Option<&'a Users> {
        tenant.users.as_ref().or_else(|| self.tier_of(tenant)?.users.as_ref())
    }

    /// A tenant's protected rate in tokens per minute, rounded down; 0 without a floor, and at most its limit.
    #[must_use]
    pub fn floor_of(&self, tenant: &Tenant) -> u64 {
        let limit = self.settings_of(tenant).tokens_per_minute;
        match tenant.floor.or_else(|| self.tier_of(tenant).and_then(|tier| tier.floor)) {
            None => 0,
            Some(Floor::TokensPerMinute(tokens)) => tokens.min(limit.unwrap_or(u64::MAX)),
            Some(Floor::Share(share)) => share.of(limit.unwrap_or(0)),
        }
    }

    /// Whether a tenant's limits refuse. Its own setting wins; under `enforce_new_tenants` a tenant without one is in shadow.
    #[must_use]
    pub fn enforcement_of(&self, tenant: &Tenant) -> Enforcement {
        tenant.enforcement.unwrap_or(match self.enforcement {
            EnforcementMode::Enforce => Enforcement::Enforce,
            EnforcementMode::Shadow | EnforcementMode::EnforceNewTenants => Enforcement::Shadow,
        })
    }

    /// What happens to a tenant's requests when nobody can decide: its own setting, its tier's, the document's.
    #[must_use]
    pub fn on_unavailable_of(&self, tenant: &Tenant) -> OnUnavailable {
        tenant
            .on_unavailable
            .or_else(|| self.tier_of(tenant).and_then(|tier| tier.on_unavailable))
            .unwrap_or(self.on_unavailable)
    }

    /// What a disconnect costs a tenant: its own setting, its tier's, the document's. `None` is the default split: rates settle
    /// on what was counted, budgets keep the estimate, since the provider may bill on.
    #[must_use]
    pub fn on_disconnect_of(&self, tenant: &Tenant) -> Option<OnDisconnect> {
        tenant
            .on_disconnect
            .or_else(|| self.tier_of(tenant).and_then(|tier| tier.on_disconnect))
            .or(self.on_disconnect)
    }

    fn tier_of(&self, tenant: &Tenant) -> Option<&Tier> {
        self.tiers.get(&tenant.tier)
    }
}

/// The date at the end of a snapshot's name, or its number: `-2025-08-07`, `-20251001`, `@20251001`, `-0613`, `-001`.
fn snapshot_suffix(name: &str) -> Option<&str> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let dashed = name.len().checked_sub(11).and_then(|at| name.get(at..)).filter(|suffix| {
        let parts: Vec<&str> = suffix.split('-').collect();
        matches!(parts.as_slice(), ["", year, month, day]
            if [year, month, day].iter().all(|part| digits(part)) && (year.len(), month.len(), day.len()) == (4, 2, 2))
    });
    let plain = || {
        let at = name.rfind(['-', '@'])?;
        let suffix = name.get(at..)?;
        (digits(&suffix[1..]) && matches!(suffix.len(), 4 | 5 | 9)).then_some(suffix)
    };
    dashed.or_else(plain).filter(|suffix| suffix.len() < name.len())
}

impl Tenant {
    /// The one rule that holds for a model, by its name in the policy: exact beats the longest prefix.
    #[must_use]
    pub fn model_rule(&self, model: &str) -> Option<&ModelRule> {
        let rank = |rule: &ModelRule| match &rule.pattern {
            ModelPattern::Exact(name) => (name == model).then_some(usize::MAX),
            ModelPattern::Prefix(prefix) => model.starts_with(prefix.as_str()).then_some(prefix.len()),
        };
        self.models
            .iter()
            .filter_map(|rule| rank(rule).map(|rank| (rank, rule)))
            .max_by_key(|(rank, _)| *rank)
            .map(|(_, rule)| rule)
    }

    /// Whether it may name this model (by its name in the policy).
    #[must_use]
    pub fn allows_model(&self, model: &str) -> bool {
        self.allow_models.as_ref().is_none_or(|allowed| allowed.iter().any(|name| name == model))
    }
}

impl LimitSettings {
    /// These settings, with those of `fallback` where one is absent.
    #[must_use]
    pub fn or(&self, fallback: &LimitSettings) -> LimitSettings {
        LimitSettings {
            tokens_per_minute: self.tokens_per_minute.or(fallback.tokens_per_minute),
            input_tokens_per_minute: self.input_tokens_per_minute.or(fallback.input_tokens_per_minute),
            output_tokens_per_minute: self.output_tokens_per_minute.or(fallback.output_tokens_per_minute),
            burst_tokens: self.burst_tokens.or(fallback.burst_tokens),
            burst_input_tokens: self.burst_input_tokens.or(fallback.burst_input_tokens),
            burst_output_tokens: self.burst_output_tokens.or(fallback.burst_output_tokens),
            requests_per_minute: self.requests_per_minute.or(fallback.requests_per_minute),
            burst_requests: self.burst_requests.or(fallback.burst_requests),
            max_inflight: self.max_inflight.or(fallback.max_inflight),
        }
    }

    /// The limits in effect. A rate without a burst holds one minute of itself; an input or output rate without one holds
    /// `burst_tokens` where that is less, because a part of a request is never larger than the whole.
    #[must_use]
    pub fn resolve(&self) -> Limits {
        let rate = |per_minute: Option<u64>, burst: Option<u64>| {
            per_minute.map(|per_minute| Rate { per_minute, burst: burst.unwrap_or(per_minute) })
        };
        let part = |per_minute: Option<u64>, burst: Option<u64>| {
            let inherited = per_minute.zip(self.burst_tokens).map(|(minute, whole)| minute.min(whole));
            rate(per_minute, burst.or(inherited))
        };
        Limits {
            tokens: rate(self.tokens_per_minute, self.burst_tokens),
            input_tokens: part(self.input_tokens_per_minute, self.burst_input_tokens),
            output_tokens: part(self.output_tokens_per_minute, self.burst_output_tokens),
            requests: rate(self.requests_per_minute, self.burst_requests),
            max_inflight: self.max_inflight,
        }
    }

    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == LimitSettings::default()
    }
}

impl Limits {
    /// The most tokens, input and output together, one request can ever be admitted with; `None` when nothing bounds it. A
    /// request must fit every capacity at once, so a total is bounded by its parts added up as well.
    #[must_use]
    pub fn largest_request(&self) -> Option<u64> {
        let parts = match (self.input_tokens, self.output_tokens) {
            (Some(input), Some(output)) => Some(input.burst.saturating_add(output.burst)),
            _ => None,
        };
        match (self.tokens.map(|rate| rate.burst), parts) {
            (Some(total), Some(parts)) => Some(total.min(parts)),
            (total, parts) => total.or(parts),
        }
    }
}
