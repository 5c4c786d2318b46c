//! The file: its tables, and one transaction.
//!
//! Laws:
//! - a transaction is on disk whole or not at all, and on disk when [`Disk::commit`] returns;
//! - the file has a format number and each record a version byte; what is not known is refused, never guessed at.
//!
//! Never here: what a record means, who waits for it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use redb::{ReadableDatabase as _, ReadableTable as _, StorageBackend, TableDefinition, TableHandle as _};

use super::{Change, Contents, FORMAT, OpenError, Snapshot};
use crate::outside::Folder;

const FORMAT_TABLE: TableDefinition<'_, &str, u32> = TableDefinition::new("format");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");
/// The vote, how far the log is committed, how far it is purged.
const MARKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("marks");
const SNAPSHOT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("snapshot");
const NOTES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("notes");
/// Not in files of before there was a shelf: it is made with the first write.
const SHELF: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("shelf");

const VOTE: &str = "vote";
const COMMITTED: &str = "committed";
const PURGED: &str = "purged";
const META: &str = "meta";
const STATE: &str = "state";

/// The version of every record.
const RECORD: u8 = 1;

/// How many bytes at the beginning of the file say that it is a database.
const MAGIC: usize = 9;

/// A new file is smaller than this.
const UNBORN_MAX: u64 = 64 * 1024 * 1024;

/// The largest page cache. All that is read is read once, at the start.
const CACHE: usize = 4 * 1024 * 1024;

pub(super) struct Disk {
    database: redb::Database,
}

impl Disk {
    /// Opens the file, and reads all of it.
    pub(super) fn open(folder: &dyn Folder) -> Result<(Self, Contents), OpenError> {
        let name = folder.name();
        let wrong = |error: redb::Error| OpenError::of_redb(&name, error);
        let database = match database(folder)? {
            // Only now is it known that no other process is making it.
            Err(redb::Error::Io(_)) if discard_unborn(folder)? => database(folder)?,
            database => database,
        }
        .map_err(wrong)?;
        let disk = Self { database };
        disk.check_format(&name)?;
        let contents = disk.read().map_err(|unread| match unread {
            Unread::Redb(error) => wrong(error),
            Unread::Version(theirs) => OpenError::Later { folder: name.clone(), theirs: theirs.into() },
            Unread::Empty => OpenError::Corrupted { folder: name.clone(), what: "a record is empty".into() },
        })?;
        Ok((disk, contents))
    }

    fn check_format(&self, name: &str) -> Result<(), OpenError> {
        let wrong = |error: redb::Error| OpenError::of_redb(name, error);
        let found = self.format().map_err(wrong)?;
        match found {
            Some(FORMAT) => Ok(()),
            Some(theirs) if theirs > FORMAT => Err(OpenError::Later { folder: name.to_owned(), theirs }),
            Some(_) => Err(OpenError::Corrupted { folder: name.to_owned(), what: "its format is 0".into() }),
            None => self.begin().map_err(wrong),
        }
    }

    fn format(&self) -> Result<Option<u32>, redb::Error> {
        let read = self.database.begin_read()?;
        let table = match read.open_table(FORMAT_TABLE) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            table => table?,
        };
        Ok(table.get("format")?.map(|format| format.value()))
    }

    /// A file that says nothing yet gets all tables and its format in one transaction.
    fn begin(&self) -> Result<(), redb::Error> {
        let write = self.begin_write()?;
        write.open_table(LOG)?;
        write.open_table(MARKS)?;
        write.open_table(SNAPSHOT)?;
        write.open_table(NOTES)?;
        write.open_table(FORMAT_TABLE)?.insert("format", FORMAT)?;
        Ok(write.commit()?)
    }

    fn begin_write(&self) -> Result<redb::WriteTransaction, redb::Error> {
        let mut write = self.database.begin_write()?;
        write.set_durability(redb::Durability::Immediate)?;
        Ok(write)
    }

    fn read(&self) -> Result<Contents, Unread> {
        let read = self.database.begin_read()?;
        let mut log = BTreeMap::new();
        for entry in read.open_table(LOG)?.iter()? {
            let (index, record) = entry?;
            log.insert(index.value(), opened(record.value())?);
        }
        let marks = read.open_table(MARKS)?;
        let mark = |name| -> Result<Option<Arc<[u8]>>, Unread> {
            marks.get(name)?.map(|record| opened(record.value())).transpose()
        };
        let (vote, committed, purged) = (mark(VOTE)?, mark(COMMITTED)?, mark(PURGED)?);
        let snapshots = read.open_table(SNAPSHOT)?;
        let part = |name| -> Result<Option<Arc<[u8]>>, Unread> {
            snapshots.get(name)?.map(|record| opened(record.value())).transpose()
        };
        let snapshot = part(META)?.zip(part(STATE)?).map(|(meta, state)| Snapshot { meta, state });
        let mut notes = BTreeMap::new();
        for note in read.open_table(NOTES)?.iter()? {
            let (name, record) = note?;
            notes.insert(name.value().to_owned(), opened(record.value())?);
        }
        let mut contents = Contents { log, vote, committed, purged, snapshot, notes, ..Contents::default() };
        match read.open_table(SHELF) {
            Err(redb::TableError::TableDoesNotExist(_)) => {}
            shelf => {
                for piece in shelf?.iter()? {
                    let (number, record) = piece?;
                    let bytes = Some(opened(record.value())?);
                    contents.make(&Change::Shelve { number: number.value(), bytes });
                }
            }
        }
        Ok(contents)
    }

    /// Makes `changes` in their order, in one transaction, and waits until it is on disk.
    pub(super) fn commit<'a>(
        &self,
        changes: impl IntoIterator<Item = &'a Change>,
    ) -> Result<(), redb::Error> {
        let write = self.begin_write()?;
        {
            // Most write to one of them, and each that is opened costs, whether it is written to or not.
            let (mut log, mut marks, mut snapshots, mut notes, mut shelf) = (None, None, None, None, None);
            for change in changes {
                match change {
                    Change::Append(entries) => {
                        let log = opened_once(&mut log, &write, LOG)?;
                        for (index, entry) in entries {
                            log.insert(index, &sealed(entry)[..])?;
                        }
                    }
                    Change::Truncate { from } => {
                        opened_once(&mut log, &write, LOG)?.retain_in(*from.., |_, _| false)?;
                    }
                    Change::Purge { through, mark } => {
                        let through = (Bound::Unbounded, Bound::Included(*through));
                        opened_once(&mut log, &write, LOG)?.retain_in(through, |_, _| false)?;
                        opened_once(&mut marks, &write, MARKS)?.insert(PURGED, &sealed(mark)[..])?;
                    }
                    Change::Vote(vote) => {
                        opened_once(&mut marks, &write, MARKS)?.insert(VOTE, &sealed(vote)[..])?;
                    }
                    Change::Committed(Some(committed)) => {
                        opened_once(&mut marks, &write, MARKS)?.insert(COMMITTED, &sealed(committed)[..])?;
                    }
                    Change::Committed(None) => {
                        opened_once(&mut marks, &write, MARKS)?.remove(COMMITTED)?;
                    }
                    Change::Snapshot(Snapshot { meta, state }) => {
                        let snapshots = opened_once(&mut snapshots, &write, SNAPSHOT)?;
                        snapshots.insert(META, &sealed(meta)[..])?;
                        snapshots.insert(STATE, &sealed(state)[..])?;
                    }
                    Change::Note { name, bytes: Some(bytes) } => {
                        opened_once(&mut notes, &write, NOTES)?.insert(&name[..], &sealed(bytes)[..])?;
                    }
                    Change::Note { name, bytes: None } => {
                        opened_once(&mut notes, &write, NOTES)?.remove(&name[..])?;
                    }
                    Change::Shelve { number, bytes: Some(bytes) } => {
                        opened_once(&mut shelf, &write, SHELF)?.insert(number, &sealed(bytes)[..])?;
                    }
                    Change::Shelve { number, bytes: None } => {
                        opened_once(&mut shelf, &write, SHELF)?.remove(number)?;
                    }
                }
            }
        }
        Ok(write.commit()?)
    }
}

