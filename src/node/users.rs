//! What the names of end users are made digests with.
//!
//! Laws: a name goes no further than the node that was asked, its digest everywhere; without the key nobody can tell from a digest
//! whose it is by trying names, which are few; nodes of one cluster come to the same digest, whichever of them is asked.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use ring::hmac;
use tollgate_cluster::secret::Secrets;

use crate::limit::UserDigest;

/// A key for digests of users' names.
pub enum UserKey {
    /// A node that is its own cluster has its own.
    Own(hmac::Key),
    /// Members derive theirs from the cluster's secret. A change of the secret changes it, and each user's buckets begin anew.
    Cluster(Arc<Secrets>),
}

impl UserKey {
    /// One that nobody else has, and that is gone with the process.
    #[must_use]
    pub fn random() -> Self {
        Self::own(&rand::random())
    }

    /// The one in `folder/users.key`, made with 256 random bits and readable by its owner alone when there is none yet: a user is the
    /// same one in the node's next life.
    ///
    /// # Errors
    /// The folder or the file cannot be made or read, or the file holds no key.
    pub fn of_folder(folder: &Path) -> io::Result<Self> {
        let path = folder.join("users.key");
        fs::create_dir_all(folder)?;
        let random: [u8; 32] = rand::random();
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => writeln!(file, "{}", hex::encode(random))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let mut key = [0; 32];
        hex::decode_to_slice(fs::read_to_string(&path)?.trim(), &mut key)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it holds no key: delete it"))?;
        Ok(Self::own(&key))
    }

    fn own(key: &[u8; 32]) -> Self {
        Self::Own(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// The digest of a name; with the tenant, so that one tenant's users are nothing to another.
    #[must_use]
    pub fn digest(&self, tenant: &str, name: &[u8]) -> UserDigest {
        match self {
            Self::Own(key) => digest(key, tenant, name),
            Self::Cluster(secrets) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secrets.in_use().for_host());
                digest(&key, tenant, name)
            }
        }
    }
}

fn digest(key: &hmac::Key, tenant: &str, name: &[u8]) -> UserDigest {
    let mut hash = hmac::Context::with_key(key);
    for part in [b"user", tenant.as_bytes(), name] {
        hash.update(part);
        hash.update(&[0]);
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&hash.sign().as_ref()[..16]);
    UserDigest(u128::from_be_bytes(digest))
}

#[cfg(test)]
mod tests {
    use tollgate_cluster::secret::Secret;

    use super::*;

    #[test]
    fn a_name_is_one_tenant_s_own_and_one_key_s() {
        let (key, other) = (UserKey::random(), UserKey::random());
        assert_eq!(key.digest("northwind", b"ada"), key.digest("northwind", b"ada"));
        assert_ne!(key.digest("northwind", b"ada"), key.digest("contoso", b"ada"));
        assert_ne!(key.digest("northwind", b"ada"), other.digest("northwind", b"ada"));
        assert!(!format!("{:?}", key.digest("northwind", b"ada")).chars().any(|c| c.is_ascii_digit()));
    }

    #[test]
    fn a_folder_keeps_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let made = UserKey::of_folder(folder.path()).unwrap().digest("northwind", b"ada");
        assert_eq!(UserKey::of_folder(folder.path()).unwrap().digest("northwind", b"ada"), made);
        fs::write(folder.path().join("users.key"), "short").unwrap();
        assert!(UserKey::of_folder(folder.path()).is_err());
    }

    #[test]
    fn members_agree_by_their_secret() {
        let member = |secret: &str| {
            let secret = Secret::new(secret.as_bytes()).unwrap();
            UserKey::Cluster(Arc::new(Secrets::new(secret))).digest("northwind", b"ada")
        };
        let secret = "a secret that has forty bytes, or so many";
        assert_eq!(member(secret), member(secret));
        assert_ne!(member(secret), member(&secret.to_uppercase()));
    }
}
