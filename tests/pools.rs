//! One provider account and many tenants with more in all than it can serve: three nodes hand out its guard rate, and not a token more.
//! And what it costs the log that they agree by, budgets among it.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::time::Duration;

use support::cluster::{Cluster, for_a};
use support::policy::AMPLE;
use support::sample::{self, TENANTS};
use support::{Key, Process, eventually};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// What the tenants' limits come to: twice what the account can serve.
const LIMITS: u64 = 1_200_000;

/// What a tenant has at least: one that asks for nothing in the sample is there all the same.
const LEAST: u64 = 1_000;

/// The provider refuses what is beyond this in any 60 seconds.
const CEILING: u64 = 600_000;

/// What may be claimed of it at once, and what is handed out in a minute, unless the policy says otherwise.
const BURST: u64 = 60_000;
const GUARD: u64 = 510_000;

/// How fast the sample's minute is played, so that a short run has whole ones of it.
const SPEED: u32 = 4;

/// What a chat message costs beside its words, in the provider's count.
const OVERHEAD: u64 = 7;

fn key(tenant: usize) -> Key {
    Key::of(&format!("the key of tenant {tenant}"))
}

/// What each tenant may use in a minute: shares in proportion to what it asks for in the sample.
fn limits() -> [u64; TENANTS] {
    let asked = sample::asked();
    let (all, free) = (asked.iter().sum::<u64>(), LIMITS - LEAST * TENANTS as u64);
    asked.map(|asked| LEAST + free * asked / all)
}

/// Three nodes before a provider that enforces the ceiling which their policy names.
async fn three_nodes(route: &str) -> Cluster {
    let ceiling = CEILING.to_string();
    let provider = Process::provider(&["--ceiling-tokens-per-minute", &ceiling]).await;
    let limits = limits();
    assert!((LIMITS - TENANTS as u64..=LIMITS).contains(&limits.iter().sum()), "{limits:?}");
    Cluster::before(
        provider,
        3,
        |policy| {
            let policy =
                policy.pool(&format!("refund_credit: none, ceiling: {{ tokens_per_minute: {CEILING} }}"));
            let policy = if route.is_empty() { policy } else { policy.route(route) };
            limits.iter().enumerate().fold(policy, |policy, (tenant, limit)| {
                let limits = format!("tokens_per_minute: {limit}, burst_tokens: {}", (*limit).max(15_000));
                policy.tenant(&format!("tenant-{tenant}"), &key(tenant), &limits)
            })
        },
        &[],
    )
    .await
}

/// A request that somebody is about to make.
#[derive(Clone, Copy, Debug)]
struct Call {
    at: Duration,
    tenant: usize,
    prompt: u64,
    /// The most that it may write, and what it will.
    ceiling: u64,
    output: u64,
}

impl Call {
    const fn tokens(&self) -> u64 {
        self.prompt + self.output
    }
}

/// The sample, its sizes in thousandths, each request with as much room for its answer as that takes.
fn real(thousandths: u64) -> impl Iterator<Item = Call> {
    sample::repeated(SPEED).map(move |arrival| {
        let scaled = |tokens: u64| (tokens * thousandths).div_ceil(1_000);
        let (prompt, output) = (scaled(arrival.input).max(OVERHEAD + 1), scaled(arrival.output));
        Call { at: arrival.at, tenant: arrival.tenant, prompt, ceiling: output, output }
    })
}

/// The sample turned round: what is read there is here the most that may be written, so that answers are what costs. They take so many
/// twentieths of that.
fn turned_round(twentieths: u64) -> impl Iterator<Item = Call> {
    sample::repeated(SPEED).map(move |arrival| {
        let (prompt, ceiling) = (arrival.output.max(OVERHEAD + 1), arrival.input.max(20));
        Call { at: arrival.at, tenant: arrival.tenant, prompt, ceiling, output: ceiling * twentieths / 20 }
    })
}

/// What callers asked for and saw.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    admitted: u64,
    global_capacity: u64,
    /// Refused by the tenant's own limit or budget.
    own: u64,
    other: u64,
    /// What all would have cost that the tenants' own limits let through.
    offered: u64,
}

impl Seen {
    const fn asked(&self) -> u64 {
        self.admitted + self.global_capacity + self.own + self.other
    }

