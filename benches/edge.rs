//! What the edge costs, and what callers that do not do their part cost the others.
//!
//! ```text
//! cargo bench --bench edge
//! ```
//!
//! - **a head**: finding its end and checking it, for one as an SDK sends it;
//! - **a connection**: memory of the process for each of 1,000 that are idle after a request, and for each that has said half a head;
//! - **a crowd**: p50 and p99 of a caller that behaves, 200 requests a second, alone and beside 1,000 callers that do not: silent, half a
//!   head, a body of a byte a second, an answer read at a byte a second. Rounds alternate; a ratio is formed within a round. The crowd
//!   and the provider are processes of their own, the crowd one that yields to all others: what it costs to *be* a thousand callers is
//!   not the gateway's.

use std::error::Error;
use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::admin::AdminToken;
use tollgate::gateway::{First, Gateway, GatewayOptions};
use tollgate::proxy::edge::head::{Bounds, Look, Scan, check};
use tollgate::proxy::{EdgeOptions, ServerOptions};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const SLOW: usize = 1_000;
const ROUNDS: usize = 5;
/// Twelve seconds: whoever is silent is cut within them, and whoever sends half a head.
const REQUESTS: usize = 2_400;
const EACH: Duration = Duration::from_millis(5);
/// How long before a request is due its thread wakes up.
const AWAKE: Duration = Duration::from_micros(200);
const SECRET: &str = "tg-bench";
/// Within how long the crowd comes.
const SPREAD: Duration = Duration::from_secs(1);
/// How this program is told to be the crowd.
const CROWD: &str = "--crowd";

fn main() -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut arguments = std::env::args().skip_while(|argument| argument != CROWD).skip(1);
    if let Some(address) = arguments.next() {
        return runtime.block_on(misbehave_all(address.parse()?));
    }
    head();
    runtime.block_on(crowd())
}

fn head() {
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway.example:8080\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n\
         Accept: application/json\r\nContent-Type: application/json\r\nUser-Agent: OpenAI/Python 3.57.0\r\nX-Stainless-Lang: python\r\n\
         X-Stainless-Package-Version: 3.57.0\r\nX-Stainless-OS: Linux\r\nX-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\n\
         X-Stainless-Runtime-Version: 3.13.1\r\nAuthorization: Bearer tg-{}\r\nX-Stainless-Async: false\r\nX-Stainless-Retry-Count: 0\r\n\
         X-Stainless-Read-Timeout: 600\r\nContent-Length: 712\r\n\r\n",
        "a".repeat(64)
    );
    let bounds = Bounds { head: 16 * 1024, headers: 100, target: 8 * 1024 };
    const TIMES: u32 = 200_000;
    let once = |bytes: &[u8]| match Scan::default().look(bytes, &bounds) {
        Ok(Look::Ends(end)) => check(&bytes[..end], &bounds),
        other => panic!("{other:?}"),
    };
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let began = Instant::now();
        for _ in 0..TIMES {
            black_box(once(black_box(head.as_bytes()))).ok();
        }
        best = best.min(began.elapsed());
    }
    println!("a head of {} bytes, 18 lines: {} ns", head.len(), best.as_nanos() / u128::from(TIMES));
}

/// The simulated provider, until it is dropped, and its URL.
fn provider() -> Outcome<(Ending, String)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["provider", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = Ending(command.spawn()?);
    let mut line = String::new();
    BufReader::new(process.0.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    let url = line.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    Ok((process, url))
}

/// A process that ends when this is dropped.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        // One that is gone already is no failure.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

async fn start(url: &str) -> Outcome<Gateway> {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir()?;
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "sk-simulated")?;
    let secret = secret.display();
    let policy = format!(
        r#"version: 1
providers:
  openai: {{ dialect: openai, base_url: "{url}", api_key: "file:{secret}" }}
pools:
  main: {{ provider: openai, ceiling: {{ tokens_per_minute: 100_000_000 }} }}
models:
  gpt-5: {{ provider: openai, pool: main, default_output_tokens: 64 }}
tiers:
  ample: {{ tokens_per_minute: 1_000_000_000, requests_per_minute: 10_000_000, max_inflight: 10_000 }}
default_tier: ample
tenants:
  - {{ id: bench, keys: [{{ label: bench, hash: "sha256:{}" }}] }}
"#,
        hex::encode(Sha256::digest(SECRET))
    );
    let first = First::Document { text: policy, name: "the bench's policy".to_owned() };
    let options = GatewayOptions {
        listen: ([127, 0, 0, 1], 0).into(),
        admin: ([127, 0, 0, 1], 0).into(),
        token: AdminToken::given("bench").ok_or("no token")?,
        admin_tls: None,
        users: None,
        ledger: None,
        policy_file: None,
        data: None,
        limiter: tollgate::limit::Options::default(),
        edge: EdgeOptions::default(),
        server: ServerOptions::default(),
    };
    Ok(Gateway::start(first, options).await?)
}

