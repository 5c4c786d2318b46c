//! The table that a node's shim looks at: how its clocks are bent and what is wrong with its disk.
//!
//! Clocks are only edited while the process is stopped: within a wait they would seem to run back.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::sys;

/// A clock that the shim bends, by its place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The wall clock.
    Realtime = 0,
    /// What timers run by.
    Monotonic = 3,
    /// Without slewing.
    Raw = 6,
    /// With suspends.
    Boottime = 9,
}

impl Clock {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Realtime, Self::Monotonic, Self::Raw, Self::Boottime];
}

/// What is wrong with the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Nothing.
    Well,
    /// A sync fails with EIO.
    Eio,
    /// A write fails with ENOSPC.
    Full,
    /// A sync takes so many milliseconds longer.
    Slow(i64),
    /// A sync does not return until this is over.
    Hung,
    /// The next write stops after so many bytes, and the process with it.
    Torn(i64),
}

/// A node's table.
pub struct Table(File);

const WORDS: usize = 512;
const DISK: usize = 12;
const LOADED: usize = 15;
const FOLDER: u64 = 128;

impl Table {
    /// A table that bends nothing, in a file at `path`, for a node with its data in `folder`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(path: &Path, folder: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        file.set_len(WORDS as u64 * 8)?;
        file.write_all_at(folder.as_os_str().as_encoded_bytes(), FOLDER)?;
        Ok(Self(file))
    }

    /// Moves a clock by so many nanoseconds.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn step(&self, clock: Clock, by: i64) -> io::Result<()> {
        let at = clock as usize;
        self.write(at, self.read(at)?.saturating_add(by))
    }

    /// Has a clock gain so many millionths from now on; what it had gained stays.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn gain(&self, clock: Clock, millionths: i64) -> io::Result<()> {
        let (at, now) = (clock as usize, i64::try_from(sys::now()).unwrap_or(i64::MAX));
        let (rate, since) = (self.read(at + 1)?, self.read(at + 2)?);
        let gained = i128::from(now - since) * i128::from(rate) / 1_000_000;
        self.step(clock, i64::try_from(gained).unwrap_or(0))?;
        self.write(at + 2, now)?;
        self.write(at + 1, millionths)
    }

    /// Breaks the disk, or mends it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn disk(&self, disk: Disk) -> io::Result<()> {
        let (kind, parameter) = match disk {
            Disk::Well => (0, 0),
            Disk::Eio => (1, 0),
            Disk::Full => (2, 0),
            Disk::Slow(millis) => (3, millis),
            Disk::Hung => (4, 0),
            Disk::Torn(bytes) => (5, bytes),
        };
        self.write(DISK + 1, parameter)?;
        self.write(DISK, kind)
    }

    /// How often a broken disk was met so far.
    pub fn met(&self) -> i64 {
        self.read(DISK + 2).unwrap_or(0)
    }

    /// Whether a process has the shim: one that is linked statically, or of another machine, has not.
    pub fn is_looked_at(&self) -> bool {
        self.read(LOADED).is_ok_and(|loaded| loaded == 1)
    }

    fn read(&self, word: usize) -> io::Result<i64> {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, word as u64 * 8)?;
        Ok(i64::from_ne_bytes(bytes))
    }

    fn write(&self, word: usize, value: i64) -> io::Result<()> {
        self.0.write_all_at(&value.to_ne_bytes(), word as u64 * 8)
    }
}