    fn note(&mut self, (tokens, status, error): (u64, u16, Option<String>)) {
        let count = match (status, error.as_deref()) {
            (200, _) => &mut self.admitted,
            (429, Some("global_capacity")) => &mut self.global_capacity,
            (429, Some("tenant_rate_limit_exceeded" | "budget_exhausted")) => {
                self.own += 1;
                return;
            }
            _ => &mut self.other,
        };
        *count += 1;
        self.offered += tokens;
    }
}

/// Makes the calls of so long a time when they are due, each at the next node, and waits for all answers.
async fn play(cluster: &Cluster, calls: impl Iterator<Item = Call>, length: Duration) -> Seen {
    let (began, mut asking, mut seen) = (Instant::now(), JoinSet::new(), Seen::default());
    for (number, call) in calls.take_while(|call| call.at < length).enumerate() {
        let due = call.at.saturating_sub(began.elapsed());
        if !due.is_zero() {
            for_a(due).await;
        }
        while let Some(answer) = asking.try_join_next() {
            seen.note(answer.unwrap());
        }
        let (node, key) = (&cluster.nodes[number % 3], key(call.tenant));
        let (client, url) = (support::Client::new(), format!("{}/v1/chat/completions", node.callers));
        asking.spawn(async move {
            let bearer = key.bearer();
            let sim = format!("tokens={}", call.output);
            let headers = [("authorization", bearer.as_str()), ("x-sim", sim.as_str())];
            let words = usize::try_from(call.prompt - OVERHEAD).unwrap();
            let body = serde_json::json!({
                "model": "gpt-5-mini",
                "max_completion_tokens": call.ceiling,
                "messages": [{ "role": "user", "content": " token".repeat(words) }],
            });
            let answer = client.post(&url, &headers, &body).await;
            (call.tokens(), answer.status, answer.header("x-tollgate-error").map(str::to_owned))
        });
    }
    while let Some(answer) = asking.join_next().await {
        seen.note(answer.unwrap());
    }
    seen
}

/// A run of calls, and what was seen beside their answers.
#[derive(Clone, Copy, Debug)]
struct Run {
    seen: Seen,
    length: Duration,
    /// What the provider billed.
    settled: u64,
    /// Commands in the log.
    entries: i64,
    /// Requests that waited for a grant.
    waits: i64,
}

impl Run {
    /// What of the guard rate was used, in settled tokens, with `burst` beside it.
    fn used(&self, burst: u64) -> f64 {
        self.settled as f64 / (burst as f64 + GUARD as f64 * self.length.as_secs_f64() / 60.0)
    }

    fn offered(&self) -> f64 {
        self.seen.offered as f64 / (GUARD as f64 * self.length.as_secs_f64() / 60.0)
    }

    fn entries_a_second(&self) -> f64 {
        self.entries as f64 / self.length.as_secs_f64()
    }
}

async fn run(cluster: &Cluster, calls: impl Iterator<Item = Call>, length: Duration) -> Run {
    let look = async || {
        let entries = cluster.nodes[0].metric("tollgate_raft_entries_total", &[]).await;
        (billed(cluster).await, entries, sum(cluster, "tollgate_grant_waits_total").await)
    };
    let before = look().await;
    let began = Instant::now();
    let seen = play(cluster, calls, length).await;
    let length = began.elapsed();
    let after = look().await;
    Run { seen, length, settled: after.0 - before.0, entries: after.1 - before.1, waits: after.2 - before.2 }
}

async fn billed(cluster: &Cluster) -> u64 {
    cluster.provider.stat("input_tokens").await + cluster.provider.stat("output_tokens").await
}

async fn sum(cluster: &Cluster, metric: &str) -> i64 {
    let mut sum = 0;
    for node in &cluster.nodes {
        sum += node.metric(metric, &[]).await;
    }
    sum
}

/// What the agreed state says of the pool's tokens, and what this node holds.
async fn level(cluster: &Cluster, node: usize) -> Result<serde_json::Value, String> {
    let page = cluster.nodes[node].look("/v1/pools").await?;
    let pools = page["pools"].as_array().into_iter().flatten();
    let pool = pools.into_iter().find(|pool| pool["id"] == "openai-main").ok_or("no such pool")?;
    Ok(pool["levels"][0].clone())
}

