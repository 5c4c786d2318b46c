//! What only a leader may have agreed on: when a calendar moves on, and when a gateway that died may report no more.
//!
//! Laws:
//! - a calendar moves on when more than half of the members' wall clocks have passed the boundary, and a clock that is not known has passed
//!   nothing: one bad clock resets nobody ([`period::passed_by_majority`]);
//! - a decision names the leadership that it was made in, and is void in another ([`Step::Led`]);
//! - what is under way is not said again at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use tollgate_cluster::id::SessionId;
use tollgate_cluster::shards::{Governing, Payload};

use super::tenants::moment;
use crate::control::budget::BudgetCommand;
use crate::control::escrow::Step;
use crate::control::period::{self, Calendar};
use crate::control::{Command, Control, codec};
use crate::limit::{Moment, Span};

/// How often the leader looks.
const LOOK: Span = Span::from_millis(250);

/// How long until something that was said and led to nothing is said again.
const AGAIN: Span = Span::from_secs(2);

/// The most decisions of one look.
const AT_ONCE: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct Governor {
    grace: Span,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    looked: Option<Moment>,
    said: BTreeMap<What, Moment>,
}

/// What a decision is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Calendar(Calendar),
    Gateway(SessionId),
}

impl Governor {
    /// A governor that closes gateways so long after their fence, in log time.
    #[must_use]
    pub fn new(grace: Span) -> Self {
        Self { grace, state: Mutex::default() }
    }

    /// What this node would have committed, as the leader that it is.
    #[must_use]
    pub fn decide(&self, leading: &Governing<'_>) -> Vec<Payload> {
        let Some(control) = leading.agreed.downcast::<Control>() else { return Vec::new() };
        let now = moment(leading.now);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.is_some_and(|looked| now < looked.plus(LOOK)) {
            return Vec::new();
        }
        state.looked = Some(now);
        state.said.retain(|_, said| now < said.plus(AGAIN));
        let mut decisions = self.rolls(leading, control);
        decisions.extend(self.closes(leading, control));
        decisions.retain(|(what, _)| !state.said.contains_key(what));
        decisions.truncate(AT_ONCE);
        let commands = decisions.into_iter().map(|(what, command)| {
            state.said.insert(what, now);
            let steps = vec![Step::Led { term: leading.term, command }];
            Payload::from(codec::command(&Command::Escrow(steps)))
        });
        commands.collect()
    }

    fn rolls(&self, leading: &Governing<'_>, control: &Control) -> Vec<(What, BudgetCommand)> {
        let calendars = control.budgets().calendars();
        if calendars.is_empty() {
            return Vec::new();
        }
        let clocks = leading.wall_clocks.iter().filter_map(|millis| instant(*millis));
        let clocks: Vec<Timestamp> = clocks.collect();
        let Some(passed) = period::passed_by_majority(&clocks, leading.authority.nodes().len()) else {
            return Vec::new();
        };
        let due = period::due(&calendars, passed).map(|(calendar, period)| {
            (What::Calendar(calendar.clone()), BudgetCommand::Roll { calendar, period })
        });
        due.collect()
    }

    fn closes(&self, leading: &Governing<'_>, control: &Control) -> Vec<(What, BudgetCommand)> {
        let grace = self.grace.as_nanos();
        let over = control.budgets().fenced_gateways();
        let over = over.filter(|(_, fenced)| leading.log_time.0 >= fenced.0.saturating_add(grace));
        over.map(|(gateway, _)| (What::Gateway(gateway), BudgetCommand::CloseGateway { gateway, grace }))
            .collect()
    }
}

