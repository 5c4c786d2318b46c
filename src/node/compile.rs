//! From a policy to what the limiter and the pipeline read: a value made whole, then swapped in.

use crate::estimate::Encoding;
use crate::limit::{Dimension, ModelMatch, Name, Rate, RateLimit, Scope, ScopeLimits, TenantRules};
use crate::policy::{Enforcement, Limits, ModelPattern, Policy, Tenant, Tokenizer};

/// The limits of every tenant of `policy`.
#[must_use]
pub fn tenant_rules(policy: &Policy) -> Vec<(Name, TenantRules)> {
    policy.tenants.iter().map(|tenant| (Name::from(tenant.id.as_str()), rules_of(policy, tenant))).collect()
}

fn rules_of(policy: &Policy, tenant: &Tenant) -> TenantRules {
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
    for project in &tenant.projects {
        add(Scope::Project(project.id.as_str().into()), &project.limits.resolve());
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
