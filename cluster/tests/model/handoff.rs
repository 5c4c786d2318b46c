//! Handoff: two nodes, one shard, a log that each applies when it likes, exports that arrive late, again or never.
//!
//! Leases are left out: a session may be fenced at any time, and from that entry on it answers nothing (the other model says why).
//! The ring gives the shard to the second node and back again; either process may restart, with the log it last saved.
//!
//! A payload names the tenure that it was sealed in, so that state used twice, or after a cold start gave it up, shows.

use std::collections::BTreeSet;

use stateright::{Checker, HasDiscoveries, Model, Property};
use tollgate_cluster::authority::{Authority, Basis, Command, Position};
use tollgate_cluster::handoff::{Change, Export, Slot, Start};
use tollgate_cluster::id::{ClusterId, Epoch, Identity, LogIndex, NodeId, SessionId, ShardId, Term, Version};
use tollgate_cluster::log_time::{LogTime, Stamp};
use tollgate_cluster::ring::Ring;

const NODES: [NodeId; 2] = [NodeId(0), NodeId(1)];
const TERM: Term = Term { number: 1, leader: NodeId(0) };

/// What is left out of the protocol, to see that it is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// The old owner exports what it goes on serving.
    Seal,
    /// A restarted process wears its earlier life's name.
    NewSessionPerLife,
    /// The importer starts cold when the holder is silent, not when it is fenced.
    FenceBeforeColdStart,
}

struct Handoff {
    without: Without,
    bounds: Bounds,
    shard: ShardId,
    /// The log when the model begins: the first node serves, the ring has just given the shard to the second.
    beginning: Authority,
    first: Slot<u8>,
    second: Slot<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    restarts: u8,
    fences: u8,
    changes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    /// The log, as far as it matters: entries after the beginning.
    log: Vec<Command>,
    committed: Authority,
    nodes: [Node; 2],
    /// Every export ever sent: any of them may arrive at any time, and again.
    exports: BTreeSet<Export<u8>>,
    restarts: u8,
    fences: u8,
    /// How many tenures have begun.
    tenures: u8,
    seen: Seen,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    session: SessionId,
    /// How many entries of the log are applied here.
    applied: usize,
    authority: Authority,
    slot: Slot<u8>,
    /// The tenure that it serves.
    tenure: u8,
    /// It serves on after it has sealed.
    unsealed: bool,
    /// It serves without a claim.
    usurps: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Seen {
    imported: bool,
    returned: bool,
    cold: bool,
    used_twice: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Action {
    Apply(usize),
    Seal(usize),
    Propose(usize),
    Send(usize),
    Import(usize, Export<u8>),
    Restart(usize),
    Fence(SessionId),
    Close,
    ChangeBack,
    Usurp,
}

fn apply(authority: &mut Authority, command: Command) -> bool {
    let index = LogIndex(authority.applied().map_or(0, |index| index.0 + 1));
    authority.apply(Position { index, term: TERM }, Stamp { term: TERM, time: LogTime(0) }, command).is_ok()
}

impl Handoff {
    fn new(without: Without, bounds: Bounds) -> Self {
        let shard = Ring::new(Epoch(2), NODES).shards_of(NODES[1]).next().expect("half of the shards");
        let sessions = [SessionId(10), SessionId(20)];
        let change =
            |epoch, members: &[NodeId]| Command::ChangeRing { epoch, members: members.to_vec(), term: TERM };
        let mut authority = Authority::new(ClusterId(1));
        let mut first = Slot::new(shard, NODES[0], sessions[0]);
        let mut second = Slot::new(shard, NODES[1], sessions[1]);
        for command in [
            Command::Admit { identity: Identity(1), address: "first:1".into() },
            Command::Admit { identity: Identity(2), address: "second:1".into() },
            Command::Register { node: NODES[0], session: sessions[0] },
            change(Epoch(1), &NODES[..1]),
            Command::Claim { shard, session: sessions[0], epoch: Epoch(1), basis: Basis::First },
            Command::CloseChange { epoch: Epoch(1), term: TERM },
            Command::Register { node: NODES[1], session: sessions[1] },
            change(Epoch(2), &NODES),
        ] {
            assert!(apply(&mut authority, command));
            first.observe(&authority);
            second.observe(&authority);
        }
        assert!(first.serving().is_some());
        Self { without, bounds, shard, beginning: authority, first, second }
    }

    fn node(&self, slot: &Slot<u8>) -> Node {
        Node {
            session: slot.session(),
            applied: 0,
            authority: self.beginning.clone(),
            slot: slot.clone(),
            tenure: 1,
            unsealed: false,
            usurps: false,
        }
    }

    /// Appends an entry, if it is not rejected: one that is changes nothing for anybody.
    fn commit(state: &mut State, command: Command) -> Option<()> {
        apply(&mut state.committed, command.clone()).then_some(())?;
        state.log.push(command);
        Some(())
    }

    fn advance(state: &mut State, at: usize) -> Option<()> {
        let entry = state.log.get(state.nodes[at].applied)?.clone();
        let node = &mut state.nodes[at];
        node.applied += 1;
        apply(&mut node.authority, entry);
        let Some(Change::Open(start)) = node.slot.observe(&node.authority) else { return Some(()) };
        // A session that is fenced without knowing it has no lease: what it opens, nobody sees.
        if state.committed.is_fenced(node.session) {
            return Some(());
        }
        match start {
            Start::Imported(tenure) => {
                state.seen.used_twice |= tenure != state.tenures;
                state.seen.imported = true;
                state.seen.returned |= at == 0;
            }
            Start::Cold => state.seen.cold = true,
            Start::First => {}
        }
        state.tenures += 1;
        node.tenure = state.tenures;
        Some(())
    }

    fn seal(&self, state: &mut State, at: usize) -> Option<()> {
        let node = &mut state.nodes[at];
        if !node.slot.is_leaving(&node.authority) {
            return None;
        }
        node.slot.seal(Version(0), node.tenure).ok()?;
        node.unsealed = self.without == Without::Seal;
        Some(())
    }

    fn restart(&self, state: &mut State, at: usize) -> Option<()> {
        if state.restarts == self.bounds.restarts {
            return None;
        }
        state.restarts += 1;
        let mut session = state.nodes[at].session;
        if self.without != Without::NewSessionPerLife {
            session = SessionId(session.0 + 1);
            Self::commit(state, Command::Register { node: NODES[at], session })?;
        }
        // It begins with the log that it saved long ago, and with nothing in memory.
        state.nodes[at] = self.node(&Slot::new(self.shard, NODES[at], session));
        Some(())
    }

    fn fence(&self, state: &mut State, session: SessionId) -> Option<()> {
        if state.fences == self.bounds.fences {
            return None;
        }
        state.fences += 1;
        Self::commit(state, Command::Fence { session, term: TERM })
    }

    /// Whether the process answers for the shard, as far as anybody can tell: with its lease as long as its session lives.
    fn answers(&self, state: &State, node: &Node) -> bool {
        let serves = node.slot.serving().is_some() || node.unsealed || node.usurps;
        serves && !state.committed.is_fenced(node.session)
    }
}

impl Model for Handoff {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            log: Vec::new(),
            committed: self.beginning.clone(),
            nodes: [self.node(&self.first), self.node(&self.second)],
            exports: BTreeSet::new(),
            restarts: 0,
            fences: 0,
            tenures: 1,
            seen: Seen::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for at in [0, 1] {
            actions.extend([Action::Apply(at), Action::Seal(at), Action::Propose(at), Action::Send(at)]);
            actions.push(Action::Restart(at));
            actions.extend(state.exports.iter().map(|export| Action::Import(at, export.clone())));
        }
        actions.extend(state.committed.unfenced().map(|(session, _)| Action::Fence(session)));
        actions.extend([Action::Close, Action::ChangeBack, Action::Usurp]);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Apply(at) => Self::advance(&mut state, at)?,
            Action::Seal(at) => self.seal(&mut state, at)?,
            Action::Propose(at) => {
                let node = &state.nodes[at];
                let command = node.slot.proposal(&node.authority)?;
                Self::commit(&mut state, command)?;
            }
            Action::Send(at) => {
                let node = &state.nodes[at];
                state.exports.insert(node.slot.export(&node.authority)?);
            }
            Action::Import(at, export) => {
                let node = &mut state.nodes[at];
                node.slot.import(export, &node.authority, Version(0)).ok()?;
            }
            Action::Restart(at) => self.restart(&mut state, at)?,
            Action::Fence(session) => self.fence(&mut state, session)?,
            Action::Close => {
                let epoch = state.committed.epoch();
                Self::commit(&mut state, Command::CloseChange { epoch, term: TERM })?;
            }
            Action::ChangeBack => {
                let epoch = state.committed.epoch().next();
                if epoch.0 > 2 + self.bounds.changes {
                    return None;
                }
                Self::commit(
                    &mut state,
                    Command::ChangeRing { epoch, members: NODES[..1].to_vec(), term: TERM },
                )?;
            }
            Action::Usurp if self.without == Without::FenceBeforeColdStart => state.nodes[1].usurps = true,
            Action::Usurp => return None,
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one_owner", |model: &Self, state: &State| {
                state.nodes.iter().filter(|node| model.answers(state, node)).count() <= 1
            }),
            Property::always("an export is used once", |_, state: &State| !state.seen.used_twice),
            Property::sometimes("the second node imports", |_, state: &State| state.seen.imported),
            Property::sometimes("a node starts cold", |_, state: &State| state.seen.cold),
            Property::sometimes(
                "what was sealed comes back to its own node",
                |model: &Self, state: &State| state.seen.returned || model.bounds.changes == 0,
            ),
        ]
    }
}

