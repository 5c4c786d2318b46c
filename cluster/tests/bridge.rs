//! Members of which two cannot reach each other, though a third reaches both: what a gateway holds open is announced by way of it.
//! Under turmoil's clock.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]

#[path = "members/hosts.rs"]
mod hosts;
#[path = "members/toy.rs"]
mod toy;
mod turmoil_world;

use std::sync::Arc;

use hosts::Hosts;
use tollgate_cluster::id::NodeId;
use tollgate_cluster::member::Member;
use toy::Toy;

#[test]
fn what_is_open_behind_a_broken_link_is_announced_by_way_of_another_member() {
    let mut hosts = Hosts::of(4);
    hosts.until_they_share(4);
    hosts.until("three vote", |members| {
        members.iter().all(|member| {
            member.raft_voters().len() == 3
                && member.raft_stats().and_then(|raft| raft.leader) == Some(NodeId(0))
        })
    });

    // The leader reaches both; they do not reach each other.
    hosts.sim.partition("n2", "n3");
    hosts.crash(4);
    hosts.until_they_share(3);
    let cold = |member: &Arc<Member<Toy>>| member.counters().cold_starts;
    let of_all: Vec<u64> = hosts.members().iter().map(cold).collect();
    assert!(of_all.iter().all(|cold| *cold > 20), "each has taken some of the dead node's: {of_all:?}");
    hosts.until("everybody has announced", |members| {
        members.iter().all(|member| member.shards().count().incomplete == 0)
    });
    // Nobody's session had to end for it.
    for member in hosts.members() {
        assert_eq!(member.counters().sessions, 1);
        assert_eq!(member.counters().fences, 1, "that of the node that crashed");
    }
}
