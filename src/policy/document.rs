//! The document's mappings: what may be written where, and what is meant where nothing is. Single values are `scalar`'s; how
//! they fit together is `validate`'s.
//!
//! One function per mapping of the document, in the order of the document. Each asks its [`Fields`] for every name it knows;
//! what is left over is refused. A field that cannot be read is reported and replaced by a placeholder.

use std::collections::BTreeMap;

use super::cursor::{Cursor, Fields};
use super::identity;
use super::scalar::{
    MAX_LONG_NAME, MAX_NAME, amount, checked_name, class, duration, enforcement_mode, forbidden_fields,
    key_hash, long_name, minute_of_day, money, name, network, on_disconnect, on_unavailable, route_path,
    secret_reference, share, share_or_nothing, url, user_source, weight, zone,
};
use super::types::{
    Alerts, Anonymous, Budget, BudgetAmount, Ceiling, Dialect, Enforcement, EnforcementMode, Floor,
    FloorMode, Key, KeyHash, LimitSettings, LongContext, MAX_AMOUNT, Model, ModelPattern, ModelRule,
    OnExhausted, OnUnavailable, OutputEstimate, Period, Policy, Pool, Price, PriceList, Project, Provider,
    Rate, RefundCredit, Route, Tenant, Tier, Timeouts, Tokenizer, Tool, ToolCaller, UserSource, Users,
    Weekday, Window,
};
use super::units::{self, MicroDollars, Ratio};

/// The placeholder of a key whose hash could not be read.
pub(super) const NO_HASH: KeyHash = KeyHash([0; 32]);
/// The one format this release reads.
const VERSION: u64 = 1;
/// The most elements of the lists that are compared pair by pair or walked per request.
pub(super) const MAX_ALTERNATIVES: usize = 16;
const MAX_WINDOWS: usize = 128;
pub(super) const MAX_RULES: usize = 1_024;
/// Output tokens reserved for a model that names neither a default nor a maximum: common models' own default, erring high.
const DEFAULT_OUTPUT_TOKENS: u64 = 4_096;
/// Bytes per token where nothing is known: English prose has about 4, code and other languages about 3; lower errs high.
const DEFAULT_BYTES_PER_TOKEN_MILLI: u64 = 3_000;

/// Reads the whole document. Call `validate` on what comes back, and use it only if nothing was reported.
pub(super) fn policy(document: Cursor<'_>) -> Option<Policy> {
    let mut fields = document.fields()?;
    let version = fields.required("version", |at| {
        let version = at.count(0..=u64::from(u32::MAX))?;
        if version != VERSION {
            at.error(
                format!("version {version} is not known"),
                format!("this release reads version {VERSION}"),
            );
        }
        Some(version)
    });
    let models = fields.required("models", |at| at.map(model)).unwrap_or_default();
    let default_tier = fields.optional("default_tier", |at| name(&at));
    let mut tenants = fields.required("tenants", |at| at.list(tenant)).unwrap_or_default();
    for tenant in tenants.iter_mut().filter(|tenant| tenant.tier.is_empty()) {
        tenant.tier = default_tier.clone().unwrap_or_default();
    }
    let policy = Policy {
        version: version.unwrap_or(VERSION),
        providers: fields.required("providers", |at| at.map(provider)).unwrap_or_default(),
        pools: fields.required("pools", |at| at.map(pool)).unwrap_or_default(),
        aliases: aliases(&models),
        models,
        tiers: fields.required("tiers", |at| at.map(tier)).unwrap_or_default(),
        default_tier,
        tenants,
        identity: fields
            .optional("identity", |at| at.short_list(MAX_ALTERNATIVES, identity::issuer))
            .unwrap_or_default(),
        anonymous: fields.optional("anonymous", anonymous),
        routes: fields.optional("routes", |at| at.list(route)).unwrap_or_default(),
        tools: fields.optional("tools", |at| at.map(tool)).unwrap_or_default(),
        price_book: fields.optional("price_book", |at| at.list(price_list)).unwrap_or_default(),
        alerts: fields.optional("alerts", alerts),
        enforcement: fields.optional("enforcement", enforcement_mode).unwrap_or(EnforcementMode::Enforce),
        on_unavailable: fields.optional("on_unavailable", on_unavailable).unwrap_or(OnUnavailable::Refuse),
        on_disconnect: fields.optional("on_disconnect", on_disconnect),
        trusted_proxies: fields.optional("trusted_proxies", |at| at.list(network)).unwrap_or_default(),
        warnings: Vec::new(),
    };
    fields.finish();
    Some(policy)
}

