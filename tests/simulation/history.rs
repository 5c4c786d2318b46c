//! What happened in a run, in true time, and what must hold of it.
//!
//! Every decision of every owner is in here with the instant at which it stood, and everything that callers saw. The checks know
//! nothing of how a decision came about. Never here: the cluster, the network, the faults.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Nanoseconds of true time since the run began.
pub type At = u64;

/// Who answers for a shard, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenure {
    pub shard: u16,
    pub epoch: u64,
    pub session: u128,
    /// On which host.
    pub host: usize,
    /// Whether it began with the state of the one before it.
    pub imported: bool,
}

/// What an owner made of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Trued { refunded: u64, overage: u64 },
    Already,
    Unknown,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// An owner decided by its clock at `at`, and found its lease to run still at `stood`. Both are readings: what it admits is debited
    /// at the first and is nobody else's to decide until the second.
    Decided { at: At, stood: At, by: Tenure, id: u128, tenant: usize, cost: u64, admitted: bool },
    /// An owner was told of an end.
    Told { at: At, stood: At, by: Tenure, id: u128, tenant: usize, told: Told },
    /// `session` debited `cost` for a request, and its lease ran out before it could say so.
    Debited { at: At, id: u128, session: u128, tenant: usize, cost: u64 },
    /// A shard is served without what its last holder knew.
    StartedCold { at: At, shard: u16 },
    /// An owner refunded something, likewise.
    Refunded { at: At, tenant: usize, refunded: u64 },
    /// A gateway was told that its request is admitted, last found that good at `at`, and uses it.
    Used { at: At, id: u128, asked: u128, tenant: usize, cost: u64, gateway: usize },
    /// A gateway's request was refused, and why.
    Refused { at: At, tenant: usize, why: &'static str, gateway: usize },
    /// A gateway's reservation ended, as far as the gateway is concerned.
    Ended { at: At, id: u128 },
    /// A fault began or ended.
    Fault { at: At, what: String },
    /// Somebody was told that the tight policy is in force everywhere.
    Tight { at: At },
    /// Somebody may loosen it from now on.
    Loose { at: At },
    /// Something about budgets.
    Budget(super::budgets::Told),
    /// A host belongs to this cluster.
    Cluster { at: At, host: usize, cluster: u128 },
}

impl Event {
    fn at(&self) -> At {
        match self {
            Self::Decided { at, .. }
            | Self::Told { at, .. }
            | Self::Debited { at, .. }
            | Self::StartedCold { at, .. }
            | Self::Refunded { at, .. }
            | Self::Used { at, .. }
            | Self::Refused { at, .. }
            | Self::Ended { at, .. }
            | Self::Fault { at, .. }
            | Self::Tight { at }
            | Self::Loose { at }
            | Self::Cluster { at, .. } => *at,
            Self::Budget(told) => told.at(),
        }
    }
}

/// Every tenant's one bucket.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub burst: u64,
    pub per_minute: u64,
}

/// What is wrong with a run.
pub type Broken = Vec<String>;

#[derive(Default)]
pub struct History {
    pub events: Vec<Event>,
}

pub const MILLI: u64 = 1_000_000;

impl History {
    pub fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    /// A number that is the same exactly when the histories are: two runs of one seed must agree on it.
    pub fn fingerprint(&self) -> u64 {
        let mut text = String::new();
        for event in &self.events {
            let _ = writeln!(text, "{event:?}");
        }
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }

    /// In true time. A host may be ahead of another by less than one step of the simulation, and one that was paused far behind.
    pub fn sort(&mut self) {
        self.events.sort_by_key(Event::at);
    }

    /// All that must hold of whatever happens, on a sorted history.
    pub fn check(
        &self,
        limit: Limit,
        tight: Option<Limit>,
        pool: Option<Limit>,
        grant_age: u64,
        broken: &mut Broken,
    ) {
        self.one_owner(broken);
        if let Some(pool) = pool {
            self.guard_holds(pool, broken);
        }
        self.no_overspend(limit, (0, At::MAX), broken);
        for span in self.tight_spans() {
            self.no_overspend(tight.unwrap_or(limit), span, broken);
        }
        self.resolved_once(broken);
        self.nothing_lost(broken);
        self.no_old_grant(grant_age, broken);
        self.one_cluster(broken);
    }