/// The table, opened at its first use in this transaction.
fn opened_once<'t, 'w, K: redb::Key + 'static, V: redb::Value + 'static>(
    table: &'t mut Option<redb::Table<'w, K, V>>,
    write: &'w redb::WriteTransaction,
    definition: TableDefinition<'_, K, V>,
) -> Result<&'t mut redb::Table<'w, K, V>, redb::Error> {
    Ok(match table {
        Some(table) => table,
        none => none.insert(write.open_table(definition)?),
    })
}

fn database(folder: &dyn Folder) -> Result<Result<redb::Database, redb::Error>, OpenError> {
    let backend = folder.open().map_err(|error| OpenError::of_io(&folder.name(), error))?;
    let made = redb::Builder::new().set_cache_size(CACHE).create_with_backend(Backend(backend));
    Ok(made.map_err(Into::into))
}

/// Empties a file whose making was cut short; says whether it was one.
///
/// The library writes the first bytes of a new file last, and the first transaction, which names the tables, comes after them. A file that
/// has neither never held a record; one that lost its first bytes later still names them.
fn discard_unborn(folder: &dyn Folder) -> Result<bool, OpenError> {
    let look = || {
        let backend = folder.open()?;
        let length = backend.len()?;
        let mut bytes = vec![0; usize::try_from(length.min(UNBORN_MAX)).unwrap_or(0)];
        backend.read(0, &mut bytes)?;
        let name = MARKS.name().as_bytes();
        let unborn = length < UNBORN_MAX
            && bytes.iter().take(MAGIC).all(|&byte| byte == 0)
            && !bytes.windows(name.len()).any(|window| window == name);
        if unborn {
            backend.set_len(0)?;
        }
        backend.close()?;
        Ok(unborn)
    };
    look().map_err(|error| OpenError::of_io(&folder.name(), error))
}

enum Unread {
    Redb(redb::Error),
    Version(u8),
    Empty,
}

impl<E: Into<redb::Error>> From<E> for Unread {
    fn from(error: E) -> Self {
        Self::Redb(error.into())
    }
}

fn sealed(record: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(record.len() + 1);
    bytes.push(RECORD);
    bytes.extend_from_slice(record);
    bytes
}

fn opened(bytes: &[u8]) -> Result<Arc<[u8]>, Unread> {
    match bytes {
        [RECORD, record @ ..] => Ok(record.into()),
        [version, ..] => Err(Unread::Version(*version)),
        [] => Err(Unread::Empty),
    }
}

/// redb wants a type where we have a trait object. Nothing is decided here.
#[derive(Debug)]
pub(super) struct Backend(pub(super) Box<dyn StorageBackend>);

impl StorageBackend for Backend {
    fn len(&self) -> std::io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> std::io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, redb::BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, redb::BackendError> {
        self.0.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), redb::BackendError> {
        self.0.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), redb::BackendError> {
        self.0.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), redb::BackendError> {
        self.0.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, redb::BackendError> {
        self.0.query_lock_range(start, end)
    }
}
