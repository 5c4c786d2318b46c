//! Stories of reports: answers that are lost, a process that is killed at any write, a session that is replaced while it has work open.
//!
//! Each law can fail. In a build with `--cfg mutant`, `report_unkept` reports what is not on disk, and turns
//! `whatever_was_reported_is_on_disk_wherever_the_power_goes` red. One line changed in the code turns these red:
//!
//! | the change | kills |
//! |---|---|
//! | `Reports::report`: a report without an answer is given up | `an_answer_that_is_lost_is_asked_for_again_with_the_same_bytes` |
//! | `Collected::end`: the present session's number | `a_session_that_is_replaced_still_reports_what_it_left_open` |
//! | `Collected::replay`: nothing is taken over | `a_killed_gateway_tells_in_its_next_life_what_it_had_written` |
//! | `Journal::cut`: nothing is cut | `ends_are_counted_once_and_the_journal_is_empty_afterwards` |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate_cluster::authority::Standing;
use tollgate_cluster::log_time::LogTime;
use tollgate_cluster::outside::OsEntropy;
use tollgate_cluster::store::Store;
use tollgate_cluster::store::twin::MemoryFolder;

use super::*;
use crate::control::budget::{
    BATCH_MOST, BudgetCommand, BudgetKey, BudgetTerms, Budgets, Lane, Line, Part, Unit,
};
use crate::control::codec;
use crate::control::period::{Calendar, Cycle, Period, PeriodId};
use crate::limit::BudgetDraw;

const OWNER: SessionId = SessionId(50);
const NOVEMBER: Period = Period { id: PeriodId(1_793_491_200), end: 1_796_083_200 };
/// What the owner has drawn.
const DRAWN: u64 = 1_000_000;

fn key() -> BudgetKey {
    BudgetKey { tenant: "acme".into(), part: Part::Tenant, cycle: Cycle::Month, unit: Unit::Tokens }
}

fn ended(reserved: u64, actual: u64) -> Vec<Ended> {
    let line = Line { budget: key(), period: NOVEMBER.id, owner: OWNER, lane: Lane::Regular };
    vec![Ended { line, reserved, actual }]
}

