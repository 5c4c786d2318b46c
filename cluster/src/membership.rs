//! Who votes, and how a cluster begins. Pure choices; the caller carries them out.
//!
//! Laws of the vote:
//! - at most [`VOTERS_MAX`] voters, an odd number wherever there are enough nodes: a fourth only adds one more to wait for;
//! - a voter keeps its vote until it has been silent for the grace period and another node can take its place, or the number
//!   can shrink without losing tolerance: a restart changes nothing;
//! - two nodes both vote. It tolerates no failure, as one voter does not, but no disk is then the only copy;
//! - the choice is deterministic and stable: asked again about its own outcome, it answers the same.
//!
//! Laws of the beginning:
//! - exactly `N` fresh folders see each other and all propose the same list; the lowest of them initialises;
//! - any peer that has a cluster vetoes: join it;
//! - a folder that ever joined never bootstraps again, whatever it is told;
//! - a proposal is never changed: two lists with a common node could otherwise both come true, one after the other.
//!
//! Never here: clocks, the network, the log.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{ClusterId, Identity, NodeId};
use crate::mutant;
use crate::time::Span;

/// The most voters: five bear two failures, and each more slows every commit.
pub const VOTERS_MAX: usize = 5;

/// What is known of a node that could vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// For how long it has not been heard of; zero while it is.
    pub silent: Span,
    /// Whether its log is close enough to the leader's that its vote would not hold commits up.
    pub caught_up: bool,
}

/// Who should vote, given who does and who could. `None` when that is who does, or when nobody can.
///
/// `members` has every member of the cluster; who is not in it loses its vote.
#[must_use]
pub fn choose_voters(
    current: &BTreeSet<NodeId>,
    members: &BTreeMap<NodeId, Candidate>,
    grace: Span,
) -> Option<BTreeSet<NodeId>> {
    let within_grace = |node: &NodeId| members.get(node).is_some_and(|candidate| candidate.silent < grace);
    let ready = |candidate: &Candidate| candidate.silent == Span::default() && candidate.caught_up;

    let kept = current.iter().copied().filter(within_grace);
    let newcomers = members
        .iter()
        .filter(|&(node, candidate)| !current.contains(node) && ready(candidate))
        .map(|(&node, _)| node);
    let overdue = current.iter().copied().filter(|node| members.contains_key(node) && !within_grace(node));

    let able: Vec<NodeId> = kept.chain(newcomers).collect();
    let voters: BTreeSet<NodeId> = match able.len() {
        0 => return None,
        // One silent voter more makes it three: as many failures to bear, and nothing to change when it is back.
        2 => able.into_iter().chain(overdue.take(1)).collect(),
        count => able.into_iter().take(odd(count.min(VOTERS_MAX))).collect(),
    };
    (voters != *current).then_some(voters)
}

/// The largest odd number that is not above `count`, which is not 0.
const fn odd(count: usize) -> usize {
    if count.is_multiple_of(2) { count - 1 } else { count }
}

/// What a data folder says of its past.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Past {
    /// It never belonged to a cluster.
    Fresh,
    /// It did, and whatever became of that cluster, it is no founder any more.
    Joined(ClusterId),
}

/// What a node says of itself before there is a cluster: to others, and of others to itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Founder {
    /// Its folder's past.
    pub past: Past,
    /// How many founders it was told to expect; `None` when it was told to join, not to found.
    pub expects: Option<usize>,
    /// The founders it proposes, itself among them, once it has seen as many as it expects. To be stored in its folder before
    /// it is told to anybody.
    pub proposal: Option<BTreeSet<Identity>>,
}

/// What a node does about the beginning of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Bootstrap {
    /// Its folder has a cluster: resume there.
    Resume(ClusterId),
    /// A peer has a cluster: join it.
    Join(ClusterId),
    /// Store this proposal, then tell it to the others.
    Propose(BTreeSet<Identity>),
    /// All agree and this node is the lowest: initialise, with these to be admitted.
    Initialise(BTreeSet<Identity>),
    /// Nothing can be done yet.
    Wait(Waiting),
}

