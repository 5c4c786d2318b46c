//! The live state of one tenant: a slot per scope, a bucket per limit.
//!
//! Slots keep their place while a reservation is open, because reservations name them by index. A policy edit moves levels by as
//! much as capacities moved, so what is used stays used.

use std::sync::Arc;

use super::amount::{Amount, Dimension};
use super::bucket::{Bucket, Fit, Rate};
use super::decision::{Denial, LevelView, Levels};
use super::rules::{RateLimit, Scope, ScopeLimits, Start, TenantRules};
use super::time::{Moment, Span};

/// The slots that one reservation passes, in the order in which they are checked.
pub(super) type Path = [Option<u16>; 4];

/// Which buckets a reservation debited: bit `4·step + dimension`, where a step is a place in its path.
pub(super) type Debited = u16;

#[derive(Debug)]
pub(super) struct TenantState {
    rules: Arc<TenantRules>,
    version: u64,
    /// Of each scope in the rules, the slot that holds it.
    order: Box<[u16]>,
    slots: Vec<Slot>,
    /// Reservations that have not ended.
    pub(super) open: u32,
    /// It stands in the limiter's queue of tenants to forget once they are idle and full.
    pub(super) queued: bool,
}

#[derive(Debug)]
struct Slot {
    scope: Scope,
    buckets: Box<[Held]>,
    max_inflight: Option<u32>,
    inflight: u32,
}

/// A bucket with its limit, and the version of the rules that made it: a reservation older than the bucket was not debited in it.
#[derive(Debug)]
struct Held {
    bucket: Bucket,
    rate: Rate,
    dimension: Dimension,
    born: u64,
}

impl Held {
    fn new(limit: &RateLimit, born: u64, now: Moment) -> Self {
        let bucket = match limit.start {
            Start::Full => Bucket::full(limit.rate, now),
            Start::EmptyAt(start) => {
                let mut bucket = Bucket::empty(start);
                bucket.refill(limit.rate, now);
                bucket
            }
        };
        Self { bucket, rate: limit.rate, dimension: limit.dimension, born }
    }

    fn view(&self) -> LevelView {
        LevelView {
            per_minute: self.rate.per_minute,
            capacity: self.rate.burst,
            level: self.bucket.level(),
            until_full: self.bucket.time_until_full(self.rate),
        }
    }
}

impl TenantState {
    pub(super) fn new(rules: &Arc<TenantRules>, version: u64, now: Moment) -> Self {
        let slots: Vec<Slot> = rules.scopes().iter().map(|limits| Slot::new(limits, version, now)).collect();
        let order = in_order(slots.len());
        Self { rules: rules.clone(), version, order, slots, open: 0, queued: false }
    }

    /// Follows the rules to a later version.
    pub(super) fn adopt(&mut self, rules: &Arc<TenantRules>, version: u64, now: Moment) {
        if self.version == version {
            return;
        }
        self.version = version;
        if !Arc::ptr_eq(&self.rules, rules) {
            self.rules = rules.clone();
            let mut order = Vec::with_capacity(rules.scopes().len());
            for limits in rules.scopes() {
                let place = self.slots.iter().position(|slot| slot.scope == limits.scope);
                let place = place.unwrap_or_else(|| {
                    self.slots.push(Slot::empty(limits.scope.clone()));
                    self.slots.len() - 1
                });
                self.slots[place].follow(limits, version, now);
                order.push(u16::try_from(place).unwrap_or(u16::MAX));
            }
            for (place, slot) in self.slots.iter_mut().enumerate() {
                if !order.iter().any(|kept| usize::from(*kept) == place) {
                    slot.retire();
                }
            }
            self.order = order.into_boxed_slice();
        }
        if self.open == 0 {
            self.compact();
        }
    }

    /// Nothing names a slot by index any more: drops the retired ones and puts the rest in the rules' order.
    fn compact(&mut self) {
        let mut slots: Vec<Option<Slot>> = std::mem::take(&mut self.slots).into_iter().map(Some).collect();
        self.slots =
            self.order.iter().filter_map(|place| slots.get_mut(usize::from(*place))?.take()).collect();
        self.order = in_order(self.slots.len());
    }

    pub(super) fn shadow(&self) -> bool {
        self.rules.shadow
    }

    pub(super) fn path(&self, key: &str, project: Option<&str>, model: &str) -> Path {
        self.rules.path(key, project, model).map(|index| self.order.get(usize::from(index?)).copied())
    }

