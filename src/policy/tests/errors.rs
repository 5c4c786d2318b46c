//! Where a bad document is told to be bad: every class of error at its exact place.

use proptest::prelude::*;

use super::super::tree::{MAX_BYTES, Node, Value, read as read_tree};
use super::super::{EXAMPLE, Problem, parse};
use super::{EVERYTHING, errors_of, warnings_of, with};

/// Breaks the fixture in one place and demands exactly one error, at the place where `at` begins in the broken document.
fn demands(from: &str, to: &str, at: &str, path: &str, message: &str) -> Problem {
    let text = with(from, to);
    let errors = errors_of(&text);
    assert_eq!(errors.len(), 1, "{errors:#?}");
    let error = errors[0].clone();
    assert_eq!((error.line, error.column), place_of(&text, at), "{error:#?}");
    assert_eq!(error.path, path);
    assert!(error.message.contains(message), "{error:#?}");
    error
}

/// Line and column of a text that is there once.
fn place_of(text: &str, at: &str) -> (usize, usize) {
    assert_eq!(text.matches(at).count(), 1, "`{at}` is not there once");
    let offset = text.find(at).unwrap();
    let line_start = text[..offset].rfind('\n').map_or(0, |newline| newline + 1);
    (text[..offset].matches('\n').count() + 1, text[line_start..offset].chars().count() + 1)
}

#[test]
fn an_unknown_field_is_told_at_its_name_with_the_name_that_was_meant() {
    let error =
        demands("    weight: 8", "    wieght: 8", "wieght", "tiers.enterprise.wieght", "unknown field");
    assert_eq!(error.hint, "did you mean `weight`?");
    assert_eq!(
        error.render("policy.yaml"),
        "policy.yaml:54:5: tiers.enterprise.wieght: unknown field\n  hint: did you mean `weight`?"
    );
}

#[test]
fn every_error_of_a_document_is_told_at_once_in_its_order() {
    let text = with("version: 1\n", "version: 2\n")
        .replace("weight: 8", "weight: 0")
        .replace("    tier: growth", "    tier: grwoth")
        .replace("on_unavailable: refuse", "on_unavailable: allow");
    let paths: Vec<String> = errors_of(&text).into_iter().map(|error| error.path).collect();
    assert_eq!(paths, ["version", "tiers.enterprise.weight", "tenants[0].tier", "on_unavailable"]);
}

#[test]
fn names_that_refer_to_nothing() {
    let hint = |error: Problem| error.hint;
    let mean = |name: &str| format!("did you mean `{name}`?");
    assert_eq!(
        hint(demands(
            "    tier: growth\n",
            "    tier: grwoth\n",
            "grwoth",
            "tenants[0].tier",
            "no tier `grwoth`"
        )),
        mean("growth")
    );
    assert_eq!(
        hint(demands("default_tier: starter", "default_tier: strter", "strter", "default_tier", "no tier")),
        mean("starter")
    );
    assert_eq!(
        hint(demands(
            "overflow: [openai-batch]",
            "overflow: [openai-btach]",
            "openai-btach",
            "pools.openai-main.overflow[0]",
            "no pool"
        )),
        mean("openai-batch")
    );
    assert_eq!(
        hint(demands(
            "  openai-batch:\n    provider: openai",
            "  openai-batch:\n    provider: opnai",
            "opnai",
            "pools.openai-batch.provider",
            "no provider"
        )),
        mean("openai")
    );
    assert_eq!(
        hint(demands(
            "fallbacks: [gpt-5-mini]",
            "fallbacks: [gpt-5-nano]",
            "gpt-5-nano",
            "models.gpt-5.fallbacks[0]",
            "no model"
        )),
        mean("gpt-5-mini")
    );
}

#[test]
fn a_models_other_name_is_not_its_name() {
    let error = demands(
        "- { exact: gpt-5,",
        "- { exact: gpt-5-latest,",
        "gpt-5-latest, tok",
        "tenants[0].models[0].exact",
        "is an alias",
    );
    assert_eq!(error.hint, "write the model's name, `gpt-5`");
}

