//! A shard as this program has it: the limiter of its tenants. The cluster moves it and says who may answer; here is what it is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use tollgate_cluster::agreed::Agreed;
use tollgate_cluster::authority::Holding;
use tollgate_cluster::handoff::Start;
use tollgate_cluster::id::{Epoch, SessionId, ShardId, Version};
use tollgate_cluster::mutant;
use tollgate_cluster::outside::Clock;
use tollgate_cluster::shards::{Governing, Host, Payload, Shards};
use tollgate_cluster::time;
use tollgate_cluster::view::Refusal;

use super::closing::Closing;
use super::codec;
use super::escrow::Escrow;
use super::govern::Governor;
use super::open::Open;
use super::owners::shard_of;
use super::possessions::Possessions;
use super::wire::{End, Of, Question, RefusalCode, Reply};
use crate::control::Control;
use crate::ledger::Ledger;
use crate::limit::{
    Decision, Denial, Limiter, Moment, Options, Request, ReservationId, Resolution, Resolved, Rules,
};

/// What hosts the limiters.
pub struct Tenants {
    options: Options,
    rules: ArcSwap<Rules>,
    open: Arc<Open>,
    escrow: Arc<Escrow>,
    possessions: Arc<Possessions>,
    closing: Closing,
    governor: Governor,
    clock: Arc<dyn Clock>,
    /// Decisions made here, whoever asked.
    decisions: AtomicU64,
    audit: OnceLock<Arc<dyn Audit>>,
    /// The version of what is agreed on that is in force here.
    in_force: AtomicU64,
    /// What other nodes may look up here.
    ledger: Option<Arc<Ledger>>,
}

/// Hears of all that owners on this node decide, under the lock of the shard: it may not wait for anything.
pub trait Audit: Send + Sync + 'static {
    /// The reading of a clock of its own, which it is given back in [`Instants`].
    fn now(&self) -> u64 {
        0
    }

    /// A reservation was decided, and the decision stands: the lease still ran at the reading of its clock after that.
    fn decided(&self, by: Tenure, at: Instants, request: &Request<'_>, decision: &Decision);

    /// A reservation ended as of `at`, and that stands.
    fn ended(&self, by: Tenure, at: Moment, id: ReservationId, tenant: &str, resolved: &Resolved);

    /// A reservation was decided as of `at` and nobody is told, for the lease has run out since. What it debited stays debited, and a
    /// repetition finds it if `session` gets a lease again.
    fn decision_forfeited(
        &self,
        _session: SessionId,
        _at: Moment,
        _request: &Request<'_>,
        _decision: &Decision,
    ) {
    }

    /// A shard is served here from now on, without what its last holder knew.
    fn started_cold(&self, _shard: ShardId) {}

    /// A reservation ended as of `at` and nobody is told, likewise.
    fn end_forfeited(&self, _at: Moment, _tenant: &str, _resolved: &Resolved) {}
}

/// Around a decision, by [`Audit::now`] where nothing else is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instants {
    /// Before the limiter read its clock: the debit was not before.
    pub asked: u64,
    /// After the debit and before the lease is looked at again: it is by this look that the decision stands.
    pub debited: u64,
    /// The reading of the lease clock by which it was decided.
    pub read: Moment,
}

/// Whose decision it is: the session that holds the shard, and the epoch of its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tenure {
    /// Of what.
    pub shard: ShardId,
    /// Who.
    pub session: SessionId,
    /// Since which ring.
    pub epoch: Epoch,
}

/// The lease clock's reading as the limiter counts it.
#[must_use]
pub const fn moment(at: time::Moment) -> Moment {
    Moment::from_nanos(at.as_nanos())
}

/// The upper half of the ids that a gateway makes in this session.
#[must_use]
pub const fn life(session: SessionId) -> u64 {
    // Sessions are random: any half of one is as good as another.
    session.0 as u64
}

impl Tenants {
    /// Limiters with these bounds and rules.
    #[must_use]
    pub fn new(options: Options, rules: Arc<Rules>, clock: Arc<dyn Clock>) -> Self {
        Self {
            options,
            rules: ArcSwap::from(rules),
            open: Arc::default(),
            escrow: Arc::default(),
            possessions: Arc::default(),
            closing: Closing::default(),
            governor: Governor::new(options.orphan_grace),
            clock,
            decisions: AtomicU64::new(0),
            audit: OnceLock::new(),
            in_force: AtomicU64::new(0),
            ledger: None,
        }
    }

    /// Lets other nodes look up what is in `ledger`.
    #[must_use]
    pub fn with_ledger(mut self, ledger: Option<Arc<Ledger>>) -> Self {
        self.ledger = ledger;
        self
    }

    /// Whose is what providers keep.
    #[must_use]
    pub const fn possessions(&self) -> &Arc<Possessions> {
        &self.possessions
    }

    /// What owners here are to close.
    #[must_use]
    pub const fn closing(&self) -> &Closing {
        &self.closing
    }