    /// `one_owner`: of each shard, the decisions of one tenure (session and epoch of its claim) end before those of another begin.
    fn one_owner(&self, broken: &mut Broken) {
        let mut tenures: BTreeMap<u16, BTreeMap<Tenure, (At, At)>> = BTreeMap::new();
        for event in &self.events {
            if let Event::Decided { at, stood, by, .. } | Event::Told { at, stood, by, .. } = event {
                let span = tenures.entry(by.shard).or_default().entry(*by).or_insert((*at, *stood));
                *span = (span.0.min(*at), span.1.max(*stood));
            }
        }
        for (shard, spans) in tenures {
            let mut spans: Vec<_> = spans.into_iter().collect();
            spans.sort_by_key(|(_, (from, _))| *from);
            for pair in spans.windows(2) {
                let ((one, (_, end)), (other, (begin, _))) = (&pair[0], &pair[1]);
                if begin <= end {
                    broken.push(format!(
                        "one_owner: shard {shard}: host {} (epoch {}) decides at {} ms though host {} (epoch {}) decides until {} ms",
                        other.host,
                        other.epoch,
                        begin / MILLI,
                        one.host,
                        one.epoch,
                        end / MILLI
                    ));
                }
            }
        }
    }

    /// `no_overspend`: over every interval, what was admitted less what was refunded is at most burst + rate × length. Replaying a bucket
    /// that starts full and refills as fast as a clock within ρ lets it finds the worst interval.
    ///
    /// An admission counts at the instant that its bucket was read at. A process that stands still between that and its answer has
    /// debited nothing later: by when it goes on the bucket has refilled for others, and to count both then would be to count a burst
    /// that no bucket gave.
    ///
    /// An id counts once: a repeated question gets its answer again and debits nothing. That holds too where the first answer was
    /// forfeited with the lease: whoever got a lease again in the same session, or has its state, finds the debit made. What a response
    /// used beyond its estimate is no admission, and a crash forgives it as debt, so it is left out; both can only hide something, never
    /// accuse.
    fn no_overspend(&self, limit: Limit, (from, to): (At, At), broken: &mut Broken) {
        const MINUTE: i128 = 60_000_000_000;
        let full = i128::from(limit.burst) * MINUTE;
        let mut buckets: BTreeMap<usize, (i128, At)> = BTreeMap::new();
        // By id; with the session, if nobody was told of it.
        let mut debited: BTreeMap<u128, Option<u128>> = BTreeMap::new();
        for event in &self.events {
            let (at, tenant, delta) = match event {
                Event::Decided { at, tenant, cost, id, by, admitted: true, .. } => {
                    let made = match debited.insert(*id, None) {
                        None => false,
                        Some(None) => true,
                        Some(Some(session)) => session == by.session || by.imported,
                    };
                    if made {
                        continue;
                    }
                    (*at, *tenant, -i128::from(*cost))
                }
                Event::Debited { at, id, session, tenant, cost } if !debited.contains_key(id) => {
                    debited.insert(*id, Some(*session));
                    (*at, *tenant, -i128::from(*cost))
                }
                Event::Refunded { at, tenant, refunded } => (*at, *tenant, i128::from(*refunded)),
                Event::Told { at, tenant, told: Told::Trued { refunded, .. }, .. } => {
                    (*at, *tenant, i128::from(*refunded))
                }
                _ => continue,
            };
            // By the largest limit anywhere in the interval: what lies outside of it is judged by another.
            if at < from || at >= to {
                continue;
            }
            let (level, last) = buckets.entry(tenant).or_insert((full, at));
            // ρ at the owner, and as much for what rounds.
            let credit = i128::from(at - *last) * i128::from(limit.per_minute) * 1_010 / 1_000;
            *level = (*level + credit).min(full) + delta * MINUTE;
            *last = at;
            *level = (*level).min(full);
            if delta < 0 && *level < 0 {
                let excess = (-*level + MINUTE - 1) / MINUTE;
                broken.push(format!("no_overspend: tenant {tenant}: {excess} too many at {} ms", at / MILLI));
                *level = 0;
            }
        }
    }

