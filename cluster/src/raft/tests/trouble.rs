//! Seeded trouble: power cuts, cut networks and failing disks while commands are proposed. Whatever was acknowledged is there at the end, everywhere,
//! and everybody has the same.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;

use super::cluster::{Cluster, Seeded, passes};
use crate::authority::Command;
use crate::id::{NodeId, SessionId};
use crate::outside::Entropy;

#[tokio::test(start_paused = true)]
async fn nothing_acknowledged_is_lost_in_seeded_trouble() {
    for seed in 0..10 {
        let acknowledged = trouble(seed).await;
        assert!(acknowledged > 5, "seed {seed}: {acknowledged} were acknowledged, too few to say anything");
    }
}

/// Half a minute of trouble for three voters; how many commands were acknowledged.
async fn trouble(seed: u64) -> usize {
    let chance: &dyn Entropy = &Seeded::new(seed);
    let mut cluster = Cluster::of(3, seed).await;
    let all: Vec<NodeId> = cluster.members.keys().copied().collect();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let mut callers = JoinSet::new();
    for step in 0..40 {
        let node = all[chance.below(3) as usize];
        match chance.below(12) {
            // More than a minority at once, too: what is on the disks is all that is left.
            0 | 1 => cluster.restart(node).await,
            2 => {
                for node in &all {
                    cluster.restart(*node).await;
                }
            }
            3 | 4 => cluster.cut([node]),
            5 | 6 => cluster.cut([]),
            7 => {
                let member = &cluster.members[&node];
                member.folder.fail(Some(std::io::ErrorKind::Other));
                passes(Duration::from_millis(200)).await;
                member.folder.fail(None);
                cluster.restart(node).await;
            }
            8 => {
                let _ = cluster.raft(node).compact().await;
            }
            _ => {}
        }
        // Everybody is asked; who leads, or believes so, answers.
        for (at, member) in cluster.members.values().enumerate() {
            let (raft, acknowledged) = (member.raft.clone(), Arc::clone(&acknowledged));
            let session = SessionId(1_000 + step * 10 + at as u128);
            callers.spawn(async move {
                let register = Command::Register { node: NodeId(0), session };
                if let Ok(outcomes) = raft.propose(vec![register]).await {
                    assert!(outcomes[0].is_ok());
                    assert!(
                        raft.applied().borrow().authority.session(session).is_some(),
                        "visible here at once"
                    );
                    acknowledged.lock().unwrap().push(session);
                }
            });
        }
        passes(Duration::from_millis(chance.below(1_500))).await;
    }
    cluster.cut([]);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap();
    }
    let newest = SessionId(1);
    cluster.propose(Command::Register { node: NodeId(0), session: newest }).await.unwrap().unwrap();
    let agreed = cluster.agreed().await;
    let acknowledged = acknowledged.lock().unwrap();
    for session in acknowledged.iter() {
        assert!(agreed.session(*session).is_some(), "seed {seed}: {session} was acknowledged and is lost");
    }
    acknowledged.len()
}