#[test]
fn names_that_collide() {
    demands(
        "aliases: [gpt-5-latest]",
        "aliases: [gpt-5-mini]",
        "gpt-5-mini]\n    default",
        "models.gpt-5.aliases[0]",
        "already a name of",
    );
    demands("- id: evaluation", "- id: northwind", "northwind\n    class", "tenants[1].id", "already here");
    demands(
        "label: data-science",
        "label: production",
        "production\n        hash: \"sha256:2",
        "tenants[0].keys[1].label",
        "already here",
    );
    demands(
        &"2".repeat(64),
        &"1".repeat(64),
        &format!("\"sha256:{}\"\n        class", "1".repeat(64)),
        "tenants[0].keys[1].hash",
        "already `production of northwind`",
    );
    demands(
        "{ id: agent-c,",
        "{ id: tenant-a,",
        "tenant-a, weight: 10",
        "tools.web-search.callers[1].id",
        "already here",
    );
    demands(
        "path: /v1/batches",
        "path: /v1/embeddings",
        "/v1/embeddings, provider",
        "routes[3].path",
        "already here",
    );
    demands(
        "    tier: growth\n",
        "    tier: growth\n    tier: starter\n",
        "tier: starter\n    input",
        "",
        "twice",
    );
}

#[test]
fn numbers_out_of_range() {
    for (bad, message) in [
        ("0", "too small"),
        ("-5", "negative"),
        ("1_000_000_000_000_001", "too large"),
        ("5.5", "not a number"),
        ("5k", "not a number"),
        ("99999999999999999999999", "too large"),
    ] {
        let to = format!("burst_tokens: {bad}\n    refund");
        demands(
            "burst_tokens: 200_000\n    refund",
            &to,
            &format!("{bad}\n    refund"),
            "pools.openai-main.burst_tokens",
            message,
        );
    }
    demands(
        "max_inflight: 40",
        "max_inflight: \"40\"",
        "\"40\"",
        "tenants[0].keys[0].max_inflight",
        "found text in quotes",
    );
    demands(
        "max_attempts: 2",
        "max_attempts: 4",
        "4\n  anthropic",
        "providers.openai.max_attempts",
        "too large",
    );
    demands("guard: 0.85", "guard: 1.2", "1.2\n", "pools.openai-main.guard", "more than 1");
    demands(
        "fallback_share: 0.10",
        "fallback_share: 0",
        "0\n    projects",
        "tenants[0].fallback_share",
        "is zero",
    );
    demands("usd: 400.00", "usd: 0.0000001", "0.0000001", "tenants[0].budget[1].usd", "six decimal places");
}

#[test]
fn values_that_are_not_what_they_should_be() {
    demands("connect: 500ms", "connect: 500", "500,", "providers.openai.timeouts.connect", "not a duration");
    demands(
        "zone: Europe/Berlin\n",
        "zone: Europe/Berln\n",
        "Europe/Berln",
        "tenants[0].budget[0].zone",
        "not a time zone",
    );
    demands("10.0.0.0/8", "10.0.0.1/8", "10.0.0.1/8", "trusted_proxies[0]", "host bits");
    demands(
        "days: [mon]",
        "days: [monday]",
        "monday",
        "tenants[0].windows[0].days[0]",
        "not one of the words",
    );
    demands(
        "from: \"06:00\"",
        "from: \"06:40\"",
        "{ days: [mon]",
        "tenants[0].windows[0]",
        "ends before it begins",
    );
    demands("to: \"06:30\"", "to: \"24:01\"", "\"24:01\"", "tenants[0].windows[0].to", "not a time of day");
    demands(
        "learned(p90)",
        "learned(p100)",
        "learned(p100)",
        "routes[0].estimate.output",
        "not a way to estimate",
    );
    demands(
        "body.metadata.user_id",
        "cookie.user",
        "cookie.user",
        "tenants[0].users.from",
        "does not say where",
    );
    demands(
        "2027-03-31T00:00:00Z",
        "2027-03-31",
        "2027-03-31",
        "tenants[0].keys[1].expires",
        "not an instant",
    );
    demands("effective: 2026-11-01", "effective: soon", "soon", "price_book[0].effective", "not a date");
    demands(
        "https://api.openai.com/",
        "api.openai.com",
        "api.openai.com",
        "providers.openai.base_url",
        "not an http or https URL",
    );
    demands(
        "include_usage: false",
        "include_usage: no",
        "no\n    timeouts",
        "providers.openai.include_usage",
        "true or false",
    );
    demands("- id: evaluation", "- id: eval uation", "eval uation", "tenants[1].id", "not a name");
    demands(
        "enforcement: enforce\n    on_disconnect",
        "enforcement: [enforce]\n    on_disconnect",
        "[enforce]",
        "tenants[0].enforcement",
        "expected text, found a list",
    );
    let error = demands(
        "on_unavailable: refuse",
        "on_unavailable: ~",
        "~",
        "on_unavailable",
        "expected text, found nothing",
    );
    assert_eq!(error.hint, "give it a value, or remove it");
}

