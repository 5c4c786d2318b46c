//! A front end: asks its limiter for each request, and passes it on to the provider or refuses it, with the words that callers of the
//! product know.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::System;
use super::counter::Counters;
use super::redis::{self, Connection};
use crate::client::{PORT, connect, tenant_of};
use crate::cluster::PROVIDER_PORT;
use crate::cluster::look::OPERATORS;
use crate::history::{Bucket, Plan};
use crate::network::{Host, PROVIDER, Plane};
use crate::sys;

/// The page on which a front end says on which host the primary is.
pub const PRIMARY: &str = "/primary";

/// How long a limiter may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Between two questions to the Sentinel about who is the primary.
const LOOK: Duration = Duration::from_millis(250);

/// What a host is.
pub struct Place {
    /// Which limiter.
    pub system: System,
    /// Its number.
    pub host: Host,
    /// The run's folder.
    pub run: PathBuf,
}

/// What all connections of a front end share.
struct Front {
    place: Place,
    plan: Plan,
    counters: Mutex<Counters>,
    primary: watch::Receiver<Option<SocketAddr>>,
    ready: watch::Receiver<bool>,
}

/// Runs a host until it is killed.
///
/// # Errors
/// It cannot run.
pub fn serve(place: Place) -> Result<(), String> {
    let plan = Plan::read(&place.run)?;
    let (told, primary) = watch::channel(None);
    let (tell_ready, ready) = watch::channel(!place.system.has_redis());
    let (host, hosts) = (place.host, plan.nodes);
    // Its servers are started by this thread, which lives as long as the process does.
    let _children = match place.system.has_redis() {
        true => Some(redis::start(host, hosts, &place.run.join(format!("n{host}")))?),
        false => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let follows = place.system.has_redis();
    let front = Arc::new(Front { place, plan, counters: Mutex::default(), primary, ready });
    runtime.block_on(async move {
        if follows {
            tokio::spawn(follow(host, hosts, told, tell_ready));
        }
        let operators = front.clone();
        let asked = move |request| {
            let front = operators.clone();
            async move { Ok::<_, Infallible>(front.tell(&request)) }
        };
        tokio::spawn(listen(Plane::Operators.socket(host, OPERATORS), move || asked.clone()));
        let callers = move || {
            let line = Arc::new(tokio::sync::Mutex::new(Line::default()));
            let front = front.clone();
            move |request| {
                let (front, line) = (front.clone(), line.clone());
                async move { Ok::<_, Infallible>(front.answer(request, &mut *line.lock().await).await) }
            }
        };
        listen(Plane::Callers.socket(host, PORT), callers).await
    })
}

type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// Serves each connection with a service of its own.
async fn listen<S, F>(address: SocketAddr, service: impl Fn() -> S) -> Result<(), String>
where
    S: Fn(Request<Incoming>) -> F + Send + 'static,
    F: Future<Output = Result<Answer, Infallible>> + Send + 'static,
{
    let listener = TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))?;
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _unsupported = stream.set_nodelay(true);
        let service = service_fn(service());
        tokio::spawn(async move {
            let stream: TokioIo<TcpStream> = TokioIo::new(stream);
            let _ended = hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await;
        });
    }
}

/// Asks the Sentinel of this host who is the primary, again and again.
async fn follow(host: Host, hosts: u8, told: watch::Sender<Option<SocketAddr>>, ready: watch::Sender<bool>) {
    loop {
        if let Ok(Ok(primary)) = timeout(PATIENCE, redis::primary(host)).await {
            told.send_if_modified(|known| known.replace(primary) != Some(primary));
        }
        // Once it could have failed over it is a system; what becomes of it then is its own affair.
        if !*ready.borrow() {
            let whole = timeout(PATIENCE, redis::can_fail_over(host, hosts)).await;
            ready.send_if_modified(|ready| {
                *ready = matches!(whole, Ok(Ok(true)));
                *ready
            });
        }
        sleep(LOOK).await;
    }
}

/// The connections that belong to one of a caller.
#[derive(Default)]
struct Line {
    limiter: Option<(SocketAddr, Connection)>,
    provider: Option<SendRequest<Full<Bytes>>>,
}

