//! N nodes as one: real processes that join, move shards, are killed, paused, stopped and started again, as callers and operators
//! see it.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

mod support;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rustix::process::Signal;
use support::cluster::{Beginning, Cluster, Peer, RECOVERY, for_a, free_address};
use support::policy::AMPLE;
use support::{Key, Policy, Process, eventually};

/// No more comes in the time that a test takes: one a minute.
const REQUESTS_10: &str = "requests_per_minute: 1, burst_requests: 10";

fn key(tenant: &str) -> Key {
    Key::of(tenant)
}

/// So many tenants, each with these limits.
fn tenants(count: usize, limits: &'static str) -> impl Fn(Policy) -> Policy {
    move |mut policy| {
        for number in 0..count {
            let tenant = format!("t{number}");
            policy = policy.tenant(&tenant, &key(&tenant), limits);
        }
        policy
    }
}

/// Reads no clock that decides anything: only how long a story took, for its report.
#[allow(clippy::disallowed_methods, reason = "a test's stopwatch")]
fn stopwatch() -> Instant {
    Instant::now()
}

// Limits of one machine.

#[tokio::test]
async fn ten_requests_through_three_nodes_in_turn_are_exactly_ten() {
    let cluster = Cluster::patient(3, tenants(6, REQUESTS_10)).await;
    for tenant in 0..6 {
        let key = key(&format!("t{tenant}"));
        let asked = (0..60).map(|number| cluster.nodes[number % 3].chat(&key, "", 4));
        let statuses: Vec<u16> =
            join_all(asked).await.into_iter().map(|answer| answer.unwrap().status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "t{tenant}: {statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 50, "t{tenant}: {statuses:?}");
    }
    assert_eq!(cluster.provider.stat("requests").await, 60, "what is refused reaches no provider");
}

#[tokio::test]
async fn owners_are_spread_and_each_answers_for_its_own() {
    let cluster = Cluster::patient(3, tenants(40, AMPLE)).await;
    let mut owned = [0; 3];
    for tenant in 0..40 {
        owned[cluster.owner_of(&format!("t{tenant}")).await] += 1;
    }
    assert!(owned.iter().all(|count| *count > 0), "{owned:?}");
    let leader = cluster.leader().await;
    let follower = (0..3).find(|place| *place != leader).unwrap();
    let mut of_follower = None;
    for tenant in 0..40 {
        if cluster.owner_of(&format!("t{tenant}")).await == follower {
            of_follower = Some(format!("t{tenant}"));
        }
    }
    // Asked at the third node, decided at the follower that owns it; the leader does nothing.
    let third = 3 - leader - follower;
    let tenant = of_follower.unwrap();
    let before = cluster.nodes[leader].metric("tollgate_owned_decisions_total", &[]).await;
    let at_owner = cluster.nodes[follower].metric("tollgate_owned_decisions_total", &[]).await;
    for _ in 0..10 {
        assert_eq!(cluster.nodes[third].chat(&key(&tenant), "", 4).await.unwrap().status, 200);
    }
    assert_eq!(cluster.nodes[leader].metric("tollgate_owned_decisions_total", &[]).await, before);
    assert_eq!(cluster.nodes[follower].metric("tollgate_owned_decisions_total", &[]).await, at_owner + 10);
}

#[tokio::test]
async fn a_move_takes_the_level_along_and_refuses_nobody() {
    let mut cluster = Cluster::patient(3, tenants(30, REQUESTS_10)).await;
    // Four of ten are used of each.
    for tenant in 0..30 {
        let key = key(&format!("t{tenant}"));
        for number in 0..4 {
            assert_eq!(cluster.nodes[number % 3].chat(&key, "", 4).await.unwrap().status, 200);
        }
    }
    cluster.nodes[2].stop().await;
    cluster.until_spread(2).await;
    for tenant in 0..30 {
        let key = key(&format!("t{tenant}"));
        let asked = (0..12).map(|number| cluster.nodes[number % 2].chat(&key, "", 4));
        let statuses: Vec<u16> =
            join_all(asked).await.into_iter().map(|answer| answer.unwrap().status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 6, "t{tenant}: {statuses:?}");
        assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 6, "t{tenant}: {statuses:?}");
    }
    for node in &cluster.nodes[..2] {
        assert_eq!(node.metric("tollgate_cold_starts_total", &[]).await, 0, "nothing was lost");
    }
}

