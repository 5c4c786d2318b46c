//! One run: a cluster is founded, callers begin, faults come one after another, all is mended, the callers stop, and everybody is asked what
//! is left open. What happened is in the run's folder then; judging it is another matter.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::client::{Caller, Numbers, Wish};
use crate::cluster::{Cluster, Options, PROVIDER_PORT, look};
use crate::history::{At, End, Outcome, Plan, Probe, Recorder, View};
use crate::nemesis::{Nemesis, Role, Stage, length};
use crate::network::{Host, PROVIDER, Plane};
use crate::peers::System;
use crate::provider::{self, Script};
use crate::random::Random;
use crate::sys;
use crate::workload::sdk::Place;
use crate::workload::{Callers, Workload};

/// What a run is to be.
#[derive(Clone, Debug)]
pub struct Order {
    /// Chance begins here.
    pub seed: u64,
    /// Nodes.
    pub nodes: u8,
    /// What callers do.
    pub workload: Workload,
    /// What a saturated tenant refills in a second.
    pub rate: u64,
    /// The faults, in order.
    pub faults: Vec<Nemesis>,
    /// How many of them there must be: all, but where time decides.
    pub windows: usize,
    /// Faults each of which must have been there; with any, something of each tenant must have been admitted.
    pub kinds: Vec<Nemesis>,
    /// No fault begins later than this after the callers; for ever, if not said.
    pub lasting: Option<Duration>,
    /// Whom all of them strike, if not whom chance says.
    pub role: Option<Role>,
    /// Whom each of them strikes and for how long, by its place, where that is settled.
    pub each: Vec<(Option<Role>, Duration)>,
    /// How long they last, if not as long as chance says.
    pub length: Option<Duration>,
    /// Nothing is broken for so long at first.
    pub quiet: Duration,
    /// Nothing is broken for so long after each fault.
    pub recovery: Duration,
    /// How many admissions there must be.
    pub admissions: usize,
    /// For how long callers may go on for that, from their beginning.
    pub patience: Duration,
    /// The Python that knows the official SDKs, where applications use them.
    pub python: Option<PathBuf>,
    /// How nodes are started.
    pub options: Options,
    /// Where all is written.
    pub folder: PathBuf,
}

/// For how long nodes are asked for what is left open, until it is nothing.
const QUIESCENCE: Duration = Duration::from_secs(30);

/// A budget of which all nodes say the same for so long is at rest.
const AT_REST: Duration = Duration::from_secs(2);

/// Between two looks at the cluster.
const LOOK: Duration = Duration::from_millis(500);

/// Gauges that are 0 when nobody asks for anything.
const GAUGES: [&str; 2] = ["tollgate_inflight", "tollgate_open_reservations"];

/// Runs it.
///
/// # Errors
/// The harness could not do what it should; what was recorded until then is in the folder.
pub fn run(order: Order) -> Result<(), String> {
    let tenants = order.workload.tenants(order.rate, order.options.lease);
    let plan = Plan {
        seed: order.seed,
        nodes: order.nodes,
        lease: order.options.lease.as_nanos() as u64,
        saturated: order.workload.saturated(&tenants),
        applications: order.workload.applications(&tenants),
        tenants,
        of_a_key: order.workload.of_a_key(),
        binary: order.options.binary.display().to_string(),
        audited: order.options.audit,
        windows: order.windows,
        kinds: order.kinds.iter().map(|nemesis| nemesis.name()).collect(),
        admissions: order.admissions,
        workload: order.workload.name(),
    };
    let recorder = Recorder::begin(&order.folder, &plan)?;
    let cluster = Cluster::prepare(&plan, 1, &recorder, &order.options)?;
    let runtime = |threads: usize| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(threads).enable_all().build().map_err(|error| error.to_string())
    };
    // Their threads live in these networks, and so does whatever socket they open.
    let provider = cluster.provider.within(move || runtime(1))?;
    let callers = cluster.callers.within(move || runtime(2))?;
    let log = recorder.arrivals.clone();
    let serving = provider.spawn(provider::serve(Plane::Provider.socket(PROVIDER, PROVIDER_PORT), log));
    provider.block_on(serving).map_err(|error| error.to_string())??;

    let done = callers.block_on(callers.spawn(through(order, plan, recorder.clone(), cluster)));
    // Nobody answers any more: what still ran at the provider is written down as it is cut.
    callers.shutdown_timeout(Duration::from_secs(5));
    provider.shutdown_timeout(Duration::from_secs(5));
    recorder.flush()?;
    done.map_err(|error| format!("the harness itself failed: {error}"))?
}

