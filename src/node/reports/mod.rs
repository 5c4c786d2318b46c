//! What this gateway owes the budgets: how each reservation that they pay for has ended, told exactly once.
//!
//! A guard ends in an instant and waits for nothing, so ends are collected here. A task of the node ([`Reports::run`]) puts them into the
//! journal, and then reports them, batch by batch, to whatever is agreed on.
//!
//! In reading order: `numbers` (which reservations of a session are open), `collected` (pure: what waits, what is on its way),
//! `journal` (what outlives the process).
//!
//! Laws:
//! - nothing is reported before it is on disk; what is on disk and not acknowledged is reported by this life or by a later one, under the
//!   session that it was of (`nothing_lost`);
//! - one batch is on its way at a time, and until it is answered it is sent again as it is. Whatever is said twice counts once, by its
//!   number (`resolved_once`);
//! - a reservation's number is open until it has ended or nobody pays for it: then its number is void;
//! - everything is bounded: what finds no place is counted and said in the log, and its owner charges it at its estimate.
//!
//! Never here: what an end costs.

mod collected;
mod journal;
mod numbers;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tollgate_cluster::id::SessionId;
use tollgate_cluster::member::HostError;
use tollgate_cluster::store::{Shelf, ShelfError};

use self::collected::Collected;
pub use self::collected::{Ended, Stats};
use self::journal::Journal;
use crate::control::budget::{Batch, BudgetAnswer, BudgetRefusal};
use crate::limit::{Moment, ReservationId, Span};

/// How long ends are gathered before they are written: what a killed process loses, and its owners charge at the estimates.
const GATHER: Duration = Duration::from_millis(20);

/// How long after a report the next may be made, unless it is a full one: what ends meanwhile shares it.
const GAP: Span = Span::from_secs(1);

/// How long after it the next is made where what it frees is waited for.
const GAP_HURRIED: Span = Span::from_millis(250);

/// How long until something that failed is tried again.
const AGAIN: Duration = Duration::from_millis(250);

/// How long a full journal is left alone.
const ROOM: Duration = Duration::from_secs(1);

/// Who has reports agreed on.
#[async_trait]
pub trait Agree: Send + Sync {
    /// Has `batch` committed; what the budgets answered.
    ///
    /// # Errors
    /// It may or may not be committed.
    async fn settle(&self, batch: &Batch) -> Result<Result<BudgetAnswer, BudgetRefusal>, HostError>;

    /// The highest number of `gateway` below which everything is over, as far as it is known here.
    fn watermark(&self, gateway: SessionId) -> u64;

    /// The lease clock's reading.
    fn now(&self) -> Moment;
}

/// The number of a reservation that is asked for. Dropped, it is void, unless budgets pay for it.
#[must_use = "dropped, it is void"]
pub struct Number<'a> {
    reports: &'a Reports,
    id: ReservationId,
}

impl Number<'_> {
    /// The reservation's id, which no other has had.
    #[must_use]
    pub const fn id(&self) -> ReservationId {
        self.id
    }

    /// Budgets pay for it: whoever ends the reservation says how.
    pub fn keep(&self) {
        self.reports.lock().keep(self.id);
    }
}

impl Drop for Number<'_> {
    fn drop(&mut self) {
        self.reports.lock().let_go(self.id);
    }
}

/// See the module.
#[derive(Default)]
pub struct Reports {
    collected: Mutex<Collected>,
    /// Told when something has ended.
    wake: Notify,
    /// Told when something is to be reported.
    due: Notify,
}

