//! The laws of a pool: stories first, then random owners that spend, report late, repeat themselves and die.
//!
//! Each law can fail. A build with `--cfg mutant` has these, and each turns `guard_holds` red:
//!
//! | `MUTANT` | the fault |
//! |---|---|
//! | `refill_after_report` | a draw refills after it has believed its report: what was idle is minted at once |
//! | `refund_all` | a refund raises the level beyond the burst |
//! | `escrow_reissue` | the end of a session gives back what it held |
//!
//! One line changed in the code turns these red:
//!
//! | the change | kills |
//! |---|---|
//! | `Pool::draw`: a repeat is granted again | `a_repeat_gets_the_same_answer_and_anything_else_is_refused`, `guard_holds` |
//! | `Pool::report`: refunds where the pool gives none | `guard_holds` |
//! | `Pool::divide`: weights are ignored | `a_scarce_pool_is_divided_by_weight_however_often_somebody_asks` |
//! | `Pool::follow`: what shrank is not cut | `a_pool_that_shrank_refills_nothing_until_what_is_outstanding_fits` |
//! | `Level::begin`: what comes back is full | `a_pool_that_comes_back_begins_empty`, `guard_holds` |
//! | `Level::refill`: the carry becomes 0 | `refill_loses_no_fraction_of_a_unit` |
//! | `Purse::granted`: a late answer counts | `one_draw_is_on_its_way_at_a_time_and_a_late_answer_changes_nothing` |
//! | `Purse::refund`: comes back to the purse | `overage_is_debt_that_the_next_grants_repay_and_a_refund_never_comes_back` |
//! | `Purse::poll`: what is given back stays | `no_minute_is_sent_more_than_the_ceiling` |
//! | `Purse::poll`: nothing is given up | `what_it_cannot_use_it_gives_up_and_then_asks_again` |
//! | `Purse::is_low`: only an empty purse is | `while_there_is_enough_hardly_anybody_waits_and_draws_are_few` |
//! | `Purse::target`: two seconds of a scarce pool | `of_a_scarce_pool_it_aims_at_a_round_and_not_at_two_seconds` |
//! | `Purses::pay`: the pool is not asked | `a_request_is_paid_by_all_or_by_none` |

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate_cluster::wire;

use super::divide::{Share, divide};
use super::*;
use crate::limit::{MINUTE_NANOS, Rate};

const SECOND: u64 = 1_000_000_000;

/// A pool of tokens alone: so many a minute, so many at once.
fn tokens(per_minute: u64, burst: u64) -> Terms {
    Terms::new([Some(Rate::new(per_minute, burst)), None, None, None], true)
}

fn of_tokens(units: u64) -> Units {
    Units([units, 0, 0, 0])
}

/// The pool `main`, its log time, and what each session has told it.
struct Story {
    pools: Pools,
    now: LogTime,
    told: BTreeMap<u128, Draw>,
    fenced: Vec<SessionId>,
}

impl Story {
    fn of(terms: Terms) -> Self {
        let mut story =
            Self { pools: Pools::default(), now: LogTime(0), told: BTreeMap::new(), fenced: Vec::new() };
        story.edit(Some(terms));
        story
    }

    fn edit(&mut self, terms: Option<Terms>) {
        let terms = terms.into_iter().map(|terms| (Name::from("main"), terms)).collect();
        self.pools.adopt(self.now, &terms);
    }

    fn pass(&mut self, seconds: u64) {
        self.now.0 += seconds * SECOND;
    }

    fn apply(&mut self, session: u128, draw: Draw) -> Result<Granted, PoolRefusal> {
        let command = PoolCommand::Draw { pool: "main".into(), session: SessionId(session), draw };
        let fenced = self.fenced.clone();
        let standing =
            |session| Some(if fenced.contains(&session) { Standing::Fenced } else { Standing::Serving });
        self.pools.apply(self.now, standing, &command)
    }

    /// The session's next draw, after `change` of what it told last.
    fn next(&self, session: u128, change: impl FnOnce(&mut Draw)) -> Draw {
        let mut draw = self.told.get(&session).copied().unwrap_or(Account::default().last);
        draw.seq += 1;
        draw.wants = Units::NONE;
        change(&mut draw);
        draw
    }

    fn tell(&mut self, session: u128, change: impl FnOnce(&mut Draw)) -> u64 {
        let draw = self.next(session, change);
        self.told.insert(session, draw);
        self.apply(session, draw).unwrap().units.0[0]
    }