#[test]
fn what_a_request_may_not_have_is_a_member_of_one() {
    demands(
        "context_tokens: 400_000",
        "context_tokens: 9_000",
        "9_000\n    forbid",
        "models.gpt-5.context_tokens",
        "less than `max_output_tokens`",
    );
    demands(
        "[logprobs, top_logprobs]",
        "[log probs, top_logprobs]",
        "log probs,",
        "routes[0].forbid_fields[0]",
        "not a member of a request",
    );
    demands(
        "[logit_bias, prediction]",
        "[logit_bias, LogitBias]",
        "LogitBias",
        "models.gpt-5.forbid_fields[1]",
        "here twice",
    );
}

#[test]
fn what_may_be_a_secret_is_not_repeated() {
    let error = demands(
        "env:OPENAI_API_KEY",
        "sk-live-1234",
        "sk-live-1234",
        "providers.openai.api_key",
        "not a reference",
    );
    assert!(!error.render("policy.yaml").contains("sk-live"));
    let hash = format!("\"sha256:{}\"", "1".repeat(64));
    let error =
        demands(&hash, "tg-live-5678", "tg-live-5678", "tenants[0].keys[0].hash", "64 lowercase hexadecimal");
    assert!(!error.render("policy.yaml").contains("tg-live"));
    demands(
        &"2".repeat(64),
        &"A".repeat(64),
        "\"sha256:AAAA",
        "tenants[0].keys[1].hash",
        "64 lowercase hexadecimal",
    );
}

#[test]
fn dialects_do_not_mix() {
    demands(
        "fallbacks: [gpt-5-mini]",
        "fallbacks: [claude-haiku-4-5]",
        "claude-haiku-4-5]",
        "models.gpt-5.fallbacks[0]",
        "speaks anthropic, not openai",
    );
    demands(
        "degrade_to: gpt-5-mini",
        "degrade_to: claude-haiku-4-5",
        "claude-haiku-4-5\n        degrade_limit",
        "tenants[0].budget[0].degrade_to",
        "no model that could be degraded does",
    );
    demands(
        "overflow: [openai-batch]",
        "overflow: [anthropic-main]",
        "anthropic-main]",
        "pools.openai-main.overflow[0]",
        "speaks anthropic, not openai",
    );
    demands(
        "gpt-5-mini: { provider: openai, pool: openai-main",
        "gpt-5-mini: { provider: openai, pool: anthropic-main",
        "anthropic-main, default_output_tokens: 512",
        "models.gpt-5-mini.pool",
        "an account of `anthropic`",
    );
}

