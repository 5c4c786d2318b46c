//! A folder asks to be let in: what the log says to that at once, and what is to be committed for it.
//!
//! Laws:
//! - a number is given by the leader, once a majority has it in the log;
//! - the founder is the first member: whoever came before it would leave it without the number that it goes by;
//! - who was removed is told so by every member that knows it, leader or not. It is not in the log any more, and would hear of it from
//!   nobody: Raft has forgotten it, and whatever else it asks is not answered.
//!
//! Never here: how a node finds whom to ask (`beginning`).

use std::sync::Arc;

use super::message::{Join, Joined as Answered, Proposed, kind};
use super::{CALL, Shared};
use crate::authority::{Authority, Command, Effect};
use crate::id::Identity;
use crate::shards::Host;
use crate::wire;

/// Lets a folder in, here if this node leads, else by the leader. What a member passes on is not passed on again.
pub(super) async fn admit<H: Host>(shared: &Arc<Shared<H>>, join: Join, passed_on: bool) -> Answered {
    let Some(joined) = shared.joined.get() else {
        return later("the asked node is not a member itself yet");
    };
    let Some(authority) = shared.authority() else { return later("the log is not applied yet") };
    if let Some(removed) = removed(&authority, join.identity) {
        return removed;
    }
    let leader = joined.raft.leadership().borrow().leader;
    match leader {
        None => later("the cluster has no leader now"),
        Some(leader) if leader == joined.node => match at_once(&authority, &join) {
            Some(answer) => answer,
            None => commit(shared, join).await,
        },
        Some(_) if passed_on => later("the leader has just changed"),
        Some(leader) => {
            let answer = shared.ask(leader, kind::JOIN, wire::encode(&join), CALL).await;
            match answer.map(|answer| wire::decode::<Answered>(&answer)) {
                Ok(Ok(answer)) => answer,
                Ok(Err(problem)) => later(&problem.to_string()),
                Err(problem) => later(&problem.to_string()),
            }
        }
    }
}

fn later(why: &str) -> Answered {
    Answered::Later(why.to_owned())
}

/// What any member says to a folder that was removed.
fn removed(authority: &Authority, folder: Identity) -> Option<Answered> {
    authority.removed_as(folder).map(|node| Answered::Removed { node })
}

/// What the leader says without asking a majority; nothing where the log has to be asked.
fn at_once(authority: &Authority, join: &Join) -> Option<Answered> {
    if authority.nodes().is_empty() {
        return Some(later("the cluster is being founded"));
    }
    let member = authority.node_of(join.identity).map(|node| (node, &authority.nodes()[&node]));
    let (node, _) = member.filter(|(_, member)| member.address == join.address)?;
    Some(Answered::Admitted { cluster: authority.cluster(), node })
}

async fn commit<H: Host>(shared: &Arc<Shared<H>>, join: Join) -> Answered {
    let admit = Command::Admit { identity: join.identity, address: join.address };
    let outcome = match shared.propose_here(vec![admit]).await {
        Proposed::Committed(outcomes) => outcomes.into_iter().next(),
        Proposed::NotLeader(_) => return later("the leader has just changed"),
        Proposed::Unknown(problem) => return later(&problem),
    };
    let effects = match outcome {
        Some(Ok(effects)) => effects,
        Some(Err(why)) => return Answered::Refused(why),
        None => Vec::new(),
    };
    let admitted = effects.iter().find_map(|effect| match effect {
        Effect::Admitted { node } => Some(*node),
        _ => None,
    });
    let cluster = shared.authority().map(|authority| authority.cluster());
    match admitted.zip(cluster) {
        Some((node, cluster)) => Answered::Admitted { cluster, node },
        None => later("the admission had no effect"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::Position;
    use crate::id::{ClusterId, LogIndex, NodeId, Term};
    use crate::log_time::{LogTime, Stamp};

    const TERM: Term = Term { number: 1, leader: NodeId(0) };

    fn log(commands: Vec<Command>) -> Authority {
        let mut authority = Authority::new(ClusterId(9));
        for (index, command) in (0..).zip(commands) {
            let position = Position { index: LogIndex(index), term: TERM };
            authority.apply(position, Stamp { term: TERM, time: LogTime(0) }, command).unwrap();
        }
        authority
    }

    fn join(folder: u128, address: &str) -> Join {
        Join { identity: Identity(folder), address: address.into() }
    }

    fn founded() -> Command {
        Command::Found { identity: Identity(1), address: "a:1".into() }
    }

    fn admitted(folder: u128, address: &str) -> Command {
        Command::Admit { identity: Identity(folder), address: address.into() }
    }

    /// Seen once: a joiner was admitted before the founder's own entry, and the founder had no number for ever.
    #[test]
    fn nobody_is_admitted_before_the_founder() {
        let says = at_once(&log(vec![]), &join(2, "b:1"));
        assert!(matches!(&says, Some(Answered::Later(why)) if why.contains("being founded")), "{says:?}");
        assert!(at_once(&log(vec![founded()]), &join(2, "b:1")).is_none(), "after it the log is asked");
    }

    #[test]
    fn a_member_at_the_address_that_the_log_has_is_told_its_number_and_one_that_has_moved_is_written_down() {
        let log = log(vec![founded(), admitted(2, "b:1")]);
        let says = at_once(&log, &join(2, "b:1"));
        let Some(Answered::Admitted { cluster, node }) = says else { panic!("{says:?}") };
        assert_eq!((cluster, node), (ClusterId(9), NodeId(1)));
        assert!(at_once(&log, &join(2, "c:1")).is_none());
    }

    #[test]
    fn a_folder_that_was_removed_is_told_so_and_no_other() {
        let log = log(vec![founded(), admitted(2, "b:1"), Command::Remove { node: NodeId(1) }]);
        let says = removed(&log, Identity(2));
        assert!(matches!(says, Some(Answered::Removed { node: NodeId(1) })), "{says:?}");
        for other in [1, 3] {
            assert!(removed(&log, Identity(other)).is_none(), "folder {other}");
        }
    }
}