    /// The session wants so many tokens; what it gets.
    fn want(&mut self, session: u128, wants: u64) -> u64 {
        self.tell(session, |draw| draw.wants = of_tokens(wants))
    }

    /// It has spent so many since, and wants so many.
    fn spend(&mut self, session: u128, spent: u64, wants: u64) -> u64 {
        self.tell(session, |draw| {
            draw.spent = draw.spent.plus(of_tokens(spent));
            draw.wants = of_tokens(wants);
        })
    }

    fn fence(&mut self, session: u128) {
        self.pools.fence(self.now, SessionId(session));
        self.fenced.push(SessionId(session));
    }

    fn level(&self) -> LevelView {
        self.pools.view("main").unwrap().levels[0]
    }
}

#[test]
fn a_new_pool_is_full_and_grants_what_it_holds() {
    let mut story = Story::of(tokens(600, 100));
    assert_eq!(story.want(1, 30), 30);
    assert_eq!(story.want(2, 100), 70);
    assert_eq!((story.level().level, story.level().outstanding), (0, 100));
}

#[test]
fn what_is_held_leaves_no_room_to_refill_until_it_is_reported_spent() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 100);
    story.pass(3600);
    // It may have spent all of it a moment ago: the hour counts for nothing, the second after the report counts.
    assert_eq!(story.spend(1, 100, 100), 0);
    story.pass(1);
    assert_eq!(story.want(1, 100), 10);
}

#[test]
fn refill_loses_no_fraction_of_a_unit() {
    let mut story = Story::of(tokens(7, 100));
    story.want(1, 100);
    story.spend(1, 100, 0);
    // A unit takes 8.57 s.
    for _ in 0..600 {
        story.now.0 += SECOND / 10;
        story.want(1, 0);
    }
    assert_eq!(story.level().level, 7);
}

#[test]
fn a_repeat_gets_the_same_answer_and_anything_else_is_refused() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 40);
    let draw = story.told[&1];
    let before = story.pools.clone();
    assert_eq!(story.apply(1, draw).unwrap().units, of_tokens(40));
    assert_eq!(story.apply(1, Draw { wants: of_tokens(41), ..draw }), Err(PoolRefusal::Differs));
    assert_eq!(story.apply(1, Draw { seq: 3, ..draw }), Err(PoolRefusal::OutOfTurn { expected: 2 }));
    assert_eq!(story.apply(2, Draw { seq: 0, ..draw }), Err(PoolRefusal::OutOfTurn { expected: 1 }));
    let returns = |units| Draw { seq: 2, returned: of_tokens(units), ..draw };
    assert_eq!(story.apply(1, returns(41)), Err(PoolRefusal::Unsound));
    let refunds = Draw { seq: 2, refunded: of_tokens(1), ..draw };
    assert_eq!(story.apply(1, refunds), Err(PoolRefusal::Unsound), "what was not spent is not refunded");
    assert_eq!(story.pools, before, "a refusal changes nothing");
    assert!(story.apply(1, returns(40)).is_ok());
}

#[test]
fn what_is_returned_can_be_granted_again() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 100);
    story.tell(1, |draw| draw.returned = of_tokens(60));
    assert_eq!(story.want(2, 100), 60);
}

#[test]
fn a_refund_raises_the_level_by_what_fits_and_by_nothing_where_there_is_none() {
    for (refunds, expected) in [(true, 50), (false, 0)] {
        let mut story = Story::of(Terms { refunds, ..tokens(600, 100) });
        story.want(1, 100);
        story.tell(1, |draw| (draw.spent, draw.refunded) = (of_tokens(80), of_tokens(50)));
        assert_eq!(story.level().level, expected);
        // A second refills 10. What comes when it is full is gone: 20 are still held, so that of these 30 only 20 fit.
        story.pass(1);
        story.tell(1, |draw| draw.refunded = of_tokens(80));
        assert_eq!(story.level().level, if refunds { 80 } else { 10 });
        assert_eq!(story.level().outstanding, 20);
    }
}

#[test]
fn the_end_of_a_session_writes_off_what_it_held() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 70);
    story.spend(1, 20, 0);
    story.fence(1);
    let level = story.level();
    assert_eq!((level.level, level.outstanding), (30, 0));
    assert_eq!((level.books.spent, level.books.written_off), (20, 50));
    assert_eq!(story.apply(1, story.next(1, |_| ())), Err(PoolRefusal::SessionOver));
}

