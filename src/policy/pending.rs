//! What a policy asks for that this version reads and checks but does not enforce yet. A limit that somebody believes in and nobody
//! keeps is worse than none, so `check` and the start of a node say it.

use super::Policy;

/// The settings of `policy` that have no effect yet, each with what that means.
#[must_use]
pub fn not_yet_enforced(policy: &Policy) -> Vec<&'static str> {
    let tenants = &policy.tenants;
    let budgets = tenants.iter().any(|tenant| !policy.budgets_of(tenant).is_empty());
    let asked = [
        (budgets, "budget: no period is capped; only rates are"),
        (!policy.pools.is_empty(), "pools: the sum over all tenants is not held below a pool's guard rate"),
        (
            tenants.iter().any(|tenant| tenant.users.is_some()),
            "users: a tenant's users share its limits without limits of their own",
        ),
        (
            tenants.iter().any(|tenant| !tenant.windows.is_empty()),
            "windows: limits do not change with the time of day",
        ),
        (policy.anonymous.is_some(), "anonymous: a request without a key is refused"),
        (
            policy.models.values().any(|model| !model.fallbacks.is_empty()),
            "fallbacks: a request stays with its model's provider",
        ),
        (!policy.tools.is_empty(), "tools: calls to tools are not limited"),
        (policy.alerts.is_some(), "alerts: no webhook is called"),
        (
            policy.routes.iter().any(|route| route.cost_tokens.is_some()),
            "routes with cost_tokens: only the built-in routes are served",
        ),
    ];
    asked.into_iter().filter_map(|(asked, what)| asked.then_some(what)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_nobody_keeps_is_said() {
        let text = "version: 1\nproviders: { p: { dialect: openai, base_url: 'http://127.0.0.1:1' } }\npools: {}\nmodels: {}\n\
                    tiers: { t: { tokens_per_minute: 10, budget: { period: monthly, tokens: 100 } } }\n\
                    tenants: [ { id: acme, tier: t } ]\n";
        let policy = crate::policy::parse(text, "t").unwrap();
        let said = not_yet_enforced(&policy);
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("budget:"));
    }
}
