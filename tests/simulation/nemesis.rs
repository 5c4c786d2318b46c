//! What goes wrong, by a seed: which kinds, to whom, when, for how long, and that it ends.
//!
//! A seed first draws the kinds that are on at all, since rare combinations need some to be off. Lengths are fractions and multiples
//! of a lease around which something changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::history::Event;
use super::profile::Profile;
use super::run::GRANT_AGE;
use super::turmoil_world::SeededEntropy;
use super::world::{Order, World};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// One host hears nobody and nobody hears it.
    Cut,
    /// One host is not heard, or hears nothing.
    OneWay,
    /// Two halves that one host sees both of.
    Bridge,
    /// Two halves.
    Split,
    /// Messages of one host take up to a lease.
    Slow,
    /// Messages of one host wait.
    Hold,
    /// Messages of one host wait for most of a lease, all arrive at once, and it is cut off: the last word that it hears is old.
    LastWord,
    /// One process stands still.
    Pause,
    /// Messages are lost.
    Loss,
    /// A process dies, and starts again.
    Crash,
    /// All do.
    CrashAll,
    /// A process stops in good order, and starts again.
    Restart,
    /// A node leaves for good; later it joins with an empty folder, as another.
    Leave,
    /// A disk is lost: an operator has the old number removed.
    Wipe,
    /// A wall clock is set.
    WallStep,
}

/// When something is to be undone or done, and what.
enum Later {
    Rejoin {
        from: usize,
        to: usize,
    },
    Fast(usize),
    NoLoss(usize),
    Release(usize),
    Start(usize),
    /// It is told to stop: start it when it has, or at last.
    StartStopped {
        host: usize,
        fresh: bool,
        patience: u32,
    },
}

/// Who makes the trouble.
pub struct Nemesis {
    world: Arc<World>,
    chance: StdRng,
    kinds: Vec<Fault>,
    later: BTreeMap<(u64, u64), Later>,
    number: u64,
    next: u64,
    /// How often each directed pair is cut now.
    cuts: BTreeMap<(usize, usize), u32>,
    held: BTreeMap<usize, u64>,
    down: BTreeSet<usize>,
    /// Hosts that are in the cluster or on their way in.
    pub members: BTreeSet<usize>,
    /// Lost its disk: nothing else goes wrong until then.
    quiet_until: u64,
    spare: usize,
    lease: u64,
}

impl Nemesis {
    /// For `world`, of whose hosts the last is a spare that has not started.
    pub fn new(world: Arc<World>, seed: u64, from: Duration) -> Self {
        let mut chance = StdRng::seed_from_u64(seed ^ 0x6e65_6d65);
        let menu: &[(Fault, u32)] = match world.plan.profile {
            Profile::E => &[
                (Fault::Cut, 3),
                (Fault::Leave, 2),
                (Fault::Restart, 2),
                (Fault::Pause, 3),
                (Fault::Crash, 3),
                (Fault::Slow, 1),
                (Fault::Hold, 1),
                (Fault::LastWord, 1),
                (Fault::WallStep, 1),
                (Fault::Loss, 1),
            ],
            Profile::F | Profile::P | Profile::Q => &[
                (Fault::Cut, 4),
                (Fault::OneWay, 2),
                (Fault::Pause, 5),
                (Fault::Slow, 2),
                (Fault::Split, 1),
                (Fault::Bridge, 1),
                (Fault::Hold, 1),
                (Fault::Crash, 1),
                (Fault::Loss, 1),
            ],
            Profile::B => &[
                (Fault::Crash, 4),
                (Fault::Cut, 3),
                (Fault::Pause, 3),
                (Fault::Restart, 2),
                (Fault::Leave, 2),
                (Fault::Split, 1),
                (Fault::OneWay, 1),
                (Fault::Slow, 1),
                (Fault::Loss, 1),
                (Fault::CrashAll, 1),
                (Fault::WallStep, 1),
            ],
            Profile::G => &[
                (Fault::Cut, 5),
                (Fault::Split, 2),
                (Fault::Bridge, 2),
                (Fault::OneWay, 2),
                (Fault::LastWord, 3),
                (Fault::CrashAll, 1),
                (Fault::Crash, 2),
                (Fault::Slow, 1),
                (Fault::WallStep, 1),
            ],
            Profile::H => &[
                (Fault::Leave, 4),
                (Fault::Restart, 4),
                (Fault::Crash, 3),
                (Fault::Wipe, 2),
                (Fault::CrashAll, 1),
                (Fault::Cut, 2),
                (Fault::Hold, 1),
            ],
        };
        let mut kinds: Vec<Fault> = Vec::new();
        for &(fault, weight) in menu {
            if chance.random_range(0..100) < 65 {
                kinds.extend(std::iter::repeat_n(fault, weight as usize));
            }
        }
        if kinds.is_empty() {
            kinds.push(menu[0].0);
        }
        let (spare, lease) = (world.hosts.len() - 1, world.plan.lease.as_nanos() as u64);
        let next = from.as_nanos() as u64;
        Self {
            members: (0..spare).collect(),
            spare,
            lease,
            world,
            chance,
            kinds,
            later: BTreeMap::new(),
            number: 0,
            next,
            cuts: BTreeMap::new(),
            held: BTreeMap::new(),
            down: BTreeSet::from([spare]),
            quiet_until: 0,
        }
    }

