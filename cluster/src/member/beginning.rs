//! From an empty folder to a number in a cluster: found one, join one, or resume.
//!
//! Seeds are asked again and again, for ever, with jitter; what stands in the way is said in words whenever it changes. What decides is
//! [`membership::bootstrap`](crate::membership::bootstrap), a function of what can be reached now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission::admit;
use super::message::{Join, Joined as Answered, kind};
use super::notes::{self, Membership};
use super::serve::Serving;
use super::session::Core;
use super::{Joined, MemberOptions, Shared, StartError, engine, keys, sealed};
use crate::gossip::{FounderCard, Gossip};
use crate::id::{ClusterId, Identity, NodeId};
use crate::membership::{Bootstrap, Founder, Past, bootstrap};
use crate::outside::Outside;
use crate::peer::{CallError, ConnectError, Hello, Options as PeerOptions, Peer, Peers};
use crate::raft::{FoundError, Raft, RpcKind, Transport, TransportError};
use crate::secret::Secrets;
use crate::shards::{Host, Shards};
use crate::store::Store;
use crate::time::Span;
use crate::wire;

/// The shortest and the longest wait before seeds are asked again.
const WAIT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// How long a seed may take to say who it is.
const HELLO: Duration = Duration::from_secs(1);

/// How long an admission may take.
const ADMISSION: Duration = Duration::from_secs(3);

/// The most addresses that seeds may stand for.
const SEEDS_MAX: usize = 256;

/// Opens the folder, listens, and begins to gossip.
pub(super) async fn prepare<H: Host>(
    options: MemberOptions,
    outside: Outside,
    secrets: Arc<Secrets>,
    shards: Arc<Shards<H>>,
) -> Result<Arc<Shared<H>>, StartError> {
    let store = Store::open(&*outside.folder).map_err(|problem| StartError::Folder(problem.to_string()))?;
    let identity = notes::identity(&store, &*outside.entropy).await?;
    let generation = notes::generation(&store, outside.clock.wall_millis()).await?;
    keys::load(&store, &secrets)?;
    let membership = notes::membership(&store)?;
    let mut core = Core::new(&outside, options.timing);
    core.inherited = sealed::inherit(&store)?;
    let shared = Arc::new(Shared {
        options,
        shards,
        store,
        identity,
        address: OnceLock::new(),
        peers: OnceLock::new(),
        gossip: OnceLock::new(),
        joined: OnceLock::new(),
        core: Mutex::new(core),
        disk_rounds: AtomicU64::new(0),
        wake: Notify::new(),
        changed: watch::Sender::new(0),
        waiting: watch::Sender::new(Some("waiting to be a member".to_owned())),
        failed: watch::Sender::new(None),
        stopping: CancellationToken::new(),
        background: TaskTracker::new(),
        secrets: secrets.clone(),
        outside: outside.clone(),
    });
    listen(&shared, membership, generation).await?;
    Ok(shared)
}

async fn listen<H: Host>(
    shared: &Arc<Shared<H>>,
    membership: Option<Membership>,
    generation: u64,
) -> Result<(), StartError> {
    let at = shared.options.peer;
    let refused = |problem: std::io::Error| StartError::Listen { address: at, problem: problem.to_string() };
    let hello = Hello {
        wire: crate::peer::WIRE,
        cluster: membership.map(|membership| membership.cluster),
        identity: shared.identity,
        node: membership.map(|membership| membership.node),
        session: None,
        address: shared.options.advertise.clone().unwrap_or_default(),
    };
    let peers = Peers::start(
        shared.outside.clone(),
        shared.secrets.clone(),
        hello,
        at,
        Arc::new(Serving { shared: Arc::downgrade(shared) }),
        PeerOptions::default(),
    )
    .await
    .map_err(refused)?;
    let local = peers.local_addr();
    let address = shared.options.advertise.clone().unwrap_or_else(|| local.to_string());
    let _ = shared.address.set(address.clone());
    let _ = shared.peers.set(peers);
    let advertised = resolve(shared, &address).await.first().copied().unwrap_or(local);
    let seeds = seeds(shared).await;
    let card = engine::card(shared, None);
    let gossip =
        Gossip::start(&shared.outside, shared.secrets.clone(), card, generation, local, advertised, seeds)
            .await
            .map_err(refused)?;
    let _ = shared.gossip.set(gossip);
    engine::introduce(shared);
    Ok(())
}

