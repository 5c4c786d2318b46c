//! Stories of a purse. How purses and a pool come out together is told where the pool is.

use super::*;
use crate::limit::draw::BudgetGranted;
use crate::limit::{Payment, Purses, Rate, Unpaid};

fn tokens(units: u64) -> Units {
    Units([units, 0, 0, 1])
}

/// So many tokens a minute and at once, and 600 requests.
fn terms(per_minute: u64, burst: u64) -> Terms {
    Terms::new([Some(Rate::new(per_minute, burst)), None, None, Some(Rate::new(600, 100))], true)
}

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

/// A pool that grants whatever is wanted, up to `most` tokens, and its purse.
struct Story {
    purse: Purse,
    now: Moment,
}

impl Story {
    fn new() -> Self {
        Self { purse: Purse::new(terms(60_000, 10_000)), now: at(0) }
    }

    fn at(&mut self, millis: u64) -> &mut Self {
        self.now = at(millis);
        self
    }

    /// Whether a request is paid.
    fn pay(&mut self, need: u64) -> bool {
        match self.purse.check(self.now, tokens(need)) {
            Ok(()) => self.purse.debit(self.now, tokens(need)),
            Err(_) => self.purse.miss(self.now, tokens(need)),
        }
        self.purse.lack.is_none_or(|(lack, _)| lack.0[0] < need)
    }

    fn poll(&mut self) -> Option<Draw> {
        self.purse.poll(self.now)
    }

    /// Its draw is answered with what it wants, but no more than `most` tokens.
    fn grant(&mut self, most: u64) -> Draw {
        let draw = self.poll().expect("a draw");
        let units = Units([draw.wants.0[0].min(most), 0, 0, draw.wants.0[3]]);
        self.purse.granted(&Granted { seq: draw.seq, units, free: Units::NONE });
        draw
    }
}

#[test]
fn the_first_request_waits_for_a_grant_and_those_behind_it_do_not() {
    let mut story = Story::new();
    assert!(!story.pay(500));
    assert_eq!(story.purse.poll_timeout(), Some(at(0)));
    let draw = story.grant(u64::MAX);
    assert_eq!((draw.seq, draw.wants), (1, Units([1_000, 0, 0, 2])), "for the next one too");
    assert!(story.pay(500));
    // From then on the purse asks for more before it is empty.
    let mut waited = 0;
    for millis in (25..5_000).step_by(25) {
        story.at(millis);
        if millis % 100 == 0 {
            waited += u64::from(!story.pay(100));
        }
        if let Some(draw) = story.poll() {
            story.purse.granted(&Granted { seq: draw.seq, units: draw.wants, free: Units::NONE });
        }
    }
    assert_eq!(waited, 0);
    assert!(story.purse.seq < 12, "{} draws in 5 s", story.purse.seq);
}

#[test]
fn one_draw_is_on_its_way_at_a_time_and_a_late_answer_changes_nothing() {
    let mut story = Story::new();
    story.pay(500);
    let draw = story.poll().unwrap();
    story.at(1_000).pay(1_500);
    assert_eq!((story.poll(), story.purse.flight(), story.purse.poll_timeout()), (None, Some(&draw), None));
    let granted = Granted { seq: 1, units: draw.wants, free: Units::NONE };
    story.purse.granted(&granted);
    story.purse.granted(&granted);
    assert_eq!(story.purse.held()[0], 1_000);
    let next = story.at(1_100).poll().unwrap();
    assert_eq!((next.seq, next.wants.0[0] >= 500), (2, true));
}

#[test]
fn all_or_nothing() {
    let mut story = Story::new();
    story.pay(500);
    story.grant(u64::MAX);
    let before = story.purse.held();
    // There are tokens, but not so many requests.
    let need = Units([10, 0, 0, 5]);
    assert!(matches!(
        story.purse.check(story.now, need),
        Err(Lack::Later { dimension: Dimension::Requests, need: 5, held: 2, .. })
    ));
    assert_eq!(story.purse.held(), before);
    let never = Units([10_001, 0, 0, 1]);
    let capacity = 10_000;
    assert_eq!(
        story.purse.check(story.now, never),
        Err(Lack::Never { dimension: Dimension::Tokens, need: 10_001, capacity })
    );
}

