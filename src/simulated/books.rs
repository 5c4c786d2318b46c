//! The provider's books: what it billed, request by request, and their sums.
//!
//! Laws:
//! - Every inference request ends in exactly one [`Row`], written when its [`Visit`] is dropped, whatever the reason.
//! - `requests = completed + aborted + failed + refused + refused_ceiling + inflight`.
//! - The tokens of the rows add up to those of the [`Stats`], while no row has been dropped.
//! - Refused requests bill nothing; all others bill their input, and of their output what had been sent.
//! - Rows are bounded by [`MAX_ROWS`], the oldest go first, and `rows_dropped` says how many went.
//!
//! Credentials never come near them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::window::{Ceilings, OverCeiling, Window};

/// The most rows kept: some 150 MB of memory at worst, and an hour at 280 requests a second.
pub const MAX_ROWS: usize = 1_000_000;

/// The most `fail_first` groups remembered.
const MAX_GROUPS: usize = 100_000;

/// The sums, as `GET /stats` shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Inference requests that arrived.
    pub requests: u64,
    /// Answered to the end.
    pub completed: u64,
    /// The caller left before the end.
    pub aborted: u64,
    /// Refused by the provider: a bad request, no credential, or a status asked for with `x-sim`.
    pub refused: u64,
    /// Refused by a ceiling.
    pub refused_ceiling: u64,
    /// Broken off by the provider after the answer had begun.
    pub failed: u64,
    /// Arrived and not over.
    pub inflight: u64,
    /// Input tokens billed.
    pub input_tokens: u64,
    /// Output tokens billed.
    pub output_tokens: u64,
    /// The most tokens that any 60 s admitted, by arrival, aborted ones corrected.
    pub busiest_minute_tokens: u64,
    /// Rows that `GET /requests` no longer has.
    pub rows_dropped: u64,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Answered to the end.
    Completed,
    /// The caller left before the end.
    Aborted,
    /// Refused: a bad request, no credential, or a status asked for.
    Refused,
    /// Refused by a ceiling.
    RefusedCeiling,
    /// Broken off by the provider after the answer had begun.
    Failed,
}

/// A request that is over, as `GET /requests` lists it. Times are in milliseconds since the books were opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The request id that the answer carried.
    pub id: String,
    /// The caller's own id for it, from `x-tollgate-decision`.
    pub decision: Option<String>,
    /// The model asked for; empty if the request was refused before it was read.
    pub model: String,
    /// How it ended.
    pub outcome: Outcome,
    /// The whole prompt, cached parts included.
    pub input_tokens: u64,
    /// All choices together, reasoning included.
    pub output_tokens: u64,
    /// Of the input, read from the cache.
    pub cache_read_tokens: u64,
    /// Of the input, written to the cache.
    pub cache_write_tokens: u64,
    /// When its head had arrived.
    pub arrived_ms: u64,
    /// When it was counted against the minute; `None` if it was refused.
    pub admitted_ms: Option<u64>,
    /// When its last byte was handed to the connection, or when it broke.
    pub ended_ms: u64,
}

/// What a request costs, known before it is served: the simulated provider decides its output beforehand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bill {
    /// The whole prompt.
    pub input: u64,
    /// All choices together.
    pub output: u64,
    /// Of the input, cache reads.
    pub cache_read: u64,
    /// Of the input, cache writes.
    pub cache_write: u64,
}

/// The books of one run. Opening new ones is how they are reset: requests still open then end in the old ones.
#[derive(Debug)]
pub struct Books {
    ceilings: Ceilings,
    /// Tells the ids of this run from those of the last.
    run: u32,
    opened: Instant,
    ledger: Mutex<Ledger>,
}

#[derive(Debug)]
struct Ledger {
    stats: Stats,
    window: Window,
    rows: VecDeque<Row>,
    groups: HashMap<String, u64>,
}

/// What is left of the minute, for the limit headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The ceilings in force.
    pub ceilings: Ceilings,
    /// Tokens in the last 60 s.
    pub used_tokens: u64,
    /// Requests in the last 60 s.
    pub used_requests: u64,
}

impl Books {
    /// Opens empty books.
    #[must_use]
    pub fn open(ceilings: Ceilings) -> Self {
        let ledger = Ledger {
            stats: Stats::default(),
            window: Window::new(ceilings),
            rows: VecDeque::new(),
            groups: HashMap::new(),
        };
        Self { ceilings, run: rand::random(), opened: Instant::now(), ledger: Mutex::new(ledger) }
    }

