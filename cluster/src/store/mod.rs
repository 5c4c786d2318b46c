//! What a member keeps on its disk: the log, its vote, the last snapshot, notes of its own, and the host's [`Shelf`]. One file, one writer.
//!
//! Laws:
//! - what was acknowledged is there after a crash at any instant: a write is acknowledged when its transaction is on disk;
//! - one serial stream: writes become durable in the order in which they were submitted, each whole;
//! - everything that is submitted can be read at once; what is on disk may lag behind what is read, never behind what is acknowledged;
//! - a write that fails is the last one: the store is [`Broken`] from then on, tells everybody, and acknowledges nothing;
//! - how far the log is committed is a hint, and rides with the next write that waits for the disk.
//!
//! All of it is held in memory too: the log is cut at every snapshot, so it is small. A disk that blocks gets a thread of its own, which
//! puts whatever waits into one transaction; one that does not is written where one stands, so that a simulation has no threads.
//! Never here: what an entry, a vote or a note means.

mod disk;
mod error;
mod shelf;
#[cfg(test)]
pub(crate) mod tests;
pub mod twin;
mod writer;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{oneshot, watch};

use self::disk::Disk;
pub use self::error::{Broken, OpenError};
pub use self::shelf::{PIECE_MAX, SHELF_MAX, Shelf, ShelfError};
use self::writer::{Done, Job, Writer};
use crate::mutant;
use crate::outside::Folder;
use crate::wire::{self, Malformed};

/// The format of the file. A file with a higher one is refused.
pub const FORMAT: u32 = 1;

/// The most notes. Each has a name that is written in this program.
pub const NOTES_MAX: usize = 64;

/// The longest note.
pub const NOTE_MAX: usize = 1024 * 1024;

/// The names of the notes.
pub mod note {
    /// What this folder is, for ever.
    pub const IDENTITY: &str = "identity";
    /// The cluster that it joined.
    pub const CLUSTER: &str = "cluster";
    /// The cluster that it is by itself.
    pub const ALONE: &str = "alone";
    /// The number that it has there.
    pub const NODE: &str = "node";
    /// The list of founders that it proposed.
    pub const PROPOSAL: &str = "proposal";
    /// How often it was started.
    pub const START: &str = "start";
    /// The last proof that the disk still writes.
    pub const HEARTBEAT: &str = "heartbeat";
}

/// The store of one member. Clones are the same store.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    folder: Arc<str>,
    memory: Mutex<Memory>,
    writer: Writer,
    broken: watch::Sender<Option<Broken>>,
}

/// What is held, and what of it no write has taken along yet.
struct Memory {
    contents: Contents,
    riding: Vec<Change>,
}

/// Everything that is in the store, record by record.
#[derive(Clone, Default)]
pub(crate) struct Contents {
    /// The entries by their index, without gaps.
    pub(crate) log: BTreeMap<u64, Arc<[u8]>>,
    pub(crate) vote: Option<Arc<[u8]>>,
    pub(crate) committed: Option<Arc<[u8]>>,
    /// The last entry that was purged.
    pub(crate) purged: Option<Arc<[u8]>>,
    pub(crate) snapshot: Option<Snapshot>,
    notes: BTreeMap<String, Arc<[u8]>>,
    /// What stands on the host's shelf, and how many bytes that is.
    shelf: BTreeMap<u64, Arc<[u8]>>,
    shelved: usize,
}

/// A snapshot: what it is of, and the state.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) meta: Arc<[u8]>,
    pub(crate) state: Arc<[u8]>,
}

/// A step from one content to the next.
#[derive(Clone)]
pub(crate) enum Change {
    Append(Vec<(u64, Arc<[u8]>)>),
    /// Drops the entries from this index on.
    Truncate {
        from: u64,
    },
    /// Drops the entries up to this one and it.
    Purge {
        through: u64,
        mark: Arc<[u8]>,
    },
    Vote(Arc<[u8]>),
    Committed(Option<Arc<[u8]>>),
    Snapshot(Snapshot),
    Note {
        name: String,
        bytes: Option<Arc<[u8]>>,
    },
    /// Puts a piece on the shelf under this number, or takes it down.
    Shelve {
        number: u64,
        bytes: Option<Arc<[u8]>>,
    },
}

