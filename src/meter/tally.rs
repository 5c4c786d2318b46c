//! Counts the text of a stream as it passes, for the streams whose end is never seen.

use std::fmt;

use super::stream::CountTokens;

/// Text is counted in pieces of at most this many bytes. A cut may split one token in two, so that the count errs by
/// less than a hundredth; twice the size would be half the error and twice the memory of every open stream.
const PIECE: usize = 512;

/// Tokens counted so far, and the text that waits for a full piece. Waiting is not only for the sake of the count:
/// most streams end with the provider's own report, and what still waits then is never counted.
pub(super) struct Tally {
    count: CountTokens,
    waiting: String,
    counted: u64,
}

impl Tally {
    pub fn new(count: CountTokens) -> Self {
        Self { count, waiting: String::new(), counted: 0 }
    }

    pub fn add(&mut self, mut text: &str) {
        if self.waiting.capacity() == 0 && !text.is_empty() {
            self.waiting.reserve_exact(PIECE);
        }
        loop {
            let room = PIECE - self.waiting.len();
            if text.len() <= room {
                self.waiting.push_str(text);
                return;
            }
            let cut = char_boundary_at_or_before(text, room);
            self.waiting.push_str(&text[..cut]);
            text = &text[cut..];
            self.counted = self.total();
            self.waiting.clear();
        }
    }

    /// Bytes of memory that waiting text takes.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.waiting.capacity()
    }

    /// Tokens in all the text so far.
    pub fn total(&self) -> u64 {
        let waiting = if self.waiting.is_empty() { 0 } else { (self.count)(&self.waiting) };
        self.counted.saturating_add(waiting)
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tally").field("counted", &self.counted).finish_non_exhaustive()
    }
}

fn char_boundary_at_or_before(text: &str, limit: usize) -> usize {
    (0..=limit).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}
