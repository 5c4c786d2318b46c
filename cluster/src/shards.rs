//! The shards as one node has them: for each a slot that follows the log, and the host's state while it is served here.
//!
//! Laws:
//! - `one_owner`: whatever is decided under [`Shards::decide`] stands only if a second reading of the clock, made after the decision,
//!   still finds the lease valid; otherwise the decision is forfeited and the answer is a refusal;
//! - a shard's lock is held for one decision and never across an await; sealing takes the same lock, so nothing is decided
//!   between the seal and the export;
//! - a state is made when the log says that this session holds the shard, and thrown away when it says that it does not;
//! - a state that broke an invariant of its own is never used again.
//!
//! A node that is its own cluster ([`Shards::alone`]) serves every shard for ever. Never here: the network, the disk, what a
//! shard is.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwapOption;

use crate::agreed::{Agreed, Nothing};
use crate::authority::{Authority, Basis, Command};
use crate::handoff::{Announcement, Change, Export, ImportRefusal, Outgoing, Serving, Slot, Start};
use crate::id::{Epoch, NodeId, SessionId, ShardId, Term, Version};
use crate::lease::Holder;
use crate::log_time::LogTime;
use crate::mutant;
use crate::outside::Clock;
use crate::time::Moment;
use crate::view::{Refusal, View};

/// A shard's state on its way, as the host wrote it.
pub type Payload = Arc<[u8]>;

/// What the host makes of a shard. Every call is made under the shard's lock: none may wait for anything.
pub trait Host: Send + Sync + 'static {
    /// The live state of one shard.
    type State: Send;

    /// The state that `shard` begins with at `now`.
    fn open(&self, shard: ShardId, start: Start<Payload>, now: Moment) -> Self::State;

    /// The sealed state of `shard`, to be opened by another session, perhaps of a later version of this program.
    fn export(&self, shard: ShardId, state: Self::State, now: Moment) -> Payload;

    /// What this node holds open under `shard`, for a holder that started cold.
    fn holds_open(&self, shard: ShardId) -> Payload;

    /// Enters what `from` says that it holds open. What cannot be read is dropped, with a line in the log.
    fn adopt(&self, shard: ShardId, state: &mut Self::State, from: SessionId, open: &[u8], now: Moment);

    /// These sessions are over: what they left open under `shard` ends at what it holds, and takes up no place any more.
    fn ended(&self, shard: ShardId, state: &mut Self::State, sessions: &[SessionId], now: Moment);

    /// What this host has its cluster agree on, before anything is agreed on.
    fn agreed(&self) -> Arc<dyn Agreed> {
        Arc::new(Nothing)
    }

    /// The [`Agreed::version`] that this host has in force here. Until it is that which is committed, no lease can be used.
    fn in_force(&self) -> Version {
        Version(0)
    }

    /// What this host would have committed now, as its leader, each a command of its own. Asked for at every turn of the leader, some
    /// 40 times a second, so what is under way must not be given twice; one that is lost is to be given again after a while. It may not wait for anything.
    fn govern(&self, _leading: &Governing<'_>) -> Vec<Payload> {
        Vec::new()
    }

    /// Answers a question from another node, in the host's own encoding; [`Shards::decide`] is where it is decided.
    fn answer(&self, shards: &Shards<Self>, question: &[u8]) -> Vec<u8>
    where
        Self: Sized;

    /// Looks something up for another node, in the host's own encoding: the one call that may take its time, under no lock and on a
    /// thread that nobody waits for. A host that has nothing to look up says nothing.
    fn look_up(&self, _question: &[u8]) -> Vec<u8> {
        Vec::new()
    }
}

