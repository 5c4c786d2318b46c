//! What nodes tell and ask each other about possessions.
//!
//! Laws:
//! - news goes to every member once, as well as it can; who missed it asks when it is named something that it does not know;
//! - an id is nobody's only when every member says so: as long as one cannot be asked, nothing is said;
//! - the end of what goes on in the background is told to the node that holds its reservation, whichever node saw it.

use std::time::Duration;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tollgate_cluster::id::NodeId;

use super::{News, Possession, Possessions};
use crate::limit::Name;
use crate::meter::Usage;
use crate::node::codec;
use crate::node::wire;
use crate::node::{Carrier, Node};

/// How long another node is waited for.
const WITHIN: Duration = Duration::from_secs(1);

/// How much is told in one message: far below what a message may have.
const AT_ONCE: usize = 64;

/// What a node asks or tells another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// Whose is this?
    Whose(Box<str>),
    /// What was made, and what has gone.
    News(Vec<News>),
    /// What `tenant` made under `id` is over, with what it has used.
    Over {
        /// Whose it is.
        tenant: Name,
        /// Its name at the provider.
        id: Box<str>,
        /// What the provider reports; nothing if it does not.
        used: Option<Usage>,
    },
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// To [`Question::Whose`].
    Whose(Option<(Name, Possession)>),
    /// To what was told.
    Heard,
}

/// Some member could not be asked, so nobody can say whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unasked;

impl Possessions {
    /// Answers another node.
    pub fn answer(&self, question: Question) -> Answer {
        match question {
            Question::Whose(id) => return Answer::Whose(self.whose(&id)),
            Question::News(news) => news.into_iter().for_each(|news| self.hear(news)),
            Question::Over { tenant, id, used } => {
                if let (Some(ending), _) = self.end(&tenant, &id) {
                    // Its deadline may have come first.
                    let _ = ending.send(used);
                }
            }
        }
        Answer::Heard
    }
}

impl Node {
    /// Sees to it that what is known of `id` anywhere in the cluster is known here.
    ///
    /// # Errors
    /// [`Unasked`]: nobody knows of it who could be asked, and somebody could not.
    pub async fn look_for(&self, id: &str) -> Result<(), Unasked> {
        let Some(carrier) = self.carrier().filter(|_| self.possessions.whose(id).is_none()) else {
            return Ok(());
        };
        let others = self.other_members();
        let answers = join_all(
            others
                .into_iter()
                .map(|node| async move { ask(carrier, node, Question::Whose(id.into())).await }),
        );
        let mut unasked = false;
        for answer in answers.await {
            match answer {
                Some(Answer::Whose(Some((tenant, what)))) => {
                    self.possessions.hear(News::Made { tenant, id: id.into(), what });
                    return Ok(());
                }
                Some(Answer::Whose(None)) => {}
                Some(Answer::Heard) | None => unasked = true,
            }
        }
        if unasked { Err(Unasked) } else { Ok(()) }
    }

    /// What `tenant` has made under `id` is over: whoever holds its reservation settles it.
    pub async fn is_over(&self, tenant: &Name, id: &str, used: Option<Usage>) {
        let (ending, held_by) = self.possessions.end(tenant, id);
        if let Some(ending) = ending {
            // Its deadline may have come first.
            let _ = ending.send(used);
        } else if let (Some(node), Some(carrier)) = (held_by, self.carrier()) {
            let over = Question::Over { tenant: tenant.clone(), id: id.into(), used };
            if ask(carrier, node, over).await.is_none() {
                tracing::warn!(
                    id,
                    tenant = &**tenant,
                    holder = node.0,
                    "the end of what went on in the background could not be told to the node that holds its reservation: it is closed at its estimate"
                );
            }
        }
    }

    /// The number of this node in its cluster; none for one that is alone.
    #[must_use]
    pub fn number(&self) -> Option<NodeId> {
        self.carrier().and_then(|_| self.owners().shards().facts()).map(|facts| facts.node)
    }

    /// Tells other nodes what was made here and what has gone, until `stopping`.
    pub async fn tell_possessions(&self, stopping: CancellationToken) {
        let Some(carrier) = self.carrier() else { return };
        loop {
            let news = self.possessions.take_untold(AT_ONCE);
            if news.is_empty() {
                tokio::select! {
                    () = stopping.cancelled() => return,
                    () = self.possessions.wake.notified() => continue,
                }
            }
            let others = self.other_members();
            let told = others.into_iter().map(|node| ask(carrier, node, Question::News(news.clone())));
            tokio::select! {
                () = stopping.cancelled() => return,
                _ = join_all(told) => {}
            }
        }
    }

    fn other_members(&self) -> Vec<NodeId> {
        let Some(facts) = self.owners().shards().facts() else { return Vec::new() };
        facts.authority.nodes().keys().copied().filter(|node| *node != facts.node).collect()
    }
}

/// What `node` answers, if it does.
async fn ask(carrier: &dyn Carrier, node: NodeId, question: Question) -> Option<Answer> {
    let bytes = codec::question(&wire::Question::Kept(question)).ok()?;
    let answer = carrier.ask(node, bytes, WITHIN).await.ok()?;
    match codec::read_reply(&answer) {
        Ok(wire::Reply::Kept(answer)) => Some(answer),
        _ => None,
    }
}
