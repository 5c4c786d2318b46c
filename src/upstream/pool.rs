//! The connections to one provider.
//!
//! Over HTTP/1 an exchange has a connection to itself and drives it ([`super::connection`]); in between, the connection lies here, and
//! nobody polls it: what happened to it meanwhile is looked at before it is used again. Over HTTP/2, which a provider may choose in the
//! TLS handshake, all share one connection, which is a task of its own.
//!
//! A request is handed to a second connection only while not a byte of it was written to the first: the provider has closed that just
//! as it was taken. Whatever is given up before its end takes its connection along, which tells the provider.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, Uri, header};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::{http1, http2};
use hyper_rustls::builderstates::WantsSchemes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::{Connection as _, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;
use tower_service::Service;

use super::connection::{Connection, Unsent};
use crate::policy::Timeouts;

/// Below what providers and load balancers keep an idle connection for, so that a request rarely meets one that is closing.
const IDLE_CONNECTION: Duration = Duration::from_secs(30);

/// Idle connections kept for each provider.
const IDLE_CONNECTIONS: usize = 1024;

/// The longest head of an answer over HTTP/1, and what is read of its body at once. Theirs are below 4 KiB.
const LARGEST_HEAD: usize = 32 * 1024;

type Connector = HttpsConnector<HttpConnector>;
type Shared = http2::SendRequest<Full<Bytes>>;
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why no answer began.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// There is no connection: nothing was sent.
    NotConnected(Cause),
    /// It broke, or what came is no answer.
    Broken(Cause),
}

impl fmt::Display for Unanswered {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NotConnected(_) => "no connection",
            Self::Broken(_) => "no answer",
        })
    }
}

impl std::error::Error for Unanswered {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let (Self::NotConnected(cause) | Self::Broken(cause)) = self;
        Some(cause.as_ref())
    }
}

/// Sends requests to one origin, over connections that it keeps.
#[derive(Clone)]
pub(super) struct Client {
    connector: Connector,
    pool: Arc<Pool>,
}

/// Connections that wait for a request.
#[derive(Default)]
struct Pool(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    /// Since when, the latest last.
    own: Vec<(Instant, Box<Connection>)>,
    /// The one over which many exchanges go at once, and when the last of them began.
    shared: Option<(Instant, Shared)>,
    /// Whether there is a task that closes what has waited too long.
    swept: bool,
}

/// A connection to send a request over.
enum Way {
    Own(Box<Connection>),
    Shared(Shared),
}

impl Client {
    /// A client without a connection, which trusts whom the web trusts.
    pub fn new(timeouts: &Timeouts) -> Self {
        Self::over(HttpsConnectorBuilder::new().with_webpki_roots(), timeouts)
    }

    pub(super) fn over(tls: HttpsConnectorBuilder<WantsSchemes>, timeouts: &Timeouts) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeouts.connect));
        tcp.set_keepalive(Some(Duration::from_secs(60)));
        let connector = tls.https_or_http().enable_http1().enable_http2().wrap_connector(tcp);
        Self { connector, pool: Arc::default() }
    }

    /// Sends `request`, whose address is always of the same origin, and waits for the head of its answer.
    ///
    /// # Errors
    /// No answer began.
    pub async fn request(&self, request: Request<Full<Bytes>>) -> Result<Response<ProviderBody>, Unanswered> {
        let uri = request.uri().clone();
        let mut request = Some(request);
        loop {
            let kept = self.pool.take(crate::clock::timer_now());
            let is_kept = kept.is_some();
            let way = match kept {
                Some(way) => way,
                // Kept apart: a handshake's kilobytes are not part of every exchange.
                None => Box::pin(self.connect(uri.clone())).await.map_err(Unanswered::NotConnected)?,
            };
            let Some(mut sent) = request.take() else { unreachable!("it is there until it was sent") };
            let answered = match way {
                Way::Own(connection) => {
                    in_origin_form(&mut sent, &uri);
                    self.over_own(connection, sent).await
                }
                Way::Shared(mut shared) => {
                    let answered = shared.try_send_request(sent).await;
                    answered.map(|answer| answer.map(|incoming| ProviderBody { incoming, lent: None }))
                }
            };
            match answered {
                Ok(answer) => return Ok(answer),
                Err(mut unsent) => match unsent.take_message().filter(|_| is_kept) {
                    Some(mut unsent) => {
                        *unsent.uri_mut() = uri.clone();
                        request = Some(unsent);
                    }
                    None => return Err(Unanswered::Broken(unsent.into_error().into())),
                },
            }
        }
    }

    /// Connections that wait for a request; a shared one is never idle for long.
    pub fn idle_connections(&self) -> usize {
        self.pool.idle().own.len()
    }

    /// Whether the next request goes over a shared connection that is open.
    #[cfg(test)]
    pub(super) fn shares_a_connection(&self) -> bool {
        self.pool.shared(crate::clock::timer_now()).is_some()
    }

    async fn over_own(
        &self,
        mut connection: Box<Connection>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<ProviderBody>, Unsent> {
        let answer = connection.send(request).await?;
        let lent = Some(Lent { connection, pool: Some(self.pool.clone()) });
        Ok(answer.map(|incoming| ProviderBody { incoming, lent }))
    }

    async fn connect(&self, uri: Uri) -> Result<Way, Cause> {
        let mut connector = self.connector.clone();
        std::future::poll_fn(|context| connector.poll_ready(context)).await?;
        let socket = connector.call(uri).await?;
        if !socket.connected().is_negotiated_h2() {
            let (requests, driver) =
                http1::Builder::new().max_buf_size(LARGEST_HEAD).handshake(socket).await?;
            return Ok(Way::Own(Box::new(Connection::new(requests, driver))));
        }
        if let Some(shared) = self.pool.shared(crate::clock::timer_now()) {
            // Another request was faster.
            return Ok(Way::Shared(shared));
        }
        let (shared, driver) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_header_list_size(32 * 1024)
            .keep_alive_interval(Some(Duration::from_secs(20)))
            .keep_alive_timeout(Duration::from_secs(10))
            .handshake(socket)
            .await?;
        tokio::spawn(async move {
            if let Err(error) = driver.await {
                tracing::debug!(%error, "a provider's connection ended");
            }
        });
        self.pool.share(&shared, crate::clock::timer_now());
        Ok(Way::Shared(shared))
    }
}