// Failures.

/// Asks for each tenant in turn, through `node`, until told to stop; what came back.
async fn keep_asking(
    node: &Peer,
    tenants: &[String],
    until: &tokio_util::sync::CancellationToken,
) -> Vec<(String, u16, String)> {
    let mut answers = Vec::new();
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    // A restart can be over before each was asked once: three rounds at least, so that coming back is seen too.
    while !until.is_cancelled() || answers.len() < 3 * tenants.len() {
        for tenant in tenants {
            let answer = node.chat(&key(tenant), "", 4).await;
            answers.push(match answer {
                Ok(answer) => (
                    tenant.clone(),
                    answer.status,
                    answer.header("x-tollgate-error").unwrap_or_default().to_owned(),
                ),
                Err(why) => (tenant.clone(), 0, why),
            });
            pace.tick().await;
        }
    }
    answers
}

/// Kills these nodes, and sees that tenants of live owners are refused nothing and those of the dead are admitted again in time.
async fn survives(mut cluster: Cluster, victims: &[usize], what: &str) {
    let mut of_the_dead = Vec::new();
    let mut of_the_living = Vec::new();
    for tenant in 0..30 {
        let tenant = format!("t{tenant}");
        let dead = victims.contains(&cluster.owner_of(&tenant).await);
        if dead { of_the_dead.push(tenant) } else { of_the_living.push(tenant) }
    }
    assert!(!of_the_dead.is_empty() && !of_the_living.is_empty());
    let witness = (0..cluster.nodes.len()).find(|place| !victims.contains(place)).unwrap();
    let done = tokio_util::sync::CancellationToken::new();
    for victim in victims {
        cluster.nodes[*victim].kill();
    }
    let began = stopwatch();
    let node = &cluster.nodes[witness];
    let recovery = async {
        let mut back = Vec::new();
        for tenant in &of_the_dead {
            eventually(&format!("{tenant} is admitted again after {what}"), async || {
                match node.chat(&key(tenant), "", 4).await? {
                    answer if answer.header("x-tollgate-error") != Some("limiter_unavailable") => Ok(()),
                    answer => Err(format!("{} {}", answer.status, answer.text())),
                }
            })
            .await;
            back.push(began.elapsed());
        }
        done.cancel();
        back
    };
    let (back, living) = tokio::join!(recovery, keep_asking(node, &of_the_living, &done));
    let last = back.last().copied().unwrap_or_default();
    println!("{what}: the first tenant is back after {:?}, all after {last:?}", back[0]);
    assert!(last < RECOVERY, "{what}: {last:?}");
    let refused: Vec<_> = living.iter().filter(|(_, status, _)| *status != 200).collect();
    assert!(refused.is_empty(), "{what}: tenants of live owners were refused: {refused:?}");
}

#[tokio::test]
async fn an_owner_is_killed_and_others_take_over() {
    let cluster = Cluster::of(3, tenants(30, AMPLE)).await;
    let leader = cluster.leader().await;
    let owner = (leader + 1) % 3;
    survives(cluster, &[owner], "kill -9 of an owner").await;
}

#[tokio::test]
async fn the_leader_is_killed_an_owner_itself() {
    let cluster = Cluster::of(3, tenants(30, AMPLE)).await;
    let leader = cluster.leader().await;
    survives(cluster, &[leader], "kill -9 of owner and leader in one").await;
}

#[tokio::test]
async fn leader_and_an_owner_are_killed_at_once() {
    let cluster = Cluster::of(5, tenants(30, AMPLE)).await;
    let leader = cluster.leader().await;
    survives(cluster, &[leader, (leader + 1) % 5], "kill -9 of the leader and of an owner").await;
}

