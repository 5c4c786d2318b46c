//! The usage ledger: each request that was admitted and has ended is one row, on the node that was asked, in files of its own.
//!
//! In reading order: [`row`] (what is kept of a request), `codec` (its bytes), [`segment`] (one file), [`store`]
//! (the folder of them), this page (who writes it, and when), [`exchange`] (what can be asked of it), [`rollup`] (sums).
//!
//! Laws:
//! - **Once.** A guard ends once, and so its row is noted once, by the node that was asked; nodes hold different rows.
//! - **Beside.** A request never waits for its row: it is put into a bounded queue, and a thread writes what has gathered in one
//!   write. What finds no room, or cannot be written, is counted by reason (`ledger_rows_dropped`) and said in the log.
//! - **A report.** It decides nothing. What must survive the machine is what limits and budgets rest on, and lies elsewhere: so a row is
//!   with the system within [`GATHER`] and on the disk within [`SYNC`]. A killed process loses what came within the first, a dead
//!   machine what came within the second; the next life finds that the last segment was not closed, cuts what is torn, and says so. To sync for each
//!   write would take the disk from the log that a cluster agrees by.
//!
//! Never here: a prompt, a user's name, a decision, HTTP.

pub mod codec;
pub mod exchange;
pub mod rollup;
pub mod row;
pub mod segment;
pub mod store;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use row::{Basis, Row};
pub use store::Keep;

use crate::limit::{Moment, Span};
use exchange::{Answer, Question};
use store::{Batch, Catalog, Store};

/// How long rows gather before they are written together: to wake a thread for each would cost the request that did it microseconds.
pub const GATHER: Duration = Duration::from_millis(20);
/// How long a row may be with the system and not on the disk.
pub const SYNC: Duration = Duration::from_secs(1);
/// Rows that wait to be written: a second of a node's most, some 8 MiB.
const QUEUE: usize = 16_384;
/// Rows in one write: a mebibyte.
const BATCH: usize = 4_096;
/// How often what is due without a row is looked for.
const TICK: Duration = Duration::from_secs(30);
/// How long whoever reads waits for what is queued. Without it, rows of the last moment are missing.
const FLUSH: Duration = Duration::from_secs(2);

/// What a ledger is started with.
#[derive(Clone, Debug)]
pub struct LedgerOptions {
    /// Its folder, which is its own.
    pub folder: PathBuf,
    /// How much is kept.
    pub keep: Keep,
}

impl LedgerOptions {
    /// The ledger of a data folder.
    #[must_use]
    pub fn of_data(data: &Path) -> Self {
        Self { folder: data.join("usage"), keep: Keep::default() }
    }
}