    /// Checks every bucket and slot of the path as of `now`, and changes nothing but the refill.
    ///
    /// # Errors
    /// The first refusal on the path, with the longest wait of all that refuse; one that no wait helps comes before all others.
    pub(super) fn check(&mut self, path: &Path, need: Amount, now: Moment) -> Result<(), Denial> {
        let mut refusal: Option<Denial> = None;
        let mut longest = Span::default();
        for place in path.iter().flatten() {
            let slot = &mut self.slots[usize::from(*place)];
            for held in &mut slot.buckets {
                held.bucket.refill(held.rate, now);
                let need = need.of(held.dimension);
                match held.bucket.fit(held.rate, need) {
                    Fit::Now => {}
                    Fit::Never => {
                        let capacity = held.rate.burst;
                        return Err(Denial::Never {
                            scope: slot.scope.clone(),
                            dimension: held.dimension,
                            need,
                            capacity,
                        });
                    }
                    Fit::After(wait) => {
                        longest = longest.max(wait);
                        refusal.get_or_insert_with(|| Denial::Rate {
                            scope: slot.scope.clone(),
                            dimension: held.dimension,
                            need,
                            level: held.bucket.level(),
                            capacity: held.rate.burst,
                            wait,
                        });
                    }
                }
            }
        }
        if let Some(Denial::Rate { wait, .. }) = &mut refusal {
            *wait = longest;
        }
        if refusal.is_none() {
            refusal = path.iter().flatten().find_map(|place| {
                let slot = &self.slots[usize::from(*place)];
                let max = slot.max_inflight.filter(|max| slot.inflight >= *max)?;
                Some(Denial::Inflight { scope: slot.scope.clone(), max })
            });
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Debits every bucket of the path and takes a slot of each scope. The caller has checked.
    pub(super) fn debit(&mut self, path: &Path, need: Amount) -> Debited {
        let mut debited = 0;
        for (step, place) in path.iter().enumerate() {
            let Some(place) = place else { continue };
            let slot = &mut self.slots[usize::from(*place)];
            slot.inflight += 1;
            for held in &mut slot.buckets {
                held.bucket.debit(need.of(held.dimension));
                debited |= bit(step, held.dimension);
            }
        }
        debited
    }

    /// Frees the slots that [`TenantState::debit`] took.
    pub(super) fn free_slots(&mut self, path: &Path) {
        for place in path.iter().flatten() {
            let slot = &mut self.slots[usize::from(*place)];
            debug_assert!(slot.inflight > 0, "a slot is freed once, by the reservation that took it");
            slot.inflight = slot.inflight.saturating_sub(1);
        }
    }

    /// Trues every bucket of the path up from `held` to `used`, with the request itself kept or, when `requests` is 0, given back.
    /// A bucket that the reservation did not debit gets no refund, only overage.
    pub(super) fn true_up(
        &mut self,
        path: &Path,
        debited: Debited,
        version: u64,
        held_amount: Amount,
        used: Option<Amount>,
        now: Moment,
    ) {
        for (step, place) in path.iter().enumerate() {
            let Some(place) = place else { continue };
            for held in &mut self.slots[usize::from(*place)].buckets {
                held.bucket.refill(held.rate, now);
                let before = held_amount.of(held.dimension);
                let after = used.map_or(0, |used| used.of(held.dimension));
                if after > before {
                    held.bucket.debit(after - before);
                } else if debited & bit(step, held.dimension) != 0 && held.born <= version {
                    held.bucket.refund(held.rate, before - after);
                }
            }
        }
    }

    /// Of each dimension, the bucket on the path with the least left.
    pub(super) fn levels(&self, path: &Path) -> Levels {
        let mut levels: Levels = [None; 4];
        for place in path.iter().flatten() {
            for held in &self.slots[usize::from(*place)].buckets {
                let least = &mut levels[held.dimension.index()];
                if least.is_none_or(|seen| held.bucket.level() < seen.level) {
                    *least = Some(held.view());
                }
            }
        }
        levels
    }

    /// How long until nothing distinguishes it from a tenant without state: every bucket full. None while something is open.
    pub(super) fn idle_in(&mut self, now: Moment) -> Option<Span> {
        if self.open > 0 {
            return None;
        }
        let mut longest = Span::default();
        for held in self.slots.iter_mut().flat_map(|slot| &mut slot.buckets) {
            held.bucket.refill(held.rate, now);
            longest = longest.max(held.bucket.time_until_full(held.rate));
        }
        Some(longest)
    }

    pub(super) fn scopes(&mut self, now: Moment) -> Vec<super::limiter::ScopeView> {
        let slots = &mut self.slots;
        let in_force = self.order.iter().map(|place| usize::from(*place));
        in_force
            .filter_map(|place| {
                let slot = slots.get_mut(place)?;
                let limits = slot.buckets.iter_mut().map(|held| {
                    held.bucket.refill(held.rate, now);
                    (held.dimension, held.view())
                });
                Some(super::limiter::ScopeView {
                    limits: limits.collect(),
                    scope: slot.scope.clone(),
                    inflight: slot.inflight,
                    max_inflight: slot.max_inflight,
                })
            })
            .collect()
    }

    /// Asserts what must hold between two commands.
    pub(super) fn assert_invariants(&self) {
        for slot in &self.slots {
            debug_assert!(
                slot.inflight <= self.open,
                "{}: more slots taken than reservations open",
                slot.scope
            );
            for held in &slot.buckets {
                let burst = i64::try_from(held.rate.burst).unwrap_or(i64::MAX);
                assert!(held.bucket.level() <= burst, "{}: a bucket holds more than its burst", slot.scope);
            }
        }
    }
}

impl Slot {
    fn new(limits: &ScopeLimits, version: u64, now: Moment) -> Self {
        let mut slot = Self::empty(limits.scope.clone());
        slot.follow(limits, version, now);
        slot
    }

    fn empty(scope: Scope) -> Self {
        Self { scope, buckets: Box::default(), max_inflight: None, inflight: 0 }
    }

    fn follow(&mut self, limits: &ScopeLimits, version: u64, now: Moment) {
        self.max_inflight = limits.max_inflight;
        let mut old: Vec<Held> = std::mem::take(&mut self.buckets).into_vec();
        self.buckets = limits
            .rates
            .iter()
            .map(|limit| match old.iter().position(|held| held.dimension == limit.dimension) {
                Some(place) => {
                    let mut held = old.swap_remove(place);
                    held.bucket.follow(held.rate, limit.rate, now);
                    held.rate = limit.rate;
                    held
                }
                None => Held::new(limit, version, now),
            })
            .collect();
    }

    /// No rule binds it any more; open reservations may still hold its place.
    fn retire(&mut self) {
        self.buckets = Box::default();
        self.max_inflight = None;
    }
}

fn in_order(length: usize) -> Box<[u16]> {
    (0..length).map(|place| u16::try_from(place).unwrap_or(u16::MAX)).collect()
}

const fn bit(step: usize, dimension: Dimension) -> Debited {
    1 << (step * 4 + dimension.index())
}
