//! One request, straight down the page: steer, authenticate, read, parse, count, judge, answer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::json;
use sha2::Digest as _;

use super::answer::{Answer, Ending, Performance, Script};
use super::books::{Books, Visit};
use super::dialect::{Dialect, Refusal, json_response, limit_headers, sign};
use super::gemini::Framing;
use super::kept::Store;
use super::openai::Embeddings;
use super::order::{Order, Plan};
use super::responses::Keeping;
use super::steering::Steering;
use super::{Options, anthropic, completions, gemini, openai, responses};

/// The largest request body.
const MAX_BODY: usize = 32 * 1024 * 1024;

/// From this size on, a body is parsed and counted off the async workers: it would hold one for about a millisecond.
const LONG_BODY: usize = 64 * 1024;

/// The longest model name; a longer one is not a name.
const MAX_MODEL_NAME: usize = 128;

/// The longest decision id noted.
const MAX_DECISION: usize = 128;

/// What `fail_first` refuses with when no status is given.
const FAIL_FIRST_STATUS: u16 = 503;

const KNOWN_PATHS: [&str; 10] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/stats",
    "/requests",
    "/reset",
];

/// Below these paths it keeps documents.
const KEPT_PATHS: [&str; 3] = ["/v1/files", "/v1/batches", "/v1/responses"];

/// Paths that it answers with what it was sent.
const PASSED_PATHS: [&str; 6] = [
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/audio/transcriptions",
    "/v1/audio/speech",
    "/v1/moderations",
    "/v1/rerank",
];

/// The models listed when any name is served.
const SHOWN_MODELS: [&str; 4] = ["gpt-5", "gpt-5-mini", "claude-haiku-4-5", "text-embedding-4"];

/// What all connections share.
#[derive(Debug)]
pub struct Shop {
    /// The settings.
    pub options: Options,
    /// The books in use.
    pub books: ArcSwap<Books>,
    /// What it keeps.
    pub kept: Store,
}

/// A route that costs tokens, or counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Chat,
    Completions,
    Responses,
    Embeddings,
    Messages,
    CountTokens,
    Content,
    StreamContent(Framing),
    CountContent,
}

/// A route, with the model that its path names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Errand {
    route: Route,
    model: Option<String>,
}

impl From<Route> for Errand {
    fn from(route: Route) -> Self {
        Self { route, model: None }
    }
}

/// What a body asks for, beside its order.
#[derive(Debug, Default)]
struct Extras {
    embeddings: Option<Embeddings>,
    keeping: Keeping,
}

impl Route {
    fn dialect(self) -> Dialect {
        match self {
            Self::Chat | Self::Completions | Self::Responses | Self::Embeddings => Dialect::OpenAi,
            Self::Messages | Self::CountTokens => Dialect::Anthropic,
            Self::Content | Self::StreamContent(_) | Self::CountContent => Dialect::Gemini,
        }
    }
}

impl Errand {
    /// Reads the body that this route takes. A model in the path wins over one in the body, as at Azure.
    fn parse(&self, body: &[u8]) -> Result<(Order, Extras), Refusal> {
        let named = self.model.as_deref();
        // OpenAI's bodies must name a model; those sent to a deployment need not.
        let told;
        let body = match (named, self.route) {
            (Some(model), Route::Chat | Route::Embeddings) => {
                let mut value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
                if value.is_object() {
                    value["model"] = model.into();
                }
                told = value.to_string().into_bytes();
                told.as_slice()
            }
            _ => body,
        };
        let plain = |order| (order, Extras::default());
        let (mut order, extras) = match self.route {
            Route::Chat => openai::chat(body).map(plain)?,
            Route::Completions => completions::read(body).map(plain)?,
            Route::Responses => {
                let (order, keeping) = responses::read(body)?;
                (order, Extras { keeping, ..Extras::default() })
            }
            Route::Embeddings => {
                let (order, embeddings) = openai::embeddings(body)?;
                (order, Extras { embeddings: Some(embeddings), ..Extras::default() })
            }
            Route::Messages => anthropic::messages(body).map(plain)?,
            Route::CountTokens => anthropic::counted(body).map(plain)?,
            Route::Content | Route::CountContent => {
                gemini::read(body, named.unwrap_or_default(), false).map(plain)?
            }
            Route::StreamContent(_) => gemini::read(body, named.unwrap_or_default(), true).map(plain)?,
        };
        if let Some(model) = named {
            model.clone_into(&mut order.model);
        }
        Ok((order, extras))
    }

