//! Budgets: what a host tells of them, and what must hold of that.
//!
//! What owners took and what gateways ended is told where it happens, what is agreed on is read off every host now and then. The checks put
//! the two together: none of them looks at the books that the product keeps.
//!
//! An end is **certain** when some life was told that it is taken: it must then be in the final state as it is. One is **uncertain** whose
//! gateway died before it can have written it down, or was closed before it could report: then its owner may have charged the estimate, or
//! may be gone as well. So it is of what was cancelled before anybody was told. What is
//! used in the end lies between the certain ends alone and all of both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tollgate::control::budget::{Alert, Batch, BudgetAnswer, BudgetKey, BudgetRefusal, Budgets};
use tollgate::control::codec;
use tollgate::control::period::PeriodId;
use tollgate::limit::{Moment, Paid, ReservationId};
use tollgate::node::agreement::Agreement;
use tollgate::node::reports::Agree;
use tollgate_cluster::id::SessionId;
use tollgate_cluster::member::HostError;
use tollgate_cluster::store::Shelf;

use super::history::{At, Broken, Event, MILLI};
use super::host::{below, tenant_name};
use super::profile::Plan;
use super::turmoil_world::SeededEntropy;
use super::world::World;

/// At which parts of each budget somebody is told, in millionths.
const THRESHOLDS: [u32; 2] = [500_000, 800_000];

/// How many nanoseconds after it has ended a reservation is on its gateway's disk at the latest.
const WRITTEN: u64 = 500 * MILLI;

/// Of a hundred answers to reports, how many are lost on their way.
const LOST: u64 = 10;

/// A budget in a period: whose and how long its periods are, and when it begins.
pub type Account = (String, i64);

/// What something takes of a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bill {
    pub account: Account,
    pub units: u64,
}

/// What is told of budgets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// An owner took this for a reservation from what it holds.
    Paid { at: At, id: u128, bills: Vec<Bill> },
    /// A gateway is about to end a reservation: `real` by the world's clock, `at` by the last that its own showed. Nothing is charged for one
    /// that is cancelled.
    Spent { at: At, real: At, id: u128, host: usize, life: u64, charged: Option<u64> },
    /// A life begins with these ends on its disk, each of a session.
    Kept { at: At, host: usize, life: u64, ends: BTreeMap<u128, u128> },
    /// A life is over, or writes nothing more.
    Over { at: At, host: usize, life: u64 },
    /// A disk is gone.
    Wiped { at: At, host: usize },
    /// A gateway was told what came of its report of these ends, and of these runs of ids that nobody pays for.
    Reported { at: At, ends: Vec<(u128, Vec<Bill>)>, void: Vec<(u128, u128)>, repeated: u64, refused: bool },
    /// Where a budget stands, as a host has it.
    Stands { at: At, account: Account, current: bool, used: u64, escrow: u64 },
    /// A host has heard of an alert, by its number and its name.
    Alerted { at: At, number: u64, name: String, account: Account, threshold: u32, used: u64, limit: u64 },
    /// A host sees a period, whose beginning so many wall clocks have ever shown.
    Began { at: At, account: Account, clocks: usize },
}

impl Told {
    pub const fn at(&self) -> At {
        match self {
            Self::Paid { at, .. }
            | Self::Spent { at, .. }
            | Self::Kept { at, .. }
            | Self::Over { at, .. }
            | Self::Wiped { at, .. }
            | Self::Reported { at, .. }
            | Self::Stands { at, .. }
            | Self::Alerted { at, .. }
            | Self::Began { at, .. } => *at,
        }
    }
}

/// The budgets of a tenant: the length of their periods and what each has. The last tenant has two.
fn of_tenant(plan: &Plan, tenant: usize) -> Vec<(&'static str, &'static str, u64)> {
    let Some(least) = plan.budget else { return Vec::new() };
    if tenant + 1 == plan.tenants {
        return vec![("hourly", "Hour", least * 2), ("daily", "Day", least * 3)];
    }
    vec![("hourly", "Hour", least << tenant)]
}

