//! The callers: requests back to back, requests at a steady rate, and streams. Plain sockets and bytes made beforehand, so that what
//! limits a run is the proxy. An answer other than 200 ends the bench: it would not be comparable.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::Outcome;
use super::provider::{MARK, STAMP};
use super::proxies::{KEYS, key};

/// Longer than any answer takes on the busiest machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// Nanoseconds, to be asked for percentiles.
#[derive(Default)]
pub struct Delays(Vec<u64>);

impl Delays {
    /// How many.
    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    /// The nearest rank; 0 when there are none.
    pub fn percentile(&self, percent: usize) -> u64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }
}

/// The value of a numeric header in the head of a message.
pub fn header(head: &[u8], wanted: &str) -> Option<usize> {
    head.split(|byte| *byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(wanted.len())?;
        let value = value.strip_prefix(b":").filter(|_| name.eq_ignore_ascii_case(wanted.as_bytes()))?;
        std::str::from_utf8(value).ok()?.trim().parse().ok()
    })
}

/// A request with a place for a number that makes its last message new.
struct Template {
    bytes: Vec<u8>,
    turn: usize,
}

/// As wide as the place for the number.
const TURN: &str = "000000000000";

impl Template {
    fn new(key_number: usize, stream: bool) -> Template {
        let body = format!(
            r#"{{"model":"gpt-5","max_completion_tokens":64,"stream":{stream},"messages":[{{"role":"system","content":"You are the support assistant of a parcel service. Answer in one short paragraph, never promise a date that the tracking data does not show, and name the depot."}},{{"role":"user","content":"Where is parcel {key_number}? It was sent from Lisbon last week and the tracking page has not changed since."}},{{"role":"assistant","content":"It reached the depot in Rotterdam on Saturday and waits there for its next flight."}},{{"role":"user","content":"Thank you. And when will parcel {TURN} be with me?"}}]}}"#
        );
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\naccept: application/json\r\nuser-agent: OpenAI/Python 3.57.0\r\ncontent-length: {}\r\n\r\n",
            key(key_number),
            body.len()
        );
        let text = head + &body;
        let turn = text.rfind(TURN).unwrap_or_default();
        Template { bytes: text.into_bytes(), turn }
    }

    fn next(&mut self, number: u64) -> &[u8] {
        let digits = format!("{number:012}");
        self.bytes[self.turn..self.turn + TURN.len()].copy_from_slice(digits.as_bytes());
        &self.bytes
    }
}

struct Connection {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, read: Vec::with_capacity(4096) })
    }

    async fn exchange(&mut self, request: &[u8]) -> io::Result<()> {
        self.read.clear();
        self.stream.write_all(request).await?;
        loop {
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Err(io::Error::other("a connection was closed within an answer"));
            }
            let Some(head) = memchr::memmem::find(&self.read, b"\r\n\r\n") else { continue };
            check_status(&self.read)?;
            let head = head + 4;
            let Some(length) = header(&self.read[..head], "content-length") else {
                return Err(io::Error::other("an answer without content-length"));
            };
            if self.read.len() >= head + length {
                return Ok(());
            }
        }
    }
}

fn check_status(read: &[u8]) -> io::Result<()> {
    if read.starts_with(b"HTTP/1.1 200 ") {
        return Ok(());
    }
    let shown = String::from_utf8_lossy(&read[..read.len().min(1_000)]);
    Err(io::Error::other(format!("an answer that is not 200:\n{shown}")))
}

/// A number that no request of this process has had.
fn next_number() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Requests back to back.
pub struct Closed {
    connections: JoinSet<io::Result<()>>,
    answered: Arc<AtomicU64>,
    stopping: Arc<AtomicBool>,
}

