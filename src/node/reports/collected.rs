//! What has ended and what became of it: (state, command) → what to write, what to report.

use std::collections::{BTreeMap, VecDeque};

use tollgate_cluster::id::SessionId;

use super::super::tenants::life;
use super::numbers::Numbers;
use crate::control::budget::{BATCH_MOST, Batch, BudgetAnswer, BudgetRefusal, Charge, End, Line};
use crate::limit::{Moment, ReservationId, Span};

/// The most ends that wait for a place in the journal. Beyond it the latest are given up, and counted.
pub(super) const FRESH_MOST: usize = 200_000;

/// What a reservation that has ended costs one budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Whose purse paid for which budget.
    pub line: Line,
    /// What was held, in the budget's unit.
    pub reserved: u64,
    /// What is charged, in the budget's unit.
    pub actual: u64,
}

/// What waits and what was done, to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Reservations that have not ended, those that no budget pays for among them.
    pub open: usize,
    /// Ends that wait for the journal.
    pub fresh: usize,
    /// Ends that are in the journal and not acknowledged.
    pub kept: usize,
    /// Ends that counted, since the process began.
    pub counted: u64,
    /// Ends that had been counted before.
    pub repeated: u64,
    /// Ends that came too late: the session that they are of is closed.
    pub refused: u64,
    /// Ends that found no place here.
    pub dropped: u64,
    /// Reports that were sent again.
    pub again: u64,
}

/// What a start found in the journal.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    /// Ends that are to be reported.
    pub(super) ends: usize,
    /// Pieces of which everything is over.
    pub(super) cut: Vec<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// By the life that ids name.
    sessions: BTreeMap<u64, Numbers>,
    /// The last number that was given out, in whichever session.
    last: u64,
    current: Option<u64>,
    /// Not in the journal yet.
    fresh: VecDeque<(u64, u64, Vec<Ended>)>,
    /// In the journal, each with its piece.
    kept: VecDeque<(u64, Batch)>,
    flight: Option<Flight>,
    reported: Option<Moment>,
    hurried: bool,
    stats: Stats,
}

/// A report that is on its way.
#[derive(Debug)]
struct Flight {
    batch: Batch,
    pieces: Vec<u64>,
    sent: bool,
}

impl Collected {
    pub(super) fn begin(&mut self, session: SessionId) -> ReservationId {
        let life = life(session);
        if self.current != Some(life) {
            self.current = Some(life);
            self.sessions.retain(|_, numbers| !numbers.is_over());
            self.sessions.entry(life).or_insert_with(|| Numbers::new(session));
        }
        self.last += 1;
        if let Some(numbers) = self.sessions.get_mut(&life) {
            numbers.begin(self.last);
        }
        ReservationId::new(life, self.last)
    }

    /// Begins a number anew that was given out and let go; whether that is possible.
    pub(super) fn begin_again(&mut self, id: ReservationId) -> bool {
        let current = self.current == Some(id.life());
        current && self.sessions.get_mut(&id.life()).is_some_and(|numbers| numbers.begin_again(id.number()))
    }

    pub(super) fn keep(&mut self, id: ReservationId) {
        if let Some(numbers) = self.sessions.get_mut(&id.life()) {
            numbers.keep(id.number());
        }
    }

    pub(super) fn let_go(&mut self, id: ReservationId) {
        if let Some(numbers) = self.sessions.get_mut(&id.life()) {
            numbers.let_go(id.number());
        }
    }

    pub(super) fn void(&mut self, id: ReservationId, charged: bool) {
        if let Some(numbers) = self.sessions.get_mut(&id.life()) {
            numbers.void(id.number(), charged);
        }
    }

    pub(super) fn end(&mut self, id: ReservationId, charges: Vec<Ended>) {
        let Some(numbers) = self.sessions.get_mut(&id.life()) else { return };
        if self.fresh.len() >= FRESH_MOST {
            // Its number stays open: its owner closes it.
            self.stats.dropped += 1;
            return;
        }
        if numbers.end(id.number()) {
            self.fresh.push_back((id.life(), id.number(), charges));
        }
    }

    pub(super) fn hurry(&mut self) {
        self.hurried = true;
    }

    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// What is to be written next: ends of one session.
    pub(super) fn next_to_keep(&mut self) -> Option<Batch> {
        let life = self.fresh.front()?.0;
        let session = self.sessions.get(&life)?.session;
        let mut batch = Batch { gateway: session, lines: Vec::new(), ends: Vec::new(), void: Vec::new() };
        let mut places = BTreeMap::new();
        while batch.ends.len() < BATCH_MOST {
            let Some((_, number, charges)) = self.fresh.pop_front_if(|(of, ..)| *of == life) else { break };
            let charges = charges.into_iter().map(|ended| Charge {
                line: place(&mut batch.lines, &mut places, ended.line),
                reserved: ended.reserved,
                actual: ended.actual,
            });
            let charges = charges.collect();
            batch.ends.push(End { number, charges });
        }
        Some(batch)
    }

    /// It is written.
    pub(super) fn kept(&mut self, piece: u64, batch: Batch) {
        self.kept.push_back((piece, batch));
    }

    /// It could not be: it waits again, before what has ended since.
    pub(super) fn not_kept(&mut self, batch: Batch) {
        let Batch { gateway, lines, ends, .. } = batch;
        for end in ends.into_iter().rev() {
            let charges = end.charges.iter().map(|charge| Ended {
                line: lines[charge.line as usize].clone(),
                reserved: charge.reserved,
                actual: charge.actual,
            });
            self.fresh.push_front((life(gateway), end.number, charges.collect()));
        }
    }

