//! A node and the simulated provider inside the test's own process, each behind its own port: for stories that look into the
//! node's books, or that need many nodes and no processes.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate::admin::AdminToken;
use tollgate::gateway::{First, Gateway, GatewayOptions};
use tollgate::limit::Options;
use tollgate::node::Node;
use tollgate::proxy::{EdgeOptions, ServerOptions};
use tollgate::simulated;

use super::process::temporary_directory;
use super::{Client, Key, Policy, Response, eventually};

/// The operators' token of every node in here.
pub const OPERATOR: &str = "the token of this test's operator";

/// What the node sends to its provider as its credential.
pub const PROVIDER_SECRET: &str = "sk-simulated";

/// A provider, and a node before it.
pub struct Inside {
    /// Who answers, and what it has billed.
    pub provider: simulated::Provider,
    /// Who decides.
    pub gateway: Gateway,
    /// A caller's client.
    pub client: Client,
    /// Holds the provider's secret.
    folder: TempDir,
}

impl Inside {
    /// A node under a policy that is written on top of two providers, both the simulated one.
    pub async fn under(policy: impl FnOnce(Policy) -> Policy) -> Inside {
        Inside::with(|_| {}, policy).await
    }

    /// The same, with settings of the node's own.
    pub async fn with(
        set: impl FnOnce(&mut GatewayOptions),
        policy: impl FnOnce(Policy) -> Policy,
    ) -> Inside {
        let provider = simulated::Provider::bind(loopback(), simulated::Options::default())
            .await
            .expect("loopback has a free port");
        let url = format!("http://{}", provider.local_addr());
        Inside::before(provider, &url, set, policy).await
    }

    /// The same, where the node finds its provider at `url`, behind a tap, say.
    pub async fn before(
        provider: simulated::Provider,
        url: &str,
        set: impl FnOnce(&mut GatewayOptions),
        policy: impl FnOnce(Policy) -> Policy,
    ) -> Inside {
        let folder = temporary_directory();
        let secret = folder.path().join("secret");
        fs::write(&secret, PROVIDER_SECRET).expect("a secret can be written to the test's own folder");
        let reference = format!("file:{}", secret.display());
        let policy = policy(Policy::at(url).secret(&reference));
        let mut options = GatewayOptions {
            listen: loopback(),
            admin: loopback(),
            token: AdminToken::given(OPERATOR).expect("it is not empty"),
            admin_tls: None,
            users: None,
            ledger: None,
            policy_file: None,
            data: None,
            limiter: Options::default(),
            edge: EdgeOptions::default(),
            server: ServerOptions::default(),
        };
        set(&mut options);
        let first = First::Document { text: policy.yaml(), name: "the test's policy".to_owned() };
        let gateway = Gateway::start(first, options).await.expect("loopback has two free ports");
        Inside { provider, gateway, client: Client::new(), folder }
    }

    /// Puts another policy in force, as a reload does.
    pub fn edit(&self, policy: impl FnOnce(Policy) -> Policy) {
        let url = format!("http://{}", self.provider.local_addr());
        let reference = format!("file:{}", self.folder.path().join("secret").display());
        let policy = parsed(&policy(Policy::at(&url).secret(&reference)));
        let next = self.node().snapshot().next(policy, tollgate::clock::now());
        self.node().apply(next);
    }

    /// The node itself.
    pub fn node(&self) -> &Arc<Node> {
        self.gateway.node()
    }

    /// A path on the callers' port.
    pub fn at(&self, path: &str) -> String {
        format!("http://{}{path}", self.gateway.callers())
    }

    /// A chat completion, its answer steered by `sim` (`x-sim`; empty steers nothing).
    pub async fn chat(&self, key: &Key, sim: &str, body: &Value) -> Response {
        let bearer = key.bearer();
        let headers = [("authorization", bearer.as_str()), ("x-sim", sim)];
        self.client.post(&self.at("/v1/chat/completions"), &headers, body).await
    }