#[test]
fn a_debt_is_repaid_by_the_next_grant_or_by_the_pool() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 10);
    // A response used 25 more than it held.
    assert_eq!(story.spend(1, 35, 0), 0);
    assert_eq!((story.level().level, story.level().outstanding), (90, 0));
    assert_eq!(story.want(1, 30), 30);
    assert_eq!(story.level().outstanding, 5, "25 of them repaid");
    story.spend(1, 15, 0);
    story.fence(1);
    assert_eq!(story.level().level, 50, "the 10 that it owed at its end are charged here");
}

#[test]
fn a_pool_that_shrank_refills_nothing_until_what_is_outstanding_fits() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 60);
    story.edit(Some(tokens(600, 50)));
    assert_eq!((story.level().level, story.level().books.lapsed), (0, 40));
    story.pass(60);
    story.spend(1, 30, 0);
    story.pass(1);
    assert_eq!(story.spend(1, 0, 100), 10);
    // One that grows is not a gift.
    story.edit(Some(tokens(600, 1_000)));
    assert_eq!(story.level().level, 0);
    assert_eq!(story.level().outstanding, 40);
}

#[test]
fn a_pool_that_comes_back_begins_empty() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 100);
    story.edit(None);
    assert_eq!(story.pools.names().count(), 0);
    // Who does not know yet still reports, and is granted nothing.
    assert_eq!(story.spend(1, 100, 50), 0);
    story.edit(Some(tokens(600, 100)));
    assert_eq!(story.level().level, 0);
    story.pass(1);
    assert_eq!(story.want(1, 50), 10);
}

#[test]
fn a_dropped_pool_that_was_forgotten_does_not_begin_full_either() {
    let mut story = Story::of(tokens(600, 100));
    let many = |range: std::ops::Range<usize>| {
        range.map(|number| (Name::from(format!("pool-{number:05}")), tokens(600, 100))).collect()
    };
    story.pools.adopt(story.now, &many(0..RETIRED_MAX + 1));
    story.pools.adopt(story.now, &BTreeMap::new());
    story.pools.adopt(story.now, &many(0..1));
    assert_eq!(story.pools.view("pool-00000").unwrap().levels[0].level, 0);
}

#[test]
fn a_provider_that_refuses_closes_the_pool_until_the_instant_it_names() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 10);
    let hear = |story: &mut Story, remaining, seconds| {
        let feedback = Feedback { remaining: [remaining, None, None, None], pause: seconds * SECOND };
        let command = PoolCommand::Feedback { pool: "main".into(), feedback };
        story.pools.apply(story.now, |_| None, &command).unwrap();
    };
    // It would still take 50, of which 10 may be on their way.
    hear(&mut story, Some(50), 5);
    assert_eq!(story.want(2, 90), 40);
    assert_eq!(story.want(2, 0), 0);
    hear(&mut story, Some(0), 2);
    assert_eq!(story.want(1, 10), 0);
    story.pass(4);
    assert_eq!(story.want(1, 10), 0, "the longer pause counts");
    story.pass(1);
    assert_eq!(story.want(1, 10), 10);
    assert_eq!(story.pools.view("main").unwrap().brake, None);
}

#[test]
fn a_condemned_session_reports_and_returns_but_gets_nothing() {
    let mut story = Story::of(tokens(600, 100));
    story.want(1, 50);
    let draw = story.next(1, |draw| {
        draw.spent = of_tokens(10);
        draw.returned = of_tokens(20);
        draw.wants = of_tokens(30);
    });
    let command = PoolCommand::Draw { pool: "main".into(), session: SessionId(1), draw };
    let answer = story.pools.apply(story.now, |_| Some(Standing::Condemned), &command).unwrap();
    assert_eq!((answer.units, story.level().outstanding), (Units::NONE, 20));
}

#[test]
fn a_scarce_pool_is_divided_by_weight_however_often_somebody_asks() {
    let mut story = Story::of(tokens(60_000, 1_000));
    story.tell(9, |draw| draw.wants = of_tokens(1_000));
    story.tell(9, |draw| draw.spent = of_tokens(1_000));
    let weighs = |weight, spent: u64| {
        move |draw: &mut Draw| {
            draw.weight = weight;
            draw.spent = draw.spent.plus(of_tokens(spent));
            draw.wants = of_tokens(900);
        }
    };
    let (mut first, mut second) = (0, 0);
    let (mut heavy, mut light) = (0, 0);
    for _ in 0..100 {
        // 100 units each tenth of a second. The light one asks five times as often.
        story.now.0 += SECOND / 10;
        first = story.tell(1, weighs(3, first));
        heavy += first;
        for _ in 0..5 {
            second = story.tell(2, weighs(1, second));
            light += second;
        }
    }
    assert_eq!(heavy + light, 10_000);
    assert!((7_450..=7_550).contains(&heavy), "{heavy} to {light}");
}

