//! The laws of budgets: stories first, then random owners and gateways that report late, twice, out of order, and die.
//!
//! Each law can fail. A build with `--cfg mutant` has these, and each turns the random world red and a story besides:
//!
//! | `MUTANT` | the fault | the story |
//! |---|---|---|
//! | `escrow_reissue` | the escrow of a dead owner is granted again | `what_a_dead_owner_held_is_written_off_until_it_is_reported_or_released` |
//! | `release_on_timeout` | a close charges nothing | `a_gateway_that_does_not_come_back_is_closed_after_the_grace_and_not_before` |
//! | `double_report` | a number that is over is charged again | `a_number_is_charged_once_however_often_it_is_reported` |
//! | `alert_each_time` | each report above a threshold raises it | `a_threshold_is_told_once_and_stays_until_it_is_delivered` |
//!
//! One line changed in the code turns these red:
//!
//! | the change | kills |
//! |---|---|
//! | `Account::draw`: a need beyond what remains is granted | `what_is_settled_and_what_is_open_never_exceed_the_limit`, the random world |
//! | `Account::draw`: wants are not cut | `near_its_end_a_budget_grants_single_requests` |
//! | `Budgets::close_gateway`: no grace | `a_gateway_that_does_not_come_back_is_closed_after_the_grace_and_not_before` |
//! | `Budgets::roll`: back as well | `a_calendar_moves_on_and_never_back` |
//! | `Budget::enters`: whatever is later | `an_edit_keeps_what_is_used_and_one_of_the_zone_too` |
//! | `Budgets::settle`: what was closed is not corrected | `a_final_report_after_a_close_adds_the_difference_once`, the random world |

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate_cluster::wire;

use super::super::period::Cycle;
use super::*;

const NOVEMBER: Period = Period { id: PeriodId(1_793_491_200), end: 1_796_083_200 };
const DECEMBER: Period = Period { id: PeriodId(1_796_083_200), end: 1_798_761_600 };

fn monthly(tenant: &str) -> BudgetKey {
    BudgetKey { tenant: tenant.into(), part: Part::Tenant, cycle: Cycle::Month, unit: Unit::Tokens }
}

fn terms(limit: u64) -> BudgetTerms {
    BudgetTerms { limit, degraded: 0, zone: "UTC".into(), thresholds: vec![800_000, 950_000] }
}

fn utc(cycle: Cycle) -> Calendar {
    Calendar { cycle, zone: "UTC".into() }
}

/// Acme's monthly budget, the log time in seconds, and who is fenced.
struct Story {
    budgets: Budgets,
    now: u64,
    fenced: BTreeSet<SessionId>,
    seqs: BTreeMap<(PeriodId, u128, Lane), BudgetDraw>,
}

impl Story {
    fn of(terms: BudgetTerms) -> Self {
        let mut story =
            Self { budgets: Budgets::default(), now: 0, fenced: BTreeSet::new(), seqs: BTreeMap::new() };
        story.budgets.adopt(&BTreeMap::from([(monthly("acme"), terms)]));
        story.roll(NOVEMBER).unwrap();
        story
    }

    fn apply(&mut self, command: &BudgetCommand) -> Result<BudgetAnswer, BudgetRefusal> {
        let fenced = self.fenced.clone();
        let standing =
            |session| Some(if fenced.contains(&session) { Standing::Fenced } else { Standing::Serving });
        let before = self.budgets.clone();
        let answer = self.budgets.apply(LogTime(self.now * 1_000_000_000), standing, command);
        if answer.is_err() {
            assert_eq!(self.budgets, before, "a refusal changes nothing");
        }
        answer
    }

    fn roll(&mut self, period: Period) -> Result<BudgetAnswer, BudgetRefusal> {
        self.apply(&BudgetCommand::Roll { calendar: utc(Cycle::Month), period })
    }

    fn fence(&mut self, session: u128) {
        self.fenced.insert(SessionId(session));
        self.budgets.fence(LogTime(self.now * 1_000_000_000), SessionId(session));
    }

    fn draw_in(
        &mut self,
        period: Period,
        session: u128,
        lane: Lane,
        change: impl FnOnce(&mut BudgetDraw),
    ) -> Result<BudgetGranted, BudgetRefusal> {
        let none = BudgetDraw { seq: 0, returned: 0, need: 0, wants: 0 };
        let last = self.seqs.get(&(period.id, session, lane)).copied().unwrap_or(none);
        let mut draw = BudgetDraw { seq: last.seq + 1, need: 0, wants: 0, ..last };
        change(&mut draw);
        let command = BudgetCommand::Draw {
            budget: monthly("acme"),
            period: period.id,
            session: SessionId(session),
            lane,
            draw,
        };
        match self.apply(&command)? {
            BudgetAnswer::Granted(granted) => {
                self.seqs.insert((period.id, session, lane), draw);
                Ok(granted)
            }
            answer => panic!("{answer:?}"),
        }
    }