/// The same, as the policy says it.
pub fn in_policy(plan: &Plan, tenant: usize) -> String {
    let [first, second] = THRESHOLDS.map(|part| f64::from(part) / 1e6);
    let budgets: Vec<String> = of_tenant(plan, tenant)
        .iter()
        .map(|(period, _, tokens)| {
            format!("{{ period: {period}, tokens: {tokens}, soft_thresholds: [{first}, {second}] }}")
        })
        .collect();
    if budgets.is_empty() { String::new() } else { format!(", budget: [ {} ]", budgets.join(", ")) }
}

fn name_of(budget: &BudgetKey) -> String {
    format!("{}/{:?}", budget.tenant, budget.cycle)
}

/// What each budget may use in a period.
fn limits(plan: &Plan) -> BTreeMap<String, u64> {
    let of = |tenant| {
        let budgets = of_tenant(plan, tenant).into_iter();
        budgets.map(move |(_, cycle, tokens)| (format!("{}/{cycle}", tenant_name(tenant)), tokens))
    };
    (0..plan.tenants).flat_map(of).collect()
}

/// What was paid, budget by budget.
pub fn bills(paid: &Paid) -> Vec<Bill> {
    let bill = |(account, units): &(tollgate::limit::Account, u64)| Bill {
        account: (name_of(&account.budget), account.period.0),
        units: *units,
    };
    paid.budgets.iter().map(bill).collect()
}

const fn id_of(session: SessionId, number: u64) -> u128 {
    ReservationId::new(tollgate::node::life(session), number).0
}

/// Tells what stands on the disk of a life that begins.
pub fn tell_kept(world: &World, host: usize, life: u64, shelf: &Shelf) {
    let mut ends = BTreeMap::new();
    for (_, piece) in shelf.pieces() {
        let batch = codec::read_batch(&piece).expect("what this build wrote");
        let all = batch.ends.iter().map(|end| (id_of(batch.gateway, end.number), batch.gateway.0));
        ends.extend(all);
    }
    let at = world.hosts[host].clock.true_now();
    world.push(Event::Budget(Told::Kept { at, host, life, ends }));
}

/// Has reports agreed on, and tells what came of them. Some answers are lost on their way, as when a connection ends.
pub struct Witness {
    pub world: Arc<World>,
    pub host: usize,
    pub agreement: Arc<Agreement>,
    pub chance: SeededEntropy,
}

#[async_trait]
impl Agree for Witness {
    async fn settle(&self, batch: &Batch) -> Result<Result<BudgetAnswer, BudgetRefusal>, HostError> {
        let answer = self.agreement.settle(batch).await?;
        if self.world.is_troubled() && below(&self.chance, 100) < LOST {
            return Err(HostError::Unknown("the answer is lost".to_owned()));
        }
        let repeated = match answer {
            Ok(BudgetAnswer::Ended { repeated, .. }) => u64::from(repeated),
            _ => 0,
        };
        let ends = batch.ends.iter().map(|end| {
            let bill = |charge: &tollgate::control::budget::Charge| {
                let line = &batch.lines[charge.line as usize];
                Bill { account: (name_of(&line.budget), line.period.0), units: charge.actual }
            };
            (id_of(batch.gateway, end.number), end.charges.iter().map(bill).collect())
        });
        let (at, ends) = (self.world.hosts[self.host].clock.true_now(), ends.collect());
        let run = |(first, last): &(u64, u64)| (id_of(batch.gateway, *first), id_of(batch.gateway, *last));
        let (void, refused) = (batch.void.iter().map(run).collect(), answer.is_err());
        self.world.push(Event::Budget(Told::Reported { at, ends, void, repeated, refused }));
        Ok(answer)
    }

    fn watermark(&self, gateway: SessionId) -> u64 {
        self.agreement.watermark(gateway)
    }

    fn now(&self) -> Moment {
        self.agreement.now()
    }
}

/// Tells what is agreed on, as a host has it.
#[derive(Default)]
pub struct Watch(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    alerts: u64,
    begun: BTreeSet<Account>,
    stands: BTreeMap<Account, (u64, u64)>,
}

