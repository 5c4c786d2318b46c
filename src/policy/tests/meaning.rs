//! What a good document means.

use std::time::Duration;

use super::super::*;
use super::{EVERYTHING, read, with};

#[test]
fn every_setting_is_read() {
    let policy = read(EVERYTHING);
    let openai = &policy.providers["openai"];
    assert_eq!(openai.base_url, "https://api.openai.com");
    assert_eq!(openai.api_key, Some(SecretReference::Env("OPENAI_API_KEY".to_owned())));
    assert_eq!((openai.include_usage, openai.max_attempts), (false, 2));
    assert_eq!(openai.timeouts.connect, Duration::from_millis(500));
    assert_eq!(openai.timeouts.total, Duration::from_secs(120));
    assert_eq!(policy.providers["anthropic"].timeouts, Timeouts::default());

    let pool = &policy.pools["openai-main"];
    assert_eq!((pool.guard.parts_per_million(), pool.reserve.parts_per_million()), (850_000, 50_000));
    assert_eq!(pool.overflow, ["openai-batch"]);
    assert_eq!(policy.pools["openai-batch"].burst_tokens, 50_000, "a tenth of the ceiling is left");
    assert_eq!(policy.pools["anthropic-main"].burst_tokens, 96_000, "a tenth of input and output together");

    let gpt = &policy.models["gpt-5"];
    assert_eq!((gpt.max_output_tokens, gpt.context_tokens), (Some(16_384), Some(400_000)));
    assert_eq!(gpt.forbid_fields, ["logit_bias", "prediction"].map(|field| FieldPath::parse(field).unwrap()));
    let users = policy.tiers["enterprise"].users.as_ref().unwrap();
    assert_eq!((&users.from, users.required), (&UserSource::Header("x-end-user".to_owned()), true));

    let northwind = policy.tenant("northwind").unwrap();
    assert_eq!(northwind.budgets[0].zone, "Europe/Berlin");
    assert_eq!(northwind.budgets[1].amount, BudgetAmount::Usd(MicroDollars(400_000_000)));
    assert_eq!(
        northwind.budgets[0].on_exhausted,
        OnExhausted::Degrade {
            to: "gpt-5-mini".to_owned(),
            limit: Some(Ratio::from_parts_per_million(200_000))
        }
    );
    assert_eq!(
        northwind.users.as_ref().unwrap().from,
        UserSource::Body(vec!["metadata".to_owned(), "user_id".to_owned()])
    );
    assert_eq!((northwind.windows[0].from_minute, northwind.windows[0].to_minute), (360, 390));
    assert_eq!(northwind.keys[0].hash, KeyHash([0x11; 32]));
    assert_eq!(northwind.keys[1].expires, Some("2027-03-31T00:00:00Z".parse().unwrap()));

    assert_eq!(
        policy.route_of("/v1/chat/completions").unwrap().output_estimate,
        OutputEstimate::Learned { percentile: 90 }
    );
    assert_eq!(policy.route_of("/v1/images/generations").unwrap().cost_tokens, Some(4_000));
    assert_eq!(policy.price_book[0].models["gpt-5"].cache_read, MicroDollars(125_000));
    let long = policy.price_book[0].models["gpt-5"].long_context.unwrap();
    assert_eq!((long.above_input_tokens, long.cache_read), (272_000, MicroDollars(2_500_000)));
    assert_eq!(
        policy.price_book[0].models["gpt-5-mini"].cache_write,
        MicroDollars(250_000),
        "the input price"
    );
    assert_eq!(policy.tools["web-search"].calls, Rate { per_minute: 600, burst: 600 });
    assert!(policy.trusts_proxy("10.9.8.7".parse().unwrap()));
    assert!(policy.trusts_proxy("::ffff:10.9.8.7".parse().unwrap()));
    assert!(!policy.trusts_proxy("11.0.0.1".parse().unwrap()));
}

#[test]
fn a_tenants_limits_replace_its_tiers_one_by_one() {
    let policy = read(EVERYTHING);
    let limits = policy.effective_limits(policy.tenant("northwind").unwrap());
    assert_eq!(limits.tokens, Some(Rate { per_minute: 120_000, burst: 40_000 }), "the tier's");
    assert_eq!(
        limits.input_tokens,
        Some(Rate { per_minute: 100_000, burst: 40_000 }),
        "the whole's burst is smaller"
    );
    assert_eq!(limits.output_tokens, Some(Rate { per_minute: 30_000, burst: 20_000 }), "as written");
    assert_eq!(
        limits.requests,
        Some(Rate { per_minute: 1_200, burst: 100 }),
        "the tier's rate, its own burst"
    );
    assert_eq!(limits.max_inflight, Some(60));
    assert_eq!(limits.largest_request(), Some(40_000));
}

