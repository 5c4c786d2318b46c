//! One run: a cluster begins, goes through trouble, heals, comes to rest, and is judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::{Deserialize, Serialize};
use tollgate::control::budget::Budgets;

use super::budgets::{self, Judge};
use super::clock::{HostClock, RATE};
use super::history::UNANSWERED;
use super::host::live;
use super::nemesis::Nemesis;
use super::profile::{Plan, Profile};
use super::world::{Host, Phase, World};

/// The shortest and the longest way of a message.
pub const LATENCY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(8));

/// How old a grant may be when it is used, in nanoseconds: what a gateway does by default.
pub const GRANT_AGE: u64 = 500_000_000;

const TICK: Duration = Duration::from_millis(2);
const BEGINNING: Duration = Duration::from_secs(15);
const TROUBLE: Duration = Duration::from_secs(24);
/// What is undone at the heal can take this long: who was told to stop in good order is given the time.
const HEALING: Duration = Duration::from_secs(25);
/// How long it may take after that until every tenant is answered for through every node.
const RECOVERY: Duration = Duration::from_secs(10);
const SOUND: Duration = Duration::from_secs(2);
const DRAIN: Duration = Duration::from_secs(8);

/// In milliseconds.
const HOUR: i64 = 3_600_000;
const MONTH: i64 = 31 * 24 * HOUR;

/// What went wrong with code rather than with promises. A task that panics is not heard of otherwise.
pub static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What came of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub broken: Vec<String>,
    pub fingerprint: u64,
    pub simulated_millis: u64,
    pub used: u64,
    pub refused: BTreeMap<String, u64>,
    /// From the heal until everything was answered for, in milliseconds.
    pub recovery: Option<u64>,
    pub counters: BTreeMap<String, u64>,
}

/// How many hosts a seed's cluster begins with.
fn size(seed: u64) -> usize {
    [3, 4, 3, 5, 3, 4, 3, 7][seed as usize % 8]
}

/// One seed of a profile.
pub fn run(profile: Profile, seed: u64) -> Report {
    let plan = profile.plan();
    let world = world(plan, seed, size(seed));
    let mut sim = simulation(&world);
    let mut broken = Vec::new();
    let spare = world.hosts.len() - 1;
    sim.crash(world.hosts[spare].name.as_str());

    let initial: BTreeSet<usize> = (0..spare).collect();
    if !until(&mut sim, BEGINNING, |_| initial.iter().all(|&host| ready(&world, host))) {
        let waiting: Vec<_> =
            initial.iter().map(|&host| world.hosts[host].status().waiting.clone()).collect();
        broken.push(format!("liveness: the cluster has not begun: {waiting:?}"));
    }
    let begun = sim.elapsed();
    let mut nemesis = Nemesis::new(world.clone(), seed, begun);
    let mut bursts = Bursts::new(&world);
    while sim.elapsed() < begun + TROUBLE {
        step(&mut sim);
        nemesis.turn(&mut sim, true);
        bursts.turn(&world, sim.elapsed());
    }
    nemesis.heal(&mut sim);
    let healing = sim.elapsed();
    while !nemesis.is_over() && sim.elapsed() < healing + HEALING {
        step(&mut sim);
        nemesis.turn(&mut sim, false);
        bursts.turn(&world, sim.elapsed());
    }
    let healed = sim.elapsed();
    world.enter(Phase::Healed);
    until(&mut sim, RECOVERY - SOUND, |at| {
        bursts.turn(&world, at);
        false
    });
    world.enter(Phase::Sound);
    let sound = sim.elapsed();
    until(&mut sim, SOUND, |_| false);
    world.enter(Phase::Drain);
    let running = nemesis.running();
    let finals = |world: &World| -> BTreeMap<_, _> {
        let budgets = |host: usize| Some((host, world.hosts[host].status().budgets.clone()?));
        running.iter().filter_map(|&host| budgets(host)).collect()
    };
    let at_rest = |world: &World| {
        let told = running.iter().all(|&host| world.hosts[host].status().open.is_empty());
        let delivered = || finals(world).values().all(|budgets| budgets.alerts().is_empty());
        told && (plan.budget.is_none() || (budgets::forms(&finals(world)) == 1 && delivered()))
    };
    let drained = sim.elapsed();
    until(&mut sim, DRAIN, |at| at > drained + Duration::from_millis(500) && at_rest(&world));
    for &host in &running {
        for open in &world.hosts[host].status().open {
            broken.push(format!("nothing_leaked: {}: {open}", world.hosts[host].name));
        }
    }
    let finals = finals(&world);
    let end = sim.elapsed();
    for host in 0..world.hosts.len() {
        world.end_life(host, end.as_nanos() as u64);
    }
    judge(&world, (&running, finals), (healed, sound), broken, end)
}

