//! Connections: our own accept loop, since the libraries' has no bound on how many there are or how long they say nothing. What a
//! connection may do before its requests are ours is in [`super::edge`].

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderValue, Request, Response, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::edge::head::Bounds;
use super::edge::held::HeldBody;
use super::edge::places::{Claim, KeyName, Places, neighbourhood};
use super::edge::tls::{Tls, TlsFiles};
use super::edge::vet::vet;
use super::edge::watch::{Act, Times, Watch};
use super::edge::wire::{REFUSED, Wire};
use super::pipeline::{Edge, Peer};
use super::reject::Rejection;

/// Bounds on connections.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The most connections at once; more are closed as they come.
    pub max_connections: usize,
    /// The most of them from one address; of IPv6, from one /64.
    pub max_connections_per_ip: usize,
    /// The most of them that have shown the same key.
    pub max_connections_per_key: usize,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Duration,
    /// How long a connection may say nothing after it was made.
    pub first_byte_timeout: Duration,
    /// How long a request's head may take, from its first byte.
    pub header_timeout: Duration,
    /// How long a connection may be without a request.
    pub idle_timeout: Duration,
    /// How long a caller may leave unread what was sent to it. Its stream is not polled meanwhile, so no time-out of the exchange
    /// would end it.
    pub reading_timeout: Duration,
    /// The largest request head, in bytes.
    pub max_head: usize,
    /// The most header lines in it.
    pub max_headers: usize,
    /// The longest request target, in bytes.
    pub max_target: usize,
    /// Streams at once on one HTTP/2 connection.
    pub max_streams: u32,
    /// A certificate and its key; none: plain HTTP.
    pub tls: Option<TlsFiles>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            // Half of them each: nobody can take all the places, and a balancer, which is one address, is not in the way.
            max_connections_per_ip: 10_000,
            max_connections_per_key: 10_000,
            handshake_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            reading_timeout: Duration::from_secs(60),
            max_head: 16 * 1024,
            max_headers: 100,
            max_target: 8 * 1024,
            max_streams: 1_000,
            tls: None,
        }
    }
}

impl ServerOptions {
    const fn bounds(&self) -> Bounds {
        Bounds { head: self.max_head, headers: self.max_headers, target: self.max_target }
    }

    const fn times(&self) -> Times {
        Times {
            first_byte: self.first_byte_timeout,
            header: self.header_timeout,
            idle: self.idle_timeout,
            reading: self.reading_timeout,
        }
    }
}

/// A listening edge.
pub struct Server {
    address: SocketAddr,
    is_tls: bool,
    stopping: CancellationToken,
    ending: CancellationToken,
    connections: TaskTracker,
}

impl Server {
    /// Listens on `address` and serves until [`Server::shut_down`].
    ///
    /// # Errors
    /// The address cannot be listened on, or the certificate cannot be used.
    pub async fn bind(address: SocketAddr, edge: Arc<Edge>, options: ServerOptions) -> io::Result<Self> {
        let tls = options.tls.clone().map(Tls::load).transpose();
        let tls = tls.map_err(|problem| io::Error::new(io::ErrorKind::InvalidInput, problem))?;
        let listener = listen(address)?;
        let address = listener.local_addr()?;
        let (stopping, ending) = (CancellationToken::new(), CancellationToken::new());
        let connections = TaskTracker::new();
        if let Some(tls) = tls.clone() {
            let edge = edge.clone();
            let tell = move |result| edge.node.metrics.count_tls_reload("callers", result);
            connections.spawn(tls.follow(stopping.clone(), tell));
        }
        let is_tls = tls.is_some();
        let acceptor = Acceptor {
            listener,
            places: Arc::new(Semaphore::new(options.max_connections)),
            addresses: Places::new(options.max_connections_per_ip),
            serving: Arc::new(Serving {
                edge,
                tls,
                keys: Places::new(options.max_connections_per_key),
                options,
                stopping: stopping.clone(),
                ending: ending.clone(),
            }),
            connections: connections.clone(),
        };
        connections.spawn(acceptor.run());
        Ok(Self { address, is_tls, stopping, ending, connections })
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Whether it speaks TLS.
    #[must_use]
    pub const fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// Accepts no more, lets what is running end, and cuts what has not ended after `patience`. What is cut settles with what was
    /// seen of it.
    pub async fn shut_down(self, patience: Duration) {
        self.stopping.cancel();
        self.connections.close();
        if tokio::time::timeout(patience, self.connections.wait()).await.is_err() {
            tracing::warn!(connections = self.connections.len(), "cutting what has not ended");
            self.ending.cancel();
            self.connections.wait().await;
        }
    }
}

/// Connections that wait to be accepted. Where the queue is full, the kernel lets a caller believe that it is connected.
const BACKLOG: u32 = 4_096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As every listener on Unix: a restart finds its address free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

struct Acceptor {
    listener: TcpListener,
    places: Arc<Semaphore>,
    addresses: Arc<Places<IpAddr>>,
    serving: Arc<Serving>,
    connections: TaskTracker,
}

impl Acceptor {
    async fn run(self) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.serving.stopping.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, say. Trying again at once would spin.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let place = self.places.clone().try_acquire_owned().ok();
            let place = place.zip(self.addresses.take(neighbourhood(peer.ip())));
            let Some(place) = place else {
                self.serving.edge.node.metrics.connections_refused.inc();
                continue;
            };
            let serving = self.serving.clone();
            self.connections.spawn(async move {
                let metrics = &serving.edge.node.metrics;
                metrics.connections.inc();
                if let Err(why) = serving.greet(stream, Peer(peer.ip())).await {
                    metrics.count_connection_cut(why);
                }
                metrics.connections.dec();
                drop(place);
            });
        }
    }
}