#[test]
fn settings_that_contradict_each_other() {
    demands("guard: 0.85", "guard: 0.96", "0.96", "pools.openai-main.guard", "add up to more than 1");
    demands(
        "tokenizer: o200k",
        "bytes_per_token: 4\n    tokenizer: o200k",
        "provider: openai\n    pool: openai-main\n    aliases",
        "models.gpt-5",
        "needs `tokenizer: bytes`",
    );
    demands(
        "max_output_tokens: 16_384",
        "max_output_tokens: 16",
        "1_024\n    max",
        "models.gpt-5.default_output_tokens",
        "more than `max_output_tokens`",
    );
    demands(
        "        degrade_to: gpt-5-mini\n",
        "",
        "period: monthly\n        zone",
        "tenants[0].budget[0]",
        "needs `degrade_to`",
    );
    demands(
        "on_exhausted: degrade",
        "on_exhausted: queue",
        "period: monthly\n        zone",
        "tenants[0].budget[0]",
        "need `on_exhausted: degrade`",
    );
    demands(
        "usd: 400.00",
        "usd: 400.00, tokens: 5",
        "{ period: daily, usd",
        "tenants[0].budget[1]",
        "both `tokens` and `usd`",
    );
    demands(
        "{ period: daily, usd: 400.00,",
        "{ period: monthly, tokens: 5,",
        "{ period: monthly, tokens: 5,",
        "tenants[0].budget[1]",
        "the same period",
    );
    demands(
        "[0.8, 0.95]",
        "[0.95, 0.8]",
        "[0.95, 0.8]",
        "tenants[0].budget[0].soft_thresholds",
        "not ascending",
    );
    demands(
        "{ prefix: gpt-,",
        "{ exact: gpt-5,",
        "{ exact: gpt-5, requests",
        "tenants[0].models[1]",
        "same models",
    );
    demands(
        "{ prefix: gpt-,",
        "{ exact: gpt-5-mini, prefix: gpt-,",
        "{ exact: gpt-5-mini, prefix",
        "tenants[0].models[1]",
        "one of `exact` and `prefix`",
    );
    demands("project: search", "project: serach", "serach", "tenants[0].keys[0].project", "no project");
    demands(
        "calls_per_minute: 600",
        "calls_per_minute: 99",
        "- { id: tenant-a",
        "tools.web-search.callers",
        "add up to 100",
    );
    demands("default_tier: starter\n", "", "id: evaluation", "tenants[1]", "names no tier");
    demands(
        "    dialect: openai\n",
        "",
        "base_url: https://api.openai.com/",
        "providers.openai",
        "`dialect` is missing",
    );
}

#[test]
fn floors_that_are_guaranteed_must_fit() {
    // northwind's floor is 48,000 and evaluation's 6,000: 54,000 a minute, and 2,025 tokens in their buckets.
    let guaranteed = |ceiling: &str, burst: &str| {
        with("floors: best_effort", "floors: guaranteed")
            .replace("{ tokens_per_minute: 2_000_000,", &format!("{{ tokens_per_minute: {ceiling},"))
            .replace("burst_tokens: 200_000", &format!("burst_tokens: {burst}"))
    };
    let errors = errors_of(&guaranteed("60_000", "200_000"));
    assert_eq!(errors.len(), 1, "{errors:#?}");
    assert_eq!(errors[0].path, "pools.openai-main.floors");
    assert!(
        errors[0].message.contains("54000 tokens per minute, 3000 more than the guard rate of 51000"),
        "{errors:#?}"
    );

    let errors = errors_of(&guaranteed("2_000_000", "2_025"));
    assert!(errors[0].message.contains("hold 2025 tokens, the pool's burst is 2025"), "{errors:#?}");
    assert_eq!(warnings_of(&guaranteed("2_000_000", "2_026")), []);

    let says = |text: &str, part: &str| {
        let warnings = warnings_of(text);
        assert!(warnings.iter().any(|warning| warning.message.contains(part)), "{warnings:#?}");
    };
    says(&guaranteed("80_000", "200_000"), "more than 0.70 of the guard rate of 68000");
    let best_effort = guaranteed("60_000", "200_000").replace("floors: guaranteed", "floors: best_effort");
    says(&best_effort, "3000 more than the guard rate of 51000");
}

#[test]
fn windows_that_commit_too_much_of_a_pool_are_warned_about() {
    let text = with(
        "zone: Europe/Berlin, tokens_per_minute: 300_000",
        "zone: Europe/Berlin, tokens_per_minute: 1_600_001",
    );
    let warnings = warnings_of(&text);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert_eq!(warnings[0].path, "pools.openai-main");
    assert!(warnings[0].message.contains("commit 1600001 tokens per minute at once"), "{warnings:#?}");
    assert_eq!(warnings_of(&text.replace("1_600_001", "1_600_000")), []);
}