/// What a limiter says.
enum Said {
    Yes,
    No,
    Nothing,
}

impl Front {
    /// What operators are told: whether it can decide, and where the primary is.
    fn tell(&self, request: &Request<Incoming>) -> Answer {
        let primary = *self.primary.borrow();
        let host = match primary {
            Some(SocketAddr::V4(primary)) => primary.ip().octets()[3],
            _ => 1,
        };
        match request.uri().path() {
            PRIMARY => plain(StatusCode::OK, &host.to_string()),
            _ if *self.ready.borrow() => plain(StatusCode::OK, "ready"),
            _ => plain(StatusCode::SERVICE_UNAVAILABLE, "its Sentinel could not fail over yet"),
        }
    }

    async fn answer(&self, request: Request<Incoming>, line: &mut Line) -> Answer {
        let tenant = tenant_of(request.headers());
        let Some(limits) = tenant.and_then(|tenant| Some((tenant, self.plan.tenants.get(tenant)?))) else {
            return refusal(StatusCode::UNAUTHORIZED, "unauthenticated");
        };
        match self.decide(limits.0, limits.1.requests(), line).await {
            Said::Yes => {}
            Said::No => return refusal(StatusCode::TOO_MANY_REQUESTS, "tenant_rate_limit_exceeded"),
            Said::Nothing if self.place.system == System::RedisOpen => {}
            Said::Nothing => return refusal(StatusCode::SERVICE_UNAVAILABLE, "limiter_unavailable"),
        }
        let passed = pass(request, line).await;
        passed.unwrap_or_else(|_why| {
            line.provider = None;
            refusal(StatusCode::BAD_GATEWAY, "upstream_unreachable")
        })
    }

    async fn decide(&self, tenant: &str, bucket: Bucket, line: &mut Line) -> Said {
        let said = match self.place.system.has_redis() {
            true => self.ask_redis(tenant, bucket, line).await,
            false => {
                let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
                Some(counters.admit(tenant, bucket, sys::now()))
            }
        };
        match said {
            Some(true) => Said::Yes,
            Some(false) => Said::No,
            None => Said::Nothing,
        }
    }

    async fn ask_redis(&self, tenant: &str, bucket: Bucket, line: &mut Line) -> Option<bool> {
        let primary = (*self.primary.borrow())?;
        let asked = async {
            // A connection is used for one question at a time; one that was given up in between is not used again.
            let kept = line.limiter.take().filter(|(address, _)| *address == primary);
            let mut connection = match kept {
                Some((_, connection)) => connection,
                None => Connection::to(primary).await?,
            };
            let said = connection.admit(tenant, bucket).await?;
            line.limiter = Some((primary, connection));
            Ok::<bool, std::io::Error>(said)
        };
        timeout(PATIENCE, asked).await.ok()?.ok()
    }
}

/// Passes a request on as it is, and its answer back.
async fn pass(request: Request<Incoming>, line: &mut Line) -> Result<Answer, String> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
    if line.provider.as_ref().is_none_or(SendRequest::is_closed) {
        line.provider = Some(connect(PROVIDER, Plane::Provider, PROVIDER_PORT).await?);
    }
    let sender = line.provider.as_mut().ok_or("no connection")?;
    sender.ready().await.map_err(|error| error.to_string())?;
    let mut request = Request::builder().method(head.method).uri(head.uri);
    for (name, value) in head.headers.iter().filter(|(name, _)| *name != "authorization") {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(body)).map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    Ok(response.map(BodyExt::boxed))
}

fn plain(status: StatusCode, text: &str) -> Answer {
    let body = Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {});
    let mut response = Response::new(body.boxed());
    *response.status_mut() = status;
    response
}

fn refusal(status: StatusCode, code: &'static str) -> Answer {
    let mut response = plain(status, "{}");
    let mut headers = HeaderMap::new();
    headers.insert("x-tollgate-error", hyper::header::HeaderValue::from_static(code));
    response.headers_mut().extend(headers);
    response
}
