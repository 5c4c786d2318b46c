//! Attempts to connect: one at a time per address, shared by all who wait for it, and a pause after one that failed.
//!
//! Laws:
//! - while an attempt runs, whoever wants the same address waits for that one;
//! - after one that failed there is none for a pause that doubles from [`PAUSE_MIN`] to [`PAUSE_MAX`], jittered: until then the
//!   last error is the answer, at once;
//! - at most [`PEERS_MAX`] addresses are remembered.
//!
//! Never here: I/O.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::outside::Entropy;
use crate::peer::link::Link;
use crate::peer::{ConnectError, PEERS_MAX};
use crate::time::{Moment, Span};

const PAUSE_MIN: Span = Span::from_millis(50);
const PAUSE_MAX: Span = Span::from_millis(1000);

/// How an attempt ended.
pub(super) type Outcome = Result<Arc<Link>, ConnectError>;

/// Says how an attempt ended, once it has.
pub(super) type Waiter = watch::Receiver<Option<Outcome>>;

#[derive(Default)]
pub(super) struct Dials(BTreeMap<String, Dial>);

#[derive(Default)]
struct Dial {
    running: Option<Waiter>,
    failures: u32,
    /// No attempt before then, and why.
    pause: Option<(Moment, ConnectError)>,
}

/// What to do to get a connection.
pub(super) enum Step {
    /// Wait for the attempt that runs.
    Wait(Attempt),
    /// Begin one, and tell its outcome to those who wait.
    Begin(watch::Sender<Option<Outcome>>, Attempt),
    /// Not yet: the last one failed just now.
    Pause(ConnectError),
}

/// An attempt that runs.
#[derive(Clone)]
pub(super) struct Attempt {
    /// Says how it ended.
    pub(super) end: Waiter,
    /// How the one before ended, if it failed: this one is likely to, so that it is not waited for as long.
    pub(super) before: Option<ConnectError>,
}

impl Dials {
    /// The next step towards `address`.
    pub(super) fn step(&mut self, address: &str, now: Moment) -> Step {
        if !self.0.contains_key(address) && self.0.len() >= PEERS_MAX {
            self.0.retain(|_, dial| dial.running.is_some());
            if self.0.len() >= PEERS_MAX {
                return Step::Pause(ConnectError::Full { at: address.to_owned() });
            }
        }
        let dial = self.0.entry(address.to_owned()).or_default();
        let before = dial.pause.as_ref().map(|(_, error)| error.clone());
        if let Some(end) = &dial.running {
            return Step::Wait(Attempt { end: end.clone(), before });
        }
        match &dial.pause {
            Some((until, error)) if now < *until => Step::Pause(error.clone()),
            _ => {
                let (teller, end) = watch::channel(None);
                dial.running = Some(end.clone());
                Step::Begin(teller, Attempt { end, before })
            }
        }
    }

    /// An attempt has ended. True unless it failed as the one before did.
    pub(super) fn ended(
        &mut self,
        address: &str,
        error: Option<&ConnectError>,
        now: Moment,
        entropy: &dyn Entropy,
    ) -> bool {
        let Some(dial) = self.0.get_mut(address) else { return true };
        dial.running = None;
        let Some(error) = error else {
            (dial.failures, dial.pause) = (0, None);
            return true;
        };
        let pause = pause(dial.failures, entropy);
        dial.failures = dial.failures.saturating_add(1);
        let before = dial.pause.replace((now.plus(pause), error.clone()));
        before.is_none_or(|(_, before)| before.reason() != error.reason())
    }
}

/// How long to wait after so many failures and one more: between half and all of what has doubled with each.
fn pause(failures: u32, entropy: &dyn Entropy) -> Span {
    let whole = (PAUSE_MIN.as_nanos() << failures.min(10)).min(PAUSE_MAX.as_nanos());
    Span::from_nanos(whole / 2 + entropy.below(whole / 2 + 1))
}

/// `span` for a timer.
pub(super) const fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.as_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside::OsEntropy;

    fn failed() -> ConnectError {
        ConnectError::Silent { at: String::from("a:1") }
    }

    #[test]
    fn who_comes_while_an_attempt_runs_waits_for_it_and_a_failure_pauses_it() {
        let mut dials = Dials::default();
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        assert!(matches!(dials.step("a:1", at(0)), Step::Begin(..)));
        assert!(matches!(dials.step("a:1", at(0)), Step::Wait(_)));
        assert!(matches!(dials.step("b:1", at(0)), Step::Begin(..)), "another address");
        dials.ended("a:1", Some(&failed()), at(10), &OsEntropy);
        assert!(matches!(dials.step("a:1", at(34)), Step::Pause(error) if error == failed()));
        assert!(matches!(dials.step("a:1", at(61)), Step::Begin(..)));
        dials.ended("a:1", None, at(61), &OsEntropy);
        assert!(matches!(dials.step("a:1", at(61)), Step::Begin(..)), "no pause after one that succeeded");
    }

    #[test]
    fn the_pause_doubles_up_to_a_second() {
        for (failures, whole) in [(0, 50), (1, 100), (4, 800), (5, 1000), (40, 1000)] {
            for _ in 0..50 {
                let pause = pause(failures, &OsEntropy);
                assert!((Span::from_millis(whole / 2)..=Span::from_millis(whole)).contains(&pause));
            }
        }
    }

    #[test]
    fn the_addresses_remembered_are_bounded() {
        let mut dials = Dials::default();
        for number in 0..2 * PEERS_MAX {
            let address = format!("a:{number}");
            assert!(matches!(dials.step(&address, Moment::default()), Step::Begin(..)));
            dials.ended(&address, Some(&failed()), Moment::default(), &OsEntropy);
        }
        assert!(dials.0.len() <= PEERS_MAX);
    }
}
