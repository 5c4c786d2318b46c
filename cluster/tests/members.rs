//! Members in one process over loopback, with a toy for a host: each shard is a number that grows.

#![allow(clippy::unwrap_used, reason = "an answer of another shape fails the test, as it should")]

#[path = "members/toy.rs"]
mod toy;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tollgate_cluster::id::{Identity, NodeId, ShardId, Version};
use tollgate_cluster::member::kind;
use tollgate_cluster::peer::{Answer, Caller, Hello, Options, Peer, Peers, Serve, WIRE};
use toy::{LONG, Node, SHORT, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_join_share_the_shards_and_hand_them_on() {
    let first = Node::founds(LONG).await;
    first.until_admits().await;
    eventually("one serves all", || first.member.shards().count().serving == 1024).await;
    // Something is counted in every shard.
    for shard in ShardId::all() {
        assert_eq!(first.add(shard).await, Some(1), "{shard}");
    }
    let second = Node::joins(&first).await;
    let third = Node::joins(&first).await;
    let all = [&first, &second, &third];
    for node in all {
        node.until_admits().await;
    }
    eventually("all share", || {
        let shares: Vec<usize> = all.iter().map(|node| node.member.shards().count().serving).collect();
        shares.iter().sum::<usize>() == 1024 && shares.iter().all(|share| *share > 100)
    })
    .await;
    // Whoever is asked, it is the same number, and no count was lost on the way.
    for shard in ShardId::all().step_by(16) {
        assert_eq!(second.add(shard).await, Some(2), "{shard}");
        assert_eq!(third.add(shard).await, Some(3), "{shard}");
    }

    assert!(second.member.hand_over(Duration::from_secs(20), false).await);
    second.stop().await;
    let rest = [&first, &third];
    eventually("two share", || {
        rest.iter().map(|node| node.member.shards().count().serving).sum::<usize>() == 1024
    })
    .await;
    for shard in ShardId::all().step_by(16) {
        assert_eq!(first.add(shard).await, Some(4), "{shard}");
    }
    assert!(rest.iter().all(|node| node.member.counters().cold_starts == 0));
    third.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_gone_is_fenced_and_its_shards_start_cold() {
    let first = Node::founds(SHORT).await;
    first.until_admits().await;
    let second = Node::joins(&first).await;
    let third = Node::joins(&first).await;
    let all = [&first, &second, &third];
    eventually("all share", || {
        let shares: Vec<usize> = all.iter().map(|node| node.member.shards().count().serving).collect();
        shares.iter().sum::<usize>() == 1024 && shares.iter().all(|share| *share > 100)
    })
    .await;
    // The leader's host hears of each node's wall clock, and of no others.
    let clocks = |node: &Node| node.member.shards().host().wall_clocks.lock().unwrap().clone();
    eventually("three clocks are known", || clocks(&first).len() == 3).await;
    let ours = toy::wall_millis();
    assert!(clocks(&first).iter().all(|clock| clock.abs_diff(ours) < 60_000), "{:?}", clocks(&first));
    let mine = second.member.shards().count().serving;
    eventually("three vote", || all.iter().all(|node| node.voters() == 3)).await;
    third.stop().await;
    let rest = [&first, &second];
    eventually("the clock of who is gone is not known", || clocks(&first).len() == 2).await;
    eventually("two share", || {
        rest.iter().map(|node| node.member.shards().count().serving).sum::<usize>() == 1024
    })
    .await;
    assert!(second.member.shards().count().serving > mine);
    assert!(rest.iter().map(|node| node.member.counters().cold_starts).sum::<u64>() > 100);
    eventually("everybody has announced", || {
        rest.iter().all(|node| node.member.shards().count().incomplete == 0)
    })
    .await;
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_alone_keeps_its_shards_over_a_stop_and_loses_them_in_a_crash() {
    let first = Node::founds(SHORT).await;
    first.until_admits().await;
    eventually("one serves all", || first.member.shards().count().serving == 1024).await;
    let shard = ShardId::new(7).unwrap();
    assert_eq!(first.add(shard).await, Some(1));
    assert!(!first.member.hand_over(Duration::from_secs(5), false).await, "there is no heir");
    first.member.keep_for_next_life().await;
    let folder = first.stop().await;
    let again = Node::resumes(folder, SHORT).await;
    again.until_admits().await;
    eventually("it serves all again", || again.member.shards().count().serving == 1024).await;
    assert_eq!(again.add(shard).await, Some(2), "the count is kept");
    assert_eq!(again.member.counters().cold_starts, 0);
    // What was kept is used once: after a crash there is nothing.
    let folder = again.stop().await;
    let third = Node::resumes(folder, SHORT).await;
    eventually("it serves all, cold", || third.member.shards().count().serving == 1024).await;
    third.until_admits().await;
    assert_eq!(third.add(shard).await, Some(1));
    assert_eq!(third.member.counters().cold_starts, 1024);
    third.stop().await;
}

/// Rule 13: a lease is usable only once the committed version is in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_agreed_on_has_to_be_in_force_before_a_lease_counts() {
    let first = Node::founds(SHORT).await;
    first.until_admits().await;
    let second = Node::joins(&first).await;
    let third = Node::joins(&first).await;
    let all = [&first, &second, &third];
    for node in all {
        node.until_admits().await;
    }
    // Whoever is asked has it committed by the leader.
    for (node, count) in [(&second, 1_u64), (&third, 2)] {
        let answer = node.member.propose(vec![7]).await.unwrap();
        assert_eq!(answer[..], count.to_le_bytes());
    }
    let version = |node: &Node| node.member.agreed().map(|agreed| agreed.version());
    eventually("all know", || all.iter().all(|node| version(node) == Some(Version(2)))).await;
    // Nobody has it in force: the leases of before run out, and those that come do not count.
    eventually("nobody admits", || all.iter().all(|node| node.member.waiting_for().borrow().is_some())).await;
    assert!(second.member.lease_left().as_nanos() > 0, "it has a lease, and may not use it");
    first.puts_in_force(2);
    second.puts_in_force(2);
    first.until_admits().await;
    second.until_admits().await;
    third.puts_in_force(1);
    assert!(third.member.waiting_for().borrow().is_some());
    assert!(!second.member.in_force_everywhere(Version(2)).await, "the third has said 1");
    third.puts_in_force(2);
    third.until_admits().await;
    assert!(second.member.in_force_everywhere(Version(2)).await);
    for node in [third, second, first] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leaves_before_its_log_names_it_is_forgotten_all_the_same() {
    let first = Node::founds(LONG).await;
    first.until_admits().await;
    let second = Node::joins(&first).await;
    eventually("it is admitted", || second.member.node().is_some()).await;
    let number = second.member.node().unwrap();
    assert!(second.member.hand_over(Duration::from_secs(20), true).await);
    assert!(!first.names(number), "its empty folder would be refused at this address");
    second.stop().await;
    first.stop().await;
}

/// A node that holds the secret and is no member.
struct Stranger(Arc<Peers>);

struct Silent;

impl Serve for Silent {
    fn serve(self: Arc<Self>, _from: &Caller, _kind: u8, _body: Bytes) -> Answer {
        Answer::Now(Vec::new())
    }
}

impl Stranger {
    async fn says(identity: Identity, node: Option<NodeId>) -> Self {
        let address = "127.0.0.1:1".to_owned();
        let hello = Hello { wire: WIRE, cluster: None, identity, node, session: None, address };
        let at = "127.0.0.1:0".parse().unwrap();
        let peers = Peers::start(
            toy::outside(Path::new("")),
            toy::secrets(),
            hello,
            at,
            Arc::new(Silent),
            Options::default(),
        );
        Self(peers.await.unwrap())
    }

    /// How many bytes it is answered.
    async fn asks(&self, node: &Node, kind: u8) -> usize {
        let peer = Peer::at(node.member.local_addr().unwrap().to_string());
        self.0.call(&peer, kind, Vec::new(), Duration::from_secs(5)).await.unwrap().len()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_whom_the_log_names_is_answered() {
    let first = Node::founds(LONG).await;
    first.until_admits().await;
    let asked =
        [kind::HOST, kind::PROPOSE, kind::RENEW, kind::EXPORT, kind::ANNOUNCE, kind::STATUS, kind::KEY];
    let stranger = Stranger::says(Identity(1), None).await;
    // The number is what it says; the folder is what the log is asked for.
    let pretender = Stranger::says(Identity(2), first.member.node()).await;
    for kind in asked {
        assert_eq!(stranger.asks(&first, kind).await, 0, "kind {kind}");
        assert_eq!(pretender.asks(&first, kind).await, 0, "kind {kind}");
    }
    assert!(stranger.asks(&first, kind::JOIN).await > 0, "anybody may ask to be admitted");
    assert!(stranger.asks(&first, kind::LEAVE).await > 0, "who was removed may ask whether it was");

    // Its number is what this node is told when the connection is older than it.
    let second = Node::joins(&first).await;
    second.until_admits().await;
    for shard in ShardId::all().step_by(16) {
        assert!(first.add(shard).await.is_some() && second.add(shard).await.is_some());
    }
    // A member's folder is answered whatever it says of its number.
    let number = second.member.node().unwrap();
    let identity = second.member.shards().facts().unwrap().authority.nodes()[&number].identity;
    second.stop().await;
    let unnumbered = Stranger::says(identity, None).await;
    assert!(unnumbered.asks(&first, kind::STATUS).await > 0);
    first.stop().await;
}
