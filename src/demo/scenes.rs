//! What the sample does not have: every way to be refused, every way in which a provider fails, every endpoint. A tenant each, so
//! that no scene disturbs another; what each request must be answered with stands beside it. `agreed` has those of budgets and of operators.

mod agreed;

use serde_json::{Value, json};

use super::callers::{Call, Callers, Seen, words};
use super::operator::Operator;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

/// The refusals that must have been seen by the end of the play: all that a healthy cluster can be made to give from outside.
pub(super) const REASONS: [&str; 19] = [
    "already_dispatched",
    "budget_exhausted",
    "deferred",
    "global_capacity",
    "idempotency_in_progress",
    "inflight_limit_exceeded",
    "invalid_request",
    "key_rate_limit_exceeded",
    "method_not_allowed",
    "model_not_allowed",
    "model_not_found",
    "model_rate_limit_exceeded",
    "not_found",
    "project_rate_limit_exceeded",
    "request_too_large",
    "request_too_large_for_limit",
    "tenant_rate_limit_exceeded",
    "tenant_suspended",
    "unauthenticated",
];

/// Plays all scenes at once.
pub(super) async fn play(callers: &Callers, operator: &Operator) {
    let scenes = Scenes { callers, operator };
    tokio::join!(
        scenes.limits(),
        scenes.a_narrow_pool(),
        scenes.one_at_a_time(),
        scenes.bad_input(),
        scenes.repeats(),
        scenes.failures(),
        scenes.impatience(),
        scenes.departures(),
        scenes.no_usage(),
        scenes.every_endpoint(),
        scenes.budgets(),
        scenes.an_operators_hands(),
    );
}

struct Scenes<'a> {
    callers: &'a Callers,
    operator: &'a Operator,
}

