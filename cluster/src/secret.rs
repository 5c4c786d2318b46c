//! The cluster's secret: what a node must hold to be believed, and what is derived from it.
//!
//! Laws:
//! - a secret leaves this file only as keys derived for one purpose each, and as its fingerprint;
//! - neither a `Debug` output nor an error shows any of it; its memory is wiped when it is dropped;
//! - a node holds at most [`KEYS_MAX`] secrets and always has exactly one in use: what it seals with. It can read with all.
//!
//! Which of them is used, and when one goes, [`crate::keyring`] decides for the whole cluster. Never here: sealing.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hkdf::Hkdf;
use sha2::Sha256;
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::keyring::{KEYS_MAX, KeyId};

/// The fewest bytes of a secret: 256 bits if they are random.
pub const SECRET_MIN: usize = 32;

/// The most bytes of a secret: what is longer is some other file.
pub const SECRET_MAX: usize = 1024;

/// 256 bits derived for one purpose.
pub(crate) type Key = Zeroizing<[u8; 32]>;

/// One secret of the cluster.
pub struct Secret {
    id: KeyId,
    connections: Key,
    gossip: Key,
    host: Key,
}

/// Why some bytes cannot be the cluster's secret, or a set of secrets cannot be what it was asked to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Too short.
    #[error(
        "the cluster secret has {0} bytes and needs at least {SECRET_MIN}: make one with `openssl rand -hex 32` \
         and give the same one to every node"
    )]
    Short(usize),
    /// Too long.
    #[error(
        "a line of the secret file is longer than {SECRET_MAX} bytes: this is not a file of cluster secrets"
    )]
    Long,
    /// No secret at all.
    #[error("there is no cluster secret in it: put one secret of at least {SECRET_MIN} bytes on a line")]
    Empty,
    /// No room.
    #[error("this node already holds {KEYS_MAX} cluster secrets: remove one that is not in use")]
    Full,
    /// Not held.
    #[error("this node does not hold the cluster secret {0}: give it the secret first")]
    NotHeld(KeyId),
    /// In use.
    #[error("the cluster secret {0} is in use: use another one first, then remove it")]
    InUse(KeyId),
}

impl Secret {
    /// The secret with these bytes.
    ///
    /// # Errors
    /// There are too few or too many of them.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, SecretError> {
        let bytes = Zeroizing::new(bytes.into());
        if bytes.len() < SECRET_MIN {
            return Err(SecretError::Short(bytes.len()));
        }
        if bytes.len() > SECRET_MAX {
            return Err(SecretError::Long);
        }
        let root = Hkdf::<Sha256>::new(Some(b"tollgate cluster secret 1"), &bytes);
        let fingerprint = derived(&root, b"fingerprint");
        let mut id = [0; 16];
        id.copy_from_slice(&fingerprint[..16]);
        Ok(Self {
            id: KeyId(u128::from_be_bytes(id)),
            connections: derived(&root, b"connections"),
            gossip: derived(&root, b"gossip"),
            host: derived(&root, b"host"),
        })
    }

    /// The secrets in `text`, one a line; the first is the one to use. Empty lines and lines from `#` on are skipped.
    ///
    /// # Errors
    /// A line is no secret, or there is none, or there are more than [`KEYS_MAX`].
    pub fn of_lines(text: &str) -> Result<Vec<Self>, SecretError> {
        let mut secrets = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if secrets.len() == KEYS_MAX {
                return Err(SecretError::Full);
            }
            secrets.push(Self::new(line.as_bytes())?);
        }
        if secrets.is_empty() { Err(SecretError::Empty) } else { Ok(secrets) }
    }

    /// The secrets in the file at `path`: [`Secret::of_lines`] of it.
    ///
    /// # Errors
    /// It cannot be read, or [`Secret::of_lines`] refuses.
    pub fn of_file(path: &Path) -> io::Result<Vec<Self>> {
        let named = |error: String| format!("cluster secret file {}: {error}", path.display());
        let text = std::fs::read_to_string(path)
            .map(Zeroizing::new)
            .map_err(|error| io::Error::new(error.kind(), named(error.to_string())))?;
        Self::of_lines(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, named(error.to_string())))
    }

    /// Its fingerprint.
    #[must_use]
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// What proves to a peer that this node holds it.
    pub(crate) const fn connections(&self) -> &Key {
        &self.connections
    }

    /// 256 bits for the host's own purposes, the same on every node that holds the secret. Never to be shown or stored.
    #[must_use]
    pub fn for_host(&self) -> &[u8; 32] {
        &self.host
    }

    /// What seals gossip.
    pub(crate) const fn gossip(&self) -> &Key {
        &self.gossip
    }
}

