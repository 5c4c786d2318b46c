//! Tokens, addresses and names that somebody else wrote: a forged, spoofed or borrowed identity never changes another tenant's
//! level.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use support::inside::chat;
use support::{Inside, Key, Policy, Response, eventually};

const LIMITS: &str = "requests_per_minute: 1, burst_requests: 100";

/// An issuer with one key pair, whose set lies in a file.
struct Issuer {
    pair: EcdsaKeyPair,
    id: &'static str,
    file: std::path::PathBuf,
}

impl Issuer {
    fn new(folder: &std::path::Path, id: &'static str) -> Issuer {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
        let issuer = Issuer { pair, id, file: folder.join("jwks.json") };
        issuer.publish();
        issuer
    }

    fn publish(&self) {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let point = self.pair.public_key().as_ref();
        let set = json!({"keys": [{
            "kty": "EC", "crv": "P-256", "kid": self.id, "x": encode(&point[1..33]), "y": encode(&point[33..]),
        }]});
        let new = self.file.with_extension("new");
        std::fs::write(&new, set.to_string()).unwrap();
        std::fs::rename(new, &self.file).unwrap();
    }

    fn token(&self, tenant: &str, change: impl FnOnce(&mut Value)) -> String {
        let now = tollgate::clock::wall_now().as_second();
        let mut claims =
            json!({"iss": "https://id.test", "aud": "tollgate", "exp": now + 600, "tenant": tenant});
        change(&mut claims);
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&json!({"alg": "ES256", "kid": self.id})), encode(&claims));
        let signature = self.pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    fn policy(&self, policy: Policy) -> Policy {
        policy.tenant("northwind", &Key::of("northwind"), LIMITS).tenant("contoso", &Key::of("contoso"), LIMITS).and(
            &format!(
                "identity:\n  - {{ issuer: \"https://id.test\", audience: tollgate, algorithms: [ES256], keys: \"file:{}\", \
                 tenant_claim: tenant }}",
                self.file.display()
            ),
        )
    }
}

async fn ask(inside: &Inside, headers: &[(&str, &str)]) -> Response {
    inside.client.post(&inside.at("/v1/chat/completions"), headers, &chat(4)).await
}

async fn bearer(inside: &Inside, token: &str) -> u16 {
    ask(inside, &[("authorization", &format!("Bearer {token}"))]).await.status
}

async fn requests(inside: &Inside, tenant: &str) -> i64 {
    inside.used(&Key::of(tenant), "tenant", "requests_per_minute").await
}

async fn until_known(inside: &Inside, token: &str) {
    eventually("the issuer's keys are known", async || match bearer(inside, token).await {
        200 => Ok(()),
        status => Err(status.to_string()),
    })
    .await;
}

#[tokio::test]
async fn a_signed_token_speaks_for_its_tenant_in_every_header_that_carries_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::new(folder.path(), "one");
    let inside = Inside::under(|policy| issuer.policy(policy)).await;
    let token = issuer.token("northwind", |_| {});
    until_known(&inside, &token).await;
    for header in ["x-api-key", "api-key", "x-goog-api-key"] {
        assert_eq!(ask(&inside, &[(header, &token)]).await.status, 200, "{header}");
    }
    assert_eq!(requests(&inside, "northwind").await, 4);
    assert_eq!(requests(&inside, "contoso").await, 0);
    // Ours and a key of another tenant are two credentials that differ.
    let theirs = Key::of("contoso").secret;
    let both = ask(&inside, &[("x-api-key", &token), ("api-key", &theirs)]).await;
    assert_eq!((both.status, requests(&inside, "contoso").await), (401, 0));
}

#[tokio::test]
async fn a_forged_token_changes_nobody_s_level() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::new(folder.path(), "one");
    let inside = Inside::under(|policy| issuer.policy(policy)).await;
    let good = issuer.token("northwind", |_| {});
    until_known(&inside, &good).await;
    let before = requests(&inside, "northwind").await;

    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = Issuer::new(elsewhere.path(), "one");
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let (head, claims) = signed.split_once('.').unwrap();
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let other_claims = issuer.token("contoso", |_| {}).split('.').nth(1).unwrap().to_owned();
    let hmac = {
        let message = format!("{}.{claims}", encode(json!({"alg": "HS256", "kid": "one"})));
        let key =
            ring::hmac::Key::new(ring::hmac::HMAC_SHA256, std::fs::read(&issuer.file).unwrap().as_slice());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, message.as_bytes()).as_ref()))
    };
    for forged in [
        stranger.token("northwind", |_| {}),
        stranger.token("contoso", |_| {}),
        format!("{head}.{other_claims}.{signature}"),
        format!("{}.{claims}.", encode(json!({"alg": "none"}))),
        format!("{head}.{claims}."),
        hmac,
        issuer.token("nobody", |_| {}),
        issuer.token("", |_| {}),
        issuer.token("NORTHWIND", |_| {}),
        issuer.token("anonymous", |_| {}),
        issuer.token("northwind", |claims| claims["tenant"] = json!(["northwind"])),
        issuer.token("northwind", |claims| claims["exp"] = json!(1)),
        issuer.token("northwind", |claims| claims["exp"] = json!("9999999999")),
        issuer.token("northwind", |claims| claims["nbf"] = json!(9_999_999_999_u64)),
        issuer.token("northwind", |claims| claims["aud"] = json!("another")),
        issuer.token("northwind", |claims| claims["iss"] = json!("https://id.test.example")),
        issuer.token("northwind", |claims| _ = claims.as_object_mut().unwrap().remove("exp")),
    ] {
        assert_eq!(bearer(&inside, &forged).await, 401, "{forged}");
    }
    assert_eq!(requests(&inside, "northwind").await, before);
    assert_eq!(requests(&inside, "contoso").await, 0);
}

