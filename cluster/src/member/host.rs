//! What the host has agreed on through this node: its commands proposed, and known to be in force everywhere.

use std::sync::Arc;
use std::time::Duration;

use super::message::Proposed;
use super::{Shared, status};
use crate::agreed::COMMAND_MAX;
use crate::authority::{Command, Effect};
use crate::id::Version;
use crate::shards::Host;

/// How often it is looked whether something is in force everywhere: it takes two messages from each node, some milliseconds.
const LOOK: Duration = Duration::from_millis(10);

/// Why a command of the host has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing was proposed.
    #[error("{0}")]
    NotProposed(String),
    /// It may be committed, now or later, or never.
    #[error("it may or may not be done: {0}; look before trying again")]
    Unknown(String),
}

pub(super) async fn propose<H: Host>(
    shared: &Arc<Shared<H>>,
    command: Vec<u8>,
) -> Result<Arc<[u8]>, HostError> {
    if command.len() > COMMAND_MAX {
        let length = command.len();
        let why = format!("a command of {length} bytes is longer than {COMMAND_MAX}: do less at once");
        return Err(HostError::NotProposed(why));
    }
    match shared.propose(vec![Command::Host(command.into())]).await {
        Proposed::Committed(outcomes) => answer(outcomes),
        Proposed::NotLeader(_) => Err(HostError::NotProposed(
            "there is no leader now: try again when a majority of the voters reach each other".to_owned(),
        )),
        Proposed::Unknown(problem) => Err(HostError::Unknown(problem)),
    }
}

fn answer(outcomes: Vec<Result<Vec<Effect>, String>>) -> Result<Arc<[u8]>, HostError> {
    let effects = outcomes.into_iter().next().unwrap_or(Ok(Vec::new()));
    let effects = effects.map_err(HostError::NotProposed)?;
    let told = effects.into_iter().find_map(|effect| match effect {
        Effect::Host(answer) => Some(answer),
        _ => None,
    });
    told.ok_or_else(|| HostError::Unknown("the leader gave no answer to it".to_owned()))
}

pub(super) async fn in_force_everywhere<H: Host>(shared: &Arc<Shared<H>>, version: Version) -> bool {
    // By the clock that leases run by: a timer's is slewed.
    let over = shared.outside.clock.now().plus(shared.options.timing.waited());
    let mut looks = tokio::time::interval(LOOK);
    loop {
        looks.tick().await;
        let status = status::of(shared).await;
        if status.and_then(|status| status.in_force).is_some_and(|in_force| in_force >= version) {
            return true;
        }
        if shared.outside.clock.now() >= over {
            return false;
        }
    }
}