#[test]
fn who_wants_less_than_its_share_gets_it_and_the_rest_goes_on() {
    let mut story = Story::of(tokens(60_000, 100));
    assert_eq!(story.want(1, 100), 100);
    story.want(2, 10);
    story.spend(1, 100, 100);
    story.now.0 += SECOND / 10;
    assert_eq!(story.want(1, 100), 90);
    assert_eq!(story.want(2, 10), 10);
}

#[test]
fn one_unit_at_a_time_goes_round() {
    let mut story = Story::of(tokens(60, 1));
    let (mut held, mut got) = ([0, 0], [0, 0]);
    for _ in 0..20 {
        for session in [0, 1] {
            held[session] = story.spend(session as u128 + 1, held[session], 1);
            got[session] += held[session];
        }
        story.pass(1);
    }
    assert!(got[0].abs_diff(got[1]) <= 1 && got[0] + got[1] >= 10, "{got:?}");
}

proptest! {
    /// Against units that go one by one to whoever has the least per weight.
    #[test]
    fn division_is_water_filling(units in 0..400u64, wants in vec((0..6u32, 0..100u64), 0..8)) {
        let mut shares: Vec<Share> = wants.iter().map(|&(weight, wants)| Share::new(weight, wants)).collect();
        let left = divide(units, &mut shares);
        let total: u64 = wants.iter().map(|(_, wants)| wants).sum();
        prop_assert_eq!(left, units.saturating_sub(total));
        prop_assert_eq!(shares.iter().map(|share| share.part()).sum::<u64>() + left, units);
        for (share, (_, wants)) in shares.iter().zip(&wants) {
            prop_assert!(share.part() <= *wants);
        }
        for (poor, (poor_weight, poor_wants)) in shares.iter().zip(&wants) {
            if poor.part() == *poor_wants {
                continue;
            }
            for (rich, (rich_weight, _)) in shares.iter().zip(&wants) {
                // Without one unit it would have no more per weight than the other with one more.
                let (poor_weight, rich_weight) = ((*poor_weight).max(1), (*rich_weight).max(1));
                let (poorer, richer) = (poor.part() + 1, rich.part().saturating_sub(1));
                prop_assert!(richer * u64::from(poor_weight) <= poorer * u64::from(rich_weight));
            }
        }
    }
}

/// What can happen to three owners and the pool that they draw from.
#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64),
    /// The owner admits so many tokens, if its purse has them.
    Admit(usize, u64),
    /// All that its purse has.
    AdmitAll(usize),
    /// A response used more than it held.
    Overage(usize, u64),
    /// One used less.
    Refund(usize, u64),
    /// The owner makes its next draw: what it wants, what it gives back.
    Draw(usize, u64, u64),
    /// Its draw reaches the log, and the answer the owner.
    Deliver(usize),
    /// Both at once, giving nothing back.
    Round(usize, u64),
    /// Its draw reaches the log, and the answer is lost.
    Lose(usize),
    /// A draw that it made long ago reaches the log again.
    Repeat(usize, usize),
    /// It is fenced, and begins again.
    Die(usize),
    Shrink(u64),
    Pause(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let owner = || 0..3usize;
    let step = prop_oneof![
        4 => (0..=36u32).prop_flat_map(|bits| 0..=(1u64 << bits)).prop_map(Step::Wait),
        6 => (owner(), 1..60u64).prop_map(|(owner, units)| Step::Admit(owner, units)),
        3 => owner().prop_map(Step::AdmitAll),
        8 => (owner(), 0..120u64).prop_map(|(owner, wants)| Step::Round(owner, wants)),
        1 => (owner(), 1..30u64).prop_map(|(owner, units)| Step::Overage(owner, units)),
        3 => (owner(), 1..120u64).prop_map(|(owner, units)| Step::Refund(owner, units)),
        6 => (owner(), 0..120u64, 0..60u64).prop_map(|(owner, wants, back)| Step::Draw(owner, wants, back)),
        6 => owner().prop_map(Step::Deliver),
        1 => owner().prop_map(Step::Lose),
        1 => (owner(), 0..20usize).prop_map(|(owner, which)| Step::Repeat(owner, which)),
        1 => owner().prop_map(Step::Die),
        1 => (20..100u64).prop_map(Step::Shrink),
        1 => (0..3u64).prop_map(Step::Pause),
    ];
    vec(step, 1..120)
}

