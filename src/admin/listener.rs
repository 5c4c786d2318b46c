//! Where operators connect: plain, or by TLS with a pair that is followed as the callers' is.
//!
//! Handshakes run side by side, a bounded number of them and each for a bounded time, so that one who does not finish his keeps
//! nobody out.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::server::TlsStream;

use crate::proxy::Tls;

/// Operators are few: more at once are somebody else.
const HANDSHAKES: usize = 64;
/// As long as a caller's may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Without file descriptors, say, trying again at once would spin.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

type Shaken = Option<(TlsStream<TcpStream>, SocketAddr)>;

/// A listener whose connections have shaken hands.
pub(super) struct TlsListener {
    tcp: TcpListener,
    tls: Arc<Tls>,
    shaking: FuturesUnordered<BoxFuture<'static, Shaken>>,
}

impl TlsListener {
    pub(super) fn new(tcp: TcpListener, tls: Arc<Tls>) -> Self {
        Self { tcp, tls, shaking: FuturesUnordered::new() }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            tokio::select! {
                Some(shaken) = self.shaking.next(), if !self.shaking.is_empty() => {
                    if let Some(connected) = shaken {
                        return connected;
                    }
                }
                accepted = self.tcp.accept(), if self.shaking.len() < HANDSHAKES => match accepted {
                    Ok((stream, peer)) => self.shaking.push(Box::pin(shake(self.tls.clone(), stream, peer))),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept an operator's connection");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

async fn shake(tls: Arc<Tls>, stream: TcpStream, peer: SocketAddr) -> Shaken {
    match tokio::time::timeout(HANDSHAKE, tls.acceptor().accept(stream)).await {
        Ok(Ok(stream)) => Some((stream, peer)),
        Ok(Err(error)) => {
            tracing::debug!(%error, "an operator's TLS handshake failed");
            None
        }
        Err(_elapsed) => None,
    }
}