    /// What a path names that does not stand in a table: Azure's deployments and Gemini's models.
    fn find(path: &str, query: &str) -> Option<Self> {
        if path == "/openai/responses" {
            return Some(Route::Responses.into());
        }
        let (model, route) = if let Some(rest) = path.strip_prefix("/openai/deployments/") {
            let (model, operation) = rest.split_once('/')?;
            let route = match operation {
                "chat/completions" => Route::Chat,
                "completions" => Route::Completions,
                "embeddings" => Route::Embeddings,
                _ => return None,
            };
            (model, route)
        } else {
            let (model, operation) = path
                .strip_prefix("/v1beta/models/")
                .or_else(|| path.strip_prefix("/v1/models/"))?
                .split_once(':')?;
            let framing =
                if query.split('&').any(|pair| pair == "alt=sse") { Framing::Events } else { Framing::Array };
            let route = match operation {
                "generateContent" => Route::Content,
                "streamGenerateContent" => Route::StreamContent(framing),
                "countTokens" => Route::CountContent,
                _ => return None,
            };
            (model, route)
        };
        Some(Self { route, model: Some(model.to_owned()) })
    }
}

/// Answers one request.
///
/// # Errors
/// None: every failure is an answer.
pub async fn answer(shop: Arc<Shop>, request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let dialect = spoken(request.headers());
    let path = request.uri().path();
    if request.method() == Method::POST
        && let Some(errand) = Errand::find(path, request.uri().query().unwrap_or_default())
    {
        return Ok(match errand.route {
            Route::CountContent => count_tokens(&shop, errand, request).await,
            _ => infer(&shop, errand, request).await,
        });
    }
    Ok(match (request.method(), path) {
        (&Method::POST, "/v1/chat/completions") => infer(&shop, Route::Chat, request).await,
        (&Method::POST, "/v1/completions") => infer(&shop, Route::Completions, request).await,
        (&Method::POST, "/v1/responses") => infer(&shop, Route::Responses, request).await,
        (&Method::GET, "/v1beta/models") => {
            json_response(StatusCode::OK, &gemini::models(&shop.shown_models()))
        }
        (_, path) if KEPT_PATHS.iter().any(|kept| path.starts_with(kept)) => keep(&shop, request).await,
        (&Method::POST, path) if PASSED_PATHS.contains(&path) => pass(request).await,
        (&Method::POST, "/v1/embeddings") => infer(&shop, Route::Embeddings, request).await,
        (&Method::POST, "/v1/messages") => infer(&shop, Route::Messages, request).await,
        (&Method::POST, "/v1/messages/count_tokens") => {
            count_tokens(&shop, Route::CountTokens.into(), request).await
        }
        (&Method::GET, "/v1/models") => models(&shop, dialect, None, request.headers()),
        (&Method::GET, path) if path.starts_with("/v1/models/") => {
            models(&shop, dialect, path.strip_prefix("/v1/models/"), request.headers())
        }
        (&Method::GET, "/stats") => json_response(StatusCode::OK, &json!(shop.books.load().stats())),
        (&Method::GET, "/requests") => rows(shop.books.load_full()),
        (&Method::DELETE, "/stats") | (&Method::POST, "/reset") => {
            shop.reset();
            json_response(StatusCode::OK, &json!(shop.books.load().stats()))
        }
        (method, path) => nowhere(method, path, dialect),
    })
}

impl Shop {
    /// Opens new books.
    pub fn reset(&self) {
        self.books.store(Arc::new(Books::open(self.options.ceilings)));
    }

    fn serves(&self, model: &str) -> bool {
        model.len() <= MAX_MODEL_NAME
            && !model.is_empty()
            && (self.options.models.is_empty() || self.options.models.iter().any(|name| name == model))
    }

    fn shown_models(&self) -> Vec<String> {
        match self.options.models.as_slice() {
            [] => SHOWN_MODELS.map(str::to_owned).to_vec(),
            names => names.to_vec(),
        }
    }
}

/// An inference request: everything about it ends in its row.
async fn infer(shop: &Shop, errand: impl Into<Errand>, request: Request<Incoming>) -> Response<Answer> {
    let errand = errand.into();
    let route = errand.route;
    let dialect = route.dialect();
    let mut visit = shop.books.load_full().arrive(decision(request.headers()));
    let served = serve(shop, errand, &mut visit, request).await;

    let (id, elapsed_ms, standing) = (visit.id().to_owned(), visit.elapsed_ms(), visit.books().standing());
    let mut response = match served {
        Ok(served) => perform(shop, served, route, visit),
        Err(refusal) => {
            visit.end(refusal.outcome);
            refusal.into_response(dialect, Some(&id))
        }
    };
    sign(response.headers_mut(), dialect, &id, elapsed_ms);
    limit_headers(response.headers_mut(), dialect, &standing);
    response
}

