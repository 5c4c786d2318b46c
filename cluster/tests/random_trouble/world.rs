//! The world around the processes: true time, clocks that drift, a network that loses, repeats and reorders, a log that a
//! majority commits, and whatever goes wrong. One seed, one course of events.

use std::collections::BTreeMap;

use tollgate_cluster::authority::{Authority, Command, Position};
use tollgate_cluster::handoff::Start;
use tollgate_cluster::id::{ClusterId, Epoch, Identity, LogIndex, NodeId, SessionId, ShardId, Term, Version};
use tollgate_cluster::lease::{Grantor, Timing};
use tollgate_cluster::log_time::{LogTime, Stamp};
use tollgate_cluster::time::Moment;
use tollgate_cluster::view::View;

use crate::process::{Message, Process};
use crate::random::Random;

const MILLI: u64 = 1_000_000;
const STEP: u64 = 20 * MILLI;
const ELECTION: u64 = 1_000 * MILLI;
const SHARDS: u16 = 8;

/// How one run is set up.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    pub seed: u64,
    pub nodes: usize,
    /// How long things go wrong.
    pub troubled: u64,
    /// What the holders believe a lease to be; the grantors go by [`Timing::DEFAULT`].
    pub held: Timing,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What broke a law, in words.
    pub broken: Vec<String>,
    pub answers: u64,
    pub imports: u64,
    pub cold_starts: u64,
    pub elections: u64,
    pub forfeited: u64,
    /// After the world healed, how long it took until every shard was answered for, in milliseconds.
    pub recovered: Option<u64>,
}

struct Host {
    process: Process,
    /// The clock's rate in millionths of true time, and its reading at the beginning.
    rate: u64,
    origin: u64,
    paused_until: u64,
    /// Which side of the partition it is on.
    side: u8,
}

pub struct World {
    course: Course,
    random: Random,
    now: u64,
    hosts: Vec<Host>,
    log: Vec<(Position, Stamp, Command)>,
    /// What the whole log means.
    committed: Authority,
    term: Term,
    leader: usize,
    leaderless: u64,
    /// By arrival and a number that keeps those of one instant apart.
    network: BTreeMap<(u64, u64), (usize, Message)>,
    sent: u64,
    sessions: u128,
    shards: Vec<ShardId>,
    tenures: u64,
    /// Per shard: the newest tenure opened, and first and last answer of each tenure (session and epoch of the claim).
    newest: BTreeMap<ShardId, u64>,
    spans: BTreeMap<(ShardId, SessionId, Epoch), (u64, u64)>,
    healed: bool,
    answered: BTreeMap<ShardId, u64>,
    outcome: Outcome,
}

impl World {
    pub fn new(course: Course) -> Self {
        let mut random = Random::new(course.seed);
        let hosts = (0..course.nodes)
            .map(|at| Host {
                process: Process::new(NodeId(at as u64), ClusterId(1)),
                // Within a factor of 1.005 of true time, either way.
                rate: 995_025 + random.below(9_975),
                origin: random.below(1 << 40),
                paused_until: 0,
                side: 0,
            })
            .collect();
        let mut world = Self {
            course,
            random,
            now: 0,
            hosts,
            log: Vec::new(),
            committed: Authority::new(ClusterId(1)),
            term: Term { number: 1, leader: NodeId(0) },
            leader: 0,
            leaderless: 0,
            network: BTreeMap::new(),
            sent: 0,
            sessions: 0,
            shards: ShardId::all().step_by(usize::from(1024 / SHARDS)).collect(),
            tenures: 0,
            newest: BTreeMap::new(),
            spans: BTreeMap::new(),
            healed: false,
            answered: BTreeMap::new(),
            outcome: Outcome::default(),
        };
        for at in 0..course.nodes {
            let command = Command::Admit { identity: Identity(at as u128), address: format!("node-{at}:1") };
            world.commit(command);
        }
        world.lead(0);
        world
    }

    /// Runs the troubled time, heals, and runs on until every shard is answered for or `patience` milliseconds are over.
    pub fn run(mut self, patience: u64) -> Outcome {
        while self.now < self.course.troubled {
            self.trouble();
            self.step();
        }
        self.heal();
        while self.hosts.iter().any(|host| host.paused_until > self.now) {
            self.step();
        }
        let healed = self.now;
        self.answered.clear();
        while self.now < healed + patience * MILLI {
            self.step();
            let all = self.shards.iter().all(|shard| self.answered.contains_key(shard));
            if all && self.outcome.recovered.is_none() {
                self.outcome.recovered = Some((self.now - healed) / MILLI);
            }
        }
        self.judge();
        self.outcome
    }

    fn step(&mut self) {
        self.now += STEP;
        self.elect();
        self.deliver();
        for at in 0..self.hosts.len() {
            if self.hosts[at].paused_until <= self.now {
                self.turn(at);
            }
        }
    }