fn aliases(models: &BTreeMap<String, Model>) -> BTreeMap<String, String> {
    models
        .values()
        .flat_map(|model| model.aliases.iter().map(|alias| (alias.clone(), model.name.clone())))
        .collect()
}

// ---- providers and pools ------------------------------------------------------------------------------------------------

fn provider(own_name: &str, at: Cursor<'_>) -> Option<Provider> {
    checked_name(own_name, MAX_NAME, &at);
    let mut fields = at.fields()?;
    let dialect = fields.required("dialect", |at| {
        at.choice(&[
            ("openai", Dialect::OpenAi),
            ("anthropic", Dialect::Anthropic),
            ("gemini", Dialect::Gemini),
        ])
    });
    let provider = Provider {
        dialect: dialect.unwrap_or(Dialect::OpenAi),
        base_url: fields.required("base_url", url).unwrap_or_default(),
        azure_api_version: fields.optional("azure_api_version", |at| name(&at)),
        api_key: fields.optional("api_key", secret_reference),
        include_usage: fields.optional("include_usage", |at| at.truth()).unwrap_or(true),
        timeouts: fields.optional("timeouts", timeouts).unwrap_or_default(),
        // Official SDKs make three attempts as well; each attempt is charged to the pool.
        max_attempts: fields
            .optional("max_attempts", |at| at.count(1..=3))
            .and_then(|attempts| u32::try_from(attempts).ok())
            .unwrap_or(3),
    };
    fields.finish();
    Some(provider)
}

fn timeouts(at: Cursor<'_>) -> Option<Timeouts> {
    let default = Timeouts::default();
    let mut fields = at.fields()?;
    let timeouts = Timeouts {
        connect: fields.optional("connect", duration).unwrap_or(default.connect),
        first_byte: fields.optional("first_byte", duration).unwrap_or(default.first_byte),
        idle: fields.optional("idle", duration).unwrap_or(default.idle),
        total: fields.optional("total", duration).unwrap_or(default.total),
    };
    fields.finish();
    Some(timeouts)
}

fn pool(own_name: &str, at: Cursor<'_>) -> Option<Pool> {
    checked_name(own_name, MAX_NAME, &at);
    let mut fields = at.fields()?;
    let ceiling = fields.required("ceiling", ceiling).unwrap_or_default();
    // 85 % handed out, 5 % for floors, and the remaining tenth is what may arrive at once.
    let guard = fields.optional("guard", share).unwrap_or(Ratio::from_parts_per_million(850_000));
    let reserve =
        fields.optional("reserve", share_or_nothing).unwrap_or(Ratio::from_parts_per_million(50_000));
    let left = 1_000_000_u32.saturating_sub(guard.parts_per_million() + reserve.parts_per_million());
    let default_burst =
        Ratio::from_parts_per_million(left).of(ceiling.all_tokens_per_minute().unwrap_or(MAX_AMOUNT));
    let pool = Pool {
        provider: fields.required("provider", |at| name(&at)).unwrap_or_default(),
        ceiling,
        guard,
        reserve,
        burst_tokens: fields.optional("burst_tokens", amount).unwrap_or(default_burst),
        refund_credit: fields
            .optional("refund_credit", |at| {
                at.choice(&[("full", RefundCredit::Full), ("none", RefundCredit::None)])
            })
            .unwrap_or(RefundCredit::Full),
        floors: fields
            .optional("floors", |at| {
                at.choice(&[("guaranteed", FloorMode::Guaranteed), ("best_effort", FloorMode::BestEffort)])
            })
            .unwrap_or(FloorMode::BestEffort),
        overflow: fields
            .optional("overflow", |at| at.short_list(MAX_ALTERNATIVES, |at| name(&at)))
            .unwrap_or_default(),
    };
    fields.finish();
    Some(pool)
}