    /// Enters a request whose head has arrived.
    #[must_use]
    pub fn arrive(self: &Arc<Self>, decision: Option<String>) -> Visit {
        let mut ledger = self.ledger();
        ledger.stats.requests += 1;
        ledger.stats.inflight += 1;
        let id = format!("req_{:08x}{:012x}", self.run, ledger.stats.requests);
        drop(ledger);
        let arrived_ms = self.elapsed_ms();
        Visit {
            books: Arc::clone(self),
            row: Row {
                id,
                decision,
                model: String::new(),
                outcome: Outcome::Aborted,
                input_tokens: 0,
                output_tokens: 0,
                cache_read_tokens: 0,
                cache_write_tokens: 0,
                arrived_ms,
                admitted_ms: None,
                ended_ms: arrived_ms,
            },
            judged: 0,
        }
    }

    /// The sums now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let ledger = self.ledger();
        Stats { busiest_minute_tokens: ledger.window.busiest(), ..ledger.stats.clone() }
    }

    /// At most `most` rows in the order in which they ended, from the `from`-th of the run on, and the number to go on from;
    /// `None` after the last.
    #[must_use]
    pub fn rows(&self, from: u64, most: usize) -> Option<(Vec<Row>, u64)> {
        let ledger = self.ledger();
        let dropped = ledger.stats.rows_dropped;
        let start = from.max(dropped);
        let skip = usize::try_from(start - dropped).unwrap_or(usize::MAX).min(ledger.rows.len());
        let rows: Vec<Row> = ledger.rows.range(skip..).take(most).cloned().collect();
        let next = start + rows.len() as u64;
        (!rows.is_empty()).then_some((rows, next))
    }

    /// What is left of the minute.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let (used_tokens, used_requests) = self.ledger().window.used(self.elapsed_ms());
        Standing { ceilings: self.ceilings, used_tokens, used_requests }
    }

    /// Whether this request of the group `key` is one of the first `times`. Groups beyond the most that are remembered
    /// are never failed.
    #[must_use]
    pub fn fails_first(&self, key: &str, times: u64) -> bool {
        let mut ledger = self.ledger();
        if let Some(seen) = ledger.groups.get_mut(key) {
            *seen += 1;
            return *seen <= times;
        }
        if ledger.groups.len() == MAX_GROUPS {
            return false;
        }
        ledger.groups.insert(key.to_owned(), 1);
        times > 0
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // A panic while the lock was held is an assertion that failed in one request; the others go on.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request in flight. Dropping it writes its row: as aborted, unless it has been told otherwise.
#[derive(Debug)]
pub struct Visit {
    books: Arc<Books>,
    row: Row,
    /// What it was counted with against the minute.
    judged: u64,
}

impl Visit {
    /// The request id that the answer carries.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.row.id
    }

    /// The part of the id that the ids of answers share.
    #[must_use]
    pub fn id_suffix(&self) -> &str {
        self.row.id.trim_start_matches("req_")
    }

    /// The books it is entered in.
    #[must_use]
    pub fn books(&self) -> &Books {
        &self.books
    }

    /// Notes the model asked for.
    pub fn name_model(&mut self, model: &str) {
        model.clone_into(&mut self.row.model);
    }

    /// Judges the request by the ceilings and, if it fits, bills its input.
    ///
    /// # Errors
    /// The ceiling that refuses it; nothing is billed then.
    pub fn admit(&mut self, bill: Bill) -> Result<(), OverCeiling> {
        assert!(self.row.admitted_ms.is_none(), "a request is admitted once");
        let judged = bill.input + bill.output;
        let now_ms = self.books.elapsed_ms();
        let admitted_ms = self.books.ledger().window.admit(now_ms, judged)?;
        self.row.admitted_ms = Some(admitted_ms);
        self.judged = judged;
        self.row.input_tokens = bill.input;
        self.row.cache_read_tokens = bill.cache_read;
        self.row.cache_write_tokens = bill.cache_write;
        Ok(())
    }

    /// Bills output that has been handed to the connection.
    pub fn sent(&mut self, tokens: u64) {
        debug_assert!(self.row.admitted_ms.is_some(), "only an admitted request has output");
        self.row.output_tokens += tokens;
    }

    /// Ends the request in this way.
    pub fn end(mut self, outcome: Outcome) {
        self.row.outcome = outcome;
    }

    /// Milliseconds since it arrived.
    #[must_use]
    pub fn elapsed_ms(&self) -> u64 {
        self.books.elapsed_ms() - self.row.arrived_ms
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let mut row = Row {
            id: std::mem::take(&mut self.row.id),
            decision: self.row.decision.take(),
            model: std::mem::take(&mut self.row.model),
            ..self.row
        };
        row.ended_ms = self.books.elapsed_ms();

        let mut ledger = self.books.ledger();
        let Ledger { stats, window, rows, .. } = &mut *ledger;
        if let Some(admitted_ms) = row.admitted_ms {
            window.settle(admitted_ms, self.judged, row.input_tokens + row.output_tokens);
        }
        stats.inflight -= 1;
        *match row.outcome {
            Outcome::Completed => &mut stats.completed,
            Outcome::Aborted => &mut stats.aborted,
            Outcome::Refused => &mut stats.refused,
            Outcome::RefusedCeiling => &mut stats.refused_ceiling,
            Outcome::Failed => &mut stats.failed,
        } += 1;
        stats.input_tokens += row.input_tokens;
        stats.output_tokens += row.output_tokens;
        if rows.len() == MAX_ROWS {
            rows.pop_front();
            stats.rows_dropped += 1;
        }
        rows.push_back(row);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn books(tokens: u64) -> Arc<Books> {
        Arc::new(Books::open(Ceilings { tokens: Some(tokens), requests: None }))
    }

    fn bill(input: u64, output: u64) -> Bill {
        Bill { input, output, ..Bill::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_ceiling_slides_with_the_clock() {
        let books = books(100);
        let mut first = books.arrive(None);
        first.admit(bill(40, 40)).unwrap();
        first.sent(40);
        first.end(Outcome::Completed);

        tokio::time::advance(Duration::from_secs(59)).await;
        let mut early = books.arrive(None);
        assert_eq!(early.admit(bill(20, 1)).unwrap_err().fits_in_ms, Some(1_000));
        early.end(Outcome::RefusedCeiling);

        tokio::time::advance(Duration::from_secs(1)).await;
        let mut late = books.arrive(None);
        late.admit(bill(20, 1)).unwrap();
        drop(late);

        let stats = books.stats();
        assert_eq!((stats.completed, stats.aborted, stats.refused_ceiling), (1, 1, 1));
        assert_eq!((stats.input_tokens, stats.output_tokens, stats.busiest_minute_tokens), (60, 40, 80));
    }

    #[tokio::test(start_paused = true)]
    async fn an_aborted_request_bills_its_input_and_what_it_had_sent() {
        let books = books(100);
        let mut visit = books.arrive(Some("d-1".to_owned()));
        visit.name_model("gpt-5");
        visit.admit(bill(10, 50)).unwrap();
        visit.sent(3);
        tokio::time::advance(Duration::from_millis(7)).await;
        drop(visit);

        let (rows, next) = books.rows(0, 10).unwrap();
        assert_eq!(next, 1);
        let row = &rows[0];
        assert_eq!((row.outcome, row.input_tokens, row.output_tokens), (Outcome::Aborted, 10, 3));
        assert_eq!((row.arrived_ms, row.admitted_ms, row.ended_ms), (0, Some(0), 7));
        assert_eq!((row.model.as_str(), row.decision.as_deref()), ("gpt-5", Some("d-1")));
        assert_eq!(books.stats().busiest_minute_tokens, 13);
        assert_eq!(books.standing().used_tokens, 13);
    }

    #[tokio::test]
    async fn only_the_first_requests_of_a_group_fail() {
        let books = books(100);
        let fails: Vec<bool> = (0..4).map(|_| books.fails_first("a", 2)).collect();
        assert_eq!(fails, [true, true, false, false]);
        assert!(books.fails_first("b", 1));
        assert!(!books.fails_first("c", 0));
    }

    #[tokio::test]
    async fn the_oldest_rows_go_first_and_are_counted() {
        let books = books(u64::MAX);
        for _ in 0..MAX_ROWS + 3 {
            books.arrive(None).end(Outcome::Refused);
        }
        let stats = books.stats();
        assert_eq!((stats.requests, stats.refused, stats.rows_dropped), (1_000_003, 1_000_003, 3));
        let (rows, next) = books.rows(0, 2).unwrap();
        assert_eq!((rows.len(), next), (2, 5));
        assert!(rows[0].id.ends_with("000004"), "{}", rows[0].id);
        assert_eq!(books.rows(MAX_ROWS as u64 + 3, 2), None);
    }
}
