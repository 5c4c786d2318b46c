//! What callers do, so that a broken guarantee would show: each workload is a group of tenants with limits of their own and callers that
//! ask for them in one way. `all` is every group at once.

mod budgets;
mod bursts;
mod held;
mod metered;
mod rotation;
mod saturating;
pub mod sdk;
mod slots;
mod streams;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::{Caller, Numbers};
use crate::history::{Bucket, Limits, Log, Recorder};
use crate::network::Host;
use crate::random::Random;

/// A way to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Workload {
    /// More than there is, all the time, with a burst of a tenth of what a lease refills: what leaks shows at once.
    Saturating,
    /// The same with a burst that takes 20 s to refill, and is spent: what starts full after a crash shows at once.
    Drained,
    /// Nothing until the bucket is full, then twice its burst at once: finds what starts full that should be empty.
    IdleBurst,
    /// The same burst right after shards have moved.
    MoveBurst,
    /// Streams, two in five of which are left in the middle.
    Streams,
    /// Twice as many at once as may be open; some are left before or in the middle of their answer.
    InFlight,
    /// Requests that hold twenty times the tokens that they use: what is given back twice shows.
    Metered,
    /// A burst that is spent on streams of ten seconds: what a dead gateway held must stay charged.
    Held,
    /// Budgets that run out: what is spent beyond them, or lost of them, shows.
    Budgets,
    /// Keys that are made, rotated and revoked while they are used: what is admitted by a revoked one shows.
    Rotation,
    /// Applications that use the official Python SDKs and their retries; not one of `all`, since it takes Python.
    Sdk,
    /// `saturating` and `drained`: what any limiter of requests can be asked.
    Refilling,
    /// All of them but `sdk`, each with tenants of its own.
    All,
    /// `all` and `sdk`.
    Everything,
}

impl Workload {
    /// The groups that it is made of.
    fn groups(self) -> Vec<Self> {
        match self {
            Self::All => {
                vec![
                    Self::Saturating,
                    Self::Drained,
                    Self::IdleBurst,
                    Self::MoveBurst,
                    Self::Streams,
                    Self::InFlight,
                    Self::Metered,
                    Self::Held,
                    Self::Budgets,
                    Self::Rotation,
                ]
            }
            Self::Everything => [Self::All.groups(), vec![Self::Sdk]].concat(),
            Self::Refilling => vec![Self::Saturating, Self::Drained],
            one => vec![one],
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Its tenants and their limits, where a tenant of the saturated ones refills so much a second.
    pub fn tenants(self, rate: u64, lease: Duration) -> BTreeMap<String, Limits> {
        let mut tenants = BTreeMap::new();
        for group in self.groups() {
            for number in 0..group.count() {
                let limits = group.limits(rate, lease);
                let budget = (group == Self::Budgets).then(|| budgets::LIMITS[number]);
                tenants.insert(format!("{}{number}", group.prefix()), Limits { budget, ..limits });
            }
        }
        tenants
    }

    /// Those of its tenants that are asked for all the time and want more than they may have.
    pub fn saturated(self, tenants: &BTreeMap<String, Limits>) -> Vec<String> {
        let groups = [Self::Saturating.prefix(), Self::Drained.prefix()];
        tenants.keys().filter(|name| groups.iter().any(|prefix| name.starts_with(prefix))).cloned().collect()
    }

    /// Those of its tenants that applications with an official SDK ask for.
    pub fn applications(self, tenants: &BTreeMap<String, Limits>) -> Vec<String> {
        tenants.keys().filter(|name| name.starts_with(Self::Sdk.prefix())).cloned().collect()
    }

    /// Whether applications with an official SDK ask.
    pub fn takes_python(self) -> bool {
        self.groups().contains(&Self::Sdk)
    }

    /// What each key may have that is made and revoked, if any is.
    pub fn of_a_key(self) -> Option<Bucket> {
        self.groups().contains(&Self::Rotation).then_some(rotation::OF_A_KEY)
    }

    const fn count(self) -> usize {
        match self {
            Self::Saturating => 6,
            Self::Drained | Self::IdleBurst | Self::MoveBurst | Self::InFlight => 3,
            Self::Streams | Self::Metered | Self::Held | Self::Rotation | Self::Sdk => 2,
            Self::Budgets => budgets::LIMITS.len(),
            Self::Refilling | Self::All | Self::Everything => 0,
        }
    }

    /// What the names of its tenants begin with.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Saturating => "sat",
            Self::Drained => "drained",
            Self::IdleBurst => "idle",
            Self::MoveBurst => "move",
            Self::Streams => "stream",
            Self::InFlight => "slots",
            Self::Metered => "metered",
            Self::Held => "held",
            Self::Budgets => "budget",
            Self::Rotation => "rotated",
            Self::Sdk => "sdk",
            Self::Refilling | Self::All | Self::Everything => "",
        }
    }