#[tokio::test]
async fn an_owner_that_sleeps_through_its_lease_wakes_and_overspends_nothing() {
    // Two a second and three at once: what two owners would admit shows.
    let limits = "requests_per_minute: 120, burst_requests: 3";
    let mut cluster = Cluster::of(3, tenants(20, limits)).await;
    let leader = cluster.leader().await;
    let owner = (leader + 1) % 3;
    let mut sleepers = Vec::new();
    for tenant in 0..20 {
        let tenant = format!("t{tenant}");
        if cluster.owner_of(&tenant).await == owner {
            sleepers.push(tenant);
        }
    }
    let tenant = sleepers.first().expect("each of three nodes owns some of 20 tenants").clone();
    let began = stopwatch();
    let done = tokio_util::sync::CancellationToken::new();
    let (first, second) = cluster.nodes.split_at_mut(owner);
    let (sleeper, rest) = second.split_first_mut().unwrap();
    let others: Vec<&Peer> = first.iter().chain(rest.iter()).collect();
    let key = key(&tenant);
    let saturate = async |node: &Peer| {
        let mut admitted = 0u64;
        let mut pace = tokio::time::interval(Duration::from_millis(3));
        while !done.is_cancelled() {
            if node.chat(&key, "", 4).await.is_ok_and(|answer| answer.status == 200) {
                admitted += 1;
            }
            pace.tick().await;
        }
        admitted
    };
    let nap = async {
        for_a(Duration::from_millis(700)).await;
        sleeper.signal(Signal::STOP);
        // Twice the lease of 1.5 s.
        for_a(Duration::from_secs(3)).await;
        sleeper.signal(Signal::CONT);
        // What it had queued, it answers now, if it is mad.
        for_a(Duration::from_secs(2)).await;
        done.cancel();
    };
    let ((), one, other) = tokio::join!(nap, saturate(others[0]), saturate(others[1]));
    let took = began.elapsed().as_secs_f64();
    let allowed = 3.0 + took * 2.0 * 1.01;
    println!("admitted {} of {allowed:.1} in {took:.1} s", one + other);
    assert!((one + other) as f64 <= allowed, "{one} + {other} admitted, {allowed} allowed");
    assert!(one + other > 3, "somebody took over: {one} + {other}");
    // It lives again.
    sleeper.until_ready().await;
}

#[tokio::test]
async fn what_a_dead_gateway_held_in_flight_is_free_again() {
    let limits = "tokens_per_minute: 1_000_000, requests_per_minute: 60_000, max_inflight: 2";
    let mut cluster = Cluster::of(3, tenants(12, limits)).await;
    // A gateway that does not own the tenant.
    let owner = cluster.owner_of("t0").await;
    let (gateway, other) = ((owner + 1) % 3, (owner + 2) % 3);
    let key = key("t0");
    let node = &cluster.nodes[gateway];
    let held = async { tokio::join!(node.chat(&key, "latency=300s", 4), node.chat(&key, "latency=300s", 4)) };
    let taken = eventually("both slots are taken", async || match cluster.provider.stat("inflight").await {
        2 => Ok(()),
        inflight => Err(format!("{inflight} are in flight")),
    });
    tokio::select! {
        _ = held => panic!("a request that hangs was answered"),
        () = taken => {}
    }
    cluster.nodes[gateway].kill();
    eventually("the slots of the dead gateway are free", async || {
        let answer = cluster.nodes[other].chat(&key, "", 4).await?;
        if answer.status == 200 { Ok(()) } else { Err(format!("{} {}", answer.status, answer.text())) }
    })
    .await;
}

// Coming and going.

#[tokio::test]
async fn a_rolling_restart_under_load_refuses_nothing_where_readyz_says_ready() {
    let mut cluster = Cluster::patient(3, tenants(20, AMPLE)).await;
    for place in 0..3 {
        let witness = (place + 1) % 3;
        let names: Vec<String> = (0..20).map(|tenant| format!("t{tenant}")).collect();
        let done = tokio_util::sync::CancellationToken::new();
        let mut restarted = cluster.nodes.remove(place);
        let witness = if witness > place { witness - 1 } else { witness };
        let node = &cluster.nodes[witness];
        let restart = async {
            restarted.stop().await;
            restarted.start_and_join().await;
            done.cancel();
        };
        let ((), answers) = tokio::join!(restart, keep_asking(node, &names, &done));
        cluster.nodes.insert(place, restarted);
        let refused: Vec<_> = answers.iter().filter(|(_, status, _)| *status != 200).collect();
        assert!(
            refused.is_empty(),
            "restart of node {place}: {} of {} refused: {refused:?}",
            refused.len(),
            answers.len()
        );
        cluster.until_spread(3).await;
    }
}

