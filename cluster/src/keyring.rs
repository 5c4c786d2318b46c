//! Rotation of the cluster's secret: install → use → remove. The ring holds fingerprints; the secrets stay with the nodes.
//!
//! Laws:
//! - a key is used only once every live node holds it: until then somebody could not read what the others write;
//! - a key is removed only when it is not the one in use and no live node lacks the one in use;
//! - a command that is refused changes nothing; one that is repeated changes nothing either;
//! - at most [`KEYS_MAX`] keys.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::NodeId;

/// How many keys a ring holds: the one in use, the one before, the one to come, and one whose rotation was abandoned.
pub const KEYS_MAX: usize = 4;

/// The fingerprint of a cluster secret: the first 128 bits of its hash. It gives nothing of the secret away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId(pub u128);

/// A step of a rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeyringCommand {
    /// Nodes should come to hold `key`. The first key of a cluster is in use at once.
    Install {
        /// Which key.
        key: KeyId,
    },
    /// `node` can now read what is sealed with `key`.
    Hold {
        /// Who.
        node: NodeId,
        /// Which key.
        key: KeyId,
    },
    /// Seal with `key` from now on.
    Use {
        /// Which key.
        key: KeyId,
    },
    /// Stop reading what is sealed with `key`.
    Remove {
        /// Which key.
        key: KeyId,
    },
}

/// Why a step was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum KeyringRefusal {
    /// No such key on the ring.
    #[error("the ring has no such key: install it first")]
    Unknown,
    /// The ring is full.
    #[error("the ring already has {KEYS_MAX} keys: remove one that is not in use")]
    Full,
    /// The key in use cannot go.
    #[error("this key is in use: use another one first, then remove it")]
    InUse,
    /// A live node could not read its peers.
    #[error(
        "node {node} is live and does not hold the new key: give it the key, or remove the node, then try again"
    )]
    Lacking {
        /// The lowest-numbered such node.
        node: NodeId,
    },
}

/// The keys of a cluster, who holds each, and which is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Keyring {
    holders: BTreeMap<KeyId, BTreeSet<NodeId>>,
    in_use: Option<KeyId>,
}

impl Keyring {
    /// The key to seal with; `None` before the first is installed.
    #[must_use]
    pub const fn in_use(&self) -> Option<KeyId> {
        self.in_use
    }

    /// Every key on the ring and the nodes that hold it.
    #[must_use]
    pub const fn keys(&self) -> &BTreeMap<KeyId, BTreeSet<NodeId>> {
        &self.holders
    }

    /// Takes a step, `live` being the nodes that a rotation must not cut off. Checks everything, then writes.
    pub(crate) fn apply(
        &mut self,
        command: KeyringCommand,
        live: &BTreeSet<NodeId>,
    ) -> Result<(), KeyringRefusal> {
        match command {
            KeyringCommand::Install { key } => self.install(key),
            KeyringCommand::Hold { node, key } => {
                self.holders.get_mut(&key).ok_or(KeyringRefusal::Unknown)?.insert(node);
                Ok(())
            }
            KeyringCommand::Use { key } => {
                self.held_by_all(key, live)?;
                self.in_use = Some(key);
                Ok(())
            }
            KeyringCommand::Remove { key } => self.remove(key, live),
        }
    }

    /// `node` is a member no more: nothing waits for it.
    pub(crate) fn forget(&mut self, node: NodeId) {
        for holders in self.holders.values_mut() {
            holders.remove(&node);
        }
    }

    fn install(&mut self, key: KeyId) -> Result<(), KeyringRefusal> {
        if self.holders.contains_key(&key) {
            return Ok(());
        }
        if self.holders.len() == KEYS_MAX {
            return Err(KeyringRefusal::Full);
        }
        self.holders.insert(key, BTreeSet::new());
        self.in_use.get_or_insert(key);
        Ok(())
    }

    fn remove(&mut self, key: KeyId, live: &BTreeSet<NodeId>) -> Result<(), KeyringRefusal> {
        if !self.holders.contains_key(&key) {
            return Ok(());
        }
        let Some(in_use) = self.in_use.filter(|&used| used != key) else { return Err(KeyringRefusal::InUse) };
        self.held_by_all(in_use, live)?;
        self.holders.remove(&key);
        Ok(())
    }

    fn held_by_all(&self, key: KeyId, live: &BTreeSet<NodeId>) -> Result<(), KeyringRefusal> {
        let holders = self.holders.get(&key).ok_or(KeyringRefusal::Unknown)?;
        live.difference(holders).next().map_or(Ok(()), |&node| Err(KeyringRefusal::Lacking { node }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KeyringCommand::{Hold, Install, Remove, Use};

    const OLD: KeyId = KeyId(1);
    const NEW: KeyId = KeyId(2);
    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(7);

    fn ring(steps: &[KeyringCommand]) -> Keyring {
        let mut ring = Keyring::default();
        for &step in steps {
            ring.apply(step, &[A, B].into()).unwrap();
        }
        ring
    }

    fn refused(ring: &Keyring, step: KeyringCommand) -> KeyringRefusal {
        let mut after = ring.clone();
        let refusal = after.apply(step, &[A, B].into()).unwrap_err();
        assert_eq!(&after, ring, "a refusal changes nothing");
        refusal
    }

    const INSTALLED: [KeyringCommand; 5] = [
        Install { key: OLD },
        Hold { node: A, key: OLD },
        Hold { node: B, key: OLD },
        Install { key: NEW },
        Hold { node: A, key: NEW },
    ];

    #[test]
    fn a_key_is_installed_then_used_then_the_old_one_removed() {
        let mut ring = ring(&INSTALLED);
        assert_eq!(ring.in_use(), Some(OLD));
        for step in [Hold { node: B, key: NEW }, Use { key: NEW }, Remove { key: OLD }] {
            ring.apply(step, &[A, B].into()).unwrap();
        }
        assert_eq!((ring.in_use(), ring.keys().len()), (Some(NEW), 1));
    }

    #[test]
    fn a_key_that_a_live_node_lacks_is_not_used() {
        assert_eq!(refused(&ring(&INSTALLED), Use { key: NEW }), KeyringRefusal::Lacking { node: B });
    }

    #[test]
    fn the_old_key_stays_while_a_live_node_lacks_the_new_one() {
        let mut rotated = ring(&INSTALLED);
        // B is down while the others switch, and back before the old key goes.
        rotated.apply(Use { key: NEW }, &[A].into()).unwrap();
        assert_eq!(refused(&rotated, Remove { key: OLD }), KeyringRefusal::Lacking { node: B });
        rotated.forget(B);
        rotated.apply(Remove { key: OLD }, &[A].into()).unwrap();
    }

    #[test]
    fn the_key_in_use_cannot_be_removed_nor_an_unknown_one_used() {
        assert_eq!(refused(&ring(&INSTALLED), Remove { key: OLD }), KeyringRefusal::InUse);
        assert_eq!(refused(&ring(&INSTALLED), Use { key: KeyId(9) }), KeyringRefusal::Unknown);
    }

    #[test]
    fn a_ring_is_bounded_and_a_repeat_changes_nothing() {
        let full = ring(&[1, 2, 3, 4, 4].map(|key| Install { key: KeyId(key) }));
        assert_eq!(refused(&full, Install { key: KeyId(5) }), KeyringRefusal::Full);
        assert_eq!(ring(&[Install { key: OLD }, Remove { key: NEW }]), ring(&[Install { key: OLD }]));
    }
}
