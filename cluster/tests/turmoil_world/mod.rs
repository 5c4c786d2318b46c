//! The world outside a member inside a simulation: the network of a turmoil host, a lease clock that may drift, seeded chance.
//!
//! Made inside of a host's software, since turmoil's sockets belong to the host that runs. Time is tokio's, which turmoil moves;
//! outside of a simulation the same clock serves a test over real sockets. Never here: what goes wrong, which the test arranges with
//! `Sim::{partition, hold, crash, bounce}`.

#![allow(dead_code, reason = "each test takes of it what it needs")]

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;
use tollgate_cluster::outside::{
    Clock, Datagrams, Entropy, Folder, Listener, Network, Outside, Stream, TokioNetwork,
};
use tollgate_cluster::time::Moment;

/// The outside of a turmoil host; `seed` is its chance and differs from host to host, and from start to start.
pub fn simulated(seed: u64) -> Outside {
    Outside {
        network: Arc::new(TurmoilNetwork),
        clock: Arc::new(SimulatedClock::new(0, RATE)),
        entropy: Arc::new(SeededEntropy::new(seed)),
        folder: Arc::new(NoFolder),
    }
}

/// The same with real sockets.
pub fn real(seed: u64) -> Outside {
    Outside { network: Arc::new(TokioNetwork), ..simulated(seed) }
}

/// The network of the turmoil host that runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct TurmoilNetwork;

#[async_trait]
impl Network for TurmoilNetwork {
    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Stream>> {
        Ok(Box::new(turmoil::net::TcpStream::connect(to).await?))
    }

    async fn listen(&self, at: SocketAddr) -> io::Result<Box<dyn Listener>> {
        Ok(Box::new(TurmoilListener(turmoil::net::TcpListener::bind(at).await?)))
    }

    async fn datagrams(&self, at: SocketAddr) -> io::Result<Arc<dyn Datagrams>> {
        Ok(Arc::new(TurmoilDatagrams(turmoil::net::UdpSocket::bind(at).await?)))
    }

    /// Hosts are known by the names that they have in the simulation.
    async fn resolve(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = name.parse() {
            return Ok(vec![address]);
        }
        let parts = name.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let (host, port) = parts.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(vec![SocketAddr::new(turmoil::lookup(host), port)])
    }
}

struct TurmoilListener(turmoil::net::TcpListener);

#[async_trait]
impl Listener for TurmoilListener {
    async fn accept(&mut self) -> io::Result<(Box<dyn Stream>, SocketAddr)> {
        let (stream, from) = self.0.accept().await?;
        Ok((Box::new(stream), from))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

struct TurmoilDatagrams(turmoil::net::UdpSocket);

#[async_trait]
impl Datagrams for TurmoilDatagrams {
    async fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        self.0.send_to(datagram, to).await.map(|_| ())
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.recv_from(buffer).await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// A clock of the right rate, in millionths of true time.
pub const RATE: u64 = 1_000_000;

/// Where the wall clocks begin: some day in 2026.
const WALL: u64 = 1_767_225_600_000;

/// A lease clock that runs at a rate of its own from an origin of its own. Keeps running over a restart of its host.
#[derive(Debug)]
pub struct SimulatedClock {
    begun: Instant,
    origin: u64,
    rate: u64,
}

impl SimulatedClock {
    /// One that shows `origin` nanoseconds at the beginning and runs at `rate` millionths of true time.
    pub fn new(origin: u64, rate: u64) -> Self {
        Self { begun: Instant::now(), origin, rate }
    }

    fn true_nanos(&self) -> u64 {
        let elapsed = turmoil::sim_elapsed().unwrap_or_else(|| self.begun.elapsed());
        elapsed.as_nanos() as u64
    }
}

impl Clock for SimulatedClock {
    fn now(&self) -> Moment {
        let passed = u128::from(self.true_nanos()) * u128::from(self.rate) / u128::from(RATE);
        Moment::from_nanos(self.origin + passed as u64)
    }

    fn wall_millis(&self) -> u64 {
        WALL + self.true_nanos() / 1_000_000
    }
}

/// Chance that a seed decides.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<StdRng>);

impl SeededEntropy {
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().expect("nothing panics under it").fill_bytes(bytes);
    }
}

/// For what keeps nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoFolder;

impl Folder for NoFolder {
    fn open(&self) -> io::Result<Box<dyn redb::StorageBackend>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn name(&self) -> String {
        String::from("nowhere")
    }

    fn blocks(&self) -> bool {
        false
    }
}