/// An owner as it should be: it spends what it holds, and never what it does not.
#[derive(Clone, Debug, Default)]
struct Owner {
    session: u128,
    held: i64,
    spent: u64,
    returned: u64,
    refunded: u64,
    seq: u64,
    flight: Option<Draw>,
    made: Vec<Draw>,
}

struct World {
    story: Story,
    owners: [Owner; 3],
    sessions: u128,
    /// Instant, tokens admitted, refunds credited.
    history: Vec<(u64, u64, u64)>,
    log: Vec<(LogTime, Entry)>,
}

/// What the log says: to be read again by another node.
#[derive(Clone, Debug)]
enum Entry {
    Command(PoolCommand, bool),
    Fence(SessionId),
    Terms(Terms),
}

const PER_MINUTE: u64 = 3_000;
const BURST: u64 = 100;

impl World {
    fn new(refunds: bool) -> Self {
        let terms = Terms { refunds, ..tokens(PER_MINUTE, BURST) };
        let mut world = Self {
            story: Story::of(terms),
            owners: Default::default(),
            sessions: 0,
            history: Vec::new(),
            log: vec![(LogTime(0), Entry::Terms(terms))],
        };
        for owner in 0..3 {
            world.begin(owner);
        }
        world
    }

    fn begin(&mut self, owner: usize) {
        self.sessions += 1;
        self.owners[owner] = Owner { session: self.sessions, ..Owner::default() };
    }

    fn apply(&mut self, owner: usize, draw: Draw) -> Result<Granted, PoolRefusal> {
        let session = SessionId(self.owners[owner].session);
        let command = PoolCommand::Draw { pool: "main".into(), session, draw };
        self.log.push((self.story.now, Entry::Command(command, true)));
        self.story.apply(session.0, draw)
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Wait(nanos) => self.story.now.0 += nanos,
            Step::Admit(owner, units) => {
                let owner = &mut self.owners[owner];
                if owner.held >= units as i64 {
                    owner.held -= units as i64;
                    owner.spent += units;
                    self.history.push((self.story.now.0, units, 0));
                }
            }
            Step::AdmitAll(owner) => {
                let units = self.owners[owner].held.max(0) as u64;
                self.step(Step::Admit(owner, units))?;
            }
            Step::Round(owner, wants) => {
                self.step(Step::Draw(owner, wants, 0))?;
                self.step(Step::Deliver(owner))?;
            }
            Step::Overage(owner, units) => {
                let owner = &mut self.owners[owner];
                owner.held -= units as i64;
                owner.spent += units;
            }
            Step::Refund(owner, units) => {
                let owner = &mut self.owners[owner];
                owner.refunded = (owner.refunded + units).min(owner.spent);
            }
            Step::Draw(owner, wants, back) => {
                let owner = &mut self.owners[owner];
                if owner.flight.is_none() {
                    let back = back.min(owner.held.max(0) as u64);
                    owner.held -= back as i64;
                    owner.returned += back;
                    owner.seq += 1;
                    let draw = Draw {
                        seq: owner.seq,
                        spent: of_tokens(owner.spent),
                        returned: of_tokens(owner.returned),
                        refunded: of_tokens(owner.refunded),
                        wants: of_tokens(wants),
                        weight: 1,
                    };
                    owner.flight = Some(draw);
                    owner.made.push(draw);
                }
            }
            Step::Deliver(which) | Step::Lose(which) => {
                let Some(draw) = self.owners[which].flight else { return Ok(()) };
                let reported =
                    self.owners[which].made.iter().rev().nth(1).map_or(0, |draw| draw.refunded.0[0]);
                let answer = self.apply(which, draw);
                prop_assert!(answer.is_ok(), "{answer:?}");
                self.history.push((self.story.now.0, 0, draw.refunded.0[0] - reported));
                if matches!(step, Step::Deliver(_)) {
                    let owner = &mut self.owners[which];
                    owner.held += answer.map_or(0, |granted| granted.units.0[0] as i64);
                    owner.flight = None;
                }
            }
            Step::Repeat(which, draw) => {
                let Some(draw) = self.owners[which].made.get(draw).copied() else { return Ok(()) };
                if self.owners[which].flight == Some(draw) {
                    return Ok(());
                }
                let before = self.story.pools.clone();
                let _ = self.apply(which, draw);
                prop_assert_eq!(&before, &self.story.pools, "an old draw changed something");
            }
            Step::Die(which) => {
                let session = self.owners[which].session;
                self.story.fence(session);
                self.log.push((self.story.now, Entry::Fence(SessionId(session))));
                self.begin(which);
            }
            Step::Shrink(burst) => {
                // A smaller one and the first again: never more than the first.
                for burst in [burst, BURST] {
                    let refunds = self.story.pools.view("main").unwrap().terms.refunds;
                    let terms = Terms { refunds, ..tokens(PER_MINUTE, burst) };
                    self.story.edit(Some(terms));
                    self.log.push((self.story.now, Entry::Terms(terms)));
                }
            }
            Step::Pause(seconds) => {
                let feedback = Feedback { remaining: [Some(10), None, None, None], pause: seconds * SECOND };
                let command = PoolCommand::Feedback { pool: "main".into(), feedback };
                self.story.pools.apply(self.story.now, |_| None, &command).unwrap();
                self.log.push((self.story.now, Entry::Command(command, true)));
            }
        }
        Ok(())
    }

    /// Over every interval: admitted ≤ burst + guard·t, refunds reported in it added where the pool gives them.
    fn guard_holds(&self) -> Result<(), TestCaseError> {
        let refunds = self.story.pools.view("main").unwrap().terms.refunds;
        for (first, from) in self.history.iter().enumerate() {
            let (mut admitted, mut refunded) = (0u128, 0u128);
            for to in &self.history[first..] {
                admitted += u128::from(to.1);
                refunded += if refunds { u128::from(to.2) } else { 0 };
                let accrued =
                    u128::from(to.0 - from.0) * u128::from(PER_MINUTE) / u128::from(MINUTE_NANOS) + 1;
                prop_assert!(
                    admitted <= u128::from(BURST) + accrued + refunded,
                    "{admitted} from {from:?} to {to:?}, refunded {refunded}"
                );
            }
        }
        Ok(())
    }
}

