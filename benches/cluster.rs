//! What a decision costs when its owner is another node: latency beside a local owner and beside the floor (a raw echo of 64 bytes on
//! the same machine), decisions a second through one peer connection, what of a bucket is admitted under saturation, and how many
//! log entries and messages decisions take.
//!
//! Run: `cargo bench --bench cluster`. Three members in one process, each on a thread and runtime of its own, over loopback,
//! encrypted as ever; an admission here is the whole of reserve and settle without HTTP.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on stops")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;
use tollgate::clock::Clocks;
use tollgate::limit::{Amount, Name, Options};
use tollgate::node::membership::{Membership, MembershipOptions};
use tollgate::node::owners::shard_of;
use tollgate::node::{Asking, Node, Principal, Reach, Reserved, Snapshot};
use tollgate::policy;
use tollgate::route::Endpoint;
use tollgate_cluster::lease::Timing;
use tollgate_cluster::member::MemberOptions;
use tollgate_cluster::outside::{FileFolder, OsEntropy, Outside, TokioNetwork};
use tollgate_cluster::raft::RaftOptions;
use tollgate_cluster::secret::{Secret, Secrets};
use tollgate_cluster::time::Span;

const NODES: usize = 3;
const TENANTS: usize = 64;
/// One after another, for latency.
const PAIRS: usize = 20_000;
/// At once, for throughput.
const ABREAST: usize = 256;
const THROUGHPUT: Duration = Duration::from_secs(3);
/// The tenant whose bucket is kept empty: its rate and burst, and for how long.
const RATE: u64 = 60_000;
const BURST: u64 = 100;
const SATURATION: Duration = Duration::from_secs(20);

struct Running {
    node: Arc<Node>,
    membership: Membership,
    runtime: tokio::runtime::Handle,
    stop: CancellationToken,
    thread: std::thread::JoinHandle<()>,
}

fn main() {
    let folders: Vec<_> = (0..NODES).map(|_| tempfile::tempdir().unwrap()).collect();
    let first = start(folders[0].path(), Some(1), Vec::new());
    let seed = first.membership.member().address().to_owned();
    let mut nodes = vec![first];
    for folder in &folders[1..] {
        nodes.push(start(folder.path(), None, vec![seed.clone()]));
    }
    until("the shards are spread", || {
        let owned = nodes.iter().map(|node| node.membership.member().shards().count().serving);
        owned.clone().sum::<usize>() == 1024 && owned.clone().all(|owned| owned > 0)
    });
    let gateway = &nodes[0];
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for number in 0..TENANTS {
        let name = Name::from(format!("t{number}"));
        let holder = gateway.membership.member().shards().facts().unwrap().authority.holder(shard_of(&name));
        let (owner, _) = holder.unwrap();
        if Some(owner) == gateway.membership.member().node() {
            here.push(name)
        } else {
            there.push((owner, name))
        }
    }
    let one = there[0].0;
    let there: Vec<Name> =
        there.into_iter().filter(|(owner, _)| *owner == one).map(|(_, name)| name).collect();

    println!("floor: raw echo of 64 bytes over TCP loopback: {}", percentiles(echo()));
    println!("local owner, reserve + settle:  {}", percentiles(pairs(gateway, &here)));
    println!("remote owner, reserve + settle: {}", percentiles(pairs(gateway, &there)));

    let entries =
        || nodes.iter().map(|node| node.membership.member().raft_stats().unwrap().entries_total).max();
    let before = entries().unwrap();
    let (decided, took) = throughput(gateway, &there);
    println!(
        "through one peer connection, {ABREAST} abreast: {:.0} decisions/s, settled as well ({decided} in {:.2} s)",
        decided as f64 / took.as_secs_f64(),
        took.as_secs_f64()
    );
    let written = entries().unwrap() - before;
    println!("log entries with commands meanwhile: {written} for {decided} admissions");

    let owner = nodes.iter().find(|node| node.membership.member().node() == Some(one)).unwrap();
    let decisions = owner.membership.member().shards().host().decisions();
    println!("decisions at that owner in all: {decisions}");

    let (admitted, took) = saturate(&nodes);
    let allowed = BURST as f64 + RATE as f64 / 60.0 * took.as_secs_f64();
    println!(
        "saturated through {NODES} nodes for {:.1} s: {admitted} admitted of {allowed:.0} allowed, {:.4}",
        took.as_secs_f64(),
        admitted as f64 / allowed
    );
    for node in nodes {
        node.stop.cancel();
        node.thread.join().unwrap();
    }
}