    /// What this node's gateway holds open, here and elsewhere.
    #[must_use]
    pub const fn open(&self) -> &Arc<Open> {
        &self.open
    }

    /// The purses of this node's session.
    #[must_use]
    pub const fn escrow(&self) -> &Arc<Escrow> {
        &self.escrow
    }

    /// Bounds of each limiter.
    #[must_use]
    pub const fn options(&self) -> Options {
        self.options
    }

    /// How many decisions were made here.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        self.decisions.load(Ordering::Relaxed)
    }

    /// Has `audit` hear of everything that is decided here. Only the first is heard.
    pub fn audited_by(&self, audit: Arc<dyn Audit>) {
        let _ = self.audit.set(audit);
    }

    /// The rules that a limiter begins with from now on. Those that live are told one by one.
    pub(super) fn follow(&self, rules: &Arc<Rules>) {
        self.rules.store(rules.clone());
    }

    /// A version of what is agreed on is in force here from now on, in every limiter and at the gateway.
    pub(super) fn put_in_force(&self, version: u64) {
        self.in_force.fetch_max(version, Ordering::AcqRel);
    }

    fn imported(&self, shard: ShardId, payload: &[u8], now: Moment) -> Limiter {
        let rules = self.rules.load_full();
        let read = codec::read_exported(payload).map_err(|unreadable| unreadable.to_string());
        let limiter = read.and_then(|exported| {
            Limiter::import(now, self.options, rules.clone(), exported).map_err(|unsound| unsound.to_string())
        });
        limiter.unwrap_or_else(|problem| {
            tracing::error!(%shard, problem, "the state of a shard that moved here cannot be used; its tenants begin with nothing");
            Limiter::cold(now, self.options, rules)
        })
    }
}

impl Host for Tenants {
    type State = Limiter;

    fn open(&self, shard: ShardId, start: Start<Payload>, now: time::Moment) -> Limiter {
        let now = moment(now);
        match start {
            Start::First => Limiter::first(self.options, self.rules.load_full()),
            Start::Imported(payload) => self.imported(shard, &payload, now),
            Start::Cold => {
                if let Some(audit) = self.audit.get() {
                    audit.started_cold(shard);
                }
                Limiter::cold(now, self.options, self.rules.load_full())
            }
        }
    }

    fn export(&self, shard: ShardId, state: Limiter, now: time::Moment) -> Payload {
        self.escrow.leave(|tenant| shard_of(tenant) == shard);
        let bytes = codec::exported(&state.export(moment(now))).unwrap_or_else(|too_large| {
            tracing::error!(%shard, %too_large, "the state of a shard cannot be moved; its tenants begin with nothing elsewhere");
            Vec::new()
        });
        bytes.into()
    }

    fn holds_open(&self, shard: ShardId) -> Payload {
        let mut open = self.open.announce(shard, moment(self.clock.now()));
        // Half as many until it fits. What is left out is closed at its deadline by nobody and holds no slot.
        loop {
            if let Ok(bytes) = codec::announced(&open) {
                return bytes.into();
            }
            tracing::error!(%shard, open = open.len(), "too much is open to be announced; half of it is left out");
            open.truncate(open.len() / 2);
        }
    }

    fn adopt(&self, shard: ShardId, state: &mut Limiter, from: SessionId, open: &[u8], now: time::Moment) {
        match codec::read_announced(open) {
            Ok(open) => {
                for open in open.iter().filter(|open| shard_of(&open.tenant) == shard) {
                    state.adopt(moment(now), open);
                }
            }
            Err(unreadable) => {
                tracing::error!(%shard, %from, %unreadable, "what a gateway holds open cannot be read");
            }
        }
    }

    fn ended(&self, shard: ShardId, state: &mut Limiter, sessions: &[SessionId], now: time::Moment) {
        let lives: BTreeMap<u64, SessionId> =
            sessions.iter().map(|session| (life(*session), *session)).collect();
        for (life, session) in &lives {
            self.closing.gone(*life, *session);
        }
        for orphan in state.end_lives(moment(now), &lives.keys().copied().collect()) {
            if let (Some(gateway), Some(paid)) = (lives.get(&orphan.id.life()), &orphan.paid) {
                self.closing.orphaned(*gateway, orphan.id, paid.clone());
            }
            tracing::warn!(
                id = %orphan.id, tenant = &*orphan.tenant, charged = orphan.held.total, %shard,
                "the gateway of a reservation is gone: it was closed at its estimate"
            );
        }
    }

    fn agreed(&self) -> Arc<dyn Agreed> {
        Arc::new(Control::default())
    }

    fn in_force(&self) -> Version {
        Version(self.in_force.load(Ordering::Acquire))
    }

    fn govern(&self, leading: &Governing<'_>) -> Vec<Payload> {
        self.governor.decide(leading)
    }

    fn look_up(&self, question: &[u8]) -> Vec<u8> {
        self.ledger.as_ref().map(|ledger| ledger.answer_bytes(question)).unwrap_or_default()
    }

