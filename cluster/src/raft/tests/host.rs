//! A host that has something agreed on: a sum, and what it heard of.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cluster::{Cluster, until};
use crate::agreed::{Agreed, At};
use crate::authority::{Command, Effect};
use crate::id::{Identity, NodeId, SessionId, Term, Version};
use crate::log_time::LogTime;
use crate::raft::RaftOptions;
use crate::wire;

/// Adds up the bytes of its commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tally {
    sum: u64,
    commands: u64,
    fenced: Vec<(SessionId, u64)>,
    removed: Vec<NodeId>,
    time: LogTime,
}

impl Tally {
    pub(super) fn fresh() -> Arc<dyn Agreed> {
        Arc::new(Self::default())
    }
}

impl Agreed for Tally {
    fn apply(&mut self, at: At<'_>, command: &[u8]) -> Vec<u8> {
        assert!(at.time >= self.time && at.authority.applied() == Some(at.position.index));
        self.time = at.time;
        self.sum += command.iter().copied().map(u64::from).sum::<u64>();
        self.commands += 1;
        self.sum.to_le_bytes().into()
    }

    fn fenced(&mut self, at: At<'_>, session: SessionId) {
        assert!(at.authority.is_fenced(session), "it is told in the step that makes it so");
        self.fenced.push((session, self.sum));
    }

    fn removed(&mut self, at: At<'_>, node: NodeId) {
        assert!(!at.authority.nodes().contains_key(&node));
        self.removed.push(node);
    }

    fn version(&self) -> Version {
        Version(self.commands)
    }

    fn fork(&self) -> Arc<dyn Agreed> {
        Arc::new(self.clone())
    }

    fn written(&self) -> Vec<u8> {
        wire::encode(self)
    }

    fn restored(&self, bytes: &[u8]) -> Result<Arc<dyn Agreed>, String> {
        wire::decode::<Self>(bytes)
            .map(|read| Arc::new(read) as Arc<dyn Agreed>)
            .map_err(|why| why.to_string())
    }
}

fn add(byte: u8) -> Command {
    Command::Host([byte].as_slice().into())
}

fn tally(cluster: &Cluster, node: NodeId) -> Tally {
    let state = cluster.raft(node).applied().borrow().clone();
    state.agreed.downcast::<Tally>().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_command_of_the_host_is_answered_by_its_state_and_is_the_same_on_every_node() {
    let mut cluster = Cluster::of(3, 21).await;
    let outcomes = cluster.leader().await.propose(vec![add(2), add(5)]).await.unwrap();
    let answers: Vec<u64> = outcomes
        .iter()
        .map(|outcome| match &outcome.as_ref().unwrap()[..] {
            [Effect::Host(answer)] => u64::from_le_bytes(answer[..].try_into().unwrap()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answers, [2, 7], "in the order of the entry, one seeing what the other did");
    let leader = cluster.leader().await.me();
    cluster.restart(leader).await;
    cluster.propose(add(1)).await.unwrap().unwrap();
    cluster.agreed().await;
    let nodes: Vec<NodeId> = cluster.members.keys().copied().collect();
    for node in nodes {
        assert_eq!((tally(&cluster, node).sum, tally(&cluster, node).version()), (8, Version(3)), "{node}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_keeps_the_state_it_has_while_the_log_goes_on() {
    let cluster = Cluster::founded(22, RaftOptions::default()).await;
    cluster.propose(add(3)).await.unwrap().unwrap();
    let before = cluster.raft(NodeId(0)).applied().borrow().clone();
    cluster.propose(add(4)).await.unwrap().unwrap();
    assert_eq!(before.agreed.downcast::<Tally>().unwrap().sum, 3);
    assert_eq!(tally(&cluster, NodeId(0)).sum, 7);
}

#[tokio::test(start_paused = true)]
async fn the_host_hears_of_fences_and_removals_in_their_entry_and_in_its_order() {
    let cluster = Cluster::founded(23, RaftOptions::default()).await;
    let leader = cluster.leader().await;
    let term: Term = leader.leadership().borrow().leading.unwrap().term;
    let admit = Command::Admit { identity: Identity(77), address: "other:1".into() };
    let Ok(admitted) = cluster.propose(admit).await.unwrap() else { panic!() };
    let [Effect::Admitted { node }] = admitted[..] else { panic!("{admitted:?}") };
    let session = SessionId(9);
    let entry = vec![
        Command::Register { node, session },
        add(1),
        Command::Fence { session, term },
        add(1),
        Command::Remove { node },
        // Refused: nobody hears of it.
        Command::Fence { session: SessionId(10), term },
    ];
    let outcomes = leader.propose(entry).await.unwrap();
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 5, "{outcomes:?}");
    let heard = tally(&cluster, NodeId(0));
    assert_eq!((heard.fenced, heard.removed, heard.sum), (vec![(session, 1)], vec![node], 2));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_and_the_entries_after_it_are_what_the_whole_log_is() {
    let options = RaftOptions { snapshot_every: 20, keep: 2, ..RaftOptions::default() };
    let mut cluster = Cluster::founded(24, options).await;
    for byte in 0..60 {
        cluster.propose(add(byte)).await.unwrap().unwrap();
    }
    let founder = NodeId(0);
    until("the log to be cut", || cluster.raft(founder).stats().purged.filter(|&purged| purged > 20)).await;
    let joined = cluster.join().await;
    cluster.propose(add(60)).await.unwrap().unwrap();
    cluster.agreed().await;
    let whole = tally(&cluster, founder);
    assert_eq!(whole.sum, (0..=60).sum::<u64>());
    assert_eq!(tally(&cluster, joined), whole);
    cluster.restart(founder).await;
    let again = tokio::time::timeout(Duration::from_secs(30), cluster.leader()).await;
    assert!(again.is_ok());
    cluster.agreed().await;
    assert_eq!(tally(&cluster, founder), whole);
}