/// Why a note was not kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoteError {
    /// The store is broken.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// There are too many, or this one is too long.
    #[error(
        "the note `{name}` of {length} bytes is one too many or too long: this is a bug, please report it"
    )]
    TooMuch {
        /// Which.
        name: String,
        /// Its length.
        length: usize,
    },
}

impl Store {
    /// Opens the store of `folder`, or makes it.
    ///
    /// # Errors
    /// [`OpenError`] says what is wrong and what to do.
    pub fn open(folder: &dyn Folder) -> Result<Self, OpenError> {
        let (disk, contents) = Disk::open(folder)?;
        let name: Arc<str> = folder.name().into();
        let broken = watch::Sender::new(None);
        let writer = if folder.blocks() {
            Writer::thread(disk, Arc::clone(&name), broken.clone())
                .map_err(|error| OpenError::Io { folder: name.to_string(), error })?
        } else {
            Writer::inline(disk)
        };
        let memory = Mutex::new(Memory { contents, riding: Vec::new() });
        Ok(Self { shared: Arc::new(Shared { folder: name, memory, writer, broken }) })
    }

    /// Where it is, for a person.
    #[must_use]
    pub fn folder(&self) -> &str {
        &self.shared.folder
    }

    /// Why nothing is acknowledged any more, once that is so.
    #[must_use]
    pub fn broken(&self) -> watch::Receiver<Option<Broken>> {
        self.shared.broken.subscribe()
    }

    /// The note `name`; `None` if there is none.
    ///
    /// # Errors
    /// It holds something else.
    pub fn note<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Malformed> {
        let bytes = self.memory().contents.notes.get(name).cloned();
        bytes.map(|bytes| wire::decode(&bytes)).transpose()
    }

    /// Keeps `value` as the note `name`; it is on disk when this returns.
    ///
    /// # Errors
    /// It is not kept, or the disk failed, and whether it is kept is known after a restart.
    pub async fn keep<T: Serialize + Sync>(&self, name: &str, value: &T) -> Result<(), NoteError> {
        self.keep_all([(name, Some(wire::encode(value)))]).await
    }

    /// Keeps or drops several notes together, each as [`wire`] writes it: all or none of them.
    ///
    /// # Errors
    /// As [`Store::keep`].
    pub async fn keep_all<'a>(
        &self,
        notes: impl IntoIterator<Item = (&'a str, Option<Vec<u8>>)>,
    ) -> Result<(), NoteError> {
        let mut changes = Vec::new();
        for (name, bytes) in notes {
            let length = bytes.as_ref().map_or(0, Vec::len);
            let memory = self.memory();
            let full = memory.contents.notes.len() + changes.len() >= NOTES_MAX
                && !memory.contents.notes.contains_key(name);
            if full || length > NOTE_MAX {
                return Err(NoteError::TooMuch { name: name.to_owned(), length });
            }
            changes.push(Change::Note { name: name.to_owned(), bytes: bytes.map(Into::into) });
        }
        Ok(self.write(changes).await?)
    }

