//! The leader's side: grants what a quorum backs, and knows when a session's last lease is over on every clock.

use std::collections::BTreeMap;

use super::{Answer, Renewal, RenewalRefusal, Reply, Required, Timing};
use crate::authority::{Authority, Command, Standing};
use crate::id::{LogIndex, SessionId, Term, Version};
use crate::mutant;
use crate::time::{Moment, Span};

/// How many sessions may wait for a confirmation: more than a full cluster has. Beyond it, who asks asks again.
const WAITING_MAX: usize = 1024;

/// What a leader knows of leases. Made when it has applied the first entry of its own term, dropped with its leadership.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grantor {
    term: Term,
    timing: Timing,
    /// When the first entry of this term was applied here. Whatever a predecessor granted, it granted before.
    began: Moment,
    sessions: BTreeMap<SessionId, Record>,
    /// Renewals that came after the round in flight began: each session's newest.
    waiting: BTreeMap<SessionId, u64>,
    /// Renewals that the round in flight will answer.
    confirming: Option<Round>,
    confirmations: u64,
    /// How far the log was applied that was shown here last.
    observed: Option<LogIndex>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Round {
    confirmation: Confirmation,
    began: Moment,
    renewals: BTreeMap<SessionId, u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Record {
    /// When this leader first knew of the session.
    known: Moment,
    last_granted: Option<Moment>,
    condemned: Option<Moment>,
    /// When its fence was last proposed; a proposal can be lost.
    proposed: Option<Moment>,
}

/// A round by which the leader confirms with a quorum that it still leads. Say [`Grantor::confirmed`] or
/// [`Grantor::unconfirmed`] with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "the renewals that wait for this round are answered when it is over"]
pub struct Confirmation(u64);

impl Grantor {
    /// The desk of the leader of `term`, which has just applied the first entry of that term, reading `now`.
    #[must_use]
    pub fn new(term: Term, timing: Timing, now: Moment, authority: &Authority) -> Self {
        let mut grantor = Self {
            term,
            timing,
            began: now,
            sessions: BTreeMap::new(),
            waiting: BTreeMap::new(),
            confirming: None,
            confirmations: 0,
            observed: None,
        };
        grantor.observe(authority, now);
        grantor
    }

    /// A renewal has arrived. It is answered by the next round to begin. `false` when too many wait: it gets no answer.
    pub fn arrive(&mut self, renewal: Renewal) -> bool {
        if self.waiting.len() >= WAITING_MAX && !self.waiting.contains_key(&renewal.session) {
            return false;
        }
        let newest = self.waiting.entry(renewal.session).or_default();
        *newest = renewal.sequence.max(*newest);
        true
    }

    /// Begins a round for all that wait, unless nobody waits or one is in flight. One that has been for a quarter of a lease is
    /// given up: who waits for it has asked again, and a round that hangs must not keep the whole cluster waiting.
    /// ReadIndex is to be started after this returns.
    pub fn begin_confirmation(&mut self, now: Moment) -> Option<Confirmation> {
        let hangs = |round: &Round| now >= round.began.plus(self.timing.renewal());
        let in_flight = self.confirming.as_ref().is_some_and(|round| !hangs(round));
        if in_flight || self.waiting.is_empty() {
            return None;
        }
        self.confirmations += 1;
        let confirmation = Confirmation(self.confirmations);
        let renewals = std::mem::take(&mut self.waiting);
        self.confirming = Some(Round { confirmation, began: now, renewals });
        Some(confirmation)
    }

    /// The round succeeded and `authority` has applied at least up to its index: answers its renewals.
    ///
    /// `term` is the leadership this node knows now, `version` the host's committed one. Checks and stamps and answers in one step:
    /// a condemnation comes before all of it or after all of it. A log that is older than one shown before answers nobody: a session
    /// that is fenced there would seem to live.
    pub fn confirmed(
        &mut self,
        confirmation: Confirmation,
        term: Term,
        now: Moment,
        authority: &Authority,
        version: Version,
    ) -> Vec<Reply> {
        let Some(round) = self.confirming.take_if(|round| round.confirmation == confirmation) else {
            return Vec::new();
        };
        if authority.applied() < self.observed {
            return Vec::new();
        }
        self.observe(authority, now);
        let required = Required { version, epoch: authority.epoch() };
        let answers = round.renewals.into_iter().map(|(session, sequence)| {
            let answer = match self.refusal(session, term, authority) {
                Some(refusal) => Answer::Refused(refusal),
                None => {
                    self.record(session, now).last_granted = Some(now);
                    Answer::Granted(required)
                }
            };
            Reply { session, sequence, answer }
        });
        answers.collect()
    }

    /// The round failed: its renewals get no answer, and who asked asks again.
    pub fn unconfirmed(&mut self, confirmation: Confirmation) {
        self.confirming.take_if(|round| round.confirmation == confirmation);
    }

    /// `session` must go: from now on it gets no renewal. The first condemnation counts.
    pub fn condemn(&mut self, session: SessionId, now: Moment) {
        self.record(session, now).condemned.get_or_insert(now);
    }

    /// Takes note of what the log says: a session that another replaced is condemned, one that is fenced is forgotten. To be called
    /// after entries are applied.
    pub fn observe(&mut self, authority: &Authority, now: Moment) {
        if authority.applied() < self.observed {
            return;
        }
        self.observed = authority.applied();
        self.sessions
            .retain(|&session, _| authority.standing(session).is_some_and(|known| known < Standing::Fenced));
        for (id, session) in authority.unfenced() {
            let record = self.record(id, now);
            if session.standing == Standing::Condemned {
                record.condemned.get_or_insert(now);
            }
        }
    }

    /// Whether every lease that `session` can have is over on every clock. Never for a session that is not condemned.
    #[must_use]
    pub fn may_fence(&self, session: SessionId, now: Moment) -> bool {
        self.sessions.get(&session).and_then(|record| self.over(record)).is_some_and(|over| now >= over)
    }

    /// For how long `session` has not been granted anything: since its last grant, or since this leader first knew of it.
    #[must_use]
    pub fn silence(&self, session: SessionId, now: Moment) -> Span {
        let since = self.sessions.get(&session).map(|record| record.last_granted.unwrap_or(record.known));
        since.map_or(Span::default(), |since| now.since(since))
    }

    /// Whether `session` was granted something within the last `within`, and may be again.
    #[must_use]
    pub fn is_leased(&self, session: SessionId, now: Moment, within: Span) -> bool {
        let record = self.sessions.get(&session).filter(|record| record.condemned.is_none());
        let granted = record.and_then(|record| record.last_granted);
        granted.is_some_and(|granted| now.since(granted) < within)
    }

    /// The most that can be left of the lease of `session`, by what was granted here.
    #[must_use]
    pub fn left(&self, session: SessionId, now: Moment) -> Span {
        let granted = self.sessions.get(&session).and_then(|record| record.last_granted);
        granted.map_or(Span::default(), |granted| granted.plus(self.timing.held()).since(now))
    }

    /// When to call [`Self::handle_timeout`] next, if a fence is due at all.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Moment> {
        self.sessions.values().filter_map(|record| self.due(record)).min()
    }

    /// The fences to propose now. A proposal that came to nothing is made again after a quarter of a lease.
    pub fn handle_timeout(&mut self, now: Moment) -> Vec<Command> {
        let due = |record: &Record| self.due(record).is_some_and(|due| now >= due);
        let sessions: Vec<SessionId> =
            self.sessions.iter().filter(|(_, record)| due(record)).map(|(&session, _)| session).collect();
        for &session in &sessions {
            self.record(session, now).proposed = Some(now);
        }
        sessions.into_iter().map(|session| Command::Fence { session, term: self.term }).collect()
    }

    fn record(&mut self, session: SessionId, now: Moment) -> &mut Record {
        let unknown = Record { known: now, last_granted: None, condemned: None, proposed: None };
        self.sessions.entry(session).or_insert(unknown)
    }

    fn refusal(&self, session: SessionId, term: Term, authority: &Authority) -> Option<RenewalRefusal> {
        if term != self.term {
            return Some(RenewalRefusal::NotLeading);
        }
        if mutant::is("stale_epoch_renewal") {
            return None;
        }
        match authority.standing(session) {
            None => Some(RenewalRefusal::Unknown),
            Some(Standing::Condemned | Standing::Fenced) => Some(RenewalRefusal::Condemned),
            Some(Standing::Serving) => {
                let condemned = self.sessions.get(&session).is_some_and(|record| record.condemned.is_some());
                condemned.then_some(RenewalRefusal::Condemned)
            }
        }
    }

    /// When the last lease of a condemned session is over.
    fn over(&self, record: &Record) -> Option<Moment> {
        if mutant::is("no_wait_out") {
            return record.condemned;
        }
        let last_granted = record.last_granted.unwrap_or(self.began);
        Some(record.condemned?.max(last_granted).plus(self.timing.waited()))
    }

    fn due(&self, record: &Record) -> Option<Moment> {
        let over = self.over(record)?;
        Some(record.proposed.map_or(over, |proposed| over.max(proposed.plus(self.timing.renewal()))))
    }
}