#[tokio::test]
async fn five_nodes_found_a_cluster_together() {
    let provider = Process::provider(&[]).await;
    let yaml = tenants(10, REQUESTS_10)(Policy::at(&provider.url)).yaml();
    let addresses: Vec<_> = (0..5).map(|_| free_address()).collect();
    let mut nodes: Vec<Peer> = addresses
        .iter()
        .map(|address| Peer::at(*address, &yaml, Beginning::Expects(5, addresses.clone())))
        .collect();
    join_all(nodes.iter_mut().map(Peer::start_and_join)).await;
    let cluster = Cluster { provider, nodes };
    cluster.until_spread(5).await;
    let mut clusters = Vec::new();
    for node in &cluster.nodes {
        clusters.push(node.look("/v1/cluster").await.unwrap()["cluster"].clone());
    }
    clusters.dedup();
    assert_eq!(clusters.len(), 1, "one cluster: {clusters:?}");
    let key = key("t3");
    let asked = (0..50).map(|number| cluster.nodes[number % 5].chat(&key, "", 4));
    let statuses: Vec<u16> = join_all(asked).await.into_iter().map(|answer| answer.unwrap().status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "{statuses:?}");
}

#[tokio::test]
async fn a_wiped_node_is_a_new_one_once_the_old_is_removed() {
    let mut cluster = Cluster::of(3, tenants(4, AMPLE)).await;
    let old = cluster.nodes[2].look("/v1/cluster").await.unwrap();
    let address = cluster.nodes[2].address.to_string();
    let id = |page: &serde_json::Value| {
        let members = page["members"].as_array().unwrap();
        members
            .iter()
            .find(|member| member["address"] == address.as_str())
            .map(|member| member["id"].as_u64().unwrap())
    };
    let old = id(&old).unwrap();
    cluster.nodes[2].kill();
    cluster.until_spread(2).await;
    cluster.nodes[2].wipe();
    cluster.nodes[2].start().await;
    let words = format!("tollgate cluster remove {old}");
    eventually("it says what stands in its way", async || {
        let log = cluster.nodes[2].log();
        if log.contains(&words) { Ok(()) } else { Err(log) }
    })
    .await;
    assert!(!cluster.nodes[2].is_ready().await);
    eventually("the old number is removed", async || {
        match cluster.nodes[0].command(&["cluster", "remove", &old.to_string()]) {
            (0, ..) => Ok(()),
            (_, _, error) => Err(error),
        }
    })
    .await;
    cluster.nodes[2].until_ready().await;
    cluster.until_spread(3).await;
    let new = id(&cluster.nodes[0].look("/v1/cluster").await.unwrap()).unwrap();
    assert!(new > old, "{new} is no number that was used");
}

#[tokio::test]
async fn a_node_that_leaves_for_good_is_forgotten() {
    let mut cluster = Cluster::of(3, tenants(4, AMPLE)).await;
    let (code, out, error) = cluster.nodes[2].command(&["cluster", "leave"]);
    assert_eq!(code, 0, "{out} {error}");
    cluster.nodes[2].process().ended().await;
    cluster.nodes[2].kill();
    cluster.until_spread(2).await;
    let page = cluster.nodes[0].look("/v1/cluster").await.unwrap();
    assert_eq!(page["members"].as_array().unwrap().len(), 2, "{page}");
    // Two nodes bear no failure, and that is said where people look.
    let warnings = page["warnings"].to_string();
    assert!(warnings.contains("two voters"), "{warnings}");
    let (code, out, _) = cluster.nodes[0].command(&["cluster", "status"]);
    assert!(code == 0 && out.contains("two voters"), "{out}");
    eventually("the leader's log says it, too", async || {
        let logs = cluster.nodes[0].log() + &cluster.nodes[1].log();
        if logs.contains("two voters") { Ok(()) } else { Err(logs) }
    })
    .await;
    // Its folder has belonged here: it never comes back, and its process says so and ends.
    let folder = cluster.nodes[2].data();
    cluster.nodes[2].start().await;
    let status = cluster.nodes[2].process().ended().await;
    assert_eq!(status.code(), Some(1));
    let log = cluster.nodes[2].log();
    assert!(log.contains("was removed from its cluster") && log.contains(folder.to_str().unwrap()), "{log}");
}