fn judge(
    world: &World,
    (running, finals): (&BTreeSet<usize>, BTreeMap<usize, Arc<Budgets>>),
    (healed, sound): (Duration, Duration),
    mut broken: Vec<String>,
    simulated: Duration,
) -> Report {
    let nanos = |at: Duration| at.as_nanos() as u64;
    let mut history = world.history();
    history.sort();
    history.check(world.plan.limit, world.plan.tight, world.plan.pool, GRANT_AGE, &mut broken);
    if world.plan.budget.is_some() {
        let counters = BTreeMap::new();
        let mut judge = Judge { events: &history.events, plan: world.plan, finals, counters };
        judge.check(&mut broken);
        judge.counters.iter().for_each(|(what, count)| world.count(what, *count));
    }
    let spans = history.tight_spans();
    if world.plan.tight.is_some() && spans.len() < 2 {
        broken.push(format!("vacuous: the policy was tight {} times", spans.len()));
    }
    let recovery = history.answered_after(nanos(healed), running, world.plan.tenants);
    match recovery {
        Some(took) if took <= nanos(RECOVERY) => {}
        _ => broken.push(format!(
            "liveness: after the heal it took {recovery:?} ns until every node answered for every tenant"
        )),
    }
    let mut unanswered: BTreeMap<usize, u64> = BTreeMap::new();
    for event in &history.events {
        if let super::history::Event::Refused { at, why, gateway, .. } = event
            && *at >= nanos(sound)
            && running.contains(gateway)
            && UNANSWERED.contains(why)
        {
            *unanswered.entry(*gateway).or_default() += 1;
        }
    }
    for (gateway, times) in unanswered {
        broken.push(format!(
            "liveness: {} refuses {times} times long after the heal",
            world.hosts[gateway].name
        ));
    }
    // For whoever looks for the cause: the faults, and the story of one id or of all that may be leaked.
    if let Ok(wanted) = std::env::var("SIMULATION_TELLS") {
        history.faults().iter().for_each(|line| eprintln!("{line}"));
        let ids = u128::from_str_radix(&wanted, 16).map_or_else(|_| history.untold(), |id| [id].into());
        ids.into_iter().for_each(|id| eprintln!("{}", history.story(id)));
    }
    let (used, refused) = history.counts();
    if used < 200 {
        broken.push(format!("vacuous: only {used} requests were admitted"));
    }
    let panics = PANICS.lock().map(|panics| panics.clone()).unwrap_or_default();
    broken.extend(panics.into_iter().map(|panic| format!("panic: {panic}")));
    Report {
        broken,
        fingerprint: history.fingerprint(),
        simulated_millis: simulated.as_millis() as u64,
        used,
        refused: refused.into_iter().map(|(why, count)| (why.to_owned(), count)).collect(),
        recovery: recovery.map(|took| took / 1_000_000),
        counters: world.counters().clone(),
    }
}

/// A cluster of so many nodes that nothing befalls: its questions and decisions.
pub fn measure(nodes: usize) -> Report {
    let plan = Plan { callers: 2, ..Profile::F.plan() };
    let world = world(plan, nodes as u64, nodes);
    world.enter(Phase::Healed);
    let mut sim = simulation(&world);
    sim.crash(world.hosts[nodes].name.as_str());
    until(&mut sim, BEGINNING, |_| (0..nodes).all(|host| ready(&world, host)));
    // Until the shards have moved to where they stay.
    until(&mut sim, Duration::from_secs(2), |_| false);
    let (before, from) = (world.counters().clone(), sim.elapsed());
    let decided = world.history().events.len();
    until(&mut sim, Duration::from_secs(4), |_| false);
    let questions = world.counters().get("questions").unwrap_or(&0) - before.get("questions").unwrap_or(&0);
    let decisions = world.history().events[decided..]
        .iter()
        .filter(|event| matches!(event, super::history::Event::Decided { .. }))
        .count();
    let counters = [("questions", questions), ("decisions", decisions as u64)];
    Report {
        counters: counters.map(|(what, count)| (what.to_owned(), count)).into(),
        simulated_millis: (sim.elapsed() - from).as_millis() as u64,
        ..Report::default()
    }
}