/// A running ledger.
pub struct Ledger {
    queue: SyncSender<Message>,
    catalog: Arc<Catalog>,
    counts: Arc<Counts>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a ledger has counted since it was started.
#[derive(Debug, Default)]
pub struct Counts {
    /// Rows noted, whatever became of them.
    pub noted: AtomicU64,
    /// Rows written.
    pub written: AtomicU64,
    /// Rows for which the queue had no room, or that came too late.
    pub no_room: AtomicU64,
    /// Rows that could not be written.
    pub unwritten: AtomicU64,
    /// Segments removed since they were too old or too many.
    pub segments_removed: AtomicU64,
}

enum Message {
    Row(Box<Row>),
    /// Tell when everything before this is written.
    Flush(Sender<()>),
    Close,
}

impl Ledger {
    /// Opens the ledger in a folder, and mends what an earlier life left torn.
    ///
    /// # Errors
    /// The folder cannot be used, or another process uses it.
    pub fn open(options: LedgerOptions) -> io::Result<Arc<Self>> {
        let LedgerOptions { folder, keep } = options;
        let store = Store::open(&folder, keep, wall_ms()).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "the usage ledger in {}: {error} (--usage-ledger false keeps none)",
                    folder.display()
                ),
            )
        })?;
        let (queue, waiting) = sync_channel(QUEUE);
        let (catalog, counts) = (store.catalog().clone(), Arc::<Counts>::default());
        let writer = Writer {
            store,
            waiting,
            counts: counts.clone(),
            unsynced_since: None,
            ticked: crate::clock::now(),
            said: 0,
        };
        let thread =
            std::thread::Builder::new().name("usage-ledger".to_owned()).spawn(move || writer.run())?;
        Ok(Arc::new(Self { queue, catalog, counts, thread: Mutex::new(Some(thread)) }))
    }

    /// Notes a row. Never waits.
    pub fn note(&self, row: Row) {
        self.counts.noted.fetch_add(1, Ordering::Relaxed);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.queue.try_send(Message::Row(Box::new(row)))
        {
            self.counts.no_room.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What it has counted.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Segments, rows and bytes that can be read.
    #[must_use]
    pub fn totals(&self) -> (u64, u64, u64) {
        self.catalog.totals()
    }

    /// Answers a question, with every row that was noted before it. Reads files: not for a thread that others wait for.
    #[must_use]
    pub fn answer(&self, question: &Question) -> Answer {
        self.flush();
        exchange::answer(&self.catalog, question)
    }

    /// The same in bytes, for another node. Nothing comes of a question that cannot be read.
    #[must_use]
    pub fn answer_bytes(&self, question: &[u8]) -> Vec<u8> {
        let question = codec::read_question(question).ok();
        question.and_then(|question| codec::answer(&self.answer(&question))).unwrap_or_default()
    }

    fn flush(&self) {
        let (done, written) = channel();
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            // Whoever cannot wait any longer gets what is there.
            let _ = written.recv_timeout(FLUSH);
        }
    }

    /// Writes what was noted, closes the segment and stops. Rows that come later are dropped, and counted.
    pub fn close(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        if self.queue.send(Message::Close).is_ok() && thread.join().is_err() {
            tracing::error!("the writer of the usage ledger died");
        }
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { noted, written, no_room, unwritten, .. } = &*self.counts;
        let late = count(noted).saturating_sub(count(written) + count(no_room) + count(unwritten));
        if late > 0 {
            no_room.fetch_add(late, Ordering::Relaxed);
            tracing::error!(rows = late, "usage rows came when the ledger was being closed, and are lost");
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread that writes.
struct Writer {
    store: Store,
    waiting: Receiver<Message>,
    counts: Arc<Counts>,
    unsynced_since: Option<Moment>,
    /// When it was last tidied up.
    ticked: Moment,
    /// Dropped rows that were said.
    said: u64,
}

impl Writer {
    fn run(mut self) {
        while self.turn() {}
        // What came while it was told to stop.
        while let Ok(message) = self.waiting.try_recv() {
            if let Message::Row(row) = message {
                let mut batch = Batch::default();
                self.gather(&row, &mut batch);
                self.write(&batch);
            }
        }
        if let Err(error) = self.store.close() {
            tracing::error!(%error, "the usage ledger could not be closed");
        }
    }

    /// Waits for something, and writes all that has gathered; `false` when it is to stop.
    fn turn(&mut self) -> bool {
        let patience = self.unsynced_since.map_or(TICK, |since| {
            let waited = crate::clock::now().since(since);
            SYNC.saturating_sub(Duration::from_nanos(waited.as_nanos()))
        });
        let mut next = match self.waiting.recv_timeout(patience) {
            Ok(message) => Some(message),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return false,
        };
        if matches!(next, Some(Message::Row(_))) {
            std::thread::sleep(GATHER);
        }
        let (mut batch, mut flushed, mut goes_on) = (Batch::default(), Vec::new(), true);
        while let Some(message) = next {
            match message {
                Message::Row(row) => self.gather(&row, &mut batch),
                Message::Flush(done) => flushed.push(done),
                Message::Close => goes_on = false,
            }
            next = (batch.rows.len() < BATCH).then(|| self.waiting.try_recv().ok()).flatten();
        }
        self.write(&batch);
        self.sync();
        self.tick();
        self.say_what_was_dropped();
        for done in flushed {
            // Whoever asked may have gone.
            let _ = done.send(());
        }
        goes_on
    }

    fn gather(&self, row: &Row, batch: &mut Batch) {
        match segment::put_row(row, &mut batch.bytes) {
            Some(bytes) => batch.rows.push((row.at_ms, bytes)),
            None => _ = self.counts.unwritten.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn write(&mut self, batch: &Batch) {
        if batch.rows.is_empty() {
            return;
        }
        let rows = batch.rows.len() as u64;
        match self.store.append(batch, wall_ms()) {
            Ok(()) => {
                self.counts.written.fetch_add(rows, Ordering::Relaxed);
                self.unsynced_since.get_or_insert_with(crate::clock::now);
            }
            Err(error) => {
                self.counts.unwritten.fetch_add(rows, Ordering::Relaxed);
                tracing::error!(%error, rows, "usage rows could not be written and are lost");
            }
        }
    }

    fn sync(&mut self) {
        let due = |since: Moment| crate::clock::now().since(since) >= Span::from(SYNC);
        if self.unsynced_since.is_some_and(due) {
            self.unsynced_since = None;
            if let Err(error) = self.store.sync() {
                tracing::error!(%error, "usage rows may not be on the disk");
            }
        }
    }

    fn tick(&mut self) {
        let now = crate::clock::now();
        if now.since(self.ticked) < Span::from(TICK) {
            return;
        }
        self.ticked = now;
        match self.store.tick(wall_ms()) {
            Ok(gone) => _ = self.counts.segments_removed.fetch_add(gone, Ordering::Relaxed),
            Err(error) => tracing::error!(%error, "the usage ledger cannot be tidied up"),
        }
    }

    fn say_what_was_dropped(&mut self) {
        let dropped = self.counts.no_room.load(Ordering::Relaxed);
        if dropped > self.said {
            tracing::error!(rows = dropped - self.said, "usage rows found no room in the queue and are lost");
            self.said = dropped;
        }
    }
}

fn wall_ms() -> i64 {
    crate::clock::wall_now().as_millisecond()
}

#[cfg(test)]
mod tests {
    use super::exchange::{Cursor, Filter, Want};
    use super::row::tests::row;
    use super::*;

    fn rows(ledger: &Ledger) -> usize {
        let filter = Filter { from_ms: i64::MIN, to_ms: i64::MAX, tenant: None };
        ledger.answer(&Question { filter, want: Want::Rows, cursor: Cursor::default() }).rows.len()
    }

    fn now(number: i64) -> Row {
        row(wall_ms() + number, "northwind")
    }

    #[test]
    fn whoever_asks_finds_every_row_that_was_noted_before() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(LedgerOptions::of_data(folder.path())).unwrap();
        for round in 1..20 {
            (0..10).for_each(|number| ledger.note(now(number)));
            assert_eq!(rows(&ledger), round * 10);
        }
        ledger.close();
        ledger.note(now(0));
        assert_eq!(ledger.counts().no_room.load(Ordering::Relaxed), 1, "too late, and counted");
        drop(ledger);
        let again = Ledger::open(LedgerOptions::of_data(folder.path())).unwrap();
        assert_eq!((rows(&again), again.totals().0), (190, 1));
    }

    #[test]
    fn many_threads_lose_nothing_that_is_not_counted() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(LedgerOptions::of_data(folder.path())).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|number| ledger.note(now(number))));
            }
        });
        ledger.close();
        let written = ledger.counts().written.load(Ordering::Relaxed);
        let dropped = ledger.counts().no_room.load(Ordering::Relaxed);
        assert_eq!((written + dropped, ledger.totals().1), (40_000, written));
    }

    #[test]
    fn a_question_of_another_version_gets_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(LedgerOptions::of_data(folder.path())).unwrap();
        assert!(ledger.answer_bytes(b"\xffhello").is_empty() && ledger.answer_bytes(b"").is_empty());
    }
}
