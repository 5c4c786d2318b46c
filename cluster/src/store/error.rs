//! What can be wrong with a store, as sentences for the person who has to do something about it: what, where, what to do.

use std::io;
use std::sync::Arc;

use super::FORMAT;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error(
        "the data folder {folder} is in use by another process: stop that one, or give this one a folder of its own"
    )]
    Locked {
        /// Where.
        folder: String,
    },
    /// A file is in the way.
    #[error("{folder} is not a folder: name a folder for the data, it is made if it does not exist")]
    NotAFolder {
        /// Where.
        folder: String,
    },
    /// The rights do not suffice.
    #[error("no right to write to the data folder {folder}: give it to the user that runs this process")]
    Denied {
        /// Where.
        folder: String,
    },
    /// No room.
    #[error(
        "the disk of the data folder {folder} is full: make room, then start again; nothing that was acknowledged is lost"
    )]
    Full {
        /// Where.
        folder: String,
    },
    /// A later version of this program wrote it.
    #[error(
        "the data folder {folder} was written by a later version (its format is {theirs}, this version reads up to {ours}): \
         start that version again", ours = FORMAT
    )]
    Later {
        /// Where.
        folder: String,
        /// Its format.
        theirs: u32,
    },
    /// What is in it makes no sense.
    #[error(
        "the data folder {folder} is damaged ({what}): if other nodes of the cluster live, remove this node there and start it with \
         an empty folder; else restore the folder from a backup"
    )]
    Corrupted {
        /// Where.
        folder: String,
        /// What.
        what: String,
    },
    /// Something else.
    #[error("the data folder {folder} cannot be opened: {error}")]
    Io {
        /// Where.
        folder: String,
        /// What the system says.
        error: io::Error,
    },
}

impl OpenError {
    pub(super) fn of_io(folder: &str, error: io::Error) -> Self {
        let folder = folder.to_owned();
        match error.kind() {
            // A folder that is a file: what making it says, and what opening a file below it says.
            io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => Self::NotAFolder { folder },
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Self::Denied { folder },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { folder },
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                Self::Corrupted { folder, what: error.to_string() }
            }
            io::ErrorKind::WouldBlock => Self::Locked { folder },
            _ => Self::Io { folder, error },
        }
    }

    pub(super) fn of_redb(folder: &str, error: redb::Error) -> Self {
        let folder_name = folder.to_owned();
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::Locked { folder: folder_name },
            redb::Error::Io(error) => Self::of_io(folder, error),
            redb::Error::UpgradeRequired(_) => {
                Self::Corrupted { folder: folder_name, what: "the file is of an unknown format".into() }
            }
            other => Self::Corrupted { folder: folder_name, what: other.to_string() },
        }
    }
}

/// The disk failed, and with it the store, for good: what it still knows may not be what is on the disk. Only a restart reads that
/// again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("writing to the data folder {folder} failed ({reason}): nothing is acknowledged any more. {advice}")]
pub struct Broken {
    pub(super) folder: Arc<str>,
    pub(super) reason: Arc<str>,
    pub(super) advice: &'static str,
}

impl Broken {
    pub(super) fn of_redb(folder: &Arc<str>, error: &redb::Error) -> Self {
        let full = matches!(
            error,
            redb::Error::Io(error)
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        );
        let advice = if full {
            "Make room on that disk, then restart this node"
        } else {
            "Check that disk, then restart this node"
        };
        Self { folder: Arc::clone(folder), reason: error.to_string().into(), advice }
    }

    pub(super) fn closed(folder: &Arc<str>) -> Self {
        Self {
            folder: Arc::clone(folder),
            reason: "the store is closed".into(),
            advice: "This node is stopping",
        }
    }
}

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        Self::other(broken)
    }
}