    /// Takes over what an earlier life has written and nobody acknowledged. What is at or below its session's watermark is over.
    pub(super) fn replay(
        &mut self,
        pieces: Vec<(u64, Batch)>,
        watermark: impl Fn(SessionId) -> u64,
    ) -> Replayed {
        let mut replayed = Replayed::default();
        for (piece, mut batch) in pieces {
            let over = watermark(batch.gateway);
            batch.ends.retain(|end| end.number > over);
            if batch.ends.is_empty() {
                replayed.cut.push(piece);
                continue;
            }
            replayed.ends += batch.ends.len();
            self.kept.push_back((piece, batch));
        }
        replayed
    }

    /// The report that is to be sent at `now`: the one that has no answer yet, else the next, if that is due: `gap` after the one before it,
    /// or `hurried` if somebody waits for it, or at once if it is full.
    pub(super) fn next_report(&mut self, now: Moment, gap: Span, hurried: Span) -> Option<Batch> {
        if self.flight.is_none() {
            let gap = if self.hurried { hurried } else { gap };
            let due = self.reported.is_none_or(|reported| now >= reported.plus(gap)) || self.is_full();
            self.flight = if due { self.next() } else { None };
            if self.flight.is_some() {
                self.reported = Some(now);
                self.hurried = false;
            }
        }
        let flight = self.flight.as_mut()?;
        self.stats.again += u64::from(std::mem::replace(&mut flight.sent, true));
        Some(flight.batch.clone())
    }

    /// Ends of one session from the journal, and what is void beside them.
    fn next(&mut self) -> Option<Flight> {
        let owing =
            || self.sessions.values().find(|numbers| numbers.is_owing()).map(|numbers| numbers.session);
        let gateway = self.kept.front().map(|(_, batch)| batch.gateway).or_else(owing)?;
        let mut flight = Flight {
            batch: Batch { gateway, lines: Vec::new(), ends: Vec::new(), void: Vec::new() },
            pieces: Vec::new(),
            sent: false,
        };
        let mut places = BTreeMap::new();
        let fits = |flight: &Flight, piece: &Batch| {
            piece.gateway == gateway && flight.batch.ends.len() + piece.ends.len() <= BATCH_MOST
        };
        while let Some((piece, batch)) = self.kept.pop_front_if(|(_, piece)| fits(&flight, piece)) {
            let Batch { lines, ends, .. } = batch;
            let moved: Vec<u32> =
                lines.into_iter().map(|line| place(&mut flight.batch.lines, &mut places, line)).collect();
            flight.batch.ends.extend(ends.into_iter().map(|mut end| {
                end.charges.iter_mut().for_each(|charge| charge.line = moved[charge.line as usize]);
                end
            }));
            flight.pieces.push(piece);
        }
        if let Some(numbers) = self.sessions.get_mut(&life(gateway)) {
            flight.batch.void = numbers.say_void(BATCH_MOST - flight.batch.ends.len());
        }
        Some(flight)
    }

    /// The report on its way has its answer: which pieces of the journal are over.
    pub(super) fn answered(&mut self, answer: &Result<BudgetAnswer, BudgetRefusal>) -> Vec<u64> {
        let Some(Flight { batch, pieces, .. }) = self.flight.take() else { return Vec::new() };
        match answer {
            Ok(BudgetAnswer::Ended { counted, repeated }) => {
                self.stats.counted += u64::from(*counted);
                self.stats.repeated += u64::from(*repeated);
            }
            Ok(_) => {}
            Err(_) => self.stats.refused += batch.ends.len() as u64,
        }
        let life = life(batch.gateway);
        if let Some(numbers) = self.sessions.get_mut(&life) {
            numbers.acknowledged(batch.ends.iter().map(|end| end.number));
            if numbers.is_over() && self.current != Some(life) {
                self.sessions.remove(&life);
            }
        }
        pieces
    }

    /// The report on its way has no answer: it is sent again as it is.
    pub(super) fn unanswered(&mut self) {
        debug_assert!(self.flight.is_some(), "something was on its way");
    }

    pub(super) fn stats(&self) -> Stats {
        let open = self.sessions.values().map(Numbers::open).sum();
        let flight = self.flight.as_ref().map_or(0, |flight| flight.batch.ends.len());
        let kept = self.kept.iter().map(|(_, batch)| batch.ends.len()).sum::<usize>() + flight;
        Stats { open, fresh: self.fresh.len(), kept, ..self.stats }
    }

    /// Whether there is nothing to report, now or soon.
    pub(super) fn is_idle(&self) -> bool {
        let owing = self.sessions.values().any(Numbers::is_owing);
        self.kept.is_empty() && self.flight.is_none() && !owing
    }

    fn is_full(&self) -> bool {
        let ends = self.kept.iter().map(|(_, batch)| batch.ends.len()).sum::<usize>();
        ends >= BATCH_MOST
    }

    pub(super) fn is_told(&self) -> bool {
        self.fresh.is_empty() && self.kept.is_empty() && self.flight.is_none()
    }
}

/// The place of `line` among `lines`, where it is put if it is not there.
fn place(lines: &mut Vec<Line>, places: &mut BTreeMap<Line, u32>, line: Line) -> u32 {
    *places.entry(line).or_insert_with_key(|line| {
        lines.push(line.clone());
        // A batch has no more lines than charges, and those are bounded.
        u32::try_from(lines.len() - 1).unwrap_or(u32::MAX)
    })
}
