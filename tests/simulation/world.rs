//! What the hosts of a run share with whoever drives it. On one thread: the locks are never waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tollgate::control::budget::Budgets;
use tollgate_cluster::id::NodeId;
use tollgate_cluster::store::twin::MemoryFolder;

use super::budgets::Told;
use super::clock::HostClock;
use super::history::{At, Event, History};
use super::profile::Plan;

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Anything may happen.
    Trouble,
    /// Nothing goes wrong any more, and all must come to answer.
    Healed,
    /// Every answer is an answer.
    Sound,
    /// Nobody asks any more, and all must come to an end.
    Drain,
}

/// The world of one run.
pub struct World {
    pub plan: Plan,
    pub seed: u64,
    pub hosts: Vec<Host>,
    history: Mutex<History>,
    counters: Mutex<BTreeMap<String, u64>>,
    phase: AtomicU8,
    /// When each tenant's callers ask at once.
    bursts: Mutex<Vec<(At, At)>>,
    /// Numbers whose disks are gone: an operator has them removed.
    to_be_removed: Mutex<BTreeSet<NodeId>>,
}

/// One host, over all its lives.
pub struct Host {
    pub name: String,
    pub clock: Arc<HostClock>,
    folder: Mutex<MemoryFolder>,
    /// Counts up before each end of a process: what one of before still does is nobody's.
    pub life: AtomicU64,
    founders: Mutex<Option<usize>>,
    order: Mutex<Option<Order>>,
    status: Mutex<Status>,
    aims_at_answers: AtomicBool,
}

/// Hand everything over and stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// And be forgotten by the cluster.
    pub for_good: bool,
}

/// What a host says of itself.
#[derive(Clone, Debug, Default)]
pub struct Status {
    pub node: Option<NodeId>,
    pub cluster: Option<u128>,
    pub waiting: Option<String>,
    pub leads: bool,
    /// Who votes, as its log says.
    pub voters: BTreeSet<NodeId>,
    /// It has stopped in good order.
    pub stopped: bool,
    /// The cluster has forgotten it.
    pub forgotten: bool,
    /// It has ended, for it was told that its folder is of no use any more.
    pub removed: bool,
    /// What is still open, in words.
    pub open: Vec<String>,
    /// What is agreed on of budgets, as far as it is applied there.
    pub budgets: Option<Arc<Budgets>>,
    /// Its own counters, of this life.
    pub counters: BTreeMap<String, u64>,
}

impl World {
    pub fn new(plan: Plan, seed: u64, hosts: Vec<Host>) -> Self {
        Self {
            plan,
            seed,
            hosts,
            history: Mutex::default(),
            counters: Mutex::default(),
            phase: AtomicU8::new(0),
            bursts: Mutex::new(vec![(0, 0); plan.tenants]),
            to_be_removed: Mutex::default(),
        }
    }

    pub fn push(&self, event: Event) {
        self.history().push(event);
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("nothing panics under it")
    }

    pub fn count(&self, what: &str, by: u64) {
        if by > 0 {
            *self.counters().entry(what.to_owned()).or_default() += by;
        }
    }

    pub fn to_be_removed(&self) -> MutexGuard<'_, BTreeSet<NodeId>> {
        self.to_be_removed.lock().expect("nothing panics under it")
    }

    pub fn counters(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.counters.lock().expect("nothing panics under it")
    }

    pub fn phase(&self) -> Phase {
        [Phase::Trouble, Phase::Healed, Phase::Sound, Phase::Drain]
            [usize::from(self.phase.load(Ordering::Relaxed))]
    }

    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    pub fn is_troubled(&self) -> bool {
        self.phase() == Phase::Trouble
    }

    /// Lets every caller ask for `tenant` between these instants.
    pub fn burst(&self, tenant: usize, from: At, to: At) {
        self.bursts.lock().expect("nothing panics under it")[tenant] = (from, to);
    }

    /// The tenants that everybody asks for now.
    pub fn bursting(&self, now: At) -> Vec<usize> {
        let bursts = self.bursts.lock().expect("nothing panics under it");
        (0..bursts.len()).filter(|&tenant| (bursts[tenant].0..bursts[tenant].1).contains(&now)).collect()
    }

    /// The disk of `host` is another one.
    pub fn wipe(&self, host: usize, founders: Option<usize>, at: At) {
        self.push(Event::Budget(Told::Wiped { at, host }));
        self.hosts[host].wipe(founders);
    }

    /// Ends the process of `host` in the books: its counters are kept, and what it still does is not heard.
    pub fn end_life(&self, host: usize, at: At) {
        let number = host;
        let host = &self.hosts[number];
        self.push(Event::Budget(Told::Over { at, host: number, life: host.life.load(Ordering::Relaxed) }));
        host.life.fetch_add(1, Ordering::Relaxed);
        host.clock.disarm();
        let (_, _) = (host.take_order(), host.at_answer());
        let status = std::mem::take(&mut *host.status());
        for (what, count) in status.counters {
            self.count(&what, count);
        }
    }
}

impl Host {
    pub fn new(name: String, clock: HostClock, founders: Option<usize>) -> Self {
        let folder = MemoryFolder::new(format!("{name}-0"));
        Self {
            name,
            clock: Arc::new(clock),
            folder: Mutex::new(folder),
            life: AtomicU64::new(0),
            founders: Mutex::new(founders),
            order: Mutex::default(),
            status: Mutex::default(),
            aims_at_answers: AtomicBool::new(false),
        }
    }

    pub fn folder(&self) -> MemoryFolder {
        self.folder.lock().expect("nothing panics under it").clone()
    }

    fn wipe(&self, founders: Option<usize>) {
        let folder = MemoryFolder::new(format!("{}-{}", self.name, self.life.load(Ordering::Relaxed)));
        *self.folder.lock().expect("nothing panics under it") = folder;
        *self.founders.lock().expect("nothing panics under it") = founders;
    }

    pub fn founders(&self) -> Option<usize> {
        *self.founders.lock().expect("nothing panics under it")
    }

    pub fn order(&self, order: Order) {
        *self.order.lock().expect("nothing panics under it") = Some(order);
    }

    pub fn take_order(&self) -> Option<Order> {
        self.order.lock().expect("nothing panics under it").take()
    }

    pub fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().expect("nothing panics under it")
    }

    /// Whether the next pause is to begin when an answer comes: asked once.
    pub fn at_answer(&self) -> bool {
        self.aims_at_answers.swap(false, Ordering::Relaxed)
    }

    /// Whether it is to begin then, and not before.
    pub fn aims_at_answer(&self) -> bool {
        self.aims_at_answers.load(Ordering::Relaxed)
    }

    pub fn aim_at_answer(&self) {
        self.aims_at_answers.store(true, Ordering::Relaxed);
    }
}
