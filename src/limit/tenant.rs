//! The live state of one tenant: a slot per scope, a bucket per limit.
//!
//! Laws:
//! - a slot keeps its place for as long as a reservation names it, through any edit; then the place is free for another scope;
//! - an edit moves levels by as much as capacities moved, so what is used stays used, and counts from the instant of the edit,
//!   however late the tenant follows it. Of several edits made while nothing touched the tenant only the last has an instant.

mod travel;
mod users;

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::amount::{Amount, Dimension};
use super::bucket::{Bucket, Fit, Rate};
use super::cold::Cold;
use super::decision::{Denial, LevelView, Levels};
use super::limiter::ScopeView;
use super::reservation::UserDigest;
use super::rules::{Name, RateLimit, Rules, STEPS, Scope, ScopeLimits, Start, TenantRules};
use super::time::{Moment, Span};
pub(super) use travel::Arrival;
use users::Users;

/// The slots that one reservation names, in the order in which they are checked.
pub(super) type Path = [Option<u32>; STEPS];

/// Which buckets a reservation debited: bit `4·step + dimension`, where a step is a place in its path.
pub(super) type Debited = u32;

/// What decides by which scopes a request goes.
#[derive(Clone, Copy)]
pub(super) struct Way<'a> {
    pub(super) key: &'a str,
    pub(super) user: Option<UserDigest>,
    pub(super) project: Option<&'a str>,
    pub(super) model: &'a str,
}

#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
pub(super) struct TenantState {
    rules: Arc<TenantRules>,
    /// The version of all rules that it last followed: while it is in force, no command looks a tenant's rules up.
    version: u64,
    /// Whether that version names the tenant.
    pub(super) in_force: bool,
    /// Of each scope in the rules, the slot that holds it.
    order: Box<[u32]>,
    slots: Vec<Slot>,
    /// Its users; none for a tenant that has none, as most.
    users: Option<Box<Users>>,
    /// Reservations that have not ended.
    pub(super) open: u32,
    /// It stands in the limiter's queue of tenants to forget once they are idle and full.
    pub(super) queued: bool,
}

#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
struct Slot {
    scope: Scope,
    buckets: Box<[Held]>,
    max_inflight: Option<u32>,
    inflight: u32,
    /// Reservations that may still come back to it: those in flight, and those that a late settle may true up.
    named: u32,
    holder: Holder,
    /// Its user may have more in flight among those that share one slot.
    beside: bool,
}

/// Who holds a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    /// A scope of the rules, or one that was until reservations that name it have ended.
    Scope,
    /// A user.
    User,
    /// Nobody: a user that was forgotten.
    Nobody,
}

/// A bucket with its limit, and the version in which that limit came: an older reservation was not debited in it.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug)]
struct Held {
    bucket: Bucket,
    rate: Rate,
    dimension: Dimension,
    since: u64,
}

