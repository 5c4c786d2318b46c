//! What runs on a host: a member of the cluster as production starts it, and its gateway's load.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tollgate::alert;
use tollgate::control::Control;
use tollgate::limit::{Decision, Moment, Options, Request, ReservationId, Resolved, Span, Verdict};
use tollgate::node::agreement::{Agreement, Source};
use tollgate::node::escrow::drawing;
use tollgate::node::membership::Membership;
use tollgate::node::{
    Audit, Instants, Node, Reach, Snapshot, Tenants, Tenure as ByTenure, Versions, closing,
};
use tollgate_cluster::authority::{Basis, Holding};
use tollgate_cluster::id::{SessionId, ShardId};
use tollgate_cluster::lease::Timing;
use tollgate_cluster::member::{Member, MemberOptions};
use tollgate_cluster::outside::{Entropy, Outside};
use tollgate_cluster::raft::RaftOptions;
use tollgate_cluster::secret::{Secret, Secrets};
use tollgate_cluster::shards::Shards;
use tollgate_cluster::time::{Moment as Lease, RHO, Span as ClusterSpan};

use super::budgets::{self, Watch, Witness};
use super::carrier::Troubled;
use super::clock::true_nanos;
use super::edits;
use super::history::{Event, Limit, Tenure, Told};
use super::load;
use super::pass;
use super::turmoil_world::{SeededEntropy, TurmoilNetwork};
use super::world::{Phase, World};

/// Where every host listens for its peers.
pub const PORT: u16 = 7700;

/// How often a host looks at what it is told, and says how it is.
const LOOK: Duration = Duration::from_millis(50);

/// How many looks lie between two full reports.
const REPORT: u64 = 10;

/// What every caller asks for.
pub const MODEL: &str = "model";

/// The name of a tenant in the policy.
pub fn tenant_name(tenant: usize) -> String {
    format!("tenant-{tenant}")
}

/// Which tenant has that name.
fn tenant_of(name: &str) -> usize {
    name.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).expect("a name of the policy")
}

/// The policy in which every tenant has this limit.
pub fn policy_text(world: &World, limit: Limit) -> String {
    let bucket = format!("tokens_per_minute: {}, burst_tokens: {}", limit.per_minute, limit.burst);
    let tenants: Vec<String> = (0..world.plan.tenants)
        // Every other one is also held to what it has in flight.
        .map(|tenant| {
            let (tier, budget) = (["free", "capped"][tenant % 2], budgets::in_policy(&world.plan, tenant));
            let (name, hash) = (tenant_name(tenant), format!("sha256:{tenant:064x}"));
            format!(
                "{{ id: {name}, tier: {tier}{budget}, keys: [ {{ label: production, hash: '{hash}' }} ] }}"
            )
        })
        .collect();
    let (pools, models) = match world.plan.pool {
        // The guard is half of the ceiling, and no minute gives back what it did not use.
        Some(Limit { burst, per_minute }) => (
            format!(
                "main: {{ provider: p, guard: 0.5, reserve: 0, burst_tokens: {burst}, refund_credit: none, \
                 ceiling: {{ tokens_per_minute: {} }} }}",
                2 * per_minute
            ),
            format!("{MODEL}: {{ provider: p, pool: main, default_output_tokens: 1 }}"),
        ),
        None => (String::new(), String::new()),
    };
    format!(
        "version: 1\nproviders: {{ p: {{ dialect: openai, base_url: 'http://127.0.0.1:1' }} }}\npools: {{ {pools} }}\nmodels: {{ {models} }}\n\
         tiers: {{ free: {{ {bucket} }}, capped: {{ {bucket}, max_inflight: 40 }} }}\ntenants: [ {} ]\n",
        tenants.join(", ")
    )
}

/// Before anything is agreed on.
fn snapshot(world: &World) -> Snapshot {
    let text = policy_text(world, world.plan.limit);
    let policy = tollgate::policy::parse(&text, "the simulation's policy")
        .unwrap_or_else(|problems| panic!("{problems}"));
    let versions = Versions { all: 0, policy: 0 };
    Snapshot::nothing().succeeded_by(
        versions,
        Arc::new(policy),
        tollgate::node::Beside::default(),
        Moment::default(),
    )
}