/// What all connections share.
struct Serving {
    edge: Arc<Edge>,
    tls: Option<Arc<Tls>>,
    keys: Arc<Places<KeyName>>,
    options: ServerOptions,
    stopping: CancellationToken,
    ending: CancellationToken,
}

/// Why a connection was cut.
type Cut = &'static str;

impl Serving {
    async fn greet(self: &Arc<Self>, stream: TcpStream, peer: Peer) -> Result<(), Cut> {
        // Chunks of a stream are small and each is wanted at once.
        let _ = stream.set_nodelay(true);
        // TCP_USER_TIMEOUT of tcp(7): bytes that are not acknowledged, or not accepted because the caller reads nothing.
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(self.options.reading_timeout));
        // Looked at and left there: readiness alone may be told too early.
        let mut first = [0];
        let spoken = tokio::time::timeout(self.options.first_byte_timeout, stream.peek(&mut first));
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => return Ok(()),
            spoken = spoken => if !matches!(spoken.map_err(|_| "silent")?, Ok(1..)) { return Ok(()) },
        }
        let Some(tls) = &self.tls else { return self.serve(stream, peer).await };
        let handshake = tokio::time::timeout(self.options.handshake_timeout, tls.acceptor().accept(stream));
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => Ok(()),
            shaken = handshake => match shaken {
                // Kept apart: the state of a TLS stream is kilobytes, which a plain one need not reserve.
                Ok(Ok(stream)) => Box::pin(self.serve(Box::new(stream), peer)).await,
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a TLS handshake failed");
                    Err("handshake_failed")
                }
                Err(_elapsed) => Err("handshake_late"),
            },
        }
    }

    async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        self: &Arc<Self>,
        stream: S,
        peer: Peer,
    ) -> Result<(), Cut> {
        let options = &self.options;
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            // The watch is in its place: this one would run while a connection is idle, too.
            .header_read_timeout(None)
            // A head of ours is whole before the library sees it.
            .max_buf_size(options.max_head.max(8 * 1024) + 1024)
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(options.max_streams)
            // Of requests taken back before they were looked at, as many as may run: more is an attack (CVE-2023-44487), but whoever
            // gives up all it has at once must not take along the others that share its connection.
            .max_pending_accept_reset_streams(options.max_streams as usize)
            .max_header_list_size(u32::try_from(options.max_head).unwrap_or(u32::MAX))
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        let watch = Arc::new(Watch::new(options.times(), crate::clock::timer_now()));
        let caller = Arc::new(Caller {
            serving: self.clone(),
            watch: watch.clone(),
            claim: Claim::new(self.keys.clone()),
            peer,
        });
        // Boxed, so that the kilobytes of a request's steps are given back when its answer begins: a connection keeps the place of its
        // service's future as long as it lives, and a stream lives for minutes.
        let service = service_fn(|request| Box::pin(answer(caller.clone(), request)));
        let wire = TokioIo::new(Wire::new(stream, watch.clone(), options.bounds()));
        let mut connection = pin!(builder.serve_connection(wire, service));
        let mut timer = pin!(tokio::time::sleep(options.first_byte_timeout));
        let mut stopped = false;
        loop {
            let event = poll_fn(|context| {
                if let Poll::Ready(result) = connection.as_mut().poll(context) {
                    return Poll::Ready(Event::Over(result.err()));
                }
                next_act(&watch, timer.as_mut(), context).map(Event::Act)
            });
            tokio::select! {
                biased;
                () = self.ending.cancelled(), if stopped => return Ok(()),
                () = self.stopping.cancelled(), if !stopped => {
                    stopped = true;
                    connection.as_mut().graceful_shutdown();
                }
                event = event => match event {
                    Event::Over(error) => {
                        if let Some(error) = error {
                            tracing::debug!(%error, "a caller's connection ended");
                        }
                        return watch.broken_off().map_or(Ok(()), Err);
                    }
                    Event::Act(Act::Nothing | Act::Poll) => {}
                    Event::Act(Act::Close) => connection.as_mut().graceful_shutdown(),
                    Event::Act(Act::Cut(why)) => return Err(why),
                },
            }
        }
    }
}