fn ceiling(at: Cursor<'_>) -> Option<Ceiling> {
    let mut fields = at.fields()?;
    let ceiling = Ceiling {
        tokens_per_minute: fields.optional("tokens_per_minute", amount),
        input_tokens_per_minute: fields.optional("input_tokens_per_minute", amount),
        output_tokens_per_minute: fields.optional("output_tokens_per_minute", amount),
        requests_per_minute: fields.optional("requests_per_minute", amount),
    };
    if ceiling == Ceiling::default() && fields.is_empty() {
        fields
            .here()
            .error("names no limit at all", "add `tokens_per_minute`, as the provider's console states it");
    }
    fields.finish();
    Some(ceiling)
}

// ---- models -------------------------------------------------------------------------------------------------------------

fn model(own_name: &str, at: Cursor<'_>) -> Option<Model> {
    checked_name(own_name, MAX_LONG_NAME, &at);
    let mut fields = at.fields()?;
    let max_output_tokens = fields.optional("max_output_tokens", amount);
    let upstream_model =
        fields.optional("upstream_model", |at| long_name(&at)).unwrap_or_else(|| own_name.to_owned());
    let context_tokens = fields.optional("context_tokens", |at| {
        let context = amount(at.clone())?;
        if max_output_tokens.is_some_and(|most| most > context) {
            at.error("is less than `max_output_tokens`", "what a model writes lies in its context as well");
        }
        Some(context)
    });
    let model = Model {
        name: own_name.to_owned(),
        provider: fields.required("provider", |at| name(&at)).unwrap_or_default(),
        pool: fields.required("pool", |at| name(&at)).unwrap_or_default(),
        aliases: fields.optional("aliases", |at| at.list(|at| long_name(&at))).unwrap_or_default(),
        default_output_tokens: fields
            .optional("default_output_tokens", amount)
            .or(max_output_tokens)
            .unwrap_or(DEFAULT_OUTPUT_TOKENS),
        max_output_tokens,
        context_tokens,
        forbid_fields: fields.optional("forbid_fields", forbidden_fields).unwrap_or_default(),
        fallbacks: fields
            .optional("fallbacks", |at| at.short_list(MAX_ALTERNATIVES, |at| long_name(&at)))
            .unwrap_or_default(),
        stateless: fields.optional("stateless", |at| at.truth()).unwrap_or(false),
        tokenizer: tokenizer(&mut fields, &upstream_model),
        upstream_model,
    };
    fields.finish();
    Some(model)
}

fn tokenizer(fields: &mut Fields<'_>, upstream_model: &str) -> Tokenizer {
    let ratio = fields.optional("bytes_per_token", |at| {
        let ratio = at.parse(units::parse_milli, "write bytes per token as a decimal, such as 3.5")?;
        if !(250..=100_000).contains(&ratio) {
            at.error("is not between 0.25 and 100", "English prose has about 4 bytes per token");
        }
        Some(ratio)
    });
    let bytes = Tokenizer::Bytes { bytes_per_token_milli: ratio.unwrap_or(DEFAULT_BYTES_PER_TOKEN_MILLI) };
    let written = fields.optional("tokenizer", |at| {
        at.choice(&[("o200k", Tokenizer::O200k), ("cl100k", Tokenizer::Cl100k), ("bytes", bytes)])
    });
    match written {
        Some(tokenizer) if ratio.is_some() && tokenizer != bytes => {
            fields.here().error("`bytes_per_token` needs `tokenizer: bytes`", "remove one of the two");
            tokenizer
        }
        Some(tokenizer) => tokenizer,
        None if ratio.is_some() => bytes,
        None => published_tokenizer(upstream_model).unwrap_or(bytes),
    }
}

/// The tokenizer of a model whose vendor publishes one, by the name the vendor uses (the table in openai/tiktoken's `model.py`).
fn published_tokenizer(upstream_model: &str) -> Option<Tokenizer> {
    const O200K: [&str; 8] = ["gpt-5", "gpt-4o", "gpt-4.1", "gpt-4.5", "chatgpt-4o", "o1", "o3", "o4-mini"];
    const CL100K: [&str; 3] = ["gpt-4", "gpt-3.5", "text-embedding-"];
    let begins_with = |prefixes: &[&str]| prefixes.iter().any(|prefix| upstream_model.starts_with(prefix));
    if begins_with(&O200K) {
        Some(Tokenizer::O200k)
    } else if begins_with(&CL100K) {
        Some(Tokenizer::Cl100k)
    } else {
        None
    }
}