    /// The session needs so many tokens; what it gets.
    fn need(&mut self, session: u128, need: u64) -> u64 {
        self.draw_in(NOVEMBER, session, Lane::Regular, |draw| draw.need = need).unwrap().units
    }

    /// Gateway 100 reports that reservation `number`, paid by `owner`, held `reserved` and used `actual`.
    fn settle(
        &mut self,
        number: u64,
        owner: u128,
        reserved: u64,
        actual: u64,
    ) -> Result<BudgetAnswer, BudgetRefusal> {
        self.apply(&BudgetCommand::Settle(batch(number, owner, reserved, actual)))
    }

    fn close(&mut self, number: u64, owner: u128, reserved: u64) -> Result<BudgetAnswer, BudgetRefusal> {
        self.apply(&BudgetCommand::Close(batch(number, owner, reserved, 0)))
    }

    fn void(&mut self, first: u64, last: u64) {
        let batch =
            Batch { gateway: GATEWAY, lines: Vec::new(), ends: Vec::new(), void: vec![(first, last)] };
        self.apply(&BudgetCommand::Settle(batch)).unwrap();
    }

    fn view(&self) -> BudgetView {
        self.budgets.view(&monthly("acme"), None).unwrap()
    }

    /// Used, in escrow, remaining.
    fn stands(&self) -> (u64, u64, u64) {
        let view = self.view();
        (view.used, view.escrow, view.remaining)
    }
}

const GATEWAY: SessionId = SessionId(100);

fn line(owner: u128) -> Line {
    Line { budget: monthly("acme"), period: NOVEMBER.id, owner: SessionId(owner), lane: Lane::Regular }
}

fn batch(number: u64, owner: u128, reserved: u64, actual: u64) -> Batch {
    let charges = vec![Charge { line: 0, reserved, actual }];
    Batch {
        gateway: GATEWAY,
        lines: vec![line(owner)],
        ends: vec![End { number, charges }],
        void: Vec::new(),
    }
}

const COUNTED: Result<BudgetAnswer, BudgetRefusal> = Ok(BudgetAnswer::Ended { counted: 1, repeated: 0 });
const REPEATED: Result<BudgetAnswer, BudgetRefusal> = Ok(BudgetAnswer::Ended { counted: 0, repeated: 1 });

#[test]
fn what_is_settled_and_what_is_open_never_exceed_the_limit() {
    let mut story = Story::of(terms(1_000));
    assert_eq!(story.need(1, 600), 600);
    assert_eq!(story.need(2, 500), 0, "all or nothing");
    assert_eq!(story.need(2, 400), 400);
    assert_eq!(story.stands(), (0, 1_000, 0));
    assert_eq!(story.settle(1, 1, 600, 450), COUNTED);
    assert_eq!(story.stands(), (450, 400, 150), "what was not used is free again, here and nowhere else");
    assert_eq!(story.need(1, 150), 150);
    // A response that used more than it reserved is charged.
    assert_eq!(story.settle(2, 2, 400, 700), COUNTED);
    assert_eq!(story.stands(), (1_150, 150, 0));
    assert_eq!(story.view().books.overage, 300);
}

#[test]
fn near_its_end_a_budget_grants_single_requests() {
    let mut story = Story::of(terms(1_600));
    let mut draw = |need, wants| {
        let granted =
            story.draw_in(NOVEMBER, 1, Lane::Regular, |draw| (draw.need, draw.wants) = (need, wants));
        granted.unwrap().units
    };
    assert_eq!(draw(10, 1_000), 100, "a sixteenth of what remains");
    assert_eq!(draw(1_400, 1_000), 1_400);
    assert_eq!(draw(9, 1_000), 9);
    assert_eq!(draw(91, 1_000), 91, "to the last token");
    assert_eq!(draw(1, 1_000), 0);
}

#[test]
fn a_repeated_draw_gets_its_answer_again_and_anything_else_is_refused() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 300);
    let draw = |seq, returned, need| BudgetCommand::Draw {
        budget: monthly("acme"),
        period: NOVEMBER.id,
        session: SessionId(1),
        lane: Lane::Regular,
        draw: BudgetDraw { seq, returned, need, wants: 0 },
    };
    let again = story.apply(&draw(1, 0, 300));
    assert!(matches!(again, Ok(BudgetAnswer::Granted(BudgetGranted { units: 300, .. }))));
    assert_eq!(story.view().escrow, 300);
    assert_eq!(story.apply(&draw(1, 0, 301)), Err(BudgetRefusal::Differs));
    assert_eq!(story.apply(&draw(3, 0, 300)), Err(BudgetRefusal::OutOfTurn { expected: 2 }));
    assert_eq!(story.apply(&draw(2, 301, 0)), Err(BudgetRefusal::Unsound));
    assert!(story.apply(&draw(2, 300, 0)).is_ok());
    assert_eq!(story.stands(), (0, 0, 1_000));
    story.fence(1);
    assert_eq!(story.apply(&draw(3, 300, 1)), Err(BudgetRefusal::SessionOver));
}

