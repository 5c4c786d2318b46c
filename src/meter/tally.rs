//! Counts the text of a stream as it passes, for the streams whose end is never seen.

use std::fmt;

use super::stream::CountTokens;

/// Text is counted in pieces of at most this many bytes, cut before a space where there is one: a token begins there.
/// Elsewhere a cut may split a token in two, so that the count errs by less than a hundredth; twice the size would be
/// half the error and twice the memory of every open stream.
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
            // Not before the second half: short pieces would be many, and each has its own cost.
            let space = self.waiting.rfind(' ').filter(|at| *at >= PIECE / 2).unwrap_or(self.waiting.len());
            let rest = self.waiting.split_off(space);
            self.counted = self.total();
            self.waiting = rest;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::estimate::{Encoding, count_text};

    #[test]
    fn words_with_spaces_between_them_are_counted_as_in_one_piece() {
        let text = " It was the best of tokens, it was the worst of tokens.".repeat(200);
        let whole = count_text(&text, Encoding::O200k);
        for chunk in [1, 6, 7, 100, 5_000] {
            let mut tally = Tally::new(Arc::new(|text| count_text(text, Encoding::O200k)));
            text.as_bytes().chunks(chunk).for_each(|chunk| tally.add(std::str::from_utf8(chunk).unwrap()));
            assert_eq!(tally.total(), whole, "in chunks of {chunk}");
        }
    }

    #[test]
    fn text_without_spaces_is_cut_and_nothing_is_lost() {
        let text = "あ".repeat(1_000);
        let mut tally = Tally::new(Arc::new(|text| text.chars().count() as u64));
        tally.add(&text);
        assert_eq!(tally.total(), 1_000);
    }
}