fn start(folder: &std::path::Path, founders: Option<usize>, join: Vec<String>) -> Running {
    let (tell, told) = std::sync::mpsc::channel();
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    let folder = folder.to_owned();
    let thread = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        runtime.block_on(async {
            let clock = Arc::new(Clocks);
            let outside = Outside {
                network: Arc::new(TokioNetwork),
                clock: clock.clone(),
                entropy: Arc::new(OsEntropy),
                folder: Arc::new(FileFolder(folder)),
            };
            let member = MemberOptions {
                peer: "127.0.0.1:0".parse().unwrap(),
                advertise: None,
                join,
                founders,
                timing: Timing::DEFAULT,
                voter_grace: Span::from_millis(60_000),
                raft: RaftOptions::default(),
            };
            let secret = Secret::new(*b"a secret of forty bytes or so, for tests").unwrap();
            let options = MembershipOptions {
                member,
                secrets: Arc::new(Secrets::new(secret)),
                outside,
                reach: Reach::default(),
                audit: None,
            };
            let snapshot = Snapshot::first(policy::parse(&document(), "bench").unwrap());
            let (node, membership) =
                Membership::start(snapshot, Options::default(), None, options).await.unwrap();
            let mut waiting = membership.member().waiting_for();
            waiting.wait_for(Option::is_none).await.unwrap();
            let telling = node.clone();
            let until = stopping.clone();
            let outbox = tokio::spawn(async move { telling.tell_owners(until).await });
            tell.send((node, membership.clone(), handle)).unwrap();
            stopping.cancelled().await;
            outbox.await.unwrap();
            membership.shut_down().await;
        });
    });
    let (node, membership, runtime) = told.recv().unwrap();
    Running { node, membership, runtime, stop, thread }
}

fn document() -> String {
    let key = |name: &str| {
        format!("sha256:{}", hex::encode(<sha2::Sha256 as sha2::Digest>::digest(name.as_bytes())))
    };
    let mut text = String::from(
        "version: 1\nproviders:\n  openai: { dialect: openai, base_url: \"http://127.0.0.1:9\", api_key: \"env:NONE\" }\n\
         pools:\n  main: { provider: openai, ceiling: { tokens_per_minute: 100_000_000 } }\n\
         models:\n  gpt-5: { provider: openai, pool: main, default_output_tokens: 64 }\n\
         tiers:\n  ample: { tokens_per_minute: 1_000_000_000_000, requests_per_minute: 1_000_000_000 }\n\
         default_tier: ample\nenforcement: enforce\ntenants:\n",
    );
    for number in 0..TENANTS {
        let key = key(&format!("t{number}"));
        text.push_str(&format!("  - {{ id: t{number}, keys: [{{ label: k, hash: \"{key}\" }}] }}\n"));
    }
    let key = key("scarce");
    text.push_str(&format!(
        "  - {{ id: scarce, tokens_per_minute: 1_000_000_000, requests_per_minute: {RATE}, burst_requests: {BURST}, keys: [{{ label: k, hash: \"{key}\" }}] }}\n"
    ));
    text
}

