//! What members live through.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::cluster::{CLUSTER, Cluster, address, passes, until};
use crate::authority::{Command, Rejection};
use crate::id::{ClusterId, Identity, NodeId, SessionId, Term};
use crate::outside::Clock as _;
use crate::raft::network::{Envelope, unversioned, versioned};
use crate::raft::{
    COMMANDS_MAX, ChangeError, ENTRY_MAX, FoundError, NotConfirmed, ProposeError, RaftOptions, RpcKind,
    Stopped,
};
use crate::time::Span;

fn session(at: u128) -> Command {
    Command::Register { node: NodeId(0), session: SessionId(at) }
}

#[tokio::test(start_paused = true)]
async fn one_node_founds_restarts_and_leads_again_only_in_a_new_term() {
    let mut cluster = Cluster::founded(1, RaftOptions::default()).await;
    let node = NodeId(0);
    assert!(matches!(cluster.raft(node).found(&address(node)).await, Err(FoundError::Founded)));
    let both = cluster.leader().await.propose(vec![session(1), session(1), session(2)]).await.unwrap();
    assert_eq!(both.iter().filter(|outcome| outcome.is_ok()).count(), 3);
    assert_eq!(cluster.leader().await.propose(Vec::new()).await, Ok(Vec::new()));
    let first = cluster.raft(node).leadership().borrow().leading.unwrap();
    cluster.raft(node).confirm().await.unwrap();
    let before = cluster.agreed().await;

    cluster.restart(node).await;
    // What it knew to be committed it has; the rest it gets by leading.
    assert_eq!(cluster.raft(node).leadership().borrow().leading, None);
    cluster.leader().await;
    let second = cluster.raft(node).leadership().borrow().leading.unwrap();
    assert!(second.term > first.term && second.since > first.since);
    assert_eq!(*cluster.agreed().await, *before);
    assert_eq!(
        cluster.propose(session(1)).await.unwrap(),
        Err(Rejection::SessionUsed { session: SessionId(1) })
    );
    let raft = cluster.raft(node);
    let stats = raft.stats();
    assert_eq!((stats.leader, stats.applied), (Some(node), stats.last_log));

    raft.shut_down().await;
    until("it to lead no more", || raft.leadership().borrow().leader.is_none().then_some(())).await;
    assert!(raft.propose(vec![session(3)]).await.is_err() && raft.confirm().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_leader_dies_another_goes_on_and_log_time_never_goes_back() {
    for seed in 0..5 {
        let mut cluster = Cluster::of(3, seed).await;
        let mut last = cluster.agreed().await.log_time();
        let mut terms: BTreeSet<Term> = BTreeSet::new();
        for round in 0..4 {
            cluster.fill(3).await;
            let leader = cluster.leader().await;
            terms.insert(leader.leadership().borrow().leading.unwrap().term);
            let acknowledged = leader.applied().borrow().authority.clone();
            let folder = cluster.crash(leader.me());
            let died = cluster.clock.now();
            let outcome = cluster.propose(session(1_000 + round)).await.unwrap();
            // Leases outlive a change of leaders: it takes less than one of 3 s.
            let took = cluster.clock.now().since(died);
            assert!(took < Span::from_millis(2_500), "seed {seed}, round {round}: {took:?}");
            assert!(outcome.is_ok());
            cluster.start(leader.me(), folder).await;
            let agreed = cluster.agreed().await;
            assert!(agreed.log_time() >= last && agreed.applied() > acknowledged.applied());
            last = agreed.log_time();
        }
        assert_eq!(terms.len(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_is_the_same_story() {
    let mut stories = Vec::new();
    for seed in [3, 3, 4] {
        let mut cluster = Cluster::of(3, seed).await;
        let mut story = Vec::new();
        for _ in 0..4 {
            let leader = cluster.leader().await;
            cluster.restart(leader.me()).await;
            cluster.fill(1).await;
            let leading = cluster.leader().await.leadership().borrow().leading.unwrap();
            story.push((leading, cluster.agreed().await.log_time()));
        }
        stories.push(story);
    }
    assert_eq!(stories[0], stories[1]);
    assert_ne!(stories[0], stories[2]);
}

#[tokio::test(start_paused = true)]
async fn a_proposal_has_a_bound() {
    let cluster = Cluster::founded(15, RaftOptions::default()).await;
    let leader = cluster.leader().await;
    let many = vec![session(1); COMMANDS_MAX + 1];
    assert!(matches!(leader.propose(many).await, Err(ProposeError::TooLarge { .. })));
    let long = Command::Admit { identity: Identity(9), address: "x".repeat(ENTRY_MAX) };
    assert!(matches!(leader.propose(vec![long]).await, Err(ProposeError::TooLarge { .. })));
    assert_eq!(leader.propose(vec![session(1); COMMANDS_MAX]).await.unwrap().len(), COMMANDS_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_cut_off_confirms_nothing_and_acknowledges_nothing() {
    let cluster = Cluster::of(3, 7).await;
    let old = cluster.leader().await;
    old.confirm().await.unwrap();
    cluster.cut([old.me()]);
    // It does not know yet; whoever asks it learns nothing from it.
    assert!(old.leadership().borrow().leading.is_some());
    assert_eq!(old.confirm().await, Err(NotConfirmed::NoMajority));
    let lost = old.propose(vec![session(66)]).await;
    assert!(matches!(lost, Err(ProposeError::Unknown | ProposeError::NotLeader(_))), "{lost:?}");

    cluster.propose(session(77)).await.unwrap().unwrap();
    cluster.leader().await.confirm().await.unwrap();
    assert!(old.confirm().await.is_err());
    assert!(old.applied().borrow().authority.session(SessionId(77)).is_none());

    cluster.cut([]);
    let agreed = cluster.agreed().await;
    assert!(agreed.session(SessionId(77)).is_some());
    until("the old leader to follow", || old.leadership().borrow().leading.is_none().then_some(())).await;
    let elsewhere = old.confirm().await;
    assert!(
        matches!(elsewhere, Err(NotConfirmed::NotLeader(Some(node))) if node != old.me()),
        "{elsewhere:?}"
    );
    assert!(matches!(old.propose(vec![session(88)]).await, Err(ProposeError::NotLeader(Some(_)))));
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_was_cut_off_disturbs_nobody_when_it_is_back() {
    let cluster = Cluster::of(3, 8).await;
    let leader = cluster.leader().await;
    let follower = cluster.members.keys().copied().find(|&node| node != leader.me()).unwrap();
    let before = leader.leadership().borrow().leading;
    cluster.cut([follower]);
    passes(Duration::from_secs(20)).await;
    cluster.cut([]);
    cluster.propose(session(1)).await.unwrap().unwrap();
    cluster.agreed().await;
    assert_eq!(leader.leadership().borrow().leading, before, "asked before it voted, it was told no");
}

#[tokio::test(start_paused = true)]
async fn a_newcomer_gets_a_snapshot_where_the_log_is_cut_and_has_the_same_state() {
    let options = RaftOptions { snapshot_every: 50, keep: 5, ..RaftOptions::default() };
    let mut cluster = Cluster::founded(9, options).await;
    cluster.fill(120).await;
    let founder = NodeId(0);
    until("the log to be cut", || cluster.raft(founder).stats().purged.filter(|&purged| purged > 60)).await;
    let node = cluster.join().await;
    assert!(cluster.net.snapshots.load(Ordering::Relaxed) > 0);
    cluster.agreed().await;
    assert!(cluster.raft(node).stats().snapshot.is_some());

    // And both come back from a snapshot and the entries after it.
    cluster.fill(7).await;
    let before = cluster.agreed().await;
    cluster.restart(node).await;
    cluster.restart(founder).await;
    cluster.leader().await;
    assert_eq!(*cluster.agreed().await, *before);
    assert!(cluster.raft(node).members().learners.contains(&node));
}

#[tokio::test(start_paused = true)]
async fn voters_grow_and_shrink_and_the_leadership_is_handed_over() {
    let mut cluster = Cluster::founded(10, RaftOptions::default()).await;
    for _ in 0..4 {
        cluster.join().await;
    }
    let all: Vec<NodeId> = cluster.members.keys().copied().collect();
    for size in [2, 3, 5, 3] {
        let voters: BTreeSet<NodeId> = all[..size].iter().copied().collect();
        let leader = cluster.leader().await;
        leader.set_voters(voters.clone()).await.unwrap();
        cluster.fill(2).await;
        let members = leader.members();
        assert_eq!((members.voters.len(), members.learners.len(), members.changing), (size, 5 - size, false));
        assert_eq!(members.voters, voters);
    }
    let leader = cluster.leader().await;
    assert_eq!(leader.set_voters([NodeId(999)].into()).await, Err(ChangeError::NotMember(NodeId(999))));
    assert_eq!(leader.set_voters(BTreeSet::new()).await, Err(ChangeError::NoVoters));
    let progress = leader.progress();
    assert_eq!(progress.len(), 5);
    assert!(
        progress.values().all(|at| at.heard.is_some_and(|ago| ago < Duration::from_secs(1))),
        "{progress:?}"
    );

    leader.transfer_to(all[1]).await.unwrap();
    let second = cluster.leader().await;
    assert_eq!(second.me(), all[1]);
    assert!(matches!(leader.transfer_to(all[2]).await, Err(ChangeError::NotLeader(_))));
    cluster.fill(1).await;
    // Whoever led before goes, with its vote.
    second.remove(all[0]).await.unwrap();
    second.remove(all[4]).await.unwrap();
    second.remove(all[4]).await.unwrap();
    assert_eq!(second.members().addresses.len(), 3);
    cluster.crash(all[0]);
    cluster.crash(all[4]);
    cluster.fill(1).await;
    cluster.agreed().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_at_a_new_address_is_found_there() {
    let cluster = Cluster::of(3, 11).await;
    let leader = cluster.leader().await;
    let other = cluster.members.keys().copied().find(|&node| node != leader.me()).unwrap();
    cluster.moves(other, "elsewhere:1");
    leader.add_learner(other, "elsewhere:1").await.unwrap();
    cluster.propose(session(500)).await.unwrap().unwrap();
    cluster.agreed().await;
    assert_eq!(leader.members().addresses[&other], "elsewhere:1");
    assert_eq!(leader.members().voters.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_disk_fails_acknowledges_nothing_and_says_so() {
    let cluster = Cluster::of(3, 12).await;
    let leader = cluster.leader().await;
    let member = &cluster.members[&leader.me()];
    member.folder.fail(Some(io::ErrorKind::StorageFull));
    let refused = leader.propose(vec![session(5)]).await;
    assert!(
        matches!(refused, Err(ProposeError::Stopped(Stopped::Disk(_)) | ProposeError::Unknown)),
        "{refused:?}"
    );
    assert!(member.store.broken().borrow().is_some());
    until("it to lead no more", || leader.leadership().borrow().leading.is_none().then_some(())).await;
    let after = leader.propose(vec![session(6)]).await;
    assert!(after.is_err() && leader.confirm().await.is_err());
    let others = cluster.members.values().filter(|member| member.raft.me() != leader.me());
    let next = until("another leader", || {
        others
            .clone()
            .find(|member| member.raft.leadership().borrow().leading.is_some())
            .map(|member| member.raft.clone())
    })
    .await;
    next.propose(vec![session(7)]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_message_for_somebody_else_is_refused_and_no_bytes_are_trusted() {
    let cluster = Cluster::founded(13, RaftOptions::default()).await;
    let raft = cluster.raft(NodeId(0));
    let said = |answer: &[u8]| unversioned::<Result<(), String>>(answer).unwrap().unwrap_err();
    for envelope in
        [Envelope { cluster: ClusterId(1), to: NodeId(0) }, Envelope { cluster: CLUSTER, to: NodeId(1) }]
    {
        let body = versioned(&(
            envelope,
            openraft::raft::VoteRequest::<crate::raft::types::Types>::new(openraft::Vote::new(9, 1), None),
        ));
        assert!(
            said(&raft.handle(RpcKind::Vote.into(), &body).await).contains("another life of this address")
        );
    }
    for kind in 0..=255 {
        for body in [&[][..], &[2, 0], &[1], &[1; 100], &[255; 40]] {
            assert!(!said(&raft.handle(kind, body).await).is_empty());
        }
    }
    assert_eq!(raft.stats().term, raft.leadership().borrow().term.unwrap().number);
}

#[tokio::test(start_paused = true)]
async fn a_store_of_another_cluster_is_not_used() {
    let options = RaftOptions { snapshot_every: 5, keep: 1, ..RaftOptions::default() };
    let mut cluster = Cluster::founded(14, options).await;
    cluster.fill(20).await;
    until("a snapshot", || cluster.raft(NodeId(0)).stats().snapshot).await;
    let store = cluster.members[&NodeId(0)].store.clone();
    let clock = std::sync::Arc::new(super::TokioClock::new().await);
    let error =
        super::Machine::open(NodeId(0), ClusterId(1), store, clock, super::Tally::fresh()).err().unwrap();
    assert!(error.to_string().starts_with("a snapshot of cluster 0000"), "{error}");
}
