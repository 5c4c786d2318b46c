//! The folder of segments: one is written, the others are whole; the oldest go when they are too old, or all together too large.
//!
//! Laws:
//! - each life begins a segment of its own, so that at most the last one of a life can be torn;
//! - a row is counted only once its bytes are written; a write that fails leaves the segment as it was before;
//! - one process has the folder: whoever comes second is refused, since it would mend what the first still writes.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::segment::{self, Ended, Found, Summary};

/// How much is kept, and in what pieces.
#[derive(Clone, Debug)]
pub struct Keep {
    /// A segment that is this large is closed.
    pub segment_bytes: u64,
    /// A segment that was begun this long ago is closed.
    pub segment_age: Duration,
    /// Rows that are older go, a segment at a time.
    pub retention: Duration,
    /// If all segments are larger than this together, the oldest go.
    pub most_bytes: u64,
}

impl Default for Keep {
    /// A row has about 250 bytes: 64 MiB are a quarter of a million rows, small enough to copy and to lose, and 8 GiB are 34 million.
    /// 400 days are a year and a month: this month beside the same one a year ago.
    fn default() -> Self {
        Self {
            segment_bytes: 64 * 1024 * 1024,
            segment_age: Duration::from_secs(24 * 60 * 60),
            retention: Duration::from_secs(400 * 24 * 60 * 60),
            most_bytes: 8 * 1024 * 1024 * 1024,
        }
    }
}

/// What can be read: every segment, as far as it is written.
#[derive(Debug, Default)]
pub struct Catalog(Mutex<BTreeMap<u64, (PathBuf, Summary)>>);

impl Catalog {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (PathBuf, Summary)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first segment with a number of at least `from`.
    #[must_use]
    pub fn from(&self, from: u64) -> Option<(u64, PathBuf, Summary)> {
        let segments = self.lock();
        let (number, (path, summary)) = segments.range(from..).next()?;
        Some((*number, path.clone(), *summary))
    }

    /// Segments, rows and bytes.
    #[must_use]
    pub fn totals(&self) -> (u64, u64, u64) {
        self.lock().values().fold((0, 0, 0), |(segments, rows, bytes), (_, summary)| {
            (segments + 1, rows + summary.rows, bytes + summary.bytes)
        })
    }
}

/// The segment that is written.
struct Live {
    number: u64,
    file: File,
    summary: Summary,
    unsynced: bool,
}

/// Rows that are ready to be written.
#[derive(Debug, Default)]
pub struct Batch {
    /// Their records, one after the other.
    pub bytes: Vec<u8>,
    /// The time of each, and the bytes of its record.
    pub rows: Vec<(i64, u64)>,
}

/// The folder, for whoever writes.
pub struct Store {
    folder: PathBuf,
    keep: Keep,
    catalog: Arc<Catalog>,
    live: Option<Live>,
    next: u64,
    _lock: File,
}