    /// Who runs and is meant to answer.
    pub fn running(&self) -> BTreeSet<usize> {
        self.members.difference(&self.down).copied().filter(|&host| !self.is_removed(host)).collect()
    }

    /// Whether it has ended for good: its operator is done with it.
    fn is_removed(&self, host: usize) -> bool {
        self.world.hosts[host].status().removed
    }

    /// What is due now. To be called between any two steps.
    pub fn turn(&mut self, sim: &mut turmoil::Sim<'_>, trouble: bool) {
        let now = sim.elapsed().as_nanos() as u64;
        self.pauses(sim, now);
        let removed: Vec<usize> =
            self.members.iter().copied().filter(|&host| self.is_removed(host)).collect();
        removed.iter().for_each(|host| _ = self.members.remove(host));
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let later = entry.remove();
            self.undo(sim, later, now);
        }
        if trouble && now >= self.next.max(self.quiet_until) {
            let kind = self.kinds[self.chance.random_range(0..self.kinds.len())];
            self.strike(sim, kind, now);
            self.next = now + self.lease * self.chance.random_range(10..200) / 100;
        }
    }

    /// Whether everything that was to be undone is.
    pub fn is_over(&self) -> bool {
        self.later.is_empty() && self.held.is_empty()
    }

    /// Ends all trouble, as soon as it can end.
    pub fn heal(&mut self, sim: &mut turmoil::Sim<'_>) {
        let now = sim.elapsed().as_nanos() as u64;
        for host in &self.world.hosts {
            host.clock.disarm();
        }
        let later = std::mem::take(&mut self.later);
        for (_, later) in later {
            self.undo(sim, later, now);
        }
        self.cuts.clear();
        let hosts = self.world.hosts.len();
        for one in 0..hosts {
            for other in one + 1..hosts {
                self.link(sim, one, other);
            }
        }
        self.say(now, "healed".to_owned());
    }

    fn say(&self, at: u64, what: String) {
        self.world.push(Event::Fault { at, what });
    }

    /// Notices pauses that have begun, and ends those that are over.
    fn pauses(&mut self, sim: &mut turmoil::Sim<'_>, now: u64) {
        for number in 0..self.world.hosts.len() {
            for (from, until) in self.world.hosts[number].clock.begun() {
                self.world.count("fault: paused", 1);
                self.say(
                    from,
                    format!("{} stands still for {} ms", self.name(number), (until - from) / 1_000_000),
                );
                self.held.insert(number, until);
            }
        }
        let over: Vec<usize> =
            self.held.iter().filter(|(_, until)| **until <= now).map(|(host, _)| *host).collect();
        for number in over {
            self.held.remove(&number);
            self.links_of(sim, number);
        }
    }

    fn later(&mut self, at: u64, what: Later) {
        self.number += 1;
        self.later.insert((at, self.number), what);
    }

    fn name(&self, number: usize) -> String {
        self.world.hosts[number].name.clone()
    }

    fn length(&mut self) -> u64 {
        let tenths = [3, 9, 11, 20, 50];
        self.lease * tenths[self.chance.random_range(0..tenths.len())] / 10
    }

    fn one(&mut self, among: &BTreeSet<usize>) -> Option<usize> {
        let among: Vec<usize> = among.iter().copied().collect();
        (!among.is_empty()).then(|| among[self.chance.random_range(0..among.len())])
    }

    fn strike(&mut self, sim: &mut turmoil::Sim<'_>, kind: Fault, now: u64) {
        let running = self.running();
        let free: BTreeSet<usize> =
            running.iter().copied().filter(|host| !self.held.contains_key(host)).collect();
        let Some(one) = self.one(&free) else { return };
        let length = self.length();
        let until = now + length;
        let members: Vec<usize> = self.members.iter().copied().collect();
        let others: Vec<usize> = members.iter().copied().filter(|other| *other != one).collect();
        let may_go = running.len() * 2 > self.members.len() + 2 || self.chance.random_range(0..6) == 0;
        match kind {
            Fault::Cut => others.iter().for_each(|&other| self.cut_both(sim, one, other, until)),
            Fault::OneWay => {
                let inwards = self.chance.random();
                for &other in &others {
                    let (from, to) = if inwards { (other, one) } else { (one, other) };
                    self.cut(sim, from, to, until);
                }
            }
            Fault::Split | Fault::Bridge => {
                let mut sides: Vec<bool> = members.iter().map(|_| self.chance.random()).collect();
                sides[0] = !sides[1];
                let bridge = (kind == Fault::Bridge).then_some(one);
                for (a, &from) in members.iter().enumerate() {
                    for (b, &to) in members.iter().enumerate().skip(a + 1) {
                        if sides[a] != sides[b] && Some(from) != bridge && Some(to) != bridge {
                            self.cut_both(sim, from, to, until);
                        }
                    }
                }
            }
            Fault::Slow => {
                let most = Duration::from_nanos(self.lease * self.chance.random_range(3..12) / 10);
                for &other in &others {
                    sim.set_link_max_message_latency(self.name(one), self.name(other), most);
                }
                self.later(until, Later::Fast(one));
            }
            Fault::Hold => {
                self.held.insert(one, u64::MAX);
                self.links_of(sim, one);
                self.later(until.min(now + self.lease * 2), Later::Release(one));
            }
            Fault::LastWord => {
                let heard = now + self.lease * self.chance.random_range(60..98) / 100;
                self.held.insert(one, u64::MAX);
                others.iter().for_each(|&other| self.cut_both(sim, one, other, heard + self.lease * 2));
                self.later(heard, Later::Release(one));
            }
            Fault::Pause => {
                let host = &self.world.hosts[one];
                let (readings, length) = match self.chance.random_range(0..4) {
                    0 => (self.chance.random_range(0..200), length),
                    1 => {
                        host.aim_at_answer();
                        // Longer than a grant may be used, and shorter than what is left of its user's lease.
                        (1_000_000, self.chance.random_range(GRANT_AGE * 11 / 10..self.lease * 7 / 10))
                    }
                    // Until a caller of its own asks it.
                    _ => (1_000_000, length),
                };
                host.clock.arm(readings, Duration::from_nanos(length));
            }
            Fault::Loss => {
                for &other in &others {
                    sim.set_link_fail_rate(self.name(one), self.name(other), 0.02);
                }
                self.later(until, Later::NoLoss(one));
            }
            Fault::Crash => {
                if !may_go {
                    return;
                }
                self.crash(sim, one);
                self.later(until, Later::Start(one));
            }
            Fault::CrashAll => {
                if free != self.members {
                    return;
                }
                for host in free {
                    self.crash(sim, host);
                    let down = self.chance.random_range(0..=length.min(self.lease));
                    self.later(now + down, Later::Start(host));
                }
            }
            Fault::Restart | Fault::Leave => {
                let for_good = kind == Fault::Leave;
                if (for_good && running.len() < 4) || !may_go {
                    return;
                }
                self.world.hosts[one].clock.disarm();
                self.world.hosts[one].order(Order { for_good });
                self.down.insert(one);
                self.later(
                    now + 100_000_000,
                    Later::StartStopped { host: one, fresh: for_good, patience: 200 },
                );
                self.bursts(now);
            }
            Fault::Wipe => {
                let quiet = self.cuts.values().all(|cuts| *cuts == 0) && self.held.is_empty();
                if self.down.len() > 1 || self.down.iter().any(|host| *host != self.spare) || !quiet {
                    return;
                }
                if !self.may_lose_a_disk() {
                    return;
                }
                let Some(number) = self.world.hosts[one].status().node else { return };
                self.crash(sim, one);
                self.world.wipe(one, (one == 0).then_some(1), now);
                self.world.to_be_removed().insert(number);
                self.later(now + self.lease / 2, Later::Start(one));
                self.quiet_until = now + 6_000_000_000;
            }
            Fault::WallStep => {
                let day = 86_400_000;
                self.world.hosts[one].clock.step_wall(self.chance.random_range(-day..day));
            }
        }
        self.world.count(&format!("fault: {}", format!("{kind:?}").to_lowercase()), 1);
        self.say(now, format!("{kind:?} of {} for {} ms", self.name(one), length / 1_000_000));
        if self.world.plan.profile == Profile::H && self.chance.random_range(0..2) == 0 {
            self.bursts(now);
        }
    }

    /// Whether the cluster outlives the loss of any one disk: all agree on three voters or more, and each of them runs with the disk that
    /// it voted on. A log that a majority of its voters has lost is lost, whoever runs: no guarantee holds beyond that.
    fn may_lose_a_disk(&self) -> bool {
        let running: Vec<_> =
            self.running().into_iter().map(|host| self.world.hosts[host].status().clone()).collect();
        let nodes: BTreeSet<_> = running.iter().filter_map(|status| status.node).collect();
        running.iter().all(|status| status.voters.len() >= 3 && status.voters.is_subset(&nodes))
    }

    /// Everybody asks for everything, each tenant soon and for a while.
    fn bursts(&mut self, now: u64) {
        for tenant in 0..self.world.plan.tenants {
            let from = now + self.chance.random_range(0..400) * 1_000_000;
            self.world.burst(tenant, from, from + 600_000_000);
        }
    }

    fn crash(&mut self, sim: &mut turmoil::Sim<'_>, host: usize) {
        self.world.end_life(host, sim.elapsed().as_nanos() as u64);
        let life = self.world.hosts[host].life.load(Ordering::Relaxed);
        let chance = SeededEntropy::new(self.chance.random::<u64>() ^ life);
        self.world.hosts[host].folder().crash(&chance);
        sim.crash(self.name(host));
        self.down.insert(host);
    }

    fn undo(&mut self, sim: &mut turmoil::Sim<'_>, later: Later, now: u64) {
        match later {
            Later::Rejoin { from, to } => {
                if let Some(cuts) = self.cuts.get_mut(&(from, to)) {
                    *cuts = cuts.saturating_sub(1);
                }
                self.link(sim, from.min(to), from.max(to));
            }
            Later::Fast(host) => {
                for other in (0..self.world.hosts.len()).filter(|other| *other != host) {
                    sim.set_link_max_message_latency(
                        self.name(host),
                        self.name(other),
                        super::run::LATENCY.1,
                    );
                }
            }
            Later::NoLoss(host) => {
                for other in (0..self.world.hosts.len()).filter(|other| *other != host) {
                    sim.set_link_fail_rate(self.name(host), self.name(other), 0.0);
                }
            }
            Later::Release(host) => {
                // Unless it stands still by now.
                if self.held.get(&host) == Some(&u64::MAX) {
                    self.held.remove(&host);
                    self.links_of(sim, host);
                }
            }
            Later::Start(host) => self.start(sim, host),
            Later::StartStopped { host, fresh, patience } => {
                let status = self.world.hosts[host].status().clone();
                let stopped = status.stopped;
                if !stopped && patience > 0 {
                    let patience = patience - 1;
                    return self.later(now + 100_000_000, Later::StartStopped { host, fresh, patience });
                }
                self.world.end_life(host, now);
                if !stopped {
                    // It was told to stop and could not: its operator loses patience.
                    let chance = SeededEntropy::new(self.chance.random());
                    self.world.hosts[host].folder().crash(&chance);
                }
                sim.crash(self.name(host));
                // A node that is not forgotten yet keeps its folder, and goes on as it was.
                if fresh && status.forgotten {
                    self.world.wipe(host, None, now);
                }
                self.start(sim, host);
                if self.members.insert(self.spare) {
                    self.start(sim, self.spare);
                    self.world.count("joined", 1);
                }
            }
        }
    }

    fn start(&mut self, sim: &mut turmoil::Sim<'_>, host: usize) {
        sim.bounce(self.name(host));
        self.down.remove(&host);
    }

    fn cut_both(&mut self, sim: &mut turmoil::Sim<'_>, one: usize, other: usize, until: u64) {
        self.cut(sim, one, other, until);
        self.cut(sim, other, one, until);
    }

    fn cut(&mut self, sim: &mut turmoil::Sim<'_>, from: usize, to: usize, until: u64) {
        *self.cuts.entry((from, to)).or_default() += 1;
        self.link(sim, from.min(to), from.max(to));
        self.later(until, Later::Rejoin { from, to });
    }

    fn links_of(&self, sim: &mut turmoil::Sim<'_>, host: usize) {
        for other in (0..self.world.hosts.len()).filter(|other| *other != host) {
            self.link(sim, host.min(other), host.max(other));
        }
    }

    /// Makes the link of two hosts what it should be now.
    fn link(&self, sim: &mut turmoil::Sim<'_>, one: usize, other: usize) {
        let (a, b) = (self.name(one), self.name(other));
        if self.held.contains_key(&one) || self.held.contains_key(&other) {
            sim.hold(a, b);
            return;
        }
        // What waited arrives now, whatever comes next.
        sim.release(a.as_str(), b.as_str());
        sim.repair(a.as_str(), b.as_str());
        let is_cut = |from, to| self.cuts.get(&(from, to)).is_some_and(|cuts| *cuts > 0);
        if is_cut(one, other) {
            sim.partition_oneway(a.as_str(), b.as_str());
        }
        if is_cut(other, one) {
            sim.partition_oneway(b.as_str(), a.as_str());
        }
    }
}