#[test]
fn a_number_is_charged_once_however_often_it_is_reported() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 500);
    assert_eq!(story.settle(1, 1, 100, 80), COUNTED);
    assert_eq!(story.settle(1, 1, 100, 80), REPEATED);
    assert_eq!(story.close(1, 1, 100), REPEATED);
    assert_eq!(story.stands(), (80, 400, 520));
    // Out of order, with a gap that a late one fills.
    assert_eq!(story.settle(4, 1, 100, 100), COUNTED);
    assert_eq!(story.budgets.watermark(GATEWAY), 1);
    story.void(2, 3);
    assert_eq!(story.budgets.watermark(GATEWAY), 4);
    assert_eq!(story.settle(3, 1, 100, 100), REPEATED);
    assert_eq!(story.stands(), (180, 300, 520));
}

#[test]
fn a_final_report_after_a_close_adds_the_difference_once() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 500);
    assert_eq!(story.close(1, 1, 200), COUNTED);
    assert_eq!(story.close(1, 1, 200), REPEATED);
    assert_eq!(story.stands(), (200, 300, 500));
    assert_eq!(story.settle(1, 1, 200, 150), COUNTED);
    assert_eq!(story.settle(1, 1, 200, 150), REPEATED);
    assert_eq!(story.stands(), (150, 300, 550));
    assert_eq!(story.close(2, 1, 100), COUNTED);
    assert_eq!(story.settle(2, 1, 100, 130), COUNTED);
    assert_eq!((story.view().used, story.view().books.overage), (280, 30));
    // One that was closed and turns out never to have been sent.
    assert_eq!(story.close(3, 1, 50), COUNTED);
    story.void(3, 3);
    assert_eq!(story.stands(), (280, 150, 570));
}

#[test]
fn a_gateway_that_does_not_come_back_is_closed_after_the_grace_and_not_before() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 500);
    let closing = BudgetCommand::CloseGateway { gateway: GATEWAY, grace: 600_000_000_000 };
    assert_eq!(story.apply(&closing), Err(BudgetRefusal::TooEarly));
    story.now = 50;
    story.fence(100);
    assert_eq!(story.budgets.fenced_gateways().collect::<Vec<_>>(), [(GATEWAY, LogTime(50_000_000_000))]);
    // Its next session replays the journal meanwhile.
    assert_eq!(story.settle(1, 1, 100, 70), COUNTED);
    story.now = 649;
    assert_eq!(story.apply(&closing), Err(BudgetRefusal::TooEarly));
    story.now = 650;
    assert_eq!(story.apply(&closing), Ok(BudgetAnswer::Done));
    assert_eq!(story.apply(&closing), Ok(BudgetAnswer::Done), "a repeat");
    assert!(story.budgets.is_closed(GATEWAY));
    assert_eq!(story.settle(2, 1, 100, 70), Err(BudgetRefusal::GatewayClosed));
    // Now the owner closes what is left, once.
    assert_eq!(story.close(2, 1, 100), COUNTED);
    assert_eq!(story.close(2, 1, 100), REPEATED);
    assert_eq!(story.close(1, 1, 100), REPEATED);
    assert_eq!(story.stands(), (170, 300, 530));
}

#[test]
fn a_closed_gateway_that_is_forgotten_stays_closed() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 500);
    story.settle(1, 1, 100, 70).unwrap();
    for session in 100..=100 + CLOSED_MOST as u128 {
        story.fence(session);
        story.now += 1;
        story.apply(&BudgetCommand::CloseGateway { gateway: SessionId(session), grace: 0 }).unwrap();
    }
    assert!(!story.budgets.is_closed(GATEWAY), "forgotten");
    assert_eq!(story.settle(1, 1, 100, 70), Err(BudgetRefusal::GatewayClosed));
    assert_eq!(story.close(1, 1, 100), Err(BudgetRefusal::GatewayClosed));
}