// ---- limits, tiers, budgets ---------------------------------------------------------------------------------------------

fn limits(fields: &mut Fields<'_>) -> LimitSettings {
    LimitSettings {
        tokens_per_minute: fields.optional("tokens_per_minute", amount),
        input_tokens_per_minute: fields.optional("input_tokens_per_minute", amount),
        output_tokens_per_minute: fields.optional("output_tokens_per_minute", amount),
        burst_tokens: fields.optional("burst_tokens", amount),
        burst_input_tokens: fields.optional("burst_input_tokens", amount),
        burst_output_tokens: fields.optional("burst_output_tokens", amount),
        requests_per_minute: fields.optional("requests_per_minute", amount),
        burst_requests: fields.optional("burst_requests", amount),
        max_inflight: fields.optional("max_inflight", amount),
    }
}

fn limits_alone(at: Cursor<'_>) -> Option<LimitSettings> {
    let mut fields = at.fields()?;
    let limits = limits(&mut fields);
    fields.finish();
    Some(limits)
}

fn tier(own_name: &str, at: Cursor<'_>) -> Option<Tier> {
    checked_name(own_name, MAX_NAME, &at);
    let mut fields = at.fields()?;
    let tier = Tier {
        limits: limits(&mut fields),
        floor: floor(&mut fields),
        weight: fields.optional("weight", weight),
        budgets: fields.optional("budget", budgets).unwrap_or_default(),
        users: fields.optional("users", users),
        on_unavailable: fields.optional("on_unavailable", on_unavailable),
        on_disconnect: fields.optional("on_disconnect", on_disconnect),
    };
    fields.finish();
    Some(tier)
}

fn floor(fields: &mut Fields<'_>) -> Option<Floor> {
    let part = fields.optional("floor", share).map(Floor::Share);
    let absolute = fields.optional("floor_tokens_per_minute", amount).map(Floor::TokensPerMinute);
    if part.is_some() && absolute.is_some() {
        fields.here().error("has both `floor` and `floor_tokens_per_minute`", "keep one of the two");
    }
    part.or(absolute)
}

/// One budget, or a list of them.
fn budgets(at: Cursor<'_>) -> Option<Vec<Budget>> {
    if at.is_sequence() {
        at.short_list(MAX_ALTERNATIVES, budget)
    } else {
        budget(at).map(|budget| vec![budget])
    }
}

fn budget(at: Cursor<'_>) -> Option<Budget> {
    let mut fields = at.fields()?;
    let period = fields.required("period", |at| {
        at.choice(&[
            ("hourly", Period::Hourly),
            ("daily", Period::Daily),
            ("weekly", Period::Weekly),
            ("monthly", Period::Monthly),
        ])
    });
    let zone = fields.optional("zone", zone);
    let amount = budget_amount(&mut fields);
    // Two warnings before the end; `soft_thresholds: []` asks for none.
    let soft_thresholds = fields
        .optional("soft_thresholds", thresholds)
        .unwrap_or_else(|| [800_000, 950_000].map(Ratio::from_parts_per_million).to_vec());
    let on_exhausted = on_exhausted(&mut fields);
    fields.finish();
    Some(Budget {
        period: period.unwrap_or(Period::Monthly),
        zone: zone.unwrap_or_else(|| "UTC".to_owned()),
        amount,
        soft_thresholds,
        on_exhausted,
    })
}

fn budget_amount(fields: &mut Fields<'_>) -> BudgetAmount {
    let hint = "write `tokens: N` or `usd: N`; two caps on one period are two budgets";
    match (fields.has("tokens"), fields.has("usd")) {
        (true, true) => fields.here().error("has both `tokens` and `usd`", hint),
        (false, false) => fields.here().error("has no amount", hint),
        _ => {}
    }
    let tokens = fields.optional("tokens", amount).map(BudgetAmount::Tokens);
    let usd = fields.optional("usd", |at| {
        let money = money(&at)?;
        if money.0 == 0 || money.0 > MAX_AMOUNT {
            at.error("is not between 0.000001 and 1000000000 dollars", "write dollars, such as 400.00");
        }
        Some(BudgetAmount::Usd(money))
    });
    tokens.or(usd).unwrap_or(BudgetAmount::Tokens(1))
}