impl Store {
    /// Opens a folder, made if it is not there. What an earlier life left torn is cut, and said.
    ///
    /// # Errors
    /// The folder cannot be used, or another process has it.
    pub fn open(folder: &Path, keep: Keep, now_ms: i64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process uses it"));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut store = Self {
            folder: folder.to_owned(),
            keep,
            catalog: Arc::default(),
            live: None,
            next: 1,
            _lock: lock,
        };
        store.look_around()?;
        store.forget(now_ms)?;
        Ok(store)
    }

    fn look_around(&mut self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let Some(number) = number_of(&path) else { continue };
            self.next = self.next.max(number.saturating_add(1));
            match segment::look(&path)? {
                Found::Whole(summary) => {
                    self.catalog.lock().insert(number, (path, summary));
                }
                Found::Mended(summary, cut) => {
                    tracing::warn!(
                        file = %path.display(), rows = summary.rows, cut_bytes = cut,
                        "the usage ledger was not closed by its last life: rows of its last moments may be missing, and a torn tail is cut"
                    );
                    self.catalog.lock().insert(number, (path, summary));
                }
                Found::Empty => fs::remove_file(&path)?,
                Found::Foreign => {
                    tracing::error!(file = %path.display(), "no usage segment of this version: it is left alone and not read");
                }
            }
        }
        Ok(())
    }

    /// What can be read.
    #[must_use]
    pub const fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Writes rows. They may be lost until [`Store::sync`] if the machine dies, not if the process does.
    ///
    /// # Errors
    /// They could not be written: none of them is there.
    pub fn append(&mut self, batch: &Batch, now_ms: i64) -> io::Result<()> {
        self.rotate(batch.bytes.len() as u64, now_ms)?;
        let live = match &mut self.live {
            Some(live) => live,
            None => self.live.insert(begin(&self.folder, &mut self.next, now_ms)?),
        };
        if let Err(error) = live.file.write_all_at(&batch.bytes, live.summary.bytes) {
            // Whatever arrived of it is no row.
            if live.file.set_len(live.summary.bytes).is_err() {
                self.live = None;
            }
            return Err(error);
        }
        for (at_ms, bytes) in &batch.rows {
            live.summary.add(*at_ms, *bytes);
        }
        live.unsynced = true;
        let path = path_of(&self.folder, live.number);
        self.catalog.lock().insert(live.number, (path, live.summary));
        Ok(())
    }

    /// Closes the segment that is written if it would be too large with `more` bytes, or is too old.
    fn rotate(&mut self, more: u64, now_ms: i64) -> io::Result<()> {
        let Some(live) = &self.live else { return Ok(()) };
        let age = u64::try_from(now_ms.saturating_sub(live.summary.created_ms)).unwrap_or(0);
        let full = live.summary.rows > 0 && live.summary.bytes + more > self.keep.segment_bytes;
        if full || u128::from(age) >= self.keep.segment_age.as_millis() {
            self.close()?;
        }
        Ok(())
    }

    /// Does what is due without a row: closes a segment that is too old, removes what is kept no longer. How many segments went.
    ///
    /// # Errors
    /// A file cannot be closed or removed.
    pub fn tick(&mut self, now_ms: i64) -> io::Result<u64> {
        self.rotate(0, now_ms)?;
        self.forget(now_ms)
    }

    /// Waits until all that was written is on disk.
    ///
    /// # Errors
    /// It is not known whether it is.
    pub fn sync(&mut self) -> io::Result<()> {
        match &mut self.live {
            Some(live) if live.unsynced => {
                live.unsynced = false;
                live.file.sync_data()
            }
            _ => Ok(()),
        }
    }

    /// Ends the segment that is written; the next row begins another.
    ///
    /// # Errors
    /// The end could not be written: the next life mends it.
    pub fn close(&mut self) -> io::Result<()> {
        let Some(live) = self.live.take() else { return Ok(()) };
        live.file.write_all_at(&segment::end(&live.summary, Ended::Closed), live.summary.bytes)?;
        live.file.sync_all()
    }

    /// Removes whole segments: one whose rows are all too old, and the oldest while all are too large together. Only one at a time for
    /// its age, so that a clock that jumps ahead does not empty the ledger before somebody sees it.
    fn forget(&mut self, now_ms: i64) -> io::Result<u64> {
        let retention = i64::try_from(self.keep.retention.as_millis()).unwrap_or(i64::MAX);
        let oldest = now_ms.saturating_sub(retention);
        let live = self.live.as_ref().map(|live| live.number);
        let mut segments = self.catalog.lock();
        let mut bytes: u64 = segments.values().map(|(_, summary)| summary.bytes).sum();
        let mut gone = Vec::new();
        for (number, (path, summary)) in segments.iter().filter(|(number, _)| Some(**number) != live) {
            let too_old = summary.last_ms < oldest && gone.is_empty();
            if !too_old && bytes <= self.keep.most_bytes {
                break;
            }
            fs::remove_file(path)?;
            bytes -= summary.bytes;
            gone.push(*number);
            if too_old {
                tracing::info!(file = %path.display(), rows = summary.rows, "usage rows are older than they are kept, and removed");
            } else {
                tracing::warn!(
                    file = %path.display(), rows = summary.rows,
                    "the usage ledger is larger than it may be: its oldest rows are removed before their time"
                );
            }
        }
        for number in &gone {
            segments.remove(number);
        }
        Ok(gone.len() as u64)
    }
}

fn begin(folder: &Path, next: &mut u64, now_ms: i64) -> io::Result<Live> {
    let number = *next;
    *next += 1;
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path_of(folder, number))?;
    file.write_all_at(&segment::header(now_ms), 0)?;
    // The name has to outlive the machine as the bytes do.
    File::open(folder)?.sync_all()?;
    Ok(Live { number, file, summary: Summary::begun(now_ms), unsynced: true })
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:012}.usage"))
}