impl Closed {
    /// Opens `connections`, each with keys of its own.
    pub async fn start(address: SocketAddr, connections: usize) -> Outcome<Closed> {
        let (answered, stopping) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut set = JoinSet::new();
        for place in 0..connections {
            let mut connection = Connection::open(address).await?;
            let (answered, stopping) = (answered.clone(), stopping.clone());
            let keys = (place..KEYS).step_by(connections);
            let mut templates: Vec<Template> = keys.map(|key| Template::new(key, false)).collect();
            set.spawn(async move {
                while !stopping.load(Ordering::Relaxed) {
                    for template in &mut templates {
                        connection.exchange(template.next(next_number())).await?;
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok(())
            });
        }
        Ok(Closed { connections: set, answered, stopping })
    }

    /// Answers so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Lets what is under way end.
    pub async fn stop(mut self) -> Outcome<()> {
        self.stopping.store(true, Ordering::Relaxed);
        while let Some(ended) = tokio::time::timeout(PATIENCE, self.connections.join_next()).await? {
            ended??;
        }
        Ok(())
    }
}

/// Sends `rate` requests a second for `length`, over a few connections in turn, and says how long each answer took.
pub async fn paced(address: SocketAddr, rate: u64, length: Duration) -> Outcome<Delays> {
    const CONNECTIONS: usize = 8;
    let mut idle = Vec::new();
    for place in 0..CONNECTIONS {
        idle.push((Connection::open(address).await?, Template::new(place, false)));
    }
    let mut delays = Delays::default();
    let mut ticks = tokio::time::interval(Duration::from_nanos(1_000_000_000 / rate));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let count = length.as_millis() as usize * rate as usize / 1_000;
    // The first exchange of each connection also opens one to the provider: not what is measured.
    for number in 0..CONNECTIONS + count {
        ticks.tick().await;
        let (connection, template) = &mut idle[number % CONNECTIONS];
        let request = template.next(next_number());
        let sent = tollgate::clock::now();
        tokio::time::timeout(PATIENCE, connection.exchange(request)).await??;
        if number >= CONNECTIONS {
            delays.0.push(tollgate::clock::now().since(sent).as_nanos());
        }
    }
    Ok(delays)
}

/// Streams that are read until they are closed.
pub struct Streams {
    readers: JoinSet<io::Result<()>>,
    seen: Arc<Mutex<Chunks>>,
}

/// Chunks that have come.
#[derive(Default)]
pub struct Chunks {
    /// How many.
    pub count: u64,
    /// How long each took from the provider to here.
    pub delays: Delays,
}

impl Streams {
    /// Opens `count` streams; returns when each has had its first chunk.
    pub async fn open(address: SocketAddr, count: usize) -> Outcome<Streams> {
        let seen = Arc::new(Mutex::new(Chunks::default()));
        let mut readers = JoinSet::new();
        let (begun, mut begins) = tokio::sync::mpsc::channel(count);
        for place in 0..count {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            stream.write_all(Template::new(place % KEYS, true).next(next_number())).await?;
            readers.spawn(read_stream(stream, seen.clone(), begun.clone()));
        }
        drop(begun);
        for _ in 0..count {
            let begins = tokio::time::timeout(PATIENCE, begins.recv()).await?;
            begins.ok_or("a stream ended before its first chunk")?;
        }
        Ok(Streams { readers, seen })
    }

    /// Starts counting.
    pub fn mark(&self) {
        *self.seen() = Chunks::default();
    }

    /// What has come since [`Streams::mark`].
    pub fn since_mark(&self) -> Outcome<Chunks> {
        let chunks = std::mem::take(&mut *self.seen());
        if chunks.count == 0 { Err("no chunk has come".into()) } else { Ok(chunks) }
    }

    /// Leaves all of them, and gives the proxy time to notice.
    pub async fn close(mut self) {
        self.readers.shutdown().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Chunks> {
        self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn read_stream(
    mut stream: TcpStream,
    seen: Arc<Mutex<Chunks>>,
    begun: tokio::sync::mpsc::Sender<()>,
) -> io::Result<()> {
    let mut begun = Some(begun);
    let mut head = Vec::new();
    let mut read = Vec::with_capacity(4096);
    loop {
        read.clear();
        if stream.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
        if head.len() < b"HTTP/1.1 200 ".len() {
            head.extend_from_slice(&read);
            check_status(&head)?;
        }
        let now = tollgate::clock::now().as_nanos();
        let mut seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for at in memchr::memchr_iter(MARK, &read) {
            seen.count += 1;
            // A stamp that was cut in two is a delay not taken; its chunk counts all the same.
            let stamp = read.get(at + 1..at + 1 + STAMP).and_then(|digits| std::str::from_utf8(digits).ok());
            if let Some(sent) = stamp.and_then(|digits| digits.parse::<u64>().ok()) {
                seen.delays.0.push(now.saturating_sub(sent));
            }
        }
        if seen.count > 0
            && let Some(begun) = begun.take()
        {
            // Nobody waits for it any more once the streams are open.
            let _ = begun.try_send(());
        }
    }
}
