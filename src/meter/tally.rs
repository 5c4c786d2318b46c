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
    /// How long the piece that waits may become, in bytes: from the second on, [`PIECE`].
    room: usize,
    counted: u64,
}

impl Tally {
    /// `phase` is where in a piece the stream begins: the first piece is so many bytes shorter, of [`PIECE`] at most. To count a piece takes
    /// as long as to relay several chunks, and streams that began together and flow alike would all be counted at the same chunk.
    pub fn new(count: CountTokens, phase: u8) -> Self {
        let room = PIECE - PIECE * usize::from(phase) / (usize::from(u8::MAX) + 1);
        Self { count, waiting: String::new(), room, counted: 0 }
    }

    pub fn add(&mut self, mut text: &str) {
        if self.waiting.capacity() == 0 && !text.is_empty() {
            self.waiting.reserve_exact(PIECE);
        }
        loop {
            let room = self.room - self.waiting.len();
            if text.len() <= room {
                self.waiting.push_str(text);
                return;
            }
            let cut = char_boundary_at_or_before(text, room);
            self.waiting.push_str(&text[..cut]);
            text = &text[cut..];
            // Not before the second half: short pieces would be many, and each has its own cost. Of a short first one any space will do, and
            // without one it is not cut: it may be shorter than a word.
            let is_short = std::mem::replace(&mut self.room, PIECE) < PIECE;
            let least = if is_short { 1 } else { PIECE / 2 };
            let end = match self.waiting.rfind(' ').filter(|at| *at >= least) {
                Some(space) => space,
                None if is_short => continue,
                None => self.waiting.len(),
            };
            self.counted = self.with(&self.waiting[..end]);
            self.waiting.drain(..end);
        }
    }

    /// Bytes of memory that waiting text takes.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        self.waiting.capacity()
    }

    /// Tokens in all the text so far.
    pub fn total(&self) -> u64 {
        self.with(&self.waiting)
    }

    fn with(&self, piece: &str) -> u64 {
        self.counted.saturating_add(if piece.is_empty() { 0 } else { (self.count)(piece) })
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
        for (chunk, phase) in [(1, 0), (6, 0), (7, 1), (100, 100), (5_000, 200)] {
            let mut tally = Tally::new(Arc::new(|text| count_text(text, Encoding::O200k)), phase);
            text.as_bytes().chunks(chunk).for_each(|chunk| tally.add(std::str::from_utf8(chunk).unwrap()));
            assert_eq!(tally.total(), whole, "in chunks of {chunk}, phase {phase}");
        }
    }

    #[test]
    fn a_short_first_piece_splits_no_word() {
        let text = " token".repeat(300);
        for phase in 0..=u8::MAX {
            let mut tally = Tally::new(Arc::new(|text| count_text(text, Encoding::O200k)), phase);
            text.as_bytes().chunks(6).for_each(|chunk| tally.add(std::str::from_utf8(chunk).unwrap()));
            assert_eq!(tally.total(), 300, "phase {phase}");
        }
    }

    #[test]
    fn text_without_spaces_is_cut_and_nothing_is_lost() {
        let text = "あ".repeat(1_000);
        for phase in 0..=u8::MAX {
            let mut tally = Tally::new(Arc::new(|text| text.chars().count() as u64), phase);
            tally.add(&text);
            assert_eq!((tally.total(), tally.memory()), (1_000, PIECE), "phase {phase}");
        }
    }

    #[test]
    fn streams_that_flow_alike_are_counted_at_different_chunks() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let began: Vec<u64> = (0..=u8::MAX)
            .map(|phase| {
                let pieces = Arc::new(AtomicU64::new(0));
                let seen = pieces.clone();
                let mut tally = Tally::new(Arc::new(move |_| seen.fetch_add(1, Ordering::Relaxed)), phase);
                // Of 26 bytes: twenty of them are more than a piece.
                let chunk = |_: &u64| {
                    tally.add(" a chunk like all the rest");
                    pieces.load(Ordering::Relaxed) > 0
                };
                (1..=20).find(chunk).unwrap()
            })
            .collect();
        for chunk in 1..=20 {
            let together = began.iter().filter(|at| **at == chunk).count();
            assert!(together <= 14, "{together} of 256 streams are counted with chunk {chunk}");
        }
    }
}