fn thresholds(at: Cursor<'_>) -> Option<Vec<Ratio>> {
    let thresholds = at.short_list(MAX_ALTERNATIVES, share)?;
    if !thresholds.is_sorted_by(|a, b| a < b) {
        at.error("is not ascending", "write each threshold once, the lowest first");
    }
    Some(thresholds)
}

fn on_exhausted(fields: &mut Fields<'_>) -> OnExhausted {
    #[derive(Clone, Copy, PartialEq)]
    enum Word {
        Refuse,
        Degrade,
        Queue,
    }
    let words = [("refuse", Word::Refuse), ("degrade", Word::Degrade), ("queue", Word::Queue)];
    let word = fields.optional("on_exhausted", |at| at.choice(&words)).unwrap_or(Word::Refuse);
    let to = fields.optional("degrade_to", |at| long_name(&at));
    let limit = fields.optional("degrade_limit", share);
    match (word, to) {
        (Word::Degrade, Some(to)) => OnExhausted::Degrade { to, limit },
        (Word::Degrade, None) => {
            if !fields.has("degrade_to") {
                fields.here().error(
                    "`on_exhausted: degrade` needs `degrade_to`",
                    "name a cheaper model of the same dialect",
                );
            }
            OnExhausted::Refuse
        }
        (word, to) => {
            if fields.has("on_exhausted") && (to.is_some() || limit.is_some()) {
                fields.here().error("`degrade_to` and `degrade_limit` need `on_exhausted: degrade`", "");
            } else if to.is_some() || limit.is_some() {
                fields
                    .here()
                    .error("`degrade_to` and `degrade_limit` need `on_exhausted: degrade`", "add it");
            }
            if word == Word::Queue { OnExhausted::Queue } else { OnExhausted::Refuse }
        }
    }
}

// ---- tenants ------------------------------------------------------------------------------------------------------------

fn tenant(at: Cursor<'_>) -> Option<Tenant> {
    let mut fields = at.fields()?;
    let tenant = Tenant {
        id: fields.required("id", |at| name(&at)).unwrap_or_default(),
        tier: fields.optional("tier", |at| name(&at)).unwrap_or_default(),
        limits: limits(&mut fields),
        floor: floor(&mut fields),
        weight: fields.optional("weight", weight),
        budgets: fields.optional("budget", budgets).unwrap_or_default(),
        models: fields.optional("models", |at| at.short_list(MAX_RULES, model_rule)).unwrap_or_default(),
        users: fields.optional("users", users),
        windows: fields.optional("windows", |at| at.short_list(MAX_WINDOWS, window)).unwrap_or_default(),
        pool_shares: fields.optional("pool_shares", |at| at.map(|_, at| share(at))).unwrap_or_default(),
        fallback_share: fields.optional("fallback_share", share),
        projects: fields.optional("projects", |at| at.short_list(MAX_RULES, project)).unwrap_or_default(),
        allow_models: fields.optional("allow_models", |at| at.short_list(MAX_RULES, |at| long_name(&at))),
        keys: fields.optional("keys", |at| at.list(key)).unwrap_or_default(),
        class: fields.optional("class", class),
        enforcement: fields.optional("enforcement", |at| {
            at.choice(&[("enforce", Enforcement::Enforce), ("shadow", Enforcement::Shadow)])
        }),
        on_unavailable: fields.optional("on_unavailable", on_unavailable),
        on_disconnect: fields.optional("on_disconnect", on_disconnect),
    };
    fields.finish();
    Some(tenant)
}

fn model_rule(at: Cursor<'_>) -> Option<ModelRule> {
    let mut fields = at.fields()?;
    let exact = fields.optional("exact", |at| long_name(&at)).map(ModelPattern::Exact);
    let prefix = fields.optional("prefix", |at| long_name(&at)).map(ModelPattern::Prefix);
    if fields.has("exact") == fields.has("prefix") {
        fields.here().error("needs one of `exact` and `prefix`", "`exact: MODEL` or `prefix: BEGINNING`");
    }
    let limits = limits(&mut fields);
    fields.finish();
    Some(ModelRule { pattern: exact.or(prefix).unwrap_or(ModelPattern::Prefix(String::new())), limits })
}

