//! What a node knows of possessions, on its disk: one file and one thread that writes it.
//!
//! Laws:
//! - whoever makes a possession waits for no disk: what was made in the last moment before a crash may be unknown to this node's next life, and is
//!   known to the others;
//! - what waits to be written together is written together, in order;
//! - a disk that fails costs what its node would know after a restart, and is said. Nothing else stops.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition, TableError};

use super::codec::{self, Kept};

/// By the number under which each was put in.
const KEPT: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("kept");

/// The file, in the data folder.
const FILE: &str = "kept.redb";

/// How many writes may wait.
const MOST: usize = 65_536;

/// How many are written at once.
const AT_ONCE: usize = 4_096;

/// The page cache: all is read once, at the start.
const CACHE: usize = 1024 * 1024;

/// A change of the file.
pub(super) enum Write {
    /// This under that number.
    Put(u64, Kept),
    /// Nothing under that number any more.
    Remove(u64),
}

/// The file. What waits is written when this is dropped.
#[derive(Debug)]
pub(super) struct Disk {
    waiting: Option<SyncSender<Write>>,
    writer: Option<JoinHandle<()>>,
}

impl Disk {
    /// Opens the file in `folder`, and reads it: what is there, from the oldest on.
    pub(super) fn open(folder: &Path) -> io::Result<(Self, Vec<(u64, Kept)>)> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(FILE);
        let wrong =
            |error: redb::Error| io::Error::other(format!("{} cannot be used: {error}", path.display()));
        let database = redb::Builder::new().set_cache_size(CACHE).create(&path);
        let database = database.map_err(|error| wrong(error.into()))?;
        let kept = read(&database).map_err(wrong)?;
        let (waiting, writes) = sync_channel(MOST);
        let writer =
            std::thread::Builder::new().name("kept".to_owned()).spawn(move || write(&database, &writes))?;
        Ok((Self { waiting: Some(waiting), writer: Some(writer) }, kept))
    }

    /// Has it written soon.
    pub(super) fn write(&self, write: Write) {
        let Some(waiting) = &self.waiting else { return };
        // The writer says itself why it has ended.
        if let Err(TrySendError::Full(_)) = waiting.try_send(write) {
            tracing::error!(
                "the disk is too slow for what providers keep: the next start will not know of something that was made now"
            );
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.waiting = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the writer of what providers keep has failed");
        }
    }
}

fn read(database: &Database) -> Result<Vec<(u64, Kept)>, redb::Error> {
    let read = database.begin_read()?;
    let table = match read.open_table(KEPT) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        table => table?,
    };
    let (mut kept, mut unreadable) = (Vec::new(), 0_u64);
    for entry in table.iter()? {
        let (number, bytes) = entry?;
        match codec::decode(bytes.value()) {
            Some(one) => kept.push((number.value(), one)),
            None => unreadable += 1,
        }
    }
    if unreadable > 0 {
        tracing::error!(
            unreadable,
            "another version has written whose some of what providers keep is: it is not known here"
        );
    }
    Ok(kept)
}

/// Writes whatever comes, until nobody can send any more.
fn write(database: &Database, writes: &Receiver<Write>) {
    while let Ok(first) = writes.recv() {
        let together = std::iter::once(first).chain(writes.try_iter().take(AT_ONCE));
        if let Err(error) = commit(database, together) {
            tracing::error!(%error, "whose is what providers keep is no longer written: the next start will not know of what is made from now on");
            return;
        }
    }
}

fn commit(database: &Database, writes: impl Iterator<Item = Write>) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(KEPT)?;
        for write in writes {
            match write {
                Write::Put(number, kept) => {
                    if let Some(bytes) = codec::encode(&kept) {
                        table.insert(number, bytes.as_slice())?;
                    }
                }
                Write::Remove(number) => _ = table.remove(number)?,
            }
        }
    }
    Ok(transaction.commit()?)
}