    fn limits(self, rate: u64, lease: Duration) -> Limits {
        let refilled_in_lease = rate * lease.as_millis() as u64 / 1000;
        let bucket = |burst: u64, per_second: u64| Limits {
            burst,
            per_minute: per_second * 60,
            in_flight: None,
            tokens: None,
            budget: None,
        };
        match self {
            Self::Saturating | Self::Refilling | Self::All | Self::Everything => {
                bucket((refilled_in_lease / 10).max(1), rate)
            }
            Self::Drained | Self::IdleBurst | Self::MoveBurst | Self::Held => bucket(40, 2),
            Self::Streams | Self::Budgets => bucket(20, 20),
            Self::Rotation => bucket(10_000, 1_000),
            Self::Sdk => sdk::LIMITS,
            Self::InFlight => Limits { in_flight: Some(8), ..bucket(10_000, 1_000) },
            Self::Metered => {
                let tokens = Bucket { burst: 20 * metered::CEILING, per_minute: 600 * 60 };
                Limits { tokens: Some(tokens), ..bucket(10_000, 1_000) }
            }
        }
    }
}

/// What all callers of a run share.
pub struct Callers {
    /// Numbers of attempts.
    pub numbers: Arc<Numbers>,
    /// Where attempts are written.
    pub log: Log,
    /// Chance.
    pub chance: Random,
    /// Nodes that callers know of now.
    pub nodes: watch::Receiver<Vec<Host>>,
    /// Grows when shards have moved.
    pub moved: watch::Receiver<u64>,
    /// The limits of all tenants.
    pub tenants: BTreeMap<String, Limits>,
    /// Where revoked keys are written.
    pub revoked: Log,
    stopped: Arc<AtomicBool>,
}

/// Callers at work.
pub struct AtWork {
    tasks: JoinSet<()>,
    applications: JoinSet<Result<(), String>>,
    stopped: Arc<AtomicBool>,
}

impl AtWork {
    /// Has them end what they do and begin nothing new; returns when the last has.
    ///
    /// # Errors
    /// An application did not do what it was started for.
    pub async fn stop(mut self) -> Result<(), String> {
        self.stopped.store(true, Ordering::Relaxed);
        while self.tasks.join_next().await.is_some() {}
        let mut ended = Ok(());
        while let Some(one) = self.applications.join_next().await {
            ended = ended.and(one.unwrap_or_else(|error| Err(error.to_string())));
        }
        ended
    }
}

impl Callers {
    /// Callers of the tenants in `tenants`, who write to `recorder`.
    pub fn new(
        tenants: BTreeMap<String, Limits>,
        numbers: Arc<Numbers>,
        recorder: &Recorder,
        seed: u64,
        nodes: watch::Receiver<Vec<Host>>,
        moved: watch::Receiver<u64>,
    ) -> Self {
        let (chance, log, revoked) = (Random::new(seed), recorder.attempts.clone(), recorder.revoked.clone());
        Self { numbers, log, chance, nodes, moved, tenants, revoked, stopped: Arc::default() }
    }

