//! How often this node may write to the log: what has little haste waits for what has more, and goes along with it.
//!
//! Laws:
//! - while nobody waits, commands are a second apart, whatever the number of purses and of requests;
//! - whoever comes to wait has the next one go at once, as long as that is rare: of many in a row each but the first few is half a second
//!   after the one before;
//! - of a scarce pool and the last of a budget each round has one, and whoever waits for that last is waited with for [`LAST`] at most.

use crate::limit::{Haste, Moment, ROUND, Span};

/// How far apart commands are that nobody waits for.
const CALM: Span = Span::from_secs(1);

/// How far apart they are while requests wait for the last of a budget.
const LAST: Span = Span::from_millis(40);

/// How far apart they are that somebody waits for, in the long run, and at least.
const WAITED: Span = Span::from_millis(500);
const APART: Span = Span::from_millis(10);

/// How far ahead of the long run they may be: eight commands.
const AHEAD: Span = Span::from_secs(4);

/// When this node wrote.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tempo {
    sent: Option<Moment>,
    /// When the commands that somebody waited for would have gone in the long run.
    regular: Moment,
}

impl Tempo {
    /// When the next command may go that has so much haste.
    pub(super) fn next(&self, haste: Haste) -> Moment {
        let Some(sent) = self.sent else { return Moment::default() };
        match haste {
            Haste::Calm => sent.plus(CALM),
            Haste::Round => sent.plus(ROUND),
            Haste::Waits => {
                let earliest = self.regular.as_nanos().saturating_sub(AHEAD.as_nanos());
                // Sooner or later it would go in any case.
                sent.plus(APART).max(Moment::from_nanos(earliest)).min(sent.plus(CALM))
            }
            Haste::Last => sent.plus(LAST),
        }
    }

    /// One has gone that had so much haste.
    pub(super) fn sent(&mut self, now: Moment, haste: Haste) {
        self.sent = Some(now);
        if haste == Haste::Waits {
            self.regular = self.regular.max(now).plus(WAITED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commands in ten seconds in which there is always something of so much haste to say.
    fn commands(haste: Haste) -> usize {
        let (mut tempo, mut commands) = (Tempo::default(), 0);
        for millis in 0..10_000 {
            let now = Moment::from_nanos(millis * 1_000_000);
            if tempo.next(haste) <= now {
                tempo.sent(now, haste);
                commands += 1;
            }
        }
        commands
    }

    #[test]
    fn the_log_grows_slowly_whatever_there_is_to_say() {
        let each = [Haste::Calm, Haste::Round, Haste::Waits, Haste::Last].map(commands);
        assert_eq!(each, [10, 40, 28, 250]);
    }

    #[test]
    fn who_comes_to_wait_now_and_then_has_a_command_go_at_once() {
        let mut tempo = Tempo::default();
        for second in 0..100 {
            let now = Moment::from_nanos(second * 600_000_000);
            assert!(tempo.next(Haste::Waits) <= now);
            tempo.sent(now, Haste::Waits);
        }
    }
}
