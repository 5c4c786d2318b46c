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

use super::answer::{Answer, Ending, Performance, Script};
use super::books::{Books, Visit};
use super::dialect::{Dialect, Refusal, json_response, limit_headers, sign};
use super::openai::Embeddings;
use super::order::{Order, Plan};
use super::steering::Steering;
use super::{Options, anthropic, openai};

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

const KNOWN_PATHS: [&str; 8] = [
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/stats",
    "/requests",
    "/reset",
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
}

/// A route that costs tokens, or counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    Chat,
    Embeddings,
    Messages,
    CountTokens,
}

impl Route {
    fn dialect(self) -> Dialect {
        match self {
            Self::Chat | Self::Embeddings => Dialect::OpenAi,
            Self::Messages | Self::CountTokens => Dialect::Anthropic,
        }
    }

    /// Reads the body that this route takes.
    fn parse(self, body: &[u8]) -> Result<(Order, Option<Embeddings>), Refusal> {
        match self {
            Self::Chat => openai::chat(body).map(|order| (order, None)),
            Self::Embeddings => openai::embeddings(body).map(|(order, embeddings)| (order, Some(embeddings))),
            Self::Messages => anthropic::messages(body).map(|order| (order, None)),
            Self::CountTokens => anthropic::counted(body).map(|order| (order, None)),
        }
    }
}

/// Answers one request.
///
/// # Errors
/// None: every failure is an answer.
pub async fn answer(shop: Arc<Shop>, request: Request<Incoming>) -> Result<Response<Answer>, Infallible> {
    let dialect = spoken(request.headers());
    let path = request.uri().path();
    Ok(match (request.method(), path) {
        (&Method::POST, "/v1/chat/completions") => infer(&shop, Route::Chat, request).await,
        (&Method::POST, "/v1/embeddings") => infer(&shop, Route::Embeddings, request).await,
        (&Method::POST, "/v1/messages") => infer(&shop, Route::Messages, request).await,
        (&Method::POST, "/v1/messages/count_tokens") => count_tokens(&shop, request).await,
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
async fn infer(shop: &Shop, route: Route, request: Request<Incoming>) -> Response<Answer> {
    let dialect = route.dialect();
    let mut visit = shop.books.load_full().arrive(decision(request.headers()));
    let served = serve(shop, route, &mut visit, request).await;

    let (id, elapsed_ms, standing) = (visit.id().to_owned(), visit.elapsed_ms(), visit.books().standing());
    let mut response = match served {
        Ok(served) => perform(served, dialect, visit),
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
    embeddings: Option<Embeddings>,
}

async fn serve(
    shop: &Shop,
    route: Route,
    visit: &mut Visit,
    request: Request<Incoming>,
) -> Result<Served, Refusal> {
    let (steering, order, embeddings) = read_order(route, request).await?;
    if !shop.serves(&order.model) {
        return Err(Refusal::no_model(route.dialect(), &order.model));
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
    Ok(Served { plan, steering, embeddings })
}

/// Counting tokens is free and leaves no row.
async fn count_tokens(shop: &Shop, request: Request<Incoming>) -> Response<Answer> {
    let dialect = Dialect::Anthropic;
    let id = format!("req_{:016x}", rand::random::<u64>());
    let counted = read_order(Route::CountTokens, request).await.and_then(|(steering, order, _)| {
        if let Some(status) = refused_status(&steering, &shop.books.load()) {
            return Err(Refusal::asked_for(status, steering.retry_after));
        }
        let input = steering.skew.unwrap_or(shop.options.skew).apply(order.prompt);
        Ok(json_response(StatusCode::OK, &json!({"input_tokens": input})))
    });
    let mut response = counted.unwrap_or_else(|refusal| refusal.into_response(dialect, Some(&id)));
    sign(response.headers_mut(), dialect, &id, 0);
    response
}

/// What the two kinds of request share: steering, credential, body.
async fn read_order(
    route: Route,
    request: Request<Incoming>,
) -> Result<(Steering, Order, Option<Embeddings>), Refusal> {
    let (head, body) = request.into_parts();
    let steering = steering(&head.headers)?;
    authenticate(&head.headers, route.dialect())?;
    if route.dialect() == Dialect::Anthropic && !head.headers.contains_key("anthropic-version") {
        return Err(Refusal::bad_request("anthropic-version: header is required"));
    }
    let body = read(body).await?;
    let (order, embeddings) = parse(route, body).await?;
    Ok((steering, order, embeddings))
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

async fn parse(route: Route, body: Bytes) -> Result<(Order, Option<Embeddings>), Refusal> {
    if body.len() < LONG_BODY {
        return route.parse(&body);
    }
    let parsed = tokio::task::spawn_blocking(move || route.parse(&body)).await;
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
fn perform(served: Served, dialect: Dialect, visit: Visit) -> Response<Answer> {
    let Served { plan, steering, embeddings } = served;
    let suffix = visit.id_suffix();
    let mut response = Response::new(Answer::plain(Bytes::new()));
    let headers = response.headers_mut();
    let (script, ending) = if plan.stream {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        let line_end = if steering.crlf { "\r\n" } else { "\n" };
        let script = match dialect {
            Dialect::OpenAi => openai::streamed(&plan, suffix, line_end),
            Dialect::Anthropic => anthropic::streamed(&plan, suffix, line_end),
        };
        debug_assert_eq!(script.tokens(), plan.bill.output, "a whole answer carries what it is judged by");
        shorten_stream(script, &steering)
    } else {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let body = match (dialect, &embeddings) {
            (_, Some(embeddings)) => openai::embedded(embeddings, &plan),
            (Dialect::OpenAi, None) => openai::plain(&plan, suffix),
            (Dialect::Anthropic, None) => anthropic::plain(&plan, suffix),
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
        (Dialect::OpenAi, Some(name)) => openai::model(name),
        (Dialect::OpenAi, None) => openai::models(&shop.shown_models()),
        (Dialect::Anthropic, Some(name)) => anthropic::model(name),
        (Dialect::Anthropic, None) => anthropic::models(&shop.shown_models()),
    };
    json_response(StatusCode::OK, &body)
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
