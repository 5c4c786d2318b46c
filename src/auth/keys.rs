//! The keys in force, by hash.

use std::sync::Arc;

use hashbrown::HashMap;
use jiff::Timestamp;
use subtle::ConstantTimeEq;

use super::Credential;
use crate::policy::KeyHash;

/// Key hash → principal. `P` is whatever a principal is to the caller.
#[derive(Debug)]
pub struct KeyTable<P> {
    /// By the first half of the hash; the whole of it is compared in constant time.
    keys: HashMap<u128, Entry<P>>,
}

#[derive(Debug)]
struct Entry<P> {
    hash: [u8; 32],
    expires: Option<Timestamp>,
    principal: Arc<P>,
}

impl<P> KeyTable<P> {
    /// A table of keys, each with the instant from which it is no longer accepted.
    pub fn new(keys: impl IntoIterator<Item = (KeyHash, Option<Timestamp>, Arc<P>)>) -> Self {
        let entry = |(KeyHash(hash), expires, principal)| (half(&hash), Entry { hash, expires, principal });
        Self { keys: keys.into_iter().map(entry).collect() }
    }

    /// The principal of `credential` at `now`; none when it is unknown or expired, which are not told apart.
    #[must_use]
    pub fn find(&self, credential: Credential<'_>, now: Timestamp) -> Option<&Arc<P>> {
        let KeyHash(hash) = KeyHash::of(credential.expose());
        let entry = self.keys.get(&half(&hash))?;
        let same = bool::from(entry.hash.ct_eq(&hash));
        let valid = entry.expires.is_none_or(|expires| now < expires);
        (same && valid).then_some(&entry.principal)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

fn half(hash: &[u8; 32]) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    u128::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;

    fn find(table: &KeyTable<&'static str>, key: &str, now: &str) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        headers.insert("x-api-key", HeaderValue::from_str(key).unwrap());
        table.find(Credential::find(&headers).unwrap(), now.parse().unwrap()).map(|found| **found)
    }

    #[test]
    fn a_key_is_found_by_its_hash_until_it_expires() {
        let expires = Some("2026-12-01T00:00:00Z".parse().unwrap());
        let table = KeyTable::new([
            (KeyHash::of(b"tg-1"), None, Arc::new("northwind")),
            (KeyHash::of(b"tg-2"), expires, Arc::new("contoso")),
        ]);
        assert_eq!(find(&table, "tg-1", "2030-01-01T00:00:00Z"), Some("northwind"));
        assert_eq!(find(&table, "tg-2", "2026-11-30T23:59:59Z"), Some("contoso"));
        assert_eq!(find(&table, "tg-2", "2026-12-01T00:00:00Z"), None);
        assert_eq!(find(&table, "tg-3", "2026-11-30T00:00:00Z"), None);
    }
}