#[tokio::test]
async fn a_node_with_another_secret_is_told_so_and_joins_nothing() {
    let mut cluster = Cluster::patient(1, tenants(1, AMPLE)).await;
    let yaml = tenants(1, AMPLE)(Policy::at(&cluster.provider.url)).yaml();
    let seed = cluster.nodes[0].address;
    let mut stranger = Peer::new(&yaml, Beginning::Joins(vec![seed]))
        .secret("another secret of some forty bytes, for this test");
    stranger.start().await;
    eventually("it says that the secret is another", async || {
        let log = stranger.log();
        if log.contains("secret") && log.contains(&seed.to_string()) { Ok(()) } else { Err(log) }
    })
    .await;
    let page = cluster.nodes[0].look("/v1/cluster").await.unwrap();
    assert_eq!(page["members"].as_array().unwrap().len(), 1, "{page}");
    assert!(!stranger.is_ready().await);
    let says =
        |line: &&str| line.contains("WARN") && line.contains("secret") && line.contains(&seed.to_string());
    assert_eq!(
        stranger.log().lines().filter(says).count(),
        1,
        "one line, not one a second: {}",
        stranger.log()
    );
    // The cluster goes on.
    assert_eq!(cluster.nodes[0].chat(&key("t0"), "", 4).await.unwrap().status, 200);
    stranger.stop().await;
    cluster.nodes[0].stop().await;
}

#[tokio::test]
async fn two_clusters_on_one_machine_do_not_mix() {
    let one = Cluster::patient(2, tenants(1, REQUESTS_10)).await;
    let other = Cluster::patient(2, tenants(1, REQUESTS_10)).await;
    for cluster in [&one, &other] {
        let key = key("t0");
        let asked = (0..30).map(|number| cluster.nodes[number % 2].chat(&key, "", 4));
        let statuses: Vec<u16> =
            join_all(asked).await.into_iter().map(|answer| answer.unwrap().status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 10, "{statuses:?}");
    }
    // A folder of one, pointed at the other by mistake, stays where it belongs.
    let mut nodes = one.nodes;
    let mut astray = nodes.remove(1);
    astray.stop().await;
    let mut astray = astray.arguments(&["--join", &other.nodes[0].address.to_string()]);
    astray.start().await;
    eventually(
        "it rejoins its own",
        async || {
            if astray.is_ready().await { Ok(()) } else { Err(astray.log()) }
        },
    )
    .await;
    let page = other.nodes[0].look("/v1/cluster").await.unwrap();
    assert_eq!(page["members"].as_array().unwrap().len(), 2, "{page}");
}

#[tokio::test]
async fn the_secret_is_changed_without_a_stop() {
    let mut cluster = Cluster::patient(3, tenants(3, AMPLE)).await;
    let folder = support::process::temporary_directory();
    let file = folder.path().join("new-secret");
    std::fs::write(&file, "the next secret, of forty bytes or so too\n").unwrap();
    let names: Vec<String> = (0..3).map(|tenant| format!("t{tenant}")).collect();
    let done = tokio_util::sync::CancellationToken::new();
    let rotate = async {
        let run = |words: &[&str]| {
            let (code, out, error) = cluster.nodes[0].command(words);
            assert_eq!(code, 0, "{words:?}: {out} {error}");
            out
        };
        run(&["cluster", "keyring", "install", file.to_str().unwrap()]);
        let page = cluster.nodes[0].look("/v1/cluster").await.unwrap();
        let keys = page["keys"].as_array().unwrap();
        assert_eq!(keys.len(), 2, "{page}");
        let by = |in_use: bool| {
            let key = keys.iter().find(|key| key["in_use"] == in_use).unwrap();
            key["key"].as_str().unwrap().to_owned()
        };
        let (old, new) = (by(true), by(false));
        let (code, _, error) = cluster.nodes[0].command(&["cluster", "keyring", "remove", &old]);
        assert_eq!(code, 1, "the key in use cannot be removed: {error}");
        run(&["cluster", "keyring", "use", &new]);
        run(&["cluster", "keyring", "remove", &old]);
        done.cancel();
    };
    let ((), answers) = tokio::join!(rotate, keep_asking(&cluster.nodes[1], &names, &done));
    assert!(answers.iter().all(|(_, status, _)| *status == 200), "{answers:?}");
    // A node that comes back with the new secret alone is let in.
    let mut restarted = cluster.nodes.remove(2);
    restarted.stop().await;
    let mut restarted = restarted.secret("the next secret, of forty bytes or so too");
    restarted.start_and_join().await;
    cluster.nodes.push(restarted);
    cluster.until_spread(3).await;
}
