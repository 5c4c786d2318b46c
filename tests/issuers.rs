//! Issuers whose keys lie at an address: fetched, kept, renewed, and never replaced by something worse.
//!
//! Time is tokio's, paused: minutes pass while nothing happens.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RsaEncoding, RsaKeyPair, RsaPublicKeyComponents,
};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tollgate::clock::{Clocks, wall_now};
use tollgate::limit::Options;
use tollgate::node::{Node, Snapshot};

/// A key of 2,048 bits that signs nothing outside this file.
const SIGNER: &str = include_str!("data/rsa_signer.b64");

/// The modulus of a key of 1,024 bits, and a token that it has signed, good until 2100.
const WEAK: &str = "1PtllcJqH1uXgA5ZzMgwcQjoR1fmxb1BVwT1KsSGGKXx1nJ0l-guQk2Y132x7RKbX7l9J8NGqmX2uOFEvKztiArros3Wl81Kn8JANXJubz2DbXS3\
                    R3Blu6ajtgSeunaCCy14ZBO5rDDRlAhGv3awa0V_LeSF0WP0ybm9E_Bxd0E";
const WEAKLY_SIGNED: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IndlYWsifQ.eyJpc3MiOiJodHRwczovL2lkLnRlc3QiLCJhdWQiOiJ0b2xsZ2F0ZSIsImV4cCI6NDEwMjQ0NDgwMCwidGVuYW50Ijoibm9ydGh3aW5kIn0.\
                             TnZj8ctGKfrLF1SCXeMEpO_1Lfn-kqZS6Kv2PXkYs6CfsN-cDiEeMjXaD7EevCQR4GH63ybvIuMjV_f1TVbtPwux4Rr9CqdIVjQs7yr3ZAcNlIZ-KMruLkbdrbobGp_CoMuyKv7TrbwHHldR2PX-PxtcxrRc64INkm54i7Gic0c";

/// What the address answers: a whole HTTP response, or nothing, ever.
type Answer = Arc<Mutex<Option<Vec<u8>>>>;

/// An address that answers as it is told, and a node that follows it.
struct Stage {
    node: Arc<Node>,
    signer: RsaKeyPair,
    answer: Answer,
    asked: Arc<AtomicUsize>,
    stopping: CancellationToken,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stopping.cancel();
    }
}

impl Stage {
    async fn open() -> Stage {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/jwks.json", listener.local_addr().unwrap());
        let (answer, asked) = (Answer::default(), Arc::new(AtomicUsize::new(0)));
        tokio::spawn(serve(listener, answer.clone(), asked.clone()));
        let text = format!(
            "version: 1\nproviders: {{ p: {{ dialect: openai, base_url: 'http://127.0.0.1:1' }} }}\npools: {{}}\nmodels: {{}}\n\
             tiers: {{ t: {{ tokens_per_minute: 10 }} }}\ntenants: [ {{ id: northwind, tier: t }} ]\n\
             identity: [ {{ issuer: 'https://id.test', audience: tollgate, algorithms: [RS256, RS384, RS512], keys: '{url}', tenant_claim: tenant }} ]\n"
        );
        let policy = tollgate::policy::parse(&text, "policy").unwrap_or_else(|problems| panic!("{problems}"));
        let node = Arc::new(Node::alone(Snapshot::first(policy), Options::default(), Arc::new(Clocks)));
        let stopping = CancellationToken::new();
        tokio::spawn(tollgate::issuers::follow(node.clone(), stopping.clone()));
        let document = STANDARD.decode(SIGNER.split_whitespace().collect::<String>()).unwrap();
        Stage { node, signer: RsaKeyPair::from_pkcs8(&document).unwrap(), answer, asked, stopping }
    }

    fn answer(&self, response: impl Into<Vec<u8>>) {
        *self.answer.lock().unwrap() = Some(response.into());
    }