#[test]
fn windows_of_two_zones_add_up_where_they_meet() {
    // 06:00 to 06:30 in Berlin is 05:00 or 04:00 UTC; New York is six hours behind all year but for two weeks.
    let meeting = "  - id: evaluation\n    windows:\n      - { days: [mon], from: \"00:15\", to: \"00:45\", zone: America/New_York, tokens_per_minute: 1_300_001 }\n    allow_models: [gpt-5]\n";
    let text = with("  - id: evaluation\n", meeting);
    let warnings = warnings_of(&text);
    assert!(warnings.iter().any(|warning| warning.message.contains("commit 1600001")), "{warnings:#?}");
    let apart = text.replace("from: \"00:15\", to: \"00:45\"", "from: \"00:30\", to: \"01:00\"");
    assert!(!warnings_of(&apart).iter().any(|warning| warning.message.contains("commit")));
}

#[test]
fn a_part_above_the_whole_is_allowed_and_told() {
    let warnings = warnings_of(&with("tokens_per_minute: 90_000", "tokens_per_minute: 400_000"));
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert_eq!(warnings[0].path, "tenants[0].keys[0].tokens_per_minute");
    assert!(warnings[0].message.contains("400000 is more than the 120000"));
}

#[test]
fn yaml_beyond_the_plain_subset_is_refused() {
    demands(
        "    tier: growth\n",
        "    tier: &t growth\n",
        "growth\n    input",
        "",
        "anchors are not allowed",
    );
    demands(
        "    tier: growth\n",
        "    tier: !!str growth\n",
        "growth\n    input",
        "",
        "tags are not allowed",
    );
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n";
    assert!(errors_of(bomb)[0].message.contains("anchors are not allowed"));
    let second = format!("{EVERYTHING}---\nversion: 1\n");
    assert_eq!(errors_of(&second)[0].message, "a second document begins here");
    assert!(errors_of("version: [1")[0].message.starts_with("this is not YAML"));
    assert!(errors_of("? [a, b]\n: c\n")[0].message.contains("key is not text"));
    for nothing in ["", "# nothing\n", "---\n", "~"] {
        assert!(errors_of(nothing)[0].message.contains("found nothing"), "{nothing:?}");
    }
}

#[test]
fn documents_are_bounded() {
    assert!(errors_of(&"#".repeat(MAX_BYTES + 1))[0].message.contains("the most is 8388608"));
    for deep in ["[", "- ", "{a: ", "? "] {
        assert_eq!(errors_of(&deep.repeat(100_000)).len(), 1, "{deep}");
    }
    let many: String = (0..300).map(|number| format!("unknown_{number}: 1\n")).collect();
    let problems = parse(&format!("{EVERYTHING}{many}"), "policy.yaml").unwrap_err();
    assert_eq!((problems.errors.len(), problems.untold), (100, 200));
    assert!(problems.to_string().ends_with("policy.yaml: and 200 more"));
}

#[test]
fn an_unknown_field_is_refused_in_every_mapping() {
    for document in [EVERYTHING, EXAMPLE] {
        let mut places = Vec::new();
        mappings(&read_tree(document).unwrap(), &mut places);
        assert!(places.len() > 25, "the walk found {} mappings", places.len());
        for (line, column) in places {
            let text = insert_field(document, line, column);
            let errors = errors_of(&text);
            assert!(
                errors.iter().any(|error| error.line == line && error.path.ends_with("nobody_reads_this")),
                "nothing at line {line} of\n{text}\n{errors:#?}"
            );
        }
    }
}

fn mappings(node: &Node, places: &mut Vec<(usize, usize)>) {
    match &node.value {
        Value::Mapping(entries) => {
            places.push((node.at.line, node.at.column));
            entries.iter().for_each(|entry| mappings(&entry.value, places));
        }
        Value::Sequence(items) => items.iter().for_each(|item| mappings(item, places)),
        Value::Absent | Value::Scalar { .. } => {}
    }
}

