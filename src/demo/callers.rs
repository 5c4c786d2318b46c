//! Those who ask: each request goes out once, and what came back is noted.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, header};
use http_body_util::Full;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::Stage;
use super::client::{Answer, Client};

/// The label of a key where a tenant has but one that matters.
pub(super) const MAIN: &str = "main";

/// The word that prompts and answers are made of: one token, six bytes.
pub(super) const WORD: &str = " token";

/// How long a caller waits for a whole answer before something must be wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// A key of the demo's policy.
#[must_use]
pub(super) fn key_of(tenant: &str, label: &str) -> String {
    if label == MAIN { format!("tg-demo-{tenant}") } else { format!("tg-demo-{tenant}-{label}") }
}

/// A text of so many tokens.
#[must_use]
pub(super) fn words(tokens: u64) -> String {
    WORD.repeat(usize::try_from(tokens).unwrap_or(usize::MAX / WORD.len()))
}

/// A request that someone is about to make.
#[derive(Clone, Debug)]
pub(super) struct Call {
    tenant: String,
    key: String,
    path: &'static str,
    body: Bytes,
    sim: String,
    idempotency: Option<&'static str>,
    leave_after: Option<u64>,
    /// The node that is asked; none: whichever is next.
    node: Option<usize>,
}

impl Call {
    /// A request of `tenant` with its main key.
    pub(super) fn new(tenant: &str, path: &'static str, body: &Value) -> Self {
        Self {
            tenant: tenant.to_owned(),
            key: key_of(tenant, MAIN),
            path,
            body: Bytes::from(body.to_string()),
            sim: String::new(),
            idempotency: None,
            leave_after: None,
            node: None,
        }
    }

    /// Made at this node.
    pub(super) fn at(mut self, node: usize) -> Self {
        self.node = Some(node);
        self
    }

    /// With a key that was made meanwhile.
    pub(super) fn with_secret(mut self, key: &str) -> Self {
        self.key = key.to_owned();
        self
    }

    /// With another of the tenant's keys.
    pub(super) fn with_key(mut self, label: &str) -> Self {
        self.key = key_of(&self.tenant, label);
        self
    }

    /// With a body that need not be JSON.
    pub(super) fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// With instructions to the simulated provider, its `x-sim` header.
    pub(super) fn steered(mut self, sim: impl Into<String>) -> Self {
        self.sim = sim.into();
        self
    }

    /// With an `Idempotency-Key`.
    pub(super) fn idempotent(mut self, key: &'static str) -> Self {
        self.idempotency = Some(key);
        self
    }

    /// The caller leaves when so many tokens of the answer have arrived.
    pub(super) fn leaving_after(mut self, tokens: u64) -> Self {
        self.leave_after = Some(tokens);
        self
    }

    /// The body, if it is JSON.
    pub(super) fn body_as_json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn request(&self, base: &str) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::post(format!("{base}{}", self.path))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {}", self.key));
        if self.path.starts_with("/v1/messages") {
            request = request.header("anthropic-version", "2023-06-01");
        }
        if !self.sim.is_empty() {
            request = request.header("x-sim", &self.sim);
        }
        if let Some(key) = self.idempotency {
            request = request.header("idempotency-key", key);
        }
        request.body(Full::new(self.body.clone())).map_err(|error| format!("{}: {error}", self.path))
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a request of tenant {:?} to {}", self.tenant, self.path)?;
        if self.sim.is_empty() { Ok(()) } else { write!(f, " with x-sim: {}", self.sim) }
    }
}

/// What a caller saw of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// The node that was asked, by its place on the stage.
    pub node: usize,
    /// Whose request it was; empty for a key that nobody has.
    pub tenant: String,
    /// The status; none if the caller left before there was one.
    pub status: Option<u16>,
    /// `x-tollgate-error`.
    pub code: Option<String>,
    /// `x-tollgate-decision`.
    pub decision: Option<String>,
    /// `x-should-retry`.
    pub should_retry: Option<String>,
    /// `x-tollgate-degraded`: the cheaper model that has answered.
    pub degraded: Option<String>,
    /// Tokens of the answer that had arrived when the caller left; none for one that stayed.
    pub left_with: Option<u64>,
}

/// An answer that has begun, and the node that gives it.
pub(super) struct Begun {
    node: usize,
    answer: Answer,
}

/// The callers and their notes.
pub(super) struct Callers {
    client: Client,
    /// Of each node: requests go to one after the other, whoever makes them.
    urls: Vec<String>,
    next: AtomicUsize,
    progress: ProgressBar,
    notes: Mutex<Notes>,
}

#[derive(Default)]
struct Notes {
    seen: Vec<Seen>,
    complaints: Vec<String>,
}