/// A request that has been judged and billed for its input, and is about to be answered.
struct Served {
    plan: Plan,
    steering: Steering,
    extras: Extras,
}

async fn serve(
    shop: &Shop,
    errand: Errand,
    visit: &mut Visit,
    request: Request<Incoming>,
) -> Result<Served, Refusal> {
    let dialect = errand.route.dialect();
    let (steering, order, extras) = read_order(errand, request).await?;
    if !shop.serves(&order.model) {
        return Err(Refusal::no_model(dialect, &order.model));
    }
    if let Some(previous) = &extras.keeping.previous
        && shop.kept.find(previous).is_none()
    {
        let message = format!("Previous response with id '{previous}' not found.");
        return Err(Refusal::bad_field("previous_response_id", message));
    }
    visit.name_model(&order.model);
    if let Some(status) = refused_status(&steering, visit.books()) {
        pause(steering.latency).await;
        return Err(Refusal::asked_for(status, steering.retry_after));
    }
    let plan = Plan::new(order, &steering, shop.options.skew).map_err(Refusal::bad_request)?;
    visit.admit(plan.bill).map_err(|over| Refusal::over_ceiling(&plan.model, &over))?;
    if steering.hang {
        std::future::pending::<()>().await;
    }
    pause(steering.latency).await;
    Ok(Served { plan, steering, extras })
}

/// Counting tokens is free and leaves no row.
async fn count_tokens(shop: &Shop, errand: Errand, request: Request<Incoming>) -> Response<Answer> {
    let dialect = errand.route.dialect();
    let id = format!("req_{:016x}", rand::random::<u64>());
    let counted = read_order(errand, request).await.and_then(|(steering, order, _)| {
        if let Some(status) = refused_status(&steering, &shop.books.load()) {
            return Err(Refusal::asked_for(status, steering.retry_after));
        }
        let input = steering.skew.unwrap_or(shop.options.skew).apply(order.prompt);
        let body = match dialect {
            Dialect::Gemini => json!({"totalTokens": input}),
            _ => json!({"input_tokens": input}),
        };
        Ok(json_response(StatusCode::OK, &body))
    });
    let mut response = counted.unwrap_or_else(|refusal| refusal.into_response(dialect, Some(&id)));
    sign(response.headers_mut(), dialect, &id, 0);
    response
}

/// What the two kinds of request share: steering, credential, body.
async fn read_order(
    errand: Errand,
    request: Request<Incoming>,
) -> Result<(Steering, Order, Extras), Refusal> {
    let route = errand.route;
    let (head, body) = request.into_parts();
    let steering = steering(&head.headers)?;
    authenticate(&head.headers, route.dialect())?;
    if route.dialect() == Dialect::Anthropic && !head.headers.contains_key("anthropic-version") {
        return Err(Refusal::bad_request("anthropic-version: header is required"));
    }
    let body = read(body).await?;
    let (order, extras) = parse(errand, body).await?;
    Ok((steering, order, extras))
}

async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Refusal::new(413, format!("The request body is larger than {MAX_BODY} bytes.")))
        }
        Err(error) => Err(Refusal::bad_request(format!("The request body could not be read: {error}."))),
    }
}

async fn parse(errand: Errand, body: Bytes) -> Result<(Order, Extras), Refusal> {
    if body.len() < LONG_BODY {
        return errand.parse(&body);
    }
    let parsed = tokio::task::spawn_blocking(move || errand.parse(&body)).await;
    parsed
        .unwrap_or_else(|error| Err(Refusal::new(500, format!("The request could not be counted: {error}."))))
}

fn steering(headers: &HeaderMap) -> Result<Steering, Refusal> {
    let Some(value) = headers.get("x-sim") else { return Ok(Steering::default()) };
    let text = value.to_str().map_err(|_| Refusal::bad_request("x-sim: the header is not plain ASCII"))?;
    Steering::parse(text).map_err(Refusal::bad_request)
}