/// Becomes a member, then does what members do, until told to stop.
pub(super) async fn run<H: Host>(shared: Arc<Shared<H>>) {
    let membership = tokio::select! {
        () = shared.stopping.cancelled() => return,
        membership = become_member(&shared) => membership,
    };
    let opened = match membership {
        Ok(membership) => open(&shared, membership).await,
        Err(problem) => Err(problem),
    };
    match opened {
        Ok(()) => {
            if std::panic::AssertUnwindSafe(engine::run(shared.clone())).catch_unwind().await.is_err() {
                // Its lease runs out, and what it held starts elsewhere; but nobody would know why it admits nothing.
                shared.give_up("a part of this node has failed, see its log: start it again".to_owned());
            }
        }
        Err(problem) => shared.give_up(format!("this node cannot be a member: {problem}")),
    }
}

async fn open<H: Host>(shared: &Arc<Shared<H>>, membership: Membership) -> Result<(), StartError> {
    let transport = Arc::new(OverPeers { shared: Arc::downgrade(shared) });
    let raft = Raft::open(
        membership.node,
        membership.cluster,
        shared.store.clone(),
        shared.outside.clock.clone(),
        transport,
        shared.shards.host().agreed(),
        shared.options.raft.clone(),
    )
    .await
    .map_err(|problem| StartError::Raft(problem.to_string()))?;
    if membership.founder {
        let address = shared.address.get().cloned().unwrap_or_default();
        match raft.found(&address).await {
            Ok(()) => tracing::info!(cluster = %membership.cluster, "this node has founded a cluster"),
            Err(FoundError::Founded) => {}
            Err(problem) => return Err(StartError::Raft(problem.to_string())),
        }
    }
    let _ = shared.joined.set(Joined { node: membership.node, raft: Arc::new(raft) });
    engine::introduce(shared);
    shared.spawn(stay_in(shared.clone(), membership));
    Ok(())
}

/// Asks to be let in again whenever this node's place may be lost. Whoever was started at another address is reached by nobody until the
/// log has that; and whoever is removed while it cannot hear of it would wait for a lease for ever. While there is no leader everybody that
/// can be found is asked, and those connections carry the election: voters that all come back elsewhere elect one.
async fn stay_in<H: Host>(shared: Arc<Shared<H>>, membership: Membership) {
    let (mut wait, mut said) = (WAIT.0, String::new());
    loop {
        rest(&shared, &mut wait).await;
        let own = shared.address.get().cloned().unwrap_or_default();
        let authority = shared.authority();
        let noted = authority.and_then(|log| Some(log.nodes().get(&membership.node)?.address.clone()));
        let moved = noted.is_none_or(|noted| noted != own);
        if shared.has_its_place(moved) {
            continue;
        }
        let join = Join { identity: shared.identity, address: own };
        if matches!(admit(&shared, join, true).await, Answered::Admitted { .. }) {
            continue;
        }
        let (reached, _) = reach(&shared).await;
        match ask_in(&shared, membership.cluster, &reached).await {
            Ok(_) => {}
            Err(NotIn::Removed(node)) => return shared.give_up(removed(&shared, node)),
            Err(NotIn::Yet(why)) => {
                if moved && why != said {
                    tracing::warn!(
                        why,
                        "this node's address is not what its cluster knows, and could not be changed yet"
                    );
                    said = why;
                }
            }
        }
    }
}

impl<H: Host> Shared<H> {
    /// Whether there is nothing to ask for: the cluster knows where it is and gives it leases, or it is on its way out and hears from the
    /// leader when it is gone.
    fn has_its_place(&self, moved: bool) -> bool {
        let now = self.outside.clock.now();
        let core = self.core();
        core.departing || (!moved && core.holder.left(now) > Span::default())
    }
}

/// Why an empty folder or one that has belonged to the cluster is not in it.
enum NotIn {
    /// It was a member under this number, and never will be again.
    Removed(NodeId),
    /// For now, and why.
    Yet(String),
}

fn removed<H: Host>(shared: &Shared<H>, node: NodeId) -> String {
    format!(
        "this node was removed from its cluster, where it was number {node}, and the data folder {} can never be used there again: start it \
         with an empty one to join anew",
        shared.store.folder()
    )
}

