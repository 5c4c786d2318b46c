//! What a policy allows, as numbers people read: the value behind `tollgate check`, as a table and as JSON.
//!
//! The largest request of a tier is the most tokens one request can ever be admitted with: what does not fit a bucket when the
//! bucket is full never fits. Rules per model, per key and per project can only lower it, and are told with their tenant.

use serde::Serialize;

use super::arithmetic::{self, PoolArithmetic};
use super::problem::Problem;
use super::types::{
    Enforcement, FieldPath, FloorMode, LimitSettings, Limits, ModelPattern, Policy, Pool, Rate, Tenant,
};

/// What a policy allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// A line per tier, by name.
    pub tiers: Vec<TierSummary>,
    /// A line per pool, by name.
    pub pools: Vec<PoolSummary>,
    /// Tenants that differ from their tier, in document order.
    pub exceptions: Vec<TenantException>,
    /// Models and routes that refuse requests for what is in them, models first.
    pub requests: Vec<RequestRule>,
    /// Tenants in all.
    pub tenants: u64,
    /// Keys in all.
    pub keys: u64,
    /// What is allowed but probably not meant.
    pub warnings: Vec<Problem>,
    /// What is asked for and has no effect in this version.
    pub not_yet_enforced: Vec<&'static str>,
}

/// A tier's limits; what is absent is unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // the names are those of the document
pub struct TierSummary {
    pub tier: String,
    pub tokens_per_minute: Option<u64>,
    pub input_tokens_per_minute: Option<u64>,
    pub output_tokens_per_minute: Option<u64>,
    pub burst_tokens: Option<u64>,
    pub requests_per_minute: Option<u64>,
    pub burst_requests: Option<u64>,
    pub max_inflight: Option<u64>,
    /// The most tokens one request can be admitted with.
    pub largest_request: Option<u64>,
    /// How many tenants have it.
    pub tenants: u64,
}

/// What was sold of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PoolSummary {
    /// Its name.
    pub pool: String,
    /// Tokens that may be claimed at once.
    pub burst_tokens: u64,
    /// A line per dimension that has a ceiling.
    pub dimensions: Vec<DimensionSummary>,
    /// `guaranteed` or `best_effort`.
    pub floors: &'static str,
    /// The floors of the tenants that can reach it, added up, in tokens per minute.
    pub sum_of_floors: u128,
    /// The guard rate the floors are compared with, if the pool limits tokens.
    pub floors_guard: Option<u64>,
    /// Whether the floors fit under the guard rate.
    pub floors_fit: bool,
    /// The largest sum of window limits that hold at once, in tokens per minute.
    pub committed_peak: u128,
    /// The part of the ceiling above which peaks are a reason to ask the provider for more, in tokens per minute.
    pub committed_peak_line: Option<u64>,
}

/// One dimension of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DimensionSummary {
    /// What is counted.
    pub dimension: &'static str,
    /// What the provider allows per minute.
    pub ceiling: u64,
    /// What is handed out per minute.
    pub guard: u64,
    /// The limits of the tenants that can reach it, added up.
    pub sold: u128,
    /// Tenants without a limit in this dimension, which no sum contains.
    pub unlimited_tenants: u64,
    /// `sold` in hundredths of the ceiling, rounded up.
    pub oversubscription_percent: u128,
}

/// How a tenant differs from its tier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TenantException {
    /// The tenant.
    pub tenant: String,
    /// Its tier.
    pub tier: String,
    /// The most tokens one of its requests can be admitted with.
    pub largest_request: Option<u64>,
    /// The differences, a phrase each.
    pub differences: Vec<String>,
}

/// What a model or a route refuses in a request, whoever asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RequestRule {
    /// The model's name, or the route's path.
    pub of: String,
    /// The most tokens that a request may have read.
    pub context_tokens: Option<u64>,
    /// Members that it may not have.
    pub forbid_fields: Vec<String>,
}

/// Sums a policy up.
#[must_use]
pub fn of(policy: &Policy) -> Summary {
    let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    Summary {
        tiers: policy.tiers.iter().map(|(name, tier)| tier_summary(policy, name, &tier.limits)).collect(),
        pools: policy.pools.iter().map(|(name, pool)| pool_summary(policy, name, pool)).collect(),
        exceptions: policy.tenants.iter().filter_map(|tenant| exception(policy, tenant)).collect(),
        requests: request_rules(policy),
        tenants: count(policy.tenants.len()),
        keys: count(policy.tenants.iter().map(|tenant| tenant.keys.len()).sum()),
        warnings: policy.warnings.clone(),
        not_yet_enforced: super::not_yet_enforced(policy),
    }
}

fn request_rules(policy: &Policy) -> Vec<RequestRule> {
    let models =
        policy.models.values().map(|model| (&model.name, model.context_tokens, &model.forbid_fields));
    let routes = policy.routes.iter().map(|route| (&route.path, None, &route.forbid_fields));
    let rule = |(of, context_tokens, forbid_fields): (&String, _, &Vec<FieldPath>)| RequestRule {
        of: of.clone(),
        context_tokens,
        forbid_fields: forbid_fields.iter().map(ToString::to_string).collect(),
    };
    models
        .chain(routes)
        .map(rule)
        .filter(|rule| rule.context_tokens.is_some() || !rule.forbid_fields.is_empty())
        .collect()
}

