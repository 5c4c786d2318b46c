//! The end users of a tenant: a slot for each that has state, and one that all share who find no place.
//!
//! Laws:
//! - a user never has more than its limit, in whichever slot it was counted. Who gets a slot may have been counted in the shared one, so
//!   it begins with no more than that holds, and what is in flight there counts as its own until none is. Nothing is refunded there:
//!   what one had too much of, another would get;
//! - a user is forgotten only when its buckets are full, nothing names them, and made anew they would be full too;
//! - the number of users is bounded, and a user who comes costs a bounded number of looks at others: no scan, however many come;
//! - who is refused leaves nothing behind.
//!
//! Absences: names. A user is a digest, and no answer carries it.

use hashbrown::HashMap;

use super::super::exported::ExportedHolder;
use super::super::rules::USER;
use super::{Arc, Cold, Holder, Moment, Path, Scope, Slot, Span, TenantRules, TenantState, UserDigest, Way};

/// Users that are looked at for each who comes. More than one, so that a crowd that has gone makes room faster than another comes.
const LOOKS: usize = 8;

/// The users of one tenant.
#[cfg_attr(test, derive(Clone))]
#[derive(Debug, Default)]
pub(super) struct Users {
    /// Of each user, its slot.
    places: HashMap<UserDigest, u32>,
    /// The same, to be gone through.
    listed: Vec<(UserDigest, u32)>,
    /// Whose turn it is to be looked at.
    hand: usize,
    /// Slots that nobody holds any more.
    vacant: Vec<u32>,
}

/// A user that has got a slot just now.
#[must_use = "one that is refused is turned away"]
pub(in super::super) struct Newcomer(UserDigest);

impl TenantState {
    /// The path of a request. Whose user has no slot is led to the one that users share.
    pub(in super::super) fn path(&self, way: &Way<'_>) -> Path {
        let mut path = self.path_of_rules(way);
        if path[USER].is_some()
            && let (Some(user), Some(users)) = (way.user, &self.users)
            && let Some(place) = users.places.get(&user)
        {
            path[USER] = Some(*place);
        }
        path
    }

    /// The same; whose user has no slot gets one, unless there are `most` already.
    pub(in super::super) fn enter(
        &mut self,
        way: &Way<'_>,
        now: Moment,
        cold: Option<&Cold>,
        most: usize,
    ) -> (Path, Option<Newcomer>) {
        let mut path = self.path(way);
        if self.users.is_some() && self.rules.users().is_none() {
            self.forget_some(now, cold);
        }
        let (Some(user), Some(shared)) = (way.user, self.shared()) else { return (path, None) };
        if path[USER] != Some(shared) {
            return (path, None);
        }
        self.forget_some(now, cold);
        if self.users_held() >= most {
            return (path, None);
        }
        let Some(slot) = self.newcomer(shared, now, cold) else { return (path, None) };
        path[USER] = Some(self.seat_user(user, slot));
        (path, Some(Newcomer(user)))
    }

    /// Takes back what [`TenantState::enter`] did for a request that was refused.
    pub(in super::super) fn turn_away(&mut self, newcomer: Option<Newcomer>) {
        let (Some(Newcomer(user)), Some(users)) = (newcomer, &mut self.users) else { return };
        if users.listed.last().is_some_and(|(last, _)| *last == user) {
            let last = users.listed.len() - 1;
            self.vacate(last);
        }
    }

    /// Users that have a slot.
    pub(in super::super) fn users_held(&self) -> usize {
        self.users.as_ref().map_or(0, |users| users.listed.len())
    }

    /// A user that arrived with its tenant from another node; none if it is there already.
    pub(super) fn seat_arrived(
        &mut self,
        user: UserDigest,
        beside: bool,
        now: Moment,
        cold: Option<&Cold>,
    ) -> Option<u32> {
        if self.users.as_ref().is_some_and(|users| users.places.contains_key(&user)) {
            return None;
        }
        let mut slot = self.anew(now, cold).unwrap_or_else(|| Slot::empty(Scope::User, Holder::User));
        slot.beside = beside;
        Some(self.seat_user(user, slot))
    }

    /// Who holds each slot, as an export says it.
    pub(super) fn holders(&self) -> Vec<ExportedHolder> {
        let holder = |slot: &Slot| match slot.holder {
            Holder::Nobody => ExportedHolder::Nobody,
            Holder::Scope | Holder::User => ExportedHolder::Scope,
        };
        let mut holders: Vec<ExportedHolder> = self.slots.iter().map(holder).collect();
        for (digest, place) in self.users.iter().flat_map(|users| &users.listed) {
            let beside = self.slots[*place as usize].beside;
            holders[*place as usize] = ExportedHolder::User { digest: *digest, beside };
        }
        holders
    }

