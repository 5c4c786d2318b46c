//! A limiter's way to another node and back into a limiter.
//!
//! Laws:
//! - at one instant and under the same rules, export and import change no answer;
//! - nothing is credited for the time on the way: buckets refill from the importer's own `now`;
//! - the importer never grants or refunds more than the exporter would have.
//!
//! What the last law takes, said here once. Versions of rules, lives of limits and instants of edits are counted by each node
//! for itself, and no export carries them. The importer has applied what the exporter had, and perhaps more. So a bucket is
//! matched by scope and dimension, and follows from the exporter's rate to the importer's as it does at an edit. Where the importer
//! knows that a limit went and came back and the exporter did not, it is another limit: it stands as its own rules say and takes
//! no refund. Where both know of it, the emptier of what was exported and what an undrawn bucket would hold counts. A limit that
//! the importer does not have is gone, and so is what it held.
//!
//! An export that cannot have been a limiter's state is refused whole.

use hashbrown::HashMap;

use super::super::cold::Cold;
use super::super::exported::{Exported, ExportedEnd, ExportedReservation, Unsound};
use super::super::tenant::{Arrival, TenantState};
use super::{
    Arc, Books, IdempotencyDigest, Limiter, Moment, Name, Options, Phase, Reservation, ReservationId, Rules,
    Span,
};

/// No sum of what a cluster admits comes near it, and seven of them still add up.
const BOOKS_MOST: u128 = 1 << 120;

impl Limiter {
    /// All live state as of `now`.
    #[must_use]
    pub fn export(mut self, now: Moment) -> Exported {
        let now = self.read(now);
        // In the order of their names: that of a hash map differs from process to process.
        let mut tenants: Vec<(Name, TenantState)> = self.tenants.drain().collect();
        tenants.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let mut exported = Exported {
            cold: self.cold.map(|cold| cold.age(now)),
            tenants: Vec::with_capacity(tenants.len()),
            held: Vec::with_capacity(self.deadlines.len()),
            expired: Vec::new(),
            over: Vec::with_capacity(self.over.len()),
            keys: Vec::new(),
            books: self.books,
        };
        for (name, mut tenant) in tenants {
            tenant.follow(&self.rules, &name);
            exported.tenants.push(tenant.export(name.clone(), now));
            self.tenants.insert(name, tenant);
        }
        for (at, id) in std::mem::take(&mut self.deadlines) {
            exported.held.extend(self.take(id).map(|reservation| (at.since(now), reservation)));
        }
        for (at, id) in std::mem::take(&mut self.expired) {
            if self.reservations.get(&id).is_some_and(|reservation| reservation.phase == Phase::Expired) {
                exported.expired.extend(self.take(id).map(|reservation| (at.since(now), reservation)));
            } else {
                exported.over.extend(self.take_end(id).map(|end| (at.since(now), end)));
            }
        }
        for (at, id) in std::mem::take(&mut self.over) {
            exported.over.extend(self.take_end(id).map(|end| (at.since(now), end)));
        }
        exported.over.sort_by_key(|(remaining, _)| *remaining);
        let keys = std::mem::take(&mut self.idempotency_over).into_iter();
        let taken = keys.filter(|(_, (digest, id))| self.idempotency.get(digest) == Some(id));
        exported.keys = taken.map(|(at, (digest, id))| (at.since(now), digest, id)).collect();
        exported
    }

    fn take(&mut self, id: ReservationId) -> Option<ExportedReservation> {
        let reservation = self.reservations.remove(&id)?;
        let tenant = self.tenants.get(&reservation.tenant);
        let Reservation { path, held, debited, version, .. } = reservation;
        Some(ExportedReservation {
            id,
            path,
            held,
            debited: tenant.map_or(0, |tenant| tenant.still_debited(&path, debited, version)),
            tenant: reservation.tenant,
            shadowed: reservation.shadowed,
            idempotency: reservation.idempotency,
            attempts: reservation.attempts,
            paid: reservation.paid,
        })
    }

    fn take_end(&mut self, id: ReservationId) -> Option<ExportedEnd> {
        let Reservation { phase, shadowed, .. } = self.reservations.remove(&id)?;
        Some(ExportedEnd { id, cancelled: phase == Phase::Cancelled, shadowed })
    }