fn users(at: Cursor<'_>) -> Option<Users> {
    let mut fields = at.fields()?;
    let from = fields.required("from", user_source).unwrap_or(UserSource::Body(Vec::new()));
    let required = fields.optional("required", |at| at.truth()).unwrap_or(false);
    let limits = limits(&mut fields);
    fields.finish();
    Some(Users { from, required, limits })
}

fn window(at: Cursor<'_>) -> Option<Window> {
    let mut fields = at.fields()?;
    let days = fields.optional("days", days).unwrap_or_else(|| Weekday::ALL.to_vec());
    let from = fields.required("from", minute_of_day);
    let to = fields.required("to", minute_of_day);
    let zone = fields.optional("zone", zone).unwrap_or_else(|| "UTC".to_owned());
    let limits = limits(&mut fields);
    if from.zip(to).is_some_and(|(from, to)| from >= to) {
        fields.here().error(
            "ends before it begins",
            "past midnight, write two windows: one to \"24:00\", one from \"00:00\"",
        );
    }
    fields.finish();
    Some(Window { days, from_minute: from.unwrap_or(0), to_minute: to.unwrap_or(1), zone, limits })
}

fn days(at: Cursor<'_>) -> Option<Vec<Weekday>> {
    let words: Vec<(&str, Weekday)> =
        ["mon", "tue", "wed", "thu", "fri", "sat", "sun"].into_iter().zip(Weekday::ALL).collect();
    let mut days = at.list(|at| at.choice(&words))?;
    let written = days.len();
    days.sort_unstable();
    days.dedup();
    if at.is_empty_list() {
        at.error("names no day", "leave `days` out for every day");
    } else if days.len() < written {
        at.error("names a day twice", "");
    }
    Some(days)
}

fn project(at: Cursor<'_>) -> Option<Project> {
    let mut fields = at.fields()?;
    let id = fields.required("id", |at| name(&at)).unwrap_or_default();
    let limits = limits(&mut fields);
    let budgets = fields.optional("budget", budgets).unwrap_or_default();
    fields.finish();
    Some(Project { id, limits, budgets })
}

fn key(at: Cursor<'_>) -> Option<Key> {
    let mut fields = at.fields()?;
    let label = fields.required("label", |at| name(&at)).unwrap_or_default();
    let hash = fields.required("hash", key_hash);
    let limits = limits(&mut fields);
    let budgets = fields.optional("budget", budgets).unwrap_or_default();
    let project = fields.optional("project", |at| name(&at));
    let class = fields.optional("class", class);
    let expires = fields.optional("expires", |at| {
        at.parse(
            |text| text.parse().map_err(|_| "is not an instant"),
            "write date, time and zone as in RFC 3339, such as 2027-03-31T00:00:00Z",
        )
    });
    fields.finish();
    Some(Key { label, hash: hash.unwrap_or(NO_HASH), limits, budgets, project, class, expires })
}

fn anonymous(at: Cursor<'_>) -> Option<Anonymous> {
    let mut fields = at.fields()?;
    let anonymous = Anonymous {
        limits: limits(&mut fields),
        per_ip: fields.optional("per_ip", limits_alone).unwrap_or_default(),
        budgets: fields.optional("budget", budgets).unwrap_or_default(),
        allow_models: fields.optional("allow_models", |at| at.short_list(MAX_RULES, |at| long_name(&at))),
    };
    fields.finish();
    Some(anonymous)
}

// ---- routes, tools, prices, alerts --------------------------------------------------------------------------------------

fn route(at: Cursor<'_>) -> Option<Route> {
    let mut fields = at.fields()?;
    let route = Route {
        path: fields.required("path", route_path).unwrap_or_default(),
        provider: fields.optional("provider", |at| name(&at)),
        class: fields.optional("class", class),
        stateless: fields.optional("stateless", |at| at.truth()).unwrap_or(false),
        stateful: fields.optional("stateful", |at| at.truth()).unwrap_or(false),
        forbid_fields: fields.optional("forbid_fields", forbidden_fields).unwrap_or_default(),
        cost_tokens: fields.optional("cost_tokens", |at| at.count(0..=MAX_AMOUNT)),
        output_estimate: fields.optional("estimate", estimate).unwrap_or_default(),
    };
    fields.finish();
    Some(route)
}

