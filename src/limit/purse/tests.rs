//! Stories of a purse. How purses and a pool come out together is told where the pool is.

use super::*;
use crate::limit::draw::BudgetGranted;
use crate::limit::{Payment, Purses, Rate, ReservationId, Unpaid};

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

    fn due(&self) -> Option<(Moment, Haste)> {
        self.purse.due(self.now)
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
fn a_purse_is_filled_before_anybody_comes_and_nobody_waits() {
    let mut story = Story::new();
    assert_eq!(story.due(), Some((at(0), Haste::Waits)));
    let draw = story.grant(u64::MAX);
    assert_eq!((draw.seq, draw.wants), (1, Units([10_000 / FLOAT_PART, 0, 0, 100 / FLOAT_PART])));
    assert_eq!(story.due(), None, "and then it is quiet");
    // From then on the purse asks for more before it is empty, and mostly there is time for it.
    let (mut waited, mut hurried) = (0, 0);
    let mut sent = 0;
    for millis in (25..10_000).step_by(25) {
        story.at(millis);
        if millis % 100 == 0 {
            waited += u64::from(!story.pay(100));
        }
        let Some((due, haste)) = story.due().filter(|(due, _)| *due <= story.now) else { continue };
        if haste == Haste::Calm && due.max(at(sent).plus(Span::from_secs(1))) > story.now {
            continue;
        }
        sent = millis;
        hurried += u64::from(haste > Haste::Calm);
        let draw = story.poll().unwrap();
        story.purse.granted(&Granted { seq: draw.seq, units: draw.wants, free: Units::NONE });
    }
    assert_eq!(waited, 0);
    assert!(story.purse.seq < 16 && hurried < 5, "{} draws in 10 s, {hurried} in haste", story.purse.seq);
}

#[test]
fn a_request_larger_than_what_is_there_waits_for_a_grant() {
    let mut story = Story::new();
    assert!(!story.pay(500));
    assert_eq!(story.due(), Some((at(0), Haste::Waits)));
    let draw = story.grant(u64::MAX);
    assert_eq!((draw.seq, draw.wants), (1, Units([1_000, 0, 0, 3])), "for the next one too");
    assert!(story.pay(500));
}

#[test]
fn one_draw_is_on_its_way_at_a_time_and_a_late_answer_changes_nothing() {
    let mut story = Story::new();
    story.pay(500);
    let draw = story.poll().unwrap();
    story.at(1_000).pay(1_500);
    assert_eq!((story.poll(), story.purse.flight(), story.due()), (None, Some(&draw), None));
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
        Err(Lack::Later { dimension: Dimension::Requests, need: 5, held: 3, .. })
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
    let draw = story.poll().unwrap();
    let units = Units([1_000, 0, 0, 3]);
    story.purse.granted(&Granted { seq: draw.seq, units, free: Units::NONE });
    assert!(story.pay(300));
    assert_eq!(story.at(100).purse.held()[0], 700);
    let mut told = Vec::new();
    for millis in (100..40_000).step_by(50) {
        if let Some(draw) = story.at(millis).poll() {
            story.purse.granted(&Granted { seq: draw.seq, units: draw.wants, free: Units::NONE });
            told.push((millis, draw.spent.0[0], draw.returned.0[0]));
        }
    }
    // Soon all but the small part of the burst that it keeps for whoever comes.
    let soon = told.iter().find(|(_, _, returned)| *returned > 0).unwrap();
    assert!(soon.0 < 4_000, "{told:?}");
    assert_eq!((soon.1, soon.2), (300, 700 - 10_000 / FLOAT_PART));
    assert_eq!(story.due(), None, "and then it is quiet");
    // And that too, while others have nothing.
    story.purse.lend(at(60_000));
    assert_eq!(story.due().map(|(due, haste)| (due <= at(40_000), haste)), Some((true, Haste::Calm)));
    assert_eq!(story.grant(0).returned.0[0], 700);
    assert_eq!((story.purse.held()[0], story.due()), (0, None));
    assert_eq!(story.at(60_000).poll().map(|draw| draw.wants.0[0]), Some(10_000 / FLOAT_PART));
}

#[test]
fn who_comes_every_few_seconds_finds_what_one_request_takes() {
    let mut story = Story::new();
    let mut paid = Vec::new();
    for millis in (0..60_000).step_by(50) {
        story.at(millis);
        if millis % 15_000 == 5_000 {
            paid.push(story.pay(200));
        }
        if let Some(draw) = story.poll() {
            story.purse.granted(&Granted { seq: draw.seq, units: draw.wants, free: Units([1_000; 4]) });
        }
    }
    assert_eq!(paid, [true; 4]);
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
    assert_eq!(story.due(), Some((at(250), Haste::Round)));
    assert!(story.at(250).poll().is_some());
}

#[test]
fn of_a_scarce_pool_it_aims_at_a_round_and_not_at_four_seconds() {
    let asks = |scarce: bool| {
        let mut story = Story::new();
        for millis in (0..2_000).step_by(50) {
            story.at(millis).pay(10);
        }
        (story.purse.scarce, story.purse.drawn) = (scarce, Some(at(1_500)));
        story.poll().unwrap().wants.0[0]
    };
    assert_eq!((asks(false), asks(true)), (800, 100));
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
    assert_eq!((draw.wants, draw.returned), (Units::NONE, Units([1_000, 0, 0, 3])));
}

// Budgets, and several purses at once.

const MUCH: Left = Left { units: 1_000_000, of: 1_000_000 };

#[test]
fn a_draw_asks_for_all_that_wait_each_once_and_for_no_more_than_there_is() {
    let mut purse = BudgetPurse::default();
    for turn in 0..3 {
        (1..=5).for_each(|id| purse.miss(at(turn), ReservationId(id), 100 + id as u64, MUCH));
    }
    assert_eq!(purse.before(at(3), ReservationId(5)), 101 + 102 + 103 + 104);
    let draw = purse.poll(at(3)).unwrap();
    assert_eq!((draw.need, draw.wants), (515, 1_030));
    // Who asks again meanwhile is in it already.
    purse.miss(at(4), ReservationId(5), 105, MUCH);
    purse.miss(at(4), ReservationId(6), 100, MUCH);
    assert_eq!(purse.before(at(4), ReservationId(5)), 100);
    purse.granted(&BudgetGranted { seq: 1, units: 515, remaining: 120 });
    (1..=5).for_each(|id| purse.debit(at(5), 100 + id));
    // Of three that wait now one can be served.
    let left = Left { units: 120, of: 1_000_000 };
    (6..=8).for_each(|id| purse.miss(at(40), ReservationId(id), 100, left));
    assert_eq!(purse.due(at(40)), Some((at(28), Haste::Last)));
    let draw = purse.poll(at(40)).unwrap();
    assert_eq!(draw.need, 120);
    purse.granted(&BudgetGranted { seq: 2, units: 120, remaining: 0 });
    purse.debit(at(41), 100);
    assert_eq!(purse.due(at(100)), None, "there is nothing more to ask for");
}

#[test]
fn who_would_wait_in_vain_behind_others_does_not_wait() {
    let mut purses: Purses<&str> = Purses::default();
    let mut pay = |id| {
        let payment = Payment { id: ReservationId(id), pool: None, budgets: &[("month", 100)] };
        purses.pay(at(id as u64), &payment, |_| Left { units: 250, of: 1_000 })
    };
    let answers = [1, 2, 3, 1].map(&mut pay);
    let waits = Err(Unpaid::BudgetWaits(0));
    assert_eq!(answers, [waits, waits, Err(Unpaid::BudgetExhausted(0)), waits]);
}

#[test]
fn a_budgets_purse_asks_in_time_and_with_less_haste_the_more_it_holds() {
    let mut purse = BudgetPurse::default();
    purse.miss(at(0), ReservationId(1), 100, MUCH);
    assert_eq!(purse.due(at(0)), Some((at(0), Haste::Waits)));
    purse.poll(at(0)).unwrap();
    purse.granted(&BudgetGranted { seq: 1, units: 1_000, remaining: 900_000 });
    let hastes = (1..=10).map(|turn| {
        purse.debit(at(400 * turn), 100);
        purse.due(at(400 * turn)).map(|(_, haste)| haste)
    });
    let hastes: Vec<_> = hastes.collect();
    let (calm, waits) = (Some(Haste::Calm), Some(Haste::Waits));
    assert_eq!(hastes, [None, None, None, None, None, calm, calm, calm, calm, waits]);
}

#[test]
fn a_request_is_paid_by_all_or_by_none() {
    let pool = crate::limit::Name::from("main");
    let mut purses: Purses<&str> = Purses::default();
    purses.follow(&[(pool.clone(), terms(60_000, 10_000))].into());
    let budgets = [("month", 100), ("day", 100)];
    let payment = Payment { id: ReservationId(1), pool: Some((&pool, tokens(500))), budgets: &budgets };
    let poor = |budget: &&str| Left { units: if *budget == "day" { 50 } else { 1_000 }, of: 1_000 };
    assert_eq!(purses.pay(at(0), &payment, poor), Err(Unpaid::BudgetExhausted(1)));
    assert_eq!(purses.budgets_mut().count(), 0, "nobody draws for what a budget refuses");
    let rich = |_: &&str| MUCH;
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
    assert_eq!(purses.pool("main").unwrap().held()[0], draw.wants.0[0] as i64 - 500);
}
