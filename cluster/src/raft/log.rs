//! The log and the vote, as openraft wants them kept.
//!
//! Laws:
//! - an entry can be read as soon as it was appended, and counts as flushed only when it is on disk;
//! - a vote is on disk before anybody hears of it; votes and entries are one serial stream;
//! - how far the log is committed, and how far it is purged, may be forgotten by a crash: both are found out again.
//!
//! Never here: what an entry says.

use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use openraft::entry::RaftEntry as _;
use openraft::storage::{IOFlushed, LogState, RaftLogReader, RaftLogStorage};
use openraft::{LogIdOptionExt as _, OptionalSend};
use serde::de::DeserializeOwned;

use super::types::{Entry, LogId, SnapshotMeta, Types, Vote};
use crate::store::{Change, Store};
use crate::wire;

/// How many bytes of entries one message takes; a single longer entry goes alone.
const MESSAGE: usize = 512 * 1024;

/// A member's log in its store.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) store: Store,
}

/// Reads a record of the store.
pub(super) fn read<T: DeserializeOwned>(record: Option<Arc<[u8]>>) -> io::Result<Option<T>> {
    let decoded = record.map(|record| wire::decode(&record)).transpose();
    decoded.map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))
}

impl Log {
    /// How far the log is known to be committed; an error where it ends before that.
    pub(super) fn check(&self) -> io::Result<Option<LogId>> {
        let (committed, end, purged, snapshot) = self.store.look(|contents| {
            let end = contents.log.last_key_value().map(|(&index, _)| index);
            let snapshot = contents.snapshot.as_ref().map(|kept| Arc::clone(&kept.meta));
            (contents.committed.clone(), end, contents.purged.clone(), snapshot)
        });
        let (committed, purged): (Option<LogId>, Option<LogId>) = (read(committed)?, read(purged)?);
        let snapshot = read::<SnapshotMeta>(snapshot)?.and_then(|meta| meta.last_log_id);
        let end = end.max(purged.max(snapshot).index());
        if committed.index() > end {
            let why = "its log ends before what was committed, so the disk lost what it had confirmed: remove this node from its \
                       cluster and start it with an empty folder";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(committed)
    }

    fn entries(&self, range: impl RangeBounds<u64>, bytes_max: usize) -> io::Result<Vec<Entry>> {
        let range = (range.start_bound().cloned(), range.end_bound().cloned());
        if matches!(range, (Bound::Included(from), Bound::Excluded(to)) if from >= to) {
            return Ok(Vec::new());
        }
        let mut bytes = 0;
        let records: Vec<Arc<[u8]>> = self.store.look(|contents| {
            let fits = |record: &&Arc<[u8]>| {
                bytes += record.len();
                bytes == record.len() || bytes <= bytes_max
            };
            contents.log.range(range).map(|(_, record)| record).take_while(fits).cloned().collect()
        });
        records.into_iter().filter_map(|record| read(Some(record)).transpose()).collect()
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<Entry>> {
        self.entries(range, usize::MAX)
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<Entry>> {
        self.entries(start..end, MESSAGE)
    }

    async fn read_vote(&mut self) -> io::Result<Option<Vote>> {
        read(self.store.look(|contents| contents.vote.clone()))
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let (purged, last) = self.store.look(|contents| {
            (contents.purged.clone(), contents.log.last_key_value().map(|(_, record)| Arc::clone(record)))
        });
        let last_purged_log_id: Option<LogId> = read(purged)?;
        let last = read::<Entry>(last)?.map(|entry| entry.log_id());
        Ok(LogState { last_purged_log_id, last_log_id: last.or(last_purged_log_id) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> io::Result<()> {
        Ok(self.store.write(vec![Change::Vote(wire::encode(vote).into())]).await?)
    }

    async fn save_committed(&mut self, committed: Option<LogId>) -> io::Result<()> {
        let record = committed.map(|committed| wire::encode(&committed).into());
        self.store.ride(vec![Change::Committed(record)]);
        Ok(())
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogId>> {
        read(self.store.look(|contents| contents.committed.clone()))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let records =
            entries.into_iter().map(|entry| (entry.index(), wire::encode(&entry).into())).collect::<Vec<_>>();
        let done = Box::new(|outcome: Result<(), crate::store::Broken>| {
            callback.io_completed(outcome.map_err(io::Error::from));
        });
        self.store.submit(vec![Change::Append(records)], done).await;
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogId>) -> io::Result<()> {
        Ok(self.store.write(vec![Change::Truncate { from: last.next_index() }]).await?)
    }

    async fn purge(&mut self, through: LogId) -> io::Result<()> {
        let change = Change::Purge { through: through.index, mark: wire::encode(&through).into() };
        self.store.ride(vec![change]);
        Ok(())
    }
}