#[test]
fn what_a_dead_owner_held_is_written_off_until_it_is_reported_or_released() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 400);
    story.fence(1);
    assert_eq!(story.stands(), (0, 400, 600));
    assert_eq!(story.view().written_off, 400);
    // What its gateways had open still ends there.
    assert_eq!(story.settle(1, 1, 100, 90), COUNTED);
    assert_eq!((story.view().written_off, story.view().remaining), (300, 610));
    let release = |session| BudgetCommand::Release {
        budget: monthly("acme"),
        period: NOVEMBER.id,
        session: SessionId(session),
    };
    story.need(2, 10);
    assert_eq!(story.apply(&release(2)), Err(BudgetRefusal::TooEarly), "it lives");
    assert_eq!(story.apply(&release(1)), Ok(BudgetAnswer::Done));
    assert_eq!(story.stands(), (90, 10, 900));
    // It was too early: what comes now is charged all the same.
    assert_eq!(story.settle(2, 1, 300, 200), COUNTED);
    assert_eq!((story.stands(), story.view().books.overage), ((290, 10, 700), 200));
}

#[test]
fn a_period_takes_its_escrow_with_it() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 900);
    story.roll(DECEMBER).unwrap();
    assert_eq!(story.stands(), (0, 0, 1_000));
    let late = story.draw_in(NOVEMBER, 1, Lane::Regular, |draw| draw.need = 1);
    assert_eq!(late, Err(BudgetRefusal::PeriodOver { current: DECEMBER.id }));
    // What was admitted in November is November's, and what was not is given back to it.
    assert_eq!(story.settle(1, 1, 100, 100), COUNTED);
    assert!(story.draw_in(NOVEMBER, 1, Lane::Regular, |draw| draw.returned = 800).is_ok());
    let november = story.budgets.view(&monthly("acme"), Some(NOVEMBER.id)).unwrap();
    assert_eq!((november.used, november.escrow), (100, 0));
    assert_eq!(story.stands(), (0, 0, 1_000));
}

#[test]
fn a_calendar_moves_on_and_never_back() {
    let mut story = Story::of(terms(1_000));
    assert_eq!(story.roll(NOVEMBER), Err(BudgetRefusal::NotNext), "a repeat");
    story.roll(DECEMBER).unwrap();
    assert_eq!(story.roll(NOVEMBER), Err(BudgetRefusal::NotNext));
    let unused = BudgetCommand::Roll { calendar: utc(Cycle::Day), period: NOVEMBER };
    assert_eq!(story.apply(&unused), Err(BudgetRefusal::NotNext));
    assert_eq!(story.budgets.calendars(), BTreeMap::from([(utc(Cycle::Month), Some(DECEMBER))]));
}

#[test]
fn a_threshold_is_told_once_and_stays_until_it_is_delivered() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 1_000);
    story.settle(1, 1, 790, 790).unwrap();
    assert!(story.budgets.alerts().is_empty(), "what is only open crosses nothing");
    story.settle(2, 1, 20, 20).unwrap();
    story.settle(3, 1, 20, 20).unwrap();
    let alert = &story.budgets.alerts()[&1];
    assert_eq!((alert.threshold, alert.limit, alert.used), (800_000, 1_000, 810));
    assert_eq!(alert.id(), "acme/Month/Tokens/1793491200/800000");
    assert_eq!(story.budgets.alerts().len(), 1);
    story.apply(&BudgetCommand::Delivered { alerts: vec![1] }).unwrap();
    assert!(story.budgets.alerts().is_empty());
    // One report may cross several, and a limit that is lowered crosses too.
    story.budgets.adopt(&BTreeMap::from([(monthly("acme"), terms(850))]));
    assert_eq!(story.budgets.alerts()[&2].threshold, 950_000);
    story.roll(DECEMBER).unwrap();
    story.apply(&BudgetCommand::SetUsed { budget: monthly("acme"), used: 900 }).unwrap();
    assert_eq!(story.budgets.alerts().len(), 3, "each period tells its own");
}

#[test]
fn a_cheaper_model_goes_on_up_to_its_own_limit() {
    let mut story = Story::of(BudgetTerms { degraded: 200, ..terms(1_000) });
    let mut need = |lane, need| story.draw_in(NOVEMBER, 1, lane, |draw| draw.need = need).unwrap().units;
    assert_eq!(need(Lane::Regular, 1_000), 1_000);
    assert_eq!(need(Lane::Regular, 1), 0);
    assert_eq!(need(Lane::Degraded, 150), 150);
    assert_eq!(need(Lane::Degraded, 51), 0);
    let charges = vec![Charge { line: 0, reserved: 150, actual: 120 }];
    let line = Line { lane: Lane::Degraded, ..line(1) };
    let batch =
        Batch { gateway: GATEWAY, lines: vec![line], ends: vec![End { number: 1, charges }], void: vec![] };
    story.apply(&BudgetCommand::Settle(batch)).unwrap();
    assert_eq!((story.view().books.degraded, story.view().remaining_degraded), (120, 80));
}