fn number_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_suffix(".usage")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    fn batch(numbers: std::ops::Range<i64>) -> Batch {
        let mut batch = Batch::default();
        for number in numbers {
            let length = segment::put_row(&row(number, "northwind"), &mut batch.bytes).unwrap();
            batch.rows.push((number, length));
        }
        batch
    }

    fn keep(segment_rows: u64) -> Keep {
        // The longest of those below: numbers are as long as they are large.
        let record = batch(900..901).bytes.len() as u64;
        Keep {
            segment_bytes: segment::HEADER + segment_rows * record,
            segment_age: Duration::from_millis(1_000),
            retention: Duration::from_millis(10_000),
            most_bytes: u64::MAX,
        }
    }

    fn rows(catalog: &Catalog) -> Vec<u64> {
        catalog.lock().values().map(|(_, summary)| summary.rows).collect()
    }

    fn files(folder: &Path) -> usize {
        fs::read_dir(folder)
            .unwrap()
            .filter(|entry| number_of(&entry.as_ref().unwrap().path()).is_some())
            .count()
    }

    #[test]
    fn a_segment_is_closed_when_it_is_full_or_old() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), keep(3), 0).unwrap();
        assert_eq!(files(folder.path()), 0, "no rows, no file");
        for number in 0..7 {
            store.append(&batch(number..number + 1), 0).unwrap();
        }
        assert_eq!(rows(store.catalog()), [3, 3, 1]);
        store.append(&batch(7..8), 999).unwrap();
        assert_eq!(rows(store.catalog()), [3, 3, 2]);
        store.append(&batch(8..9), 1_000).unwrap();
        assert_eq!(rows(store.catalog()), [3, 3, 2, 1], "old");
        store.tick(2_000).unwrap();
        assert!(store.live.is_none(), "closed without a row, too");
        // A batch that is larger than a segment is not torn apart.
        store.append(&batch(10..20), 2_000).unwrap();
        assert_eq!(rows(store.catalog()), [3, 3, 2, 1, 10]);
    }

    #[test]
    fn old_segments_go_and_so_do_the_oldest_of_too_many() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), keep(2), 0).unwrap();
        for number in 0..10 {
            store.append(&batch(number * 100..number * 100 + 1), 0).unwrap();
        }
        assert_eq!(rows(store.catalog()), [2, 2, 2, 2, 2]);
        assert_eq!(store.tick(10_100).unwrap(), 0, "row 100 is just young enough");
        assert_eq!(store.tick(10_101).unwrap(), 1);
        assert_eq!(files(folder.path()), 4);
        assert_eq!(
            (store.tick(i64::MAX).unwrap(), files(folder.path())),
            (1, 3),
            "one at a time, whatever the clock says"
        );
        drop(store);
        let two = keep(2).segment_bytes * 2;
        let store = Store::open(folder.path(), Keep { most_bytes: two, ..keep(2) }, 0).unwrap();
        assert_eq!(store.catalog().totals().0, 2);
        assert_eq!(store.catalog().from(0).unwrap().2.first_ms, 600, "the youngest stay");
    }

    #[test]
    fn a_life_that_was_cut_short_is_mended_and_the_next_begins_a_segment_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::open(folder.path(), keep(100), 0).unwrap();
        store.append(&batch(0..3), 0).unwrap();
        assert!(Store::open(folder.path(), keep(100), 0).is_err(), "one process has it");
        // As a crash leaves it: no end, and half a record behind.
        let file = store.live.as_ref().unwrap().file.try_clone().unwrap();
        let at = store.live.as_ref().unwrap().summary.bytes;
        file.write_all_at(&batch(3..4).bytes[..20], at).unwrap();
        drop(store);
        let mut store = Store::open(folder.path(), keep(100), 0).unwrap();
        assert_eq!(rows(store.catalog()), [3]);
        store.append(&batch(4..5), 0).unwrap();
        assert_eq!(rows(store.catalog()), [3, 1]);
        store.close().unwrap();
        drop(store);
        let store = Store::open(folder.path(), keep(100), 0).unwrap();
        assert_eq!(rows(store.catalog()), [3, 1]);
        assert_eq!(files(folder.path()), 2);
    }
}