impl Callers {
    /// Callers of these nodes who will make so many requests, and those of [`Callers::one_more`].
    pub(super) fn new(stage: &Stage, requests: usize) -> Self {
        // Drawn on a terminal only.
        let progress =
            ProgressBar::with_draw_target(u64::try_from(requests).ok(), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("  {bar:40} {pos}/{len} requests, {elapsed}") {
            progress.set_style(style);
        }
        Self {
            client: Client::new(),
            urls: stage.callers_urls(),
            next: AtomicUsize::new(0),
            progress,
            notes: Mutex::default(),
        }
    }

    /// A request beside those that were announced.
    pub(super) fn one_more(&self) {
        self.progress.inc_length(1);
    }

    /// Makes a request and reads its answer, to the end or until the caller leaves.
    pub(super) async fn make(&self, call: &Call) -> Seen {
        let reading = async {
            let begun = self.open(call).await?;
            self.read(call, begun).await
        };
        match tokio::time::timeout(PATIENCE, reading).await {
            Ok(Ok(seen)) => seen,
            Ok(Err(problem)) => self.failed(call, &problem),
            Err(_elapsed) => self.failed(call, &format!("no whole answer within {} s", PATIENCE.as_secs())),
        }
    }

    /// Makes a request and returns at the head of its answer; [`Callers::read`] notes it.
    pub(super) async fn open(&self, call: &Call) -> Result<Begun, String> {
        self.open_at(call.node.unwrap_or_else(|| self.next_node()), call).await
    }

    async fn open_at(&self, node: usize, call: &Call) -> Result<Begun, String> {
        let answer = self.client.send(call.request(self.url(node))?).await?;
        Ok(Begun { node, answer })
    }

    /// How many nodes there are.
    pub(super) fn nodes(&self) -> usize {
        self.urls.len()
    }

    fn next_node(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len().max(1)
    }

    fn url(&self, node: usize) -> &str {
        self.urls.get(node).map_or("", String::as_str)
    }

    /// Reads an answer and notes what was seen.
    pub(super) async fn read(&self, call: &Call, begun: Begun) -> Result<Seen, String> {
        let Begun { node, mut answer } = begun;
        let mut seen = Seen {
            node,
            tenant: call.tenant.clone(),
            status: Some(answer.status.as_u16()),
            code: answer.header("x-tollgate-error").map(str::to_owned),
            decision: answer.header("x-tollgate-decision").map(str::to_owned),
            should_retry: answer.header("x-should-retry").map(str::to_owned),
            degraded: answer.header("x-tollgate-degraded").map(str::to_owned),
            left_with: None,
        };
        match call.leave_after {
            None => {
                answer.rest().await?;
            }
            Some(tokens) => {
                let mut text = Vec::new();
                while let Some(piece) = answer.next().await {
                    text.extend_from_slice(&piece?);
                    let arrived = count_words(&text);
                    if arrived >= tokens {
                        seen.left_with = Some(arrived);
                        break;
                    }
                }
            }
        }
        self.note(seen.clone());
        Ok(seen)
    }

    /// Makes a request and leaves while no answer has begun, as soon as the node holds a reservation for it.
    pub(super) async fn make_and_give_up(&self, call: &Call) {
        let node = self.next_node();
        let outcome = tokio::select! {
            begun = self.open_at(node, call) => Err(format!("an answer began: {:?}", begun.map(|begun| begun.answer.status))),
            // Asked of the same node: the owner's answers to one node come in the order of its questions, so that by then the node knows
            // that the reservation is held.
            held = self.until_open(node, call, |open| open > 0) => held,
        };
        match outcome {
            Ok(()) => self.note(Seen { node, left_with: Some(0), ..nothing_seen(call) }),
            Err(problem) => {
                self.failed(call, &problem);
            }
        }
    }

    /// Waits until the owner of the tenant knows that all its requests have ended: their gateways tell it a moment after their callers.
    pub(super) async fn at_rest(&self, call: &Call) {
        if let Err(problem) = self.until_open(0, call, |open| open == 0).await {
            self.complain(format!("{call} had not ended: {problem}"));
        }
    }

    /// Waits until so many reservations of the tenant are open as `enough` says.
    async fn until_open(&self, node: usize, call: &Call, enough: impl Fn(u64) -> bool) -> Result<(), String> {
        let me = format!("{}/tollgate/v1/me", self.url(node));
        let asking = async {
            loop {
                let page = self.client.page(&me, Some(&call.key)).await?.unwrap_or_default();
                let page: Value = serde_json::from_slice(&page).map_err(|error| format!("{me}: {error}"))?;
                if page["open_reservations"].as_u64().is_some_and(&enough) {
                    return Ok(());
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asking).await;
        asked.unwrap_or_else(|_| Err(format!("not so after {} s, says {me}", PATIENCE.as_secs())))
    }

    /// Something is not as it should be.
    pub(super) fn complain(&self, complaint: String) {
        self.notes().complaints.push(complaint);
    }

    /// What was seen, and what was wrong with it.
    pub(super) fn finish(&self) -> (Vec<Seen>, Vec<String>) {
        self.progress.finish_and_clear();
        let notes = std::mem::take(&mut *self.notes());
        (notes.seen, notes.complaints)
    }

    fn failed(&self, call: &Call, problem: &str) -> Seen {
        self.complain(format!("{call} failed: {problem}"));
        let seen = nothing_seen(call);
        self.note(seen.clone());
        seen
    }

    fn note(&self, seen: Seen) {
        self.progress.inc(1);
        self.notes().seen.push(seen);
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Between two questions whether something has happened.
const ASK_AGAIN: Duration = Duration::from_millis(10);

fn nothing_seen(call: &Call) -> Seen {
    Seen {
        node: 0,
        tenant: call.tenant.clone(),
        status: None,
        code: None,
        decision: None,
        should_retry: None,
        degraded: None,
        left_with: None,
    }
}

fn count_words(text: &[u8]) -> u64 {
    memchr::memmem::find_iter(text, WORD).count() as u64
}