/// Tells the history of every decision that is made on a host.
struct Ear {
    world: Arc<World>,
    host: usize,
    life: u64,
    shards: std::sync::Weak<Shards<Tenants>>,
}

impl Ear {
    fn lives(&self) -> bool {
        self.world.hosts[self.host].life.load(Ordering::Relaxed) == self.life
    }

    /// Nothing, if the process is gone.
    fn tenure(&self, by: ByTenure) -> Option<Tenure> {
        if !self.lives() {
            return None;
        }
        let facts = self.shards.upgrade().and_then(|shards| shards.facts());
        let imported = facts.is_some_and(|facts| {
            matches!(facts.authority.holding(by.shard), Some(Holding::Held { basis: Basis::Import, .. }))
        });
        let (shard, epoch, session) = (by.shard.number(), by.epoch.0, by.session.0);
        Some(Tenure { shard, epoch, session, host: self.host, imported })
    }
}

impl Ear {
    /// What was taken from purses for a request.
    fn paid(&self, at: u64, request: &Request<'_>, decision: &Decision) {
        let Some(paid) = decision.paid.as_ref().filter(|paid| !paid.budgets.is_empty()) else { return };
        let (id, bills) = (request.id.0, budgets::bills(paid));
        self.world.push(Event::Budget(budgets::Told::Paid { at, id, bills }));
    }

    /// The instants in true time of the reading that was decided by, and of the last one: it was made to see whether the lease still ran.
    fn instants(&self, decided: Moment) -> (u64, u64) {
        let clock = &self.world.hosts[self.host].clock;
        let (at, stood) = (clock.true_of(Lease::from_nanos(decided.as_nanos())), clock.last_read());
        assert!(at <= stood, "decided by an instant that no clock has shown");
        (at, stood)
    }
}

impl Audit for Ear {
    fn decided(&self, by: ByTenure, at: Instants, request: &Request<'_>, decision: &Decision) {
        let Some(by) = self.tenure(by) else { return };
        let (at, stood) = self.instants(at.read);
        self.paid(at, request, decision);
        self.world.push(Event::Decided {
            at,
            stood,
            by,
            id: request.id.0,
            tenant: tenant_of(request.tenant),
            cost: request.need.total,
            admitted: decision.verdict == Verdict::Admitted,
        });
    }

    fn ended(&self, by: ByTenure, at: Moment, id: ReservationId, tenant: &str, resolved: &Resolved) {
        let Some(by) = self.tenure(by) else { return };
        let told = match *resolved {
            Resolved::Now { refunded, overage } | Resolved::Late { refunded, overage } => {
                Told::Trued { refunded, overage }
            }
            Resolved::Already => Told::Already,
            Resolved::Unknown => Told::Unknown,
        };
        let ((at, stood), tenant) = (self.instants(at), tenant_of(tenant));
        self.world.push(Event::Told { at, stood, by, id: id.0, tenant, told });
    }

    fn decision_forfeited(&self, session: SessionId, at: Moment, request: &Request<'_>, decision: &Decision) {
        if !self.lives() || decision.verdict != Verdict::Admitted {
            return;
        }
        let ((at, _), tenant) = (self.instants(at), tenant_of(request.tenant));
        let (id, session, cost) = (request.id.0, session.0, request.need.total);
        self.paid(at, request, decision);
        self.world.push(Event::Debited { at, id, session, tenant, cost });
        self.world.count("decisions forfeited", 1);
    }

    fn started_cold(&self, shard: ShardId) {
        if self.lives() {
            let at = self.world.hosts[self.host].clock.true_now();
            self.world.push(Event::StartedCold { at, shard: shard.number() });
        }
    }

    fn end_forfeited(&self, at: Moment, tenant: &str, resolved: &Resolved) {
        if let Resolved::Now { refunded, .. } | Resolved::Late { refunded, .. } = *resolved
            && self.lives()
        {
            let ((at, _), tenant) = (self.instants(at), tenant_of(tenant));
            self.world.push(Event::Refunded { at, tenant, refunded });
        }
    }
}

/// A running process of a host.
struct Process {
    world: Arc<World>,
    host: usize,
    node: Arc<Node>,
    member: Arc<Member<Tenants>>,
    agreement: Arc<Agreement>,
    life: u64,
    watch: Watch,
    /// Nobody asks any more.
    asked: CancellationToken,
    cancel: CancellationToken,
}

