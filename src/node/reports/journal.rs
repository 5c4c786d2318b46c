//! The journal: ends of reservations on this node's disk, from before they are reported until the report is acknowledged.
//!
//! It stands on the member's [`Shelf`], beside the log: one file, one writer, whole pieces, and the same group commit. So a disk that is full
//! or fails stops the node as it does for the log, and says so.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_cluster::mutant;
use tollgate_cluster::store::{Shelf, ShelfError};

use crate::control::budget::Batch;
use crate::control::codec;

/// See the module.
pub(super) struct Journal {
    shelf: Shelf,
    next: AtomicU64,
}

impl Journal {
    pub(super) fn open(shelf: Shelf) -> Self {
        let last = shelf.pieces().last().map_or(0, |(number, _)| *number);
        Self { shelf, next: AtomicU64::new(last + 1) }
    }

    /// What earlier lives have left, by piece. What another version wrote stays where it is.
    pub(super) fn left(&self) -> Vec<(u64, Batch)> {
        let read = |(number, bytes): (u64, std::sync::Arc<[u8]>)| match codec::read_batch(&bytes) {
            Ok(batch) => Some((number, batch)),
            Err(unreadable) => {
                tracing::error!(piece = number, %unreadable, "ends of an earlier life cannot be read: they are not reported");
                None
            }
        };
        self.shelf.pieces().into_iter().filter_map(read).collect()
    }

    /// Writes `batch`; it is on disk when this returns. Its piece.
    ///
    /// # Errors
    /// It is not there, for want of room or because the disk failed.
    pub(super) async fn keep(&self, batch: &Batch) -> Result<u64, ShelfError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if mutant::is("report_unkept") {
            return Ok(number);
        }
        self.shelf.put(number, codec::batch(batch)).await?;
        Ok(number)
    }

    /// These pieces are over.
    pub(super) fn cut(&self, pieces: impl IntoIterator<Item = u64>) {
        self.shelf.take_down(pieces);
    }
}