    /// Sets them to work; applications are started in `place`.
    ///
    /// # Errors
    /// An application does not start.
    pub fn work(self, hosts: &[Host], place: Option<sdk::Place<'_>>) -> Result<AtWork, String> {
        let (mut tasks, stopped) = (JoinSet::new(), self.stopped.clone());
        let mut applications = JoinSet::new();
        let shared = Arc::new(self);
        let mut number = 0;
        for tenant in shared.tenants.keys() {
            let is = |group: Workload| tenant.starts_with(group.prefix());
            let mut chance = || {
                number += 1;
                shared.chance.fork(number)
            };
            let one = |chance| One { shared: shared.clone(), tenant: tenant.clone(), chance };
            if is(Workload::IdleBurst) {
                tasks.spawn(bursts::after_idling(one(chance())));
            } else if is(Workload::MoveBurst) {
                tasks.spawn(bursts::after_moves(one(chance())));
            } else if is(Workload::Sdk) {
                let place = place.ok_or("nobody has said where applications are started")?;
                for sdk in sdk::SDKS {
                    let one = one(chance());
                    let number = applications.len() as u64 + 1;
                    let application = sdk::start(place, tenant, sdk, number)?;
                    applications.spawn(sdk::follow(one, application));
                }
            } else if is(Workload::Rotation) {
                let (secrets, in_use) = watch::channel(Vec::new());
                tasks.spawn(rotation::operate(one(chance()), secrets, shared.revoked.clone()));
                for host in hosts {
                    tasks.spawn(rotation::ask(one(chance()), *host, in_use.clone()));
                }
            } else {
                for host in hosts {
                    let host = *host;
                    if is(Workload::Saturating) || is(Workload::Drained) {
                        tasks.spawn(saturating::ask(one(chance()), host));
                    } else if is(Workload::Streams) {
                        tasks.spawn(streams::ask(one(chance()), host));
                    } else if is(Workload::Metered) {
                        for _ in 0..at_each_node(metered::CALLERS, hosts) {
                            tasks.spawn(metered::ask(one(chance()), host));
                        }
                    } else if is(Workload::Held) {
                        for _ in 0..at_each_node(held::CALLERS, hosts) {
                            tasks.spawn(held::ask(one(chance()), host));
                        }
                    } else if is(Workload::Budgets) {
                        for _ in 0..at_each_node(budgets::CALLERS, hosts) {
                            tasks.spawn(budgets::ask(one(chance()), host));
                        }
                    } else {
                        for _ in 0..at_each_node(slots::CALLERS, hosts) {
                            tasks.spawn(slots::ask(one(chance()), host));
                        }
                    }
                }
            }
        }
        Ok(AtWork { tasks, applications, stopped })
    }

    fn is_over(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

/// How many of so many callers ask at each of these nodes: one at each, and more where only many at once do anything.
const fn at_each_node(callers: usize, hosts: &[Host]) -> usize {
    if hosts.is_empty() { 0 } else { callers.div_ceil(hosts.len()) }
}

/// One caller of one tenant.
struct One {
    shared: Arc<Callers>,
    tenant: String,
    chance: Random,
}

impl One {
    fn caller(&self) -> Caller {
        Caller::new(self.shared.numbers.clone(), self.shared.log.clone())
    }

    fn limits(&self) -> Limits {
        self.shared.tenants[&self.tenant]
    }

    fn goes_on(&self) -> bool {
        !self.shared.is_over()
    }

    fn knows(&self, host: Host) -> bool {
        self.shared.nodes.borrow().contains(&host)
    }

    /// A while of `low..high` milliseconds.
    async fn a_while(&mut self, low: u64, high: u64) {
        tokio::time::sleep(Duration::from_millis(self.chance.within(low, high))).await;
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn what_saturates_has_a_burst_that_hides_nothing() {
        let tenants = Workload::All.tenants(40, Duration::from_millis(1500));
        let limits = tenants["sat0"];
        assert_eq!((limits.burst, limits.per_minute), (6, 2400), "a tenth of what a lease refills");
        assert_eq!(Workload::All.saturated(&tenants).len(), 6 + 3);
        assert_eq!(tenants.len(), 6 + 3 + 3 + 3 + 2 + 3 + 2 + 2 + 3 + 2);
    }

    #[test]
    fn everything_leaves_no_group_out() {
        let single = |workload: &&Workload| workload.count() > 0;
        let groups: Vec<Workload> = Workload::value_variants().iter().filter(single).copied().collect();
        let mut everything = Workload::Everything.groups();
        everything.sort_by_key(|group| groups.iter().position(|other| other == group));
        assert_eq!(everything, groups);
        assert!(Workload::Everything.takes_python() && !Workload::All.takes_python());
    }
}
