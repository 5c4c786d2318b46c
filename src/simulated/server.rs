//! Connections: HTTP/1.1 and HTTP/2 with prior knowledge on one port, told apart by the first bytes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::service::{Shop, answer};

/// Streams that one HTTP/2 connection may have open: a gateway may send all it has over one.
const MAX_STREAMS: u32 = 20_000;

/// The pause after a failed accept: out of file descriptors is the usual reason, and it does not pass at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until `closing`; each then serves its last answers, or ends at once with `cut`.
pub async fn accept(
    listener: TcpListener,
    shop: Arc<Shop>,
    connections: TaskTracker,
    closing: CancellationToken,
    cut: CancellationToken,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.cancelled() => return,
            () = cut.cancelled() => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (shop, closing, cut) = (Arc::clone(&shop), closing.clone(), cut.clone());
        connections.spawn(async move {
            tokio::select! {
                // A connection that breaks has already ended its requests in the books; there is no one to tell.
                _ = serve(stream, shop, closing) => {}
                () = cut.cancelled() => {}
            }
        });
    }
}

async fn serve(
    stream: TcpStream,
    shop: Arc<Shop>,
    closing: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    stream.set_nodelay(true)?;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new());
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(MAX_STREAMS);
    let service = service_fn(move |request| answer(Arc::clone(&shop), request));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        served = connection.as_mut() => return served,
        () = closing.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}
