//! What agreed state costs the log that it is agreed by, and whom it makes wait: a pool and twelve budgets before three members, at 100 requests
//! a second, at 1,000 and at as many as the machine gives, while there is enough and in the last hundredth of the budgets.
//!
//! Run: `cargo bench --bench agreed`. Three whole gateways in one process, over loopback, each with its log and journal on disk; an
//! admission here is the whole of reserve and settle without HTTP.

#![allow(clippy::unwrap_used, reason = "a bench that cannot go on stops")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinSet;
use tollgate::admin::AdminToken;
use tollgate::clock::Clocks;
use tollgate::control::budget::{BudgetCommand, BudgetKey, BudgetView, Part, Unit};
use tollgate::control::period::Cycle;
use tollgate::gateway::{First, Gateway, GatewayOptions};
use tollgate::limit::{Amount, Denial, Name, Options};
use tollgate::node::membership::MembershipOptions;
use tollgate::node::{Asking, Node, Principal, Reach, Reserved};
use tollgate::proxy::{EdgeOptions, ServerOptions};
use tollgate::route::Endpoint;
use tollgate_cluster::lease::Timing;
use tollgate_cluster::member::MemberOptions;
use tollgate_cluster::outside::{FileFolder, OsEntropy, Outside, TokioNetwork};
use tollgate_cluster::raft::RaftOptions;
use tollgate_cluster::secret::{Secret, Secrets};
use tollgate_cluster::time::Span;

const NODES: usize = 3;
/// With a budget each.
const SPENDERS: usize = 12;
/// What is held for a request, and what it then takes.
const HELD: u64 = 200;
const TAKEN: u64 = 150;
/// How long each rate is kept up: until purses know it, and then.
const LEARNING: Duration = Duration::from_secs(3);
const LENGTH: Duration = Duration::from_secs(6);
/// At once, where nothing else bounds the rate.
const ABREAST: usize = 48;
/// What is left of a budget at its end lasts for about so many seconds, at the estimates.
const LAST: u64 = 4;

const RATES: [(&str, Option<u32>); 3] = [("100", Some(100)), ("1000", Some(1_000)), ("most", None)];

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let gateways = Arc::new(together(folder.path()).await);
        println!("{NODES} members, a pool and {SPENDERS} budgets that are asked of them in turn");
        let mut most = 0;
        for (name, rate) in RATES {
            let first = run(&gateways, "ample", rate, LEARNING).await;
            let then = run(&gateways, "ample", rate, LENGTH).await;
            say(&format!("{name} a second, the first {} s", LEARNING.as_secs()), &first);
            say(&format!("{name} a second, then"), &then);
            most = then.admitted / LENGTH.as_secs();
        }
        for (name, rate) in RATES {
            let rate_or_most = rate.map_or(most, u64::from);
            let left = (rate_or_most * HELD * LAST / SPENDERS as u64).max(HELD * 4);
            // A hundredth of it is left.
            let tenants = format!("last-{name}");
            for spender in 0..SPENDERS {
                let used = limit_of(&tenants) - left;
                let budget = key(&tenants, spender);
                let agreement = gateways[0].agreement();
                agreement.budget(BudgetCommand::SetUsed { budget, used }).await.unwrap();
            }
            let last = run(&gateways, &tenants, rate, LENGTH).await;
            say(&format!("{name} a second, the end of the budgets"), &last);
            tokio::time::sleep(Duration::from_secs(2)).await;
            let views = (0..SPENDERS).map(|spender| view(&gateways[0], &tenants, spender));
            let (unused, over) = views.fold((0, 0), |(unused, over), view| {
                let limit = limit_of(&tenants);
                (unused + limit.saturating_sub(view.used), over + view.used.saturating_sub(limit))
            });
            println!(
                "    {unused} of {} that were left are not used, {over} too many",
                left * SPENDERS as u64
            );
        }
        let gateways = Arc::into_inner(gateways).unwrap();
        join_all(gateways.into_iter().map(|one| one.shut_down(Duration::ZERO, Duration::from_secs(1)))).await;
    });
}

/// What came of a run.
#[derive(Debug, Default)]
struct Run {
    admitted: u64,
    /// Told that the budget is used up.
    exhausted: u64,
    /// Refused otherwise: a grant was waited for in vain, or nobody answered.
    in_vain: u64,
    waited: u64,
    entries: u64,
    took: Duration,
}