async fn become_member<H: Host>(shared: &Arc<Shared<H>>) -> Result<Membership, StartError> {
    if let Some(membership) = notes::membership(&shared.store)? {
        tracing::info!(cluster = %membership.cluster, node = %membership.node, "resuming as a member");
        return Ok(membership);
    }
    if let Some(cluster) = notes::alone(&shared.store)? {
        return found_from_alone(shared, cluster).await;
    }
    let mut own = Founder {
        past: Past::Fresh,
        expects: shared.options.founders,
        proposal: notes::proposal(&shared.store)?,
    };
    let mut wait = WAIT.0;
    loop {
        tell(shared, &own);
        let (reached, problems) = reach(shared).await;
        let fellows = fellows(shared, &reached);
        match bootstrap(shared.identity, &own, &fellows) {
            Bootstrap::Resume(_) => unreachable!("a folder that has joined was resumed above"),
            Bootstrap::Join(cluster) => match ask_in(shared, cluster, &reached).await {
                Ok(node) => {
                    let membership = Membership { cluster, node, founder: false };
                    notes::join(&shared.store, membership).await?;
                    tracing::info!(%cluster, %node, "this node is admitted");
                    return Ok(membership);
                }
                Err(NotIn::Removed(node)) => return Err(StartError::Refused(removed(shared, node))),
                Err(NotIn::Yet(why)) => shared.say_waiting(Some(format!("waiting to be admitted: {why}"))),
            },
            Bootstrap::Propose(founders) => {
                notes::propose(&shared.store, &founders).await?;
                own.proposal = Some(founders);
                continue;
            }
            Bootstrap::Initialise(_) => {
                let cluster = ClusterId(shared.outside.entropy.number());
                let membership = Membership { cluster, node: NodeId(0), founder: true };
                notes::join(&shared.store, membership).await?;
                return Ok(membership);
            }
            Bootstrap::Wait(waiting) => {
                let words = match problems.first() {
                    Some(problem) => format!("{waiting}; {problem}"),
                    None => waiting.to_string(),
                };
                shared.say_waiting(Some(words));
            }
        }
        rest(shared, &mut wait).await;
    }
}

/// A node that was its own cluster founds one with what it has agreed on: its log goes on, and others may join.
async fn found_from_alone<H: Host>(
    shared: &Arc<Shared<H>>,
    cluster: ClusterId,
) -> Result<Membership, StartError> {
    if shared.options.founders != Some(1) {
        return Err(StartError::Refused(format!(
            "the data folder {} is of a node that was its own cluster, and holds what that agreed on: start it with --bootstrap to let \
             others join it, or with an empty folder to join them",
            shared.store.folder()
        )));
    }
    let membership = Membership { cluster, node: NodeId(0), founder: true };
    notes::join(&shared.store, membership).await?;
    tracing::info!(%cluster, "a node that was its own cluster founds one");
    Ok(membership)
}

/// Waits for news from gossip, or a while that grows, with jitter.
async fn rest<H: Host>(shared: &Shared<H>, wait: &mut Duration) {
    let entropy = &*shared.outside.entropy;
    let most = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(2);
    let jittered = Duration::from_millis(most / 2 + entropy.below(most / 2 + 1));
    *wait = (*wait * 2).min(WAIT.1);
    let Some(gossip) = shared.gossip.get() else { return tokio::time::sleep(jittered).await };
    let mut seen = gossip.seen();
    seen.mark_unchanged();
    tokio::select! {
        biased;
        _ = seen.changed() => {}
        () = tokio::time::sleep(jittered) => {}
    }
}

fn tell<H: Host>(shared: &Shared<H>, own: &Founder) {
    let founder = own.expects.map(|expects| FounderCard { expects, proposal: own.proposal.clone() });
    if let Some(gossip) = shared.gossip.get() {
        gossip.tell(engine::card(shared, founder));
    }
}

/// Who says what at the seeds' addresses, and what stands in the way at those that cannot be reached.
async fn reach<H: Host>(shared: &Arc<Shared<H>>) -> (BTreeMap<Identity, Hello>, BTreeSet<String>) {
    let seeds = seeds(shared).await;
    if let Some(gossip) = shared.gossip.get() {
        gossip.reseed(seeds.clone());
    }
    let (mut reached, mut problems) = (BTreeMap::new(), BTreeSet::new());
    let Some(peers) = shared.peers.get() else { return (reached, problems) };
    let own = peers.local_addr();
    let asked = seeds.iter().filter(|seed| **seed != own).map(|seed| {
        let peers = peers.clone();
        let seed = seed.to_string();
        async move { (peers.hello(&seed, HELLO).await, seed) }
    });
    for (answer, seed) in futures_util::future::join_all(asked).await {
        match answer {
            Ok(hello) if hello.identity != shared.identity => {
                reached.insert(hello.identity, hello);
            }
            Ok(_) => {}
            Err(ConnectError::Itself { .. }) => {}
            Err(problem) => {
                problems.insert(format!("seed {seed}: {problem}"));
            }
        }
    }
    (reached, problems)
}

/// Every node that can be reached, as a founder or a member.
fn fellows<H: Host>(shared: &Shared<H>, reached: &BTreeMap<Identity, Hello>) -> BTreeMap<Identity, Founder> {
    let past = |cluster: Option<ClusterId>| cluster.map_or(Past::Fresh, Past::Joined);
    let mut fellows = BTreeMap::new();
    // What a seed says itself counts; of one that has no cluster, gossip tells what it proposes.
    for (&identity, hello) in reached.iter().filter(|(_, hello)| hello.cluster.is_some()) {
        fellows.insert(identity, Founder { past: past(hello.cluster), expects: None, proposal: None });
    }
    let seen = shared.gossip.get().map(|gossip| gossip.seen().borrow().clone()).unwrap_or_default();
    for (&identity, sighting) in
        seen.iter().filter(|(identity, sighting)| sighting.alive && **identity != shared.identity)
    {
        let founder = sighting.card.founder.clone();
        fellows.entry(identity).or_insert(Founder {
            past: past(sighting.card.cluster),
            expects: founder.as_ref().map(|founder| founder.expects),
            proposal: founder.and_then(|founder| founder.proposal),
        });
    }
    fellows
}

