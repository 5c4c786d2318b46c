//! What can be saved of a policy that is invalid: whom to call and who is known, and not one limit.
//!
//! Only for `--without-limits-on-invalid-policy`. What it saves is written out as a policy of its own and goes through the same door
//! as any other ([`super::parse`]), so nothing half-checked is ever put in force.

use serde_json::{Map, Value, json};

use super::{KeyHash, Policy, parse};

/// A policy without limits, made of the providers, models and keys of `text` that can be read; of the public providers with the
/// keys of their usual environment variables when there is none. None only if that cannot be read either.
#[must_use]
pub fn salvage(text: &str) -> Option<Policy> {
    let document: Value = serde_saphyr::from_str(text).unwrap_or(Value::Null);
    let providers = providers(&document);
    let (pools, models) = models(&document, &providers);
    let tenants = tenants(&document);
    // Each attempt leaves out what the one before it may have choked on.
    let attempts =
        [(&models, &tenants), (&models, &json!([])), (&json!({}), &tenants), (&json!({}), &json!([]))]
            .map(|(models, tenants)| write(&providers, &pools, models, tenants));
    let saved = attempts.iter().find_map(|text| parse(text, "salvaged").ok());
    saved.or_else(|| parse(&write(&public_providers(), &json!({}), &json!({}), &json!([])), "built in").ok())
}

fn write(providers: &Value, pools: &Value, models: &Value, tenants: &Value) -> String {
    json!({
        "version": 1,
        "providers": providers,
        "pools": pools,
        "models": models,
        "tiers": { "without-limits": {} },
        "default_tier": "without-limits",
        "tenants": tenants,
    })
    .to_string()
}

fn public_providers() -> Value {
    json!({
        "openai": { "dialect": "openai", "base_url": "https://api.openai.com", "api_key": "env:OPENAI_API_KEY" },
        "anthropic": { "dialect": "anthropic", "base_url": "https://api.anthropic.com", "api_key": "env:ANTHROPIC_API_KEY" },
    })
}

fn providers(document: &Value) -> Value {
    let whole = |(name, provider): (&String, &Value)| {
        let dialect = provider.get("dialect")?.as_str()?;
        let base_url = provider.get("base_url")?.as_str()?;
        let mut saved = json!({ "dialect": dialect, "base_url": base_url });
        if let Some(key) = provider.get("api_key").and_then(Value::as_str) {
            saved["api_key"] = json!(key);
        }
        let alone = write(&json!({ name: saved }), &json!({}), &json!({}), &json!([]));
        parse(&alone, "salvaged").is_ok().then(|| (name.clone(), saved))
    };
    let saved: Map<String, Value> = members(document, "providers").filter_map(whole).collect();
    if saved.is_empty() { public_providers() } else { Value::Object(saved) }
}

/// The models, and a pool for each provider, since a model names one.
fn models(document: &Value, providers: &Value) -> (Value, Value) {
    let pool = |name: &String| {
        let pool = json!({ "provider": name, "ceiling": { "tokens_per_minute": super::MAX_AMOUNT } });
        (format!("of-{name}"), pool)
    };
    let pools: Map<String, Value> = providers.as_object().into_iter().flat_map(Map::keys).map(pool).collect();
    let model = |(name, model): (&String, &Value)| {
        let provider = model.get("provider")?.as_str()?;
        providers.get(provider)?;
        let mut saved = json!({ "provider": provider, "pool": format!("of-{provider}") });
        for field in ["aliases", "upstream_model"] {
            if let Some(value) = model.get(field) {
                saved[field] = value.clone();
            }
        }
        Some((name.clone(), saved))
    };
    let models: Map<String, Value> = members(document, "models").filter_map(model).collect();
    (Value::Object(pools), Value::Object(models))
}

fn tenants(document: &Value) -> Value {
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
    let mut taken: Vec<String> = Vec::new();
    let mut tenants = Vec::new();
    for tenant in list(document, "tenants") {
        let Some(id) = text(tenant, "id") else { continue };
        let mut keys = Vec::new();
        for key in list(tenant, "keys") {
            let Some((label, hash)) = text(key, "label").zip(text(key, "hash")) else { continue };
            if KeyHash::parse(&hash).is_some() && !taken.contains(&hash) {
                taken.push(hash.clone());
                keys.push(json!({ "label": label, "hash": hash }));
            }
        }
        tenants.push(json!({ "id": id, "keys": keys }));
    }
    Value::Array(tenants)
}

fn members<'d>(document: &'d Value, field: &str) -> impl Iterator<Item = (&'d String, &'d Value)> {
    document.get(field).and_then(Value::as_object).into_iter().flatten()
}

fn list<'d>(value: &'d Value, field: &str) -> impl Iterator<Item = &'d Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_to_call_and_who_is_known_survive_a_limit_that_is_wrong() {
        let hash = KeyHash::of(b"tg-1").to_string();
        let text = format!(
            "version: 1\nproviders: {{ here: {{ dialect: openai, base_url: 'http://127.0.0.1:1' }} }}\n\
             pools: {{ p: {{ provider: here, ceiling: {{ tokens_per_minute: -1 }} }} }}\n\
             models: {{ gpt-5: {{ provider: here, pool: p, aliases: [latest] }} }}\n\
             tenants: [ {{ id: acme, tokens_per_minut: 5, keys: [ {{ label: one, hash: '{hash}' }} ] }} ]\n"
        );
        assert!(parse(&text, "t").is_err());
        let policy = salvage(&text).unwrap();
        assert_eq!(policy.providers["here"].base_url, "http://127.0.0.1:1");
        assert_eq!(policy.resolve_model("latest").map(|model| model.name.as_str()), Some("gpt-5"));
        let tenant = policy.tenant("acme").unwrap();
        assert_eq!(tenant.keys.len(), 1);
        assert_eq!(policy.effective_limits(tenant), super::super::Limits::default());
    }

    #[test]
    fn of_what_is_no_yaml_the_public_providers_are_left() {
        let policy = salvage("{{{ not yaml").unwrap();
        assert_eq!(policy.providers.keys().collect::<Vec<_>>(), ["anthropic", "openai"]);
        assert!(policy.tenants.is_empty());
    }
}
