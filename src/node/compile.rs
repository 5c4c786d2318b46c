//! From a policy to what the limiter and the pipeline read: a value made whole, then swapped in.

use std::sync::Arc;

use crate::control::exceptions::Exceptions;
use crate::control::keys::{Keys, Limits as KeyLimits};
use crate::estimate::Encoding;
use crate::limit::{Dimension, ModelMatch, Name, Rate, RateLimit, Scope, ScopeLimits, TenantRules};
use crate::policy::{
    ANONYMOUS, Enforcement, EnforcementMode, LimitSettings, Limits, ModelPattern, Policy, Tenant, Tokenizer,
};

/// `document` with the limits that are overridden. Those of a tenant that it does not have wait.
#[must_use]
pub fn excepted(document: &Arc<Policy>, exceptions: &Exceptions) -> Arc<Policy> {
    if exceptions.overrides().is_empty() {
        return document.clone();
    }
    let mut policy = Policy::clone(document);
    for tenant in &mut policy.tenants {
        if let Some(one) = exceptions.overrides().get(&tenant.id) {
            tenant.limits = settings_of(&one.limits).or(&tenant.limits);
        }
    }
    Arc::new(policy)
}

/// The limits of every tenant of `policy`, and of its keys that are agreed on beside it.
#[must_use]
pub fn tenant_rules(policy: &Policy, keys: &Keys) -> Vec<(Name, TenantRules)> {
    let tenants =
        policy.tenants.iter().map(|tenant| (Name::from(tenant.id.as_str()), rules_of(policy, tenant, keys)));
    let anonymous = policy.anonymous.iter().map(|anonymous| {
        let mut rules = TenantRules::unlimited();
        rules.shadow = policy.enforcement == EnforcementMode::Shadow;
        if let Some(limits) = scope_limits(Scope::Tenant, &anonymous.limits.resolve()) {
            rules.add(limits);
        }
        (Name::from(ANONYMOUS), rules)
    });
    tenants.chain(anonymous).collect()
}

fn rules_of(policy: &Policy, tenant: &Tenant, keys: &Keys) -> TenantRules {
    let mut rules = TenantRules::unlimited();
    rules.shadow = policy.enforcement_of(tenant) == Enforcement::Shadow;
    let mut add = |scope, limits: &Limits| {
        if let Some(limits) = scope_limits(scope, limits) {
            rules.add(limits);
        }
    };
    for key in &tenant.keys {
        add(Scope::Key(key.label.as_str().into()), &key.limits.resolve());
    }
    for (name, key) in keys.of_tenant(&tenant.id) {
        add(Scope::Key(name.label.as_str().into()), &settings_of(&key.limits).resolve());
    }
    for project in &tenant.projects {
        add(Scope::Project(project.id.as_str().into()), &project.limits.resolve());
    }
    if let Some(users) = policy.users_of(tenant) {
        add(Scope::User, &users.limits.resolve());
    }
    add(Scope::Tenant, &policy.effective_limits(tenant));
    for rule in &tenant.models {
        let (matches, pattern) = match &rule.pattern {
            ModelPattern::Exact(name) => (ModelMatch::Exact(name.as_str().into()), name.clone()),
            ModelPattern::Prefix(prefix) => {
                (ModelMatch::Prefix(prefix.as_str().into()), format!("{prefix}*"))
            }
        };
        if let Some(limits) = scope_limits(Scope::Model(pattern.into()), &rule.limits.resolve()) {
            rules.add_model(matches, limits);
        }
    }
    rules
}

/// The limits of a key that is agreed on, as a policy's document would say them.
#[must_use]
pub fn settings_of(limits: &KeyLimits) -> LimitSettings {
    LimitSettings {
        tokens_per_minute: limits.tokens_per_minute,
        input_tokens_per_minute: limits.input_tokens_per_minute,
        output_tokens_per_minute: limits.output_tokens_per_minute,
        burst_tokens: limits.burst_tokens,
        burst_input_tokens: None,
        burst_output_tokens: None,
        requests_per_minute: limits.requests_per_minute,
        burst_requests: limits.burst_requests,
        max_inflight: limits.max_inflight,
    }
}

/// None when nothing is limited: a path need not visit it. A model rule is kept even then, because it hides a shorter prefix.
fn scope_limits(scope: Scope, limits: &Limits) -> Option<ScopeLimits> {
    let rates: Vec<RateLimit> = [
        (Dimension::Tokens, limits.tokens),
        (Dimension::InputTokens, limits.input_tokens),
        (Dimension::OutputTokens, limits.output_tokens),
        (Dimension::Requests, limits.requests),
    ]
    .into_iter()
    .filter_map(|(dimension, rate)| {
        let rate = rate?;
        Some(RateLimit::new(dimension, Rate::new(rate.per_minute, rate.burst)))
    })
    .collect();
    let max_inflight = limits.max_inflight.map(|max| u32::try_from(max).unwrap_or(u32::MAX));
    let binds = !rates.is_empty() || max_inflight.is_some() || matches!(scope, Scope::Model(_));
    binds.then_some(ScopeLimits { scope, rates, max_inflight })
}

/// How the texts of a model with this tokenizer are counted.
#[must_use]
pub fn encoding_of(tokenizer: &Tokenizer) -> Encoding {
    match tokenizer {
        Tokenizer::O200k => Encoding::O200k,
        Tokenizer::Cl100k => Encoding::Cl100k,
        Tokenizer::Bytes { bytes_per_token_milli } => {
            Encoding::bytes(u32::try_from(*bytes_per_token_milli).unwrap_or(u32::MAX))
        }
    }
}