    /// The limiter that `exported` was, on this node's clock and under its rules.
    ///
    /// # Errors
    ///
    /// [`Unsound`]: no limiter can have been so. Whoever imports begins cold instead.
    pub fn import(
        now: Moment,
        options: Options,
        rules: Arc<Rules>,
        exported: Exported,
    ) -> Result<Self, Unsound> {
        let mut limiter = Self::first(options, rules);
        limiter.now = now;
        limiter.cold = exported.cold.map(|age| Cold::new(now, age, limiter.rules.version()));
        let mut arrivals: HashMap<Name, Arrival> = HashMap::new();
        let mut names = Vec::with_capacity(exported.tenants.len());
        for tenant in exported.tenants {
            let rules = limiter.rules.tenant(&tenant.name);
            let (state, arrival) =
                TenantState::import(&tenant, rules, limiter.rules.version(), now, limiter.cold.as_ref())?;
            limiter.users += state.users_held();
            limiter.tenants.insert(tenant.name.clone(), state);
            names.push(tenant.name.clone());
            if arrivals.insert(tenant.name, arrival).is_some() {
                return Err(Unsound::Twice);
            }
        }

        let (mut open, mut expired) = (0, 0);
        for (remaining, reservation) in exported.held {
            let deadline = now.plus(remaining);
            limiter.deadlines.insert((deadline, reservation.id));
            if let Some(digest) = reservation.idempotency {
                limiter.idempotency.insert(digest, reservation.id);
            }
            open += limiter.arrive(reservation, Phase::Held { deadline }, &arrivals)?;
        }
        let mut kept: Vec<(Span, ReservationId)> = Vec::with_capacity(exported.expired.len());
        for (remaining, reservation) in exported.expired {
            kept.push((remaining, reservation.id));
            expired += limiter.arrive(reservation, Phase::Expired, &arrivals)?;
        }
        let mut over: Vec<(Span, ReservationId)> = Vec::with_capacity(exported.over.len());
        for (remaining, end) in exported.over {
            let phase = if end.cancelled { Phase::Cancelled } else { Phase::Over };
            limiter.insert_new(end.id, Reservation::ended(phase, end.shadowed))?;
            // Each queue has one length of memory, or a long one would keep the short ones behind it waiting.
            let queue = if remaining > options.remember { &mut kept } else { &mut over };
            queue.push((remaining, end.id));
        }
        for queue in [&mut kept, &mut over] {
            queue.sort_by_key(|(remaining, _)| *remaining);
        }
        limiter.expired = kept.into_iter().map(|(remaining, id)| (now.plus(remaining), id)).collect();
        limiter.over = over.into_iter().map(|(remaining, id)| (now.plus(remaining), id)).collect();
        limiter.import_keys(now, exported.keys);
        limiter.books = sound(exported.books, open, expired)?;
        for name in names {
            limiter.watch_for_idleness(now, &name);
        }
        limiter.assert_invariants();
        Ok(limiter)
    }

    /// Enters a reservation that holds its path; what it holds in total tokens.
    fn arrive(
        &mut self,
        exported: ExportedReservation,
        phase: Phase,
        arrivals: &HashMap<Name, Arrival>,
    ) -> Result<u128, Unsound> {
        let ExportedReservation { id, tenant, path, held, debited, shadowed, idempotency, attempts, paid } =
            exported;
        let held_tokens = if shadowed.is_some() { 0 } else { u128::from(held.total) };
        let open = matches!(phase, Phase::Held { .. });
        let (path, debited) = match (arrivals.get(&tenant), self.tenants.get_mut(&tenant)) {
            (Some(arrival), Some(state)) => {
                let (path, debited) = arrival.translate(&path, debited)?;
                state.name(&path, open);
                (path, debited)
            }
            // One that was let through in shadow names nothing, and its tenant may be forgotten before it is.
            _ if !open && path.iter().all(Option::is_none) => (path, 0),
            _ => return Err(Unsound::Astray),
        };
        let version = self.rules.version();
        let reservation = Reservation {
            tenant,
            path,
            held,
            debited,
            shadowed,
            version,
            idempotency,
            phase,
            adopted: false,
            attempts,
            paid,
        };
        self.insert_new(id, reservation)?;
        Ok(held_tokens)
    }

    fn insert_new(&mut self, id: ReservationId, reservation: Reservation) -> Result<(), Unsound> {
        match self.reservations.insert(id, reservation) {
            None => Ok(()),
            Some(_) => Err(Unsound::Twice),
        }
    }

    fn import_keys(&mut self, now: Moment, mut keys: Vec<(Span, IdempotencyDigest, ReservationId)>) {
        keys.sort_by_key(|(remaining, ..)| *remaining);
        for (remaining, digest, id) in keys {
            self.idempotency.insert(digest, id);
            self.idempotency_over.push_back((now.plus(remaining), (digest, id)));
        }
    }
}

fn sound(books: Books, open: u128, expired: u128) -> Result<Books, Unsound> {
    let Books { reserved, refunded, overage, settled, closed, abandoned, open: held } = books;
    let bounded =
        [reserved, refunded, overage, settled, closed, abandoned, held].iter().all(|x| *x < BOOKS_MOST);
    if bounded && books.balance() && held == open && expired <= closed {
        Ok(books)
    } else {
        Err(Unsound::Books)
    }
}