/// How long a run is: `TOLLGATE_POOL_SECONDS=1200` is the long one, and what it prints is what the README says.
fn length() -> Duration {
    let seconds = std::env::var("TOLLGATE_POOL_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(30))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scarce_pool_is_used_up_by_three_nodes_and_its_provider_refuses_nothing() {
    let cluster = three_nodes("").await;

    // A third of the guard rate: nobody need be refused.
    let calm = run(&cluster, real(25), Duration::from_secs(6)).await;
    assert_eq!(calm.seen.admitted, calm.seen.asked(), "{calm:?}");

    // Twice the guard rate, if the machine can.
    let scarce = run(&cluster, real(152), length()).await;
    let stats = cluster.provider.stats().await;
    // The burst is there at the beginning, and the guard rate from then on.
    let used = scarce.used(BURST);
    println!(
        "{} s: {:.2} of the guard rate offered, {:?}; {:.1} % of burst and guard rate settled; {:.1} log entries a second; busiest minute {} of {CEILING}; \
         waited for a grant {} of {} while there was enough, {} of {} while there was not",
        scarce.length.as_secs(),
        scarce.offered(),
        scarce.seen,
        used * 100.0,
        scarce.entries_a_second(),
        stats["busiest_minute_tokens"],
        calm.waits,
        calm.seen.asked(),
        scarce.waits,
        scarce.seen.asked(),
    );
    assert_eq!(stats["refused_ceiling"], 0, "{stats}");
    assert_eq!((scarce.seen.own, scarce.seen.other), (0, 0), "{scarce:?}");
    assert!(scarce.offered() >= 1.5, "only {:.2} of the guard rate was offered", scarce.offered());
    assert!(used >= 0.95, "only {:.1} % of burst and guard rate is used", used * 100.0);
    assert!(scarce.entries_a_second() < 30.0, "{scarce:?}");

    // What was sent is what the pool says was spent, once every purse has told.
    let sent = calm.settled + scarce.settled;
    eventually("every purse has told what it spent", async || {
        let level = level(&cluster, 0).await?;
        let spent = level["spent"].as_u64().ok_or("nothing is spent")?;
        if spent.abs_diff(sent) <= sent / 50 { Ok(()) } else { Err(format!("{spent} of {sent}: {level}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_suddenly_fill_their_ceilings_are_repaid_and_the_provider_refuses_nothing() {
    let cluster = three_nodes("{ path: /v1/chat/completions, estimate: { output: \"learned(p95)\" } }").await;

    // A route has learned nothing before its hundredth answer.
    let short = |call: Call| Call { ceiling: call.output.max(1), ..call };
    let learned = run(&cluster, turned_round(1).map(short), Duration::from_secs(10)).await;
    assert_eq!(learned.seen.other, 0, "{learned:?}");

    let half = length() / 2;
    let before = run(&cluster, turned_round(1), half).await;
    let after = run(&cluster, turned_round(20), half).await;
    let stats = cluster.provider.stats().await;
    for (what, run) in [("a twentieth", before), ("all", after)] {
        println!(
            "answers take {what} of their ceilings, {} s: {:.2} of the guard rate offered, {:?}; {:.1} % of the guard rate settled; {:.1} log entries a second; \
             waited for a grant {} of {}",
            run.length.as_secs(),
            run.offered(),
            run.seen,
            run.used(0) * 100.0,
            run.entries_a_second(),
            run.waits,
            run.seen.asked(),
        );
    }
    println!("busiest minute {} of {CEILING}", stats["busiest_minute_tokens"]);
    assert_eq!(stats["refused_ceiling"], 0, "{stats}");
    for run in [before, after] {
        assert_eq!(run.seen.other, 0, "{run:?}");
        assert!(run.seen.global_capacity > 0 && run.offered() >= 1.5, "{run:?}");
        assert!(run.entries_a_second() < 30.0, "{run:?}");
    }
    // More than was held is charged all the same: what the provider billed, the pool has counted as spent, and no purse stays in debt.
    let sent = billed(&cluster).await;
    eventually("every purse has told what it spent, and owes nothing", async || {
        let level = level(&cluster, 0).await?;
        let spent = level["spent"].as_u64().ok_or("nothing is spent")?;
        for node in &cluster.nodes {
            let held = node.metric("tollgate_purse_held", &["pool=\"openai-main\""]).await;
            if held < 0 {
                return Err(format!("a purse owes {held}"));
            }
        }
        if spent >= sent { Ok(()) } else { Err(format!("{spent} of {sent}: {level}")) }
    })
    .await;
}

/// Tenants with a budget each, and what that is.
const SPENDERS: usize = 12;
const BUDGET: u64 = 1_000_000;

/// Fifty requests a second of a hundred tokens, of one tenant after the other.
fn even() -> impl Iterator<Item = Call> {
    (0u32..).map(|number| Call {
        at: Duration::from_millis(20) * number,
        tenant: number as usize % SPENDERS,
        prompt: 50,
        ceiling: 50,
        output: 50,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_cost_the_log_little_and_not_much_more_where_all_of_them_run_out() {
    let cluster = Cluster::of(3, |policy| {
        (0..SPENDERS).fold(policy, |policy, tenant| {
            policy.tenant_yaml(&format!(
                "{{ id: tenant-{tenant}, {AMPLE}, budget: {{ period: monthly, tokens: {BUDGET} }}, keys: [{{ label: production, hash: \"{}\" }}] }}",
                key(tenant).hash
            ))
        })
    })
    .await;
    let learning = play(&cluster, even(), Duration::from_secs(3)).await;
    assert_eq!(learning.admitted, learning.asked(), "{learning:?}");
    let amply = run(&cluster, even(), Duration::from_secs(6)).await;

    // What is left to each is twenty requests: a five hundredth.
    for tenant in 0..SPENDERS {
        let (tenant, used) = (format!("tenant-{tenant}"), (BUDGET - 2_000).to_string());
        let words = ["budgets", "set-used", "--tenant", &tenant, "--cycle", "month", &used];
        let (code, out, err) = cluster.nodes[0].command(&words);
        assert_eq!(code, 0, "{out} {err}");
    }
    let last = run(&cluster, even(), Duration::from_secs(8)).await;
    for (what, run) in [("enough left", amply), ("the end", last)] {
        println!(
            "{what}: {:?}; {:.1} log entries a second; {} of {} waited for a grant",
            run.seen,
            run.entries_a_second(),
            run.waits,
            run.seen.asked()
        );
        assert_eq!((run.seen.global_capacity, run.seen.other), (0, 0), "{run:?}");
    }
    assert!(amply.seen.own == 0 && last.seen.own > 0, "{amply:?} {last:?}");
    assert!(amply.entries_a_second() < 15.0, "{amply:?}");
    assert!(last.entries_a_second() < 200.0, "{last:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_has_its_grants_written_off_and_the_others_go_on() {
    let mut cluster = three_nodes("").await;
    let calm = play(&cluster, real(25), Duration::from_secs(3)).await;
    assert_eq!(calm.admitted, calm.asked(), "{calm:?}");
    let held = cluster.nodes[2].metric("tollgate_purse_held", &["pool=\"openai-main\""]).await;
    assert!(held > 0, "its purse holds nothing");
    cluster.nodes[2].kill();
    eventually("its grants are written off", async || {
        match cluster.nodes[0].metric("tollgate_pool_written_off_total", &["pool=\"openai-main\""]).await {
            0 => Err("nothing is".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    for tenant in 0..6 {
        // Those of the dead node begin with empty buckets.
        eventually(&format!("tenant {tenant} is admitted"), async || {
            let answer = cluster.nodes[tenant % 2].chat(&key(tenant), "", 4).await?;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        })
        .await;
    }
    // With two of three gone nobody would be left to agree with on what was given back.
    cluster.nodes[2].start_and_join().await;
    cluster.until_spread(3).await;
    // Whoever stops in good order gives back what it holds: what is left is what the others keep for whoever comes.
    cluster.nodes[1].stop().await;
    eventually("nobody else holds anything", async || {
        let (here, there) = (level(&cluster, 0).await?, level(&cluster, 2).await?);
        let held = here["purse_here"].as_u64().zip(there["purse_here"].as_u64());
        if here["outstanding"].as_u64() == held.map(|(here, there)| here + there) {
            Ok(())
        } else {
            Err(format!("{here} {there}"))
        }
    })
    .await;
}