fn say(what: &str, run: &Run) {
    let asked = run.admitted + run.exhausted + run.in_vain;
    let seconds = run.took.as_secs_f64();
    let waits = run.waited as f64 * 100.0 / asked.max(1) as f64;
    println!(
        "{what}: {:.0} asked a second, {:.1} log entries a second, {:.1} for a thousand requests; {} waited of {asked}, {waits:.3} %; \
         {} admitted, {} told of the end, {} refused in vain",
        asked as f64 / seconds,
        run.entries as f64 / seconds,
        run.entries as f64 * 1_000.0 / asked.max(1) as f64,
        run.waited,
        run.admitted,
        run.exhausted,
        run.in_vain,
    );
}

async fn run(gateways: &Arc<Vec<Gateway>>, tenants: &str, rate: Option<u32>, length: Duration) -> Run {
    let principals = (0..SPENDERS).map(|spender| {
        let tenant = Name::from(format!("{tenants}-{spender}"));
        Arc::new(Principal::new(tenant, Name::from("k"), None, Name::from("ample"), None))
    });
    let principals: Arc<Vec<Arc<Principal>>> = Arc::new(principals.collect());
    let look = || {
        let members = gateways.iter().filter_map(Gateway::membership);
        let entries = members.map(|one| one.member().raft_stats().unwrap().entries_total).max().unwrap();
        (entries, gateways.iter().map(|one| waits(one.node())).sum::<u64>())
    };
    let (before, began) = (look(), Instant::now());
    let mut run = Run::default();
    let mut asking = JoinSet::new();
    match rate {
        Some(rate) => {
            for number in 0.. {
                let due = began + Duration::from_nanos(1_000_000_000 / u64::from(rate)) * number;
                if due >= began + length {
                    break;
                }
                tokio::time::sleep_until(due.into()).await;
                let (gateways, principals) = (gateways.clone(), principals.clone());
                asking.spawn(async move { one(&gateways, &principals, number as usize).await });
                while let Some(Ok(answer)) = asking.try_join_next() {
                    run.note(&answer);
                }
            }
        }
        None => {
            let mut workers = JoinSet::new();
            for worker in 0..ABREAST {
                let (gateways, principals) = (gateways.clone(), principals.clone());
                workers.spawn(async move {
                    let (mut mine, mut number) = (Run::default(), worker);
                    while began.elapsed() < length {
                        mine.note(&one(&gateways, &principals, number).await);
                        number += ABREAST + 1;
                    }
                    mine
                });
            }
            while let Some(mine) = workers.join_next().await {
                let mine = mine.unwrap();
                run.admitted += mine.admitted;
                run.exhausted += mine.exhausted;
                run.in_vain += mine.in_vain;
            }
        }
    }
    while let Some(answer) = asking.join_next().await {
        run.note(&answer.unwrap());
    }
    let after = look();
    Run { entries: after.0 - before.0, waited: after.1 - before.1, took: began.elapsed(), ..run }
}

impl Run {
    fn note(&mut self, answer: &Result<(), Denial>) {
        *match answer {
            Ok(()) => &mut self.admitted,
            Err(Denial::Budget { .. }) => &mut self.exhausted,
            Err(_) => &mut self.in_vain,
        } += 1;
    }
}

/// One admission, whole.
async fn one(gateways: &[Gateway], principals: &[Arc<Principal>], number: usize) -> Result<(), Denial> {
    let node = gateways[number % NODES].node();
    // Each tenant comes through every node.
    let principal = &principals[number / NODES % SPENDERS];
    let model = Name::from("gpt-5");
    let asking = Asking {
        id: node.new_id(),
        principal,
        endpoint: Endpoint::ChatCompletions,
        user: None,
        model_asked: &model,
        model: &model,
        provider: "openai",
        estimate: Amount::new(HELD, 0),
        idempotency: None,
        lane: tollgate::limit::Lane::Regular,
    };
    match node.reserve(asking).await {
        Reserved::Held(mut guard) => {
            guard.sending();
            // As if a provider had taken its time, in which others come.
            tokio::task::yield_now().await;
            guard.settle(Amount::new(TAKEN, 0), "bench");
            Ok(())
        }
        Reserved::Denied(denial, _) => Err(denial),
    }
}

