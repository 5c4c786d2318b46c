//! The keys that are agreed on beside those of the policy: made, rotated and revoked one by one. Only hashes are known here.
//!
//! A key is a tenant and a label: that is what its limits bind, its buckets stand under and reports name. It has one secret, or for a
//! while several: a rotation gives it another and lets the older ones work until their grace is over. Whoever proposes a change has
//! checked it against the policy's own keys; see [`super::Refusal::Stale`].
//!
//! **When a key expires** is an instant of the wall clock, by which each gateway judges: it is a date in somebody's contract, not a
//! limit that others pay for, and log time knows no dates. A gateway whose wall clock is wrong is wrong about it by as much.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Refusal;

/// The most keys.
pub const KEYS_MAX: usize = 65_536;

/// The most secrets of one key at once: that of now, and those whose grace is not over.
pub const SECRETS_MAX: usize = 4;

/// The most hashes of the policy's keys that are revoked.
pub const REVOKED_MAX: usize = 65_536;

/// SHA-256 of a secret.
pub type Hash = [u8; 32];

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The [`super::Control::version`] that it was checked against.
    pub basis: u64,
    /// The proposer's wall clock, in milliseconds since 1970.
    pub wall_millis: i64,
    /// What.
    pub change: Change,
}

/// What is done to a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// There is a new one.
    Create {
        /// Whose and which.
        name: KeyName,
        /// Of its secret.
        hash: Hash,
        /// The project that its requests belong to.
        project: Option<String>,
        /// Its limits.
        limits: Limits,
        /// From when on it is refused, in milliseconds since 1970.
        expires: Option<i64>,
    },
    /// It has a new secret; the older ones work until then.
    Rotate {
        /// Whose and which.
        name: KeyName,
        /// Of its new secret.
        hash: Hash,
        /// From when on the older secrets are refused, in milliseconds since 1970.
        until: i64,
    },
    /// It works no more.
    Revoke {
        /// Whose and which.
        name: KeyName,
        /// Of the policy's key of that name, if that is meant: its hash works no more, whatever the document says.
        hashes: Vec<Hash>,
    },
}

/// A key's tenant and label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyName {
    /// Whose it is.
    pub tenant: String,
    /// What it is called there.
    pub label: String,
}

/// A key's limits, within its tenant's; what is absent is not limited. Per minute, and at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are those of the policy's document
pub struct Limits {
    pub tokens_per_minute: Option<u64>,
    pub input_tokens_per_minute: Option<u64>,
    pub output_tokens_per_minute: Option<u64>,
    pub burst_tokens: Option<u64>,
    pub requests_per_minute: Option<u64>,
    pub burst_requests: Option<u64>,
    pub max_inflight: Option<u64>,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The project that its requests belong to.
    pub project: Option<String>,
    /// Its limits.
    pub limits: Limits,
    /// From when on it is refused, in milliseconds since 1970.
    pub expires: Option<i64>,
    /// The version that it came in.
    pub since: u64,
    /// Its secrets, the newest last.
    pub secrets: Vec<Secret>,
}

/// A secret of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret {
    /// Its hash.
    pub hash: Hash,
    /// When it was made by its proposer's wall clock, in milliseconds since 1970.
    pub made: i64,
    /// From when on it is refused, in milliseconds since 1970: it has been rotated away.
    pub until: Option<i64>,
}

/// The keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    keys: BTreeMap<KeyName, Key>,
    /// Hashes of the policy's keys that work no more, with the version since which.
    revoked: BTreeMap<Hash, u64>,
}

impl Keys {
    /// All of them, by tenant and label.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&KeyName, &Key)> {
        self.keys.iter()
    }

    /// Those of one tenant, by label.
    pub fn of_tenant<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = (&'a KeyName, &'a Key)> {
        let from = KeyName { tenant: tenant.to_owned(), label: String::new() };
        self.keys.range(from..).take_while(move |(name, _)| name.tenant == tenant)
    }

    /// A key.
    #[must_use]
    pub fn get(&self, name: &KeyName) -> Option<&Key> {
        self.keys.get(name)
    }

    /// Since which version a hash of the policy's works no more.
    #[must_use]
    pub fn revoked(&self, hash: &Hash) -> Option<u64> {
        self.revoked.get(hash).copied()
    }

    /// How many hashes of the policy's work no more.
    #[must_use]
    pub fn revocations(&self) -> usize {
        self.revoked.len()
    }

    /// Whose secret a hash is.
    #[must_use]
    pub fn of_hash(&self, hash: &Hash) -> Option<&KeyName> {
        let has = |key: &Key| key.secrets.iter().any(|secret| secret.hash == *hash);
        self.keys.iter().find(|(_, key)| has(key)).map(|(name, _)| name)
    }

    /// Makes a change, in `version`, or refuses it whole.
    pub(super) fn apply(&mut self, version: u64, commit: Commit) -> Result<(), Refusal> {
        let Commit { wall_millis, change, .. } = commit;
        match change {
            Change::Create { name, hash, project, limits, expires } => {
                if self.keys.contains_key(&name) {
                    return Err(Refusal::KeyExists { tenant: name.tenant, label: name.label });
                }
                self.is_new(&hash)?;
                if self.keys.len() >= KEYS_MAX {
                    return Err(too_many("keys are agreed on, revoke those that have expired", KEYS_MAX));
                }
                let secrets = vec![Secret { hash, made: wall_millis, until: None }];
                self.keys.insert(name, Key { project, limits, expires, since: version, secrets });
                Ok(())
            }
            Change::Rotate { name, hash, until } => {
                self.is_new(&hash)?;
                let Some(key) = self.keys.get_mut(&name) else { return Err(no_such(name)) };
                let works = |secret: &&Secret| secret.until.is_none_or(|until| wall_millis < until);
                let mut secrets: Vec<Secret> = key.secrets.iter().filter(works).copied().collect();
                if secrets.len() >= SECRETS_MAX {
                    let what = "secrets of this key still work, wait until a grace is over";
                    return Err(too_many(what, SECRETS_MAX));
                }
                for secret in &mut secrets {
                    secret.until = Some(secret.until.map_or(until, |earlier| earlier.min(until)));
                }
                secrets.push(Secret { hash, made: wall_millis, until: None });
                key.secrets = secrets;
                Ok(())
            }
            Change::Revoke { name, hashes } => {
                if !self.keys.contains_key(&name) && hashes.is_empty() {
                    return Err(no_such(name));
                }
                if self.revoked.len() + hashes.len() > REVOKED_MAX {
                    return Err(too_many(
                        "keys of the policy are revoked, take them out of the document",
                        REVOKED_MAX,
                    ));
                }
                self.keys.remove(&name);
                for hash in hashes {
                    self.revoked.entry(hash).or_insert(version);
                }
                Ok(())
            }
        }
    }

    fn is_new(&self, hash: &Hash) -> Result<(), Refusal> {
        match self.of_hash(hash) {
            Some(KeyName { tenant, label }) => {
                Err(Refusal::HashTaken { tenant: tenant.clone(), label: label.clone() })
            }
            None => Ok(()),
        }
    }
}

fn no_such(KeyName { tenant, label }: KeyName) -> Refusal {
    Refusal::NoSuchKey { tenant, label }
}

fn too_many(what: &str, most: usize) -> Refusal {
    Refusal::TooMany { what: what.to_owned(), most: u64::try_from(most).unwrap_or(u64::MAX) }
}
