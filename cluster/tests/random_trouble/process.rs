//! One node process: the real lease, slots, view and grantor, driven by what arrives and by its own clock.

use std::collections::BTreeMap;

use tollgate_cluster::authority::{Authority, Command, Standing};
use tollgate_cluster::handoff::{Change, Export, Slot, Start};
use tollgate_cluster::id::{ClusterId, NodeId, SessionId, ShardId, Term, Version};
use tollgate_cluster::lease::{Confirmation, Grantor, Holder, Progress, Renewal, Reply, Timing, Turn};
use tollgate_cluster::time::{Moment, Span};

/// How long a session may be silent until the leader condemns it.
const SILENCE: Span = Span::from_millis(1500);

pub struct Process {
    pub node: NodeId,
    pub authority: Authority,
    /// How many entries of the log are applied.
    pub applied: usize,
    pub life: Option<Life>,
    /// The desk it has while it believes that it leads.
    pub grantor: Option<(Term, Grantor)>,
    pub leader: usize,
}

/// What a process has in memory for one session.
pub struct Life {
    pub session: SessionId,
    pub holder: Holder,
    pub slots: BTreeMap<ShardId, Slot<u64>>,
    /// The tenure that each shard is served in; the payload of its export.
    pub tenures: BTreeMap<ShardId, u64>,
    rounds: u64,
}

/// What a process sends.
#[derive(Clone, Debug)]
pub enum Message {
    Renew(Renewal),
    Reply(Reply),
    Propose(Command),
    Export(Export<u64>),
    Confirmed(Confirmation),
}

impl Process {
    pub fn new(node: NodeId, cluster: ClusterId) -> Self {
        Self { node, authority: Authority::new(cluster), applied: 0, life: None, grantor: None, leader: 0 }
    }

    /// Begins a session when there is none, or the one there was must go.
    pub fn live(&mut self, fresh: SessionId, timing: Timing, shards: &[ShardId]) {
        let over = self.life.as_ref().is_none_or(|life| {
            let standing = self.authority.standing(life.session);
            life.holder.is_condemned() || standing.is_some_and(|standing| standing > Standing::Serving)
        });
        if over && self.authority.nodes().contains_key(&self.node) {
            self.life = Some(Life {
                session: fresh,
                holder: Holder::new(fresh, timing),
                slots: shards.iter().map(|&shard| (shard, Slot::new(shard, self.node, fresh))).collect(),
                tenures: BTreeMap::new(),
                rounds: 0,
            });
        }
    }

    /// Follows the log; what opened, with what.
    pub fn observe(&mut self, now: Moment) -> Vec<(ShardId, Start<u64>)> {
        if let Some((_, grantor)) = &mut self.grantor {
            grantor.observe(&self.authority, now);
        }
        let Some(life) = &mut self.life else { return Vec::new() };
        let changes =
            life.slots.iter_mut().filter_map(|(&shard, slot)| match slot.observe(&self.authority)? {
                Change::Open(start) => Some((shard, start)),
                Change::Drop => None,
            });
        changes.collect()
    }

    /// What its session wants of the leader and of other nodes: a lease every quarter, the rest whenever it is `due`.
    pub fn wants(&mut self, now: Moment, due: bool) -> Vec<(Option<NodeId>, Message)> {
        let Some(life) = &mut self.life else { return Vec::new() };
        let mut messages = Vec::new();
        life.rounds += 1;
        let progress = Progress { disk: life.rounds, shards: life.rounds };
        if let Turn::Renew(renewal) = life.holder.handle_timeout(now, progress) {
            messages.push((None, Message::Renew(renewal)));
        }
        if !due {
            return messages;
        }
        if self.authority.standing(life.session).is_none() {
            let register = Command::Register { node: self.node, session: life.session };
            messages.push((None, Message::Propose(register)));
        }
        for (shard, slot) in &mut life.slots {
            if slot.is_leaving(&self.authority) {
                let tenure = life.tenures.get(shard).copied().unwrap_or(0);
                slot.seal(Version(0), tenure).expect("what leaves is served");
            }
            messages.extend(slot.proposal(&self.authority).map(|command| (None, Message::Propose(command))));
            if let Some(export) = slot.export(&self.authority) {
                let importer = self.authority.session(export.importer).map(|session| session.node);
                messages.push((importer, Message::Export(export)));
            }
        }
        messages
    }

    /// What it decides as the leader: whom to condemn and fence, and what the ring should be.
    pub fn decides(&mut self, now: Moment) -> Vec<Command> {
        let Some((term, grantor)) = &mut self.grantor else { return Vec::new() };
        let unfenced: Vec<SessionId> = self.authority.unfenced().map(|(session, _)| session).collect();
        for session in unfenced {
            if grantor.silence(session, now).as_nanos() > SILENCE.as_nanos() {
                grantor.condemn(session, now);
            }
        }
        let mut commands = grantor.handle_timeout(now);
        let epoch = self.authority.epoch();
        if self.authority.is_changing() {
            if self.authority.moving().next().is_none() {
                commands.push(Command::CloseChange { epoch, term: *term });
            }
        } else {
            let members: Vec<NodeId> = self
                .authority
                .nodes()
                .keys()
                .copied()
                .filter(|&node| self.authority.serving(node).is_some())
                .collect();
            if !members.is_empty() && !members.iter().eq(self.authority.ring().members()) {
                commands.push(Command::ChangeRing { epoch: epoch.next(), members, term: *term });
            }
        }
        commands
    }
}