/// Asks members of `cluster` to be admitted, one after another.
async fn ask_in<H: Host>(
    shared: &Arc<Shared<H>>,
    cluster: ClusterId,
    reached: &BTreeMap<Identity, Hello>,
) -> Result<NodeId, NotIn> {
    let peers = shared.peers.get().ok_or_else(|| NotIn::Yet("it does not listen yet".to_owned()))?;
    let seen = shared.gossip.get().map(|gossip| gossip.seen().borrow().clone()).unwrap_or_default();
    let of_gossip = seen.values().filter(|sighting| sighting.alive && sighting.card.cluster == Some(cluster));
    let of_gossip = of_gossip.map(|sighting| (sighting.card.identity, sighting.card.address.clone()));
    let of_seeds = reached.values().filter(|hello| hello.cluster == Some(cluster));
    let members: BTreeMap<Identity, String> =
        of_seeds.map(|hello| (hello.identity, hello.address.clone())).chain(of_gossip).collect();
    let address = shared.address.get().cloned().unwrap_or_default();
    let join = wire::encode(&Join { identity: shared.identity, address });
    let mut why = "no member of the cluster answers".to_owned();
    for (identity, address) in members {
        let peer = Peer { address, identity: Some(identity) };
        match peers.call(&peer, kind::JOIN, join.clone(), ADMISSION).await {
            Ok(answer) => match wire::decode::<Answered>(&answer) {
                Ok(Answered::Admitted { cluster: admitted_to, node }) if admitted_to == cluster => {
                    return Ok(node);
                }
                Ok(Answered::Admitted { .. }) => why = "the asked node belongs to another cluster".to_owned(),
                Ok(Answered::Refused(refusal)) => return Err(NotIn::Yet(refusal)),
                Ok(Answered::Removed { node }) => return Err(NotIn::Removed(node)),
                Ok(Answered::Later(reason)) => why = reason,
                Err(problem) => why = problem.to_string(),
            },
            Err(problem) => why = problem.to_string(),
        }
    }
    Err(NotIn::Yet(why))
}

/// Every address that the seeds stand for now.
async fn seeds<H: Host>(shared: &Shared<H>) -> Vec<SocketAddr> {
    let mut seeds = BTreeSet::new();
    for name in &shared.options.join {
        seeds.extend(resolve(shared, name).await);
    }
    seeds.into_iter().take(SEEDS_MAX).collect()
}

async fn resolve<H: Host>(shared: &Shared<H>, name: &str) -> Vec<SocketAddr> {
    shared.outside.network.resolve(name).await.unwrap_or_else(|problem| {
        tracing::debug!(name, %problem, "a seed's name does not resolve now");
        Vec::new()
    })
}

/// Raft's calls, over the connections of peers.
struct OverPeers<H: Host> {
    shared: std::sync::Weak<Shared<H>>,
}

#[async_trait]
impl<H: Host> Transport for OverPeers<H> {
    async fn call(
        &self,
        node: NodeId,
        address: &str,
        kind: RpcKind,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<Vec<u8>, TransportError> {
        let gone = TransportError::Unreachable;
        let shared = self.shared.upgrade().ok_or(gone)?;
        let peers = shared.peers.get().ok_or(gone)?;
        let authority = shared.authority();
        let nodes = authority.as_ref().map(|authority| authority.nodes());
        let identity = nodes.and_then(|nodes| Some(nodes.get(&node)?.identity));
        // One that the log does not name may be named by an entry that is not applied here yet, or be removed while its vote is still to
        // be taken: it is asked where Raft has it. Not where another is by now, who would be connected to anew with each call.
        let is_anothers = |address| nodes.is_some_and(|nodes| nodes.values().any(|at| at.address == address));
        if identity.is_none() && is_anothers(address) {
            return Err(gone);
        }
        let peer = Peer { address: address.to_owned(), identity };
        match peers.call(&peer, kind::RAFT + u8::from(kind), body, within).await {
            // It is not a member itself yet.
            Ok(answer) if answer.is_empty() => Err(TransportError::Unreachable),
            Ok(answer) => Ok(answer.to_vec()),
            Err(CallError::Unreachable(_) | CallError::Refused(_)) => Err(TransportError::Unreachable),
            Err(CallError::Unknown(_)) => Err(TransportError::Unknown),
        }
    }
}
