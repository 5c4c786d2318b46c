//! Remembers how many tokens a text has: a conversation sends its whole history again with every turn.
//!
//! A text is known by 128 bits of XXH3 under a seed that each process draws anew, so nobody can prepare two texts that collide; at
//! 2^16 remembered texts the chance of an accidental collision is below 2^-96. Never holds a text, only its hash and its count.
//!
//! Memory: at most `2 * capacity` entries of 24 bytes in tables filled to at least 7/16, about 4 MiB at the default capacity.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::encoding::{Encoding, count_text};

/// Counts of texts, bounded; shared by all workers.
#[derive(Debug)]
pub struct TokenCache {
    seed: u64,
    shards: [Mutex<Shard>; SHARDS],
    shard_capacity: usize,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// How often the cache helped, since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Texts whose count was remembered.
    pub hits: u64,
    /// Texts that had to be counted, the short ones that are never remembered left out.
    pub misses: u64,
}

/// Enough that the workers of a large machine seldom meet in one.
const SHARDS: usize = 16;

/// Below, counting costs about as much as looking up.
const REMEMBERED_FROM_BYTES: usize = 64;

/// Two generations: what is used moves to the young one, and when that is full the old one is dropped whole. As good as a clock
/// for this purpose, and without a list to maintain.
#[derive(Debug, Default)]
struct Shard {
    young: HashMap<[u64; 2], u32>,
    old: HashMap<[u64; 2], u32>,
}

impl Shard {
    fn get(&mut self, key: [u64; 2], capacity: usize) -> Option<u32> {
        if let Some(count) = self.young.get(&key) {
            return Some(*count);
        }
        let count = self.old.remove(&key)?;
        self.put(key, count, capacity);
        Some(count)
    }

    fn put(&mut self, key: [u64; 2], count: u32, capacity: usize) {
        if self.young.len() >= capacity {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, count);
    }
}

impl TokenCache {
    /// As many counts as a busy node's live conversations have texts.
    pub const CAPACITY: usize = 1 << 15;

    /// An empty cache. `seed`: random, drawn by the process. `capacity`: counts that are surely kept; up to twice as many may be.
    pub fn new(seed: u64, capacity: usize) -> TokenCache {
        TokenCache {
            seed,
            shards: Default::default(),
            shard_capacity: capacity.div_ceil(SHARDS).max(1),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    /// Tokens of a text, remembered or counted. The lock is not held while counting: two workers may count the same text.
    pub fn count(&self, text: &str, encoding: Encoding) -> u64 {
        // A ratio is quicker than any look-up.
        if text.len() < REMEMBERED_FROM_BYTES || matches!(encoding, Encoding::Bytes { .. }) {
            return count_text(text, encoding);
        }
        let (key, shard) = self.place(text, encoding);
        let remembered = lock(shard).get(key, self.shard_capacity);
        if let Some(count) = remembered {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return u64::from(count);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let count = count_text(text, encoding);
        if let Ok(short) = u32::try_from(count) {
            lock(shard).put(key, short, self.shard_capacity);
        }
        count
    }

    /// How often it helped so far.
    pub fn stats(&self) -> CacheStats {
        CacheStats { hits: self.hits.load(Ordering::Relaxed), misses: self.misses.load(Ordering::Relaxed) }
    }

    /// Counts that are held now.
    pub fn len(&self) -> usize {
        self.shards.iter().map(lock).map(|shard| shard.young.len() + shard.old.len()).sum()
    }

    /// Whether no count is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn place(&self, text: &str, encoding: Encoding) -> ([u64; 2], &Mutex<Shard>) {
        // A seed apart for each encoding: the same text has another count there.
        let seed = match encoding {
            Encoding::O200k => self.seed,
            Encoding::Cl100k => !self.seed,
            Encoding::Bytes { milli_bytes_per_token } => self.seed ^ u64::from(milli_bytes_per_token.get()),
        };
        let hash = xxh3_128_with_seed(text.as_bytes(), seed).to_le_bytes();
        let (low, high) = hash.split_at(8);
        let half = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let key = [half(low), half(high)];
        (key, &self.shards[key[0] as usize % SHARDS])
    }
}

/// A worker that panicked between two statements of a map leaves at worst a count unremembered.
fn lock(shard: &Mutex<Shard>) -> std::sync::MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "A conversation sends its whole history again, turn after turn after turn.";

    #[test]
    fn a_text_is_counted_once() {
        let cache = TokenCache::new(7, 100);
        let count = cache.count(TEXT, Encoding::O200k);
        assert_eq!(count, count_text(TEXT, Encoding::O200k));
        assert_eq!(cache.stats(), CacheStats { hits: 0, misses: 1 });
        assert_eq!(cache.count(TEXT, Encoding::O200k), count);
        assert_eq!(cache.stats(), CacheStats { hits: 1, misses: 1 });
    }

    #[test]
    fn encodings_do_not_share_a_count() {
        let cache = TokenCache::new(7, 100);
        let text = "お誕生日おめでとう".repeat(10);
        let counts = [Encoding::O200k, Encoding::Cl100k].map(|encoding| cache.count(&text, encoding));
        assert_ne!(counts[0], counts[1]);
        assert_eq!([Encoding::O200k, Encoding::Cl100k].map(|encoding| cache.count(&text, encoding)), counts);
        assert_eq!(cache.stats().hits, 2);
    }

    #[test]
    fn short_texts_and_ratios_are_not_remembered() {
        let cache = TokenCache::new(7, 100);
        cache.count(&"a".repeat(63), Encoding::O200k);
        cache.count(TEXT, Encoding::bytes(2_590));
        assert!(cache.is_empty());
        cache.count(&"a".repeat(64), Encoding::O200k);
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let cache = TokenCache::new(7, 160);
        for turn in 0..5_000 {
            cache.count(TEXT, Encoding::O200k);
            cache.count(&format!("{TEXT} {turn}"), Encoding::O200k);
            assert!(cache.len() <= 2 * 160, "{} counts", cache.len());
        }
        assert_eq!(cache.stats(), CacheStats { hits: 4_999, misses: 5_001 });
    }

    #[test]
    fn workers_agree() {
        let cache = TokenCache::new(7, 64);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let cache = &cache;
                scope.spawn(move || {
                    for turn in 0..300 {
                        let text = format!("{TEXT} {}", (turn * (worker + 1)) % 50);
                        assert_eq!(cache.count(&text, Encoding::O200k), count_text(&text, Encoding::O200k));
                    }
                });
            }
        });
        assert_eq!(cache.stats().hits + cache.stats().misses, 1_200);
    }
}
