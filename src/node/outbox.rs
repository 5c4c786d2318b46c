//! Ends of reservations on their way to an owner on another node.
//!
//! A guard ends in an instant and must not wait, so what its owner has to be told waits here: for the holder of the day, again and
//! again with the same id, until that acknowledges it or the reservation is past its deadline.
//!
//! Laws:
//! - whatever is taken out to be sent comes back unless it was acknowledged, whoever drops it on the way;
//! - a request to a shard takes along what waits for it, so that it finds the refunds of what ended before it;
//! - a session that did not acknowledge is asked again after a pause that grows, and what waits for other shards goes before; another
//!   session that holds the shard is asked at once;
//! - one task sends what no request takes along, one message at a time to each node, so a node that is gone holds up only its own.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tollgate_cluster::id::{SessionId, ShardId};

use super::open::Open;
use super::owners::shard_of;
use super::wire::{End, Of, RefusalCode};
use crate::limit::{Moment, Resolved, Span};

/// The most ends that wait: as many as reservations may be open, and a cancel or two for each.
const MOST: usize = 2 * super::open::MOST;
/// The most ends in one message.
pub(super) const AT_ONCE: usize = 64;
/// The pause after the first try that came to nothing, in milliseconds; each further one doubles it.
const PAUSE: u64 = 10;
/// The longest pause: half a second beside a slot that stays taken is little, and two messages a second harm nobody.
const PAUSE_MAX: u64 = 500;

/// What waits.
#[derive(Default)]
pub struct Outbox {
    waiting: Mutex<Waiting>,
    /// Told when something new waits.
    pub(super) wake: Notify,
}

#[derive(Default)]
struct Waiting {
    shards: BTreeMap<ShardId, VecDeque<Entry>>,
    /// Those on their way among them.
    len: usize,
}

struct Entry {
    end: End,
    posted: Moment,
    give_up: Moment,
    tries: u32,
    /// Who was asked last, and until when it is not asked again.
    asked: Option<Asked>,
}

#[derive(Clone, Copy)]
struct Asked {
    session: SessionId,
    again: Moment,
}

/// Ends that were taken out to be sent.
pub(super) struct Taken<'a> {
    outbox: &'a Outbox,
    entries: Vec<Entry>,
}

impl Outbox {
    /// Lets `end` wait from `now` until `give_up`. Whether there was room.
    #[must_use]
    pub(super) fn post(&self, end: End, now: Moment, give_up: Moment) -> bool {
        let mut waiting = self.lock();
        if waiting.len >= MOST {
            return false;
        }
        waiting.len += 1;
        let shard = shard_of(end.of.tenant());
        waiting.shards.entry(shard).or_default().push_back(Entry {
            end,
            posted: now,
            give_up,
            tries: 0,
            asked: None,
        });
        drop(waiting);
        self.wake.notify_one();
        true
    }

