//! `no_overspend`: over every interval, what was admitted is at most burst + rate × length, and what was given back in it.
//!
//! An admission happened at some instant between two that are known. Only what certainly happened inside an interval counts for it, and
//! what may have been given back in it counts against that, so that a violation is proof. Where nothing is given back that is also
//! complete: instants that satisfy every interval exist exactly when no interval violates. (A curve of spending must lie between its
//! demands and burst + rate × time; a negative cycle of that system alternates between the two, demands of neighbouring intervals add up,
//! the rates telescope, so that one interval already violates.)
//!
//! The sweep goes over ends; a tree holds, for each beginning `s`, `rate × s` + what certainly happened between `s` and now. O(n log n).
//!
//! It is looked at from three sides: **callers** (sent, and arrived at the provider), **provider** (arrivals alone, which may be late by as
//! much as a grant may be old), **owners** (their audit, where even what was never sent counts unless it was taken back). Requests are
//! counted on all sides; tokens at the owners alone, since only their audit says what was held and what was given back of it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::Verdict;
use super::tree::Tree;
use crate::history::{Arrival, At, Bucket, Decided, History, Limits, MILLI, Window};

/// What moved a level, not before an instant and not after another: spent, or, less than nothing, given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Moved {
    from: At,
    to: At,
    amount: i128,
}

impl Moved {
    /// An admission of so many.
    fn spent(from: At, to: At, amount: u64) -> Self {
        Self { from, to, amount: i128::from(amount) }
    }

    fn given_back(from: At, to: At, amount: u64) -> Self {
        Self { from, to, amount: -i128::from(amount) }
    }

    /// When it begins to count for intervals that end: an admission once it was certainly made, what is given back as soon as it may
    /// have been.
    const fn counts_at(&self) -> At {
        if self.amount > 0 { self.to } else { self.from }
    }

    /// It counts for intervals that begin until then.
    const fn counts_until(&self) -> At {
        if self.amount > 0 { self.from } else { self.to }
    }
}

/// An interval in which too much was certainly admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Overspent {
    from: At,
    to: At,
    /// How many too many, rounded up.
    excess: u64,
    /// The same, times [`MINUTE`].
    exact: i128,
}

/// Amounts are counted times the nanoseconds of a minute, so that a rate per minute is an integer per nanosecond.
const MINUTE: i128 = 60_000_000_000;

/// The most that a grant may be old when it is used.
const GRANT_AGE: At = 500 * MILLI;

/// For how long a hypervisor's pause that no clock shows may go on spending.
const UNSEEN: At = 500 * MILLI;

/// From what callers sent and the provider saw.
pub fn at_callers(history: &History) -> Verdict {
    judge(history, &[("requests", Limits::requests_of, seen_by_callers(history))], 0)
}

/// The admissions of each tenant: sent by a caller, and arrived at the provider.
fn seen_by_callers(history: &History) -> ByTenant<'_> {
    let attempts = history.by_op();
    let mut spent = ByTenant::new();
    for arrival in &history.arrivals {
        if let Some(attempt) = attempts.get(&arrival.op) {
            spent.entry(&attempt.tenant).or_default().push(Moved::spent(attempt.inv, arrival.at, 1));
        }
    }
    spent
}

/// The interval in which these, each sent and arrived, are certainly more than `bucket` has, and by how many.
pub(super) fn certainly_over(spent: &[(At, At)], bucket: Bucket) -> Option<(At, At, u64)> {
    let moved: Vec<Moved> = spent.iter().map(|(sent, arrived)| Moved::spent(*sent, *arrived, 1)).collect();
    worst(&moved, bucket, 0).map(|worst| (worst.from, worst.to, worst.excess))
}

/// How much too much was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Measured {
    /// Admitted by allowed, in hundredths: in the interval that is over by most, or in the whole run where none is.
    pub percent: u64,
    /// How many too many in that interval.
    pub excess: u64,
}

/// The same as [`at_callers`], as a measure: of the tenant that got most by what it may have. `None` if nothing was admitted.
pub fn measure(history: &History) -> Option<Measured> {
    let of = |(tenant, spent): (&&str, &Vec<Moved>)| {
        let bucket = history.plan.tenants.get(*tenant)?.requests();
        let whole = (spent.iter().map(|spent| spent.from).min()?, spent.iter().map(|spent| spent.to).max()?);
        let worst = worst(spent, bucket, 0);
        let (from, to) = worst.map_or(whole, |worst| (worst.from, worst.to));
        let allowed =
            i128::from(bucket.burst) * MINUTE + i128::from(bucket.per_minute) * i128::from(to - from);
        let percent = inside(spent, from, to) * MINUTE * 100 / allowed.max(1);
        let percent = u64::try_from(percent).unwrap_or(u64::MAX);
        Some(Measured { percent, excess: worst.map_or(0, |worst| worst.excess) })
    };
    seen_by_callers(history).iter().filter_map(of).max()
}