    /// Each user's buckets follow the rules. Users without a limit are forgotten one by one.
    pub(super) fn users_follow(&mut self, rules: &Arc<TenantRules>) {
        let limits = rules.users().map(|index| &rules.scopes()[index as usize]);
        for (_, place) in self.users.iter().flat_map(|users| &users.listed) {
            let slot = &mut self.slots[*place as usize];
            match limits {
                Some(limits) => slot.follow(limits, rules.edited()),
                None => slot.retire(),
            }
        }
    }

    /// What a user has in flight elsewhere, as far as that can be known.
    pub(super) fn beside(&self, slot: &Slot) -> u32 {
        match self.shared().filter(|_| slot.beside) {
            Some(shared) => self.slots[shared as usize].inflight,
            None => 0,
        }
    }

    /// Once none of those that share a slot has anything in flight, no user has.
    pub(super) fn look_beside(&mut self, path: &Path) {
        if let (Some(place), Some(shared)) = (path[USER], self.shared())
            && self.slots[shared as usize].inflight == 0
        {
            self.slots[place as usize].beside = false;
        }
    }

    /// The slot of those who have none.
    fn shared(&self) -> Option<u32> {
        self.order.get(self.rules.users()? as usize).copied()
    }

    /// The slot of a user that nobody knows.
    fn anew(&self, now: Moment, cold: Option<&Cold>) -> Option<Slot> {
        let limits = &self.rules.scopes()[self.rules.users()? as usize];
        let mut slot = Slot::new(limits, now);
        slot.holder = Holder::User;
        if let Some(cold) = cold {
            slot.begin_cold(limits, cold, self.rules.edited(), now);
        }
        Some(slot)
    }

    /// The slot of a user that may have been counted in the shared one.
    fn newcomer(&mut self, shared: u32, now: Moment, cold: Option<&Cold>) -> Option<Slot> {
        let mut slot = self.anew(now, cold)?;
        let shared = &mut self.slots[shared as usize];
        slot.beside = shared.inflight > 0;
        for (own, theirs) in slot.buckets.iter_mut().zip(&mut shared.buckets) {
            own.bucket.refill(own.rate, now);
            theirs.bucket.refill(theirs.rate, now);
            own.bucket = own.bucket.emptier(theirs.bucket);
        }
        Some(slot)
    }

    fn seat_user(&mut self, user: UserDigest, slot: Slot) -> u32 {
        let vacant = self.users.as_mut().and_then(|users| users.vacant.pop());
        let place = match vacant {
            Some(place) => {
                self.slots[place as usize] = slot;
                place
            }
            None => self.push(slot),
        };
        let users = self.users.get_or_insert_default();
        users.places.insert(user, place);
        users.listed.push((user, place));
        place
    }

    /// Looks at a few users and forgets those who are as if they had never come.
    fn forget_some(&mut self, now: Moment, cold: Option<&Cold>) {
        if self.users.is_none() || self.anew(now, cold).is_some_and(|mut anew| !anew.is_full(now)) {
            return;
        }
        for _ in 0..LOOKS {
            let Some(users) = &mut self.users else { return };
            users.hand = if users.hand < users.listed.len() { users.hand } else { 0 };
            let hand = users.hand;
            let Some((_, place)) = users.listed.get(hand) else { return };
            let slot = &mut self.slots[*place as usize];
            if slot.named == 0 && slot.is_full(now) {
                // Another takes its turn.
                self.vacate(hand);
            } else {
                users.hand += 1;
            }
        }
    }

    /// Forgets the user that is listed there.
    fn vacate(&mut self, listed: usize) {
        let Some(users) = &mut self.users else { return };
        let (user, place) = users.listed.swap_remove(listed);
        users.places.remove(&user);
        users.vacant.push(place);
        let slot = &mut self.slots[place as usize];
        // Somebody would come back to the slot of another.
        assert!(slot.named == 0, "a user is forgotten whom a reservation names");
        *slot = Slot::empty(Scope::User, Holder::Nobody);
    }
}

impl Slot {
    /// Whether what its reservations did not use comes back to who had it.
    pub(super) fn refunds(&self) -> bool {
        self.scope != Scope::User || self.holder == Holder::User
    }

    fn is_full(&mut self, now: Moment) -> bool {
        self.buckets.iter_mut().all(|held| {
            held.bucket.refill(held.rate, now);
            held.bucket.time_until_full(held.rate) == Span::default()
        })
    }
}