    /// Takes the first of what waits for `shards` out, in order.
    pub(super) fn take(&self, shards: impl IntoIterator<Item = ShardId>) -> Taken<'_> {
        let mut entries = Vec::new();
        let mut waiting = self.lock();
        for shard in shards {
            let Some(queue) = waiting.shards.get_mut(&shard) else { continue };
            let room = AT_ONCE - entries.len();
            entries.extend(queue.drain(..room.min(queue.len())));
            if queue.is_empty() {
                waiting.shards.remove(&shard);
            }
            if entries.len() == AT_ONCE {
                break;
            }
        }
        Taken { outbox: self, entries }
    }

    /// Drops what has waited too long; how many.
    pub(super) fn expire(&self, now: Moment, open: &Open) -> usize {
        let mut waiting = self.lock();
        let Waiting { shards, len } = &mut *waiting;
        let mut dropped = 0;
        shards.retain(|shard, queue| {
            // The oldest come first, but for one that came back from its way; that is found when it is first again.
            while let Some(entry) = queue.pop_front_if(|entry| entry.give_up <= now) {
                open.remove(*shard, entry.end.of.id());
                dropped += 1;
            }
            !queue.is_empty()
        });
        *len -= dropped;
        dropped
    }

    /// The shards for which something waits that may be sent at `now` to the session that `holder` says, in order.
    pub(super) fn due<H>(
        &self,
        now: Moment,
        holder: impl Fn(ShardId) -> Option<(SessionId, H)>,
    ) -> Vec<(ShardId, H)> {
        let waiting = self.lock();
        let due = |(&shard, queue): (&ShardId, &VecDeque<Entry>)| {
            let (session, holder) = holder(shard)?;
            let asked = queue.front()?.asked.filter(|asked| asked.session == session);
            asked.is_none_or(|asked| asked.again <= now).then_some((shard, holder))
        };
        waiting.shards.iter().filter_map(due).collect()
    }

    /// How long nothing that waits at `now` becomes due, `most` at most.
    pub(super) fn rest(&self, now: Moment, most: Span) -> Span {
        let waiting = self.lock();
        let asked = waiting.shards.values().filter_map(|queue| queue.front()?.asked);
        asked
            .filter(|asked| now < asked.again)
            .map(|asked| asked.again.since(now))
            .min()
            .map_or(most, |rest| rest.min(most))
    }

    /// How many ends wait or are on their way.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().len
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken<'_> {
    /// Whether there is anything to send.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// As they are sent at `now`: how long each reservation has left is what it has left now, for by that an owner knows its age.
    pub(super) fn ends(&self, now: Moment) -> Vec<End> {
        let aged = |entry: &Entry| {
            let mut end = entry.end.clone();
            if let Of::Held(open) = &mut end.of {
                let waited = now.since(entry.posted).as_nanos();
                open.remaining = Span::from_nanos(open.remaining.as_nanos().saturating_sub(waited));
            }
            end
        };
        self.entries.iter().map(aged).collect()
    }

    /// Counts one more try of each, of `session` at `now`; how many were tried before.
    pub(super) fn trying(&mut self, session: SessionId, now: Moment) -> u64 {
        let again = self.entries.iter().filter(|entry| entry.tries > 0).count();
        let chance: u64 = rand::random_range(50..=100);
        for entry in &mut self.entries {
            let pause = PAUSE.saturating_mul(1 << entry.tries.min(16)).min(PAUSE_MAX) * chance / 100;
            entry.asked = Some(Asked { session, again: now.plus(Span::from_millis(pause)) });
            entry.tries = entry.tries.saturating_add(1);
        }
        again as u64
    }

    /// Forgets those that were acknowledged.
    pub(super) fn acknowledge(&mut self, answers: &[Result<Resolved, RefusalCode>], open: &Open) {
        if answers.len() != self.entries.len() {
            return;
        }
        let mut answers = answers.iter();
        let before = self.entries.len();
        self.entries.retain(|entry| {
            let acknowledged = answers.next().is_some_and(Result::is_ok);
            if acknowledged {
                open.remove(shard_of(entry.end.of.tenant()), entry.end.of.id());
            }
            !acknowledged
        });
        self.outbox.lock().len -= before - self.entries.len();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut waiting = self.outbox.lock();
        for entry in self.entries.drain(..).rev() {
            let shard = shard_of(entry.end.of.tenant());
            waiting.shards.entry(shard).or_default().push_front(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Name, ReservationId, Resolution};

    const HERE: SessionId = SessionId(1);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn end(tenant: &str, number: u64) -> End {
        let of = Of::Id { tenant: Name::from(tenant), id: ReservationId::new(1, number) };
        End { of, how: Resolution::Cancel }
    }

    /// Those of `outbox` that may be sent to `session` at `now`.
    fn due(outbox: &Outbox, now: Moment, session: SessionId) -> Vec<ShardId> {
        outbox.due(now, |_| Some((session, ()))).into_iter().map(|(shard, ())| shard).collect()
    }

    #[test]
    fn who_does_not_acknowledge_is_asked_less_and_less_often_and_another_at_once() {
        let outbox = Outbox::default();
        assert!(outbox.post(end("acme", 1), at(0), at(3_600_000)));
        let shard = shard_of("acme");
        let (mut now, mut tries) = (0, 0);
        while now < 10_000 {
            if due(&outbox, at(now), HERE) == [shard] {
                outbox.take([shard]).trying(HERE, at(now));
                tries += 1;
                assert_eq!(due(&outbox, at(now), HERE), []);
                assert_eq!(
                    due(&outbox, at(now), SessionId(2)),
                    [shard],
                    "another session has not been asked"
                );
            }
            now += 1;
        }
        // 10, 20, 40 … 320, then 500 ms, each between a half and the whole of it.
        assert!((22..=48).contains(&tries), "{tries} tries in ten seconds");
        assert!(outbox.rest(at(now), Span::from_millis(10_000)) <= Span::from_millis(500));
    }

    #[test]
    fn what_waits_for_a_shard_that_refuses_does_not_hold_up_another() {
        let outbox = Outbox::default();
        let names: Vec<String> = (0..20).map(|number| format!("t{number}")).collect();
        let (first, last) =
            (names.iter().min_by_key(|name| shard_of(name)), names.iter().max_by_key(|name| shard_of(name)));
        let (first, last) = (first.unwrap(), last.unwrap());
        for number in 0..2 * AT_ONCE as u64 {
            assert!(outbox.post(end(first, number), at(0), at(3_600_000)));
        }
        assert!(outbox.post(end(last, 1), at(0), at(3_600_000)));
        let both = due(&outbox, at(0), HERE);
        assert_eq!(both, [shard_of(first), shard_of(last)]);
        let mut taken = outbox.take(both);
        assert_eq!(taken.ends(at(0)).len(), AT_ONCE, "all of them of the first shard");
        taken.trying(HERE, at(0));
        drop(taken);
        assert_eq!(due(&outbox, at(1), HERE), [shard_of(last)]);
    }
}