/// From what the provider saw alone.
pub fn at_provider(history: &History) -> Verdict {
    let attempts = history.by_op();
    let mut spent = ByTenant::new();
    for arrival in &history.arrivals {
        if let Some(attempt) = attempts.get(&arrival.op) {
            spent.entry(&attempt.tenant).or_default().push(Moved::spent(arrival.at, arrival.at, 1));
        }
    }
    judge(history, &[("requests", Limits::requests_of, spent)], GRANT_AGE)
}

/// From what owners decided, and were told.
pub fn at_owners(history: &History) -> Verdict {
    if !history.plan.audited {
        return Verdict::Unknown("the owners kept no audit".to_owned());
    }
    let (mut requests, mut tokens) = (ByTenant::new(), ByTenant::new());
    let mut admitted: BTreeMap<&str, &Decided> = BTreeMap::new();
    let mut decided: Vec<&Decided> = history.decided.iter().filter(|decided| decided.admitted).collect();
    decided.sort_by_key(|decided| decided.lo);
    for decided in decided {
        // A repeated question gets its answer again, also from whom the shard has moved to, and debits nothing.
        if let Entry::Vacant(first) = admitted.entry(&decided.id) {
            first.insert(decided);
            let spent = |amount| Moved::spent(decided.asked, decided.lo, amount);
            requests.entry(&*decided.tenant).or_default().push(spent(1));
            tokens.entry(&*decided.tenant).or_default().push(spent(decided.cost));
        }
    }
    let over = ends_at_provider(history);
    for ended in history.ended.iter().filter(|ended| ended.refunded > 0) {
        let Some(decided) = admitted.get(&*ended.id) else { continue };
        let begun = over.get(&*ended.id).copied().unwrap_or(decided.lo).min(ended.at);
        let back = |amount| Moved::given_back(begun, ended.at, amount);
        tokens.entry(&*ended.tenant).or_default().push(back(ended.refunded));
        // All of it: it was taken back before it was sent.
        if ended.refunded == decided.cost {
            requests.entry(&*ended.tenant).or_default().push(Moved::given_back(decided.lo, ended.at, 1));
        }
    }
    let sides: [Side<'_>; 2] =
        [("requests", Limits::requests_of, requests), ("tokens", Limits::tokens_of, tokens)];
    judge(history, &sides, 0)
}

/// For each decision, the instant before which nobody can have known what it came to: the end of an answer that went out whole and was
/// read to its end, else its beginning.
fn ends_at_provider(history: &History) -> BTreeMap<&str, At> {
    let attempts = history.by_op();
    let of = |arrival: &Arrival| {
        let read = attempts.get(&arrival.op).is_some_and(|attempt| attempt.complete);
        if arrival.whole && read { arrival.end } else { arrival.at }
    };
    history.arrivals.iter().map(|arrival| (&*arrival.decision, of(arrival))).collect()
}

/// What moved each tenant's level.
type ByTenant<'a> = BTreeMap<&'a str, Vec<Moved>>;

/// Something that is counted: its name, its bucket where a tenant has one, and what moved it.
type Side<'a> = (&'static str, fn(&Limits) -> Option<Bucket>, ByTenant<'a>);

impl Limits {
    const fn requests_of(&self) -> Option<Bucket> {
        Some(self.requests())
    }

    const fn tokens_of(&self) -> Option<Bucket> {
        self.tokens
    }
}

fn judge(history: &History, sides: &[Side<'_>], late: At) -> Verdict {
    let (mut admissions, mut tenants, mut bounded) = (0, BTreeSet::new(), 0);
    for (what, bucket_of, moved) in sides {
        for (tenant, moved) in moved {
            let Some(bucket) = history.plan.tenants.get(*tenant).and_then(bucket_of) else { continue };
            if tenants.insert(*tenant) {
                admissions += moved.iter().filter(|moved| moved.amount > 0).count();
            }
            let bucket = stretched(bucket, history);
            let edits = if *what == "requests" { edits(history) } else { Vec::new() };
            let Some((overspent, bucket)) = worst_of(moved, bucket, late, &edits) else { continue };
            let Overspent { from, to, excess, exact } = overspent;
            if exact <= allowed(bucket, &history.windows, from, to) {
                bounded += 1;
                continue;
            }
            return Verdict::Invalid(format!(
                "{tenant} ({what}: burst {}, {} a minute): {} admitted in the {} ms from {from} to {to}, {excess} too many; {}",
                bucket.burst,
                bucket.per_minute,
                inside(moved, from, to),
                (to - from) / MILLI,
                history.faults_around(from, to)
            ));
        }
    }
    let what = format!("{admissions} admissions of {} tenants", tenants.len());
    match (admissions, bounded) {
        (0, _) => Verdict::Unknown("nothing was admitted".to_owned()),
        (_, 0) => Verdict::Valid(what),
        _ => Verdict::Valid(format!("{what}; {bounded} over by no more than hidden pauses allow")),
    }
}

/// What was certainly admitted in an interval.
fn inside(moved: &[Moved], from: At, to: At) -> i128 {
    let spent = moved.iter().filter(|moved| moved.amount > 0 && moved.from >= from && moved.to <= to);
    spent.map(|spent| spent.amount).sum()
}

/// A crystal that is off by what is promised refills as much faster.
fn stretched(bucket: Bucket, history: &History) -> Bucket {
    let drifted = history.windows.iter().any(|window| window.nemesis == "drift");
    let per_minute = if drifted { (bucket.per_minute * 1005).div_ceil(1000) } else { bucket.per_minute };
    Bucket { per_minute, ..bucket }
}

/// What pauses that no clock shows may have let through: for each, one burst and what refills while it is not noticed.
fn allowed(bucket: Bucket, windows: &[Window], from: At, to: At) -> i128 {
    let events =
        windows.iter().filter(|window| window.bounded && window.begin <= to && window.healed >= from);
    let each = i128::from(bucket.burst) * MINUTE + i128::from(bucket.per_minute) * i128::from(UNSEEN);
    events.count() as i128 * each
}

/// The windows in which limits of requests were edited, and the largest then, in hundredths.
fn edits(history: &History) -> Vec<(At, At, u64)> {
    let edit = |window: &Window| Some((window.begin, window.healed, window.percent?));
    history.windows.iter().filter_map(edit).collect()
}

/// The interval that is over by most, with the bucket that it is over: in what lies between two edits of the limits by what the plan says,
/// and in what meets an edit by the largest that was in force.
fn worst_of(
    moved: &[Moved],
    bucket: Bucket,
    late: At,
    edits: &[(At, At, u64)],
) -> Option<(Overspent, Bucket)> {
    let with = |moved: &[Moved], bucket| worst(moved, bucket, late).map(|worst| (worst, bucket));
    let Some(percent) = edits.iter().map(|(_, _, percent)| *percent).max() else {
        return with(moved, bucket);
    };
    let of = |amount: u64| (amount * percent).div_ceil(100);
    let loosest = Bucket { burst: of(bucket.burst), per_minute: of(bucket.per_minute) };
    let begins = std::iter::once(0).chain(edits.iter().map(|(_, healed, _)| *healed));
    let ends = edits.iter().map(|(begin, _, _)| *begin).chain(std::iter::once(At::MAX));
    let between = begins.zip(ends).map(|(from, to)| {
        // What may have been given back in between counts against what was spent there.
        let touches = |moved: &&Moved| match moved.amount > 0 {
            true => moved.from >= from && moved.to <= to,
            false => moved.from <= to && moved.to >= from,
        };
        moved.iter().filter(touches).copied().collect::<Vec<Moved>>()
    });
    let worst = between.filter_map(|moved| with(&moved, bucket));
    worst.chain(with(moved, loosest)).max_by_key(|(worst, _)| worst.exact)
}

/// The interval that is over by most, of those the shortest.
fn worst(moved: &[Moved], bucket: Bucket, late: At) -> Option<Overspent> {
    let mut moved = moved.to_vec();
    // What is given back at an instant may have been before what is spent at it.
    moved.sort_by_key(|moved| (moved.counts_at(), moved.amount > 0));
    let mut begins: Vec<At> = moved.iter().filter(|moved| moved.amount > 0).map(|spent| spent.from).collect();
    begins.sort_unstable();
    begins.dedup();
    let origin = *begins.first()?;
    let rate = i128::from(bucket.per_minute);
    let levels: Vec<i128> = begins.iter().map(|begin| rate * i128::from(begin - origin)).collect();
    let mut tree = Tree::new(&levels);
    let mut worst: Option<Overspent> = None;
    for moved in moved {
        let place = begins.partition_point(|begin| *begin <= moved.counts_until());
        tree.add(place, moved.amount * MINUTE);
        if moved.amount < 0 {
            continue;
        }
        let to = moved.to;
        let end = begins.partition_point(|begin| *begin <= to);
        let bound = i128::from(bucket.burst) * MINUTE + rate * i128::from(to + late - origin);
        let exact = tree.highest(end) - bound;
        if exact > worst.map_or(0, |worst| worst.exact)
            && let Some((at, _)) = tree.last_above(end, bound + exact - 1)
        {
            let excess = u64::try_from((exact + MINUTE - 1) / MINUTE).unwrap_or(u64::MAX);
            worst = Some(Overspent { from: begins[at], to, excess, exact });
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// The same by looking at every interval.
    fn brute(moved: &[Moved], bucket: Bucket, late: At) -> i128 {
        let mut worst = 0;
        let spent = || moved.iter().filter(|moved| moved.amount > 0);
        for from in spent().map(|spent| spent.from) {
            for to in spent().map(|spent| spent.to).filter(|to| *to >= from) {
                let back =
                    moved.iter().filter(|moved| moved.amount < 0 && moved.from <= to && moved.to >= from);
                let net = inside(moved, from, to) + back.map(|back| back.amount).sum::<i128>();
                let allowed = i128::from(bucket.burst) * MINUTE
                    + i128::from(bucket.per_minute) * i128::from(to + late - from);
                worst = worst.max(net * MINUTE - allowed);
            }
        }
        worst
    }

    #[test]
    fn the_sweep_finds_what_looking_at_every_interval_finds() {
        let (mut overspent, mut saved) = (0, 0);
        for seed in 0..3_000 {
            let mut chance = Random::new(seed);
            let bucket = Bucket { burst: chance.within(1, 6), per_minute: chance.within(1, 200) };
            let late = chance.below(2) * 100 * MILLI;
            let most = chance.within(1, 4);
            let count = chance.within(1, 40);
            let spent: Vec<Moved> = (0..count)
                .map(|_| {
                    let from = chance.below(6_000) * MILLI;
                    Moved::spent(from, from + chance.below(300) * MILLI, chance.within(1, most))
                })
                .collect();
            // In every other history something is given back.
            let back = (0..chance.below(2) * count).map(|_| {
                let from = chance.below(6_000) * MILLI;
                Moved::given_back(from, from + chance.below(300) * MILLI, 1)
            });
            let moved: Vec<Moved> = spent.iter().copied().chain(back).collect();
            let found = worst(&moved, bucket, late);
            assert_eq!(found.map_or(0, |worst| worst.exact), brute(&moved, bucket, late), "seed {seed}");
            saved += u32::from(found.is_none() && worst(&spent, bucket, late).is_some());
            if let Some(worst) = found {
                overspent += 1;
                let touches = |one: &&Moved| match one.amount > 0 {
                    true => one.from >= worst.from && one.to <= worst.to,
                    false => one.from <= worst.to && one.to >= worst.from,
                };
                let witness: Vec<Moved> = moved.iter().filter(touches).copied().collect();
                assert!(
                    brute(&witness, bucket, late) >= worst.exact,
                    "seed {seed}: the witness alone proves it"
                );
            }
        }
        assert!((100..2_900).contains(&overspent), "{overspent} of 3000: both cases are met");
        assert!(saved > 20, "{saved}: what is given back makes a difference");
    }

    #[test]
    fn a_full_bucket_and_what_refills_are_no_overspending_and_one_more_is() {
        let bucket = Bucket { burst: 3, per_minute: 60 };
        let at = |millis: u64| Moved::spent(millis * MILLI, millis * MILLI, 1);
        let mut spent = vec![at(0), at(0), at(0), at(1000), at(2000)];
        assert_eq!(worst(&spent, bucket, 0), None);
        spent.push(at(2000));
        let found = worst(&spent, bucket, 0).unwrap();
        assert_eq!((found.excess, found.from, found.to), (1, 0, 2000 * MILLI));
    }

    #[test]
    fn what_was_given_back_before_an_interval_or_after_it_is_no_excuse() {
        let bucket = Bucket { burst: 3, per_minute: 60 };
        let at = |millis: u64| Moved::spent(millis * MILLI, millis * MILLI, 2);
        let back = |millis: u64| Moved::given_back(millis * MILLI, (millis + 10) * MILLI, 1);
        let spent = [at(1000), at(1005)];
        assert!(worst(&spent, bucket, 0).is_some());
        assert!(worst(&[spent[0], spent[1], back(998)], bucket, 0).is_none(), "it may have been in between");
        assert!(worst(&[spent[0], spent[1], back(900)], bucket, 0).is_some());
        assert!(worst(&[spent[0], spent[1], back(1006)], bucket, 0).is_some());
    }
}
