//! What Tollgate costs beside nginx, in one run: CPU for each proxied request and each streamed chunk, added latency, memory.
//!
//! ```text
//! cargo bench --bench proxy
//! TOLLGATE_BENCH_ROUNDS=9 cargo bench --bench proxy
//! TOLLGATE_BENCH_BINARY=/tmp/tollgate cargo bench --bench proxy            # another binary than the one just built
//! TOLLGATE_BENCH_BEFORE=/tmp/tollgate-before cargo bench --bench proxy     # an earlier binary beside the new one
//! ```
//!
//! CPU 0 has the proxies, each with one worker; CPU 1 has this process: load and provider ([`provider`]). In each round every proxy
//! has its turn under the same load, and ratios are formed within a round, since absolute figures move with whatever else the machine
//! does. CPU is on-CPU time of all threads of all processes of a proxy, its logging among them ([`proxies`]).
//!
//! - **requests**: 64 connections, each sending its next request when the last is answered. A request of about 700 bytes, from 100
//!   keys of 20 tenants, continues a conversation: its last message is new, so that it is read, counted and reserved.
//! - **streams**: 400 at once, an event of about 220 bytes each every 20 ms.
//! - **latency**: 200 requests a second. Added is a percentile of the proxy's less the median of the provider's own.

mod figures;
mod load;
mod provider;
mod proxies;

use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::Duration;

use figures::Round;
use proxies::Proxy;

/// Anything that keeps the bench from going on.
type Outcome<T> = Result<T, Box<dyn Error>>;

const CONNECTIONS: usize = 64;
const STREAMS: usize = 400;
const LATENCY_RATE: u64 = 200;

/// How long each load runs before it is measured, and while it is.
const WARM: Duration = Duration::from_millis(500);
const MEASURED: Duration = Duration::from_millis(1_500);
const LATENCY_MEASURED: Duration = Duration::from_secs(2);

const DEFAULT_ROUNDS: usize = 5;
/// Ten rounds of three proxies take three minutes.
const MAX_ROUNDS: usize = 10;

fn main() -> ExitCode {
    let missing =
        ["nginx", "taskset"].into_iter().find(|tool| Command::new(tool).arg("-V").output().is_err());
    let one_cpu = std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() < 2);
    match missing {
        Some("nginx") => skip("nginx is not installed: on Debian, `apt-get install nginx`"),
        Some(tool) => skip(&format!("{tool} is not installed: on Debian, `apt-get install util-linux`")),
        None if one_cpu => skip("it needs two CPUs: one for the proxies, one for the load"),
        None => match run() {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                eprintln!("proxy bench: {problem}");
                ExitCode::FAILURE
            }
        },
    }
}

fn skip(why: &str) -> ExitCode {
    println!("SKIPPED: {why}");
    ExitCode::SUCCESS
}

fn run() -> Outcome<()> {
    proxies::take_cpu_of_load()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::spawn(never_idle());
        compare().await
    })
}

/// Keeps the CPU of the load awake. To wake a sleeping CPU costs the one that sends to it several microseconds on a virtual machine,
/// and only a proxy that is slower than the load would pay that: nginx never lets the load sleep.
async fn never_idle() {
    loop {
        tokio::task::yield_now().await;
    }
}

async fn compare() -> Outcome<()> {
    let rounds = match std::env::var("TOLLGATE_BENCH_ROUNDS") {
        Ok(rounds) => rounds.parse::<usize>()?.clamp(1, MAX_ROUNDS),
        Err(_) => DEFAULT_ROUNDS,
    };
    let provider = provider::start().await?;
    let folder = tempfile::tempdir()?;
    let binary = std::env::var("TOLLGATE_BENCH_BINARY");
    let binary = binary.as_deref().unwrap_or(env!("CARGO_BIN_EXE_tollgate"));
    let mut proxies = vec![
        Proxy::nginx(folder.path(), provider).await?,
        Proxy::tollgate("tollgate", binary, folder.path(), provider).await?,
    ];
    if let Ok(before) = std::env::var("TOLLGATE_BENCH_BEFORE") {
        proxies.push(Proxy::tollgate("before", &before, folder.path(), provider).await?);
    }

    let mut taken: Vec<Vec<Round>> = vec![Vec::new(); proxies.len()];
    for round in 0..rounds {
        let direct = load::paced(provider, LATENCY_RATE, LATENCY_MEASURED).await?;
        for turn in 0..proxies.len() {
            // Whoever goes first in one round goes later in the next.
            let turn = (turn + round) % proxies.len();
            let proxy = &proxies[turn];
            let measured = measure(proxy, direct.percentile(50)).await?;
            println!("round {round} {:9} {measured}", proxy.name);
            taken[turn].push(measured);
        }
    }
    figures::report(&proxies, &taken);
    Ok(())
}

/// One proxy's turn. Streams come first: memory is measured before the other load has made the heap large.
async fn measure(proxy: &Proxy, direct_median: u64) -> Outcome<Round> {
    let resident_before = proxy.resident()?;
    let streams = load::Streams::open(proxy.streams, STREAMS).await?;
    tokio::time::sleep(WARM).await;
    streams.mark();
    let cpu = proxy.cpu()?;
    tokio::time::sleep(MEASURED).await;
    let (chunks, cpu) = (streams.since_mark()?, proxy.cpu()?.since(&cpu));
    let resident = proxy.resident()?;
    streams.close().await;
    let chunk_cpu = cpu / chunks.count.max(1);

    let requests = load::Closed::start(proxy.requests, CONNECTIONS).await?;
    tokio::time::sleep(WARM).await;
    let (answered, cpu) = (requests.answered(), proxy.cpu()?);
    tokio::time::sleep(MEASURED).await;
    let (answered, cpu) = (requests.answered() - answered, proxy.cpu()?.since(&cpu));
    requests.stop().await?;
    let request_cpu = cpu / answered.max(1);

    let cpu = proxy.cpu()?;
    let latency = load::paced(proxy.requests, LATENCY_RATE, LATENCY_MEASURED).await?;
    let paced_cpu = proxy.cpu()?.since(&cpu) / latency.count().max(1);
    Ok(Round {
        paced_cpu,
        request_cpu,
        requests_per_second: answered * 1_000 / MEASURED.as_millis() as u64,
        chunk_cpu,
        chunk_delay_p50: chunks.delays.percentile(50),
        chunk_delay_p99: chunks.delays.percentile(99),
        added_p50: latency.percentile(50).saturating_sub(direct_median),
        added_p99: latency.percentile(99).saturating_sub(direct_median),
        stream_bytes: resident.saturating_sub(resident_before) / STREAMS as u64,
        idle_bytes: resident_before,
    })
}