/// A leader's view, for what only a leader may propose.
#[derive(Debug)]
pub struct Governing<'a> {
    /// The leadership: a decision that rests on what a leader alone knows names it, and is void in another.
    pub term: Term,
    /// The lease clock's reading.
    pub now: Moment,
    /// The log as far as it is applied here.
    pub authority: &'a Authority,
    /// The host's state in it.
    pub agreed: &'a Arc<dyn Agreed>,
    /// The version that every session which is not fenced has said to have in force, if any session lives. What one of them gains by
    /// another's loss starts here.
    pub acknowledged: Option<Version>,
    /// The time that an entry proposed now would bring the log to.
    pub log_time: LogTime,
    /// What the wall clocks of nodes with living sessions read, one for each node, when it last asked for its lease, in milliseconds since 1970. Of a node that
    /// does not ask nothing is known, and that is to be counted as a clock that has reached nothing.
    pub wall_clocks: &'a [u64],
}

/// What this node knows at an instant: published whole whenever it changes.
#[derive(Clone, Debug)]
pub struct Facts {
    /// This node's number.
    pub node: NodeId,
    /// The log as far as it is applied here.
    pub authority: Arc<Authority>,
    /// The lease of this node's session.
    pub holder: Holder,
    /// The version of what the host replicates that it has in force here.
    pub version: Version,
    /// The version that the log has of it, as far as it is applied here.
    pub agreed: Version,
}

/// How many shards are in which stage here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Served.
    pub serving: usize,
    /// Sealed and not yet claimed by another.
    pub sealed: usize,
    /// Served, but not everybody has announced yet what it holds open.
    pub incomplete: usize,
}

/// All shards.
pub struct Shards<H: Host> {
    host: H,
    clock: Arc<dyn Clock>,
    hosted: Box<[Mutex<Hosted<H::State>>]>,
    facts: ArcSwapOption<Facts>,
    /// Whose end every open shard was told, and who lived then.
    told: Mutex<Told>,
    alone: bool,
}

#[derive(Default)]
struct Told {
    ended: BTreeSet<SessionId>,
    living: BTreeSet<SessionId>,
}

struct Hosted<S> {
    slot: Option<Slot<Payload>>,
    state: Option<S>,
}

/// What came of following the log with one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is served here from now on.
    Opened {
        /// Which.
        shard: ShardId,
        /// Whether its former state was lost.
        cold: bool,
    },
    /// It was taken away with its state: the session is over.
    Dropped {
        /// Which.
        shard: ShardId,
    },
    /// A session is over, on whichever node it was.
    Ended {
        /// Which.
        session: SessionId,
    },
}

impl<H: Host> Shards<H> {
    /// The shards of a member; it serves none yet.
    pub fn new(host: H, clock: Arc<dyn Clock>) -> Self {
        Self::make(host, clock, false)
    }

    /// The shards of a node that is its own cluster: it serves all of them, and nobody else ever will.
    pub fn alone(host: H, clock: Arc<dyn Clock>) -> Self {
        let shards = Self::make(host, clock, true);
        let now = shards.clock.now();
        for shard in ShardId::all() {
            if let Some(mut hosted) = shards.lock(shard) {
                hosted.state = Some(shards.host.open(shard, Start::First, now));
            }
        }
        shards
    }

    fn make(host: H, clock: Arc<dyn Clock>, alone: bool) -> Self {
        let hosted = ShardId::all().map(|_| Mutex::new(Hosted { slot: None, state: None })).collect();
        let told = Mutex::default();
        Self { host, clock, hosted, facts: ArcSwapOption::empty(), told, alone }
    }

    /// The host.
    pub const fn host(&self) -> &H {
        &self.host
    }