    fn turn(&mut self, at: usize) {
        self.catch_up(at);
        self.sessions += 1;
        let fresh = SessionId(self.sessions);
        let now = self.clock(at, self.now);
        self.hosts[at].process.live(fresh, self.course.held, &self.shards);
        for (shard, start) in self.hosts[at].process.observe(now) {
            self.opened(at, shard, start);
        }
        let due = self.random.chance(300);
        for (to, message) in self.hosts[at].process.wants(now, due) {
            let to = to.map_or(self.hosts[at].process.leader, |node| node.0 as usize);
            self.send(at, to, message);
        }
        self.govern(at, now);
        self.answer(at);
    }

    /// The log reaches a node late, and only while it can talk to the leader.
    fn catch_up(&mut self, at: usize) {
        if at != self.leader && (!self.connected(at, self.leader) || self.random.chance(400)) {
            return;
        }
        let host = &mut self.hosts[at];
        for (position, stamp, command) in &self.log[host.process.applied..] {
            let _ = host.process.authority.apply(*position, *stamp, command.clone());
        }
        host.process.applied = self.log.len();
        host.process.leader = self.leader;
        host.process.grantor.take_if(|(term, _)| *term != self.term);
    }

    fn govern(&mut self, at: usize, now: Moment) {
        for command in self.hosts[at].process.decides(now) {
            self.propose(at, command);
        }
        let Some((_, grantor)) = &mut self.hosts[at].process.grantor else { return };
        // The round reaches the others at once, its outcome comes back over the network.
        if let Some(round) = grantor.begin_confirmation(now) {
            if self.leads(at) {
                self.send(at, at, Message::Confirmed(round));
            } else if let Some((_, grantor)) = &mut self.hosts[at].process.grantor {
                grantor.unconfirmed(round);
            }
        }
    }

    /// Every shard is asked for at every node; now and then the process is paused between the debit and the answer.
    fn answer(&mut self, at: usize) {
        let mut done = self.now;
        if self.random.chance(if self.healed { 0 } else { 4 }) {
            done += self.random.below(7_000) * MILLI;
        }
        let (first, second) = (self.clock(at, self.now), self.clock(at, done));
        let process = &self.hosts[at].process;
        let Some(life) = &process.life else { return };
        for (&shard, slot) in &life.slots {
            let view =
                View { authority: &process.authority, holder: &life.holder, slot, version: Version(0) };
            let epoch = process.authority.epoch();
            let Ok(permit) = view.may_answer(epoch, life.session, first) else { continue };
            if permit.redeem(second).is_err() {
                self.outcome.forfeited += 1;
                continue;
            }
            self.outcome.answers += 1;
            let tenure = slot.serving().expect("who may answer serves").epoch();
            let span = self.spans.entry((shard, life.session, tenure)).or_insert((done, done));
            *span = (span.0.min(done), span.1.max(done));
            if self.healed {
                self.answered.entry(shard).or_insert(done);
            }
        }
        self.hosts[at].paused_until = self.hosts[at].paused_until.max(done);
    }

    fn opened(&mut self, at: usize, shard: ShardId, start: Start<u64>) {
        let newest = self.newest.get(&shard).copied().unwrap_or(0);
        match start {
            Start::Imported(tenure) => {
                self.outcome.imports += 1;
                let known = self.session_lives(at);
                if known && tenure != newest {
                    self.outcome
                        .broken
                        .push(format!("shard {shard}: state of tenure {tenure} used after {newest}"));
                }
            }
            Start::Cold => self.outcome.cold_starts += 1,
            Start::First => {}
        }
        // Who is fenced and does not know it yet opens for nobody.
        if !self.session_lives(at) {
            return;
        }
        self.tenures += 1;
        self.newest.insert(shard, self.tenures);
        if let Some(life) = &mut self.hosts[at].process.life {
            life.tenures.insert(shard, self.tenures);
        }
    }

    /// By the committed log, not by what the node has applied of it.
    fn session_lives(&self, at: usize) -> bool {
        let session = self.hosts[at].process.life.as_ref().map(|life| life.session);
        session.is_some_and(|session| !self.committed.is_fenced(session))
    }

    fn deliver(&mut self) {
        let later = self.network.split_off(&(self.now + 1, 0));
        let arrived = std::mem::replace(&mut self.network, later);
        for ((due, number), (to, message)) in arrived {
            if self.hosts[to].paused_until > self.now {
                // It waits in the socket.
                self.network.insert((self.hosts[to].paused_until.max(due), number), (to, message));
                continue;
            }
            self.receive(to, message);
        }
    }

