//! One provider account and many tenants with more in all than it can serve: three nodes hand out its guard rate, and not a token more.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::time::Duration;

use support::cluster::Cluster;
use support::{Key, Process, eventually};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Tenants with so many tokens a minute each, 1,200,000 together: twice what the account can serve.
const TENANTS: usize = 40;
const EACH: u64 = 30_000;

/// The provider refuses what is beyond this in any 60 seconds.
const CEILING: u64 = 600_000;

/// What may be claimed of it at once, unless the policy says otherwise.
const BURST: u64 = 60_000;

/// What a request takes, within a percent: 990 tokens of output and a short prompt.
const OUTPUT: u64 = 990;
const TOKENS: u64 = 1_000;

fn key(tenant: usize) -> Key {
    Key::of(&format!("the key of tenant {tenant}"))
}

async fn three_nodes() -> Cluster {
    let ceiling = CEILING.to_string();
    let provider = Process::provider(&["--ceiling-tokens-per-minute", &ceiling]).await;
    Cluster::before(
        provider,
        3,
        |policy| {
            let policy =
                policy.pool(&format!("refund_credit: none, ceiling: {{ tokens_per_minute: {CEILING} }}"));
            (0..TENANTS).fold(policy, |policy, tenant| {
                let limits = format!("tokens_per_minute: {EACH}, burst_tokens: 10_000");
                policy.tenant(&format!("tenant-{tenant}"), &key(tenant), &limits)
            })
        },
        &[],
    )
    .await
}

/// What callers saw.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    admitted: u64,
    global_capacity: u64,
    other: u64,
}

/// Sends a request every `pause`, each at the next node and of the next tenant, for so long.
async fn load(cluster: &Cluster, pause: Duration, length: Duration) -> Seen {
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (began, mut asking, mut seen) = (Instant::now(), JoinSet::new(), Seen::default());
    for number in 0.. {
        ticks.tick().await;
        if began.elapsed() >= length {
            break;
        }
        let (node, key) = (&cluster.nodes[number % 3], key(number % TENANTS));
        let (client, url) = (support::Client::new(), format!("{}/v1/chat/completions", node.callers));
        asking.spawn(async move {
            let bearer = key.bearer();
            let sim = format!("tokens={OUTPUT}");
            let headers = [("authorization", bearer.as_str()), ("x-sim", sim.as_str())];
            let body = serde_json::json!({
                "model": "gpt-5-mini",
                "max_completion_tokens": OUTPUT,
                "messages": [{ "role": "user", "content": "Hello." }],
            });
            let answer = client.post(&url, &headers, &body).await;
            (answer.status, answer.header("x-tollgate-error").map(str::to_owned))
        });
    }
    while let Some(answer) = asking.join_next().await {
        let (status, error) = answer.unwrap();
        match (status, error.as_deref()) {
            (200, _) => seen.admitted += 1,
            (429, Some("global_capacity")) => seen.global_capacity += 1,
            _ => seen.other += 1,
        }
    }
    seen
}

async fn sum(cluster: &Cluster, metric: &str) -> i64 {
    let mut sum = 0;
    for node in &cluster.nodes {
        sum += node.metric(metric, &[]).await;
    }
    sum
}

/// `TOLLGATE_POOL_SECONDS=1200` is the long run; what it prints is what the README says.
#[tokio::test(flavor = "multi_thread")]
async fn a_scarce_pool_is_used_up_by_three_nodes_and_its_provider_refuses_nothing() {
    let seconds = std::env::var("TOLLGATE_POOL_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(30));
    let cluster = three_nodes().await;

    // A third of the guard rate: nobody need wait, once each node has a purse.
    let calm = load(&cluster, Duration::from_millis(350), Duration::from_secs(6)).await;
    assert_eq!((calm.global_capacity, calm.other), (0, 0), "{calm:?}");
    let waits = sum(&cluster, "tollgate_grant_waits_total").await;
    assert!(waits <= 3, "{waits} of {} waited for a grant while there was enough", calm.admitted);

    // One and a half times the guard rate.
    let entries = cluster.nodes[0].metric("tollgate_raft_entries_total", &[]).await;
    let began = Instant::now();
    let scarce = load(&cluster, Duration::from_millis(76), length).await;
    let ran = began.elapsed();
    let entries = cluster.nodes[0].metric("tollgate_raft_entries_total", &[]).await - entries;
    let stats = support::Client::new().get(&format!("{}/stats", cluster.provider.url), &[]).await.json();
    // The burst is there at the beginning, and the guard rate from then on.
    let could = (BURST + CEILING * 85 / 100 * ran.as_millis() as u64 / 60_000) as f64;
    let used = (scarce.admitted * TOKENS) as f64 / could;
    let per_second = entries as f64 / ran.as_secs_f64();
    let all_waits = sum(&cluster, "tollgate_grant_waits_total").await;
    println!(
        "{} s: {scarce:?}; used {:.1} % of burst and guard rate; {per_second:.1} log entries a second; busiest minute {} of {CEILING}; {waits} of {} waited \
         while there was enough, {} of {} while there was not",
        ran.as_secs(),
        used * 100.0,
        stats["busiest_minute_tokens"],
        calm.admitted,
        all_waits - waits,
        scarce.admitted + scarce.global_capacity
    );
    assert_eq!(stats["refused_ceiling"], 0, "{stats}");
    assert_eq!(scarce.other, 0, "{scarce:?}");
    assert!(scarce.global_capacity > 0, "{scarce:?}");
    assert!(used >= 0.95, "only {:.1} % of burst and guard rate is used", used * 100.0);
    assert!(per_second < 30.0, "{per_second:.1} entries of the log a second");

    // What was sent is what the pool says was spent, once every purse has told.
    let sent = (calm.admitted + scarce.admitted) * TOKENS;
    eventually("every purse has told what it spent", async || {
        let page = cluster.nodes[0].look("/v1/pools").await?;
        let pools = page["pools"].as_array().into_iter().flatten();
        let pool = pools.into_iter().find(|pool| pool["id"] == "openai-main").ok_or("no such pool")?;
        let spent = pool["levels"][0]["spent"].as_u64().ok_or("nothing is spent")?;
        if spent.abs_diff(sent) <= sent / 50 { Ok(()) } else { Err(format!("{spent} of {sent}: {page}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_has_its_grants_written_off_and_the_others_go_on() {
    let mut cluster = three_nodes().await;
    let calm = load(&cluster, Duration::from_millis(200), Duration::from_secs(3)).await;
    assert_eq!((calm.global_capacity, calm.other), (0, 0), "{calm:?}");
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
    // Whoever stops in good order gives back what it holds: what is left is this node's own.
    cluster.nodes[1].stop().await;
    eventually("nobody else holds anything", async || {
        let page = cluster.nodes[0].look("/v1/pools").await?;
        let pools = page["pools"].as_array().into_iter().flatten();
        let pool = pools.into_iter().find(|pool| pool["id"] == "openai-main").ok_or("no such pool")?;
        let level = &pool["levels"][0];
        if level["outstanding"] == level["purse_here"] { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
}
