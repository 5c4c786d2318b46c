//! The gossip library's network: sealed datagrams over [`crate::outside::Datagrams`].
//!
//! Laws:
//! - no error of the network ends the gossip: the library takes one for the end, so it gets none;
//! - what is dropped is counted by its reason;
//! - what would not fit a datagram is not sent.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};

use crate::gossip::seal::{Dropped, OVERHEAD, Opener, Sealer};
use crate::outside::Datagrams;

/// The most bytes of a datagram: what IPv4 takes in many fragments, less some. The library fills what it believes to be 65,507.
const DATAGRAM_MAX: usize = 60_000;

/// How long after an error the network is asked again: it might be the same error, at once and for ever.
const PAUSE: Duration = Duration::from_millis(10);

/// What was sent, taken, and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GossipStats {
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams taken.
    pub taken: u64,
    /// Dropped: sealed with a secret that this node does not hold.
    pub unknown_key: u64,
    /// Dropped: changed on the way, or forged.
    pub bad_seal: u64,
    /// Dropped: taken before, or too old to tell.
    pub replayed: u64,
    /// Dropped: of no layout that this build knows.
    pub malformed: u64,
    /// Not sent: too large for a datagram.
    pub oversize: u64,
    /// Not sent, by an error of the network.
    pub send_errors: u64,
    /// Not received, by an error of the network.
    pub receive_errors: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    sent: AtomicU64,
    taken: AtomicU64,
    unknown_key: AtomicU64,
    bad_seal: AtomicU64,
    replayed: AtomicU64,
    malformed: AtomicU64,
    oversize: AtomicU64,
    send_errors: AtomicU64,
    receive_errors: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> GossipStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GossipStats {
            sent: read(&self.sent),
            taken: read(&self.taken),
            unknown_key: read(&self.unknown_key),
            bad_seal: read(&self.bad_seal),
            replayed: read(&self.replayed),
            malformed: read(&self.malformed),
            oversize: read(&self.oversize),
            send_errors: read(&self.send_errors),
            receive_errors: read(&self.receive_errors),
        }
    }
}

/// Adds one, and returns how many it were before.
fn count(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed)
}

/// Sealed datagrams, to be opened once.
pub(super) struct Sealed(Mutex<Option<SealedSocket>>);

struct SealedSocket {
    datagrams: Arc<dyn Datagrams>,
    sealer: Sealer,
    opener: Opener,
    counters: Arc<Counters>,
    plain: Vec<u8>,
    buffer: Box<[u8]>,
}

impl Sealed {
    pub(super) fn new(
        datagrams: Arc<dyn Datagrams>,
        sealer: Sealer,
        opener: Opener,
        counters: Arc<Counters>,
    ) -> Self {
        // The largest datagram that there is.
        let buffer = vec![0; 1 << 16].into_boxed_slice();
        Self(Mutex::new(Some(SealedSocket {
            datagrams,
            sealer,
            opener,
            counters,
            plain: Vec::new(),
            buffer,
        })))
    }
}

#[async_trait]
impl Transport for Sealed {
    async fn open(&self, _at: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        match socket {
            Some(socket) => Ok(Box::new(socket)),
            None => Err(anyhow::anyhow!("the socket was opened before")),
        }
    }
}

#[async_trait]
impl Socket for SealedSocket {
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.plain.clear();
        message.serialize(&mut self.plain);
        let bytes = OVERHEAD + self.plain.len();
        if bytes > DATAGRAM_MAX {
            if count(&self.counters.oversize) == 0 {
                tracing::error!(
                    bytes,
                    "gossip is too large for a datagram: nodes cannot find each other by it"
                );
            }
            return Ok(());
        }
        let datagram = self.sealer.seal(&self.plain);
        match self.datagrams.send_to(&datagram, to).await {
            Ok(()) => drop(count(&self.counters.sent)),
            Err(error) => {
                count(&self.counters.send_errors);
                tracing::debug!(%error, %to, "a datagram was not sent");
            }
        }
        Ok(())
    }

    /// Can be cancelled: a datagram is taken and opened without a pause between.
    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            let (length, from) = match self.datagrams.recv_from(&mut self.buffer).await {
                Ok(received) => received,
                Err(error) => {
                    if count(&self.counters.receive_errors) == 0 {
                        tracing::warn!(%error, "gossip cannot receive; it goes on trying");
                    }
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let reason = match self.opener.open(&self.buffer[..length]) {
                Ok(payload) => match ChitchatMessage::deserialize(&mut &*payload) {
                    Ok(message) => {
                        count(&self.counters.taken);
                        return Ok((from, message));
                    }
                    Err(_) => &self.counters.malformed,
                },
                Err(Dropped::Malformed) => &self.counters.malformed,
                Err(Dropped::UnknownKey) => &self.counters.unknown_key,
                Err(Dropped::BadSeal) => &self.counters.bad_seal,
                Err(Dropped::Replayed) => &self.counters.replayed,
            };
            // Once of each reason: whoever sends it may send much of it.
            if count(reason) == 0 {
                tracing::warn!(%from, "a datagram was dropped: it is not from a node with this cluster's secret, or it is old");
            }
        }
    }
}