    /// `guard_holds`: over every interval, what all owners together have debited for the pool is at most burst + guard × length, nothing of
    /// it refunded, by an ideal clock: log time runs no faster than any. An admission counts when its purse paid, and one whose lease ran out
    /// before it could be told counts too: it stays spent.
    ///
    /// An id counts once for each session that debited it; so does a repetition that finds it, which is left out. Whoever took over
    /// cold pays anew.
    fn guard_holds(&self, pool: Limit, broken: &mut Broken) {
        const MINUTE: i128 = 60_000_000_000;
        let full = i128::from(pool.burst) * MINUTE;
        let (mut level, mut last) = (full, 0);
        let mut paid: BTreeMap<u128, BTreeSet<u128>> = BTreeMap::new();
        for event in &self.events {
            let (at, id, session, cost, imported) = match event {
                Event::Decided { at, id, by, cost, admitted: true, .. } => {
                    (*at, *id, by.session, *cost, by.imported)
                }
                Event::Debited { at, id, session, cost, .. } => (*at, *id, *session, *cost, false),
                _ => continue,
            };
            let sessions = paid.entry(id).or_default();
            let known = sessions.contains(&session) || (imported && !sessions.is_empty());
            sessions.insert(session);
            if known {
                continue;
            }
            level = (level + i128::from(at - last) * i128::from(pool.per_minute)).min(full);
            last = at;
            level -= i128::from(cost) * MINUTE;
            if level < 0 {
                let excess = (-level + MINUTE - 1) / MINUTE;
                broken.push(format!("guard_holds: {excess} too many of the pool at {} ms", at / MILLI));
                level = 0;
            }
        }
    }

    /// The intervals in which the tight policy is in force, by what the editor was told.
    pub fn tight_spans(&self) -> Vec<(At, At)> {
        let mut spans: Vec<(At, At)> = Vec::new();
        let mut since = None;
        for event in &self.events {
            match (event, since) {
                (Event::Tight { at }, None) => since = Some(*at),
                (Event::Loose { at }, Some(from)) => {
                    spans.push((from, *at));
                    since = None;
                }
                _ => {}
            }
        }
        spans.extend(since.map(|from| (from, At::MAX)));
        spans
    }

    /// `resolved_once`: a request is forwarded once, what is used was admitted and ends once, and in one tenure an id is settled once.
    fn resolved_once(&self, broken: &mut Broken) {
        let (mut used, mut asked, mut ended) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut admitted = BTreeSet::new();
        let mut trued = BTreeSet::new();
        for event in &self.events {
            match event {
                Event::Decided { id, admitted: true, .. } => drop(admitted.insert(*id)),
                Event::Used { id, asked: request, at, .. } => {
                    if !used.insert(*id) || !asked.insert(*request) {
                        broken.push(format!("resolved_once: {id:x} is used twice, at {} ms", at / MILLI));
                    }
                    if !admitted.contains(id) {
                        broken.push(format!("resolved_once: {id:x} is used and no owner has admitted it"));
                    }
                }
                Event::Ended { id, .. } if !ended.insert(*id) => {
                    broken.push(format!("resolved_once: {id:x} ends twice"));
                }
                Event::Told { id, by, told: Told::Trued { .. }, at, .. } if !trued.insert((*by, *id)) => {
                    broken.push(format!("resolved_once: {id:x} is settled twice, at {} ms", at / MILLI));
                }
                _ => {}
            }
        }
    }

    /// `nothing_lost`: what moves with its shard is known where it arrives. Only a move straight from one epoch to the next is looked at:
    /// between others a holder that nobody asked may have begun with nothing. So may one of the same epoch, a new session of the same
    /// node: what a cold start has lost is not looked for any more.
    fn nothing_lost(&self, broken: &mut Broken) {
        let mut open: BTreeMap<u128, Tenure> = BTreeMap::new();
        for event in &self.events {
            match event {
                Event::Decided { id, by, admitted: true, .. } => drop(open.insert(*id, *by)),
                Event::StartedCold { shard, .. } => open.retain(|_, held| held.shard != *shard),
                Event::Told { id, by, told, at, .. } => {
                    let Some(held) = open.remove(id) else { continue };
                    let moved = by.imported && by.epoch == held.epoch + 1 && by.session != held.session;
                    if moved && *told == Told::Unknown {
                        broken.push(format!(
                            "nothing_lost: {id:x} did not move with its shard, at {} ms",
                            at / MILLI
                        ));
                    }
                }
                _ => {}
            }
        }
    }

