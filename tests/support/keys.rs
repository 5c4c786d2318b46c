//! Keys for tests: the same label gives the same key, so that a failing test can be repeated by hand.

use sha2::{Digest, Sha256};

/// A caller's key and the hash that a policy holds of it.
#[derive(Clone, Debug)]
pub struct Key {
    /// What the caller sends: `tg-` and 64 hexadecimal digits.
    pub secret: String,
    /// What the policy holds: `sha256:` and the SHA-256 of the whole secret, in hexadecimal.
    pub hash: String,
}

impl Key {
    /// The key of this label.
    pub fn of(label: &str) -> Key {
        let secret = format!("tg-{}", hex::encode(Sha256::digest(label)));
        let hash = format!("sha256:{}", hex::encode(Sha256::digest(&secret)));
        Key { secret, hash }
    }

    /// `Bearer …`, the value of an `authorization` header.
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.secret)
    }
}