#[tokio::test]
async fn keys_rotate_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let first = Issuer::new(folder.path(), "one");
    let inside = Inside::under(|policy| first.policy(policy)).await;
    let old = first.token("northwind", |_| {});
    until_known(&inside, &old).await;
    let second = Issuer::new(folder.path(), "two");
    until_known(&inside, &second.token("northwind", |_| {})).await;
    assert_eq!(bearer(&inside, &old).await, 401, "what is signed with a key that was withdrawn");
    // A broken file leaves the last good keys in force.
    std::fs::write(&second.file, "{").unwrap();
    assert_eq!(bearer(&inside, &second.token("northwind", |_| {})).await, 200);
}

#[tokio::test]
async fn what_a_caller_says_of_itself_changes_no_level() {
    let inside = Inside::under(|policy| {
        policy.tenant("northwind", &Key::of("northwind"), LIMITS).tenant(
            "contoso",
            &Key::of("contoso"),
            LIMITS,
        )
    })
    .await;
    let ours = Key::of("northwind").bearer();
    let claims = [
        "x-tenant",
        "x-tenant-id",
        "x-tollgate-tenant",
        "x-tollgate-key",
        "x-tollgate-decision",
        "openai-organization",
        "openai-project",
        "x-forwarded-for",
        "forwarded",
        "x-real-ip",
        "x-user-id",
        "x-forwarded-user",
        "cookie",
        "x-ms-client-principal-name",
        "x-goog-user-project",
        "anthropic-organization-id",
        "true-client-ip",
    ];
    for (sent, header) in claims.iter().enumerate() {
        let answer = ask(&inside, &[("authorization", &ours), (header, "contoso")]).await;
        assert_eq!(answer.status, 200, "{header}");
        assert_eq!(requests(&inside, "northwind").await, i64::try_from(sent).unwrap() + 1, "{header}");
        let alone = ask(&inside, &[(header, "contoso")]).await;
        assert_eq!(alone.status, 401, "{header}");
    }
    for member in ["user", "safety_identifier", "tenant", "organization", "api_key", "metadata"] {
        let mut body = chat(4);
        body[member] = if member == "metadata" { json!({"tenant": "contoso"}) } else { json!("contoso") };
        let url = inside.at("/v1/chat/completions?tenant=contoso&api_key=tg-1&key=tg-1");
        let answer = inside.client.post(&url, &[("authorization", &ours)], &body).await;
        assert_eq!(answer.status, 200, "{member}: {}", answer.text());
    }
    assert_eq!(requests(&inside, "contoso").await, 0);
}

#[tokio::test]
async fn callers_without_a_credential_share_one_bucket_and_none_of_a_tenant_s() {
    let anonymous = "anonymous: { tokens_per_minute: 5_000, requests_per_minute: 1, burst_requests: 4, \
                     per_ip: { requests_per_minute: 1, burst_requests: 2 }, allow_models: [gpt-5-mini] }\n\
                     trusted_proxies: [127.0.0.0/8]";
    let inside =
        Inside::under(|policy| policy.tenant("northwind", &Key::of("northwind"), LIMITS).and(anonymous))
            .await;
    let mini =
        json!({"model": "gpt-5-mini", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4});
    let from = async |address: &str| {
        let headers = [("x-forwarded-for", address)];
        inside.client.post(&inside.at("/v1/chat/completions"), &headers, &mini).await
    };
    let code = |answer: &Response| answer.header("x-tollgate-error").map(str::to_owned);

    let large = inside.client.post(&inside.at("/v1/chat/completions"), &[], &chat(4)).await;
    assert_eq!((large.status, code(&large).as_deref()), (403, Some("model_not_allowed")));
    assert_eq!((from("192.0.2.1").await.status, from("192.0.2.1").await.status), (200, 200));
    let third = from("192.0.2.1").await;
    assert_eq!((third.status, code(&third).as_deref()), (429, Some("ip_rate_limit_exceeded")));
    // What the caller itself wrote before the proxy's entry makes it nobody else.
    let spoofed = from("192.0.2.9, 192.0.2.1").await;
    assert_eq!(code(&spoofed).as_deref(), Some("ip_rate_limit_exceeded"));
    assert_eq!((from("192.0.2.2").await.status, from("192.0.2.3").await.status), (200, 200));
    let full = from("192.0.2.4").await;
    assert_eq!((full.status, code(&full).as_deref()), (429, Some("tenant_rate_limit_exceeded")));

    // A wrong credential is not none.
    assert_eq!(ask(&inside, &[("x-api-key", "tg-wrong")]).await.status, 401);
    assert_eq!(requests(&inside, "northwind").await, 0);
    inside.assert_at_rest().await;
}