fn derived(root: &Hkdf<Sha256>, purpose: &[u8]) -> Key {
    let mut key = Zeroizing::new([0; 32]);
    match root.expand(purpose, key.as_mut_slice()) {
        Ok(()) => key,
        Err(_) => unreachable!("32 bytes are less than the 8,160 that this derivation can give"),
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The secrets that this node holds, and which of them it uses.
#[derive(Debug)]
pub struct Secrets {
    held: Mutex<Held>,
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Held {
    /// Never empty; at most [`KEYS_MAX`].
    secrets: Vec<Arc<Secret>>,
    /// One of them.
    in_use: Arc<Secret>,
}

impl Secrets {
    /// Holds `first` and uses it.
    #[must_use]
    pub fn new(first: Secret) -> Self {
        let first = Arc::new(first);
        let held = Held { secrets: vec![Arc::clone(&first)], in_use: first };
        Self { held: Mutex::new(held), changes: watch::Sender::new(0) }
    }

    /// Holds all of `secrets` and uses the first.
    ///
    /// # Errors
    /// There is none, or there are more than [`KEYS_MAX`].
    pub fn of(secrets: Vec<Secret>) -> Result<Self, SecretError> {
        let mut secrets = secrets.into_iter();
        let all = Self::new(secrets.next().ok_or(SecretError::Empty)?);
        for secret in secrets {
            all.hold(secret)?;
        }
        Ok(all)
    }

    /// Can read with `secret` from now on. Holding one twice changes nothing.
    ///
    /// # Errors
    /// There are [`KEYS_MAX`] already.
    pub fn hold(&self, secret: Secret) -> Result<KeyId, SecretError> {
        let id = secret.id;
        let mut held = self.held();
        if held.find(id).is_none() {
            if held.secrets.len() == KEYS_MAX {
                return Err(SecretError::Full);
            }
            held.secrets.push(Arc::new(secret));
            self.changed();
        }
        Ok(id)
    }

    /// Seals with `key` from now on.
    ///
    /// # Errors
    /// It is not held.
    pub fn use_key(&self, key: KeyId) -> Result<(), SecretError> {
        let mut held = self.held();
        let found = held.find(key).ok_or(SecretError::NotHeld(key))?;
        if held.in_use.id != key {
            held.in_use = found;
            self.changed();
        }
        Ok(())
    }

    /// Neither reads nor believes `key` any more. Forgetting one that is not held changes nothing.
    ///
    /// # Errors
    /// It is in use.
    pub fn forget(&self, key: KeyId) -> Result<(), SecretError> {
        let mut held = self.held();
        if held.in_use.id == key {
            return Err(SecretError::InUse(key));
        }
        let before = held.secrets.len();
        held.secrets.retain(|secret| secret.id != key);
        if held.secrets.len() < before {
            self.changed();
        }
        Ok(())
    }

    /// The secret in use.
    #[must_use]
    pub fn in_use(&self) -> Arc<Secret> {
        Arc::clone(&self.held().in_use)
    }

    /// All that are held, the one in use first.
    pub(crate) fn in_order(&self) -> Vec<Arc<Secret>> {
        let held = self.held();
        let others = held.secrets.iter().filter(|secret| secret.id != held.in_use.id);
        std::iter::once(&held.in_use).chain(others).cloned().collect()
    }

    /// The secret with this fingerprint, if it is held.
    #[must_use]
    pub fn get(&self, key: KeyId) -> Option<Arc<Secret>> {
        self.held().find(key)
    }

    /// The fingerprints of all that are held.
    #[must_use]
    pub fn ids(&self) -> Vec<KeyId> {
        self.held().secrets.iter().map(|secret| secret.id).collect()
    }

    /// Tells of every change from now on.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // Every change is one assignment, so that a panic cannot have left half of one.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn find(&self, key: KeyId) -> Option<Arc<Secret>> {
        self.secrets.iter().find(|secret| secret.id == key).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "correct horse battery staple, and then some";

    fn secret(letter: u8) -> Secret {
        Secret::new([letter; SECRET_MIN]).unwrap()
    }

    #[test]
    fn nothing_of_a_secret_is_shown_and_its_keys_differ() {
        let secret = Secret::new(TEXT).unwrap();
        let shown = format!("{secret:?}");
        assert!(!shown.contains("horse") && shown.contains("Secret { id: KeyId("), "{shown}");
        assert_ne!(secret.connections(), secret.gossip());
        assert_eq!(secret.id(), Secret::new(TEXT).unwrap().id());
        assert_ne!(secret.id(), Secret::new(format!("{TEXT}.")).unwrap().id());
    }

    #[test]
    fn a_short_secret_is_refused_with_what_to_do() {
        let refused = Secret::new("hunter2").unwrap_err();
        assert_eq!(refused, SecretError::Short(7));
        assert!(refused.to_string().contains("openssl rand -hex 32"));
    }

    #[test]
    fn a_file_has_a_secret_a_line_and_the_first_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, format!("# new\n{TEXT} 2\n\n  {TEXT} 1  \n")).unwrap();
        let secrets = Secrets::of(Secret::of_file(&path).unwrap()).unwrap();
        let [new, old] = [" 2", " 1"].map(|end| Secret::new(format!("{TEXT}{end}")).unwrap().id());
        assert_eq!((secrets.in_use().id(), secrets.ids()), (new, vec![new, old]));

        std::fs::write(&path, "\n# none\n").unwrap();
        let error = Secret::of_file(&path).unwrap_err().to_string();
        assert!(error.contains("there is no cluster secret in it"), "{error}");
        assert!(Secret::of_file(&folder.path().join("absent")).is_err());
    }

    #[test]
    fn the_one_in_use_stays_and_there_is_a_bound() {
        let secrets = Secrets::new(secret(0));
        let mut told = secrets.watch();
        let first = secrets.in_use().id();
        assert_eq!(secrets.forget(first), Err(SecretError::InUse(first)));
        for letter in 1..4 {
            secrets.hold(secret(letter)).unwrap();
        }
        assert_eq!(secrets.hold(secret(4)), Err(SecretError::Full));
        assert_eq!(secrets.hold(secret(3)), Ok(secret(3).id()), "held already");
        assert_eq!(secrets.use_key(secret(4).id()), Err(SecretError::NotHeld(secret(4).id())));
        secrets.use_key(secret(3).id()).unwrap();
        secrets.forget(first).unwrap();
        assert!(secrets.get(first).is_none() && secrets.get(secret(1).id()).is_some());
        assert!(told.has_changed().unwrap());
        assert_eq!(*told.borrow_and_update(), 5);
    }
}