impl Watch {
    /// Looks, as `host`.
    pub fn look(&self, world: &World, host: usize, budgets: &Budgets) {
        let at = world.hosts[host].clock.true_now();
        let mut seen = self.0.lock().expect("nothing panics under it");
        let tell = |told| world.push(Event::Budget(told));
        let last = seen.alerts;
        for (number, alert) in budgets.recent_alerts().range(last + 1..) {
            let Alert { budget, period, threshold, limit, used } = alert.clone();
            let (name, account) = (alert.id(), (name_of(&budget), period.0));
            tell(Told::Alerted { at, number: *number, name, account, threshold, used, limit });
        }
        seen.alerts = budgets.alerts_raised();
        for (key, current) in budgets.current() {
            let Some(current) = current else { continue };
            let name = name_of(key);
            if seen.begun.insert((name.clone(), current.id.0)) {
                let begins = current.id.0.unsigned_abs() * 1_000;
                let clocks = world.hosts.iter().filter(|host| host.clock.wall_shown() >= begins).count();
                tell(Told::Began { at, account: (name.clone(), current.id.0), clocks });
            }
            let periods: Vec<i64> =
                seen.begun.iter().filter(|(of, _)| *of == name).map(|(_, period)| *period).collect();
            for period in periods {
                let Some(view) = budgets.view(key, Some(PeriodId(period))) else { continue };
                let account = (name.clone(), period);
                let stands = (view.used, view.escrow);
                if seen.stands.insert(account.clone(), stands) != Some(stands) {
                    let (current, (used, escrow)) = (period == current.id.0, stands);
                    tell(Told::Stands { at, account, current, used, escrow });
                }
            }
        }
    }
}

/// How many hosts have what is agreed on of budgets in how many forms: one, once all is done.
pub fn forms(finals: &BTreeMap<usize, Arc<Budgets>>) -> usize {
    let mut forms: Vec<&Budgets> = Vec::new();
    for budgets in finals.values() {
        if !forms.contains(&&**budgets) {
            forms.push(budgets);
        }
    }
    forms.len()
}

/// What all must hold, on a sorted history and what the hosts agree on in the end.
pub struct Judge<'h> {
    pub events: &'h [Event],
    pub plan: Plan,
    pub finals: BTreeMap<usize, Arc<Budgets>>,
    pub counters: BTreeMap<&'static str, u64>,
}

