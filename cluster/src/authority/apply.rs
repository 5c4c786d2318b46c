//! What each command does to the state: it checks everything, then writes everything.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    ADDRESS_MAX, Authority, Basis, Command, ENDED_MAX, ENDED_REMOVED_MAX, Effect, Holding, Member, NODES_MAX,
    Position, REMOVED_MAX, Rejection, Session, Standing,
};
use crate::agreed::{Agreed, At, Nothing};
use crate::id::{Epoch, Identity, LogIndex, NodeId, SessionId, ShardId, Term};
use crate::log_time::Stamp;
use crate::ring::Ring;

/// What one command came to.
pub type Outcome = Result<Vec<Effect>, Rejection>;

/// The founder's number: the log begins with the entry that makes it the only voter.
pub const FOUNDER: NodeId = NodeId(0);

impl Authority {
    /// Applies the entry at `position`, proposed with `stamp`. Entries come in the order of the log.
    ///
    /// # Errors
    ///
    /// A [`Rejection`] says why the command changed nothing. It is as much a part of the log's meaning as an effect: every
    /// node rejects the same entries.
    pub fn apply(&mut self, position: Position, stamp: Stamp, command: Command) -> Outcome {
        self.enter(position, stamp)?;
        self.dispatch(position, command, &mut Nothing)
    }

    /// Applies an entry of several commands, in their order and each on its own: one that is rejected does not stop the next. As many
    /// outcomes as commands.
    ///
    /// One new node at most can be admitted, for an entry has one index to number it by. `agreed` is the host's state, which hears of
    /// fences and removals in the step that makes them.
    pub fn apply_all(
        &mut self,
        position: Position,
        stamp: Stamp,
        commands: Vec<Command>,
        agreed: &mut dyn Agreed,
    ) -> Vec<Outcome> {
        if let Err(rejection) = self.enter(position, stamp) {
            return commands.into_iter().map(|_| Err(rejection.clone())).collect();
        }
        commands.into_iter().map(|command| self.dispatch(position, command, agreed)).collect()
    }

    fn enter(&mut self, position: Position, stamp: Stamp) -> Result<(), Rejection> {
        if self.applied.is_some_and(|applied| position.index <= applied) {
            return Err(Rejection::Repeated { index: position.index });
        }
        self.applied = Some(position.index);
        if stamp.term == position.term {
            self.log_time = self.log_time.max(stamp.time);
        }
        Ok(())
    }

    fn dispatch(&mut self, position: Position, command: Command, agreed: &mut dyn Agreed) -> Outcome {
        if let Command::Host(bytes) = &command {
            let answer = agreed.apply(self.at(position), bytes);
            return Ok(vec![Effect::Host(answer.into())]);
        }
        let effects = self.obey(position, command)?;
        for effect in &effects {
            match *effect {
                Effect::Fenced { session, .. } => agreed.fenced(self.at(position), session),
                Effect::Removed { node } => agreed.removed(self.at(position), node),
                _ => {}
            }
        }
        Ok(effects)
    }

