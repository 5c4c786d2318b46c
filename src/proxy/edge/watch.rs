//! How long a connection may leave us waiting, and what is done when it does.
//!
//! One record per connection, written by its socket, its requests and its answers; one timer, that of the earliest of its deadlines.
//! The timer is looked at whenever the connection's task runs, so a deadline that comes nearer needs no waking.
//!
//! | waiting for | bound | then |
//! |---|---|---|
//! | a first byte | `first_byte_timeout` | closed |
//! | the rest of a head | `header_timeout`, from its first byte | 408 in its turn, closed |
//! | the next request | `idle_timeout` | closed; over HTTP/2 told by GOAWAY first |
//! | a caller that takes less than it should of what is sent | `reading_timeout`, at [`SLOWEST_READER`] | closed |
//! | a caller that leaves a stream's window shut | `reading_timeout` | the answer is given up, and a connection of nothing else closed |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::head::Refusal;
use super::held::Held;

/// Bytes a second below which a caller that keeps the socket full is not reading.
const SLOWEST_READER: u64 = 500;
/// How often a multiplexed connection's answers are looked at within the time that one may lie unread.
const LOOKS: u32 = 8;
/// How long a connection may take to end once it was told to.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Bounds on waiting.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// From the connection's start to its first byte.
    pub first_byte: Duration,
    /// From a head's first byte to its last.
    pub header: Duration,
    /// Without a request.
    pub idle: Duration,
    /// With something to read, unread.
    pub reading: Duration,
}

/// One connection's waiting.
pub struct Watch {
    times: Times,
    state: Mutex<State>,
}

struct State {
    /// When the head that is arriving began.
    head_since: Option<Instant>,
    spoken: bool,
    multiplexed: bool,
    /// Requests whose answers have not ended, and since when there have been none.
    in_flight: usize,
    quiet_since: Instant,
    unread: Option<Unread>,
    /// The head is late: the socket's next reader refuses it.
    late: bool,
    refusal: Option<Refusal>,
    closing_since: Option<Instant>,
    flooded: bool,
    /// The answers that go out over a multiplexed connection, and when they were last looked at: now and then, not with every poll,
    /// since they may be a thousand.
    held: Vec<Arc<Held>>,
    looked_at: Instant,
}

/// What a caller has left unread so far.
struct Unread {
    since: Instant,
    taken: u64,
    full: bool,
}

/// What a passed deadline asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing after all.
    Nothing,
    /// Poll the connection: its reader has something to say.
    Poll,
    /// Tell the caller that the connection ends.
    Close,
    /// End it: why.
    Cut(&'static str),
}

impl Watch {
    /// A connection that was just made.
    pub fn new(times: Times, now: Instant) -> Self {
        let state = State {
            head_since: None,
            spoken: false,
            multiplexed: false,
            in_flight: 0,
            quiet_since: now,
            unread: None,
            late: false,
            refusal: None,
            closing_since: None,
            flooded: false,
            held: Vec::new(),
            looked_at: now,
        };
        Self { times, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first byte of a head has come.
    pub fn head_begins(&self, now: Instant) {
        let mut state = self.state();
        state.spoken = true;
        state.head_since = Some(now);
    }

    /// A head is whole, or refused.
    pub fn head_ends(&self, now: Instant) {
        let mut state = self.state();
        state.head_since = None;
        state.quiet_since = now;
    }

    /// The connection speaks HTTP/2.
    pub fn is_multiplexed(&self, now: Instant) {
        self.head_ends(now);
        self.state().multiplexed = true;
    }

    /// It was sent more idle frames than it lets through.
    pub fn is_flooded(&self) {
        self.state().flooded = true;
    }

    /// Why it was broken off, if that was its caller's doing.
    pub fn broken_off(&self) -> Option<&'static str> {
        self.state().flooded.then_some("flood")
    }

    /// Whether the head that is arriving is to be refused for being late.
    pub fn is_late(&self) -> bool {
        self.state().late
    }

    /// The next request that the library hands on stands for a head that was refused.
    pub fn refuse(&self, refusal: Refusal) {
        self.state().refusal = Some(refusal);
    }

    /// What the request that stands for a refused head was refused for.
    pub fn take_refusal(&self) -> Option<Refusal> {
        self.state().refusal.take()
    }

    /// The socket took this much of what is sent.
    pub fn taken(&self, bytes: usize) {
        if let Some(unread) = &mut self.state().unread {
            unread.taken += bytes as u64;
            unread.full = false;
        }
    }

    /// The socket takes no more for now.
    pub fn full(&self, now: Instant) {
        self.state().unread.get_or_insert(Unread { since: now, taken: 0, full: true }).full = true;
    }

    /// A request has begun.
    pub fn begins(&self) {
        self.state().in_flight += 1;
    }

    /// Its answer has ended, or was given up.
    pub fn ends(&self, now: Instant) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.quiet_since = now;
    }

    /// Watches an answer, if the connection has many: on its own, an answer is watched with its socket. Whether it does.
    pub fn hold(&self, held: &Arc<Held>) -> bool {
        let mut state = self.state();
        if state.multiplexed {
            state.held.push(held.clone());
        }
        state.multiplexed
    }

