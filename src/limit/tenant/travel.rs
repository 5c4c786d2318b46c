//! A tenant's state on its way to another node, and its arrival there. Which bucket is which is said in `limiter/export.rs`.

use hashbrown::HashMap;

use super::super::cold::Cold;
use super::super::exported::{ExportedBucket, ExportedHolder, ExportedScope, ExportedTenant, Unsound};
use super::super::mutant;
use super::{
    Arc, Bucket, Debited, Dimension, Holder, Moment, Name, Path, Scope, Slot, Span, Start, TenantRules,
    TenantState, bit,
};

/// How what was exported of a tenant is called where it arrived.
pub(in super::super) struct Arrival {
    /// Of each scope in the export, its place here; none if nobody holds it.
    places: Vec<Option<u32>>,
    /// Of each scope in the export, the dimensions whose bucket is the one that was exported.
    kept: Vec<[bool; 4]>,
}

impl Arrival {
    /// A reservation's path and what it debited, as they are called here.
    pub(in super::super) fn translate(
        &self,
        path: &Path,
        debited: Debited,
    ) -> Result<(Path, Debited), Unsound> {
        let (mut here, mut still) = (Path::default(), Debited::default());
        for (step, listed) in path.iter().enumerate() {
            let Some(listed) = *listed else { continue };
            let place = self.places.get(listed as usize).copied().flatten().ok_or(Unsound::Astray)?;
            if here.contains(&Some(place)) {
                return Err(Unsound::Twice);
            }
            here[step] = Some(place);
            for dimension in Dimension::ALL {
                if self.kept[listed as usize][dimension.index()] {
                    still |= debited & bit(step, dimension);
                }
            }
        }
        Ok((here, still))
    }
}

impl TenantState {
    /// Its scopes in the order of their places, so that a place is a place in the list.
    pub(in super::super) fn export(&mut self, name: Name, now: Moment) -> ExportedTenant {
        let rules = self.rules.clone();
        let mut scopes: Vec<ExportedScope> = Vec::with_capacity(self.slots.len());
        let holders = self.holders();
        for (slot, holder) in self.slots.iter_mut().zip(holders) {
            let buckets = slot.buckets.iter_mut().map(|held| {
                held.bucket.refill(held.rate, now);
                let (level, carry) = held.bucket.contents();
                ExportedBucket { dimension: held.dimension, rate: held.rate, level, carry, came_back: false }
            });
            scopes.push(ExportedScope { scope: slot.scope.clone(), holder, buckets: buckets.collect() });
        }
        for ExportedScope { scope, buckets, .. } in &mut scopes {
            for bucket in buckets {
                let limit = rules.limit(scope, bucket.dimension);
                bucket.came_back = limit.is_some_and(|limit| limit.start != Start::Full);
            }
        }
        ExportedTenant { name, scopes }
    }

    /// What a reservation debited, less what has gone since.
    pub(in super::super) fn still_debited(&self, path: &Path, debited: Debited, version: u64) -> Debited {
        let mut still = Debited::default();
        for (step, place) in path.iter().enumerate() {
            let Some(place) = place else { continue };
            for held in self.slots[*place as usize].buckets.iter().filter(|held| held.since <= version) {
                still |= debited & bit(step, held.dimension);
            }
        }
        still
    }

    /// The state of a tenant that arrived, under the rules of here; none when they do not name it.
    pub(in super::super) fn import(
        exported: &ExportedTenant,
        rules: Option<&Arc<TenantRules>>,
        version: u64,
        now: Moment,
        cold: Option<&Cold>,
    ) -> Result<(Self, Arrival), Unsound> {
        let unlimited = Arc::new(TenantRules::unlimited());
        let mut state = Self::new(rules.unwrap_or(&unlimited), version, now, cold);
        state.in_force = rules.is_some();
        let mut places: HashMap<Scope, (u32, bool)> = HashMap::new();
        for (slot, place) in state.slots.iter().zip(0..) {
            places.insert(slot.scope.clone(), (place, false));
        }
        let mut arrival = Arrival { places: Vec::new(), kept: Vec::new() };
        for ExportedScope { scope, holder, buckets } in &exported.scopes {
            let place = match holder {
                ExportedHolder::Scope => {
                    let next = u32::try_from(state.slots.len()).map_err(|_| Unsound::Astray)?;
                    let (place, seen) = places.entry(scope.clone()).or_insert((next, false));
                    if std::mem::replace(seen, true) {
                        return Err(Unsound::Twice);
                    }
                    if *place == next {
                        state.slots.push(Slot::empty(scope.clone(), Holder::Scope));
                    }
                    *place
                }
                ExportedHolder::User { .. } if *scope != Scope::User => return Err(Unsound::Astray),
                ExportedHolder::User { digest, beside } => {
                    state.seat_arrived(*digest, *beside, now, cold).ok_or(Unsound::Twice)?
                }
                ExportedHolder::Nobody => {
                    arrival.places.push(None);
                    arrival.kept.push([false; 4]);
                    continue;
                }
            };
            let mut kept = [false; 4];
            for bucket in buckets {
                if std::mem::replace(&mut kept[bucket.dimension.index()], true) {
                    return Err(Unsound::Twice);
                }
            }
            for bucket in buckets {
                kept[bucket.dimension.index()] = state.receive(place, bucket, now)?;
            }
            arrival.places.push(Some(place));
            arrival.kept.push(kept);
        }
        Ok((state, arrival))
    }

    /// Takes a bucket; whether there is one here that it is.
    fn receive(&mut self, place: u32, exported: &ExportedBucket, now: Moment) -> Result<bool, Unsound> {
        let ExportedBucket { dimension, rate, level, carry, came_back } = *exported;
        let mut bucket = Bucket::restored(rate, (level, carry), now).ok_or(Unsound::Bucket)?;
        let slot = &mut self.slots[place as usize];
        let Some(held) = slot.buckets.iter_mut().find(|held| held.dimension == dimension) else {
            return Ok(false);
        };
        let Some(limit) = self.rules.limit(&slot.scope, dimension) else { return Ok(false) };
        bucket.follow(rate, held.rate, now);
        held.bucket = match limit.start {
            Start::Full => bucket,
            Start::Undrawn(_) if !came_back => return Ok(false),
            Start::Undrawn(mut undrawn) => {
                undrawn.refill(held.rate, now);
                bucket.emptier(undrawn)
            }
        };
        if mutant::is("credit_before") {
            let mut later = held.bucket;
            later.refill(held.rate, now.plus(Span::from_secs(60)));
            held.bucket = Bucket::restored(held.rate, later.contents(), now).unwrap_or(held.bucket);
        }
        Ok(true)
    }

    /// A reservation that was debited elsewhere names the path, and if it is `open`, takes its slots.
    pub(in super::super) fn name(&mut self, path: &Path, open: bool) {
        self.open += u32::from(open);
        for place in path.iter().flatten() {
            let slot = &mut self.slots[*place as usize];
            slot.inflight += u32::from(open);
            slot.named += 1;
        }
    }
}
