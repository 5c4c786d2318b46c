//! The simulated provider: an OpenAI, Anthropic and Gemini look-alike that bills to the token.
//!
//! It is the ground truth of the demo, the tests and the benchmarks: what it says it billed is what a gateway's books have
//! to match. So it shares no code with the gateway's own counting, and keeps its books by laws of its own ([`books`]).
//!
//! - `POST /v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/embeddings`, `/v1/messages`,
//!   `/v1/messages/count_tokens`, `GET /v1/models`, over HTTP/1.1 and HTTP/2 with prior knowledge on one port; the first four also
//!   below `/openai/deployments/{model}`, as at Azure, and Gemini's three operations below `/v1beta/models/{model}`.
//! - Files, batches and stored responses, which everybody sees who has a credential. Images, audio, moderation and reranking are
//!   answered with a digest of what came, and bill nothing.
//! - The `x-sim` header steers each answer ([`steering`]).
//! - `GET /stats`: the sums. `GET /requests`: a JSON line for each request that is over. `DELETE /stats` or `POST /reset`:
//!   new books; requests still open end in the old ones.
//!
//! It never records a credential, never answers with more output than the request's own ceiling, and never bills a refused
//! request. It decides its whole output before the first byte, so ceilings judge a request by what it will really cost.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

mod answer;
mod anthropic;
pub mod books;
mod completions;
mod count;
mod dialect;
mod gemini;
mod kept;
mod openai;
mod order;
mod responses;
mod server;
mod service;
pub mod steering;
pub mod window;

pub use books::{Outcome, Row, Stats};
pub use steering::Skew;
pub use window::Ceilings;

use books::Books;
use service::Shop;

/// How a provider behaves towards all callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// What any 60 s may hold.
    pub ceilings: Ceilings,
    /// Multiplies each prompt's count, unless `x-sim` says otherwise.
    pub skew: Skew,
    /// The models served; others are 404. Empty serves any name.
    pub models: Vec<String>,
    /// How long [`Provider::shutdown`] waits for open answers before it cuts them.
    pub shutdown_grace: Duration,
}

impl Default for Options {
    /// No ceilings, no skew, any model, five seconds.
    fn default() -> Self {
        Self {
            ceilings: Ceilings::default(),
            skew: Skew::NONE,
            models: Vec::new(),
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

/// A running provider. Dropping it cuts every connection; [`Provider::shutdown`] lets open answers end.
#[derive(Debug)]
pub struct Provider {
    shop: Arc<Shop>,
    local_addr: SocketAddr,
    connections: TaskTracker,
    /// No new requests.
    closing: CancellationToken,
    /// No more bytes.
    cut: DropGuard,
}

impl Provider {
    /// Listens on an address; port 0 takes a free one.
    ///
    /// # Errors
    /// The operating system's, when the address cannot be bound.
    pub async fn bind(address: SocketAddr, options: Options) -> io::Result<Self> {
        Self::on(TcpListener::bind(address).await?, options)
    }

    /// Serves on a listener. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// The operating system's, when the listener has no address.
    pub fn on(listener: TcpListener, options: Options) -> io::Result<Self> {
        let local_addr = listener.local_addr()?;
        let books = ArcSwap::from_pointee(Books::open(options.ceilings));
        let shop = Arc::new(Shop { options, books, kept: kept::Store::default() });
        let connections = TaskTracker::new();
        let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
        connections.spawn(server::accept(
            listener,
            Arc::clone(&shop),
            connections.clone(),
            closing.clone(),
            cut.clone(),
        ));
        Ok(Self { shop, local_addr, connections, closing, cut: cut.drop_guard() })
    }

    /// The address it listens on.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// The sums so far, as `GET /stats` shows them.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shop.books.load().stats()
    }

    /// The requests that are over, in the order in which they ended, as `GET /requests` lists them.
    #[must_use]
    pub fn requests(&self) -> Vec<Row> {
        self.shop.books.load().rows(0, books::MAX_ROWS).map_or_else(Vec::new, |(rows, _)| rows)
    }

    /// Opens new books. Requests still open end in the old ones.
    pub fn reset(&self) {
        self.shop.reset();
    }

    /// Takes no more requests, lets open answers end for the grace period, then cuts what is left.
    pub async fn shutdown(self) {
        let Self { shop, connections, closing, cut, .. } = self;
        closing.cancel();
        connections.close();
        let _ = tokio::time::timeout(shop.options.shutdown_grace, connections.wait()).await;
        drop(cut);
        connections.wait().await;
    }
}
