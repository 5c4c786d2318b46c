//! How the parts of a document fit together: names that refer, names that collide, sums that must fit.
//!
//! Every check walks the whole policy and reports where each problem stands. Placeholders of fields that could not be read are
//! empty names, and are passed over: their error was told already.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::route::{Endpoint, Kept};

use super::arithmetic::{self, FLOORS_LINE};
use super::document::NO_HASH;
use super::identity;
use super::problem::{Path, Report, suggestion};
use super::types::{
    ANONYMOUS, Anonymous, Budget, BudgetAmount, Dialect, EnforcementMode, FloorMode, KeyHash, LimitSettings,
    Limits, Model, ModelPattern, OnExhausted, Policy, Pool, Rate, Route, Tenant, Timeouts, Window,
};

/// Checks how a policy's parts fit together.
pub(super) fn check(policy: &Policy, report: &Report<'_>) {
    let check = Check { policy, report };
    let root = Path::root();
    check.providers(&root.field("providers"));
    check.pools(&root.field("pools"));
    check.models(&root.field("models"));
    check.tiers(&root);
    check.tenants(&root.field("tenants"));
    check.anonymous(&root.field("anonymous"));
    identity::check(policy, report, &root.field("identity"));
    check.routes(&root.field("routes"));
    check.tools(&root.field("tools"));
    check.price_book(&root.field("price_book"));
    check.enforcement(&root.field("enforcement"));
    // Sums of placeholders would say nothing.
    if !report.has_errors() {
        check.sums(&root.field("pools"));
    }
}

struct Check<'a> {
    policy: &'a Policy,
    report: &'a Report<'a>,
}