async fn through(order: Order, plan: Plan, recorder: Recorder, mut cluster: Cluster) -> Result<(), String> {
    let founders: Vec<Host> = (1..=plan.nodes).collect();
    say(&format!("founding a cluster of {} nodes; all is written to {}", plan.nodes, order.folder.display()));
    cluster.found(plan.nodes).await?;
    let (known, nodes) = watch::channel(founders.clone());
    let (moved, moves) = watch::channel(0);
    let looking = tokio::spawn(keep_looking(recorder.clone(), nodes.clone(), moved));
    let numbers = Arc::new(Numbers::default());
    let callers = Callers::new(plan.tenants.clone(), numbers.clone(), &recorder, plan.seed, nodes, moves);
    let mut hosts = founders;
    hosts.push(plan.nodes + 1);
    let python = order.python.as_deref();
    let place = python.map(|python| Place { network: &cluster.callers, python, folder: &order.folder });
    let (at_work, begun) = (callers.work(&hosts, place)?, sys::now());
    say(&format!("callers are at work ({}); nothing is broken for {:?}", plan.workload, order.quiet));
    sleep(order.quiet).await;
    let mut stage = Stage {
        cluster,
        chance: Random::new(plan.seed).fork(99),
        tenants: plan.tenants.keys().cloned().collect(),
        spare: plan.nodes + 1,
        role: None,
        known,
        limits: plan.tenants.clone(),
    };
    let struck = strike_all(&order, &mut stage, &recorder, begun).await;
    if struck.is_ok() {
        until_enough(&order, &numbers, begun).await;
    }
    let stopped = at_work.stop().await;
    let in_the_end = match &struck {
        Ok(()) if stage.cluster.system == System::Tollgate => {
            in_the_end(&plan, &recorder, &stage.cluster, numbers).await
        }
        _ => Ok(()),
    };
    looking.abort();
    let noted = note_ends(&mut stage.cluster, &recorder);
    for node in stage.cluster.nodes.values_mut() {
        node.kill();
    }
    struck.and(stopped).and(in_the_end).and(noted)
}

/// Lets callers go on until there are as many admissions as there must be, or the time for that is over.
async fn until_enough(order: &Order, numbers: &Numbers, begun: At) {
    let deadline = begun + order.patience.as_nanos() as u64;
    let enough = || numbers.admitted() >= order.admissions as u64;
    if !enough() {
        say(&format!("{} of {} admissions so far; callers go on", numbers.admitted(), order.admissions));
    }
    while !enough() && sys::now() < deadline {
        sleep(Duration::from_millis(200)).await;
    }
}

async fn strike_all(order: &Order, stage: &mut Stage, recorder: &Recorder, begun: At) -> Result<(), String> {
    let over = |lasting: Duration| sys::now() >= begun + lasting.as_nanos() as u64;
    for (number, nemesis) in order.faults.iter().enumerate() {
        if order.lasting.is_some_and(over) {
            break;
        }
        note_ends(&mut stage.cluster, recorder)?;
        stage.cluster.until_whole().await.map_err(|why| format!("before {}: {why}", nemesis.name()))?;
        let settled = order.each.get(number).copied();
        let by_chance = length(&mut stage.chance, stage.cluster.lease);
        let length = order.length.or(settled.map(|(_, length)| length)).unwrap_or(by_chance);
        stage.role = settled.and_then(|(role, _)| role).or(order.role);
        let window = stage.strike(*nemesis, length).await?;
        say(&format!(
            "{:>3}/{} {}: {}{}{}",
            number + 1,
            order.windows,
            window.nemesis,
            window.what,
            if window.note.is_empty() { "" } else { "; " },
            window.note
        ));
        recorder.windows.push(&window);
        sleep(order.recovery).await;
    }
    note_ends(&mut stage.cluster, recorder)?;
    stage.cluster.until_whole().await.map_err(|why| format!("in the end: {why}"))
}