fn request(sim: &str, body: &str, length: usize) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {SECRET}\r\nX-Sim: {sim}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

fn good() -> String {
    let body = r#"{"model":"gpt-5","max_tokens":4,"messages":[{"role":"user","content":"Say something."}]}"#;
    request("", body, body.len())
}

/// This process' memory, in KiB: proc(5).
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

async fn crowd() -> Outcome<()> {
    let (_provider, url) = provider()?;
    let gateway = start(&url).await?;
    let address = gateway.callers();
    // Warm.
    behaved(address).await?;
    let mut held = Vec::new();
    for (what, said) in
        [("within a head", "POST /v1/chat/completions HTTP/1.1\r\nHo".to_owned()), ("idle", good())]
    {
        let before = memory();
        for _ in 0..SLOW {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(said.as_bytes()).await?;
            if what == "idle" {
                let mut read = [0; 4096];
                let _answer = stream.read(&mut read).await?;
            }
            held.push(stream);
        }
        println!("a connection, {what}: {:.1} KiB", memory().saturating_sub(before) as f64 / SLOW as f64);
    }
    drop(held);
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let quiet = behaved(address).await?;
        let itself = std::env::current_exe()?;
        let mut slow = Command::new("nice");
        slow.args(["-n", "19"]).arg(itself).arg(CROWD).arg(address.to_string()).stdin(Stdio::null());
        let slow = Ending(slow.spawn()?);
        // All of them have connected.
        tokio::time::sleep(2 * SPREAD).await;
        let crowded = behaved(address).await?;
        drop(slow);
        let ratio = crowded.1.as_secs_f64() / quiet.1.as_secs_f64();
        println!(
            "round {round}: alone p50 {:?} p99 {:?}, beside {SLOW} p50 {:?} p99 {:?}, p99 × {ratio:.2}",
            quiet.0, quiet.1, crowded.0, crowded.1
        );
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!("p99 beside {SLOW}: × {:.2} – {:.2} – {:.2}", ratios[0], ratios[ROUNDS / 2], ratios[ROUNDS - 1]);
    Ok(())
}

/// Requests over one connection at a steady rate, each timed from when it was due: p50 and p99. On a thread of its own, which is awake
/// when a request is due: a timer of the runtime is a millisecond late, more than a request takes.
async fn behaved(address: SocketAddr) -> Outcome<(Duration, Duration)> {
    tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let asked = good();
        let mut taken = Vec::with_capacity(REQUESTS);
        let began = Instant::now();
        for number in 0..REQUESTS {
            let due = began + EACH * u32::try_from(number)?;
            std::thread::sleep(due.saturating_duration_since(Instant::now()).saturating_sub(AWAKE));
            while Instant::now() < due {
                std::hint::spin_loop();
            }
            stream.write_all(asked.as_bytes())?;
            let mut read = [0; 8192];
            // Head and body of so small an answer come in one piece.
            let got = stream.read(&mut read)?;
            if !read[..got].starts_with(b"HTTP/1.1 200") {
                return Err(String::from_utf8_lossy(&read[..got]).into());
            }
            taken.push(due.elapsed());
        }
        taken.sort_unstable();
        Ok((taken[REQUESTS / 2], taken[REQUESTS * 99 / 100]))
    })
    .await?
}

/// A thousand that do not behave, until this process is killed. Not in step with each other.
async fn misbehave_all(address: SocketAddr) -> Outcome<()> {
    let mut slow = JoinSet::new();
    for number in 0..SLOW {
        slow.spawn(misbehave(address, number));
        tokio::time::sleep(SPREAD / u32::try_from(SLOW)?).await;
    }
    while let Some(ended) = slow.join_next().await {
        ended??;
    }
    Ok(())
}

/// Does it again whenever it is cut.
async fn misbehave(address: SocketAddr, number: usize) -> Outcome<()> {
    let body =
        r#"{"model":"gpt-5","max_tokens":2000,"stream":true,"messages":[{"role":"user","content":"a"}]}"#;
    loop {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4 * 1024)?;
        let mut stream = socket.connect(address).await?;
        let said = match number % 4 {
            0 => String::new(),
            1 => "POST /v1/chat/comp".to_owned(),
            2 => request("", "{", 1_000),
            _ => request("tokens=2000,gap=50ms", body, body.len()),
        };
        stream.write_all(said.as_bytes()).await?;
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            let going = match number % 4 {
                3 => stream.read_exact(&mut [0; 1]).await.is_ok(),
                2 => stream.write_all(b" ").await.is_ok(),
                _ => !matches!(stream.try_read(&mut [0; 64]), Ok(0)),
            };
            if !going {
                break;
            }
        }
    }
}