#[test]
fn an_operator_sets_what_is_used_and_later_usage_adds_to_it() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 100);
    story.settle(1, 1, 100, 100).unwrap();
    story.apply(&BudgetCommand::SetUsed { budget: monthly("acme"), used: 700 }).unwrap();
    assert_eq!(story.stands(), (700, 0, 300));
    assert_eq!(story.need(1, 301), 0);
    assert_eq!(story.need(1, 300), 300);
    story.settle(2, 1, 300, 50).unwrap();
    assert_eq!(story.stands(), (750, 0, 250));
    story.apply(&BudgetCommand::SetUsed { budget: monthly("acme"), used: 0 }).unwrap();
    assert_eq!(story.need(1, 1_000), 1_000);
}

#[test]
fn an_edit_keeps_what_is_used_and_one_of_the_zone_too() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 900);
    story.settle(1, 1, 900, 900).unwrap();
    let edit = |story: &mut Story, limit, zone: &str| {
        let terms = BudgetTerms { zone: zone.into(), ..terms(limit) };
        story.budgets.adopt(&BTreeMap::from([(monthly("acme"), terms)]));
    };
    edit(&mut story, 500, "UTC");
    assert_eq!((story.stands(), story.need(1, 1)), ((900, 0, 0), 0));
    story.budgets.adopt(&BTreeMap::new());
    assert_eq!(story.budgets.current().count(), 0);
    edit(&mut story, 2_000, "UTC");
    assert_eq!(story.stands(), (900, 0, 1_100));
    // November begins five hours later there, and is no new month.
    edit(&mut story, 2_000, "America/New_York");
    let roll = |story: &mut Story, id, end| {
        let calendar = Calendar { cycle: Cycle::Month, zone: "America/New_York".into() };
        story.apply(&BudgetCommand::Roll { calendar, period: Period { id: PeriodId(id), end } }).unwrap();
    };
    roll(&mut story, NOVEMBER.id.0 + 4 * 3600, NOVEMBER.end + 5 * 3600);
    assert_eq!(story.stands(), (900, 0, 1_100));
    roll(&mut story, NOVEMBER.end + 5 * 3600, DECEMBER.end + 5 * 3600);
    assert_eq!(story.stands(), (0, 0, 2_000));
}

#[test]
fn periods_that_are_over_are_forgotten_in_the_end() {
    let mut story = Story::of(terms(1_000));
    for month in 0..20 {
        let period = Period {
            id: PeriodId(NOVEMBER.id.0 + (month + 1) * 100),
            end: NOVEMBER.id.0 + (month + 2) * 100,
        };
        story.draw_in(story.view().period, 1, Lane::Regular, |draw| draw.need = 10).unwrap();
        // The calendar's second, too, so that it enters.
        story
            .roll(Period { id: PeriodId(NOVEMBER.end + period.id.0), end: NOVEMBER.end + period.end })
            .unwrap();
    }
    let budget = &story.budgets.budgets[&monthly("acme")];
    assert!(budget.accounts.len() <= PAST_MOST + 1, "{}", budget.accounts.len());
    let owners = budget.accounts.keys().copied().collect::<Vec<_>>();
    // A report of one that is forgotten is taken, and costs nothing any more.
    assert!(!owners.contains(&NOVEMBER.id));
    assert_eq!(story.settle(1, 1, 10, 10), COUNTED);
}

#[test]
fn a_batch_that_cannot_be_is_refused_whole() {
    let mut story = Story::of(terms(1_000));
    story.need(1, 500);
    let good = batch(1, 1, 100, 80);
    let mut refuse = |batch| {
        assert_eq!(story.apply(&BudgetCommand::Settle(batch)), Err(BudgetRefusal::Unsound));
    };
    let charge = good.ends[0].charges[0];
    let with = |charges: Vec<Charge>| Batch { ends: vec![End { number: 1, charges }], ..good.clone() };
    refuse(with(vec![Charge { line: 1, ..charge }]));
    refuse(with(vec![Charge { actual: UNITS_MOST + 1, ..charge }]));
    refuse(with(vec![charge, charge]));
    refuse(Batch { lines: vec![line(1), line(1)], ..good.clone() });
    refuse(Batch { void: vec![(3, 2)], ..good.clone() });
    refuse(Batch { void: vec![(0, 2)], ..good.clone() });
    refuse(Batch { ends: vec![End { number: 0, charges: vec![] }], ..good.clone() });
    refuse(Batch { void: vec![(1, 1); BATCH_MOST + 1], ..good });
}

// Everything at once.

