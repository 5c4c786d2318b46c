//! Seeded chance (SplitMix64): the same seed makes the same choices.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A stream of its own, told apart by `which`.
    pub fn fork(&self, which: u64) -> Self {
        Self(self.0 ^ which.wrapping_add(1).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// One of `low..high`.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).max(1))
    }

    /// True in `permille` of a thousand cases.
    pub fn happens(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of `choices`, which is not empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}
