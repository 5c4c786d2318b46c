//! The world outside a member, as traits: its network, its clocks, its chance, its disk.
//!
//! Whatever is behind a trait here has a twin in memory, so that the code that runs in production is the code that is run through
//! seeded trouble. Never here: a decision.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::time::Moment;

mod real;

pub use self::real::{FileFolder, OsEntropy, TokioNetwork};

/// Everything that a member takes from its surroundings.
#[derive(Clone)]
pub struct Outside {
    /// Its network.
    pub network: Arc<dyn Network>,
    /// Its clocks.
    pub clock: Arc<dyn Clock>,
    /// Its chance.
    pub entropy: Arc<dyn Entropy>,
    /// Its disk.
    pub folder: Arc<dyn Folder>,
}

/// A connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// How to reach others.
#[async_trait]
pub trait Network: Send + Sync + 'static {
    /// Opens a connection. Small writes leave at once.
    ///
    /// # Errors
    /// Nobody answers there.
    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>>;

    /// Takes connections.
    ///
    /// # Errors
    /// The address cannot be had.
    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>>;

    /// Sends and takes datagrams.
    ///
    /// # Errors
    /// The address cannot be had.
    async fn datagrams(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>>;

    /// Every address behind `host:port`, in no order: a name may have many.
    ///
    /// # Errors
    /// The name does not resolve.
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>>;
}

/// Takes connections.
#[async_trait]
pub trait Listener: Send + 'static {
    /// The next connection and who opened it.
    ///
    /// # Errors
    /// This one failed; the next may not.
    async fn accept(&mut self) -> io::Result<(Box<dyn Stream>, SocketAddr)>;

    /// Where it listens, with the port that the system chose.
    ///
    /// # Errors
    /// The system does not say.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// Sends and takes datagrams.
#[async_trait]
pub trait Datagrams: Send + Sync + 'static {
    /// Sends one.
    ///
    /// # Errors
    /// This one was not sent; the next may be.
    async fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()>;

    /// The next one: how many bytes of `buffer` it fills and who sent it.
    ///
    /// # Errors
    /// This one was not taken; the next may be.
    async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)>;

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// The clocks. Timers are tokio's; nothing that must be safe is decided by them.
pub trait Clock: Send + Sync + 'static {
    /// The lease clock: not slewed, and not stopped by a suspend.
    fn now(&self) -> Moment;

    /// The wall clock, in milliseconds since 1970. For people, and for numbers that must grow from start to start.
    fn wall_millis(&self) -> u64;
}

/// A source of randomness.
pub trait Entropy: Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

impl dyn Entropy {
    /// 128 random bits: an identity, a session, a cluster.
    #[must_use]
    pub fn number(&self) -> u128 {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        u128::from_le_bytes(bytes)
    }

    /// A number below `bound`, which is not 0. Good enough to spread retries.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        // Below `bound`, so it fits.
        (self.number() % u128::from(bound)) as u64
    }
}

/// Where a member keeps what must outlive its process.
pub trait Folder: Send + Sync + 'static {
    /// Opens the one file of the store, makes it if need be, and locks it: a second process gets an error.
    ///
    /// # Errors
    /// It cannot be opened, or is locked.
    fn open(&self) -> io::Result<Box<dyn redb::StorageBackend>>;

    /// Where it is, for a person.
    fn name(&self) -> String;

    /// Whether waiting for the disk blocks the thread, so that it must not be done on a task's.
    fn blocks(&self) -> bool;
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outside").field("folder", &self.folder.name()).finish_non_exhaustive()
    }
}
