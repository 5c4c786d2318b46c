//! What a policy asks for that this version reads and checks but does not enforce yet. A limit that somebody believes in and nobody
//! keeps is worse than none, so `check` and the start of a node say it.

use super::Policy;

/// The settings of `policy` that have no effect yet, each with what that means.
#[must_use]
pub fn not_yet_enforced(policy: &Policy) -> Vec<&'static str> {
    let tenants = &policy.tenants;
    let weighs = |weight: Option<u64>| weight.is_some_and(|weight| weight > 1);
    let weighted = tenants.iter().any(|tenant| weighs(tenant.weight))
        || policy.tiers.values().any(|tier| weighs(tier.weight));
    let asked = [
        (
            tenants.iter().any(|tenant| policy.floor_of(tenant) > 0),
            "floor: no tenant's rate is protected while a pool is scarce",
        ),
        (
            weighted,
            "weight: what is scarce is divided among nodes by what they want, not among tenants by weight",
        ),
        (
            tenants.iter().any(|tenant| !tenant.windows.is_empty()),
            "windows: limits do not change with the time of day",
        ),
        (
            policy.models.values().any(|model| !model.fallbacks.is_empty()),
            "fallbacks: a request stays with its model's provider",
        ),
        (!policy.tools.is_empty(), "tools: calls to tools are not limited"),
    ];
    asked.into_iter().filter_map(|(asked, what)| asked.then_some(what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_nobody_keeps_is_said() {
        let text = "version: 1\nproviders: { p: { dialect: openai, base_url: 'http://127.0.0.1:1' } }\npools: {}\nmodels: {}\n\
                    tools: { search: { rate: { calls_per_minute: 10 }, callers: [ { id: acme, weight: 1 } ] } }\n\
                    tiers: { t: { tokens_per_minute: 10, budget: { period: monthly, tokens: 100 } } }\n\
                    tenants: [ { id: acme, tier: t } ]\n";
        let policy = crate::policy::parse(text, "t").unwrap();
        let said = not_yet_enforced(&policy);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("tools:"), "a budget is kept");
    }
}