fn waits(node: &Arc<Node>) -> u64 {
    let page = node.render_metrics();
    let line = page.lines().find(|line| line.starts_with("tollgate_grant_waits_total")).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn key(tenants: &str, spender: usize) -> BudgetKey {
    let tenant = Name::from(format!("{tenants}-{spender}"));
    BudgetKey { tenant, part: Part::Tenant, cycle: Cycle::Month, unit: Unit::Tokens }
}

fn view(gateway: &Gateway, tenants: &str, spender: usize) -> BudgetView {
    gateway.agreement().control().budgets().view(&key(tenants, spender), None).unwrap()
}

/// A hundred times what is left at the end.
fn limit_of(tenants: &str) -> u64 {
    match tenants {
        "last-100" => 100 * 100 * HELD * LAST / SPENDERS as u64,
        "last-1000" => 100 * 1_000 * HELD * LAST / SPENDERS as u64,
        "last-most" => 100 * 20_000 * HELD * LAST / SPENDERS as u64,
        _ => 1_000_000_000_000,
    }
}

fn document() -> String {
    let mut text = String::from(
        "version: 1\nproviders:\n  openai: { dialect: openai, base_url: \"http://127.0.0.1:9\", api_key: \"env:NONE\" }\n\
         pools:\n  main: { provider: openai, ceiling: { tokens_per_minute: 1_000_000_000 } }\n\
         models:\n  gpt-5: { provider: openai, pool: main, default_output_tokens: 64 }\n\
         tiers:\n  ample: { tokens_per_minute: 1_000_000_000_000, requests_per_minute: 1_000_000_000 }\n\
         default_tier: ample\nenforcement: enforce\ntenants:\n",
    );
    for tenants in ["ample", "last-100", "last-1000", "last-most"] {
        for spender in 0..SPENDERS {
            let (tenant, limit) = (format!("{tenants}-{spender}"), limit_of(tenants));
            let hash = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&tenant));
            text.push_str(&format!(
                "  - {{ id: {tenant}, budget: {{ period: monthly, tokens: {limit} }}, keys: [{{ label: k, hash: \"sha256:{hash}\" }}] }}\n"
            ));
        }
    }
    text
}

/// Three gateways that are one cluster, each with a part of the shards, and the budgets' periods begun.
async fn together(folder: &Path) -> Vec<Gateway> {
    let first = start(&folder.join("1"), Vec::new()).await;
    let seed = first.membership().unwrap().member().address().to_owned();
    let mut gateways = vec![first];
    for number in 2..=NODES {
        gateways.push(start(&folder.join(number.to_string()), vec![seed.clone()]).await);
    }
    let is_so = |gateways: &[Gateway]| {
        let ready = gateways.iter().all(|one| one.waiting_for().is_none());
        let members = gateways.iter().filter_map(Gateway::membership);
        let owned: Vec<usize> = members.map(|one| one.member().shards().count().serving).collect();
        let spread = owned.iter().sum::<usize>() == 1_024 && owned.iter().all(|owned| *owned > 200);
        let control = gateways[0].agreement().control();
        ready && spread && control.budgets().current().all(|(_, period)| period.is_some())
    };
    let began = Instant::now();
    while !is_so(&gateways) {
        assert!(began.elapsed() < Duration::from_secs(60), "the members are not one cluster");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    gateways
}

async fn start(folder: &Path, join: Vec<String>) -> Gateway {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    std::fs::create_dir_all(folder).unwrap();
    let outside = Outside {
        network: Arc::new(TokioNetwork),
        clock: Arc::new(Clocks),
        entropy: Arc::new(OsEntropy),
        folder: Arc::new(FileFolder(folder.to_owned())),
    };
    let member = MemberOptions {
        peer: any,
        advertise: None,
        founders: join.is_empty().then_some(1),
        join,
        timing: Timing::DEFAULT,
        voter_grace: Span::from_millis(60_000),
        raft: RaftOptions::default(),
    };
    let secret = Secret::new(*b"a secret of forty bytes or so, for tests").unwrap();
    let membership = MembershipOptions {
        member,
        secrets: Arc::new(Secrets::new(secret)),
        outside,
        reach: Reach::default(),
        audit: None,
    };
    let policy = folder.join("policy.yaml");
    std::fs::write(&policy, document()).unwrap();
    let options = GatewayOptions {
        listen: any,
        admin: any,
        token: AdminToken::given("a token of the bench's").unwrap(),
        admin_tls: None,
        users: None,
        ledger: None,
        policy_file: Some(policy),
        data: Some(folder.to_owned()),
        limiter: Options::default(),
        edge: EdgeOptions::default(),
        server: ServerOptions::default(),
    };
    let first = First::Document { text: document(), name: "policy.yaml".to_owned() };
    Gateway::join(first, options, membership).await.unwrap()
}