    fn receive(&mut self, at: usize, message: Message) {
        let now = self.clock(at, self.now);
        let process = &mut self.hosts[at].process;
        match message {
            Message::Renew(renewal) => {
                if let Some((_, grantor)) = &mut process.grantor {
                    grantor.arrive(renewal);
                }
            }
            Message::Reply(reply) => {
                if let Some(life) = &mut process.life {
                    let _ = life.holder.handle_reply(reply, now);
                }
            }
            Message::Export(export) => {
                if let Some(slot) = process.life.as_mut().and_then(|life| life.slots.get_mut(&export.shard)) {
                    let _ = slot.import(export, &process.authority, Version(0));
                }
            }
            Message::Propose(command) => self.propose(at, command),
            Message::Confirmed(round) => {
                let Some((term, grantor)) = &mut process.grantor else { return };
                let replies = grantor.confirmed(round, *term, now, &process.authority, Version(0));
                for reply in replies {
                    for to in 0..self.hosts.len() {
                        let life = self.hosts[to].process.life.as_ref();
                        if life.is_some_and(|life| life.session == reply.session) {
                            self.send(at, to, Message::Reply(reply));
                        }
                    }
                }
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        if !self.connected(from, to) || (!self.healed && self.random.chance(50)) {
            return;
        }
        for _ in 0..1 + u64::from(self.random.chance(50)) {
            self.sent += 1;
            let delay = if self.random.chance(20) { self.random.below(4_000) } else { self.random.below(50) };
            self.network.insert((self.now + delay * MILLI, self.sent), (to, message.clone()));
        }
    }

    /// Commits what a leader proposes while a majority follows it.
    fn propose(&mut self, at: usize, command: Command) {
        if self.leads(at) {
            self.commit(command);
            self.catch_up(at);
        }
    }

    fn commit(&mut self, command: Command) {
        let position = Position { index: LogIndex(self.log.len() as u64), term: self.term };
        let stamp = Stamp { term: self.term, time: LogTime(self.now) };
        let _ = self.committed.apply(position, stamp, command.clone());
        self.log.push((position, stamp, command));
    }

    fn elect(&mut self) {
        if self.leads(self.leader) {
            self.leaderless = 0;
            return;
        }
        self.leaderless += STEP;
        let first = self.random.below(self.hosts.len() as u64) as usize;
        let candidates = (0..self.hosts.len()).map(|at| (first + at) % self.hosts.len());
        if self.leaderless >= ELECTION
            && let Some(at) = candidates.into_iter().find(|&at| self.has_majority(at))
        {
            self.outcome.elections += 1;
            self.lead(at);
        }
    }

    fn lead(&mut self, at: usize) {
        self.leaderless = 0;
        self.leader = at;
        self.term = Term { number: self.term.number + 1, leader: NodeId(at as u64) };
        // Whoever is elected has every committed entry, and applies the first of its own term.
        self.catch_up(at);
        let now = self.clock(at, self.now);
        let process = &mut self.hosts[at].process;
        let grantor = Grantor::new(self.term, Timing::DEFAULT, now, &process.authority);
        process.grantor = Some((self.term, grantor));
    }

    fn connected(&self, one: usize, other: usize) -> bool {
        self.hosts[one].side == self.hosts[other].side
    }

    fn has_majority(&self, at: usize) -> bool {
        let follows = |host: &&Host| host.paused_until <= self.now && host.side == self.hosts[at].side;
        self.hosts[at].paused_until <= self.now
            && self.hosts.iter().filter(follows).count() * 2 > self.hosts.len()
    }

    /// Whether it can commit: one that was killed has forgotten that it led.
    fn leads(&self, at: usize) -> bool {
        at == self.leader && self.hosts[at].process.grantor.is_some() && self.has_majority(at)
    }

    fn clock(&self, at: usize, true_time: u64) -> Moment {
        let host = &self.hosts[at];
        let elapsed = u128::from(true_time) * u128::from(host.rate) / 1_000_000;
        Moment::from_nanos(host.origin + u64::try_from(elapsed).expect("a run is short"))
    }

    fn trouble(&mut self) {
        if !self.random.chance(15) {
            return;
        }
        let at = self.random.below(self.hosts.len() as u64) as usize;
        let length = self.random.below(8_000) * MILLI;
        match self.random.below(4) {
            // Who is paused between a debit and its answer stays so: the answer's time is already in the books.
            0 | 1 if self.hosts[at].paused_until > self.now => {}
            0 => self.hosts[at].paused_until = self.now + length,
            1 => {
                // Killed, and started again: nothing in memory, the log to be applied anew.
                let node = self.hosts[at].process.node;
                self.hosts[at].process = Process::new(node, ClusterId(1));
                self.hosts[at].paused_until = self.now + length;
            }
            2 => self.hosts[at].side = self.random.below(3) as u8,
            _ => self.hosts.iter_mut().for_each(|host| host.side = 0),
        }
    }

    fn heal(&mut self) {
        self.healed = true;
        self.hosts.iter_mut().for_each(|host| host.side = 0);
    }

    /// `one_owner`: no two tenures of a shard overlap in true time.
    fn judge(&mut self) {
        let spans: Vec<_> = self.spans.iter().map(|(&tenure, &span)| (tenure, span)).collect();
        for (at, ((shard, one, _), (begin, end))) in spans.iter().enumerate() {
            for ((_, other, _), (from, to)) in spans[at + 1..].iter().take_while(|((of, ..), _)| of == shard)
            {
                if from <= end && begin <= to {
                    self.outcome
                        .broken
                        .push(format!("shard {shard}: sessions {one} and {other} answer at one time"));
                }
            }
        }
    }
}
