//! Nodes that come back at other addresses than their log has find each other by their seeds. Under turmoil's clock.

#![allow(clippy::unwrap_used, reason = "what goes wrong in a helper fails the test")]

#[path = "members/hosts.rs"]
mod hosts;
#[path = "members/toy.rs"]
mod toy;
mod turmoil_world;

use hosts::Hosts;

/// Every address in the log is wrong by then, and nothing can be written there before there is a leader.
#[test]
fn voters_that_all_come_back_at_new_addresses_elect_a_leader_and_have_them_written_down() {
    let mut hosts = Hosts::of(3);
    hosts.until_they_share(3);
    hosts.until_they_vote(3);
    let numbers: Vec<_> = hosts.members().iter().map(|member| member.node().unwrap()).collect();
    (1..=3).for_each(|number| hosts.crash(number));
    hosts.move_ports();
    (1..=3).for_each(|number| hosts.start(number));
    hosts.until("all three run", |members| members.len() == 3);
    hosts.until_they_share(3);
    hosts.until("the log has where they are", |members| {
        members.iter().all(|member| {
            let nodes =
                member.shards().facts().map(|facts| facts.authority.nodes().clone()).unwrap_or_default();
            nodes.len() == 3 && nodes.values().all(|node| node.address.ends_with(":7701"))
        })
    });
    let after: Vec<_> = hosts.members().iter().map(|member| member.node().unwrap()).collect();
    assert_eq!(after, numbers, "each is who it was");
}