fn replay(pools: &mut Pools, log: &[(LogTime, Entry)]) {
    for (now, entry) in log {
        match entry {
            Entry::Command(command, serving) => {
                let standing = if *serving { Standing::Serving } else { Standing::Condemned };
                let _ = pools.apply(*now, |_| Some(standing), command);
            }
            Entry::Fence(session) => pools.fence(*now, *session),
            Entry::Terms(terms) => pools.adopt(*now, &BTreeMap::from([("main".into(), *terms)])),
        }
    }
}

fn copied<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    wire::decode(&wire::encode(value)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn guard_holds(refunds: bool, steps in steps()) {
        let mut world = World::new(refunds);
        for step in steps {
            world.step(step)?;
        }
        world.guard_holds()?;
    }

    /// The same log gives the same state, and so does a snapshot with the entries after it.
    #[test]
    fn a_snapshot_and_its_suffix_are_the_whole_log(steps in steps(), cut in 0..120usize) {
        let mut world = World::new(true);
        for step in steps {
            world.step(step)?;
        }
        let mut whole = Pools::default();
        replay(&mut whole, &world.log);
        let (prefix, suffix) = world.log.split_at(cut.min(world.log.len()));
        let mut half = Pools::default();
        replay(&mut half, prefix);
        let mut half: Pools = copied(&half);
        replay(&mut half, suffix);
        prop_assert_eq!(&whole, &half);
        prop_assert_eq!(&whole, &world.story.pools);
    }

    /// Owners that want all there is, and report each quarter of a second, use all that the guard hands out.
    #[test]
    fn a_saturated_pool_hands_out_its_guard(owners in 1..5usize, offsets in vec(0..250u64, 4)) {
        let mut story = Story::of(tokens(600_000, 60_000));
        let mut held = [0u64; 4];
        let mut total = 0;
        for round in 0..240u64 {
            for owner in 0..owners {
                story.now = LogTime(story.now.0.max((round * 250 + offsets[owner]) * 1_000_000));
                held[owner] = story.spend(owner as u128 + 1, held[owner], 10_000);
                total += held[owner];
            }
        }
        prop_assert!(total >= 590_000 + 50_000, "{total} in a minute");
    }
}
