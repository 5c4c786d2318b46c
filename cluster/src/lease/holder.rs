//! The holder's side: asks in time, counts from when it asked, and believes only answers to what it asked.

use std::collections::VecDeque;

use super::{Answer, Renewal, RenewalRefusal, Reply, Required, Timing};
use crate::id::SessionId;
use crate::mutant;
use crate::time::{Moment, Span};

/// How many requests may be unanswered: with one every L/4, an older one's lease would be over before its answer came.
const PENDING_MAX: usize = 4;

/// The lease of one session of this node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    session: SessionId,
    timing: Timing,
    last_sequence: u64,
    next_renewal: Moment,
    /// Requests without an answer and when each was sent, oldest first.
    pending: VecDeque<(u64, Moment)>,
    /// Grants that still run. More than one only while a newer one requires more than is applied.
    grants: Vec<Grant>,
    witnessed: Progress,
    condemned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Grant {
    until: Moment,
    required: Required,
}

/// How often the node's vital parts have come round since the process began: each count grows only when a whole round, begun
/// after the last, is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Progress {
    /// Rounds through the disk: a record written and synced.
    pub disk: u64,
    /// Rounds through every shard task: a question that each has answered.
    pub shards: u64,
}

/// What to do when the time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// Nothing is due before [`Holder::poll_timeout`].
    Rest,
    /// Send this to the leader.
    Renew(Renewal),
    /// A vital part has not come round since the last request: the lease is let run out.
    Stalled,
}

/// Why a reply changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// It is for an earlier life of the process, or another node.
    #[error("the reply is for session {0}, not this one: dropped")]
    OtherSession(SessionId),
    /// It answers nothing that waits: a duplicate, or overtaken by a later one.
    #[error("the reply answers request {0}, which does not wait for one: dropped")]
    NotAsked(u64),
    /// Its lease is already over.
    #[error("the reply to request {0} came after the lease it grants was over: dropped")]
    TooLate(u64),
}

/// Why this node may not answer for anything now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseRefusal {
    /// No lease runs.
    #[error("this node has no lease: wait until it reaches a leader that a majority backs")]
    None,
    /// A lease runs, but the node lags behind what was committed when it was granted.
    #[error("this node has not applied version {}, epoch {} yet: try again shortly", .0.version, .0.epoch)]
    Behind(Required),
}

impl Holder {
    /// The lease that `session` does not have yet. Its first request is due at once.
    #[must_use]
    pub const fn new(session: SessionId, timing: Timing) -> Self {
        Self {
            session,
            timing,
            last_sequence: 0,
            next_renewal: Moment::from_nanos(0),
            pending: VecDeque::new(),
            grants: Vec::new(),
            witnessed: Progress { disk: 0, shards: 0 },
            condemned: false,
        }
    }

    /// Whose lease this is.
    #[must_use]
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// When to call [`Self::handle_timeout`] next; `None` once the session is condemned.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Moment> {
        (!self.condemned).then_some(self.next_renewal)
    }

    /// Asks for the lease when that is due and the node has moved since it last asked. What it returns counts as sent at `now`,
    /// so `now` is read before it is sent.
    pub fn handle_timeout(&mut self, now: Moment, progress: Progress) -> Turn {
        if self.condemned || now < self.next_renewal {
            return Turn::Rest;
        }
        self.next_renewal = now.plus(self.timing.renewal());
        if progress.disk <= self.witnessed.disk || progress.shards <= self.witnessed.shards {
            return Turn::Stalled;
        }
        self.witnessed = progress;
        self.last_sequence += 1;
        if self.pending.len() == PENDING_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back((self.last_sequence, now));
        Turn::Renew(Renewal { session: self.session, sequence: self.last_sequence })
    }

    /// Takes the leader's answer.
    ///
    /// # Errors
    ///
    /// [`Ignored`] when the reply is not to this session, not to a waiting request, or too late to be of use.
    pub fn handle_reply(&mut self, reply: Reply, now: Moment) -> Result<(), Ignored> {
        if reply.session != self.session && !mutant::is("no_incarnation") {
            return Err(Ignored::OtherSession(reply.session));
        }
        let Some(&(_, sent)) = self.pending.iter().find(|&&(sequence, _)| sequence == reply.sequence) else {
            return Err(Ignored::NotAsked(reply.sequence));
        };
        self.pending.retain(|&(sequence, _)| sequence > reply.sequence);
        match reply.answer {
            Answer::Granted(required) => self.granted(reply.sequence, sent, required, now),
            Answer::Refused(RenewalRefusal::Condemned) => {
                // It will be fenced whatever it does: letting go now harms nobody and spares callers a wait.
                self.condemned = true;
                self.grants.clear();
                Ok(())
            }
            Answer::Refused(RenewalRefusal::NotLeading | RenewalRefusal::Unknown) => Ok(()),
        }
    }

    /// Until when the lease runs, `applied` being what this node has applied.
    ///
    /// # Errors
    ///
    /// [`LeaseRefusal`] when no lease runs at `now`, or none whose requirements are applied.
    pub fn check(&self, now: Moment, applied: Required) -> Result<Moment, LeaseRefusal> {
        if mutant::is("no_expiry") && !self.grants.is_empty() {
            return Ok(Moment::from_nanos(u64::MAX));
        }
        let running = || self.grants.iter().filter(|grant| now < grant.until);
        let usable =
            running().filter(|grant| grant.required.is_met_by(applied)).map(|grant| grant.until).max();
        match (usable, running().map(|grant| grant.required).min()) {
            (Some(until), _) => Ok(until),
            (None, Some(required)) => Err(LeaseRefusal::Behind(required)),
            (None, None) => Err(LeaseRefusal::None),
        }
    }

    /// How much of the lease is left at `now`, usable or not.
    #[must_use]
    pub fn left(&self, now: Moment) -> Span {
        self.grants.iter().map(|grant| grant.until.since(now)).max().unwrap_or_default()
    }

    /// Whether the leader has said that this session must go: register a new one.
    #[must_use]
    pub const fn is_condemned(&self) -> bool {
        self.condemned
    }

    fn granted(
        &mut self,
        sequence: u64,
        sent: Moment,
        required: Required,
        now: Moment,
    ) -> Result<(), Ignored> {
        let from = if mutant::is("from_receipt") { now } else { sent };
        let until = from.plus(self.timing.held());
        if self.condemned || until <= now {
            return Err(Ignored::TooLate(sequence));
        }
        // An older grant that requires less goes on to its own end: a commit must not interrupt who is about to apply it.
        self.grants.retain(|grant| now < grant.until && !required.is_met_by(grant.required));
        self.grants.push(Grant { until, required });
        Ok(())
    }
}