fn estimate(at: Cursor<'_>) -> Option<OutputEstimate> {
    let mut fields = at.fields()?;
    let output = fields.optional("output", |at| {
        at.parse(
            |text| match text {
                "ceiling" => Ok(OutputEstimate::Ceiling),
                "learned" => Ok(OutputEstimate::Learned { percentile: 95 }),
                "none" => Ok(OutputEstimate::None),
                _ => text
                    .strip_prefix("learned(p")
                    .and_then(|rest| rest.strip_suffix(')'))
                    .and_then(|percentile| units::parse_count(percentile).ok())
                    .filter(|percentile| (1..=99).contains(percentile))
                    .map(|percentile| OutputEstimate::Learned { percentile })
                    .ok_or("is not a way to estimate output"),
            },
            "write ceiling, learned, learned(pNN) with NN from 1 to 99, or none",
        )
    });
    fields.finish();
    Some(output.unwrap_or_default())
}

fn tool(own_name: &str, at: Cursor<'_>) -> Option<Tool> {
    checked_name(own_name, MAX_NAME, &at);
    let mut fields = at.fields()?;
    let calls = fields.required("rate", |at| {
        let mut fields = at.fields()?;
        let per_minute = fields.required("calls_per_minute", amount);
        let burst = fields.optional("burst_calls", amount);
        fields.finish();
        per_minute.map(|per_minute| Rate { per_minute, burst: burst.unwrap_or(per_minute) })
    });
    let callers = fields.optional("callers", |at| at.list(tool_caller)).unwrap_or_default();
    fields.finish();
    Some(Tool { calls: calls.unwrap_or(Rate { per_minute: MAX_AMOUNT, burst: MAX_AMOUNT }), callers })
}

fn tool_caller(at: Cursor<'_>) -> Option<ToolCaller> {
    let mut fields = at.fields()?;
    let caller = ToolCaller {
        id: fields.required("id", |at| name(&at)).unwrap_or_default(),
        weight: fields.optional("weight", weight).unwrap_or(1),
        floor: fields.optional("floor", |at| at.count(0..=MAX_AMOUNT)).unwrap_or(0),
    };
    fields.finish();
    Some(caller)
}

fn price_list(at: Cursor<'_>) -> Option<PriceList> {
    let mut fields = at.fields()?;
    let effective = fields.required("effective", |at| {
        at.parse(
            |text| text.parse().map_err(|_| "is not a date"),
            "write year, month and day, such as 2026-11-01",
        )
    });
    let models = fields.required("models", |at| at.map(|_, at| price(at))).unwrap_or_default();
    fields.finish();
    Some(PriceList { effective: effective.unwrap_or(jiff::civil::Date::ZERO), models })
}

fn price(at: Cursor<'_>) -> Option<Price> {
    let mut fields = at.fields()?;
    let base = tariff(&mut fields);
    let long_context = fields.optional("long_context", |at| {
        let mut fields = at.fields()?;
        let above_input_tokens = fields.required("above_input_tokens", amount);
        let long = tariff(&mut fields);
        fields.finish();
        let [input, cache_read, cache_write, output] = long?;
        Some(LongContext { above_input_tokens: above_input_tokens?, input, cache_read, cache_write, output })
    });
    fields.finish();
    let [input, cache_read, cache_write, output] = base?;
    Some(Price { input, cache_read, cache_write, output, long_context })
}

/// The prices of input, of cache reads and writes, which cost what input does unless it is said, and of output.
fn tariff(fields: &mut Fields<'_>) -> Option<[MicroDollars; 4]> {
    let input = fields.required("input", |at| money(&at));
    let cache_read = fields.optional("cache_read", |at| money(&at));
    let cache_write = fields.optional("cache_write", |at| money(&at));
    let output = fields.required("output", |at| money(&at));
    let input = input?;
    Some([input, cache_read.unwrap_or(input), cache_write.unwrap_or(input), output?])
}

fn alerts(at: Cursor<'_>) -> Option<Alerts> {
    let mut fields = at.fields()?;
    let alerts = Alerts {
        webhook: fields.required("webhook", url).unwrap_or_default(),
        secret: fields.optional("secret", secret_reference),
        allow_private: fields.optional("allow_private", |at| at.truth()).unwrap_or(false),
    };
    fields.finish();
    Some(alerts)
}
