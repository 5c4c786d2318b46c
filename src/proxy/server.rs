//! Connections: our own accept loop, since the libraries' has no bound on how many there are or how long they say nothing.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pipeline::Edge;

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions {
    /// The most connections at once; more are closed as they come.
    pub max_connections: usize,
    /// How long a connection may say nothing after it was made.
    pub first_byte_timeout: Duration,
    /// How long a request's head may take, and how long a connection may idle between two.
    pub header_timeout: Duration,
    /// The largest request head, in bytes.
    pub max_head: usize,
    /// Streams at once on one HTTP/2 connection.
    pub max_streams: u32,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_connections: 20_000,
            first_byte_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(30),
            max_head: 16 * 1024,
            max_streams: 1_000,
        }
    }
}

/// A listening edge.
pub struct Server {
    address: SocketAddr,
    stopping: CancellationToken,
    ending: CancellationToken,
    connections: TaskTracker,
}

impl Server {
    /// Listens on `address` and serves until [`Server::shut_down`].
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn bind(address: SocketAddr, edge: Arc<Edge>, options: ServerOptions) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (stopping, ending) = (CancellationToken::new(), CancellationToken::new());
        let connections = TaskTracker::new();
        let accepting = Acceptor {
            listener,
            edge,
            options,
            stopping: stopping.clone(),
            ending: ending.clone(),
            connections: connections.clone(),
        };
        connections.spawn(accepting.run());
        Ok(Self { address, stopping, ending, connections })
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
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

struct Acceptor {
    listener: TcpListener,
    edge: Arc<Edge>,
    options: ServerOptions,
    stopping: CancellationToken,
    ending: CancellationToken,
    connections: TaskTracker,
}

impl Acceptor {
    async fn run(self) {
        let places = Arc::new(Semaphore::new(self.options.max_connections));
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stopping.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _peer)) => stream,
                Err(error) => {
                    // Out of file descriptors, say. Trying again at once would spin.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                self.edge.node.metrics.connections_refused.inc();
                continue;
            };
            let connection = Connection {
                edge: self.edge.clone(),
                options: self.options,
                stopping: self.stopping.clone(),
                ending: self.ending.clone(),
            };
            self.connections.spawn(async move {
                connection.run(stream).await;
                drop(place);
            });
        }
    }
}

struct Connection {
    edge: Arc<Edge>,
    options: ServerOptions,
    stopping: CancellationToken,
    ending: CancellationToken,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        let metrics = &self.edge.node.metrics;
        metrics.connections.inc();
        self.serve(stream).await;
        metrics.connections.dec();
    }

    async fn serve(&self, stream: TcpStream) {
        // Chunks of a stream are small and each is wanted at once.
        let _ = stream.set_nodelay(true);
        let spoken = tokio::time::timeout(self.options.first_byte_timeout, stream.readable());
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => return,
            spoken = spoken => if !matches!(spoken, Ok(Ok(()))) { return },
        }
        let mut builder = Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(self.options.header_timeout)
            .max_buf_size(self.options.max_head)
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.options.max_streams)
            .max_header_list_size(u32::try_from(self.options.max_head).unwrap_or(u32::MAX))
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        // Boxed, so that the kilobytes of a request's steps are given back when its answer begins: a connection keeps the place of its
        // service's future as long as it lives, and a stream lives for minutes.
        let service = service_fn(|request| Box::pin(answer(self.edge.clone(), request)));
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let result = tokio::select! {
            biased;
            result = connection.as_mut() => result,
            () = self.stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    result = connection.as_mut() => result,
                    () = self.ending.cancelled() => Ok(()),
                }
            }
        };
        if let Err(error) = result {
            tracing::debug!(%error, "a caller's connection ended");
        }
    }
}

/// A panic is a bug of one request: its reservation ends with it, its caller gets a 500 in its dialect, the connection goes on.
async fn answer(
    edge: Arc<Edge>,
    request: Request<Incoming>,
) -> Result<http::Response<super::body::AnswerBody>, Infallible> {
    let anthropic = request.headers().contains_key("anthropic-version");
    let path = request.uri().path().to_owned();
    let handled = AssertUnwindSafe(edge.handle(request)).catch_unwind().await;
    Ok(handled.unwrap_or_else(|_panic| {
        tracing::error!(path, "a request panicked");
        edge.failed(&path, anthropic)
    }))
}