/// `hosts` hosts and a spare.
fn world(plan: Plan, seed: u64, hosts: usize) -> Arc<World> {
    let mut chance = StdRng::seed_from_u64(seed ^ 0x0077_6f72_6c64);
    // An hour ends somewhere in the trouble or after it, and in half of all runs one wall clock is a month ahead.
    let boundary: i64 = if plan.budget.is_some() { chance.random_range(8_000..40_000) } else { 0 };
    let odd_clock = if plan.budget.is_some() { chance.random_range(0..2 * hosts) } else { usize::MAX };
    let names: Vec<String> = (0..=hosts).map(|number| format!("n{number}")).collect();
    let made = (0..=hosts).map(|number| {
        let name = names[number].clone();
        let others = names.iter().filter(|other| **other != name).cloned().collect();
        let rate = match plan.drifts {
            // As far as ρ lets two clocks be apart.
            true if number % 2 == 0 => RATE * 1000 / 1005,
            true => RATE * 1005 / 1000,
            false => RATE - 2_000 + chance.random_range(0..4_000),
        };
        let clock = HostClock::new(name.clone(), others, chance.random_range(0..1 << 50), rate);
        if plan.budget.is_some() {
            let ahead = if number == odd_clock { MONTH } else { 0 };
            clock.step_wall(HOUR - boundary + chance.random_range(-1_000..1_000) + ahead);
        }
        let founders = match plan.profile {
            _ if number == hosts => None,
            Profile::H => (number == 0).then_some(1),
            _ => Some(hosts),
        };
        Host::new(name, clock, founders)
    });
    Arc::new(World::new(plan, seed, made.collect()))
}

fn simulation<'a>(world: &Arc<World>) -> turmoil::Sim<'a> {
    let mut sim = turmoil::Builder::new()
        .rng_seed(world.seed)
        .simulation_duration(Duration::from_secs(3600))
        .tick_duration(TICK)
        .min_message_latency(LATENCY.0)
        .max_message_latency(LATENCY.1)
        .tcp_capacity(4096)
        .udp_capacity(1024)
        .enable_random_order()
        .build();
    for number in 0..world.hosts.len() {
        let (name, world) = (world.hosts[number].name.clone(), world.clone());
        sim.host(name, move || {
            let world = world.clone();
            async move {
                live(world, number).await;
                std::future::pending().await
            }
        });
    }
    sim
}

fn ready(world: &World, host: usize) -> bool {
    let status = world.hosts[host].status();
    status.node.is_some() && status.waiting.is_none()
}

fn step(sim: &mut turmoil::Sim<'_>) {
    sim.step().expect("no host's software ends with an error");
}

/// Steps until `done`, `within` that time: whether it came to that.
fn until(sim: &mut turmoil::Sim<'_>, within: Duration, mut done: impl FnMut(Duration) -> bool) -> bool {
    let end = sim.elapsed() + within;
    while sim.elapsed() < end {
        step(sim);
        if done(sim.elapsed()) {
            return true;
        }
    }
    false
}

/// Each tenant is asked for at once now and then, after it had time to fill up.
struct Bursts {
    chance: StdRng,
    next: Vec<Duration>,
}

impl Bursts {
    fn new(world: &World) -> Self {
        Self {
            chance: StdRng::seed_from_u64(world.seed ^ 0x6275),
            next: vec![Duration::ZERO; world.plan.tenants],
        }
    }

    fn turn(&mut self, world: &World, now: Duration) {
        for tenant in 0..self.next.len() {
            if now >= self.next[tenant] {
                let from = now.as_nanos() as u64;
                world.burst(tenant, from, from + 600_000_000);
                self.next[tenant] = now + Duration::from_millis(self.chance.random_range(4_000..7_000));
            }
        }
    }
}
