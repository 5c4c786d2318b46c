//! Sealed datagrams: who sent them, that nobody changed them, and that they are not old ones sent again.
//!
//! ```text
//! version u8 │ key u128 │ nonce (24) │ sealed( sender u128 │ generation u64 │ number u64 │ payload ) │ seal (16)
//! ```
//! XChaCha20-Poly1305 with all that precedes in the clear as associated data. Its nonce is long enough to be random for ever.
//!
//! Laws:
//! - nothing of a payload is read before its seal is verified;
//! - every key that is held opens, the one in use seals;
//! - each datagram is taken once: of each sender the latest generation counts, and in it a window of [`WINDOW`] numbers;
//! - at most [`SENDERS_MAX`] senders are remembered, the longest silent of them forgotten first.
//!
//! A node that starts has no memory of what was sent before: whoever recorded a datagram can have it taken once more. It says what the
//! gossip itself would say of the past, which later gossip overrules.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};

use crate::id::Identity;
use crate::keyring::KeyId;
use crate::outside::Entropy;
use crate::secret::{Secret, Secrets};

/// What a datagram has beside its payload.
pub(super) const OVERHEAD: usize = CLEAR + INNER + 16;

const VERSION: u8 = 1;
const NONCE: usize = 24;
const CLEAR: usize = 1 + 16 + NONCE;
const INNER: usize = 16 + 8 + 8;

/// How far behind the highest number of its sender a datagram may come.
const WINDOW: u64 = 128;
/// How many senders are remembered.
const SENDERS_MAX: usize = 1024;

/// Seals what this node sends.
pub(super) struct Sealer {
    secrets: Arc<Secrets>,
    entropy: Arc<dyn Entropy>,
    sender: Identity,
    generation: u64,
    numbers: AtomicU64,
}

impl Sealer {
    pub(super) fn new(
        secrets: Arc<Secrets>,
        entropy: Arc<dyn Entropy>,
        sender: Identity,
        generation: u64,
    ) -> Self {
        Self { secrets, entropy, sender, generation, numbers: AtomicU64::new(0) }
    }

    /// A datagram with `payload`.
    pub(super) fn seal(&self, payload: &[u8]) -> Vec<u8> {
        let secret = self.secrets.in_use();
        let mut nonce = [0; NONCE];
        self.entropy.fill(&mut nonce);
        let mut datagram = Vec::with_capacity(OVERHEAD + payload.len());
        datagram.push(VERSION);
        datagram.extend_from_slice(&secret.id().0.to_le_bytes());
        datagram.extend_from_slice(&nonce);

        let mut inner = Vec::with_capacity(INNER + payload.len());
        inner.extend_from_slice(&self.sender.0.to_le_bytes());
        inner.extend_from_slice(&self.generation.to_le_bytes());
        inner.extend_from_slice(&self.numbers.fetch_add(1, Ordering::Relaxed).to_le_bytes());
        inner.extend_from_slice(payload);
        let plain = Payload { msg: &inner, aad: &datagram };
        match cipher(&secret).encrypt(&XNonce::from(nonce), plain) {
            Ok(sealed) => datagram.extend_from_slice(&sealed),
            Err(_) => unreachable!("a datagram is shorter than the 256 GiB that can be sealed"),
        }
        datagram
    }
}

/// Why a datagram was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// Too short, or of another layout.
    Malformed,
    /// Sealed with a key that this node does not hold.
    UnknownKey,
    /// Changed on its way, or never sealed.
    BadSeal,
    /// Taken already, or too old to tell, or this node's own.
    Replayed,
}

/// Opens what others send.
pub(super) struct Opener {
    secrets: Arc<Secrets>,
    own: Identity,
    senders: BTreeMap<Identity, Sender>,
    /// Counts what was taken, to tell who has been silent for longest.
    taken: u64,
}

struct Sender {
    generation: u64,
    highest: u64,
    /// Bit n: whether `highest − n` was taken.
    before: u128,
    last: u64,
}

impl Opener {
    pub(super) const fn new(secrets: Arc<Secrets>, own: Identity) -> Self {
        Self { secrets, own, senders: BTreeMap::new(), taken: 0 }
    }

    /// The payload of a datagram.
    pub(super) fn open(&mut self, datagram: &[u8]) -> Result<Vec<u8>, Dropped> {
        let (clear, sealed) = datagram.split_at_checked(CLEAR).ok_or(Dropped::Malformed)?;
        let (&version, rest) = clear.split_first().ok_or(Dropped::Malformed)?;
        let (key, nonce) = rest.split_first_chunk::<16>().ok_or(Dropped::Malformed)?;
        let nonce = <[u8; NONCE]>::try_from(nonce).map_err(|_| Dropped::Malformed)?;
        if version != VERSION {
            return Err(Dropped::Malformed);
        }
        let secret = self.secrets.get(KeyId(u128::from_le_bytes(*key))).ok_or(Dropped::UnknownKey)?;
        let sealed = Payload { msg: sealed, aad: clear };
        let mut inner =
            cipher(&secret).decrypt(&XNonce::from(nonce), sealed).map_err(|_| Dropped::BadSeal)?;

        let (sender, rest) = inner.split_first_chunk::<16>().ok_or(Dropped::Malformed)?;
        let (generation, rest) = rest.split_first_chunk::<8>().ok_or(Dropped::Malformed)?;
        let (number, _) = rest.split_first_chunk::<8>().ok_or(Dropped::Malformed)?;
        let sender = Identity(u128::from_le_bytes(*sender));
        if !self.is_new(sender, u64::from_le_bytes(*generation), u64::from_le_bytes(*number)) {
            return Err(Dropped::Replayed);
        }
        inner.drain(..INNER);
        Ok(inner)
    }