#[test]
fn overage_is_debt_that_the_next_grants_repay_and_a_refund_never_comes_back() {
    let mut story = Story::new();
    story.pay(500);
    story.grant(u64::MAX);
    assert!(story.pay(500));
    story.purse.charge(Units([800, 0, 0, 0]));
    assert_eq!(story.purse.held()[0], -300);
    story.purse.refund(Units([100, 0, 0, 0]));
    assert_eq!(story.purse.held()[0], -300);
    let draw = story.at(30).poll().unwrap();
    assert_eq!((draw.spent.0[0], draw.refunded.0[0]), (1_300, 100));
    assert!(draw.wants.0[0] >= 300, "{draw:?}");
}

#[test]
fn an_idle_purse_reports_and_gives_back() {
    let mut story = Story::new();
    story.pay(500);
    story.grant(1_000);
    assert!(story.pay(300));
    assert_eq!(story.at(100).purse.held()[0], 700);
    let mut told = Vec::new();
    for millis in (100..40_000).step_by(50) {
        if let Some(draw) = story.at(millis).poll() {
            story.purse.granted(&Granted { seq: draw.seq, units: draw.wants, free: Units::NONE });
            told.push((millis, draw.spent.0[0], draw.returned.0[0]));
        }
    }
    // Soon all but the small part of the burst that it keeps for one request more, and in the end that too.
    let soon = told.iter().find(|(_, _, returned)| *returned > 0).unwrap();
    assert!(soon.0 < 4_000, "{told:?}");
    assert_eq!((soon.1, soon.2), (300, 700 - 10_000 / HABIT_PART));
    let (millis, spent, returned) = *told.last().unwrap();
    assert!((30_000..31_500).contains(&millis), "{told:?}");
    assert_eq!((spent, returned), (300, 700));
    assert_eq!((story.purse.held(), story.purse.poll_timeout()), ([0; 4], None), "and then it is quiet");
}

#[test]
fn who_comes_every_few_seconds_finds_what_one_request_takes() {
    let mut story = Story::new();
    assert!(!story.pay(200));
    story.grant(1_000);
    let mut paid = Vec::new();
    for millis in (50..30_000).step_by(50) {
        story.at(millis);
        if millis % 5_000 == 0 {
            paid.push(story.pay(200));
        }
        if let Some(draw) = story.poll() {
            story.purse.granted(&Granted { seq: draw.seq, units: draw.wants, free: Units([1_000; 4]) });
        }
    }
    assert_eq!(paid, [true; 5]);
}

#[test]
fn of_a_scarce_pool_it_asks_once_a_round() {
    let mut story = Story::new();
    story.pay(5_000);
    story.grant(100);
    assert!(story.purse.is_scarce(story.now));
    let wait = |story: &Story| match story.purse.check(story.now, tokens(5_000)) {
        Err(Lack::Later { wait, .. }) => wait,
        other => panic!("{other:?}"),
    };
    assert_eq!(wait(&story), Span::from_millis(4_900));
    story.at(100).pay(5_000);
    assert_eq!(story.poll(), None);
    assert_eq!(story.purse.poll_timeout(), Some(at(250)));
    assert!(story.at(250).poll().is_some());
}

#[test]
fn of_a_scarce_pool_it_aims_at_a_round_and_not_at_two_seconds() {
    let asks = |scarce: bool| {
        let mut story = Story::new();
        for millis in (0..2_000).step_by(50) {
            story.at(millis).pay(10);
        }
        story.purse.scarce = scarce;
        story.poll().unwrap().wants.0[0]
    };
    assert_eq!((asks(false), asks(true)), (400, 100));
}

#[test]
fn what_it_cannot_use_it_gives_up_and_then_asks_again() {
    let mut story = Story::new();
    let (mut gave_up, mut asked_again) = (0, false);
    let mut before = 0;
    for millis in (0..1_900).step_by(50) {
        story.at(millis).pay(8_000);
        let Some(draw) = story.poll() else { continue };
        if draw.returned.0[0] != before {
            assert_eq!((draw.wants, story.purse.held()[0]), (Units::NONE, 0), "all of it, and for nothing");
            gave_up += 1;
        } else if gave_up > 0 {
            asked_again |= draw.wants.0[0] >= 8_000;
        }
        before = draw.returned.0[0];
        // A little each time, and never enough.
        let units = Units([draw.wants.0[0].min(100), 0, 0, draw.wants.0[3]]);
        story.purse.granted(&Granted { seq: draw.seq, units, free: Units::NONE });
    }
    assert_eq!((gave_up, asked_again), (1, true));
}

#[test]
fn a_draw_that_was_refused_was_never_made() {
    let mut story = Story::new();
    story.pay(500);
    story.grant(u64::MAX);
    let before = story.purse.held();
    let draw = story.at(5_000).poll().unwrap();
    assert!(draw.returned.0[0] > 0);
    story.purse.refused(draw.seq);
    assert_eq!(story.purse.held(), before);
    assert_eq!(story.at(6_100).poll().map(|draw| draw.seq), Some(2));
}