/// Any credential will do, but there must be one.
fn authenticate(headers: &HeaderMap, dialect: Dialect) -> Result<(), Refusal> {
    let bearer = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "))
        .is_some_and(|key| !key.trim().is_empty());
    let key_header = match dialect {
        Dialect::OpenAi => "api-key",
        Dialect::Anthropic => "x-api-key",
        Dialect::Gemini => "x-goog-api-key",
    };
    let key = headers.get(key_header).is_some_and(|value| !value.is_empty());
    if bearer || key { Ok(()) } else { Err(Refusal::no_credential(dialect)) }
}

/// The status to refuse this request with, if `x-sim` asks for one.
fn refused_status(steering: &Steering, books: &Books) -> Option<u16> {
    match &steering.fail_first {
        Some(group) => {
            books.fails_first(&group.key, group.times).then_some(steering.status.unwrap_or(FAIL_FIRST_STATUS))
        }
        None => steering.status,
    }
}

async fn pause(wait: Duration) {
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// Turns a plan into an answer that bills as it goes.
fn perform(shop: &Shop, served: Served, route: Route, visit: Visit) -> Response<Answer> {
    let Served { plan, steering, extras: Extras { embeddings, keeping } } = served;
    let suffix = visit.id_suffix();
    if route == Route::Responses && (keeping.store || keeping.background) {
        let whole = responses::plain(&plan, suffix, &keeping);
        shop.kept.keep(&format!("resp_{suffix}"), whole, Bytes::new());
    }
    let mut response = Response::new(Answer::plain(Bytes::new()));
    let headers = response.headers_mut();
    let (script, ending) = if plan.stream {
        let kind = match route {
            Route::StreamContent(Framing::Array) => "application/json; charset=UTF-8",
            _ => "text/event-stream; charset=utf-8",
        };
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let line_end = if steering.crlf { "\r\n" } else { "\n" };
        let script = match route {
            Route::Completions => completions::streamed(&plan, suffix, line_end),
            Route::Responses => responses::streamed(&plan, suffix, &keeping, line_end),
            Route::Messages => anthropic::streamed(&plan, suffix, line_end),
            Route::StreamContent(framing) => gemini::streamed(&plan, suffix, framing, line_end),
            _ => openai::streamed(&plan, suffix, line_end),
        };
        debug_assert_eq!(script.tokens(), plan.bill.output, "a whole answer carries what it is judged by");
        shorten_stream(script, &steering)
    } else {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = match (route, &embeddings) {
            (_, Some(embeddings)) => openai::embedded(embeddings, &plan),
            (Route::Completions, _) => completions::plain(&plan, suffix),
            (Route::Responses, _) if keeping.background => responses::queued(&plan, suffix, &keeping),
            (Route::Responses, _) => responses::plain(&plan, suffix, &keeping),
            (Route::Messages, _) => anthropic::plain(&plan, suffix),
            (Route::Content, _) => gemini::plain(&plan, suffix),
            _ => openai::plain(&plan, suffix),
        };
        let body = Bytes::from(body.to_string());
        if !steering.gzip {
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
        }
        shorten_plain(body, plan.bill.output, &steering)
    };
    if steering.gzip {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    let performance = Performance::new(script, ending, steering.gap, steering.gzip, visit);
    *response.body_mut() = Answer::Scripted(Box::new(performance));
    response
}

fn shorten_stream(mut script: Script, steering: &Steering) -> (Script, Ending) {
    if let Some(contents) = steering.fail_after
        && script.truncate(contents)
    {
        return (script, Ending::Cut);
    }
    if steering.close_early && script.truncate(script.contents() / 2) {
        return (script, Ending::Short);
    }
    (script, Ending::Whole)
}

/// A plain answer is one chunk with all the output; cut halfway, it has delivered none.
fn shorten_plain(body: Bytes, output: u64, steering: &Steering) -> (Script, Ending) {
    let mut script = Script::default();
    if steering.fail_after.is_some() {
        script.frame(body.slice(..body.len() / 2), 0);
        return (script, Ending::Cut);
    }
    script.frame(body, output);
    (script, Ending::Whole)
}

fn models(shop: &Shop, dialect: Dialect, name: Option<&str>, headers: &HeaderMap) -> Response<Answer> {
    if let Err(refusal) = authenticate(headers, dialect) {
        return refusal.into_response(dialect, None);
    }
    let body = match (dialect, name) {
        (_, Some(name)) if !shop.serves(name) => {
            return Refusal::no_model(dialect, name).into_response(dialect, None);
        }
        (Dialect::OpenAi | Dialect::Gemini, Some(name)) => openai::model(name),
        (Dialect::OpenAi | Dialect::Gemini, None) => openai::models(&shop.shown_models()),
        (Dialect::Anthropic, Some(name)) => anthropic::model(name),
        (Dialect::Anthropic, None) => anthropic::models(&shop.shown_models()),
    };
    json_response(StatusCode::OK, &body)
}

/// Answers with what it was sent: enough to tell whether anything was changed on the way. Bills nothing.
async fn pass(request: Request<Incoming>) -> Response<Answer> {
    let (head, body) = request.into_parts();
    let passed = async {
        let steering = steering(&head.headers)?;
        authenticate(&head.headers, Dialect::OpenAi)?;
        let body = read(body).await?;
        pause(steering.latency).await;
        if let Some(status) = steering.status {
            return Err(Refusal::asked_for(status, steering.retry_after));
        }
        let kind = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        Ok(json!({
            "path": head.uri.path(), "content_type": kind, "bytes": body.len(),
            "sha256": hex::encode(sha2::Sha256::digest(&body)),
            "model": serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default()["model"],
        }))
    };
    match passed.await {
        Ok(body) => json_response(StatusCode::OK, &body),
        Err(refusal) => refusal.into_response(Dialect::OpenAi, None),
    }
}

/// What is kept, for whoever has the account's key.
async fn keep(shop: &Shop, request: Request<Incoming>) -> Response<Answer> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let kept = async {
        authenticate(&head.headers, Dialect::OpenAi)?;
        let body = read(body).await?;
        let (kind, rest) =
            KEPT_PATHS.iter().find_map(|kept| Some((*kept, path.strip_prefix(kept)?))).unwrap_or(("", ""));
        let missing = || Refusal::new(404, format!("No such object: {path}"));
        let fresh = |prefix: &str| format!("{prefix}{:016x}", rand::random::<u64>());
        match (head.method.as_str(), rest.trim_start_matches('/')) {
            ("GET", "") => Ok(shop.kept.list(match kind {
                "/v1/files" => "file-",
                "/v1/batches" => "batch_",
                _ => "resp_",
            })),
            ("POST", "") if kind == "/v1/files" => {
                let id = fresh("file-");
                let file = json!({"id": id, "object": "file", "bytes": body.len(), "purpose": "batch", "filename": "f"});
                shop.kept.keep(&id, file.clone(), body);
                Ok(file)
            }
            ("POST", "") if kind == "/v1/batches" => {
                let asked: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
                let input = asked["input_file_id"].as_str().unwrap_or_default();
                shop.kept.find(input).ok_or_else(missing)?;
                let id = fresh("batch_");
                let batch = json!({
                    "id": id, "object": "batch", "endpoint": asked["endpoint"], "status": "completed",
                    "input_file_id": input, "output_file_id": fresh("file-"), "completion_window": "24h",
                    "created_at": crate::clock::wall_now().as_second(),
                });
                shop.kept.keep(&id, batch.clone(), Bytes::new());
                Ok(batch)
            }
            ("DELETE", id) if shop.kept.remove(id) => Ok(json!({"id": id, "deleted": true})),
            ("GET" | "POST", rest) => {
                let (id, _) = rest.split_once('/').unwrap_or((rest, ""));
                shop.kept.find(id).map(|(document, _)| document).ok_or_else(missing)
            }
            _ => Err(missing()),
        }
    };
    match kept.await {
        Ok(body) => json_response(StatusCode::OK, &body),
        Err(refusal) => refusal.into_response(Dialect::OpenAi, None),
    }
}

fn rows(books: Arc<Books>) -> Response<Answer> {
    let mut response = Response::new(Answer::Rows(books, 0));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response
}

/// The dialect of a path that both share, or that neither has.
fn spoken(headers: &HeaderMap) -> Dialect {
    if headers.contains_key("anthropic-version") { Dialect::Anthropic } else { Dialect::OpenAi }
}

fn nowhere(method: &Method, path: &str, dialect: Dialect) -> Response<Answer> {
    let refusal = if KNOWN_PATHS.contains(&path) {
        Refusal::new(405, format!("Not allowed to {method} on {path}."))
    } else {
        Refusal::new(404, format!("Invalid URL ({method} {path})"))
    };
    refusal.into_response(dialect, None)
}

/// The caller's own id for the request.
fn decision(headers: &HeaderMap) -> Option<String> {
    let value = headers.get("x-tollgate-decision")?.to_str().ok()?;
    (value.len() <= MAX_DECISION).then(|| value.to_owned())
}