/// RFC 9112 §3.2.1; and who is asked stands in a header of its own.
fn in_origin_form(request: &mut Request<Full<Bytes>>, uri: &Uri) {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from(path);
    let usual = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    let host = uri.host().unwrap_or_default();
    let host = match uri.port_u16().filter(|port| *port != usual) {
        Some(port) => HeaderValue::try_from(format!("{host}:{port}")),
        None => HeaderValue::try_from(host),
    };
    if let Ok(host) = host {
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
}

impl Pool {
    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that can be used, the one used last first.
    fn take(&self, now: Instant) -> Option<Way> {
        if let Some(shared) = self.shared(now) {
            return Some(Way::Shared(shared));
        }
        loop {
            let (since, mut connection) = self.idle().own.pop()?;
            if now < since + IDLE_CONNECTION && connection.is_free() {
                return Some(Way::Own(connection));
            }
        }
    }

    fn shared(&self, now: Instant) -> Option<Shared> {
        let mut idle = self.idle();
        let (since, shared) = idle.shared.as_mut()?;
        let usable = shared.is_ready() && now < *since + IDLE_CONNECTION;
        usable.then(|| {
            *since = now;
            shared.clone()
        })
    }

    fn share(self: &Arc<Self>, shared: &Shared, now: Instant) {
        self.idle().shared = Some((now, shared.clone()));
        self.be_swept(now);
    }

    fn put(self: &Arc<Self>, connection: Box<Connection>, now: Instant) {
        let mut idle = self.idle();
        if idle.own.len() < IDLE_CONNECTIONS {
            idle.own.push((now, connection));
            drop(idle);
            self.be_swept(now);
        }
    }

    /// Closes what nobody asks for, too.
    fn be_swept(self: &Arc<Self>, now: Instant) {
        // An answer may be dropped when the runtime is gone already, and its connections with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !std::mem::replace(&mut self.idle().swept, true)
        {
            runtime.spawn(Self::sweep(Arc::downgrade(self), now + IDLE_CONNECTION));
        }
    }

    async fn sweep(pool: Weak<Self>, first: Instant) {
        let mut next = first;
        loop {
            tokio::time::sleep_until(next).await;
            let Some(pool) = pool.upgrade() else { return };
            let now = crate::clock::timer_now();
            let mut idle = pool.idle();
            let old = idle.own.partition_point(|(since, _)| now >= *since + IDLE_CONNECTION);
            let closed: Vec<_> = idle.own.drain(..old).collect();
            idle.shared = idle.shared.take().filter(|(since, _)| now < *since + IDLE_CONNECTION);
            let shared = idle.shared.as_ref().map(|(since, _)| *since);
            let oldest = idle.own.first().map(|(since, _)| *since).into_iter().chain(shared).min();
            idle.swept = oldest.is_some();
            drop(idle);
            drop(closed);
            let Some(oldest) = oldest else { return };
            next = oldest + IDLE_CONNECTION;
        }
    }
}

/// A provider's answer as it comes. Over HTTP/1 it has the connection with it, and gives it back at its end.
pub struct ProviderBody {
    incoming: Incoming,
    lent: Option<Lent>,
}

struct Lent {
    connection: Box<Connection>,
    /// Where it goes at the answer's end; none: it is closed.
    pool: Option<Arc<Pool>>,
}

impl ProviderBody {
    /// Where this answer ends is anyone's guess, so what would come after it is no answer to trust: its connection is not used again.
    pub(super) fn is_the_last(&mut self) {
        if let Some(lent) = &mut self.lent {
            lent.pool = None;
        }
    }

    fn give_back(&mut self) {
        let Some(Lent { mut connection, pool: Some(pool) }) = self.lent.take() else { return };
        if connection.is_free() {
            pool.put(connection, crate::clock::timer_now());
        }
    }
}

impl Body for ProviderBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { incoming, lent } = self.get_mut();
        let Some(lent) = lent else { return Pin::new(incoming).poll_frame(context) };
        lent.connection.poll_frame(incoming, context)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for ProviderBody {
    fn drop(&mut self) {
        self.give_back();
    }
}