impl Held {
    fn new(limit: &RateLimit, now: Moment) -> Self {
        let bucket = match limit.start {
            Start::Full => Bucket::full(limit.rate, now),
            Start::Undrawn(bucket) => bucket,
        };
        Self { bucket, rate: limit.rate, dimension: limit.dimension, since: limit.since }
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
    /// The state of a tenant that has none; `cold` says since when the limiter knows what it has spent, if not from the first.
    pub(super) fn new(rules: &Arc<TenantRules>, version: u64, now: Moment, cold: Option<&Cold>) -> Self {
        let slots: Vec<Slot> = rules.scopes().iter().map(|limits| Slot::new(limits, now)).collect();
        let order = (0..).take(slots.len()).collect();
        let mut state = Self {
            rules: rules.clone(),
            version,
            in_force: true,
            order,
            slots,
            users: None,
            open: 0,
            queued: false,
        };
        if let Some(cold) = cold {
            state.begin_cold(cold, now);
        }
        state
    }

    fn begin_cold(&mut self, cold: &Cold, now: Moment) {
        for (limits, place) in self.rules.scopes().iter().zip(&self.order) {
            self.slots[*place as usize].begin_cold(limits, cold, self.rules.edited(), now);
        }
    }

    /// Follows the rules to the version in force. A tenant that they no longer name stays as it is.
    pub(super) fn follow(&mut self, rules: &Rules, name: &Name) {
        if self.version == rules.version() {
            return;
        }
        self.version = rules.version();
        let followed = rules.tenant(name);
        self.in_force = followed.is_some();
        if let Some(edited) = followed.filter(|followed| !Arc::ptr_eq(followed, &self.rules)) {
            self.adopt(edited);
        }
    }

    fn adopt(&mut self, rules: &Arc<TenantRules>) {
        let bound: HashSet<&Scope> = rules.scopes().iter().map(|limits| &limits.scope).collect();
        let mut places: HashMap<Scope, u32> = HashMap::new();
        let mut free = Vec::new();
        let of_scopes = self.slots.iter_mut().zip(0..).filter(|(slot, _)| slot.holder == Holder::Scope);
        for (slot, place) in of_scopes {
            if bound.contains(&slot.scope) {
                places.insert(slot.scope.clone(), place);
            } else {
                slot.retire();
                if slot.named == 0 {
                    free.push(place);
                } else {
                    places.insert(slot.scope.clone(), place);
                }
            }
        }
        let seated = rules.scopes().iter().map(|limits| {
            let place = places.get(&limits.scope).copied();
            let place = place.unwrap_or_else(|| self.seat(limits.scope.clone(), free.pop()));
            self.slots[place as usize].follow(limits, rules.edited());
            place
        });
        self.order = seated.collect();
        self.users_follow(rules);
        self.rules = rules.clone();
    }

    /// Gives a new scope a place: a free one, so that edits under load do not grow the state, or else the next.
    fn seat(&mut self, scope: Scope, free: Option<u32>) -> u32 {
        let slot = Slot::empty(scope, Holder::Scope);
        if let Some(place) = free {
            self.slots[place as usize] = slot;
            return place;
        }
        self.push(slot)
    }

    fn push(&mut self, slot: Slot) -> u32 {
        self.slots.push(slot);
        // Slots in force, of a bounded number of users, or named by one of the bounded number of reservations are far fewer than 2^32.
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    pub(super) fn shadow(&self) -> bool {
        self.rules.shadow
    }

    /// The path of a request whose user, if it has one, has no slot of its own.
    fn path_of_rules(&self, way: &Way<'_>) -> Path {
        let rules = self.rules.path(way.key, way.user.is_some(), way.project, way.model);
        rules.map(|index| self.order.get(index? as usize).copied())
    }

    /// Credits every bucket of the path with what has accrued.
    pub(super) fn refill(&mut self, path: &Path, now: Moment) {
        self.look_beside(path);
        for place in path.iter().flatten() {
            for held in &mut self.slots[*place as usize].buckets {
                held.bucket.refill(held.rate, now);
            }
        }
    }

    /// Checks every bucket and slot of the path, as of the last refill. While not all open work is known, no slot is certain to be free.
    ///
    /// # Errors
    /// The first refusal on the path, with the longest wait of all that refuse; one that no wait helps comes before all others.
    pub(super) fn check(&self, path: &Path, need: Amount, complete: bool) -> Result<(), Denial> {
        let mut refusal: Option<Denial> = None;
        let mut longest = Span::default();
        for place in path.iter().flatten() {
            let slot = &self.slots[*place as usize];
            for held in &slot.buckets {
                let need = need.of(held.dimension);
                match held.bucket.fit(held.rate, need) {
                    Fit::Now => {}
                    Fit::Never => {
                        return Err(Denial::Never {
                            scope: slot.scope.clone(),
                            dimension: held.dimension,
                            need,
                            capacity: held.rate.burst,
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
        refusal.or_else(|| self.full_slot(path, complete)).map_or(Ok(()), Err)
    }

    fn full_slot(&self, path: &Path, complete: bool) -> Option<Denial> {
        path.iter().flatten().find_map(|place| {
            let slot = &self.slots[*place as usize];
            let max = slot.max_inflight?;
            if !complete {
                return Some(Denial::Recovering);
            }
            (slot.inflight + self.beside(slot) >= max)
                .then(|| Denial::Inflight { scope: slot.scope.clone(), max })
        })
    }

    /// Debits every bucket of the path and takes a slot of each scope. The caller has checked.
    pub(super) fn debit(&mut self, path: &Path, need: Amount) -> Debited {
        let mut debited = 0;
        for (step, place) in path.iter().enumerate() {
            let Some(place) = place else { continue };
            let slot = &mut self.slots[*place as usize];
            slot.inflight += 1;
            slot.named += 1;
            for held in &mut slot.buckets {
                held.bucket.debit(need.of(held.dimension));
                debited |= bit(step, held.dimension);
            }
        }
        debited
    }

    /// Frees the slots that [`TenantState::debit`] took. The reservation still names them.
    pub(super) fn free_slots(&mut self, path: &Path) {
        for place in path.iter().flatten() {
            let slot = &mut self.slots[*place as usize];
            // Freed twice, it would admit one too many.
            assert!(slot.inflight > 0, "{}: a slot is freed that nobody took", slot.scope);
            slot.inflight -= 1;
        }
    }

    /// The reservation will not come back to this path.
    pub(super) fn leave(&mut self, path: &Path) {
        for place in path.iter().flatten() {
            let slot = &mut self.slots[*place as usize];
            // Left twice, its place would go to another scope while somebody still names it.
            assert!(slot.named > slot.inflight, "{}: a slot is left that nobody names", slot.scope);
            slot.named -= 1;
        }
    }

    /// Trues every bucket of the path up from what it was debited to what was used; none means that nothing was sent, and the request
    /// itself is given back. A bucket that the reservation did not debit gets no refund, only overage.
    pub(super) fn true_up(
        &mut self,
        path: &Path,
        debited: Debited,
        version: u64,
        estimate: Amount,
        used: Option<Amount>,
        now: Moment,
    ) {
        for (step, place) in path.iter().enumerate() {
            let Some(place) = place else { continue };
            let slot = &mut self.slots[*place as usize];
            let refunds = slot.refunds();
            for held in &mut slot.buckets {
                held.bucket.refill(held.rate, now);
                let before = estimate.of(held.dimension);
                let after = used.map_or(0, |used| used.of(held.dimension));
                if after > before {
                    held.bucket.debit(after - before);
                } else if refunds && debited & bit(step, held.dimension) != 0 && held.since <= version {
                    held.bucket.refund(held.rate, before - after);
                }
            }
        }
    }

    /// Of each dimension, the bucket on the path with the least left.
    pub(super) fn levels(&self, path: &Path) -> Levels {
        let mut levels: Levels = [None; 4];
        for place in path.iter().flatten() {
            for held in &self.slots[*place as usize].buckets {
                let least = &mut levels[held.dimension.index()];
                if least.is_none_or(|seen| held.bucket.level() < seen.level) {
                    *least = Some(held.view());
                }
            }
        }
        levels
    }

    /// How long until nothing distinguishes it from a tenant without state: every bucket full. None while something is open or may
    /// come back.
    pub(super) fn idle_in(&mut self, now: Moment) -> Option<Span> {
        if self.open > 0 || self.slots.iter().any(|slot| slot.named > 0) {
            return None;
        }
        let mut longest = Span::default();
        for held in self.slots.iter_mut().flat_map(|slot| &mut slot.buckets) {
            held.bucket.refill(held.rate, now);
            longest = longest.max(held.bucket.time_until_full(held.rate));
        }
        Some(longest)
    }

    pub(super) fn scopes(&mut self, now: Moment) -> Vec<ScopeView> {
        let slots = &mut self.slots;
        let in_force = self.order.iter().map(|place| *place as usize);
        in_force
            .filter_map(|place| {
                let slot = slots.get_mut(place)?;
                let limits = slot.buckets.iter_mut().map(|held| {
                    held.bucket.refill(held.rate, now);
                    (held.dimension, held.view())
                });
                Some(ScopeView {
                    limits: limits.collect(),
                    scope: slot.scope.clone(),
                    inflight: slot.inflight,
                    max_inflight: slot.max_inflight,
                })
            })
            .collect()
    }

    /// Asserts what must hold of a path between two commands. Only of the path: a tenant may have thousands of keys.
    pub(super) fn assert_invariants(&self, path: &Path) {
        for place in path.iter().flatten() {
            let slot = &self.slots[*place as usize];
            assert!(slot.inflight <= slot.named, "{}: more in flight than are known", slot.scope);
            assert!(slot.inflight <= self.open, "{}: more in flight than are open", slot.scope);
            for held in &slot.buckets {
                let burst = i64::try_from(held.rate.burst).unwrap_or(i64::MAX);
                assert!(held.bucket.level() <= burst, "{}: a bucket holds more than its burst", slot.scope);
            }
        }
    }

    /// Slots in memory.
    #[cfg(test)]
    pub(super) fn slots_held(&self) -> usize {
        self.slots.len()
    }
}

impl Slot {
    fn new(limits: &ScopeLimits, now: Moment) -> Self {
        let mut slot = Self::empty(limits.scope.clone(), Holder::Scope);
        slot.follow(limits, now);
        slot
    }

    fn empty(scope: Scope, holder: Holder) -> Self {
        Self {
            scope,
            buckets: Box::default(),
            max_inflight: None,
            inflight: 0,
            named: 0,
            holder,
            beside: false,
        }
    }

    fn begin_cold(&mut self, limits: &ScopeLimits, cold: &Cold, edited: Moment, now: Moment) {
        for (limit, held) in limits.rates.iter().zip(&mut self.buckets) {
            if let Some(bucket) = cold.bucket(limit, edited, now) {
                held.bucket = bucket;
            }
        }
    }

    /// A bucket stays with its limit; a limit that went and came back is another.
    fn follow(&mut self, limits: &ScopeLimits, edited: Moment) {
        self.max_inflight = limits.max_inflight;
        let mut old: Vec<Held> = std::mem::take(&mut self.buckets).into_vec();
        let same =
            |held: &Held, limit: &RateLimit| held.dimension == limit.dimension && held.since == limit.since;
        let buckets = limits.rates.iter().map(|limit| {
            let Some(place) = old.iter().position(|held| same(held, limit)) else {
                return Held::new(limit, edited);
            };
            let mut held = old.swap_remove(place);
            held.bucket.follow(held.rate, limit.rate, edited);
            held.rate = limit.rate;
            held
        });
        self.buckets = buckets.collect();
    }

    /// No rule binds it any more; reservations may still name its place.
    fn retire(&mut self) {
        self.buckets = Box::default();
        self.max_inflight = None;
    }
}

const fn bit(step: usize, dimension: Dimension) -> Debited {
    1 << (step * 4 + dimension.index())
}