impl Reports {
    /// Begins a reservation under `session`. Nobody pays for it until [`Number::keep`] says so.
    pub fn begin(&self, session: SessionId) -> Number<'_> {
        let id = self.lock().begin(session);
        Number { reports: self, id }
    }

    /// Begins it under `id`, if that was given out in `session` and nothing came of it; else under another.
    pub fn begin_as(&self, id: ReservationId, session: SessionId) -> Number<'_> {
        let again = self.lock().begin_again(id);
        if again { Number { reports: self, id } } else { self.begin(session) }
    }

    /// No budget pays for `id`: it was not admitted, costs none, or was cancelled. `charged`: budgets' purses were debited for it.
    pub fn void(&self, id: ReservationId, charged: bool) {
        self.lock().void(id, charged);
        if charged {
            self.due.notify_one();
        }
    }

    /// A reservation has ended that budgets pay for. `hurried`: one of them has little left, and may need what this frees.
    pub fn end(&self, id: ReservationId, charges: Vec<Ended>, hurried: bool) {
        let mut collected = self.lock();
        collected.end(id, charges);
        if hurried {
            collected.hurry();
        }
        drop(collected);
        self.wake.notify_one();
    }

    /// The next report goes sooner than others: somebody waits for it.
    pub fn hurry(&self) {
        self.lock().hurry();
    }

    /// What waits.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.lock().stats()
    }

    /// Whether nothing waits to be told.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.lock().is_told()
    }

    /// Journals and reports what has ended, in this life and in those whose pieces stand on `shelf`, until `stopping`. What has not been
    /// acknowledged by then stands on the shelf.
    pub async fn run(&self, shelf: Shelf, agree: &dyn Agree, stopping: CancellationToken) {
        let journal = Journal::open(shelf);
        let watermark = |gateway| agree.watermark(gateway);
        let left = journal.left();
        let replayed = self.lock().replay(left, watermark);
        journal.cut(replayed.cut);
        if replayed.ends > 0 {
            tracing::info!(
                ends = replayed.ends,
                "ends of an earlier life are reported that were not acknowledged in it"
            );
        }
        tokio::join!(self.keep(&journal, &stopping), self.report(&journal, agree, &stopping));
        // What ended while the last was written.
        self.keep_all(&journal).await;
    }

    /// Puts into the journal what has ended.
    async fn keep(&self, journal: &Journal, stopping: &CancellationToken) {
        let mut pause = GATHER;
        loop {
            tokio::select! {
                () = stopping.cancelled() => return,
                () = self.wake.notified() => {}
                () = tokio::time::sleep(ROOM), if self.lock().has_fresh() => {}
            }
            tokio::time::sleep(pause).await;
            pause = if self.keep_all(journal).await { GATHER } else { ROOM };
        }
    }

    /// Whether all found a place.
    async fn keep_all(&self, journal: &Journal) -> bool {
        loop {
            let Some(batch) = self.lock().next_to_keep() else { return true };
            match journal.keep(&batch).await {
                Ok(piece) => {
                    self.lock().kept(piece, batch);
                    self.due.notify_one();
                }
                Err(problem) => {
                    let full = matches!(problem, ShelfError::Full { .. });
                    tracing::error!(%problem, ends = batch.ends.len(), "ends could not be written to the journal; they wait");
                    self.lock().not_kept(batch);
                    return !full;
                }
            }
        }
    }

    /// Reports what is in the journal.
    async fn report(&self, journal: &Journal, agree: &dyn Agree, stopping: &CancellationToken) {
        loop {
            let batch = self.lock().next_report(agree.now(), GAP, GAP_HURRIED);
            let Some(batch) = batch else {
                let idle = self.lock().is_idle();
                tokio::select! {
                    () = stopping.cancelled() => return,
                    () = self.due.notified(), if idle => continue,
                    () = tokio::time::sleep(GATHER), if !idle => continue,
                }
            };
            let answered = tokio::select! {
                () = stopping.cancelled() => return,
                answered = agree.settle(&batch) => answered,
            };
            match answered {
                Ok(answer) => {
                    if let Err(refusal) = &answer {
                        say_refused(&batch, *refusal);
                    }
                    let pieces = self.lock().answered(&answer);
                    journal.cut(pieces);
                }
                Err(problem) => {
                    tracing::debug!(%problem, "a report has no answer; it is made again");
                    self.lock().unanswered();
                    tokio::select! {
                        () = stopping.cancelled() => return,
                        () = tokio::time::sleep(AGAIN) => {}
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Collected> {
        // Nothing under this lock panics half-way.
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn say_refused(batch: &Batch, refusal: BudgetRefusal) {
    let (first, last) = (batch.ends.first(), batch.ends.last());
    tracing::error!(
        gateway = %batch.gateway, %refusal, ends = batch.ends.len(),
        first = first.map_or(0, |end| end.number), last = last.map_or(0, |end| end.number),
        "usage can not be reported any more: these reservations are charged at their estimates"
    );
}