    /// A set with the signer's key under this id.
    fn set(&self, id: &str) -> Value {
        let public = RsaPublicKeyComponents::<Vec<u8>>::from(self.signer.public());
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (n, e) = (public.n.as_slice(), public.e.as_slice());
        json!({ "keys": [{ "kty": "RSA", "kid": id, "use": "sig", "n": encode(n), "e": encode(e) }] })
    }

    fn token(&self, algorithm: &str, id: &str) -> String {
        let padding: &dyn RsaEncoding = match algorithm {
            "RS384" => &RSA_PKCS1_SHA384,
            "RS512" => &RSA_PKCS1_SHA512,
            _ => &RSA_PKCS1_SHA256,
        };
        let claims = json!({
            "iss": "https://id.test", "aud": "tollgate", "exp": wall_now().as_second() + 3_600, "tenant": "northwind",
        });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message = format!("{}.{}", encode(&json!({ "alg": algorithm, "kid": id })), encode(&claims));
        let mut signature = vec![0; self.signer.public().modulus_len()];
        self.signer.sign(padding, &SystemRandom::new(), message.as_bytes(), &mut signature).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn accepts(&self, token: &str) -> bool {
        let tenant = self.node.snapshot().issuers.tenant(token.as_bytes(), wall_now());
        tenant.as_deref() == Some("northwind")
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// With its keys under the id `one`.
    async fn with_keys() -> Stage {
        let stage = Stage::open().await;
        stage.answer(ok(&stage.set("one").to_string()));
        pass(1).await;
        assert!(stage.accepts(&stage.token("RS256", "one")));
        stage
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

async fn serve(listener: TcpListener, answer: Answer, asked: Arc<AtomicUsize>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        asked.fetch_add(1, Ordering::SeqCst);
        let answer = answer.lock().unwrap().clone();
        tokio::spawn(async move {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            match answer {
                Some(answer) => _ = stream.write_all(&answer).await,
                None => std::future::pending().await,
            }
        });
    }
}

/// Lets so many seconds of the paused clock go by.
async fn pass(seconds: u64) {
    let _elapsed = tokio::time::timeout(Duration::from_secs(seconds), std::future::pending::<()>()).await;
}

#[tokio::test(start_paused = true)]
async fn keys_at_an_address_verify_what_they_have_signed() {
    let stage = Stage::with_keys().await;
    for algorithm in ["RS256", "RS384", "RS512"] {
        assert!(stage.accepts(&stage.token(algorithm, "one")), "{algorithm}");
    }
    let good = stage.token("RS256", "one");
    let (message, signature) = good.rsplit_once('.').unwrap();
    let (_, claims) = message.split_once('.').unwrap();
    let head =
        |algorithm: &str| URL_SAFE_NO_PAD.encode(json!({ "alg": algorithm, "kid": "one" }).to_string());
    // Signed for one algorithm is not signed for another; nor is the key's own text a secret to sign with.
    let modulus = stage.set("one")["keys"][0]["n"].as_str().unwrap().to_owned();
    let hmac = {
        let message = format!("{}.{claims}", head("HS256"));
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, modulus.as_bytes());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, message.as_bytes()).as_ref()))
    };
    for forged in [
        format!("{}.{claims}.{signature}", head("RS512")),
        format!("{}.{claims}.{signature}", head("ES256")),
        hmac,
    ] {
        assert!(!stage.accepts(&forged), "{forged}");
    }
    let before = stage.asked();
    pass(4 * 60).await;
    assert_eq!(stage.asked(), before, "fresh keys are not fetched");
    pass(2 * 60).await;
    assert_eq!(stage.asked(), before + 1);
}

#[tokio::test(start_paused = true)]
async fn keys_are_renewed_when_something_is_signed_with_a_new_one() {
    let stage = Stage::with_keys().await;
    let (old, new) = (stage.token("RS256", "one"), stage.token("RS256", "two"));
    stage.answer(ok(&stage.set("two").to_string()));
    assert!(!stage.accepts(&new));
    pass(11).await;
    assert!(stage.accepts(&new));
    assert!(!stage.accepts(&old), "what is signed with a key that was withdrawn");
}