    /// Counts this start: a number that is higher with each.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn count_start(&self) -> Result<u64, Broken> {
        self.count(note::START).await
    }

    /// Proves that the disk still writes: returns when a record that was not there is there.
    ///
    /// # Errors
    /// It does not.
    pub async fn heartbeat(&self) -> Result<u64, Broken> {
        self.count(note::HEARTBEAT).await
    }

    /// Waits until every write that was submitted is on disk, and lets the file go. Nothing is written afterwards.
    pub async fn close(&self) {
        self.shared.writer.close().await;
        let closed = Broken::closed(&self.shared.folder);
        self.shared.broken.send_if_modified(|broken| broken.is_none() && broken.replace(closed).is_none());
    }

    async fn count(&self, name: &'static str) -> Result<u64, Broken> {
        let (done, result) = oneshot::channel();
        let mut counted = 0;
        self.submit_with(
            |contents| {
                let last = contents.notes.get(name).and_then(|bytes| wire::decode::<u64>(bytes).ok());
                counted = last.unwrap_or(0).saturating_add(1);
                vec![Change::Note { name: name.to_owned(), bytes: Some(wire::encode(&counted).into()) }]
            },
            Box::new(|outcome| drop(done.send(outcome))),
        )
        .await;
        result.await.unwrap_or_else(|_| Err(self.why()))?;
        Ok(counted)
    }

    /// A look at what is in it.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&Contents) -> T) -> T {
        at(&self.memory().contents)
    }

    /// Makes `changes`, all or none, and waits for the disk.
    pub(crate) async fn write(&self, changes: Vec<Change>) -> Result<(), Broken> {
        let (done, result) = oneshot::channel();
        self.submit(changes, Box::new(|outcome| drop(done.send(outcome)))).await;
        result.await.unwrap_or_else(|_| Err(self.why()))
    }

    /// Makes `changes`: they can be read when this returns, and `done` is called once they are on disk.
    pub(crate) async fn submit(&self, changes: Vec<Change>, done: Done) {
        if mutant::is("ack_before_fsync") && changes.iter().all(|change| matches!(change, Change::Append(_)))
        {
            self.ride(changes);
            done(Ok(()));
            return;
        }
        self.submit_with(|_| changes, done).await;
    }

    /// Makes a change that nobody waits for: it is written with the next that somebody does.
    pub(crate) fn ride(&self, changes: Vec<Change>) {
        let mut memory = self.memory();
        for change in changes {
            memory.contents.make(&change);
            if matches!(change, Change::Committed(_)) {
                memory.riding.retain(|rider| !matches!(rider, Change::Committed(_)));
            }
            memory.riding.push(change);
        }
    }

    async fn submit_with(&self, changes: impl FnOnce(&Contents) -> Vec<Change>, done: Done) {
        let slot = self.shared.writer.slot().await;
        let broken = self.shared.broken.borrow().clone();
        if let Some(broken) = broken {
            return done(Err(broken));
        }
        let mut memory = self.memory();
        let changes = changes(&memory.contents);
        for change in &changes {
            memory.contents.make(change);
        }
        let mut all = std::mem::take(&mut memory.riding);
        all.extend(changes);
        // Under the lock, so that the stream has the order in which the memory changed.
        slot.submit(Job { changes: all, done }, &self.shared.folder, &self.shared.broken);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // No code under this lock panics half-way through a change.
        self.shared.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn why(&self) -> Broken {
        self.shared.broken.borrow().clone().unwrap_or_else(|| Broken::closed(&self.shared.folder))
    }
}

impl Contents {
    fn make(&mut self, change: &Change) {
        match change {
            Change::Append(entries) => {
                self.log.extend(entries.iter().map(|(index, entry)| (*index, Arc::clone(entry))));
            }
            Change::Truncate { from } => {
                self.log.split_off(from);
            }
            Change::Purge { through, mark } => {
                self.log = self.log.split_off(&through.saturating_add(1));
                self.purged = Some(Arc::clone(mark));
            }
            Change::Vote(vote) => self.vote = Some(Arc::clone(vote)),
            Change::Committed(committed) => self.committed = committed.clone(),
            Change::Snapshot(snapshot) => self.snapshot = Some(snapshot.clone()),
            Change::Note { name, bytes: Some(bytes) } => {
                self.notes.insert(name.clone(), Arc::clone(bytes));
            }
            Change::Note { name, bytes: None } => {
                self.notes.remove(name);
            }
            Change::Shelve { number, bytes } => {
                let before = match bytes {
                    Some(bytes) => self.shelf.insert(*number, Arc::clone(bytes)),
                    None => self.shelf.remove(number),
                };
                let length = |bytes: &Option<Arc<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
                self.shelved = self.shelved + length(bytes) - length(&before);
            }
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}