#[test]
fn a_rate_without_a_burst_holds_one_minute() {
    let limits = LimitSettings {
        requests_per_minute: Some(240),
        output_tokens_per_minute: Some(7),
        ..Default::default()
    };
    assert_eq!(limits.resolve().requests, Some(Rate { per_minute: 240, burst: 240 }));
    assert_eq!(limits.resolve().output_tokens, Some(Rate { per_minute: 7, burst: 7 }));
    assert_eq!(limits.resolve().largest_request(), None, "input is unlimited");
}

#[test]
fn a_tenant_without_a_tier_has_the_default_one() {
    let policy = read(EVERYTHING);
    let evaluation = policy.tenant("evaluation").unwrap();
    assert_eq!(evaluation.tier, "starter");
    assert_eq!(policy.on_unavailable_of(evaluation), OnUnavailable::Admit, "the tier's");
    assert_eq!(policy.on_disconnect_of(evaluation), Some(OnDisconnect::Counted), "the document's");
    assert_eq!(policy.floor_of(evaluation), 6_000);
    assert_eq!(policy.floor_of(policy.tenant("northwind").unwrap()), 48_000);
}

#[test]
fn a_tenants_budgets_replace_its_tiers_as_a_whole() {
    let policy = read(&with("    tier: growth\n", "    tier: enterprise\n"));
    assert_eq!(policy.budgets_of(policy.tenant("northwind").unwrap()).len(), 2);
    let policy = read(&with("  - id: evaluation\n", "  - id: evaluation\n    tier: enterprise\n"));
    let budgets = policy.budgets_of(policy.tenant("evaluation").unwrap());
    assert_eq!(budgets.len(), 1);
    assert_eq!(budgets[0].amount, BudgetAmount::Tokens(4_000_000_000));
}

#[test]
fn models_answer_to_names_and_aliases_exactly_as_written() {
    let policy = read(EVERYTHING);
    assert_eq!(policy.resolve_model("gpt-5").unwrap().upstream_model, "gpt-5-2026-08-01");
    assert_eq!(policy.resolve_model("gpt-5-latest").unwrap().name, "gpt-5");
    assert_eq!(policy.resolve_model("GPT-5"), None);
    assert_eq!(policy.resolve_model("gpt-5-mini").unwrap().tokenizer, Tokenizer::O200k);
    assert_eq!(policy.resolve_model("text-embedding-4").unwrap().tokenizer, Tokenizer::Cl100k);
    assert_eq!(
        policy.resolve_model("claude-haiku-4-5").unwrap().tokenizer,
        Tokenizer::Bytes { bytes_per_token_milli: 3_200 }
    );
}

#[test]
fn exact_beats_the_longest_prefix_and_one_rule_holds() {
    let policy = read(EVERYTHING);
    let northwind = policy.tenant("northwind").unwrap();
    assert_eq!(northwind.model_rule("gpt-5").unwrap().limits.tokens_per_minute, Some(60_000));
    assert_eq!(northwind.model_rule("gpt-5-mini").unwrap().limits.requests_per_minute, Some(600));
    assert_eq!(northwind.model_rule("text-embedding-4"), None);
    assert!(!northwind.allows_model("claude-haiku-4-5"));
}

#[test]
fn under_enforce_new_tenants_only_those_that_say_so_are_enforced() {
    let policy = read(&with("\nenforcement: enforce\n", "\nenforcement: enforce_new_tenants\n"));
    assert_eq!(policy.enforcement_of(policy.tenant("northwind").unwrap()), Enforcement::Enforce);
    assert_eq!(policy.enforcement_of(policy.tenant("evaluation").unwrap()), Enforcement::Shadow);
    assert!(policy.warnings.iter().any(|warning| warning.message.contains("1 of 2 tenants are in shadow")));
}

#[test]
fn the_fixture_and_the_embedded_example_are_without_warnings() {
    assert_eq!(read(EVERYTHING).warnings, []);
    assert_eq!(read(EXAMPLE).warnings, []);
}