impl Judge<'_> {
    pub fn check(&mut self, broken: &mut Broken) {
        if forms(&self.finals) != 1 {
            let hosts: Vec<&usize> = self.finals.keys().collect();
            broken.push(format!("one_state: what hosts {hosts:?} have of budgets differs after all is done"));
            return;
        }
        self.budget_holds(broken);
        self.alert_once(broken);
        self.rolls_by_majority(broken);
        self.nothing_lost(broken);
    }

    fn told(&self) -> impl Iterator<Item = &Told> {
        self.events.iter().filter_map(|event| match event {
            Event::Budget(told) => Some(told),
            _ => None,
        })
    }

    fn count(&mut self, what: &'static str, by: u64) {
        *self.counters.entry(what).or_default() += by;
    }

    /// `budget_holds`: when a gateway begins to use a reservation, what its budget has settled and what is open are at most the limit
    /// together; and wherever anybody looks, what is used and what is in escrow are, but for what responses used beyond what they held. A
    /// reservation whose gateway died stays open.
    fn budget_holds(&self, broken: &mut Broken) {
        let limits = limits(&self.plan);
        let mut paid: BTreeMap<u128, &[Bill]> = BTreeMap::new();
        let mut used_by: BTreeMap<u128, &[Bill]> = BTreeMap::new();
        let (mut sums, mut overage) = (BTreeMap::<&Account, u64>::new(), BTreeMap::<&Account, u64>::new());
        for event in self.events {
            match event {
                Event::Budget(Told::Paid { id, bills, .. }) => drop(paid.insert(*id, bills)),
                Event::Used { at, id, .. } => {
                    let Some(bills) = paid.get(id).copied() else {
                        broken.push(format!("budget_holds: {id:x} is used and no budget paid for it"));
                        continue;
                    };
                    used_by.insert(*id, bills);
                    for Bill { account, units } in bills {
                        let sum = sums.entry(account).or_default();
                        *sum += units;
                        let limit = limits[&account.0];
                        if *sum > limit {
                            let excess = *sum - limit;
                            broken.push(format!(
                                "budget_holds: {excess} of {account:?} too many are open and settled at {} ms",
                                at / MILLI
                            ));
                        }
                    }
                }
                Event::Budget(Told::Spent { id, charged, .. }) => {
                    for Bill { account, units } in used_by.get(id).copied().unwrap_or_default() {
                        let charged = charged.unwrap_or(0);
                        *sums.entry(account).or_default() -= units.saturating_sub(charged);
                        *overage.entry(account).or_default() += charged.saturating_sub(*units);
                    }
                }
                Event::Budget(Told::Stands { at, account, used, escrow, .. }) => {
                    let allowed = limits[&account.0] + overage.get(account).unwrap_or(&0);
                    if used + escrow > allowed {
                        broken.push(format!(
                            "budget_holds: {used} used and {escrow} in escrow of {account:?} are more than {allowed} at {} ms",
                            at / MILLI
                        ));
                    }
                }
                _ => {}
            }
        }
    }

    /// `alert_once`: a threshold of a period that is crossed raises one alert, with a number and a name that no other has; one that is not
    /// raises none.
    fn alert_once(&mut self, broken: &mut Broken) {
        let (mut by_number, mut by_name) = (BTreeMap::new(), BTreeMap::new());
        let mut raised: BTreeSet<(&Account, u32)> = BTreeSet::new();
        let mut could: BTreeMap<&Account, u64> = BTreeMap::new();
        let mut paid: BTreeMap<u128, Vec<&Bill>> = BTreeMap::new();
        let limits = limits(&self.plan);
        let reached = |used: u64, limit: u64, threshold: u32| {
            u128::from(used) * 1_000_000 >= u128::from(limit) * u128::from(threshold)
        };
        for told in self.told() {
            match told {
                Told::Paid { id, bills, .. } => {
                    let before = paid.entry(*id).or_default();
                    for bill in bills {
                        if before.iter().all(|known| known.account != bill.account) {
                            before.push(bill);
                            *could.entry(&bill.account).or_default() += bill.units;
                        }
                    }
                }
                Told::Spent { id, charged: Some(charged), .. } => {
                    for Bill { account, units } in paid.get(id).into_iter().flatten().copied() {
                        *could.entry(account).or_default() += charged.saturating_sub(*units);
                    }
                }
                Told::Alerted { at, number, name, account, threshold, used, limit } => {
                    if by_number.insert(*number, name).is_some_and(|known| known != name) {
                        broken.push(format!("alert_once: alert {number} has two names, one is {name}"));
                    }
                    if let Some(known) = by_name.insert(name, *number).filter(|known| known != number) {
                        broken.push(format!("alert_once: {name} is raised as {known} and as {number}"));
                    }
                    raised.insert((account, *threshold));
                    let most = could.get(account).copied().unwrap_or(0);
                    let is_crossed = reached(*used, *limit, *threshold) && reached(most, *limit, *threshold);
                    if *limit != limits[&account.0] || !is_crossed {
                        broken.push(format!(
                            "alert_once: {name} is raised at {} ms with {used} of {limit} used, and {most} at most can be",
                            at / MILLI
                        ));
                    }
                }
                _ => {}
            }
        }
        let mut missing: BTreeSet<(&Account, u32)> = BTreeSet::new();
        for told in self.told() {
            let Told::Stands { account, current: true, used, .. } = told else { continue };
            let crossed = THRESHOLDS.into_iter().filter(|part| reached(*used, limits[&account.0], *part));
            missing.extend(crossed.map(|part| (account, part)).filter(|one| !raised.contains(one)));
        }
        for (account, threshold) in missing {
            broken.push(format!("alert_once: {account:?} has crossed {threshold} and nobody was told"));
        }
        let left = self.finals.values().map(|budgets| budgets.alerts().len()).max().unwrap_or(0);
        if left > 0 {
            broken.push(format!("alert_once: {left} alerts are not delivered in the end"));
        }
        let raised = raised.len() as u64;
        self.count("alerts", raised);
    }

    /// `rolls_by_majority`: no period begins that only one wall clock has come to.
    fn rolls_by_majority(&mut self, broken: &mut Broken) {
        let mut periods: BTreeSet<&Account> = BTreeSet::new();
        for told in self.told() {
            let Told::Began { at, account, clocks } = told else { continue };
            if periods.insert(account) && *clocks < 2 {
                broken.push(format!(
                    "rolls_by_majority: {account:?} has begun at {} ms by {clocks} clock",
                    at / MILLI
                ));
            }
        }
        let budgets: BTreeSet<&String> = periods.iter().map(|(name, _)| name).collect();
        let rollovers = (periods.len() - budgets.len()) as u64;
        self.count("rollovers", rollovers);
    }

    /// `nothing_lost`: an end whose gateway was told that it is taken, or that stood on its disk when it died, is in the final state as it
    /// was, once.
    fn nothing_lost(&mut self, broken: &mut Broken) {
        let ends = Ends::of(self.events);
        let Some(budgets) = self.finals.values().next().cloned() else { return };
        let running: BTreeSet<usize> = self.finals.keys().copied().collect();
        let (mut least, mut more) = (BTreeMap::<&Account, u64>::new(), BTreeMap::<&Account, u64>::new());
        let (mut certain, mut uncertain) = (0, 0);
        for (id, paid) in &ends.paid {
            let spent = ends.spent.get(id);
            if ends.is_void(*id) {
                continue;
            }
            if let Some(charged) = ends.taken.get(id) {
                certain += 1;
                for Bill { account, units } in *charged {
                    *least.entry(account).or_default() += units;
                    if spent.and_then(|spent| spent.charged) != Some(*units) {
                        broken.push(format!("nothing_lost: {id:x} is reported as {units}, which it was not"));
                    }
                }
                continue;
            }
            if let Some(spent) = spent.filter(|spent| spent.charged.is_some())
                && !ends.refused.contains(id)
                && let Err(why) = ends.may_be_lost(*id, spent, &budgets, &running)
            {
                broken.push(format!("nothing_lost: {id:x} ended at {} ms and {why}", spent.real / MILLI));
            }
            uncertain += 1;
            let charged = spent.and_then(|spent| spent.charged).unwrap_or(0);
            for Bill { account, units } in paid {
                *more.entry(account).or_default() += charged.max(*units);
            }
        }
        let mut closed = 0;
        for (key, _) in budgets.current() {
            for (name, period) in &ends.accounts {
                let Some(view) = budgets.view(key, Some(PeriodId(*period))).filter(|_| *name == name_of(key))
                else {
                    continue;
                };
                let account = (name.clone(), *period);
                let least = least.get(&account).copied().unwrap_or(0);
                let most = least + more.get(&account).copied().unwrap_or(0);
                closed += u64::try_from(view.books.closed).unwrap_or(u64::MAX);
                self.count("budgets written off", view.written_off);
                if !(least..=most).contains(&view.used) {
                    broken.push(format!(
                        "nothing_lost: {} of {account:?} are used in the end, and it must be {least} to {most}",
                        view.used
                    ));
                }
            }
        }
        self.count("closed at estimates", closed);
        self.count("ends certain", certain);
        self.count("ends uncertain", uncertain);
        self.count("ends refused", ends.refused.len() as u64);
        self.count("ends told twice", ends.repeated);
        let replayed = ends.kept.iter().flat_map(|kept| kept.ends.keys());
        let replayed = replayed.filter(|id| ends.taken.contains_key(*id)).count() as u64;
        self.count("ends replayed", replayed);
    }
}

