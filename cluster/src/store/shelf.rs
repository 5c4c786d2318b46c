//! A shelf: what the host keeps on the member's disk, piece by piece, each under a number that the host chooses.
//!
//! Laws, beside those of the store:
//! - a piece is on disk when [`Shelf::put`] returns, and can be read from then on and after a restart, until it is taken down;
//! - what is taken down may be there again after a crash: taking down waits for nothing and goes with the next write;
//! - bounded: [`SHELF_MAX`] in all, [`PIECE_MAX`] each. A shelf that is full takes nothing more, and forgets nothing.
//!
//! Never here: what a piece means.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Broken, Change, Store};

/// The most bytes of all pieces: all are held in memory too, and read at the start.
pub const SHELF_MAX: usize = 64 * 1024 * 1024;

/// The longest piece.
pub const PIECE_MAX: usize = 4 * 1024 * 1024;

/// The host's shelf. Clones are the same shelf.
#[derive(Clone, Debug)]
pub struct Shelf(Store);

/// Why a piece does not stand on the shelf.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShelfError {
    /// The disk failed, or was let go.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// There is no room for it.
    #[error(
        "{length} bytes more do not fit beside the {held} that are kept: {SHELF_MAX} is the most, {PIECE_MAX} at once"
    )]
    Full {
        /// What it has, in bytes.
        length: usize,
        /// What is there, in bytes.
        held: usize,
    },
}

impl Shelf {
    /// The shelf of `store`.
    #[must_use]
    pub const fn of(store: Store) -> Self {
        Self(store)
    }

    /// Puts `piece` under `number`, in place of what stands there; it is on disk when this returns.
    ///
    /// # Errors
    /// [`ShelfError`]: it is not there, or the disk failed, and whether it is there is known after a restart.
    pub async fn put(&self, number: u64, piece: Vec<u8>) -> Result<(), ShelfError> {
        let (length, held) = (piece.len(), self.held());
        if length > PIECE_MAX || held + length > SHELF_MAX {
            return Err(ShelfError::Full { length, held });
        }
        let (done, result) = oneshot::channel();
        let change = Change::Shelve { number, bytes: Some(piece.into()) };
        self.0.submit(vec![change], Box::new(|outcome| drop(done.send(outcome)))).await;
        Ok(result.await.unwrap_or_else(|_| Err(self.0.why()))?)
    }

    /// Takes down what stands under `numbers`, with the next write.
    pub fn take_down(&self, numbers: impl IntoIterator<Item = u64>) {
        self.0.ride(numbers.into_iter().map(|number| Change::Shelve { number, bytes: None }).collect());
    }

    /// All that stands there, by number.
    #[must_use]
    pub fn pieces(&self) -> Vec<(u64, Arc<[u8]>)> {
        self.0
            .look(|contents| contents.shelf.iter().map(|(number, piece)| (*number, piece.clone())).collect())
    }

    /// How many bytes stand there.
    #[must_use]
    pub fn held(&self) -> usize {
        self.0.look(|contents| contents.shelved)
    }
}