/// What a node waits for, in words for a person.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Waiting {
    /// It was not told to found a cluster.
    #[error(
        "waiting for a node that has a cluster: none of the seeds that answer has one; start one with --bootstrap"
    )]
    Cluster,
    /// Too few.
    #[error("waiting for founders: {seen} of {expected} see each other; check that all have the same seeds")]
    Fewer {
        /// Seen, this node included.
        seen: usize,
        /// Expected.
        expected: usize,
    },
    /// Too many.
    #[error(
        "{seen} fresh nodes want to found a cluster of {expected}: stop the surplus, or raise --bootstrap-expect on all"
    )]
    More {
        /// Seen, this node included.
        seen: usize,
        /// Expected.
        expected: usize,
    },
    /// A peer expects another number.
    #[error("peer {peer} was started with another --bootstrap-expect: give all founders the same number")]
    OtherExpectation {
        /// The lowest such peer.
        peer: Identity,
    },
    /// A peer has not proposed yet.
    #[error("waiting for peer {peer} to see all founders too")]
    Proposal {
        /// The lowest such peer.
        peer: Identity,
    },
    /// A peer, or this node earlier, proposed other founders.
    #[error(
        "peer {peer} has promised itself to other founders: stop it, empty its data folder and start it again"
    )]
    OtherProposal {
        /// The lowest such peer.
        peer: Identity,
    },
    /// All agree; another does it.
    #[error("waiting for {initialiser} to initialise the cluster")]
    Initialiser {
        /// The lowest founder.
        initialiser: Identity,
    },
}

/// What node `me` does next, `peers` being all that it can reach now.
#[must_use]
pub fn bootstrap(me: Identity, own: &Founder, peers: &BTreeMap<Identity, Founder>) -> Bootstrap {
    if let Past::Joined(cluster) = own.past {
        return Bootstrap::Resume(cluster);
    }
    let clusters = peers.values().filter_map(|peer| match peer.past {
        Past::Joined(cluster) => Some(cluster),
        Past::Fresh => None,
    });
    if let Some(cluster) = clusters.min()
        && !(own.expects.is_some() && mutant::is("bootstrap_ignores_cluster"))
    {
        return Bootstrap::Join(cluster);
    }
    let Some(expected) = own.expects else { return Bootstrap::Wait(Waiting::Cluster) };
    agree(me, own, expected, peers).unwrap_or_else(Bootstrap::Wait)
}