/// What became of each end.
#[derive(Default)]
struct Ends<'h> {
    accounts: BTreeSet<&'h Account>,
    /// What was ever paid for it, each account once.
    paid: BTreeMap<u128, Vec<&'h Bill>>,
    spent: BTreeMap<u128, Spent>,
    /// Reported and counted.
    taken: BTreeMap<u128, &'h [Bill]>,
    refused: BTreeSet<u128>,
    /// Nobody pays for them: the first of each run with the last.
    void: BTreeMap<u128, u128>,
    kept: Vec<Kept<'h>>,
    /// By host and life.
    over: BTreeMap<(usize, u64), At>,
    wiped: BTreeSet<(usize, At)>,
    repeated: u64,
}

struct Spent {
    real: At,
    host: usize,
    life: u64,
    charged: Option<u64>,
}

struct Kept<'h> {
    at: At,
    host: usize,
    life: u64,
    ends: &'h BTreeMap<u128, u128>,
}

impl<'h> Ends<'h> {
    fn of(events: &'h [Event]) -> Self {
        let mut ends = Self::default();
        for event in events {
            if let Event::Budget(told) = event {
                ends.hear(told);
            }
        }
        ends
    }

    fn hear(&mut self, told: &'h Told) {
        match told {
            Told::Paid { id, bills, .. } => {
                let before = self.paid.entry(*id).or_default();
                for bill in bills {
                    self.accounts.insert(&bill.account);
                    if before.iter().all(|known| known.account != bill.account) {
                        before.push(bill);
                    }
                }
            }
            Told::Spent { real, id, host, life, charged, .. } => {
                let spent = Spent { real: *real, host: *host, life: *life, charged: *charged };
                self.spent.insert(*id, spent);
            }
            Told::Kept { at, host, life, ends } => {
                self.kept.push(Kept { at: *at, host: *host, life: *life, ends });
            }
            Told::Over { at, host, life } => _ = self.over.entry((*host, *life)).or_insert(*at),
            Told::Wiped { at, host } => _ = self.wiped.insert((*host, *at)),
            Told::Reported { ends, void, repeated, refused, .. } => {
                self.repeated += repeated;
                if !refused {
                    self.void.extend(void.iter().copied());
                }
                for (id, bills) in ends {
                    if *refused {
                        self.refused.insert(*id);
                    } else {
                        self.taken.insert(*id, bills);
                    }
                }
            }
            Told::Stands { .. } | Told::Alerted { .. } | Told::Began { .. } => {}
        }
    }

