//! What all nodes agree on: budgets that run out, each with what the policy says of its end, and the hands that an operator lays on.

use http::Method;
use serde_json::{Value, json};

use super::{Answer, SERVED, Scenes, chat, refused};
use crate::demo::callers::Call;

const OPERATED: &str = "operated";

impl Scenes<'_> {
    pub(super) async fn budgets(&self) {
        tokio::join!(self.a_budget_in_tokens(), self.a_budget_in_dollars(), self.a_budget_that_defers());
    }

    /// Each request uses 311 tokens, and is held for little less. So three fit into 1,000, and a fourth does not: neither while they are
    /// held nor when they are settled.
    async fn a_budget_in_tokens(&self) {
        for expected in [SERVED, SERVED, SERVED, refused(429, "budget_exhausted")] {
            self.ask(in_full("allowance"), expected).await;
        }
    }

    /// Two requests cost 0.0052 dollars of 0.006. A tenth of that beyond it serves two more, each for 0.0005, by the cheaper model alone.
    async fn a_budget_in_dollars(&self) {
        for cheaper in [None, None, Some("gpt-5-mini"), Some("gpt-5-mini")] {
            let seen = self.ask(in_full("frugal"), SERVED).await;
            if seen.degraded.as_deref() != cheaper {
                self.callers.complain(format!("expected {cheaper:?} to answer, but: {seen:?}"));
            }
        }
        self.ask(in_full("frugal"), refused(429, "budget_exhausted")).await;
    }

    async fn a_budget_that_defers(&self) {
        for expected in [SERVED, refused(429, "deferred")] {
            self.ask(in_full("patient"), expected).await;
        }
    }

    /// Whatever an operator has done through one node holds at each of them once it is answered.
    pub(super) async fn an_operators_hands(&self) {
        let call = chat(OPERATED, "gpt-5", 20, 50);
        self.at_each_node(&call, SERVED).await;

        let suspension = format!("/v1/tenants/{OPERATED}/suspension");
        self.done(Method::PUT, &suspension, None).await;
        self.at_each_node(&call, refused(403, "tenant_suspended")).await;
        self.done(Method::DELETE, &suspension, None).await;
        self.at_each_node(&call, SERVED).await;

        let key = json!({ "tenant": OPERATED, "label": "ci" });
        let made = self.done(Method::POST, "/v1/keys", Some(key)).await;
        let made = call.clone().with_secret(made["key"].as_str().unwrap_or_default());
        self.at_each_node(&made, SERVED).await;

        // The older secret goes on for its grace.
        let rotated = json!({ "tenant": OPERATED, "label": "ci", "grace": "1h" });
        let rotated = self.done(Method::POST, "/v1/keys/rotate", Some(rotated)).await;
        let rotated = call.clone().with_secret(rotated["key"].as_str().unwrap_or_default());
        self.at_each_node(&rotated, SERVED).await;
        self.at_each_node(&made, SERVED).await;

        self.done(Method::DELETE, &format!("/v1/keys?tenant={OPERATED}&label=ci"), None).await;
        for revoked in [&made, &rotated] {
            self.at_each_node(revoked, refused(401, "unauthenticated")).await;
        }
        self.at_each_node(&call, SERVED).await;
    }

    async fn at_each_node(&self, call: &Call, expected: Answer) {
        for node in 0..self.callers.nodes() {
            self.ask(call.clone().at(node), expected).await;
        }
    }

    /// Has something done by the operator, and complains if it is not.
    async fn done(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        self.operator.does(method, path, body).await.unwrap_or_else(|problem| {
            self.callers.complain(format!("what an operator wanted was not done: {problem}"));
            Value::Null
        })
    }
}

/// A request whose answer is as long as it may be: what is held for it is not given back.
fn in_full(tenant: &str) -> Call {
    chat(tenant, "gpt-5", 50, 250).steered("tokens=250")
}