/// Puts a field first into the mapping that begins here: behind the brace, or on a line of its own.
fn insert_field(document: &str, line: usize, column: usize) -> String {
    let mut lines: Vec<String> = document.lines().map(str::to_owned).collect();
    let (before, after) = lines[line - 1].split_at(column - 1);
    lines[line - 1] = match after.strip_prefix('{') {
        Some(rest) => format!("{before}{{ nobody_reads_this: 1, {rest}"),
        None => format!("{before}nobody_reads_this: 1\n{}{after}", " ".repeat(column - 1)),
    };
    lines.join("\n")
}

proptest! {
    #[test]
    fn no_edit_makes_it_panic(
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), 0_usize..40, "[\\[\\]{}:,&*!|>'\"%@`?# \n\t0-9a-z\u{0}\u{feff}\u{85}é-]{0,6}"),
            1..6,
        )
    ) {
        let mut bytes = EVERYTHING.as_bytes().to_vec();
        for (place, removed, inserted) in edits {
            let start = place.index(bytes.len() + 1);
            let end = (start + removed).min(bytes.len());
            bytes.splice(start..end, inserted.into_bytes());
        }
        let text = String::from_utf8_lossy(&bytes);
        if let Err(problems) = parse(&text, "policy.yaml") {
            prop_assert!(!problems.errors.is_empty());
            prop_assert!(problems.errors.iter().all(|error| error.line >= 1 && error.column >= 1));
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in "\\PC{0,200}") {
        prop_assert!(parse(&text, "policy.yaml").is_err());
    }
}

#[test]
fn routes_that_lead_nowhere_or_contradict_themselves() {
    let images = "path: /v1/images/generations, provider: openai, cost_tokens: 4_000";
    let route = |to: &str, at: &str, path: &str, message: &str| demands(images, to, at, path, message);
    route("path: /v1/images/generations", "/v1/images/generations", "routes[2].path", "goes to no provider");
    let stateful = "path: /v1/images/generations, provider: openai, cost_tokens: 0, stateful: yes";
    assert!(errors_of(&with(images, stateful)).len() == 1);
    let message = "keeps nothing, or is stateful by being named";
    let stateful = "path: /v1/images/generations, provider: openai, cost_tokens: 0, stateful: true }  #";
    let errors = errors_of(&with(images, stateful));
    assert!(errors.iter().any(|error| error.message.contains(message)), "{errors:#?}");
    let both = with("/v1/responses, stateful: true", "/v1/responses, stateful: true, stateless: true");
    assert!(errors_of(&both).iter().any(|error| error.message.contains("at once")));
    let priced = with("/v1/responses, stateful: true", "/v1/responses, cost_tokens: 5");
    assert!(errors_of(&priced).iter().any(|error| error.path == "routes[4].cost_tokens"));
    let warned = warnings_of(&with(images, "path: /v1/images/generations, provider: openai"));
    assert!(warned.iter().any(|warning| warning.message.contains("costs no tokens")), "{warned:#?}");
}

#[test]
fn issuers_that_cannot_be_trusted() {
    let said = |from: &str, to: &str, path: &str, message: &str| {
        let errors = errors_of(&with(from, to));
        assert!(
            errors.iter().any(|error| error.path == path && error.message.contains(message)),
            "{path}: {errors:#?}"
        );
    };
    said("[RS256, ES256]", "[RS256, none]", "identity[0].algorithms[1]", "not one of the words");
    said("[RS256, ES256]", "[RS256, HS256]", "identity[0].algorithms", "do not go with");
    said("[HS256]", "[ES256]", "identity[1].algorithms", "do not go with");
    said("[RS256, ES256]", "[]", "identity[0].algorithms", "no signature");
    said(
        "https://id.example.com/jwks.json",
        "http://id.example.com/jwks.json",
        "identity[0].keys",
        "in the clear",
    );
    said("issuer: internal", "issuer: https://id.example.com", "identity[1].issuer", "already here");
    said("tenants: [northwind]", "tenants: [contoso]", "identity[0].tenants[0]", "no tenant");
    said("    audience: [tollgate, gateway]\n", "    audience: []\n", "identity[0].audience", "");
    said("env:TOKEN_SECRET", "hunter2", "identity[1].secret", "not a reference");
    let tenant = with("  - id: evaluation", "  - id: anonymous");
    assert!(errors_of(&tenant).iter().any(|error| error.path == "anonymous"));
}