/// One life of host `number`.
pub async fn live(world: Arc<World>, number: usize) {
    let host = &world.hosts[number];
    let life = host.life.load(Ordering::Relaxed);
    let chance = world.seed.wrapping_mul(1_000_003) + number as u64 * 1009 + life;
    let outside = Outside {
        network: Arc::new(TurmoilNetwork),
        clock: host.clock.clone(),
        entropy: Arc::new(SeededEntropy::new(chance)),
        folder: Arc::new(host.folder()),
    };
    let options = MemberOptions {
        peer: ([0, 0, 0, 0], PORT).into(),
        advertise: Some(format!("{}:{PORT}", host.name)),
        join: world.hosts.iter().map(|host| format!("{}:{PORT}", host.name)).collect(),
        founders: host.founders(),
        timing: Timing { lease: ClusterSpan::from_nanos(world.plan.lease.as_nanos() as u64), drift: RHO },
        voter_grace: ClusterSpan::from_millis(8_000),
        raft: RaftOptions { snapshot_every: 100, keep: 50, ..RaftOptions::default() },
    };
    let limiter = Options {
        reservation_deadline: Span::from_millis(world.plan.deadline.as_millis() as u64),
        orphan_grace: Span::from_millis(world.plan.grace.as_millis() as u64),
        ..Options::default()
    };
    let secrets = Secrets::new(Secret::new([7; 32]).expect("a secret of 32 bytes"));
    let snapshot = snapshot(&world);
    // As `Membership::start` does, with a carrier that makes trouble.
    let tenants = Tenants::new(limiter, snapshot.rules.clone(), host.clock.clone());
    let shards = Arc::new(Shards::new(tenants, host.clock.clone()));
    let ear = Ear { world: world.clone(), host: number, life, shards: Arc::downgrade(&shards) };
    shards.host().audited_by(Arc::new(ear));
    let member = match Member::start(options, outside, Arc::new(secrets), shards.clone()).await {
        Ok(member) => Arc::new(member),
        Err(problem) => {
            world.push(Event::Fault {
                at: true_nanos(),
                what: format!("{} does not start: {problem}", host.name),
            });
            world.count("failed starts", 1);
            return;
        }
    };
    if world.plan.budget.is_some() {
        budgets::tell_kept(&world, number, life, &member.shelf());
    }
    let carrier = Troubled {
        world: world.clone(),
        host: number,
        member: member.clone(),
        chance: Arc::new(SeededEntropy::new(chance + 500)),
    };
    let node = Node::member(snapshot, shards, host.clock.clone(), Arc::new(carrier), Reach::default());
    let node = Arc::new(node);
    let membership = Membership::of(member.clone());
    let process = Process {
        world: world.clone(),
        host: number,
        agreement: Arc::new(Agreement::new(node.clone(), Source::Member(membership))),
        node,
        member,
        life,
        watch: Watch::default(),
        asked: CancellationToken::new(),
        cancel: CancellationToken::new(),
    };
    process.run(chance).await;
}

impl Process {
    async fn run(self, chance: u64) {
        tokio::spawn({
            let (node, cancel) = (self.node.clone(), self.cancel.clone());
            async move { node.tell_owners(cancel).await }
        });
        let plan = self.world.plan;
        let escrow = plan.pool.is_some() || plan.budget.is_some();
        if plan.tight.is_some() || escrow {
            let follower = edits::Follower { node: self.node.clone(), member: self.member.clone() };
            tokio::spawn(follower.run(SeededEntropy::new(chance + 700), self.cancel.clone()));
            let (world, member) = (self.world.clone(), self.member.clone());
            let editor = edits::Editor { world, host: self.host, member };
            let (chance, cancel) = (SeededEntropy::new(chance + 800), self.cancel.clone());
            match plan.tight.filter(|_| self.host == 0) {
                Some(tight) => _ = tokio::spawn(editor.run(tight, chance, cancel)),
                None if escrow => _ = tokio::spawn(editor.seed(chance, cancel)),
                None => {}
            }
        }
        if plan.budget.is_some() {
            self.serve_budgets(chance);
        }
        if escrow {
            let (node, log, cancel) = (self.node.clone(), self.member.clone(), self.cancel.clone());
            tokio::spawn(async move { drawing::draw(node, log, cancel).await });
        }
        for caller in 0..self.world.plan.callers {
            let chance = SeededEntropy::new(chance + 1000 + caller as u64);
            tokio::spawn(load::call(
                self.world.clone(),
                (self.host, self.life),
                self.node.clone(),
                chance,
                self.asked.clone(),
            ));
        }
        let mut looks = tokio::time::interval(LOOK);
        let member = self.member.clone();
        let mut failed = pin!(member.failed());
        for look in 0_u64.. {
            tokio::select! {
                biased;
                why = &mut failed => return self.end(&why).await,
                _ = looks.tick() => {}
            }
            if look % 5 == 0 {
                self.node.tick();
            }
            self.report(look % REPORT == 0 || self.world.phase() == Phase::Drain);
            if let Some(order) = self.world.hosts[self.host].take_order() {
                return self.leave(order.for_good).await;
            }
            if look % REPORT == 0 {
                self.remove_lost().await;
            }
        }
    }