#[tokio::test(start_paused = true)]
async fn made_up_keys_make_us_ask_now_and_then_and_no_more() {
    let stage = Stage::with_keys().await;
    let before = stage.asked();
    for number in 0..240 {
        assert!(!stage.accepts(&stage.token("RS256", &format!("made-up-{number}"))));
        let _elapsed = tokio::time::timeout(Duration::from_millis(250), std::future::pending::<()>()).await;
    }
    let asked = stage.asked() - before;
    assert!((4..=7).contains(&asked), "{asked} times in a minute");
    assert!(stage.accepts(&stage.token("RS256", "one")));
}

#[tokio::test(start_paused = true)]
async fn what_is_no_better_leaves_the_old_keys_in_force() {
    let stage = Stage::with_keys().await;
    let good = stage.token("RS256", "one");
    let two = stage.set("two").to_string();
    let large = format!("{{\"keys\":[],\"padding\":\"{}\"}}", "x".repeat(300 * 1024));
    let weak =
        json!({ "keys": [{ "kty": "RSA", "kid": "one", "use": "enc", "n": WEAK, "e": "AQAB" }] }).to_string();
    let elsewhere = "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n";
    for (what, answer) in [
        ("nothing, ever", None),
        ("a closed door", Some(String::new())),
        ("a failure", Some(ok(&two).replacen("200 OK", "500 Oh", 1))),
        ("a redirect", Some(elsewhere.to_owned())),
        ("no JSON", Some(ok("<html>"))),
        ("no key", Some(ok("{\"keys\":[]}"))),
        ("no key for signatures", Some(ok(&weak))),
        ("too much", Some(ok(&large))),
        ("half of it", Some(ok(&two)[..60].to_owned())),
    ] {
        *stage.answer.lock().unwrap() = answer.map(String::into_bytes);
        let before = stage.asked();
        assert!(!stage.accepts(&stage.token("RS256", "two")), "{what}");
        pass(25).await;
        assert!(stage.asked() > before, "{what}: nobody asked");
        assert!(stage.accepts(&good), "{what}");
        assert!(!stage.accepts(&stage.token("RS256", "two")), "{what}");
    }
    // Better ones at last.
    stage.answer(ok(&two));
    pass(25).await;
    assert!(stage.accepts(&stage.token("RS256", "two")));
}

#[tokio::test(start_paused = true)]
async fn a_weak_key_verifies_nothing() {
    let stage = Stage::open().await;
    let weak = json!({ "keys": [{ "kty": "RSA", "kid": "weak", "n": WEAK, "e": "AQAB" }] });
    stage.answer(ok(&weak.to_string()));
    pass(1).await;
    assert!(stage.node.snapshot().issuers.iter().all(|trusted| trusted.has_keys()));
    assert!(!stage.accepts(WEAKLY_SIGNED));
}

#[test]
fn keys_are_fetched_over_tls_or_from_this_machine() {
    let problems = |url: &str| {
        let text = format!(
            "version: 1\nproviders: {{ p: {{ dialect: openai, base_url: 'http://127.0.0.1:1' }} }}\npools: {{}}\nmodels: {{}}\n\
             tiers: {{ t: {{ tokens_per_minute: 10 }} }}\ntenants: [ {{ id: northwind, tier: t }} ]\n\
             identity: [ {{ issuer: 'https://id.test', audience: tollgate, algorithms: [RS256], keys: '{url}', tenant_claim: tenant }} ]\n"
        );
        tollgate::policy::parse(&text, "policy").err().map(|problems| problems.to_string())
    };
    for good in ["https://id.test/jwks.json", "http://127.0.0.1:9/jwks.json", "http://localhost:9/jwks.json"]
    {
        assert_eq!(problems(good), None, "{good}");
    }
    for bad in ["http://id.test/jwks.json", "http://127.0.0.1.id.test/jwks.json", "http://10.0.0.1/jwks.json"]
    {
        assert!(problems(bad).is_some_and(|said| said.contains("use https")), "{bad}");
    }
}
