//! How far a streamed answer has come, by what was seen of it rather than by what was reported.

use super::tally::Tally;

/// One bit a choice: a request can ask for 128 at most
/// (<https://platform.openai.com/docs/api-reference/chat/create>).
const MAX_CHOICES: u32 = u128::BITS;

#[derive(Debug)]
pub(super) struct Progress {
    /// The text of all choices.
    pub tally: Tally,
    expected_choices: u32,
    finished: u128,
}

impl Progress {
    pub fn new(expected_choices: u32, tally: Tally) -> Self {
        Self { tally, expected_choices: expected_choices.max(1), finished: 0 }
    }

    /// Choices that nobody asked for are ignored: one must not stand in for another.
    pub fn finish_choice(&mut self, index: u32) {
        if index < self.expected_choices.min(MAX_CHOICES) {
            self.finished |= 1 << index;
        }
    }

    pub fn finished_choices(&self) -> u32 {
        self.finished.count_ones()
    }

    pub fn all_finished(&self) -> bool {
        self.finished_choices() == self.expected_choices
    }
}