    /// A message in the Anthropic dialect, steered likewise.
    pub async fn message(&self, key: &Key, sim: &str, body: &Value) -> Response {
        let headers =
            [("x-api-key", key.secret.as_str()), ("anthropic-version", "2023-06-01"), ("x-sim", sim)];
        self.client.post(&self.at("/v1/messages"), &headers, body).await
    }

    /// What `GET /tollgate/v1/me` says of one of the caller's limits: level, used, remaining, max, …
    pub async fn limit(&self, key: &Key, scope: &str, limit: &str) -> Value {
        let bearer = key.bearer();
        let me = self.client.get(&self.at("/tollgate/v1/me"), &[("authorization", &bearer)]).await.json();
        let limits = me["limits"].as_array().expect("a list of limits");
        let found = limits.iter().find(|entry| entry["scope"] == scope && entry["limit"] == limit);
        found.unwrap_or_else(|| panic!("no {scope}/{limit} in {me}")).clone()
    }

    /// What is used of one of the caller's limits.
    pub async fn used(&self, key: &Key, scope: &str, limit: &str) -> i64 {
        let limit = self.limit(key, scope, limit).await;
        limit["used"].as_i64().unwrap_or_else(|| panic!("nothing is used of {limit}"))
    }

    /// What was decided on a request and how it ended, by the `x-tollgate-decision` of its answer: waits until it has ended.
    pub async fn decision(&self, key: &Key, id: &str) -> Value {
        let (bearer, url) = (key.bearer(), self.at(&format!("/tollgate/v1/decisions/{id}")));
        eventually(&format!("decision {id} has ended"), async || {
            let record = self.client.get(&url, &[("authorization", &bearer)]).await.json();
            if record["ending"].is_null() { Err(record.to_string()) } else { Ok(record) }
        })
        .await
    }

    /// The same, of an answer.
    pub async fn decision_of(&self, key: &Key, answer: &Response) -> Value {
        let id = answer.header("x-tollgate-decision").expect("every answer has a decision");
        self.decision(key, id).await
    }

    /// The sum of a metric's series whose text contains each of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> i64 {
        super::process::sum_of_series(&self.node().render_metrics(), name, labels)
    }

    /// Waits until nothing is in flight and nothing is reserved, and asserts that the books balance: the limiter's own, and those
    /// that `/metrics` tells.
    pub async fn assert_at_rest(&self) {
        eventually("nothing is in flight", async || {
            let (inflight, open) = (self.node().metrics.inflight.get(), self.node().owners().held().open);
            if inflight == 0 && open == 0 {
                Ok(())
            } else {
                Err(format!("{inflight} in flight, {open} open"))
            }
        })
        .await;
        let books = self.node().owners().books();
        assert!(books.balance() && books.open == 0, "{books:?}");
        let told = |name: &str, label: &[&str]| u128::from(self.metric(name, label).unsigned_abs());
        assert_eq!(told("tollgate_tokens_reserved_total", &[]), books.reserved);
        assert_eq!(told("tollgate_tokens_refunded_total", &[]), books.refunded);
        assert_eq!(told("tollgate_tokens_overage_total", &[]), books.overage);
        assert_eq!(told("tollgate_tokens_settled_total", &[]), books.settled);
        assert_eq!(told("tollgate_tokens_unsettled_total", &["how=\"closed\""]), books.closed);
        assert_eq!(told("tollgate_tokens_unsettled_total", &["how=\"abandoned\""]), books.abandoned);
    }
}

/// A chat completion of `max_tokens` at most.
pub fn chat(max_tokens: u64) -> Value {
    json!({ "model": "gpt-5", "messages": [{ "role": "user", "content": "Say something." }], "max_tokens": max_tokens })
}

/// A message of `max_tokens` at most.
pub fn message(max_tokens: u64) -> Value {
    json!({
        "model": "claude-haiku-4-5",
        "messages": [{ "role": "user", "content": "Say something." }],
        "max_tokens": max_tokens,
    })
}

/// The same request, answered as a stream.
pub fn streamed(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

fn parsed(policy: &Policy) -> tollgate::policy::Policy {
    tollgate::policy::parse(&policy.yaml(), "the story's policy")
        .unwrap_or_else(|problems| panic!("{problems}"))
}

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}