#[test]
fn a_provider_that_refuses_pauses_the_purse() {
    let mut story = Story::new();
    story.pay(500);
    story.grant(u64::MAX);
    story.purse.pause(at(2_000));
    story.purse.pause(at(1_000));
    let wait = Span::from_millis(1_500);
    assert_eq!(story.at(500).purse.check(at(500), tokens(1)), Err(Lack::Paused { wait }));
    assert_eq!(story.purse.check(at(2_000), tokens(1)), Ok(()));
}

#[test]
fn a_purse_that_is_drained_gives_everything_back() {
    let mut story = Story::new();
    story.pay(500);
    story.grant(u64::MAX);
    story.purse.drain();
    let draw = story.at(30).poll().unwrap();
    assert_eq!((draw.wants, draw.returned), (Units::NONE, Units([1_000, 0, 0, 2])));
}

// Budgets, and several purses at once.

#[test]
fn a_budgets_purse_takes_nothing_back_but_what_was_cancelled() {
    let mut purse = BudgetPurse::default();
    purse.miss(at(0), 300);
    let draw = purse.poll(at(0)).unwrap();
    assert_eq!((draw.seq, draw.need, draw.wants), (1, 300, 600));
    purse.granted(&BudgetGranted { seq: 1, units: 400, remaining: 0 });
    assert!(purse.covers(300));
    purse.debit(at(10), 300);
    assert_eq!(purse.held(), 100);
    purse.put_back(300);
    assert_eq!(purse.held(), 400);
    purse.drain();
    let draw = purse.poll(at(50)).unwrap();
    assert_eq!((draw.returned, draw.need, draw.wants, purse.held()), (400, 0, 0, 0));
    // Refused: as if it had not been made. The tenant comes back, and it works on.
    purse.refused(2);
    assert_eq!(purse.held(), 400);
    purse.miss(at(100), 500);
    let draw = purse.poll(at(100)).unwrap();
    assert_eq!((draw.seq, draw.returned, draw.need), (2, 0, 100));
}

#[test]
fn an_idle_budget_purse_gives_back_after_a_while() {
    let mut purse = BudgetPurse::default();
    purse.miss(at(0), 300);
    purse.poll(at(0)).unwrap();
    purse.granted(&BudgetGranted { seq: 1, units: 300, remaining: 0 });
    let mut returned = None;
    for millis in (0..12_000).step_by(250) {
        if let Some(draw) = purse.poll(at(millis)) {
            returned = Some((millis, draw.returned));
            break;
        }
    }
    assert_eq!(returned, Some((10_000, 300)));
}

#[test]
fn a_request_is_paid_by_all_or_by_none() {
    let pool = crate::limit::Name::from("main");
    let mut purses: Purses<&str> = Purses::default();
    purses.follow(&[(pool.clone(), terms(60_000, 10_000))].into());
    let budgets = [("month", 100), ("day", 100)];
    let payment = Payment { pool: Some((&pool, tokens(100))), budgets: &budgets };
    let poor = |budget: &&str| if *budget == "day" { 50 } else { 1_000 };
    assert_eq!(purses.pay(at(0), &payment, poor), Err(Unpaid::BudgetExhausted(1)));
    assert!(purses.pool("main").unwrap().poll(at(0)).is_none(), "nobody draws for what a budget refuses");
    let rich = |_: &&str| 1_000;
    assert_eq!(purses.pay(at(0), &payment, rich), Err(Unpaid::BudgetWaits(0)));
    // All of them ask, not only the first.
    for (_, purse) in purses.budgets_mut() {
        let draw = purse.poll(at(0)).unwrap();
        purse.granted(&BudgetGranted { seq: draw.seq, units: draw.need, remaining: 0 });
    }
    assert!(matches!(purses.pay(at(1), &payment, rich), Err(Unpaid::Pool(Lack::Later { .. }))));
    assert_eq!(purses.budget(&"month").held(), 100, "nothing was taken");
    let purse = purses.pool("main").unwrap();
    let draw = purse.poll(at(1)).unwrap();
    purse.granted(&Granted { seq: draw.seq, units: draw.wants, free: Units::NONE });
    assert_eq!(purses.pay(at(2), &payment, rich), Ok(()));
    assert_eq!((purses.budget(&"month").held(), purses.budget(&"day").held()), (0, 0));
    assert_eq!(purses.pool("main").unwrap().held()[0], draw.wants.0[0] as i64 - 100);
}