/// What can happen.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The owner draws: what it needs, what it gives back.
    Draw(usize, u64, u64),
    /// Its draw reaches the log; whether it learns the answer.
    Deliver(usize, bool),
    /// The owner admits a request of so many tokens for the gateway, or of what its purse has.
    Admit(usize, usize, u64),
    /// The n-th open request of the gateway ends with that much used.
    Finish(usize, usize, u64),
    /// The n-th is cancelled before it is sent, at the owner that debited it.
    Cancel(usize, usize),
    /// What the gateway's journal holds is reported; whether it learns that it was.
    Report(usize, bool),
    /// A batch that was reported long ago reaches the log again.
    Repeat(usize),
    /// The owner closes the n-th open request, which has reached its deadline.
    Expire(usize, usize),
    KillOwner(usize),
    /// The gateway is fenced; its next session has its journal. Nobody hears of what it had open.
    KillGateway(usize),
    /// The time for its reports is over, and the owners close the rest.
    CloseGateway,
    Edit(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let two = || 0..2usize;
    let step = prop_oneof![
        7 => (two(), 0..160u64, 0..40u64).prop_map(|(owner, need, back)| Step::Draw(owner, need, back)),
        6 => (two(), prop::bool::weighted(0.8)).prop_map(|(owner, heard)| Step::Deliver(owner, heard)),
        8 => (two(), two(), 1..200u64).prop_map(|(gateway, owner, units)| Step::Admit(gateway, owner, units)),
        5 => (two(), 0..6usize, 0..250u64).prop_map(|(gateway, which, used)| Step::Finish(gateway, which, used)),
        1 => (two(), 0..6usize).prop_map(|(gateway, which)| Step::Cancel(gateway, which)),
        4 => (two(), prop::bool::weighted(0.8)).prop_map(|(gateway, heard)| Step::Report(gateway, heard)),
        1 => (0..20usize).prop_map(Step::Repeat),
        1 => (two(), 0..6usize).prop_map(|(gateway, which)| Step::Expire(gateway, which)),
        2 => two().prop_map(Step::KillOwner),
        1 => two().prop_map(Step::KillGateway),
        1 => Just(Step::CloseGateway),
        1 => (100..=LIMIT).prop_map(Step::Edit),
    ];
    vec(step, 1..150)
}

#[derive(Clone, Debug, Default)]
struct Owner {
    session: u128,
    purse: u64,
    returned: u64,
    seq: u64,
    flight: Option<BudgetDraw>,
}

/// A reservation as it really was.
#[derive(Clone, Debug)]
struct Request {
    gateway: u128,
    number: u64,
    owner: u128,
    reserved: u64,
    /// What it used, once it is over; a gateway that died took the figure along.
    used: Option<u64>,
    cancelled: bool,
    /// Whether the gateway that has it lives.
    known: bool,
    reported: bool,
    closed: bool,
}

struct World {
    story: Story,
    owners: [Owner; 2],
    gateways: [(u128, u64); 2],
    requests: Vec<Request>,
    batches: Vec<Batch>,
    dead: Vec<u128>,
    sessions: u128,
    limit: u64,
    most: u64,
    log: Vec<(u64, BTreeSet<SessionId>, Entry)>,
}

#[derive(Clone, Debug)]
enum Entry {
    Command(BudgetCommand),
    Fence(u128),
    Terms(u64),
}

const LIMIT: u64 = 300;

impl World {
    fn new() -> Self {
        let story = Story::of(terms(LIMIT));
        let roll = BudgetCommand::Roll { calendar: utc(Cycle::Month), period: NOVEMBER };
        let log = vec![(0, BTreeSet::new(), Entry::Terms(LIMIT)), (0, BTreeSet::new(), Entry::Command(roll))];
        let mut world = Self {
            story,
            owners: Default::default(),
            gateways: Default::default(),
            requests: Vec::new(),
            batches: Vec::new(),
            dead: Vec::new(),
            sessions: 1_000,
            limit: LIMIT,
            most: LIMIT,
            log,
        };
        for which in 0..2 {
            world.owners[which] = Owner { session: world.session(), ..Owner::default() };
            world.gateways[which] = (world.session(), 0);
        }
        world
    }

    fn session(&mut self) -> u128 {
        self.sessions += 1;
        self.sessions
    }

    fn apply(&mut self, command: BudgetCommand) -> Result<BudgetAnswer, BudgetRefusal> {
        self.log.push((self.story.now, self.story.fenced.clone(), Entry::Command(command.clone())));
        self.story.apply(&command)
    }

    fn fence(&mut self, session: u128) {
        self.log.push((self.story.now, self.story.fenced.clone(), Entry::Fence(session)));
        self.story.fence(session);
    }

    /// The n-th request that the gateway of that session still has open.
    fn open(&mut self, gateway: usize, which: usize) -> Option<&mut Request> {
        let session = self.gateways[gateway].0;
        let open = |request: &&mut Request| {
            request.gateway == session && request.known && request.used.is_none() && !request.cancelled
        };
        self.requests.iter_mut().filter(open).nth(which)
    }