const MOVES: Bounds = Bounds { restarts: 1, fences: 2, changes: 0 };
const THERE_AND_BACK: Bounds = Bounds { restarts: 0, fences: 2, changes: 1 };

fn holds(bounds: Bounds, states: usize) {
    let checker = Handoff::new(Without::Nothing, bounds).checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    let seen = checker.unique_state_count();
    assert!(seen > states, "only {seen} states: the model has lost some of its freedom");
}

fn is_missed(without: Without, law: &'static str) {
    let broken = HasDiscoveries::AnyOf([law].into());
    let checker = Handoff::new(without, MOVES).checker().threads(2).finish_when(broken).spawn_bfs().join();
    let path = checker.discovery(law).unwrap_or_else(|| panic!("nothing goes wrong without {without:?}"));
    println!("without {without:?}: {:?}", path.into_actions());
}

#[test]
fn one_owner_and_no_export_used_twice_with_restarts_and_fences() {
    holds(MOVES, 30_000);
}

#[test]
fn one_owner_and_no_export_used_twice_there_and_back() {
    holds(THERE_AND_BACK, 8_000);
}

#[test]
fn rule_6_rests_on_the_seal() {
    is_missed(Without::Seal, "one_owner");
}

#[test]
fn rule_6_rests_on_a_session_per_life() {
    is_missed(Without::NewSessionPerLife, "an export is used once");
}

#[test]
fn rule_6_rests_on_the_fence_before_a_cold_start_in_a_move() {
    is_missed(Without::FenceBeforeColdStart, "one_owner");
}