    /// What a gateway runs beside the drawing for budgets.
    fn serve_budgets(&self, chance: u64) {
        let (agreement, cancel) = (self.agreement.clone(), self.cancel.clone());
        tokio::spawn(closing::run(agreement.clone(), cancel.clone()));
        tokio::spawn(alert::run(agreement.clone(), cancel.clone()));
        let chance = SeededEntropy::new(chance + 900);
        let witness = Witness { world: self.world.clone(), host: self.host, agreement, chance };
        let (node, shelf) = (self.node.clone(), self.member.shelf());
        tokio::spawn(async move { node.reports().run(shelf, &witness, cancel).await });
    }

    /// Nothing more is written here.
    fn over(&self) {
        let over = budgets::Told::Over { at: true_nanos(), host: self.host, life: self.life };
        self.world.push(Event::Budget(over));
        self.asked.cancel();
        self.cancel.cancel();
    }

    /// As an operator at the leader does: refused until the node's session is over and the ring is without it.
    async fn remove_lost(&self) {
        let facts = self.member.shards().facts();
        let Some(facts) = facts.filter(|_| self.world.hosts[self.host].status().leads) else { return };
        let lost: Vec<_> = self.world.to_be_removed().iter().copied().collect();
        for node in lost {
            let gone = !facts.authority.nodes().contains_key(&node);
            if gone || self.member.remove(node).await.is_ok() {
                self.world.count("removed", 1);
                self.world.to_be_removed().remove(&node);
            }
        }
    }

    async fn leave(self, for_good: bool) {
        let handed_over = self.member.hand_over(Duration::from_secs(5), for_good).await;
        self.world.count(if handed_over { "handed over" } else { "stopped without an heir" }, 1);
        // In the order of a gateway that stops.
        self.asked.cancel();
        let ended = async {
            while self.node.metrics.inflight.get() > 0 {
                pass(Duration::from_millis(10)).await;
            }
        };
        let _ = timeout(Duration::from_secs(1), ended).await;
        self.node.told(Duration::from_secs(1)).await;
        self.node.reported(Duration::from_secs(1)).await;
        if self.world.plan.pool.is_some() || self.world.plan.budget.is_some() {
            self.node.return_purses(Duration::from_secs(1)).await;
        }
        if !handed_over {
            self.member.keep_for_next_life().await;
        }
        self.over();
        self.report(true);
        let stopped = timeout(Duration::from_secs(5), self.member.shut_down()).await;
        if stopped.is_err() {
            self.world.count("shut down slowly", 1);
        }
        let mut status = self.world.hosts[self.host].status();
        (status.stopped, status.forgotten) = (true, handed_over && for_good);
        status.open.clear();
    }

    /// It cannot go on. Whoever was removed is not missed; of anybody else it is a fault.
    async fn end(self, why: &str) {
        let host = &self.world.hosts[self.host];
        self.world.push(Event::Fault { at: true_nanos(), what: format!("{} ends: {why}", host.name) });
        self.over();
        self.report(true);
        let _ = timeout(Duration::from_secs(5), self.member.shut_down()).await;
        let mut status = host.status();
        status.open.clear();
        status.removed = why.contains("was removed");
        if status.removed {
            self.world.count("told that they were removed", 1);
        }
    }