/// Lets so much of the paused clock go by.
async fn pass(time: Duration) {
    let _elapsed = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

/// Agreed state, and what becomes of the messages to it.
#[derive(Clone)]
struct Desk(Arc<Mutex<Inner>>);

struct Inner {
    budgets: Budgets,
    fenced: BTreeSet<SessionId>,
    /// So many answers are lost, of reports that have arrived.
    lose: usize,
    /// Nothing arrives.
    silent: bool,
    /// What is on the disk of whoever reports.
    shelf: Option<Shelf>,
    reports: Vec<Vec<u8>>,
    /// What each number was charged.
    charged: BTreeMap<(SessionId, u64), u64>,
}

impl Desk {
    fn new() -> Self {
        let mut budgets = Budgets::default();
        let terms = BudgetTerms { limit: DRAWN, degraded: 0, zone: "UTC".into(), thresholds: Vec::new() };
        budgets.adopt(&BTreeMap::from([(key(), terms)]));
        let calendar = Calendar { cycle: Cycle::Month, zone: "UTC".into() };
        let serving = |_| Some(Standing::Serving);
        let roll = BudgetCommand::Roll { calendar, period: NOVEMBER };
        budgets.apply(LogTime(0), serving, &roll).unwrap();
        let draw = BudgetDraw { seq: 1, returned: 0, need: DRAWN, wants: 0 };
        let draw = BudgetCommand::Draw {
            budget: key(),
            period: NOVEMBER.id,
            session: OWNER,
            lane: Lane::Regular,
            draw,
        };
        budgets.apply(LogTime(0), serving, &draw).unwrap();
        Self(Arc::new(Mutex::new(Inner {
            budgets,
            fenced: BTreeSet::new(),
            lose: 0,
            silent: false,
            shelf: None,
            reports: Vec::new(),
            charged: BTreeMap::new(),
        })))
    }

    fn look<T>(&self, at: impl FnOnce(&mut Inner) -> T) -> T {
        at(&mut self.0.lock().unwrap())
    }

    fn books(&self) -> (u64, u64) {
        let view = self.look(|inner| inner.budgets.view(&key(), None).unwrap());
        (view.used, view.escrow)
    }
}

#[async_trait]
impl Agree for Desk {
    async fn settle(&self, batch: &Batch) -> Result<Result<BudgetAnswer, BudgetRefusal>, HostError> {
        pass(Duration::from_millis(5)).await;
        let mut inner = self.0.lock().unwrap();
        if let Some(shelf) = &inner.shelf {
            let pieces = shelf.pieces().into_iter().map(|(_, piece)| codec::read_batch(&piece).unwrap());
            let kept: Vec<_> =
                pieces.flat_map(|piece| piece.ends.into_iter().map(|end| end.number)).collect();
            assert!(batch.ends.iter().all(|end| kept.contains(&end.number)), "told before it was on disk");
        }
        if inner.silent {
            return Err(HostError::NotProposed("nobody leads".to_owned()));
        }
        let fenced = inner.fenced.clone();
        let standing =
            |session| Some(if fenced.contains(&session) { Standing::Fenced } else { Standing::Serving });
        let command = BudgetCommand::Settle(batch.clone());
        let answer = inner.budgets.apply(LogTime(0), standing, &command);
        inner.reports.push(codec::batch(batch));
        if answer.is_ok() {
            for end in &batch.ends {
                let actual = end.charges[0].actual;
                let charged = *inner.charged.entry((batch.gateway, end.number)).or_insert(actual);
                assert_eq!(charged, actual, "one number says two things");
            }
        }
        if inner.lose > 0 {
            inner.lose -= 1;
            return Err(HostError::Unknown("the answer is lost".to_owned()));
        }
        Ok(answer)
    }

    fn watermark(&self, gateway: SessionId) -> u64 {
        self.0.lock().unwrap().budgets.watermark(gateway)
    }

    fn now(&self) -> Moment {
        let run = crate::clock::timer_now().duration_since(BEGAN.with(|began| *began));
        Moment::from_nanos(1_000_000_000 + u64::try_from(run.as_nanos()).unwrap())
    }
}

thread_local! {
    static BEGAN: tokio::time::Instant = crate::clock::timer_now();
}

/// One life of a gateway.
struct Life {
    reports: Arc<Reports>,
    shelf: Shelf,
    stopping: CancellationToken,
    running: tokio::task::JoinHandle<()>,
}

impl Life {
    fn begin(folder: &MemoryFolder, desk: &Desk) -> Option<Self> {
        let shelf = Shelf::of(Store::open(folder).ok()?);
        let (reports, stopping) = (Arc::new(Reports::default()), CancellationToken::new());
        desk.look(|inner| inner.shelf = Some(shelf.clone()));
        let running = {
            let (reports, shelf, desk, stopping) =
                (reports.clone(), shelf.clone(), desk.clone(), stopping.clone());
            tokio::spawn(async move { reports.run(shelf, &desk, stopping).await })
        };
        Some(Self { reports, shelf, stopping, running })
    }

    async fn until_told(&self) {
        for _ in 0..1_000 {
            pass(Duration::from_millis(20)).await;
            if self.reports.is_told() {
                return;
            }
        }
        panic!("not told: {:?}", self.reports.stats());
    }

    /// Killed: what was not written is gone.
    async fn kill(self) {
        self.running.abort();
        let _ = self.running.await;
    }
}

/// A reservation that budgets pay for.
fn begin(life: &Life, session: u128) -> ReservationId {
    let number = life.reports.begin(SessionId(session));
    number.keep();
    number.id()
}

#[tokio::test(start_paused = true)]
async fn ends_are_counted_once_and_the_journal_is_empty_afterwards() {
    let (folder, desk) = (MemoryFolder::new("journal"), Desk::new());
    let life = Life::begin(&folder, &desk).unwrap();
    let ids: Vec<ReservationId> = (0..100).map(|_| begin(&life, 1)).collect();
    for id in &ids[..90] {
        life.reports.end(*id, ended(100, 60), false);
        life.reports.end(*id, ended(100, 99), false);
    }
    ids[90..95].iter().for_each(|id| life.reports.void(*id, true));
    life.until_told().await;
    assert_eq!(desk.books(), (90 * 60, DRAWN - 90 * 100));
    assert_eq!(desk.watermark(SessionId(1)), 95, "void numbers are over too");
    assert_eq!(life.shelf.pieces(), []);
    assert_eq!(life.reports.stats().open, 5);
    let reports = desk.look(|inner| inner.reports.len());
    assert!(reports <= 2, "{reports} reports of what ended at once");
    // What is void and cost nothing is no reason for a report.
    ids[95..97].iter().for_each(|id| life.reports.void(*id, false));
    pass(Duration::from_secs(5)).await;
    assert_eq!(desk.look(|inner| inner.reports.len()), reports);
    life.reports.end(ids[98], ended(10, 20), false);
    life.until_told().await;
    assert_eq!(desk.watermark(SessionId(1)), 97);
    assert_eq!(desk.books().0, 90 * 60 + 20);
}

#[tokio::test(start_paused = true)]
async fn reports_are_a_second_apart_and_a_quarter_where_they_are_waited_for() {
    let (folder, desk) = (MemoryFolder::new("journal"), Desk::new());
    let life = Life::begin(&folder, &desk).unwrap();
    let mut before = 0;
    for (hurried, expected) in [(false, 4..=6), (true, 15..=19)] {
        for _ in 0..400 {
            let id = begin(&life, 1);
            life.reports.end(id, ended(100, 60), hurried);
            pass(Duration::from_millis(10)).await;
        }
        life.until_told().await;
        let reports = desk.look(|inner| inner.reports.len());
        assert!(expected.contains(&(reports - before)), "{} reports in four seconds", reports - before);
        before = reports;
    }
    assert_eq!(desk.books().0, 800 * 60);
}

#[tokio::test(start_paused = true)]
async fn a_full_report_waits_for_nothing() {
    let (folder, desk) = (MemoryFolder::new("journal"), Desk::new());
    let life = Life::begin(&folder, &desk).unwrap();
    let one = begin(&life, 1);
    life.reports.end(one, ended(1, 1), false);
    life.until_told().await;
    let began = crate::clock::timer_now();
    for _ in 0..2 * BATCH_MOST {
        let id = begin(&life, 1);
        life.reports.end(id, ended(1, 1), false);
    }
    life.until_told().await;
    assert!(began.elapsed() < Duration::from_millis(500), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_is_asked_for_again_with_the_same_bytes() {
    let (folder, desk) = (MemoryFolder::new("journal"), Desk::new());
    desk.look(|inner| inner.lose = 3);
    let life = Life::begin(&folder, &desk).unwrap();
    let first = begin(&life, 1);
    life.reports.end(first, ended(100, 60), false);
    pass(Duration::from_millis(100)).await;
    let second = begin(&life, 1);
    life.reports.end(second, ended(100, 70), false);
    life.until_told().await;
    assert_eq!(desk.books(), (130, DRAWN - 200));
    let reports = desk.look(|inner| inner.reports.clone());
    assert_eq!(reports.len(), 5);
    assert!(reports[..4].iter().all(|report| *report == reports[0]));
    let stats = life.reports.stats();
    assert_eq!((stats.counted, stats.repeated, stats.again), (1, 1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_killed_gateway_tells_in_its_next_life_what_it_had_written() {
    let (folder, desk) = (MemoryFolder::new("journal"), Desk::new());
    desk.look(|inner| inner.silent = true);
    let life = Life::begin(&folder, &desk).unwrap();
    let ids: Vec<ReservationId> = (0..3).map(|_| begin(&life, 1)).collect();
    life.reports.end(ids[0], ended(100, 60), false);
    pass(Duration::from_secs(1)).await;
    // Ended in the last milliseconds before: not written.
    life.reports.end(ids[1], ended(100, 61), false);
    folder.crash(&OsEntropy);
    life.kill().await;
    assert_eq!(desk.books(), (0, DRAWN));

    // Its session is fenced meanwhile; what was written is reported under it.
    desk.look(|inner| {
        inner.silent = false;
        inner.fenced.insert(SessionId(1));
        inner.budgets.fence(LogTime(0), SessionId(1));
    });
    let life = Life::begin(&folder, &desk).unwrap();
    let id = begin(&life, 2);
    life.reports.end(id, ended(100, 70), false);
    life.until_told().await;
    assert_eq!(desk.books(), (130, DRAWN - 200));
    assert_eq!(life.shelf.pieces(), []);

    // What is on disk and was acknowledged is cut at the start: here the cut was lost with the crash.
    folder.crash(&OsEntropy);
    life.kill().await;
    let life = Life::begin(&folder, &desk).unwrap();
    life.until_told().await;
    assert_eq!(desk.books(), (130, DRAWN - 200));
}

#[tokio::test(start_paused = true)]
async fn after_the_grace_a_replay_is_refused_and_said_and_cut() {
    let (folder, desk) = (MemoryFolder::new("journal"), Desk::new());
    desk.look(|inner| inner.silent = true);
    let life = Life::begin(&folder, &desk).unwrap();
    let id = begin(&life, 1);
    life.reports.end(id, ended(100, 60), false);
    pass(Duration::from_secs(1)).await;
    folder.crash(&OsEntropy);
    life.kill().await;
    desk.look(|inner| {
        inner.silent = false;
        inner.fenced.insert(SessionId(1));
        inner.budgets.fence(LogTime(0), SessionId(1));
        let close = BudgetCommand::CloseGateway { gateway: SessionId(1), grace: 5 };
        inner.budgets.apply(LogTime(5), |_| Some(Standing::Fenced), &close).unwrap();
    });
    let life = Life::begin(&folder, &desk).unwrap();
    life.until_told().await;
    assert_eq!(life.reports.stats().refused, 1);
    assert_eq!(desk.books(), (0, DRAWN));
    assert_eq!(life.shelf.pieces(), []);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_replaced_still_reports_what_it_left_open() {
    let (folder, desk) = (MemoryFolder::new("journal"), Desk::new());
    let life = Life::begin(&folder, &desk).unwrap();
    let before = begin(&life, 1);
    let after = begin(&life, 2);
    assert_ne!(before.life(), after.life());
    life.reports.end(after, ended(100, 1), false);
    life.reports.end(before, ended(100, 2), false);
    life.until_told().await;
    let charged = desk.look(|inner| inner.charged.clone());
    let expected = [((SessionId(1), before.number()), 2), ((SessionId(2), after.number()), 1)];
    assert_eq!(charged, BTreeMap::from(expected));
    assert_eq!(desk.watermark(SessionId(2)), after.number(), "numbers of before are void in it");
}

#[tokio::test(start_paused = true)]
async fn what_finds_no_place_waits_and_a_bound_keeps_it_small() {
    let (folder, desk) = (MemoryFolder::new("journal"), Desk::new());
    let life = Life::begin(&folder, &desk).unwrap();
    folder.fail(Some(std::io::ErrorKind::StorageFull));
    for _ in 0..collected::FRESH_MOST + 10 {
        let id = begin(&life, 1);
        life.reports.end(id, ended(1, 1), false);
    }
    pass(Duration::from_secs(5)).await;
    let stats = life.reports.stats();
    assert_eq!(
        (stats.fresh, stats.dropped, stats.counted),
        (collected::FRESH_MOST, 10, 0),
        "nothing is told that is not on disk"
    );
    assert_eq!(desk.look(|inner| inner.reports.len()), 0);
    life.stopping.cancel();
    life.running.await.unwrap();
}

/// For each write of a life the power goes before it: what agreed state was told is what this and the next life told it, each end once.
#[tokio::test(start_paused = true)]
async fn whatever_was_reported_is_on_disk_wherever_the_power_goes() {
    let script = async |life: &Life| {
        for actual in 1..=12u64 {
            let id = begin(life, 1);
            life.reports.end(id, ended(100, actual), false);
            pass(Duration::from_millis(70)).await;
        }
        pass(Duration::from_secs(1)).await;
    };
    let folder = MemoryFolder::new("whole");
    drop(Store::open(&folder).unwrap());
    let begun = folder.writes();
    let life = Life::begin(&folder, &Desk::new()).unwrap();
    script(&life).await;
    let writes = folder.writes() - begun;
    assert!(writes > 20, "{writes}");
    for cut in 0..=writes {
        let (folder, desk) = (MemoryFolder::new("cut"), Desk::new());
        drop(Store::open(&folder).unwrap());
        folder.cut_after(cut);
        if let Some(life) = Life::begin(&folder, &desk) {
            script(&life).await;
            folder.crash(&OsEntropy);
            life.kill().await;
        } else {
            folder.crash(&OsEntropy);
        }
        let told = desk.look(|inner| inner.charged.clone());
        let shelf = Shelf::of(Store::open(&folder).unwrap());
        let journal = Journal::open(shelf);
        let kept: BTreeSet<u64> =
            journal.left().iter().flat_map(|(_, batch)| batch.ends.iter().map(|end| end.number)).collect();
        drop(journal);
        let life = Life::begin(&folder, &desk).unwrap();
        life.until_told().await;
        let charged = desk.look(|inner| inner.charged.clone());
        for number in told.keys().map(|(_, number)| *number).chain(kept) {
            assert_eq!(charged.get(&(SessionId(1), number)), Some(&number), "cut {cut}: {charged:?}");
        }
        let (used, escrow) = desk.books();
        assert_eq!(used, charged.values().sum::<u64>(), "cut {cut}: each is charged once");
        assert_eq!(escrow, DRAWN - 100 * charged.len() as u64, "cut {cut}");
        life.kill().await;
    }
}