    /// `no_old_grant`: what another node decided is used soon after, or not at all. Its user must have looked at its clock since, and what
    /// that showed counts: whoever is stopped between the look and the use cannot know of it.
    fn no_old_grant(&self, grant_age: u64, broken: &mut Broken) {
        let mut decided: BTreeMap<u128, (At, usize)> = BTreeMap::new();
        for event in &self.events {
            match event {
                Event::Decided { id, by, at, admitted: true, .. } => _ = decided.insert(*id, (*at, by.host)),
                Event::Used { id, at, gateway, .. } => {
                    let Some(&(then, host)) = decided.get(id) else { continue };
                    // As the slowest clock measures it.
                    if host != *gateway && (at - then) * 99 / 100 > grant_age {
                        broken.push(format!(
                            "no_old_grant: {id:x} is used {} ms after it was decided",
                            (at - then) / MILLI
                        ));
                    }
                }
                _ => {}
            }
        }
    }

    /// `one_cluster`: whoever is a member is one of the same cluster.
    fn one_cluster(&self, broken: &mut Broken) {
        let clusters: BTreeSet<u128> = self
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Cluster { cluster, .. } => Some(*cluster),
                _ => None,
            })
            .collect();
        if clusters.len() > 1 {
            broken.push(format!("one_cluster: there are {}", clusters.len()));
        }
    }

    /// How many requests were admitted and used, and how many refused, by why.
    pub fn counts(&self) -> (u64, BTreeMap<&'static str, u64>) {
        let mut used = 0;
        let mut refused = BTreeMap::new();
        for event in &self.events {
            match event {
                Event::Used { .. } => used += 1,
                Event::Refused { why, .. } => *refused.entry(*why).or_default() += 1,
                _ => {}
            }
        }
        (used, refused)
    }

    /// From each instant on, how long until every one of `gateways` was answered for every tenant; nothing where that never came.
    pub fn answered_after(&self, from: At, gateways: &BTreeSet<usize>, tenants: usize) -> Option<u64> {
        let mut missing: BTreeSet<(usize, usize)> =
            gateways.iter().flat_map(|gateway| (0..tenants).map(|tenant| (*gateway, tenant))).collect();
        for event in self.events.iter().filter(|event| event.at() >= from) {
            let (at, gateway, tenant) = match event {
                Event::Used { at, gateway, tenant, .. } => (at, gateway, tenant),
                Event::Refused { at, gateway, tenant, why, .. } if !UNANSWERED.contains(why) => {
                    (at, gateway, tenant)
                }
                _ => continue,
            };
            missing.remove(&(*gateway, *tenant));
            if missing.is_empty() {
                return Some(at - from);
            }
        }
        None
    }
}

/// Refusals that are no answer of a limiter.
pub const UNANSWERED: [&str; 1] = ["limiter_unavailable"];

impl History {
    /// What is known of `id`, and of whose process it is.
    pub fn story(&self, id: u128) -> String {
        let step = |event: &Event| match event {
            Event::Decided { id: of, at, by, admitted, tenant, .. } if *of == id => Some(format!(
                "host {} (epoch {}) decided {admitted} for tenant {tenant} at {}",
                by.host,
                by.epoch,
                at / MILLI
            )),
            Event::Told { id: of, at, by, told, .. } if *of == id => Some(format!(
                "host {} (epoch {}, imported {}) told {told:?} at {}",
                by.host,
                by.epoch,
                by.imported,
                at / MILLI
            )),
            Event::Debited { id: of, at, .. } if *of == id => {
                Some(format!("debited at {}, untold", at / MILLI))
            }
            Event::Used { id: of, at, gateway, .. } if *of == id => {
                Some(format!("used at host {gateway} at {}", at / MILLI))
            }
            Event::Ended { id: of, at, .. } if *of == id => Some(format!("ended at {}", at / MILLI)),
            _ => None,
        };
        let steps: Vec<String> = self.events.iter().filter_map(step).collect();
        format!("{id:x}: {}", steps.join("; "))
    }

    /// The ids that some owner admitted and whose end none was told of: what a leak is looked for among.
    pub fn untold(&self) -> BTreeSet<u128> {
        let mut open = BTreeSet::new();
        for event in &self.events {
            match event {
                Event::Decided { id, admitted: true, .. } => drop(open.insert(*id)),
                Event::Told { id, told, .. } if *told != Told::Unknown => drop(open.remove(id)),
                _ => {}
            }
        }
        open
    }

    /// Faults in order.
    pub fn faults(&self) -> Vec<String> {
        let told = |event: &Event| match event {
            Event::Fault { at, what } => Some(format!("{} ms: {what}", at / MILLI)),
            Event::Cluster { at, host, cluster } => {
                Some(format!("{} ms: n{host} is of cluster {cluster:x}", at / MILLI))
            }
            _ => None,
        };
        self.events.iter().filter_map(told).collect()
    }
}
