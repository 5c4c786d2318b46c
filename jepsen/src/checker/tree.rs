//! A segment tree over positions: adds to a prefix, and finds the last position of a prefix that is above a bound.

/// Values at positions `0..n`.
pub struct Tree {
    size: usize,
    /// The largest value below each node, without what is still to be added above it.
    most: Vec<i128>,
    added: Vec<i128>,
}

/// Of positions that do not exist.
const NEVER: i128 = i128::MIN / 4;

impl Tree {
    /// These values.
    pub fn new(values: &[i128]) -> Self {
        let size = values.len().next_power_of_two().max(1);
        let mut most = vec![NEVER; size * 2];
        most[size..size + values.len()].copy_from_slice(values);
        for node in (1..size).rev() {
            most[node] = most[node * 2].max(most[node * 2 + 1]);
        }
        Self { size, most, added: vec![0; size * 2] }
    }

    /// Adds to the positions below `end`.
    pub fn add(&mut self, end: usize, amount: i128) {
        self.add_below(1, 0, self.size, end, amount);
    }

    /// The largest value below `end`.
    pub fn highest(&self, end: usize) -> i128 {
        self.highest_below(1, 0, self.size, end)
    }

    /// The last position below `end` with a value above `bound`.
    pub fn last_above(&self, end: usize, bound: i128) -> Option<(usize, i128)> {
        self.last_below(1, 0, self.size, end, bound)
    }

    fn add_below(&mut self, node: usize, from: usize, to: usize, end: usize, amount: i128) {
        if from >= end {
            return;
        }
        if to <= end {
            self.most[node] += amount;
            self.added[node] += amount;
            return;
        }
        let middle = from.midpoint(to);
        self.add_below(node * 2, from, middle, end, amount);
        self.add_below(node * 2 + 1, middle, to, end, amount);
        self.most[node] = self.most[node * 2].max(self.most[node * 2 + 1]) + self.added[node];
    }

    fn highest_below(&self, node: usize, from: usize, to: usize, end: usize) -> i128 {
        if from >= end {
            return NEVER;
        }
        if to <= end {
            return self.most[node];
        }
        let middle = from.midpoint(to);
        let left = self.highest_below(node * 2, from, middle, end);
        left.max(self.highest_below(node * 2 + 1, middle, to, end)) + self.added[node]
    }

    fn last_below(
        &self,
        node: usize,
        from: usize,
        to: usize,
        end: usize,
        bound: i128,
    ) -> Option<(usize, i128)> {
        if from >= end || self.most[node] <= bound {
            return None;
        }
        if to - from == 1 {
            return Some((from, self.most[node]));
        }
        let (middle, bound) = (from.midpoint(to), bound - self.added[node]);
        let found = self
            .last_below(node * 2 + 1, middle, to, end, bound)
            .or_else(|| self.last_below(node * 2, from, middle, end, bound));
        found.map(|(at, value)| (at, value + self.added[node]))
    }
}