    /// Whether this is the first of its number, which it is not any more afterwards.
    fn is_new(&mut self, sender: Identity, generation: u64, number: u64) -> bool {
        if sender == self.own {
            return false;
        }
        self.taken += 1;
        let last = self.taken;
        if !self.senders.contains_key(&sender) && self.senders.len() == SENDERS_MAX {
            let silent = self.senders.iter().min_by_key(|(_, sender)| sender.last).map(|(&sender, _)| sender);
            silent.map(|silent| self.senders.remove(&silent));
        }
        let fresh = Sender { generation, highest: number, before: 1, last };
        let Some(known) = self.senders.get_mut(&sender) else {
            self.senders.insert(sender, fresh);
            return true;
        };
        if generation != known.generation {
            let later = generation > known.generation;
            if later {
                *known = fresh;
            }
            return later;
        }
        known.last = last;
        if number > known.highest {
            let ahead = number - known.highest;
            known.before = if ahead < WINDOW { known.before << ahead } else { 0 } | 1;
            known.highest = number;
            return true;
        }
        let behind = known.highest - number;
        if behind >= WINDOW || known.before & (1 << behind) != 0 {
            return false;
        }
        known.before |= 1 << behind;
        true
    }
}

fn cipher(secret: &Secret) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(&Key::from(**secret.gossip()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::outside::OsEntropy;

    fn secrets(letters: &[u8]) -> Arc<Secrets> {
        let secrets = letters.iter().map(|&letter| Secret::new([letter; 32]).unwrap()).collect();
        Arc::new(Secrets::of(secrets).unwrap())
    }

    fn sealer(letters: &[u8], sender: u128, generation: u64) -> Sealer {
        Sealer::new(secrets(letters), Arc::new(OsEntropy), Identity(sender), generation)
    }

    fn opener(letters: &[u8]) -> Opener {
        Opener::new(secrets(letters), Identity(0))
    }

    #[test]
    fn a_datagram_is_taken_once() {
        let (sealer, mut opener) = (sealer(b"a", 1, 1), opener(b"a"));
        let first = sealer.seal(b"first");
        let second = sealer.seal(b"second");
        assert_eq!(first.len(), OVERHEAD + 5);
        assert_eq!(opener.open(&second).unwrap(), b"second");
        assert_eq!(opener.open(&first).unwrap(), b"first", "out of order");
        assert_eq!(opener.open(&first), Err(Dropped::Replayed));
        assert_eq!(opener.open(&second), Err(Dropped::Replayed));
        for _ in 0..WINDOW {
            sealer.seal(b"");
        }
        let late = sealer.seal(b"late");
        for _ in 0..WINDOW {
            opener.open(&sealer.seal(b"")).unwrap();
        }
        assert_eq!(opener.open(&late), Err(Dropped::Replayed), "too old to tell");
    }

    #[test]
    fn a_restart_ends_the_life_before_and_a_reflection_is_none() {
        let (before, after, mut opener) = (sealer(b"a", 1, 1), sealer(b"a", 1, 2), opener(b"a"));
        opener.open(&before.seal(b"")).unwrap();
        opener.open(&after.seal(b"")).unwrap();
        assert_eq!(opener.open(&before.seal(b"")), Err(Dropped::Replayed));
        assert_eq!(opener.open(&sealer(b"a", 0, 9).seal(b"")), Err(Dropped::Replayed));
    }

    #[test]
    fn every_key_that_is_held_opens_and_no_other() {
        let mut opener = opener(b"ab");
        assert!(opener.open(&sealer(b"a", 1, 1).seal(b"")).is_ok());
        assert!(opener.open(&sealer(b"ba", 2, 1).seal(b"")).is_ok());
        assert_eq!(opener.open(&sealer(b"c", 3, 1).seal(b"")), Err(Dropped::UnknownKey));
        assert_eq!(opener.open(b"hello"), Err(Dropped::Malformed));
        assert_eq!(opener.open(&[b'{'; 100]), Err(Dropped::Malformed), "plaintext");
    }

    #[test]
    fn the_senders_remembered_are_bounded() {
        let mut opener = opener(b"a");
        for sender in 1..=2 * SENDERS_MAX as u128 {
            assert!(opener.is_new(Identity(sender), 1, 0));
            // One that is heard all the time is not forgotten.
            assert!(!opener.is_new(Identity(1), 1, 0));
        }
        assert_eq!(opener.senders.len(), SENDERS_MAX);
    }

    proptest! {
        #[test]
        fn no_bit_can_be_changed(payload: Vec<u8>, at: prop::sample::Index, bit in 0u8..8) {
            let mut datagram = sealer(b"a", 1, 1).seal(&payload);
            let at = at.index(datagram.len());
            datagram[at] ^= 1 << bit;
            let dropped = opener(b"a").open(&datagram).unwrap_err();
            let expected = match at {
                0 => Dropped::Malformed,
                1..17 => Dropped::UnknownKey,
                _ => Dropped::BadSeal,
            };
            prop_assert_eq!(dropped, expected);
        }

        #[test]
        fn any_bytes_are_dropped(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(opener(b"a").open(&bytes).is_err());
        }

        #[test]
        fn in_any_order_each_number_is_new_once(numbers in prop::collection::vec(0u64..200, 0..400)) {
            let (mut opener, mut taken) = (opener(b"a"), std::collections::BTreeSet::new());
            for number in numbers {
                let highest = taken.last().copied().unwrap_or(number);
                let expected = !taken.contains(&number) && number + WINDOW > highest;
                prop_assert_eq!(opener.is_new(Identity(1), 1, number), expected);
                if expected {
                    taken.insert(number);
                }
            }
        }
    }
}