#[test]
fn ratios_and_money_are_exact() {
    assert_eq!(Ratio::parse("0.1").unwrap().of(3_000_000_000_000_001), 300_000_000_000_000);
    assert_eq!(Ratio::parse("1").unwrap(), Ratio::ONE);
    assert_eq!(Ratio::parse("1.000000").unwrap(), Ratio::ONE);
    assert!(Ratio::parse("1.000001").is_err());
    assert!(Ratio::parse("0.1234567").is_err(), "nothing is rounded");
    assert_eq!(MicroDollars::parse("1_000.5").unwrap(), MicroDollars(1_000_500_000));
    assert_eq!(MicroDollars(125_000).to_string(), "0.125");
    assert_eq!(MicroDollars(400_000_000).to_string(), "400.00");
    for text in ["", ".", "1.", ".5", "1e3", "0x10", "1__0", "_1", "1_", "-1", "+1", "NaN", "inf", "１"] {
        assert!(MicroDollars::parse(text).is_err(), "`{text}` is not money");
    }
}

#[test]
fn a_network_holds_its_addresses_and_no_others() {
    let network = IpNetwork::parse("10.0.0.0/8").unwrap();
    assert!(
        network.contains("10.255.0.1".parse().unwrap())
            && !network.contains("9.255.255.255".parse().unwrap())
    );
    assert!(!network.contains("::1".parse().unwrap()));
    assert!(IpNetwork::parse("0.0.0.0/0").unwrap().contains("203.0.113.9".parse().unwrap()));
    assert!(IpNetwork::parse("::/0").unwrap().contains("2001:db8::1".parse().unwrap()));
    assert!(IpNetwork::parse("192.0.2.7").unwrap().contains("192.0.2.7".parse().unwrap()));
    for text in ["10.0.0.1/8", "10.0.0.0/33", "::/129", "ten", "10.0.0.0/", "10.0.0.0/-1"] {
        assert!(IpNetwork::parse(text).is_err(), "`{text}` is not a network");
    }
}

#[test]
fn a_secret_is_read_trimmed_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, "s3cret\n").unwrap();
    let secret = SecretReference::File(path.clone()).resolve().unwrap();
    assert_eq!(secret.expose(), "s3cret");
    assert_eq!(format!("{secret:?}"), "Secret(…)");
    std::fs::write(&path, "\n").unwrap();
    let problem = SecretReference::File(path.clone()).resolve().unwrap_err();
    assert_eq!(problem.to_string(), format!("the secret file:{} is empty", path.display()));
    let problem = SecretReference::Env("TOLLGATE_TEST_UNSET".to_owned()).resolve().unwrap_err();
    assert_eq!(problem.to_string(), "the secret env:TOLLGATE_TEST_UNSET is not set");
}

#[test]
fn a_model_is_found_in_every_form_of_its_name() {
    let policy = parse(EVERYTHING, "t").unwrap();
    for (asked, model, snapshot) in [
        ("gpt-5", "gpt-5", ""),
        ("models/gpt-5", "gpt-5", ""),
        ("GPT-5", "gpt-5", ""),
        ("Gpt-5-Latest", "gpt-5", ""),
        ("gpt-5-2025-08-07", "gpt-5", "-2025-08-07"),
        ("gpt-5-mini-2025-08-07", "gpt-5-mini", "-2025-08-07"),
        ("models/GPT-5-20250807", "gpt-5", "-20250807"),
        ("claude-haiku-4-5@20251001", "claude-haiku-4-5", "@20251001"),
        ("gpt-5-0613", "gpt-5", "-0613"),
        ("gpt-5-001", "gpt-5", "-001"),
    ] {
        let found =
            policy.resolve_model_loosely(asked).map(|(model, snapshot)| (model.name.as_str(), snapshot));
        assert_eq!(found, Some((model, snapshot)), "{asked}");
    }
    for unknown in [
        "",
        "models/",
        "models/models/gpt-5",
        "gpt-5-",
        "gpt-5-12345",
        "gpt-5-2025-8-7",
        "gpt-5 ",
        "-001",
        "é-001",
        "gpt-5-2025-08-07-1",
    ] {
        assert!(policy.resolve_model_loosely(unknown).is_none(), "{unknown:?}");
    }
}