fn instant(millis: u64) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(millis).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use tollgate_cluster::agreed::{Agreed, At};
    use tollgate_cluster::authority::{Authority, Command as Log, Position};
    use tollgate_cluster::id::{ClusterId, Identity, LogIndex, NodeId, Term};
    use tollgate_cluster::log_time::{LogTime, Stamp};
    use tollgate_cluster::time;

    use super::*;
    use crate::control::budget::{BudgetKey, BudgetTerms, Part, Unit};
    use crate::control::period::Cycle;
    use crate::control::policy::{Commit, Origin, Settings};

    const T1: Term = Term { number: 1, leader: NodeId(0) };
    const T2: Term = Term { number: 2, leader: NodeId(0) };

    fn key() -> BudgetKey {
        BudgetKey { tenant: "acme".into(), part: Part::Tenant, cycle: Cycle::Month, unit: Unit::Tokens }
    }

    /// A cluster of three nodes with a monthly budget, its leader's clock and its log's time.
    struct Story {
        governor: Governor,
        authority: Authority,
        control: Control,
        now: u64,
        log: u64,
    }

    impl Story {
        fn new() -> Self {
            let mut authority = Authority::new(ClusterId(1));
            for number in 0..3 {
                let identity = Identity(u128::from(number) + 1);
                let position = Position { index: LogIndex(number), term: T1 };
                let admit = Log::Admit { identity, address: format!("n{number}:1") };
                authority.apply(position, Stamp { term: T1, time: LogTime(0) }, admit).unwrap();
            }
            assert_eq!(authority.nodes().len(), 3);
            let terms = BudgetTerms { limit: 1_000, degraded: 0, zone: "UTC".into(), thresholds: Vec::new() };
            let mut story = Self {
                governor: Governor::new(Span::from_secs(600)),
                authority,
                control: Control::default(),
                now: 1,
                log: 1,
            };
            let settings = Settings { budgets: BTreeMap::from([(key(), terms)]), ..Settings::default() };
            let commit = Commit {
                basis: 0,
                expect: None,
                document: Vec::new(),
                digest: [0; 32],
                origin: Origin::Operator,
                by: String::new(),
                wall_millis: 0,
                settings,
            };
            story.says(T1, Command::Policy(commit));
            story
        }

        /// What the leader of `term` decides, with these clocks, after so many seconds more.
        fn decides(&mut self, term: Term, seconds: u64, clocks: &[&str]) -> Vec<Step> {
            self.now += seconds;
            self.log += seconds;
            let clock = |text: &&str| text.parse::<Timestamp>().unwrap().as_millisecond().unsigned_abs();
            let clocks: Vec<u64> = clocks.iter().map(clock).collect();
            let agreed: Arc<dyn Agreed> = Arc::new(self.control.clone());
            let leading = Governing {
                term,
                now: time::Moment::from_nanos(self.now * 1_000_000_000),
                authority: &self.authority,
                agreed: &agreed,
                acknowledged: None,
                log_time: LogTime(self.log * 1_000_000_000),
                wall_clocks: &clocks,
            };
            let decided = self.governor.decide(&leading);
            let steps = decided.iter().flat_map(|command| match codec::read_command(command).unwrap() {
                Command::Escrow(steps) => steps,
                other => panic!("{other:?}"),
            });
            steps.collect()
        }

        /// The log takes `steps` in `term`.
        fn takes(&mut self, term: Term, steps: Vec<Step>) {
            self.says(term, Command::Escrow(steps));
        }

        fn says(&mut self, term: Term, command: Command) {
            let position = Position { index: LogIndex(100 + self.now), term };
            let time = LogTime(self.log * 1_000_000_000);
            let at = At { position, time, authority: &self.authority };
            self.control.obey(&at, command);
        }

        fn period(&self) -> Option<String> {
            let view = self.control.budgets().view(&key(), None)?;
            Some(Timestamp::from_second(view.period.id.0).unwrap().to_string())
        }
    }

    const NOVEMBER: &str = "2026-11-30T23:59:59Z";
    const DECEMBER: &str = "2026-12-01T00:00:00Z";

    #[test]
    fn a_month_ends_when_a_majority_says_so_and_one_clock_ahead_moves_nobody() {
        let mut story = Story::new();
        assert!(story.decides(T1, 1, &[NOVEMBER]).is_empty(), "one of three is no majority");
        let first = story.decides(T1, 1, &[NOVEMBER, NOVEMBER]);
        assert_eq!(first.len(), 1, "the first period begins");
        assert!(story.decides(T1, 1, &[NOVEMBER, NOVEMBER]).is_empty(), "it is under way");
        assert_eq!(story.decides(T1, 3, &[NOVEMBER, NOVEMBER]), first, "it was lost");
        story.takes(T1, first);
        assert_eq!(story.period().as_deref(), Some("2026-11-01T00:00:00Z"));
        for ahead in [DECEMBER, "2027-11-30T00:00:00Z"] {
            assert!(story.decides(T1, 3, &[ahead, NOVEMBER, NOVEMBER]).is_empty(), "{ahead}");
        }
        let rolls = story.decides(T1, 3, &[DECEMBER, NOVEMBER, DECEMBER]);
        story.takes(T1, rolls);
        assert_eq!(story.period().as_deref(), Some("2026-12-01T00:00:00Z"));
        assert!(story.decides(T1, 3, &[NOVEMBER, NOVEMBER, NOVEMBER]).is_empty(), "and never back");
    }

    #[test]
    fn a_decision_dies_with_its_leadership() {
        let mut story = Story::new();
        let decided = story.decides(T1, 1, &[NOVEMBER, NOVEMBER]);
        story.takes(T2, decided.clone());
        assert_eq!(story.period(), None);
        story.takes(T1, decided);
        assert!(story.period().is_some());
        // Nobody but a leader moves a calendar.
        let rolls = story.decides(T1, 3, &[DECEMBER, DECEMBER]).into_iter().map(|step| match step {
            Step::Led { command, .. } => Step::Budget(command),
            other => other,
        });
        let rolls: Vec<Step> = rolls.collect();
        assert_eq!(rolls.len(), 1);
        story.takes(T1, rolls);
        assert_eq!(story.period().as_deref(), Some("2026-11-01T00:00:00Z"));
    }

    #[test]
    fn a_gateway_that_died_is_closed_after_the_grace() {
        let mut story = Story::new();
        let gateway = SessionId(7);
        let at = At {
            position: Position { index: LogIndex(50), term: T1 },
            time: LogTime(story.log * 1_000_000_000),
            authority: &story.authority,
        };
        Agreed::fenced(&mut story.control, at, gateway);
        assert!(story.decides(T1, 599, &[]).is_empty());
        let closes = story.decides(T1, 1, &[]);
        assert_eq!(closes.len(), 1);
        story.takes(T1, closes);
        assert!(story.control.budgets().is_closed(gateway));
        assert!(story.decides(T1, 5, &[]).is_empty());
    }
}