    /// Whether a gateway was told that nobody pays for `id`.
    fn is_void(&self, id: u128) -> bool {
        self.void.range(..=id).next_back().is_some_and(|(_, last)| id <= *last)
    }

    /// Whether an end that nobody was told is taken may be charged at its estimate.
    fn may_be_lost(
        &self,
        id: u128,
        spent: &Spent,
        budgets: &Budgets,
        running: &BTreeSet<usize>,
    ) -> Result<(), String> {
        let Some(over) = self.over.get(&(spent.host, spent.life)) else {
            return Err("its gateway runs and has not reported it".to_owned());
        };
        let wiped =
            |from: At, to: At| self.wiped.range((spent.host, from)..=(spent.host, to)).next().is_some();
        let mut later = self.kept.iter().filter(|kept| kept.host == spent.host && kept.life > spent.life);
        let Some(next) = later.next().filter(|next| !wiped(*over, next.at)) else { return Ok(()) };
        let Some(session) = next.ends.get(&id) else {
            let time = over.saturating_sub(spent.real);
            if time < WRITTEN {
                return Ok(());
            }
            return Err(format!("was not on its gateway's disk when that ended {} ms later", time / MILLI));
        };
        let (session, number) = (SessionId(*session), ReservationId(id).number());
        // It was taken, and the answer was lost with its gateway; or nothing that it reports counts any more.
        let said = budgets.watermark(session) >= number || budgets.is_closed(session);
        if said || !running.contains(&spent.host) || wiped(next.at, At::MAX) {
            return Ok(());
        }
        Err("stood on its gateway's disk, and no later life has reported it".to_owned())
    }
}
