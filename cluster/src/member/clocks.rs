//! What the members' wall clocks read, as the leader hears of it.
//!
//! Laws: one reading of each node, however many of its sessions are not over: a node that starts again, or has lost its lease, has two for
//! a while, and its clock is still one clock; nothing is known of a node without a living session.

use std::collections::BTreeMap;

use crate::authority::{Authority, Standing};
use crate::id::{NodeId, SessionId};

/// The last reading of each node's clock, in milliseconds since 1970.
#[derive(Debug, Default)]
pub(super) struct WallClocks(BTreeMap<NodeId, u64>);

impl WallClocks {
    /// The clock of the node of `session` reads `millis`. A session that is not served says nothing of its node's.
    pub(super) fn heard(&mut self, authority: &Authority, session: SessionId, millis: u64) {
        if let Some(session) = authority.session(session).filter(|known| known.standing == Standing::Serving)
        {
            // A clock that was set back has not passed what it had passed.
            self.0.insert(session.node, millis);
        }
    }

    /// Forgets nodes that have no living session any more.
    pub(super) fn keep(&mut self, authority: &Authority) {
        self.0.retain(|node, _| authority.unfenced().any(|(_, session)| session.node == *node));
    }

    /// All readings.
    pub(super) fn readings(&self) -> Vec<u64> {
        self.0.values().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authority::{Command, Position};
    use crate::id::{ClusterId, Identity, LogIndex, Term};
    use crate::log_time::{LogTime, Stamp};

    const TERM: Term = Term { number: 1, leader: NodeId(0) };

    fn say(authority: &mut Authority, index: u64, command: Command) {
        let position = Position { index: LogIndex(index), term: TERM };
        authority.apply(position, Stamp { term: TERM, time: LogTime(0) }, command).unwrap();
    }

    #[test]
    fn two_sessions_of_one_node_have_one_clock() {
        let (first, second) = (SessionId(1), SessionId(2));
        let mut authority = Authority::new(ClusterId(1));
        say(&mut authority, 1, Command::Admit { identity: Identity(1), address: "a:1".to_owned() });
        let node = authority.node_of(Identity(1)).unwrap();
        say(&mut authority, 2, Command::Register { node, session: first });
        let mut clocks = WallClocks::default();
        clocks.heard(&authority, first, 100);
        say(&mut authority, 3, Command::Register { node, session: second });
        clocks.heard(&authority, second, 200);
        clocks.heard(&authority, first, 300);
        clocks.keep(&authority);
        assert_eq!(clocks.readings(), [200], "and the older one is not heard any more");
        say(&mut authority, 4, Command::Fence { session: first, term: TERM });
        clocks.keep(&authority);
        assert_eq!(clocks.readings(), [200]);
        say(&mut authority, 5, Command::Fence { session: second, term: TERM });
        clocks.keep(&authority);
        assert!(clocks.readings().is_empty());
    }
}