    fn of(requests: &[Request], gateway: u128) -> Batch {
        let mut batch =
            Batch { gateway: SessionId(gateway), lines: Vec::new(), ends: Vec::new(), void: Vec::new() };
        for request in requests {
            if request.cancelled {
                batch.void.push((request.number, request.number));
                continue;
            }
            let line = line(request.owner);
            let place = batch.lines.iter().position(|known| *known == line).unwrap_or_else(|| {
                batch.lines.push(line);
                batch.lines.len() - 1
            });
            let charge = Charge {
                line: place as u32,
                reserved: request.reserved,
                actual: request.used.unwrap_or(request.reserved),
            };
            batch.ends.push(End { number: request.number, charges: vec![charge] });
        }
        batch
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        self.story.now += 1;
        match step {
            Step::Draw(which, need, back) => {
                let owner = &mut self.owners[which];
                if owner.flight.is_none() {
                    let back = back.min(owner.purse);
                    owner.purse -= back;
                    owner.returned += back;
                    owner.seq += 1;
                    let draw = BudgetDraw { seq: owner.seq, returned: owner.returned, need, wants: 2 * need };
                    owner.flight = Some(draw);
                }
            }
            Step::Deliver(which, heard) => {
                let Owner { session, flight: Some(draw), .. } = self.owners[which] else { return Ok(()) };
                let command = BudgetCommand::Draw {
                    budget: monthly("acme"),
                    period: NOVEMBER.id,
                    session: SessionId(session),
                    lane: Lane::Regular,
                    draw,
                };
                let answer = self.apply(command);
                let Ok(BudgetAnswer::Granted(granted)) = answer else {
                    return Err(TestCaseError::fail(format!("{answer:?}")));
                };
                if heard {
                    self.owners[which].purse += granted.units;
                    self.owners[which].flight = None;
                }
            }
            Step::Admit(gateway, owner, reserved) => {
                let reserved = reserved.min(self.owners[owner].purse);
                if reserved == 0 {
                    return Ok(());
                }
                self.owners[owner].purse -= reserved;
                self.gateways[gateway].1 += 1;
                let (session, number) = self.gateways[gateway];
                self.requests.push(Request {
                    gateway: session,
                    number,
                    owner: self.owners[owner].session,
                    reserved,
                    used: None,
                    cancelled: false,
                    known: true,
                    reported: false,
                    closed: false,
                });
                // Budget holds, at each admission: what was really used and what is still open fit the largest limit that was in force.
                let (used, open, overage) = self.truth();
                prop_assert!(used + open <= self.most + overage, "{used} used, {open} open, {overage} over");
            }
            Step::Finish(gateway, which, used) => {
                if let Some(request) = self.open(gateway, which) {
                    request.used = Some(used);
                }
            }
            Step::Cancel(gateway, which) => {
                let owners: Vec<u128> = self.owners.iter().map(|owner| owner.session).collect();
                let Some(request) = self.open(gateway, which) else { return Ok(()) };
                let Some(owner) = owners.iter().position(|session| *session == request.owner) else {
                    return Ok(());
                };
                if request.closed {
                    return Ok(());
                }
                request.cancelled = true;
                let reserved = request.reserved;
                self.owners[owner].purse += reserved;
            }
            Step::Report(gateway, heard) => {
                let session = self.gateways[gateway].0;
                self.report(session, heard)?;
            }
            Step::Repeat(which) => {
                let Some(batch) = self.batches.get(which).cloned() else { return Ok(()) };
                let before = self.story.view();
                let _ = self.apply(BudgetCommand::Settle(batch));
                prop_assert_eq!(before, self.story.view(), "an old report changed something");
            }
            Step::Expire(gateway, which) => {
                let Some(request) = self.open(gateway, which) else { return Ok(()) };
                request.closed = true;
                let request = request.clone();
                let _ = self
                    .apply(BudgetCommand::Close(Self::of(std::slice::from_ref(&request), request.gateway)));
            }
            Step::KillOwner(which) => {
                let session = self.owners[which].session;
                self.fence(session);
                self.owners[which] = Owner { session: self.session(), ..Owner::default() };
            }
            Step::KillGateway(which) => {
                let session = self.gateways[which].0;
                self.fence(session);
                self.dead.push(session);
                for request in &mut self.requests {
                    request.known &=
                        request.gateway != session || request.used.is_some() || request.cancelled;
                }
                self.gateways[which] = (self.session(), 0);
                // The journal is replayed, perhaps.
                if session.is_multiple_of(2) {
                    self.report(session, true)?;
                }
            }
            Step::CloseGateway => {
                let Some(session) = self.dead.pop() else { return Ok(()) };
                self.story.now += 10;
                let gateway = SessionId(session);
                let answer = self.apply(BudgetCommand::CloseGateway { gateway, grace: 10_000_000_000 });
                prop_assert_eq!(answer, Ok(BudgetAnswer::Done));
                let ours = |request: &&mut Request| request.gateway == session && !request.cancelled;
                let rest: Vec<Request> =
                    self.requests.iter_mut().filter(ours).map(|request| request.clone()).collect();
                for _ in 0..2 {
                    let _ = self.apply(BudgetCommand::Close(Self::of(&rest, session)));
                }
                for request in &mut self.requests {
                    request.closed |= request.gateway == session && !request.cancelled && !request.reported;
                }
            }
            Step::Edit(limit) => {
                self.limit = limit;
                self.most = self.most.max(limit);
                self.log.push((self.story.now, BTreeSet::new(), Entry::Terms(limit)));
                self.story.budgets.adopt(&BTreeMap::from([(monthly("acme"), terms(limit))]));
            }
        }
        self.check()
    }