enum Event {
    Over(Option<Box<dyn std::error::Error + Send + Sync>>),
    Act(Act),
}

/// What the watch asks for once its earliest deadline has passed.
fn next_act(watch: &Watch, mut timer: Pin<&mut Sleep>, context: &mut Context<'_>) -> Poll<Act> {
    loop {
        let Some(due) = watch.due() else { return Poll::Pending };
        if due < timer.deadline() || timer.is_elapsed() {
            timer.as_mut().reset(due);
        }
        if timer.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        match watch.act(crate::clock::timer_now()) {
            Act::Nothing => {}
            act => return Poll::Ready(act),
        }
    }
}

/// One connection, as its requests see it.
struct Caller {
    serving: Arc<Serving>,
    watch: Arc<Watch>,
    claim: Arc<Claim>,
    peer: Peer,
}

/// A panic is a bug of one request: its reservation ends with it, its caller gets a 500 in its dialect, the connection goes on.
async fn answer(
    caller: Arc<Caller>,
    mut request: Request<Incoming>,
) -> Result<Response<HeldBody>, Infallible> {
    let edge = &caller.serving.edge;
    let anthropic = request.headers().contains_key("anthropic-version");
    let path = request.uri().path().to_owned();
    let version = request.version();
    let counted = Counted::begins(caller.watch.clone());
    let refused = if request.method().as_str() == REFUSED { caller.watch.take_refusal() } else { None };
    let vetted = match refused {
        Some(refusal) => Err(Rejection::bad_head(refusal)),
        None => vet(&request, &caller.serving.options.bounds()),
    };
    let mut response = match vetted {
        Err(rejection) => edge.refuse(rejection, &path, anthropic),
        Ok(()) => {
            request.extensions_mut().insert(caller.claim.clone());
            request.extensions_mut().insert(caller.peer);
            let handled = AssertUnwindSafe(edge.handle(request)).catch_unwind().await;
            handled.unwrap_or_else(|_panic| {
                tracing::error!(path, "a request panicked");
                edge.refuse(Rejection::internal(), &path, anthropic)
            })
        }
    };
    let over_bound = |code: &HeaderValue| code.as_bytes() == Rejection::TOO_MANY_CONNECTIONS.as_bytes();
    if version < Version::HTTP_2 && response.headers().get("x-tollgate-error").is_some_and(over_bound) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(|body| HeldBody::new(body, counted.handed_on())))
}

/// A request that was counted in and must be counted out, whatever becomes of it.
struct Counted(Option<Arc<Watch>>);

impl Counted {
    fn begins(watch: Arc<Watch>) -> Self {
        watch.begins();
        Self(Some(watch))
    }

    /// The answer's body counts it out.
    fn handed_on(mut self) -> Arc<Watch> {
        self.0.take().unwrap_or_else(|| unreachable!("it is handed on once, by value"))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(watch) = self.0.take() {
            watch.ends(crate::clock::timer_now());
        }
    }
}