/// One admission, whole; whether it was one.
async fn admit(node: &Arc<Node>, principal: &Arc<Principal>, model: &Name) -> bool {
    let estimate = Amount { input: 100, output: 100, total: 200 };
    let asking = Asking {
        id: node.new_id(),
        principal,
        endpoint: Endpoint::ChatCompletions,
        user: None,
        model_asked: model,
        model,
        provider: "openai",
        estimate,
        idempotency: None,
        lane: tollgate::limit::Lane::Regular,
    };
    match node.reserve(asking).await {
        Reserved::Held(mut guard) => {
            guard.sending();
            guard.settle(estimate, "bench");
            true
        }
        Reserved::Denied(..) => false,
    }
}

fn principal(tenant: &Name) -> Arc<Principal> {
    Arc::new(Principal::new(tenant.clone(), Name::from("k"), None, Name::from("ample"), None))
}

/// How long each of many admissions took, one after another.
fn pairs(gateway: &Running, tenants: &[Name]) -> Vec<Duration> {
    let (node, principals) = (gateway.node.clone(), tenants.iter().map(principal).collect::<Vec<_>>());
    let task = gateway.runtime.spawn(async move {
        let model = Name::from("gpt-5");
        let mut took = Vec::with_capacity(PAIRS);
        for number in 0..PAIRS + 1000 {
            let began = Instant::now();
            assert!(admit(&node, &principals[number % principals.len()], &model).await);
            if number >= 1000 {
                took.push(began.elapsed());
            }
        }
        took
    });
    gateway.runtime.block_on(task).unwrap()
}

fn throughput(gateway: &Running, tenants: &[Name]) -> (u64, Duration) {
    let began = Instant::now();
    let tasks = (0..ABREAST).map(|number| {
        let (node, principal) = (gateway.node.clone(), principal(&tenants[number % tenants.len()]));
        gateway.runtime.spawn(async move {
            let model = Name::from("gpt-5");
            let mut admitted = 0;
            while began.elapsed() < THROUGHPUT {
                admitted += u64::from(admit(&node, &principal, &model).await);
            }
            admitted
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let admitted =
        gateway.runtime.block_on(async { join_all(tasks).await.into_iter().map(Result::unwrap).sum() });
    (admitted, began.elapsed())
}

/// Asks for more than there is, through all nodes.
fn saturate(nodes: &[Running]) -> (u64, Duration) {
    let began = Instant::now();
    let tasks: Vec<_> = nodes
        .iter()
        .map(|running| {
            let node = running.node.clone();
            running.runtime.spawn(async move {
                let (principal, model) = (principal(&Name::from("scarce")), Name::from("gpt-5"));
                let mut admitted = 0;
                let mut pace = tokio::time::interval(Duration::from_millis(1));
                while began.elapsed() < SATURATION {
                    pace.tick().await;
                    admitted += u64::from(admit(&node, &principal, &model).await);
                }
                admitted
            })
        })
        .collect();
    let admitted =
        nodes[0].runtime.block_on(async { join_all(tasks).await.into_iter().map(Result::unwrap).sum() });
    (admitted, began.elapsed())
}

/// What nothing that crosses a socket can beat: two tasks on two threads that send 64 bytes back and forth.
fn echo() -> Vec<Duration> {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (server, client) = (runtime(), runtime());
    let listener = server.block_on(async { tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap() });
    let address = listener.local_addr().unwrap();
    server.spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = [0; 64];
        while stream.read_exact(&mut bytes).await.is_ok() {
            stream.write_all(&bytes).await.unwrap();
        }
    });
    let task = client.spawn(async move {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut bytes = [0; 64];
        let mut took = Vec::with_capacity(PAIRS);
        for _ in 0..PAIRS {
            let began = Instant::now();
            stream.write_all(&bytes).await.unwrap();
            stream.read_exact(&mut bytes).await.unwrap();
            took.push(began.elapsed());
        }
        took
    });
    client.block_on(task).unwrap()
}

fn percentiles(mut took: Vec<Duration>) -> String {
    took.sort_unstable();
    let at = |percent: usize| took[(took.len() - 1) * percent / 100].as_nanos() as f64 / 1000.0;
    format!("p50 {:.1} µs, p99 {:.1} µs", at(50), at(99))
}

fn until(what: &str, so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