    fn answer(&self, shards: &Shards<Self>, question: &[u8]) -> Vec<u8> {
        let reply = match codec::read_question(question) {
            Ok(Question::Decide { epoch, session, ends, reserve }) => {
                let ends = ends.iter().map(|end| end_here(shards, epoch, session, end)).collect();
                let reserved = reserve.map(|reserve| {
                    let decided = reserve_here(shards, epoch, session, &reserve.request());
                    decided.map_err(RefusalCode::from)
                });
                Reply::Decided { ends, reserved }
            }
            Ok(Question::Attempt { epoch, session, of, attempt }) => {
                let attempted = attempt_here(shards, epoch, session, &of, attempt);
                Reply::Attempted(attempted.map_err(RefusalCode::from))
            }
            Ok(Question::Look { tenant }) => {
                let look = |limiter: &mut Limiter, now| limiter.tenant(moment(now), &tenant);
                Reply::Looked(shards.look(shard_of(&tenant), look).flatten())
            }
            Ok(Question::Kept(question)) => Reply::Kept(self.possessions.answer(question)),
            Err(_unreadable) => Reply::Unreadable,
        };
        codec::reply(&reply).unwrap_or_default()
    }
}

/// Decides a reservation at a limiter of this node.
pub(super) fn reserve_here(
    shards: &Shards<Tenants>,
    epoch: Epoch,
    session: SessionId,
    request: &Request<'_>,
) -> Result<Decision, Refusal> {
    let shard = shard_of(request.tenant);
    let (host, mut made) = (shards.host(), None);
    let audit = host.audit.get();
    let instant = || audit.map_or(0, |audit| audit.now());
    let asked = instant();
    let decided = shards.decide(shard, epoch, session, |limiter, now, complete| {
        let read = moment(now);
        let decision = limiter.reserve_paid(read, request, complete, &mut host.escrow.hand(session));
        mutant::pause("debited");
        made = audit.map(|audit| (audit, Instants { asked, debited: instant(), read }, decision.clone()));
        decision
    });
    // Who waits for a grant asks again: that is when it is decided.
    let is_decided = decided.as_ref().is_ok_and(|decision| !decision.is_granting());
    host.decisions.fetch_add(u64::from(is_decided), Ordering::Relaxed);
    if let Some((audit, at, decision)) = made.filter(|(_, _, decision)| !decision.is_granting()) {
        match &decided {
            Ok(_) => audit.decided(tenure(shards, shard, session), at, request, &decision),
            Err(_) => audit.decision_forfeited(session, at.read, request, &decision),
        }
    }
    decided
}

fn tenure(shards: &Shards<Tenants>, shard: ShardId, session: SessionId) -> Tenure {
    let facts = shards.facts();
    let epoch = facts.and_then(|facts| match facts.authority.holding(shard) {
        Some(Holding::Held { epoch, .. }) => Some(epoch),
        _ => None,
    });
    Tenure { shard, session, epoch: epoch.unwrap_or_default() }
}

/// Has a further attempt of a reservation paid at a limiter of this node.
pub(super) fn attempt_here(
    shards: &Shards<Tenants>,
    epoch: Epoch,
    session: SessionId,
    of: &Of,
    attempt: u32,
) -> Result<Result<(), Denial>, Refusal> {
    let (shard, mut hand) = (shard_of(of.tenant()), shards.host().escrow.hand(session));
    shards.decide(shard, epoch, session, |limiter, now, _| {
        let now = moment(now);
        if let Of::Held(open) = of {
            limiter.adopt(now, open);
        }
        limiter.attempt(now, of.id(), attempt, &mut hand)
    })
}

/// Ends a reservation at a limiter of this node.
pub(super) fn end_here(
    shards: &Shards<Tenants>,
    epoch: Epoch,
    session: SessionId,
    end: &End,
) -> Result<Resolved, RefusalCode> {
    let (shard, tenant) = (shard_of(end.of.tenant()), end.of.tenant());
    let (mut made, mut hand) = (None, shards.host().escrow.hand(session));
    let resolved = shards.decide(shard, epoch, session, |limiter, now, _| {
        let now = moment(now);
        let resolved = match &end.of {
            Of::Held(open) => limiter.resolve_reported(now, open, end.how, &mut hand),
            Of::Id { id, .. } => limiter.resolve_paid(now, *id, end.how, &mut hand),
        };
        made = Some((now, resolved));
        resolved
    });
    if let (Some((at, made)), Some(audit)) = (made, shards.host().audit.get()) {
        match &resolved {
            Ok(_) => audit.ended(tenure(shards, shard, session), at, end.of.id(), tenant, &made),
            Err(_) => audit.end_forfeited(at, tenant, &made),
        }
    }
    // Its gateway has yet to report it, and may be gone before.
    if let (Ok(_), Some((at, _)), Of::Held(open)) = (&resolved, made, &end.of)
        && let Some(paid) = open.paid.as_deref().filter(|_| end.how != Resolution::Cancel)
        && open.id.life() != life(session)
    {
        shards.host().closing.ended(at, open.id, paid);
    }
    resolved.map_err(RefusalCode::from)
}