    /// Whether this node is its own cluster.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.alone
    }

    /// What this node knows now; nothing before it is a member.
    #[must_use]
    pub fn facts(&self) -> Option<Arc<Facts>> {
        self.facts.load_full()
    }

    /// Decides something about `shard` that was asked of `session` under `epoch`. The decision is given the clock's reading, and whether
    /// everybody has announced what it holds open: until then nothing may be admitted that counts open work.
    ///
    /// # Errors
    ///
    /// [`Refusal`]: nothing was decided, or what was decided is forfeited.
    pub fn decide<T>(
        &self,
        shard: ShardId,
        epoch: Epoch,
        session: SessionId,
        decision: impl FnOnce(&mut H::State, Moment, bool) -> T,
    ) -> Result<T, Refusal> {
        let not_here = Refusal::NotHere { shard, holder: None };
        let mut hosted = self.lock(shard).ok_or(not_here)?;
        let Hosted { slot, state } = &mut *hosted;
        if self.alone {
            let state = state.as_mut().ok_or(not_here)?;
            return Ok(decision(state, self.clock.now(), true));
        }
        let facts = self.facts.load();
        let (Some(facts), Some(slot)) = (facts.as_deref(), slot.as_ref()) else { return Err(not_here) };
        let view = View { authority: &facts.authority, holder: &facts.holder, slot, version: facts.version };
        let now = self.clock.now();
        let permit = view.may_answer(epoch, session, now)?;
        let state = state.as_mut().ok_or(not_here)?;
        let complete = permit.is_complete();
        let answer = decision(state, now, complete);
        let redeemed = permit.redeem(self.clock.now());
        if !mutant::is("before_only") {
            redeemed?;
        }
        Ok(answer)
    }

    /// Looks at the state of `shard`, or does what needs no right to answer. `None` while it is not served here.
    pub fn look<T>(&self, shard: ShardId, look: impl FnOnce(&mut H::State, Moment) -> T) -> Option<T> {
        let mut hosted = self.lock(shard)?;
        let state = hosted.state.as_mut()?;
        Some(look(state, self.clock.now()))
    }

    /// [`Shards::look`] at every shard that is served here.
    pub fn look_at_all<T>(&self, mut look: impl FnMut(ShardId, &mut H::State, Moment) -> T) -> Vec<T> {
        ShardId::all().filter_map(|shard| self.look(shard, |state, now| look(shard, state, now))).collect()
    }

    /// Publishes what this node knows now.
    pub fn publish(&self, facts: Facts) {
        self.facts.store(Some(Arc::new(facts)));
    }

    /// Takes the right to answer away from whatever is decided from now on.
    pub fn withdraw(&self) {
        self.facts.store(None);
    }

    /// Follows the published log with every shard. A session that is new here begins with nothing.
    pub fn observe(&self) -> Vec<Event> {
        let Some(facts) = self.facts() else { return Vec::new() };
        let session = facts.holder.session();
        let mut all: BTreeSet<SessionId> = facts.authority.ended().collect();
        let new: Vec<SessionId> = {
            let Ok(mut told) = self.told.lock() else { return Vec::new() };
            // Who lived and is not known any more was fenced and forgotten between two looks.
            let forgotten = told.living.iter().filter(|session| facts.authority.session(**session).is_none());
            all.extend(forgotten);
            let new = all.difference(&told.ended).copied().collect();
            told.ended.clone_from(&all);
            told.living = facts.authority.unfenced().map(|(session, _)| session).collect();
            new
        };
        let all: Vec<SessionId> = all.into_iter().collect();
        let mut events: Vec<Event> = new.iter().map(|&session| Event::Ended { session }).collect();
        for shard in ShardId::all() {
            let event = self.observe_one(shard, &facts, session);
            let opened = matches!(event, Some(Event::Opened { .. }));
            // What came with an import may be of sessions that ended while it was on its way.
            let tell = if opened { &all } else { &new };
            if !tell.is_empty() {
                self.look(shard, |state, now| self.host.ended(shard, state, tell, now));
            }
            events.extend(event);
        }
        events
    }

    fn observe_one(&self, shard: ShardId, facts: &Facts, session: SessionId) -> Option<Event> {
        let of_another =
            |hosted: &Hosted<H::State>| hosted.slot.as_ref().is_none_or(|slot| slot.session() != session);
        let mutex = &self.hosted[usize::from(shard.number())];
        let mut hosted = match mutex.lock() {
            Ok(hosted) => hosted,
            // What broke goes with the session that it was of.
            Err(broken) if of_another(broken.get_ref()) => {
                mutex.clear_poison();
                broken.into_inner()
            }
            Err(_) => return None,
        };
        if of_another(&hosted) {
            hosted.slot = Some(Slot::new(shard, facts.node, session));
            hosted.state = None;
        }
        let change = hosted.slot.as_mut()?.observe(&facts.authority)?;
        let now = self.clock.now();
        Some(match change {
            Change::Open(start) => {
                let cold = start == Start::Cold;
                hosted.state = Some(self.host.open(shard, start, now));
                Event::Opened { shard, cold }
            }
            Change::Drop => {
                hosted.state = None;
                Event::Dropped { shard }
            }
        })
    }

    /// The shards that the ring gives to another node which has a session to take them, in order.
    #[must_use]
    pub fn leaving(&self) -> Vec<ShardId> {
        let Some(facts) = self.facts() else { return Vec::new() };
        let leaving = |shard: &ShardId| {
            // Most stay, and the ring says so without a lock.
            facts.authority.ring().owner(*shard) != Some(facts.node)
                && self.lock(*shard).is_some_and(|hosted| {
                    hosted.slot.as_ref().is_some_and(|slot| slot.is_leaving(&facts.authority))
                })
        };
        ShardId::all().filter(leaving).collect()
    }

    /// Seals `shard` with the state it has at this instant. It answers nothing more. One of which not all that is open is known is
    /// left as it is.
    pub fn seal(&self, shard: ShardId) {
        let Some(facts) = self.facts() else { return };
        let Some(mut hosted) = self.lock(shard) else { return };
        let Hosted { slot, state } = &mut *hosted;
        let complete = |slot: &Slot<Payload>| slot.serving().is_some_and(Serving::is_complete);
        let Some(slot) = slot.as_mut().filter(|slot| complete(slot)) else { return };
        let Some(sealed) = state.take() else { return };
        let now = self.clock.now();
        let payload = self.host.export(shard, sealed, now);
        if mutant::is("no_seal") {
            *state = Some(self.host.open(shard, Start::Imported(payload.clone()), now));
        }
        if let Err(problem) = slot.seal(facts.version, payload) {
            // It was served a line ago, under the same lock.
            tracing::error!(%shard, %problem, "a shard could not be sealed; its state is given up");
        }
    }

    /// Seals all that is served here. What is returned has every state that was here and that no other session has claimed.
    pub fn seal_all(&self) -> Vec<Outgoing<Payload>> {
        let sealed = ShardId::all().filter_map(|shard| {
            self.seal(shard);
            self.lock(shard)?.slot.as_ref()?.outgoing().cloned()
        });
        sealed.collect()
    }

    /// What the shards want from the log now. Proposals can be lost: ask again after a while.
    ///
    /// None is claimed cold before what the log has agreed on is in force here. Its state begins with what is in force, and would take
    /// what it learns of later for new, though the last holder may have spent it.
    #[must_use]
    pub fn proposals(&self) -> Vec<Command> {
        let Some(facts) = self.facts() else { return Vec::new() };
        let behind = facts.version < facts.agreed;
        let too_early =
            |command: &Command| behind && matches!(command, Command::Claim { basis: Basis::Cold, .. });
        let wanted = |shard| self.lock(shard)?.slot.as_ref()?.proposal(&facts.authority);
        ShardId::all().filter_map(wanted).filter(|command| !too_early(command)).collect()
    }

    /// The exports that are to be sent now, and again after a while.
    #[must_use]
    pub fn exports(&self) -> Vec<Export<Payload>> {
        let Some(facts) = self.facts() else { return Vec::new() };
        let ready = |shard| self.lock(shard)?.slot.as_ref()?.export(&facts.authority);
        ShardId::all().filter_map(ready).collect()
    }

    /// Takes an export.
    ///
    /// # Errors
    ///
    /// [`ImportRefusal`]: it is not awaited, or not yet.
    pub fn import(&self, export: Export<Payload>) -> Result<(), ImportRefusal> {
        let refusal = ImportRefusal::NotAwaited(export.shard);
        let facts = self.facts().ok_or(refusal)?;
        let mut hosted = self.lock(export.shard).ok_or(refusal)?;
        let slot = hosted.slot.as_mut().ok_or(refusal)?;
        slot.import(export, &facts.authority, facts.version)
    }

    /// Takes what `announcement.from` says that it holds open. `false` when it is to another tenure than the one here, perhaps one that
    /// is not followed here yet.
    pub fn announced(&self, announcement: &Announcement, open: &[u8]) -> bool {
        let Some(mut hosted) = self.lock(announcement.shard) else { return false };
        let Hosted { slot, state } = &mut *hosted;
        let (Some(slot), Some(state)) = (slot.as_mut(), state.as_mut()) else { return false };
        let tenure = slot.serving().map(Serving::epoch);
        if slot.session() != announcement.holder || tenure != Some(announcement.epoch) {
            return false;
        }
        let now = self.clock.now();
        self.host.adopt(announcement.shard, state, announcement.from, open, now);
        // It may hold some of an earlier session of its node, whose end was told before they came.
        let Some(facts) = self.facts() else { return false };
        let node = |session| facts.authority.session(session).map(|known| known.node);
        let from = node(announcement.from);
        let over: Vec<SessionId> = facts.authority.ended().filter(|session| node(*session) == from).collect();
        if !over.is_empty() {
            self.host.ended(announcement.shard, state, &over, now);
        }
        slot.announced(announcement);
        true
    }

    /// How many shards are in which stage.
    #[must_use]
    pub fn count(&self) -> Count {
        let mut count = Count::default();
        for shard in ShardId::all() {
            let Some(hosted) = self.lock(shard) else { continue };
            let Some(slot) = &hosted.slot else {
                count.serving += usize::from(hosted.state.is_some());
                continue;
            };
            count.serving += usize::from(slot.serving().is_some());
            count.incomplete += usize::from(slot.serving().is_some_and(|serving| !serving.is_complete()));
            count.sealed += usize::from(slot.is_sealed());
        }
        count
    }

    /// Goes once through every shard's lock: done only if none is stuck.
    pub fn come_round(&self) {
        for shard in ShardId::all() {
            drop(self.lock(shard));
        }
    }

    /// Whether a shard of `session` is broken: its host found an invariant of its own violated and panicked. It answers nothing any more,
    /// and whoever has `session` must give it up, so that another starts the shard cold.
    #[must_use]
    pub fn is_broken(&self, session: SessionId) -> bool {
        let broken = |hosted: &Mutex<Hosted<H::State>>| match hosted.lock() {
            Ok(_) => false,
            Err(broken) => broken.get_ref().slot.as_ref().is_some_and(|slot| slot.session() == session),
        };
        self.hosted.iter().filter(|hosted| hosted.is_poisoned()).any(broken)
    }

    /// `None` for a shard that is broken ([`Shards::is_broken`]): what it would answer could be wrong. Where there is nobody to take it over
    /// it starts cold at once.
    fn lock(&self, shard: ShardId) -> Option<MutexGuard<'_, Hosted<H::State>>> {
        let mutex = &self.hosted[usize::from(shard.number())];
        match mutex.lock() {
            Ok(hosted) => Some(hosted),
            Err(broken) if self.alone => {
                tracing::error!(%shard, "a shard broke an invariant: it starts cold, with what it knew given up");
                let mut hosted = broken.into_inner();
                hosted.state = Some(self.host.open(shard, Start::Cold, self.clock.now()));
                mutex.clear_poison();
                Some(hosted)
            }
            Err(_) => None,
        }
    }
}