fn tier_summary(policy: &Policy, name: &str, settings: &LimitSettings) -> TierSummary {
    let limits = settings.resolve();
    let per_minute = |rate: Option<Rate>| rate.map(|rate| rate.per_minute);
    let burst = |rate: Option<Rate>| rate.map(|rate| rate.burst);
    TierSummary {
        tier: name.to_owned(),
        tokens_per_minute: per_minute(limits.tokens),
        input_tokens_per_minute: per_minute(limits.input_tokens),
        output_tokens_per_minute: per_minute(limits.output_tokens),
        burst_tokens: burst(limits.tokens),
        requests_per_minute: per_minute(limits.requests),
        burst_requests: burst(limits.requests),
        max_inflight: limits.max_inflight,
        largest_request: limits.largest_request(),
        tenants: policy.tenants.iter().map(|tenant| u64::from(tenant.tier == name)).sum(),
    }
}

fn pool_summary(policy: &Policy, name: &str, pool: &Pool) -> PoolSummary {
    let sums: PoolArithmetic = arithmetic::of_pool(policy, name, pool);
    PoolSummary {
        pool: name.to_owned(),
        burst_tokens: pool.burst_tokens,
        dimensions: sums
            .lines
            .iter()
            .map(|line| DimensionSummary {
                dimension: line.dimension.unit(),
                ceiling: line.ceiling,
                guard: line.guard,
                sold: line.sold,
                unlimited_tenants: line.unlimited_tenants,
                oversubscription_percent: line.oversubscription_percent(),
            })
            .collect(),
        floors: match pool.floors {
            FloorMode::Guaranteed => "guaranteed",
            FloorMode::BestEffort => "best_effort",
        },
        sum_of_floors: sums.floors,
        floors_guard: sums.tokens_guard,
        floors_fit: sums.tokens_guard.is_none_or(|guard| sums.floors <= u128::from(guard)),
        committed_peak: sums.committed_peak,
        committed_peak_line: sums.tokens_ceiling.map(|ceiling| arithmetic::COMMITTED_PEAKS_LINE.of(ceiling)),
    }
}

fn exception(policy: &Policy, tenant: &Tenant) -> Option<TenantException> {
    let limits = policy.effective_limits(tenant);
    let mut differences = replaced_limits(policy, tenant);
    differences.extend(smaller_requests(tenant, &limits));
    if !tenant.windows.is_empty() {
        differences.push(format!("other limits in windows: {}", tenant.windows.len()));
    }
    if policy.enforcement_of(tenant) == Enforcement::Shadow {
        differences.push("in shadow: nothing is refused".to_owned());
    }
    if let Some(allowed) = &tenant.allow_models {
        differences.push(format!(
            "only {}",
            if allowed.is_empty() { "no model at all".to_owned() } else { allowed.join(", ") }
        ));
    }
    (!differences.is_empty()).then(|| TenantException {
        tenant: tenant.id.clone(),
        tier: tenant.tier.clone(),
        largest_request: limits.largest_request(),
        differences,
    })
}

fn replaced_limits(policy: &Policy, tenant: &Tenant) -> Vec<String> {
    let tier = policy.tiers.get(&tenant.tier).map(|tier| tier.limits).unwrap_or_default();
    let own = named(&tenant.limits);
    own.into_iter()
        .zip(named(&tier))
        .filter_map(|((name, own), (_, tier))| {
            let was = tier.map_or_else(|| "unlimited".to_owned(), grouped);
            own.filter(|own| Some(*own) != tier).map(|own| format!("{name} {} (tier: {was})", grouped(own)))
        })
        .collect()
}

/// The parts of a tenant whose largest request is below its own.
fn smaller_requests(tenant: &Tenant, whole: &Limits) -> Vec<String> {
    let rules = tenant.models.iter().map(|rule| match &rule.pattern {
        ModelPattern::Exact(name) => (format!("model {name}"), rule.limits),
        ModelPattern::Prefix(prefix) => (format!("models {prefix}…"), rule.limits),
    });
    let keys = tenant.keys.iter().map(|key| (format!("key {}", key.label), key.limits));
    let projects = tenant.projects.iter().map(|project| (format!("project {}", project.id), project.limits));
    let users = tenant.users.iter().map(|users| ("each user".to_owned(), users.limits));
    let whole = whole.largest_request().unwrap_or(u64::MAX);
    rules
        .chain(keys)
        .chain(projects)
        .chain(users)
        .filter_map(|(part, limits)| Some((part, limits.resolve().largest_request()?)))
        .filter(|(_, largest)| *largest < whole)
        .map(|(part, largest)| format!("{part}: largest request {}", grouped(largest)))
        .collect()
}

fn named(limits: &LimitSettings) -> [(&'static str, Option<u64>); 9] {
    [
        ("tokens_per_minute", limits.tokens_per_minute),
        ("input_tokens_per_minute", limits.input_tokens_per_minute),
        ("output_tokens_per_minute", limits.output_tokens_per_minute),
        ("burst_tokens", limits.burst_tokens),
        ("burst_input_tokens", limits.burst_input_tokens),
        ("burst_output_tokens", limits.burst_output_tokens),
        ("requests_per_minute", limits.requests_per_minute),
        ("burst_requests", limits.burst_requests),
        ("max_inflight", limits.max_inflight),
    ]
}

/// A number with its thousands apart: 1,700,000.
#[must_use]
pub fn grouped(number: impl Into<u128>) -> String {
    let digits = number.into().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