    /// No longer watches it.
    pub fn let_go(&self, held: &Arc<Held>) {
        self.state().held.retain(|other| !Arc::ptr_eq(other, held));
    }

    /// When to look again at the latest.
    pub fn due(&self) -> Option<Instant> {
        let state = self.state();
        if let Some(since) = state.closing_since {
            return Some(since + LAST_WORDS);
        }
        let head = state.head_since.filter(|_| !state.late).map(|since| since + self.times.header);
        let quiet = (state.in_flight == 0 && head.is_none())
            .then(|| state.quiet_since + if state.spoken { self.times.idle } else { self.times.first_byte });
        let unread = state.unread.as_ref().map(|unread| unread.since + self.times.reading);
        let held = (!state.held.is_empty()).then(|| state.looked_at + self.times.reading / LOOKS);
        [head, quiet, unread, held].into_iter().flatten().min()
    }

    /// What is to be done now.
    pub fn act(&self, now: Instant) -> Act {
        let mut state = self.state();
        let past = |since: Instant, bound: Duration| now >= since + bound;
        if let Some(since) = state.closing_since {
            return if past(since, LAST_WORDS) { Act::Cut("idle") } else { Act::Nothing };
        }
        if let Some(since) = state.head_since {
            if !state.late && past(since, self.times.header) {
                state.late = true;
                return Act::Poll;
            }
        } else if state.in_flight == 0 {
            if !state.spoken && past(state.quiet_since, self.times.first_byte) {
                return Act::Cut("silent");
            }
            if state.spoken && past(state.quiet_since, self.times.idle) {
                if !state.multiplexed {
                    return Act::Cut("idle");
                }
                state.closing_since = Some(now);
                return Act::Close;
            }
        }
        if let Some(unread) = &mut state.unread
            && past(unread.since, self.times.reading)
        {
            let elapsed = u64::try_from(now.saturating_duration_since(unread.since).as_millis());
            let least = SLOWEST_READER.saturating_mul(elapsed.unwrap_or(u64::MAX)) / 1_000;
            if unread.full && unread.taken < least {
                return Act::Cut("unread");
            }
            // Another round, if it is still full.
            state.unread = unread.full.then_some(Unread { since: now, taken: 0, full: true });
        }
        if state.held.is_empty() || !past(state.looked_at, self.times.reading / LOOKS) {
            return Act::Nothing;
        }
        state.looked_at = now;
        let unread: Vec<Arc<Held>> =
            state.held.iter().filter(|held| held.is_unread(now, self.times.reading)).cloned().collect();
        // What was given up stays with the library until its window opens. Where nothing else is asked meanwhile, nobody is there.
        let abandoned = !unread.is_empty()
            && state.held.iter().all(|held| held.is_given_up())
            && past(state.quiet_since, self.times.reading);
        drop(state);
        // Each may end a reservation: not under the connection's lock.
        for held in &unread {
            held.give_up(now);
        }
        if abandoned { Act::Cut("unread") } else { Act::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::timer_now;

    const TIMES: Times = Times {
        first_byte: Duration::from_secs(5),
        header: Duration::from_secs(10),
        idle: Duration::from_secs(60),
        reading: Duration::from_secs(60),
    };

    fn after(watch: &Watch, seconds: u64) -> Act {
        watch.act(timer_now() + Duration::from_secs(seconds))
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_cut_and_who_asks_is_not() {
        let watch = Watch::new(TIMES, timer_now());
        assert_eq!(watch.due(), Some(timer_now() + TIMES.first_byte));
        assert_eq!((after(&watch, 4), after(&watch, 5)), (Act::Nothing, Act::Cut("silent")));
        watch.head_begins(timer_now());
        assert_eq!(watch.due(), Some(timer_now() + TIMES.header));
        assert_eq!((after(&watch, 9), after(&watch, 10)), (Act::Nothing, Act::Poll));
        assert!(watch.is_late());
        watch.head_ends(timer_now());
        watch.begins();
        assert_eq!((watch.due(), after(&watch, 600)), (None, Act::Nothing));
        watch.ends(timer_now());
        assert_eq!((after(&watch, 59), after(&watch, 60)), (Act::Nothing, Act::Cut("idle")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_multiplexed_connection_is_told_before_it_is_cut() {
        let watch = Watch::new(TIMES, timer_now());
        watch.head_begins(timer_now());
        watch.is_multiplexed(timer_now());
        assert_eq!((after(&watch, 60), after(&watch, 60)), (Act::Close, Act::Nothing));
        assert_eq!(after(&watch, 61), Act::Cut("idle"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_is_cut_for_being_slow_and_not_for_being_slower_than_us() {
        let watch = Watch::new(TIMES, timer_now());
        watch.head_begins(timer_now());
        watch.head_ends(timer_now());
        watch.begins();
        watch.full(timer_now());
        watch.taken(100);
        watch.full(timer_now());
        assert_eq!((after(&watch, 59), after(&watch, 60)), (Act::Nothing, Act::Cut("unread")));
        watch.taken(40_000);
        watch.full(timer_now());
        assert_eq!(after(&watch, 60), Act::Nothing);
        watch.taken(1);
        assert_eq!(after(&watch, 3_600), Act::Nothing, "it took all there was");
        assert_eq!(watch.due(), None);
    }
}
