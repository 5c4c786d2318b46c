//! How a question reaches another node: the one thing that admission needs of the network.

use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tollgate_cluster::id::NodeId;

/// Carries questions to other nodes and brings their answers.
#[async_trait]
pub trait Carrier: Send + Sync + 'static {
    /// Asks `node`. Questions to one node arrive in the order in which they were asked, while its connection lasts; what was asked
    /// may arrive although the answer is [`Carry::Unknown`], and may arrive late.
    ///
    /// # Errors
    /// [`Carry`]: there is no answer.
    async fn ask(&self, node: NodeId, question: Vec<u8>, within: Duration) -> Result<Vec<u8>, Carry>;

    /// Counts up whenever what this node knows of the cluster has changed.
    fn changed(&self) -> watch::Receiver<u64>;
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Carry {
    /// Not a byte went out: nothing has happened.
    #[error("the question was not sent")]
    NotSent,
    /// It may have arrived, and may yet.
    #[error("the question was sent and not answered in time")]
    Unknown,
}