/// What a request must be answered with: the status, and the code of a refusal or a failure.
type Answer = (u16, Option<&'static str>);

const SERVED: Answer = (200, None);

const fn refused(status: u16, code: &'static str) -> Answer {
    (status, Some(code))
}

impl Scenes<'_> {
    async fn limits(&self) {
        let too_large = chat("tiny", "gpt-5", 50, 2_000);
        self.ask(too_large, refused(429, "request_too_large_for_limit")).await;

        for expected in [SERVED, SERVED, refused(429, "tenant_rate_limit_exceeded")] {
            self.ask(chat("few-requests", "gpt-5", 20, 50), expected).await;
        }
        // Each of these uses more than half of 400 tokens a minute.
        let of_key = chat("key-limited", "gpt-5", 50, 200).with_key("staging");
        let of_project = chat("projects", "gpt-5", 50, 200).with_key("search");
        let of_model = chat("model-ruled", "gpt-5-mini", 50, 200);
        for (call, code) in [
            (of_key, "key_rate_limit_exceeded"),
            (of_project, "project_rate_limit_exceeded"),
            (of_model, "model_rate_limit_exceeded"),
        ] {
            let call = call.steered("tokens=200");
            self.ask(call.clone(), SERVED).await;
            self.ask(call, refused(429, code)).await;
        }
        // The same tenants beyond the narrower limit.
        self.ask(chat("key-limited", "gpt-5", 50, 200), SERVED).await;
        self.ask(chat("projects", "gpt-5", 50, 200), SERVED).await;
        self.ask(chat("model-ruled", "gpt-5", 50, 200), SERVED).await;
        // Would be refused, and is let through.
        self.ask(chat("shadowed", "gpt-5", 50, 200), SERVED).await;
        self.ask(streamed(message("shadowed", 50, 200)), SERVED).await;
    }

    /// The pool's burst is one request and a half, so that the first finds enough beside what idle nodes hold, nine of them even; and its guard
    /// rate brings the next in ten seconds.
    async fn a_narrow_pool(&self) {
        let call = || chat("crowded", "gpt-5-narrow", 50, 300).steered("tokens=300");
        self.ask(call(), SERVED).await;
        self.ask(call(), refused(429, "global_capacity")).await;
        // No limit of the tenant's own was reached.
        self.ask(chat("crowded", "gpt-5", 50, 300), SERVED).await;
        self.ask(chat("crowded", "gpt-5-narrow", 50, 1_000), refused(429, "request_too_large_for_limit"))
            .await;
    }

    async fn one_at_a_time(&self) {
        let first = streamed(chat("one-at-a-time", "gpt-5", 20, 100)).steered("tokens=50,gap=10ms");
        let second = chat("one-at-a-time", "gpt-5", 20, 100);
        self.ask_during(&first, second.clone(), refused(429, "inflight_limit_exceeded")).await;
        self.callers.at_rest(&first).await;
        self.ask(second, SERVED).await;
    }

    async fn bad_input(&self) {
        let invalid = refused(400, "invalid_request");
        let good = chat("clumsy", "gpt-5", 20, 50);
        self.ask(chat("", "gpt-5", 20, 50), refused(401, "unauthenticated")).await;
        self.ask(good.clone().with_body(r#"{"model": "gpt-5", "messages": ["#), invalid).await;
        self.ask(good.with_body(r#"{"model": "gpt-5", "model": "gpt-5-mini", "messages": []}"#), invalid)
            .await;
        self.ask(chat("clumsy", "gpt-5", 20, 0), invalid).await;
        self.ask(message("clumsy", 20, 0), invalid).await;
        self.ask(chat("clumsy", "gpt-6", 20, 50), refused(404, "model_not_found")).await;
        self.ask(chat("restricted", "gpt-5-mini", 20, 50), refused(403, "model_not_allowed")).await;
        self.ask(chat("restricted", "gpt-5", 20, 50), SERVED).await;
        self.ask(chat("clumsy", "claude-haiku-4-5", 20, 50), refused(403, "model_not_allowed")).await;
        self.ask(Call::new("clumsy", "/v1/nowhere", &json!({})), refused(404, "not_found")).await;
        self.ask(Call::new("clumsy", "/v1/models", &json!({})), refused(405, "method_not_allowed")).await;
        // More values than a body may have.
        let ids = vec![1; 500_001];
        let endless =
            Call::new("clumsy", "/v1/embeddings", &json!({ "model": "text-embedding-4", "input": ids }));
        self.ask(endless, refused(413, "request_too_large")).await;
    }

    async fn repeats(&self) {
        let first =
            streamed(chat("repeats", "gpt-5", 20, 100)).idempotent("order-1").steered("tokens=50,gap=10ms");
        self.ask_during(&first, first.clone(), refused(409, "idempotency_in_progress")).await;
        self.callers.at_rest(&first).await;
        self.ask(first, refused(409, "already_dispatched")).await;
    }

    async fn failures(&self) {
        let plain = || chat("unlucky", "gpt-5-unlucky", 50, 200);
        let claude = || Call::new("unlucky", MESSAGES, &chat_body("claude-unlucky", 50, 200));
        // Tried again, and well in the end.
        self.ask(plain().steered("fail_first=2,key=fails-twice,status=500"), SERVED).await;
        self.ask(claude().steered("fail_first=1,key=busy-once,status=429,retry_after=1"), SERVED).await;
        // Not well in the end: the provider's own answer is passed on.
        self.ask(plain().steered("status=500"), (500, None)).await;
        self.ask(claude().steered("status=529"), (529, None)).await;
        // Broken off after the answer had begun.
        self.ask(plain().steered("fail_after=0"), refused(502, "upstream_unreadable")).await;
        self.ask(streamed(plain()).steered("fail_after=3,tokens=100"), SERVED).await;
        self.ask(streamed(claude()).steered("fail_after=3,tokens=100"), SERVED).await;
        self.ask(streamed(plain()).steered("close_early=1,tokens=100"), SERVED).await;
        // Nobody there: nothing was sent, nothing is charged.
        let nowhere = chat("unlucky", "gpt-5-nowhere", 50, 200);
        self.ask(nowhere, refused(502, "upstream_unreachable")).await;
        // From here on the pool is paused, as the provider asks.
        self.ask(plain().steered("status=429,retry_after=20"), refused(429, "upstream_rate_limited")).await;
    }

    async fn impatience(&self) {
        let slow = chat("impatient", "gpt-5-impatient", 50, 200).steered("hang=1");
        self.ask(slow, refused(504, "upstream_timeout")).await;
        self.callers.one_more();
        let given_up = chat("impatient", "gpt-5", 50, 200).steered("latency=30s");
        self.callers.make_and_give_up(&given_up).await;
    }

    async fn departures(&self) {
        let slowly = "tokens=200,gap=5ms";
        self.ask(streamed(chat("leaver", "gpt-5", 50, 300)).steered(slowly).leaving_after(20), SERVED).await;
        self.ask(streamed(message("leaver", 50, 300)).steered(slowly).leaving_after(20), SERVED).await;
        let two = with(chat_body("gpt-5", 50, 300), "n", 2);
        let two = streamed(Call::new("leaver", CHAT, &two));
        self.ask(two.steered(slowly).leaving_after(20), SERVED).await;
    }

    async fn no_usage(&self) {
        for call in [chat("unmetered", "gpt-5", 50, 200), message("unmetered", 50, 200)] {
            self.ask(call.clone().steered("usage=off,tokens=30"), SERVED).await;
            self.ask(streamed(call).steered("usage=off,tokens=30"), SERVED).await;
        }
    }

    async fn every_endpoint(&self) {
        let three = Call::new("versatile", CHAT, &with(chat_body("gpt-5", 50, 100), "n", 3));
        self.ask(three.clone().steered("tokens=40"), SERVED).await;
        self.ask(streamed(three.clone()).steered("tokens=40"), SERVED).await;
        // Usage that covers one choice of three is not the bill.
        self.ask(streamed(three).steered("tokens=40,n_finish=1"), SERVED).await;

        let parameters = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
        let tools =
            json!([{ "type": "function", "function": { "name": "look_up", "parameters": parameters } }]);
        let tools = Call::new("versatile", CHAT, &with(chat_body("gpt-5", 50, 100), "tools", tools));
        self.ask(tools.clone().steered("tool=1"), SERVED).await;
        self.ask(streamed(tools).steered("tool=1,crlf=1"), SERVED).await;
        self.ask(
            chat("versatile", "gpt-5", 500, 200).steered("cache_read=400,reasoning=50,tokens=90"),
            SERVED,
        )
        .await;
        self.ask(streamed(chat("versatile", "gpt-5", 50, 100)).steered("gzip=1"), SERVED).await;

        let tools = json!([{ "name": "look_up", "input_schema": parameters }]);
        let tools = Call::new("versatile", MESSAGES, &with(message_body(50, 100), "tools", tools));
        self.ask(message("versatile", 50, 100), SERVED).await;
        self.ask(streamed(message("versatile", 500, 200)).steered("cache_read=300,cache_write=100"), SERVED)
            .await;
        self.ask(tools.clone().steered("tool=1"), SERVED).await;
        self.ask(streamed(tools).steered("tool=1,reasoning=20,tokens=60"), SERVED).await;
        self.ask(Call::new("versatile", "/v1/messages/count_tokens", &message_body(50, 1)), SERVED).await;

        let texts = [words(30), words(60)];
        let texts = json!({ "model": "text-embedding-4", "input": texts });
        self.ask(Call::new("versatile", "/v1/embeddings", &texts), SERVED).await;
    }

    /// Makes a request, and complains unless it is answered as expected.
    async fn ask(&self, call: Call, expected: Answer) -> Seen {
        self.callers.one_more();
        let seen = self.callers.make(&call).await;
        if (seen.status, seen.code.as_deref()) != (Some(expected.0), expected.1) {
            self.callers.complain(format!("expected {expected:?} for {call}, but: {seen:?}"));
        }
        seen
    }

    /// Asks while the answer to `first` has begun and not ended.
    async fn ask_during(&self, first: &Call, second: Call, expected: Answer) {
        self.callers.one_more();
        let read = match self.callers.open(first).await {
            Ok(begun) => {
                self.ask(second, expected).await;
                self.callers.read(first, begun).await
            }
            Err(problem) => Err(problem),
        };
        if let Err(problem) = read {
            self.callers.complain(format!("{first}: {problem}"));
        }
    }
}

fn chat(tenant: &str, model: &str, prompt: u64, most: u64) -> Call {
    Call::new(tenant, CHAT, &chat_body(model, prompt, most))
}

fn chat_body(model: &str, prompt: u64, most: u64) -> Value {
    json!({ "model": model, "max_tokens": most, "messages": [{ "role": "user", "content": words(prompt) }] })
}

fn message(tenant: &str, prompt: u64, most: u64) -> Call {
    Call::new(tenant, MESSAGES, &message_body(prompt, most))
}

fn message_body(prompt: u64, most: u64) -> Value {
    chat_body("claude-haiku-4-5", prompt, most)
}

fn with(mut body: Value, member: &str, value: impl Into<Value>) -> Value {
    body[member] = value.into();
    body
}

fn streamed(call: Call) -> Call {
    let body = with(call.body_as_json(), "stream", true);
    call.with_body(body.to_string())
}