/// Writes down which processes have ended that nothing had told to, and starts them again, so that the rest of the run says something too.
fn note_ends(cluster: &mut Cluster, recorder: &Recorder) -> Result<(), String> {
    for (number, node) in &mut cluster.nodes {
        let excused = if node.may_end { node.ended() } else { None };
        if let Some(status) = excused {
            say(&format!("n{number} ended with {status}, of what it had met before"));
            node.start()?;
        }
        for how in node.ends_unasked() {
            say(&format!("n{number} ended unasked: {how}"));
            recorder.ends.push(&End { at: sys::now(), node: *number, how });
            if !node.runs() {
                node.start()?;
            }
        }
    }
    Ok(())
}

/// What is left open when nobody asks for anything any more.
async fn in_the_end(
    plan: &Plan,
    recorder: &Recorder,
    cluster: &Cluster,
    numbers: Arc<Numbers>,
) -> Result<(), String> {
    say("callers have stopped; looking for what is left open");
    let deadline = sys::now() + QUIESCENCE.as_nanos() as u64;
    for node in cluster.running() {
        for name in GAUGES {
            let mut value = -1;
            while value != 0 && sys::now() < deadline {
                value = look::gauge(node, name).await.ok().flatten().unwrap_or(-1);
                sleep(Duration::from_millis(if value == 0 { 0 } else { 200 })).await;
            }
            recorder.probes.push(&Probe::Gauge { node, name: name.to_owned(), value });
        }
    }
    let nodes = cluster.running();
    for (tenant, limits) in &plan.tenants {
        let Some(slots) = limits.in_flight else { continue };
        let asked = (0..slots).map(|number| {
            let node = nodes[number as usize % nodes.len()];
            let mut caller = Caller::new(numbers.clone(), recorder.attempts.clone());
            let request = numbers.request();
            async move {
                let script = Script { latency: 1_500, tokens: 4, usage: true, ..Script::default() };
                caller.attempt(node, Wish::of(tenant, request, script)).await
            }
        });
        let outcomes = join_all(asked).await;
        let count = |wanted: Outcome| outcomes.iter().filter(|outcome| **outcome == wanted).count() as u64;
        let (admitted, refused) = (count(Outcome::Admitted), count(Outcome::Limited));
        recorder.probes.push(&Probe::Burst { tenant: tenant.clone(), wanted: slots, admitted, refused });
    }
    say_of_budgets(plan, recorder, cluster).await;
    Ok(())
}

/// What every node says of every budget, once that is the same at all and has not changed for a while.
async fn say_of_budgets(plan: &Plan, recorder: &Recorder, cluster: &Cluster) {
    let nodes = cluster.running();
    for tenant in plan.tenants.iter().filter(|(_, limits)| limits.budget.is_some()).map(|(tenant, _)| tenant)
    {
        let (mut last, mut since) = (Vec::new(), sys::now());
        let deadline = since + QUIESCENCE.as_nanos() as u64;
        loop {
            let said = join_all(nodes.iter().map(|node| look::budget(*node, tenant))).await;
            let said: Vec<Option<(u64, u64)>> = said.into_iter().map(Result::ok).collect();
            let now = sys::now();
            if said != last {
                (last, since) = (said, now);
            }
            let agreed = last.iter().all(|said| said.is_some() && *said == last[0]);
            if (agreed && now - since > AT_REST.as_nanos() as u64) || now > deadline {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        for (node, said) in nodes.iter().zip(last) {
            let (used, escrow) = said.map_or((None, 0), |(used, escrow)| (Some(used), escrow));
            recorder.probes.push(&Probe::Budget { node: *node, tenant: tenant.clone(), used, escrow });
        }
    }
}

/// Looks at the cluster through every node now and then, and says when shards have moved.
async fn keep_looking(recorder: Recorder, nodes: watch::Receiver<Vec<Host>>, moved: watch::Sender<u64>) {
    let mut last: BTreeMap<Host, u64> = BTreeMap::new();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let asked = nodes.borrow().clone();
        let seen =
            join_all(asked.iter().map(|node| async move { (*node, look::cluster(*node).await) })).await;
        for (node, seen) in seen {
            let Ok(seen) = seen else { continue };
            if seen.shards != last {
                moved.send_modify(|moves| *moves += 1);
                last.clone_from(&seen.shards);
            }
            recorder.views.push(&View {
                at: sys::now(),
                node,
                cluster: seen.id,
                leader: seen.leader.map(u64::from),
                epoch: seen.epoch,
                shards: seen.shards,
            });
        }
    }
}

/// A line for whoever watches.
fn say(line: &str) {
    eprintln!("{line}");
}