impl Check<'_> {
    // ---- what serves ----------------------------------------------------------------------------------------------------

    fn providers(&self, at: &Path) {
        for (name, provider) in &self.policy.providers {
            let at = at.field(name);
            if provider.base_url.starts_with("http://") && !is_loopback(&provider.base_url) {
                self.report.warn(
                    &at.field("base_url"),
                    "prompts and the provider's key travel unencrypted",
                    "write https://, unless the network between is yours",
                );
            }
            if provider.azure_api_version.is_some() && provider.dialect != Dialect::OpenAi {
                let message =
                    format!("Azure's API is OpenAI's, and this provider speaks {}", provider.dialect);
                self.report.error(
                    &at.field("azure_api_version"),
                    message,
                    "remove it, or say `dialect: openai`",
                );
            }
            if provider.timeouts.total > Timeouts::LONGEST {
                self.report.error(
                    &at.field("timeouts").field("total"),
                    "`total` is longer than an hour",
                    "write 1h or less",
                );
            }
            if provider.timeouts.first_byte > provider.timeouts.total {
                self.report.warn(
                    &at.field("timeouts"),
                    "`first_byte` is longer than `total`, which ends first",
                    "",
                );
            }
        }
    }

    fn pools(&self, at: &Path) {
        for (name, pool) in &self.policy.pools {
            let at = at.field(name);
            self.refers(&at.field("provider"), "provider", &pool.provider, &self.policy.providers);
            let handed_out = pool.guard.parts_per_million() + pool.reserve.parts_per_million();
            if handed_out > 1_000_000 {
                self.report.error(
                    &at.field("guard"),
                    "`guard` and `reserve` add up to more than 1",
                    "lower one of them",
                );
            } else if pool.burst_tokens == 0 {
                self.report.error(
                    &at.field("guard"),
                    "`guard` and `reserve` leave no burst: nothing could ever be admitted",
                    "lower one of them, or set `burst_tokens`",
                );
            }
            self.overflow(&at.field("overflow"), name, pool);
        }
    }

    fn overflow(&self, at: &Path, own_name: &str, pool: &Pool) {
        for (index, target) in pool.overflow.iter().enumerate() {
            let at = at.index(index);
            if target == own_name {
                self.report.error(&at, "a pool cannot overflow into itself", "name another pool");
            } else if pool.overflow[..index].contains(target) {
                self.report.error(&at, format!("`{target}` is here twice"), "keep one of the two");
            } else if self.refers(&at, "pool", target, &self.policy.pools) {
                let other =
                    self.policy.pools.get(target).and_then(|pool| self.dialect_of_provider(&pool.provider));
                self.same_dialect(&at, target, other, self.dialect_of_provider(&pool.provider));
            }
        }
    }

    fn models(&self, at: &Path) {
        let mut names: HashMap<&str, &str> =
            self.policy.models.keys().map(|name| (name.as_str(), "")).collect();
        for (name, model) in &self.policy.models {
            let at = at.field(name);
            self.refers(&at.field("provider"), "provider", &model.provider, &self.policy.providers);
            if self.refers(&at.field("pool"), "pool", &model.pool, &self.policy.pools) {
                self.pool_is_of_provider(&at.field("pool"), model);
            }
            for (index, alias) in model.aliases.iter().enumerate() {
                if let Some(owner) = names.insert(alias, name) {
                    let owner = if owner.is_empty() { "a model" } else { owner };
                    self.report.error(
                        &at.field("aliases").index(index),
                        format!("`{alias}` is already a name of {owner}"),
                        "a name leads to one model; remove one of the two",
                    );
                }
            }
            if model.max_output_tokens.is_some_and(|most| model.default_output_tokens > most) {
                self.report.error(
                    &at.field("default_output_tokens"),
                    "is more than `max_output_tokens`",
                    "a request that names no ceiling could never be admitted; lower it",
                );
            }
            self.fallbacks(&at.field("fallbacks"), model);
        }
    }

    fn pool_is_of_provider(&self, at: &Path, model: &Model) {
        let pool_provider = self.policy.pools.get(&model.pool).map_or("", |pool| pool.provider.as_str());
        if !pool_provider.is_empty() && !model.provider.is_empty() && pool_provider != model.provider {
            let message =
                format!("`{}` is an account of `{pool_provider}`, not of `{}`", model.pool, model.provider);
            self.report.error(at, message, "a model draws from a pool of its own provider");
        }
    }

    fn fallbacks(&self, at: &Path, model: &Model) {
        for (index, target) in model.fallbacks.iter().enumerate() {
            let at = at.index(index);
            if *target == model.name {
                self.report.error(&at, "a model cannot fall back to itself", "name another model");
            } else if model.fallbacks[..index].contains(target) {
                self.report.error(&at, format!("`{target}` is here twice"), "keep one of the two");
            } else if self.names_model(&at, target) {
                self.same_dialect(
                    &at,
                    target,
                    self.dialect_of_model(target),
                    self.dialect_of_model(&model.name),
                );
            }
        }
    }

    // ---- who asks -------------------------------------------------------------------------------------------------------

    fn tiers(&self, root: &Path) {
        if let Some(default) = &self.policy.default_tier {
            self.refers(&root.field("default_tier"), "tier", default, &self.policy.tiers);
        }
        for (name, tier) in &self.policy.tiers {
            let at = root.field("tiers").field(name);
            self.bursts_have_rates(&at, &tier.limits);
            self.budgets(&at.field("budget"), &tier.budgets, |_| true);
            if let Some(users) = &tier.users {
                self.subdivides(&at.field("users"), &users.limits, &tier.limits.resolve());
            }
        }
    }

    fn tenants(&self, at: &Path) {
        let mut ids = HashSet::new();
        let mut hashes = HashMap::new();
        for (index, tenant) in self.policy.tenants.iter().enumerate() {
            let at = at.index(index);
            if !tenant.id.is_empty() && !ids.insert(tenant.id.as_str()) {
                let message = format!("a tenant named `{}` is already here", tenant.id);
                self.report.error(&at.field("id"), message, "ids are unique; merge the two, or rename one");
            }
            self.tier_of(&at, tenant);
            let limits = self.policy.effective_limits(tenant);
            if limits.tokens.is_none() && limits.input_tokens.is_none() && limits.output_tokens.is_none() {
                self.report.warn(
                    &at,
                    format!("`{}` has no token limit", tenant.id),
                    "set one in its tier or here",
                );
            }
            self.bursts_have_rates(&at, &self.policy.settings_of(tenant));
            self.budgets(&at.field("budget"), &tenant.budgets, |model| tenant.allows_model(model));
            self.allow_models(&at.field("allow_models"), tenant.allow_models.as_deref());
            self.subdivisions(&at, tenant, &limits);
            self.windows(&at.field("windows"), &tenant.windows);
            for pool in tenant.pool_shares.keys() {
                self.refers(&at.field("pool_shares").key(pool), "pool", pool, &self.policy.pools);
            }
            self.keys(&at.field("keys"), tenant, &limits, &mut hashes);
        }
    }

    fn tier_of(&self, at: &Path, tenant: &Tenant) {
        if tenant.tier.is_empty() {
            if self.policy.default_tier.is_none() && !self.report.has_value(&at.field("tier")) {
                self.report.error(at, "names no tier", "add `tier:`, or a `default_tier:` for the document");
            }
        } else if self.report.has_value(&at.field("tier")) {
            self.refers(&at.field("tier"), "tier", &tenant.tier, &self.policy.tiers);
        }
    }

    fn subdivisions(&self, at: &Path, tenant: &Tenant, whole: &Limits) {
        let mut patterns = Vec::new();
        for (index, rule) in tenant.models.iter().enumerate() {
            let at = at.field("models").index(index);
            match &rule.pattern {
                ModelPattern::Exact(name) => {
                    self.names_model(&at.field("exact"), name);
                }
                ModelPattern::Prefix(prefix) if prefix.is_empty() => {}
                ModelPattern::Prefix(prefix)
                    if !self.policy.models.keys().any(|name| name.starts_with(prefix)) =>
                {
                    self.report.warn(&at.field("prefix"), format!("no model begins with `{prefix}`"), "");
                }
                ModelPattern::Prefix(_) => {}
            }
            if patterns.contains(&&rule.pattern) {
                self.report.error(
                    &at,
                    "another rule binds the same models",
                    "at most one rule holds; keep one",
                );
            }
            patterns.push(&rule.pattern);
            self.subdivides(&at, &rule.limits, whole);
        }
        if let Some(users) = &tenant.users {
            self.subdivides(&at.field("users"), &users.limits, whole);
        }
        let mut ids = HashSet::new();
        for (index, project) in tenant.projects.iter().enumerate() {
            let at = at.field("projects").index(index);
            if !project.id.is_empty() && !ids.insert(project.id.as_str()) {
                let message = format!("a project named `{}` is already here", project.id);
                self.report.error(&at.field("id"), message, "ids are unique within a tenant; rename one");
            }
            let check = if project.budgets.is_empty() { Self::subdivides } else { Self::subdivides_quietly };
            check(self, &at, &project.limits, whole);
            self.budgets(&at.field("budget"), &project.budgets, |model| tenant.allows_model(model));
        }
    }

    fn keys(&self, at: &Path, tenant: &Tenant, whole: &Limits, hashes: &mut HashMap<KeyHash, String>) {
        let mut labels = HashSet::new();
        for (index, key) in tenant.keys.iter().enumerate() {
            let at = at.index(index);
            if !key.label.is_empty() && !labels.insert(key.label.as_str()) {
                let message = format!("a key labelled `{}` is already here", key.label);
                self.report.error(
                    &at.field("label"),
                    message,
                    "labels are unique within a tenant; rename one",
                );
            }
            if key.hash != NO_HASH
                && let Some(first) = hashes.insert(key.hash, format!("{} of {}", key.label, tenant.id))
            {
                let message = format!("this key is already `{first}`");
                self.report.error(
                    &at.field("hash"),
                    message,
                    "a key leads to one tenant; make another with `tollgate keys new`",
                );
            }
            self.budgets(&at.field("budget"), &key.budgets, |model| tenant.allows_model(model));
            if let Some(project) = &key.project
                && !tenant.projects.iter().any(|known| known.id == *project)
            {
                self.unknown(
                    &at.field("project"),
                    "project",
                    project,
                    tenant.projects.iter().map(|p| p.id.as_str()),
                );
            }
            self.subdivides_quietly(&at, &key.limits, whole);
        }
    }

    fn windows(&self, at: &Path, windows: &[Window]) {
        for (index, window) in windows.iter().enumerate() {
            if window.limits.is_empty() {
                self.report.warn(&at.index(index), "changes no limit", "");
            }
            let overlapped = windows[..index].iter().position(|earlier| {
                earlier.zone == window.zone
                    && earlier.days.iter().any(|day| window.days.contains(day))
                    && earlier.from_minute < window.to_minute
                    && window.from_minute < earlier.to_minute
            });
            if let Some(earlier) = overlapped {
                let message =
                    format!("overlaps windows[{earlier}], which comes first and holds where both do");
                self.report.warn(&at.index(index), message, "");
            }
        }
    }

    fn anonymous(&self, at: &Path) {
        let Some(Anonymous { limits, per_ip, budgets, allow_models }) = &self.policy.anonymous else {
            return;
        };
        if limits.tokens_per_minute.is_none() || budgets.is_empty() {
            self.report.warn(
                at,
                "callers without a credential have no token limit or no budget",
                "set `tokens_per_minute` and `budget`: what you are willing to lose",
            );
        }
        if self.policy.tenants.iter().any(|tenant| tenant.id == ANONYMOUS) {
            let message = "a tenant has the name by which callers without a credential are counted";
            self.report.error(at, message, format!("give the tenant `{ANONYMOUS}` another id"));
        }
        if per_ip.max_inflight.is_some()
            || per_ip.input_tokens_per_minute.or(per_ip.output_tokens_per_minute).is_some()
        {
            let message = "only `tokens_per_minute` and `requests_per_minute` hold per address";
            self.report.error(&at.field("per_ip"), message, "remove the others");
        }
        self.bursts_have_rates(at, limits);
        self.subdivides_quietly(&at.field("per_ip"), per_ip, &limits.resolve());
        self.budgets(&at.field("budget"), budgets, |model| {
            allow_models.as_ref().is_none_or(|allowed| allowed.iter().any(|name| name == model))
        });
        self.allow_models(&at.field("allow_models"), allow_models.as_deref());
    }

    fn allow_models(&self, at: &Path, allowed: Option<&[String]>) {
        for (index, name) in allowed.unwrap_or_default().iter().enumerate() {
            self.names_model(&at.index(index), name);
        }
    }

    // ---- budgets --------------------------------------------------------------------------------------------------------

    fn budgets(&self, at: &Path, budgets: &[Budget], may_name: impl Fn(&str) -> bool) {
        let listed = self.report.is_list(at);
        let mut kinds = Vec::new();
        for (index, budget) in budgets.iter().enumerate() {
            let at = if listed { at.index(index) } else { at.clone() };
            let kind = (budget.period, matches!(budget.amount, BudgetAmount::Usd(_)));
            if kinds.contains(&kind) {
                self.report.error(
                    &at,
                    "another budget caps the same period in the same unit",
                    "keep the smaller one",
                );
            }
            kinds.push(kind);
            if let OnExhausted::Degrade { to, .. } = &budget.on_exhausted
                && self.names_model(&at.field("degrade_to"), to)
            {
                self.degrades(&at.field("degrade_to"), to, &may_name);
            }
            if kind.1 {
                self.priced(&at, &may_name);
            }
        }
    }

    /// Bodies are not translated, so only requests of the target's dialect can be degraded to it.
    fn degrades(&self, at: &Path, target: &str, may_name: impl Fn(&str) -> bool) {
        let Some(dialect) = self.dialect_of_model(target) else { return };
        let named: Vec<Dialect> = self
            .policy
            .models
            .keys()
            .filter(|name| may_name(name))
            .filter_map(|name| self.dialect_of_model(name))
            .collect();
        if named.iter().all(|other| *other != dialect) {
            let message = format!("`{target}` speaks {dialect}, and no model that could be degraded does");
            self.report.error(at, message, "name a model of the same dialect; bodies are not translated");
        } else if named.iter().any(|other| *other != dialect) {
            let message =
                format!("only {dialect} requests can be degraded to `{target}`; others are refused");
            self.report.warn(at, message, "");
        }
    }

    fn priced(&self, at: &Path, may_name: impl Fn(&str) -> bool) {
        let unpriced: Vec<&str> = self
            .policy
            .models
            .keys()
            .map(String::as_str)
            .filter(|name| {
                may_name(name) && !self.policy.price_book.iter().any(|list| list.models.contains_key(*name))
            })
            .collect();
        if !unpriced.is_empty() {
            let message = format!(
                "a budget in dollars counts nothing for models without a price: {}",
                unpriced.join(", ")
            );
            self.report.warn(at, message, "add them to `price_book`");
        }
    }

    // ---- routes, tools, prices ------------------------------------------------------------------------------------------

    fn routes(&self, at: &Path) {
        let mut paths = HashSet::new();
        for (index, route) in self.policy.routes.iter().enumerate() {
            let at = at.index(index);
            if !route.path.is_empty() && !paths.insert(route.path.as_str()) {
                self.report.error(
                    &at.field("path"),
                    format!("`{}` is already here", route.path),
                    "merge the two",
                );
            }
            if let Some(provider) = &route.provider {
                self.refers(&at.field("provider"), "provider", provider, &self.policy.providers);
            }
            self.route(&at, route);
        }
    }

    fn route(&self, at: &Path, route: &Route) {
        let built_in = Endpoint::ALL.into_iter().any(|endpoint| endpoint.path() == route.path);
        let stateful_path = Kept::of_route(&route.path).is_some();
        if route.stateful && route.stateless {
            let message = "is `stateful` and `stateless` at once";
            self.report.error(&at.field("stateful"), message, "remove one of the two");
        }
        if route.stateful && route.path != Endpoint::Responses.path() {
            let message = format!("`{}` keeps nothing, or is stateful by being named", route.path);
            self.report.error(&at.field("stateful"), message, "only /v1/responses can be made stateful");
        }
        if built_in && route.cost_tokens.is_some() {
            let message = "has no effect: the body of this route is read and counted";
            self.report.error(&at.field("cost_tokens"), message, "remove it");
        }
        if built_in || route.path.is_empty() {
            return;
        }
        if route.provider.is_none() {
            let message =
                format!("`{}` is not a route of Tollgate's own, and goes to no provider", route.path);
            self.report.error(&at.field("path"), message, "name the `provider` that serves it");
        } else if !stateful_path && route.cost_tokens.is_none() {
            let message = "costs no tokens: only requests and requests in flight are limited";
            self.report.warn(at, message, "say what one request costs with `cost_tokens`, or 0");
        }
    }

    fn tools(&self, at: &Path) {
        for (name, tool) in &self.policy.tools {
            let at = at.field(name);
            let mut ids = HashSet::new();
            for (index, caller) in tool.callers.iter().enumerate() {
                if !caller.id.is_empty() && !ids.insert(caller.id.as_str()) {
                    let message = format!("a caller named `{}` is already here", caller.id);
                    self.report.error(
                        &at.field("callers").index(index).field("id"),
                        message,
                        "merge the two",
                    );
                }
            }
            let floors: u128 = tool.callers.iter().map(|caller| u128::from(caller.floor)).sum();
            if floors > u128::from(tool.calls.per_minute) {
                self.report.error(
                    &at.field("callers"),
                    format!(
                        "the floors add up to {floors} calls per minute, the rate is {}",
                        tool.calls.per_minute
                    ),
                    "lower floors until they fit: a floor is a promise",
                );
            }
        }
    }

    fn price_book(&self, at: &Path) {
        let mut days = HashSet::new();
        for (index, list) in self.policy.price_book.iter().enumerate() {
            let at = at.index(index);
            if list.effective != jiff::civil::Date::ZERO && !days.insert(list.effective) {
                let message = format!("another list takes effect on {}", list.effective);
                self.report.error(&at.field("effective"), message, "merge the two");
            }
            for name in list.models.keys().filter(|name| !self.policy.models.contains_key(*name)) {
                let hint = match self.policy.aliases.get(name) {
                    Some(model) => format!("`{name}` is an alias; write `{model}`"),
                    None => suggestion(name, self.policy.models.keys().map(String::as_str)),
                };
                self.report.warn(&at.field("models").key(name), format!("there is no model `{name}`"), hint);
            }
        }
    }

    fn enforcement(&self, at: &Path) {
        if self.policy.enforcement == EnforcementMode::EnforceNewTenants {
            let shadows = self.policy.tenants.iter().filter(|tenant| tenant.enforcement.is_none()).count();
            self.report.warn(
                at,
                format!(
                    "{shadows} of {} tenants are in shadow: nothing is refused to them",
                    self.policy.tenants.len()
                ),
                "a tenant is enforced when its own entry says `enforcement: enforce`",
            );
        }
    }

    // ---- sums -----------------------------------------------------------------------------------------------------------

    fn sums(&self, at: &Path) {
        for (name, pool) in &self.policy.pools {
            let at = at.field(name);
            let sums = arithmetic::of_pool(self.policy, name, pool);
            let Some(guard) = sums.tokens_guard else { continue };
            let floors = sums.floors;
            let excess = floors.saturating_sub(u128::from(guard));
            let come_to = format!("the floors of its tenants add up to {floors} tokens per minute");
            match pool.floors {
                FloorMode::Guaranteed if excess > 0 => self.report.error(
                    &at.field("floors"),
                    format!("{come_to}, {excess} more than the guard rate of {guard}"),
                    "lower floors until they fit, or say `floors: best_effort`",
                ),
                FloorMode::Guaranteed if sums.floor_burst() >= u128::from(pool.burst_tokens) => self.report.error(
                    &at.field("floors"),
                    format!("{come_to}: their buckets hold {} tokens, the pool's burst is {}", sums.floor_burst(), pool.burst_tokens),
                    "raise `burst_tokens`, or lower floors",
                ),
                FloorMode::Guaranteed if floors > u128::from(FLOORS_LINE.of(guard)) => self.report.warn(
                    &at.field("floors"),
                    format!("{come_to}, more than {} of the guard rate of {guard}: little is left to share", FLOORS_LINE),
                    "",
                ),
                FloorMode::BestEffort if excess > 0 => self.report.warn(
                    &at,
                    format!("{come_to}, {excess} more than the guard rate of {guard}: not all of them can be kept at once"),
                    "that is what best_effort means; `floors: guaranteed` would refuse this policy",
                ),
                FloorMode::Guaranteed | FloorMode::BestEffort => {}
            }
            if sums.peaks_are_high() {
                let ceiling = sums.tokens_ceiling.unwrap_or(0);
                self.report.warn(
                    &at,
                    format!("windows commit {} tokens per minute at once, more than 0.80 of the ceiling of {ceiling}", sums.committed_peak),
                    "move a window, or ask the provider for more before it is needed",
                );
            }
        }
    }

    // ---- shared ---------------------------------------------------------------------------------------------------------

    /// Whether a name refers to something; reports it when not. An empty name is a placeholder, reported already.
    fn refers<T>(&self, at: &Path, kind: &str, name: &str, known: &BTreeMap<String, T>) -> bool {
        if !name.is_empty() && !known.contains_key(name) {
            self.unknown(at, kind, name, known.keys().map(String::as_str));
        }
        known.contains_key(name)
    }

    fn unknown<'n>(&self, at: &Path, kind: &str, name: &str, known: impl Iterator<Item = &'n str>) {
        let hint = if self.report.has_room() { suggestion(name, known) } else { String::new() };
        self.report.error(at, format!("there is no {kind} `{name}`"), hint);
    }

    fn names_model(&self, at: &Path, name: &str) -> bool {
        if let Some(model) = self.policy.aliases.get(name).filter(|_| !self.policy.models.contains_key(name))
        {
            self.report.error(
                at,
                format!("`{name}` is an alias"),
                format!("write the model's name, `{model}`"),
            );
            return false;
        }
        self.refers(at, "model", name, &self.policy.models)
    }

    fn dialect_of_provider(&self, provider: &str) -> Option<Dialect> {
        self.policy.providers.get(provider).map(|provider| provider.dialect)
    }

    fn dialect_of_model(&self, model: &str) -> Option<Dialect> {
        self.dialect_of_provider(&self.policy.models.get(model)?.provider)
    }

    fn same_dialect(&self, at: &Path, target: &str, theirs: Option<Dialect>, ours: Option<Dialect>) {
        if let Some((theirs, ours)) = theirs.zip(ours).filter(|(theirs, ours)| theirs != ours) {
            let message = format!("`{target}` speaks {theirs}, not {ours}");
            self.report.error(at, message, "name one of the same dialect; bodies are not translated");
        }
    }

    /// A burst without a rate is a capacity that is never refilled, or never used.
    fn bursts_have_rates(&self, at: &Path, limits: &LimitSettings) {
        let tokens =
            limits.tokens_per_minute.or(limits.input_tokens_per_minute).or(limits.output_tokens_per_minute);
        let pairs = [
            ("burst_tokens", limits.burst_tokens, tokens, "tokens_per_minute"),
            (
                "burst_input_tokens",
                limits.burst_input_tokens,
                limits.input_tokens_per_minute,
                "input_tokens_per_minute",
            ),
            (
                "burst_output_tokens",
                limits.burst_output_tokens,
                limits.output_tokens_per_minute,
                "output_tokens_per_minute",
            ),
            ("burst_requests", limits.burst_requests, limits.requests_per_minute, "requests_per_minute"),
        ];
        for (burst, capacity, rate, rate_name) in pairs {
            if capacity.is_some() && rate.is_none() {
                self.report.warn(&at.field(burst), format!("has no effect without `{rate_name}`"), "");
            }
        }
    }

    fn subdivides(&self, at: &Path, part: &LimitSettings, whole: &Limits) {
        if part.is_empty() {
            self.report.warn(at, "sets no limit", "");
        }
        self.subdivides_quietly(at, part, whole);
    }

    /// A part above the whole is allowed, since parts never add to it, but it is a limit that never refuses.
    fn subdivides_quietly(&self, at: &Path, part: &LimitSettings, whole: &Limits) {
        self.bursts_have_rates(at, part);
        let per_minute = |rate: Option<Rate>| rate.map(|rate| rate.per_minute);
        let pairs = [
            ("tokens_per_minute", part.tokens_per_minute, per_minute(whole.tokens)),
            (
                "input_tokens_per_minute",
                part.input_tokens_per_minute,
                per_minute(whole.input_tokens.or(whole.tokens)),
            ),
            (
                "output_tokens_per_minute",
                part.output_tokens_per_minute,
                per_minute(whole.output_tokens.or(whole.tokens)),
            ),
            ("requests_per_minute", part.requests_per_minute, per_minute(whole.requests)),
            ("max_inflight", part.max_inflight, whole.max_inflight),
        ];
        for (name, part, whole) in pairs {
            if let Some((part, whole)) = part.zip(whole).filter(|(part, whole)| part > whole) {
                let message = format!("{part} is more than the {whole} it is a part of, which refuses first");
                self.report.warn(&at.field(name), message, "a part subdivides and never adds");
            }
        }
    }
}

pub(super) fn is_loopback(base_url: &str) -> bool {
    let host =
        base_url.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned)).unwrap_or_default();
    host == "localhost"
        || host
            .trim_matches(['[', ']'])
            .parse::<std::net::IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}
