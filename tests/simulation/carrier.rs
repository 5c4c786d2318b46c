//! Questions between gateways and owners, some of them late, some of them twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tollgate::node::{Carrier, Carry, Tenants};
use tollgate_cluster::id::NodeId;
use tollgate_cluster::member::Member;
use tollgate_cluster::outside::Entropy as _;
use tollgate_cluster::peer::CallError;

use super::pass;
use super::turmoil_world::SeededEntropy;
use super::world::World;

/// How often, of a hundred, what happens to a question.
const DELAYED: u64 = 4;
const TWICE: u64 = 4;
const UNANSWERED: u64 = 3;
const LATE: u64 = 3;

/// By how many milliseconds at most. Shorter than an owner remembers an id.
const DELAY: u64 = 400;
const LATE_BY: u64 = 2_500;

/// Carries questions over a member's connections.
#[derive(Clone)]
pub struct Troubled {
    pub world: Arc<World>,
    pub host: usize,
    pub member: Arc<Member<Tenants>>,
    pub chance: Arc<SeededEntropy>,
}

impl Troubled {
    async fn carry(&self, node: NodeId, question: Vec<u8>, within: Duration) -> Result<Vec<u8>, Carry> {
        match self.member.ask(node, question, within).await {
            Ok(answer) => Ok(answer),
            Err(CallError::Unreachable(_) | CallError::Refused(_)) => Err(Carry::NotSent),
            Err(CallError::Unknown(_)) => Err(Carry::Unknown),
        }
    }

    fn below(&self, bound: u64) -> u64 {
        let mut bytes = [0; 8];
        self.chance.fill(&mut bytes);
        u64::from_le_bytes(bytes) % bound
    }
}

#[async_trait]
impl Carrier for Troubled {
    async fn ask(&self, node: NodeId, question: Vec<u8>, within: Duration) -> Result<Vec<u8>, Carry> {
        self.world.count("questions", 1);
        let chance = if self.world.is_troubled() { self.below(100) } else { 100 };
        let answer = match chance {
            ..DELAYED => {
                self.world.count("delayed", 1);
                pass(Duration::from_millis(self.below(DELAY))).await;
                self.carry(node, question, within).await
            }
            // It arrives twice, and the first answer is lost.
            chance if chance < DELAYED + TWICE => {
                self.world.count("duplicates", 1);
                let _ = self.carry(node, question.clone(), within).await;
                self.carry(node, question, within).await
            }
            chance if chance < DELAYED + TWICE + UNANSWERED => {
                self.world.count("answers lost", 1);
                let _ = self.carry(node, question, within).await;
                return Err(Carry::Unknown);
            }
            // It arrives when nobody waits for it any more: never if its asker was told that it is answered, for no connection
            // delivers what it has delivered.
            chance if chance < DELAYED + TWICE + UNANSWERED + LATE => {
                self.world.count("late", 1);
                let (late, by) = (self.clone(), Duration::from_millis(self.below(LATE_BY)));
                tokio::spawn(async move {
                    pass(by).await;
                    let _ = late.carry(node, question, Duration::from_secs(1)).await;
                });
                return Err(Carry::Unknown);
            }
            _ => self.carry(node, question, within).await,
        };
        // A pause that waits begins while the answer is taken: before its age is looked at.
        if answer.is_ok() && self.world.hosts[self.host].at_answer() {
            self.world.hosts[self.host].clock.aim(self.below(2));
        }
        answer
    }

    fn changed(&self) -> watch::Receiver<u64> {
        self.member.changed()
    }
}