    fn at(&self, position: Position) -> At<'_> {
        At { position, time: self.log_time, authority: self }
    }

    fn obey(&mut self, position: Position, command: Command) -> Outcome {
        match command {
            Command::Found { identity, address } => self.found(identity, address),
            Command::Admit { identity, address } => self.admit(position.index, identity, address),
            Command::Register { node, session } => self.register(position.index, node, session),
            Command::Fence { session, term } => {
                decided_here(position, term)?;
                self.fence(session)
            }
            Command::ChangeRing { epoch, members, term } => {
                decided_here(position, term)?;
                self.change_ring(epoch, members.into_iter().collect())
            }
            Command::Renounce { shard, session, epoch, importer } => {
                self.renounce(shard, session, epoch, importer)
            }
            Command::Claim { shard, session, epoch, basis } => self.claim(shard, session, epoch, basis),
            Command::CloseChange { epoch, term } => {
                decided_here(position, term)?;
                self.close_change(epoch)
            }
            Command::Remove { node } => self.remove(node),
            Command::Keyring(step) => {
                let live = self.live_nodes();
                Arc::make_mut(&mut self.keyring).apply(step, &live)?;
                Ok(vec![Effect::KeyringChanged])
            }
            // Dispatched to the host's state.
            Command::Host(_) => Ok(Vec::new()),
        }
    }

    fn found(&mut self, identity: Identity, address: String) -> Outcome {
        let first = self.nodes.is_empty() && self.removed.is_empty();
        let repeated = self.nodes.get(&FOUNDER).is_some_and(|member| member.identity == identity);
        if !first && !repeated {
            return Err(Rejection::Founded);
        }
        self.admit(LogIndex(FOUNDER.0), identity, address)
    }

    fn admit(&mut self, index: LogIndex, identity: Identity, address: String) -> Outcome {
        if address.is_empty() || address.len() > ADDRESS_MAX {
            return Err(Rejection::BadAddress { length: address.len() });
        }
        if let Some(node) = self.removed_as(identity) {
            return Err(Rejection::RemovedIdentity { node });
        }
        let known = self.node_of(identity);
        let neighbour =
            self.nodes.iter().find(|&(&node, member)| member.address == address && known != Some(node));
        if let Some((&node, _)) = neighbour {
            return Err(Rejection::AddressTaken { address, node });
        }
        if known.is_none() && self.nodes.len() >= NODES_MAX {
            return Err(Rejection::Full);
        }
        // An entry of several commands has one index: it numbers one node.
        let number = NodeId(index.0);
        if known.is_none() && (self.nodes.contains_key(&number) || self.removed.contains_key(&number)) {
            return Err(Rejection::NumberGiven { index });
        }

        let node = known.unwrap_or(number);
        let session = self.nodes.get(&node).and_then(|member| member.session);
        Arc::make_mut(&mut self.nodes).insert(node, Member { identity, address, session });
        Ok(vec![Effect::Admitted { node }])
    }

    fn register(&mut self, index: LogIndex, node: NodeId, session: SessionId) -> Outcome {
        if !self.nodes.contains_key(&node) {
            return Err(Rejection::NoSuchNode { node });
        }
        if let Some(known) = self.sessions.get(&session) {
            let repeated = known.node == node && known.standing == Standing::Serving;
            return if repeated { Ok(Vec::new()) } else { Err(Rejection::SessionUsed { session }) };
        }

        let member = Arc::make_mut(&mut self.nodes).get_mut(&node);
        let older = member.and_then(|member| member.session.replace(session));
        let sessions = Arc::make_mut(&mut self.sessions);
        sessions.insert(session, Session { node, registered: index, standing: Standing::Serving });
        let mut effects = Vec::new();
        if let Some(older) = older.and_then(|id| Some((id, sessions.get_mut(&id)?))) {
            older.1.standing = Standing::Condemned;
            effects.push(Effect::Condemned { session: older.0 });
        }
        effects.push(Effect::Registered { node, session });
        Ok(effects)
    }

    fn fence(&mut self, session: SessionId) -> Outcome {
        let Some(Session { node, standing, .. }) = self.session(session) else {
            return Err(Rejection::NoSuchSession { session });
        };
        if standing == Standing::Fenced {
            return Err(Rejection::SessionOver { session });
        }

        if let Some(ended) = Arc::make_mut(&mut self.sessions).get_mut(&session) {
            ended.standing = Standing::Fenced;
        }
        if let Some(member) = Arc::make_mut(&mut self.nodes).get_mut(&node) {
            member.session = member.session.filter(|&newest| newest != session);
        }
        self.forget_ended(node);
        Ok(vec![Effect::Fenced { session, node }])
    }

    fn change_ring(&mut self, epoch: Epoch, members: BTreeSet<NodeId>) -> Outcome {
        if self.change_open {
            return Err(Rejection::ChangeOpen { epoch: self.epoch() });
        }
        if epoch != self.epoch().next() {
            return Err(Rejection::OtherEpoch { theirs: epoch, ours: self.epoch() });
        }
        if let Some(&node) = members.iter().find(|&node| !self.nodes.contains_key(node)) {
            return Err(Rejection::NoSuchNode { node });
        }
        if members.is_empty() || members == *self.ring.members() {
            return Err(Rejection::SameRing);
        }
        // A change may have been closed while an owner had no session that could take its shards, and have got one since. What was
        // renounced to that can be used in this epoch only, by nobody else, and neither of the two is over: it comes first.
        if let Some(shard) = self.moving().next() {
            return Err(Rejection::Moving { shard });
        }

        self.ring = Ring::new(epoch, members);
        self.change_open = true;
        Ok(vec![Effect::RingChanged { epoch }])
    }

    fn renounce(&mut self, shard: ShardId, session: SessionId, epoch: Epoch, importer: SessionId) -> Outcome {
        self.of_this_epoch(epoch)?;
        // Whoever claimed a shard as its owner in this very epoch has nothing to give back to itself: that is a late copy of the
        // renunciation that its claim rests on, and would take the shard from a session that serves it.
        let gives = |holder: SessionId, claimed: Epoch| {
            holder == session && (importer != session || claimed != epoch)
        };
        let held = matches!(
            self.holding(shard),
            Some(Holding::Held { session: holder, epoch: claimed, .. }) if gives(holder, claimed)
        );
        if !held {
            return Err(Rejection::NotHolder { shard, session });
        }
        // A condemned holder may still hand over in good order: what it seals it cannot answer for.
        if self.is_fenced(session) {
            return Err(Rejection::SessionOver { session });
        }
        self.owns(shard, importer)?;

        Arc::make_mut(&mut self.holdings)
            .insert(shard, Holding::Renounced { from: session, epoch, importer });
        Ok(vec![Effect::Renounced { shard, importer }])
    }

    fn claim(&mut self, shard: ShardId, session: SessionId, epoch: Epoch, basis: Basis) -> Outcome {
        self.of_this_epoch(epoch)?;
        self.owns(shard, session)?;
        if !self.may_start(shard, session, basis) {
            return Err(Rejection::NotYours { shard });
        }

        let held = Holding::Held { session, epoch, basis };
        let last = Arc::make_mut(&mut self.holdings).insert(shard, held);
        for ended in last.iter().flat_map(Holding::sessions) {
            if let Some(Session { node, .. }) = self.session(ended) {
                self.forget_ended(node);
            }
        }
        Ok(vec![Effect::Claimed { shard, session, basis }])
    }

    fn close_change(&mut self, epoch: Epoch) -> Outcome {
        self.of_this_epoch(epoch)?;
        if !self.change_open {
            return Err(Rejection::NoChangeOpen);
        }
        let moving = self.moving().next();
        if let Some(shard) = moving {
            return Err(Rejection::Moving { shard });
        }

        self.change_open = false;
        Ok(vec![Effect::ChangeClosed { epoch }])
    }

    fn remove(&mut self, node: NodeId) -> Outcome {
        let Some(member) = self.nodes.get(&node) else { return Err(Rejection::NoSuchNode { node }) };
        let lives = self.unfenced().any(|(_, session)| session.node == node);
        if lives || self.ring.members().contains(&node) {
            return Err(Rejection::InService { node });
        }

        let removed = Arc::make_mut(&mut self.removed);
        removed.insert(node, member.identity);
        let forgotten = if removed.len() > REMOVED_MAX { removed.pop_first() } else { None };
        Arc::make_mut(&mut self.nodes).remove(&node);
        self.forget_ended(node);
        if let Some((oldest, _)) = forgotten {
            self.forget_ended(oldest);
        }
        Arc::make_mut(&mut self.keyring).forget(node);
        Ok(vec![Effect::Removed { node }])
    }

    fn of_this_epoch(&self, epoch: Epoch) -> Result<(), Rejection> {
        if epoch == self.epoch() {
            return Ok(());
        }
        Err(Rejection::OtherEpoch { theirs: epoch, ours: self.epoch() })
    }

    /// `session` lives and its node is the owner of `shard` in the ring.
    fn owns(&self, shard: ShardId, session: SessionId) -> Result<(), Rejection> {
        let known = self.session(session).ok_or(Rejection::NoSuchSession { session })?;
        if known.standing > Standing::Serving {
            return Err(Rejection::SessionOver { session });
        }
        if self.ring.owner(shard) != Some(known.node) {
            return Err(Rejection::NotOwner { shard, session });
        }
        Ok(())
    }

    /// Forgets the oldest ended sessions of `node` that no shard names, beyond what a member is remembered by.
    fn forget_ended(&mut self, node: NodeId) {
        let keep = match node {
            node if self.nodes.contains_key(&node) => ENDED_MAX,
            node if self.removed.contains_key(&node) => ENDED_REMOVED_MAX,
            _ => 0,
        };
        let mut ended: Vec<(LogIndex, SessionId)> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.node == node && session.standing == Standing::Fenced)
            .map(|(&id, session)| (session.registered, id))
            .collect();
        if ended.len() <= keep {
            return;
        }
        let named: BTreeSet<SessionId> = self.holdings.values().flat_map(Holding::sessions).collect();
        ended.retain(|(_, id)| !named.contains(id));
        ended.sort_unstable();
        let sessions = Arc::make_mut(&mut self.sessions);
        for (_, id) in &ended[..ended.len().saturating_sub(keep)] {
            sessions.remove(id);
        }
    }
}

impl Holding {
    fn sessions(&self) -> impl Iterator<Item = SessionId> + use<> {
        let (first, second) = match *self {
            Self::Held { session, .. } => (session, None),
            Self::Renounced { from, importer, .. } => (from, Some(importer)),
        };
        [Some(first), second].into_iter().flatten()
    }
}

/// A decision dies with the leadership that made it: what it rested on may have changed since.
fn decided_here(position: Position, decided: Term) -> Result<(), Rejection> {
    if decided == position.term {
        return Ok(());
    }
    Err(Rejection::OtherTerm { decided, committed: position.term })
}