    fn report(&mut self, session: u128, heard: bool) -> Result<(), TestCaseError> {
        let over = |request: &&Request| {
            request.gateway == session && request.known && (request.used.is_some() || request.cancelled)
        };
        let over: Vec<Request> = self.requests.iter().filter(over).cloned().collect();
        // Latest first: numbers need not come in order.
        let batch = Self::of(&over.into_iter().rev().collect::<Vec<_>>(), session);
        let answer = self.apply(BudgetCommand::Settle(batch.clone()));
        prop_assert!(answer.is_ok(), "{answer:?}");
        self.batches.push(batch);
        for request in &mut self.requests {
            let over = request.used.is_some() || request.cancelled;
            request.reported |= request.gateway == session && request.known && over;
            // Whoever knows that it is reported may forget it.
            request.known &= !(heard && request.reported);
        }
        Ok(())
    }

    /// What requests really used, what is open, and what was used beyond what was reserved.
    fn truth(&self) -> (u64, u64, u64) {
        let kept = self.requests.iter().filter(|request| !request.cancelled);
        kept.fold((0, 0, 0), |(used, open, overage), request| match request.used {
            Some(units) => (used + units, open, overage + units.saturating_sub(request.reserved)),
            None => (used, open + request.reserved, overage),
        })
    }

    /// Each request is charged what it used once it is reported, its estimate once it is closed, and nothing before.
    fn check(&self) -> Result<(), TestCaseError> {
        let charged: u64 = self
            .requests
            .iter()
            .map(|request| match (request.reported, request.closed) {
                (true, _) if request.cancelled => 0,
                (true, _) => request.used.unwrap_or(0),
                (false, true) => request.reserved,
                (false, false) => 0,
            })
            .sum();
        prop_assert_eq!(self.story.view().used, charged);
        let ids: BTreeSet<String> = self.story.budgets.alerts().values().map(Alert::id).collect();
        prop_assert_eq!(ids.len(), self.story.budgets.alerts().len(), "an alert was raised twice");
        Ok(())
    }
}

fn replay(budgets: &mut Budgets, log: &[(u64, BTreeSet<SessionId>, Entry)]) {
    for (now, fenced, entry) in log {
        let now = LogTime(now * 1_000_000_000);
        match entry {
            Entry::Command(command) => {
                let standing = |session| {
                    Some(if fenced.contains(&session) { Standing::Fenced } else { Standing::Serving })
                };
                let _ = budgets.apply(now, standing, command);
            }
            Entry::Fence(session) => budgets.fence(now, SessionId(*session)),
            Entry::Terms(limit) => budgets.adopt(&BTreeMap::from([(monthly("acme"), terms(*limit))])),
        }
    }
}

fn copied<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    wire::decode(&wire::encode(value)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// `budget_holds`, `nothing_lost`, `resolved_once`, `alert_once`, after every step.
    #[test]
    fn budget_holds_and_nothing_is_lost(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
    }

    /// The same log gives the same state, and so does a snapshot with the entries after it.
    #[test]
    fn a_snapshot_and_its_suffix_are_the_whole_log(steps in steps(), cut in 0..150usize) {
        let mut world = World::new();
        for step in steps {
            world.step(step)?;
        }
        let mut whole = Budgets::default();
        replay(&mut whole, &world.log);
        let (prefix, suffix) = world.log.split_at(cut.min(world.log.len()));
        let mut half = Budgets::default();
        replay(&mut half, prefix);
        let mut half: Budgets = copied(&half);
        replay(&mut half, suffix);
        prop_assert_eq!(&whole, &half);
        prop_assert_eq!(&whole, &world.story.budgets);
    }
}