    fn report(&self, whole: bool) {
        let host = &self.world.hosts[self.host];
        let facts = self.member.shards().facts();
        let cluster = facts.as_ref().map(|facts| facts.authority.cluster().0);
        let mut status = host.status();
        status.node = self.member.node();
        status.waiting = self.member.waiting_for().borrow().clone();
        status.leads = self.member.raft_stats().is_some_and(|stats| stats.leader == self.member.node());
        status.voters = self.member.raft_voters();
        if cluster.is_some() && status.cluster != cluster {
            status.cluster = cluster;
            let (at, cluster) = (host.clock.true_now(), cluster.unwrap_or_default());
            self.world.push(Event::Cluster { at, host: self.host, cluster });
        }
        if whole {
            status.counters = self.counters();
        }
        if self.world.phase() == Phase::Drain {
            status.open = self.open();
        }
        if whole && self.world.plan.budget.is_some() {
            let control = self.agreement.control();
            self.watch.look(&self.world, self.host, control.budgets());
            status.budgets = Some(control.budgets().clone());
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let counters = self.member.counters();
        let again = |why: &str| self.node.metrics.asked_again.with(vec![("reason", why.to_owned())]).get();
        let mut all: BTreeMap<String, u64> = [
            ("renewals", counters.renewals),
            ("renewals failed", counters.renewals_failed),
            ("fences", counters.fences),
            ("cold starts", counters.cold_starts),
            ("imports and first openings", counters.openings),
            ("exports", counters.exports),
            ("sessions", counters.sessions),
            ("decisions", self.member.shards().host().decisions()),
            ("ends retried", self.node.metrics.outbox_retries.get()),
            ("expired", self.node.metrics.reservations_expired.get()),
            ("grants waited for", self.node.metrics.grant_waits.get()),
        ]
        .into_iter()
        .map(|(what, count)| (what.to_owned(), count))
        .collect();
        let control = self.member.agreed().and_then(|agreed| agreed.downcast::<Control>().cloned());
        let view = control.and_then(|control| control.pools().view("main"));
        let written_off =
            view.map_or(0, |view| view.levels.iter().map(|level| level.books.written_off).sum());
        all.insert("purses written off".to_owned(), u64::try_from(written_off).unwrap_or(u64::MAX));
        for why in [
            "stale_grant",
            "no_lease",
            "no_answer",
            "former_holder",
            "sealed",
            "other_epoch",
            "other_session",
        ] {
            all.insert(format!("again: {why}"), again(why));
        }
        all
    }

    /// What has not ended, in words.
    fn open(&self) -> Vec<String> {
        let mut open = Vec::new();
        let held = self.node.owners().held().open;
        let gateway = self.member.shards().host().open().len();
        let guards = self.node.metrics.inflight.get();
        for (what, count) in
            [("open at its owner", held), ("open at its gateway", gateway), ("guards", guards as usize)]
        {
            if count > 0 {
                open.push(format!("{count} {what}"));
            }
        }
        for tenant in 0..self.world.plan.tenants {
            let view = self.node.owners().tenant(&tenant_name(tenant).as_str().into());
            let inflight =
                view.map_or(0, |view| view.scopes.iter().map(|scope| scope.inflight).max().unwrap_or(0));
            if inflight > 0 {
                open.push(format!("{inflight} slots of tenant {tenant}"));
            }
        }
        let page = self.node.render_metrics();
        // What is not told yet, of both kinds, and what is to be closed.
        let waits = |line: &&str| {
            let maps = ["outbox", "unreported_ends", "closing"];
            maps.iter().any(|map| line.contains(&format!("map=\"{map}\""))) && !line.ends_with(" 0")
        };
        open.extend(page.lines().filter(waits).map(|line| format!("waiting: {line}")));
        open
    }
}

/// A number below `bound`.
pub fn below(chance: &SeededEntropy, bound: u64) -> u64 {
    (chance as &dyn Entropy).below(bound)
}

/// Waits a moment.
pub async fn a_moment(chance: &SeededEntropy, millis: std::ops::Range<u64>) {
    pass(Duration::from_millis(millis.start + below(chance, millis.end - millis.start))).await;
}
