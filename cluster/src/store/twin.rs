//! A folder in memory that forgets what was not synced: the disk's twin for tests and simulations.
//!
//! Laws:
//! - what was synced is there after a crash; each write since is kept, lost or torn, at random;
//! - what a process of before the crash still does afterwards reaches nothing;
//! - one process at a time, as the lock of a real file has it.
//!
//! It can be told to fail: with an error of a given kind, or by a power cut after so many writes. Never here: files, threads.

use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

use crate::outside::{Entropy, Folder};

/// What a disk writes whole: a torn write ends at a multiple of it.
const SECTOR: usize = 512;

/// A folder in memory. Clones are the same folder.
#[derive(Clone, Debug)]
pub struct MemoryFolder {
    name: String,
    medium: Arc<Mutex<Medium>>,
}

#[derive(Debug, Default)]
struct Medium {
    /// What a crash cannot take.
    synced: Vec<u8>,
    /// What a reader sees.
    seen: Vec<u8>,
    /// What leads from the one to the other.
    unsynced: Vec<Op>,
    /// Grows with each crash: who was there before has no part in it.
    life: u64,
    open: bool,
    failing: Option<io::ErrorKind>,
    writes: u64,
    cut_after: Option<u64>,
    syncs: u64,
}

#[derive(Debug)]
enum Op {
    Write { offset: usize, data: Vec<u8> },
    Resize(usize),
}

/// The one file, as one life of a process has it open.
#[derive(Debug)]
struct File {
    medium: Arc<Mutex<Medium>>,
    life: u64,
}

impl MemoryFolder {
    /// An empty folder; `name` is for people.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), medium: Arc::default() }
    }

    /// The power goes, and comes back: of what was not synced each write is kept, lost or torn. Call it before whatever has the folder open
    /// is dropped, or that closes it in good order.
    pub fn crash(&self, entropy: &dyn Entropy) {
        let mut medium = self.medium();
        let mut left = std::mem::take(&mut medium.synced);
        for op in std::mem::take(&mut medium.unsynced) {
            match (entropy.below(3), op) {
                (0, _) => {}
                (_, Op::Resize(length)) => left.resize(length, 0),
                (chance, Op::Write { offset, mut data }) => {
                    if chance == 1 && data.len() > SECTOR {
                        let sectors = entropy.below((data.len() / SECTOR) as u64) as usize;
                        data.truncate(sectors * SECTOR);
                    }
                    put(&mut left, offset, &data);
                }
            }
        }
        medium.seen.clone_from(&left);
        medium.synced = left;
        medium.life += 1;
        medium.open = false;
        medium.cut_after = None;
    }

    /// From now on every write fails with an error of this kind; `None` heals the disk.
    pub fn fail(&self, with: Option<io::ErrorKind>) {
        self.medium().failing = with;
    }

    /// The power goes after `writes` more writes, resizes and syncs: those that follow fail and leave no trace.
    pub fn cut_after(&self, writes: u64) {
        let mut medium = self.medium();
        medium.cut_after = Some(medium.writes + writes);
    }

    /// How many writes, resizes and syncs there were.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.medium().writes
    }

    /// How many syncs there were.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.medium().syncs
    }

    fn medium(&self) -> MutexGuard<'_, Medium> {
        self.medium.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Folder for MemoryFolder {
    fn open(&self) -> io::Result<Box<dyn StorageBackend>> {
        let mut medium = self.medium();
        if medium.open {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if let Some(kind) = medium.failing {
            return Err(kind.into());
        }
        medium.open = true;
        Ok(Box::new(File { medium: Arc::clone(&self.medium), life: medium.life }))
    }

    fn name(&self) -> String {
        self.name.clone()
    }

    fn blocks(&self) -> bool {
        false
    }
}

impl File {
    fn medium(&self) -> io::Result<MutexGuard<'_, Medium>> {
        let medium = self.medium.lock().unwrap_or_else(PoisonError::into_inner);
        if medium.life == self.life { Ok(medium) } else { Err(io::Error::other("the power went")) }
    }

    /// As [`File::medium`], for what changes something.
    fn changing(&self) -> io::Result<MutexGuard<'_, Medium>> {
        let mut medium = self.medium()?;
        if let Some(kind) = medium.failing {
            return Err(kind.into());
        }
        if medium.cut_after.is_some_and(|last| medium.writes >= last) {
            return Err(io::Error::other("the power is gone"));
        }
        medium.writes += 1;
        Ok(medium)
    }
}

impl StorageBackend for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.medium()?.seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let medium = self.medium()?;
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let found = medium.seen.get(offset..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut medium = self.changing()?;
        medium.seen.resize(len, 0);
        medium.unsynced.push(Op::Resize(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut medium = self.changing()?;
        let Medium { synced, unsynced, .. } = &mut *medium;
        for op in unsynced.drain(..) {
            match op {
                Op::Write { offset, data } => put(synced, offset, &data),
                Op::Resize(length) => synced.resize(length, 0),
            }
        }
        medium.syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let mut medium = self.changing()?;
        put(&mut medium.seen, offset, data);
        medium.unsynced.push(Op::Write { offset, data: data.to_vec() });
        Ok(())
    }

    fn close(&self) -> io::Result<()> {
        self.medium()?.open = false;
        Ok(())
    }

    fn try_lock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<bool, redb::BackendError> {
        // Locked by opening it.
        Err(redb::BackendError::Unsupported)
    }
}

/// Writes `data` at `offset`, the file growing as it must.
fn put(file: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[offset..end].copy_from_slice(data);
}