/// Everybody reachable is fresh: do all founders want the same?
fn agree(
    me: Identity,
    own: &Founder,
    expected: usize,
    peers: &BTreeMap<Identity, Founder>,
) -> Result<Bootstrap, Waiting> {
    // Who was told to join waits for the founders; it is none.
    let founders = || peers.iter().filter(|(_, peer)| peer.expects.is_some());
    if let Some((&peer, _)) = founders().find(|(_, peer)| peer.expects != own.expects) {
        return Err(Waiting::OtherExpectation { peer });
    }
    let list: BTreeSet<Identity> = founders().map(|(&peer, _)| peer).chain([me]).collect();
    match list.len() {
        seen if seen < expected => return Err(Waiting::Fewer { seen, expected }),
        seen if seen > expected => return Err(Waiting::More { seen, expected }),
        _ => {}
    }
    match &own.proposal {
        None => return Ok(Bootstrap::Propose(list)),
        Some(promised) if *promised != list => return Err(Waiting::OtherProposal { peer: me }),
        Some(_) => {}
    }
    for (&peer, founder) in founders() {
        match &founder.proposal {
            None => return Err(Waiting::Proposal { peer }),
            Some(promised) if *promised != list => return Err(Waiting::OtherProposal { peer }),
            Some(_) => {}
        }
    }
    match list.first() {
        Some(&initialiser) if initialiser != me => Err(Waiting::Initialiser { initialiser }),
        _ => Ok(Bootstrap::Initialise(list)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GRACE: Span = Span::from_millis(30_000);

    fn set(nodes: &[u64]) -> BTreeSet<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    /// Members that are all well, save `silent`, silent for `millis`.
    fn members(nodes: &[u64], silent: &[u64], millis: u64) -> BTreeMap<NodeId, Candidate> {
        let candidate = |node: &u64| Candidate {
            silent: Span::from_millis(if silent.contains(node) { millis } else { 0 }),
            caught_up: true,
        };
        nodes.iter().map(|node| (NodeId(*node), candidate(node))).collect()
    }

    fn chosen(current: &[u64], members: &BTreeMap<NodeId, Candidate>) -> Vec<u64> {
        let current = set(current);
        choose_voters(&current, members, GRACE).unwrap_or(current).iter().map(|node| node.0).collect()
    }

    #[test]
    fn a_growing_cluster_has_one_two_three_and_five_voters() {
        let mut voters = vec![0];
        let sizes: Vec<usize> = (1..=8u64)
            .map(|size| {
                voters = chosen(&voters, &members(&(0..size).collect::<Vec<_>>(), &[], 0));
                voters.len()
            })
            .collect();
        assert_eq!(sizes, [1, 2, 3, 3, 5, 5, 5, 5]);
    }

    #[test]
    fn a_silent_voter_is_replaced_after_the_grace_period_and_not_before() {
        let all = [0, 1, 2, 3];
        assert_eq!(chosen(&[0, 1, 2], &members(&all, &[1], 29_999)), [0, 1, 2]);
        assert_eq!(chosen(&[0, 1, 2], &members(&all, &[1], 30_000)), [0, 2, 3]);
        // Back again, it waits as a learner.
        assert_eq!(chosen(&[0, 2, 3], &members(&all, &[], 0)), [0, 2, 3]);
    }

    #[test]
    fn a_silent_voter_that_nobody_can_replace_keeps_its_vote() {
        assert_eq!(chosen(&[0, 1, 2], &members(&[0, 1, 2], &[1], 90_000)), [0, 1, 2]);
        let mut lagging = members(&[0, 1, 2, 3], &[1], 90_000);
        lagging.insert(NodeId(3), Candidate { silent: Span::default(), caught_up: false });
        assert_eq!(chosen(&[0, 1, 2], &lagging), [0, 1, 2]);
    }

    #[test]
    fn five_shrink_to_three_that_live() {
        assert_eq!(chosen(&[0, 1, 2, 3, 4], &members(&[0, 1, 2, 3, 4], &[1, 3], 90_000)), [0, 2, 4]);
    }

    #[test]
    fn who_is_no_member_has_no_vote_and_without_members_nothing_changes() {
        assert_eq!(chosen(&[0, 1, 2], &members(&[0, 2, 3], &[], 0)), [0, 2, 3]);
        assert_eq!(choose_voters(&set(&[0]), &BTreeMap::new(), GRACE), None);
    }

    proptest! {
        #[test]
        fn a_choice_is_small_stable_and_can_be_made_by_who_lives(
            nodes in prop::collection::btree_map(0..12u64, (0..3u64, any::<bool>()), 1..12),
            voting in prop::collection::btree_set(0..12u64, 1..6),
        ) {
            let members: BTreeMap<NodeId, Candidate> = nodes
                .iter()
                .map(|(&node, &(silent, caught_up))| (NodeId(node), Candidate { silent: Span::from_millis(silent * 20_000), caught_up }))
                .collect();
            let current: BTreeSet<NodeId> = voting.iter().copied().map(NodeId).collect();
            let Some(voters) = choose_voters(&current, &members, GRACE) else { return Ok(()) };
            prop_assert!(!voters.is_empty() && voters.len() <= VOTERS_MAX);
            prop_assert!(voters.len() % 2 == 1 || voters.len() == 2);
            let able = voters.iter().filter(|node| members[node].silent < GRACE).count();
            prop_assert!(able > voters.len() / 2, "{able} of {}", voters.len());
            prop_assert_eq!(choose_voters(&voters, &members, GRACE), None);
        }
    }

    // The beginning.

    fn founder(expects: usize) -> Founder {
        Founder { past: Past::Fresh, expects: Some(expects), proposal: None }
    }

    /// The founders 1..=count, each expecting as many.
    fn founders(count: usize) -> BTreeMap<Identity, Founder> {
        (1..=count as u128).map(|at| (Identity(at), founder(count))).collect()
    }

    fn decide(all: &BTreeMap<Identity, Founder>, me: u128) -> Bootstrap {
        let mut peers = all.clone();
        let own = peers.remove(&Identity(me)).unwrap();
        bootstrap(Identity(me), &own, &peers)
    }

    fn propose(all: &mut BTreeMap<Identity, Founder>, me: u128) {
        let Bootstrap::Propose(list) = decide(all, me) else { panic!("{:?}", decide(all, me)) };
        all.get_mut(&Identity(me)).unwrap().proposal = Some(list);
    }

    #[test]
    fn all_propose_the_same_list_and_the_lowest_initialises() {
        let mut all = founders(3);
        propose(&mut all, 1);
        assert_eq!(decide(&all, 1), Bootstrap::Wait(Waiting::Proposal { peer: Identity(2) }));
        propose(&mut all, 2);
        propose(&mut all, 3);
        assert_eq!(decide(&all, 1), Bootstrap::Initialise([1, 2, 3].map(Identity).into()));
        let waits = Bootstrap::Wait(Waiting::Initialiser { initialiser: Identity(1) });
        assert_eq!([decide(&all, 2), decide(&all, 3)], [waits.clone(), waits]);
    }

    #[test]
    fn one_founder_needs_nobody() {
        let mut all = founders(1);
        propose(&mut all, 1);
        assert_eq!(decide(&all, 1), Bootstrap::Initialise([Identity(1)].into()));
    }

    #[test]
    fn neither_fewer_nor_more_than_expected_begin() {
        let mut all = founders(3);
        all.remove(&Identity(3));
        assert_eq!(decide(&all, 1), Bootstrap::Wait(Waiting::Fewer { seen: 2, expected: 3 }));
        let mut all = founders(3);
        all.insert(Identity(4), founder(3));
        assert_eq!(decide(&all, 1), Bootstrap::Wait(Waiting::More { seen: 4, expected: 3 }));
        all.insert(Identity(4), founder(4));
        assert_eq!(decide(&all, 1), Bootstrap::Wait(Waiting::OtherExpectation { peer: Identity(4) }));
        // Who only wants to join is no founder.
        all.insert(Identity(4), Founder { expects: None, ..founder(3) });
        assert!(matches!(decide(&all, 1), Bootstrap::Propose(_)));
        assert_eq!(decide(&all, 4), Bootstrap::Wait(Waiting::Cluster));
    }

    #[test]
    fn a_peer_with_a_cluster_vetoes_even_when_all_have_agreed() {
        let mut all = founders(2);
        propose(&mut all, 1);
        propose(&mut all, 2);
        let old = Founder { past: Past::Joined(ClusterId(7)), expects: None, proposal: None };
        all.insert(Identity(9), old);
        assert_eq!(decide(&all, 1), Bootstrap::Join(ClusterId(7)));
    }

    #[test]
    fn a_folder_that_ever_joined_never_bootstraps_again() {
        let mut all = founders(1);
        all.get_mut(&Identity(1)).unwrap().past = Past::Joined(ClusterId(7));
        assert_eq!(decide(&all, 1), Bootstrap::Resume(ClusterId(7)));
    }

    /// Two lists that share node 3: whatever each side sees and in whatever order, at most one of them comes true.
    #[test]
    fn a_promise_is_not_given_twice() {
        let mut first = founders(3);
        for me in 1..=3 {
            propose(&mut first, me);
        }
        let mut second: BTreeMap<Identity, Founder> = (4..=5).map(|at| (Identity(at), founder(3))).collect();
        second.insert(Identity(3), first[&Identity(3)].clone());
        propose(&mut second, 4);
        propose(&mut second, 5);
        let promised = Bootstrap::Wait(Waiting::OtherProposal { peer: Identity(3) });
        assert_eq!([3, 4, 5].map(|me| decide(&second, me)), [promised.clone(), promised.clone(), promised]);
    }
}
