//! Who was removed from its cluster is told so, in words, whenever it comes back: Raft has forgotten it, its own log does not say it, and
//! whatever it asks of others is not answered. Under turmoil's clock.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]

#[path = "members/hosts.rs"]
mod hosts;
#[path = "members/toy.rs"]
mod toy;
mod turmoil_world;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use hosts::Hosts;
use tollgate_cluster::id::NodeId;
use tollgate_cluster::member::Member;
use toy::Toy;

fn why_it_failed(member: &Member<Toy>) -> Option<String> {
    member.failed().now_or_never()
}

fn is_named(member: &Arc<Member<Toy>>, node: NodeId) -> bool {
    member.shards().facts().is_some_and(|facts| facts.authority.nodes().contains_key(&node))
}

/// Four nodes, and the fourth's number.
fn four() -> (Hosts, NodeId) {
    let mut hosts = Hosts::of(4);
    hosts.until_they_share(4);
    hosts.until_they_vote(3);
    let number = hosts.member(4).node().unwrap();
    (hosts, number)
}

fn is_told(hosts: &mut Hosts, number: NodeId) {
    hosts.until("the fourth is told that it was removed", |members| {
        members.len() == 4 && why_it_failed(&members[3]).is_some()
    });
    let fourth = hosts.member(4);
    let why = why_it_failed(&fourth).unwrap();
    let says = format!("where it was number {number}, and the data folder the disk of n4 can never be used");
    assert!(why.contains(&says), "{why}");
    assert_eq!(fourth.waiting_for().borrow().as_deref(), Some(&*why), "operators see it, too");
    assert!(fourth.shards().facts().is_none(), "it answers for nothing");
    // Nobody else is told that, and service goes on.
    assert!(hosts.members()[..3].iter().all(|member| why_it_failed(member).is_none()));
    hosts.until_they_share(3);
}

/// Found by the simulation: it came back with its old folder, and waited for ever to be registered.
#[test]
fn who_leaves_for_good_and_dies_before_it_hears_that_it_is_gone_is_told_when_it_comes_back() {
    let (mut hosts, number) = four();
    let leaving = hosts.member(4);
    let handing_over = leaving.clone();
    hosts.sim.client("operator", async move {
        handing_over.hand_over(Duration::from_secs(30), true).await;
        Ok(())
    });
    // It is out of the ring, and is killed before the log that it has can say that it is removed.
    hosts.until("it is on its way out", |members| {
        let facts = members[0].shards().facts().unwrap();
        !facts.authority.ring().members().contains(&number) && is_named(&members[3], number)
    });
    hosts.until("it has handed over", |members| {
        let count = members[3].shards().count();
        count.serving + count.sealed == 0
    });
    assert!(is_named(&leaving, number));
    drop(leaving);
    hosts.sim.hold("n4", "n1");
    hosts.sim.hold("n4", "n2");
    hosts.sim.hold("n4", "n3");
    hosts.until("the others have it removed", |members| !is_named(&members[0], number));
    assert!(is_named(&hosts.member(4), number), "it has not heard of it");
    hosts.crash(4);
    for other in ["n1", "n2", "n3"] {
        hosts.sim.release("n4", other);
    }
    hosts.start(4);
    is_told(&mut hosts, number);
}

#[test]
fn who_is_removed_while_it_is_cut_off_is_told_when_it_is_heard_again() {
    let (mut hosts, number) = four();
    for other in ["n1", "n2", "n3"] {
        hosts.sim.partition("n4", other);
    }
    hosts.until("the others took over", |members| {
        members[..3].iter().map(|member| member.shards().count().serving).sum::<usize>() == 1024
    });
    let operator = hosts.member(1);
    hosts.answered(async move { operator.remove(number).await }).unwrap();
    for other in ["n1", "n2", "n3"] {
        hosts.sim.repair("n4", other);
    }
    is_told(&mut hosts, number);
}
