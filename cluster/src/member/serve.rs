//! What other nodes ask of this one.

use std::sync::{Arc, Weak};

use bytes::Bytes;

use super::admission::admit;
use super::message::{
    Announce, Exported, Heard, Held, InForce, Join, Joined as Answered, Key, Leave, Leaving, Noted, Propose,
    Proposed, Renew, Taken, kind,
};
use super::{DETOUR, Shared, keys, mover, session, status, steward};
use crate::handoff::ImportRefusal;
use crate::peer::{Answer, Caller, Serve};
use crate::shards::Host;
use crate::wire;

/// How long an export waits for the log to say that it was meant for this node.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// Answers peers for as long as the member lives: their connections do not keep it alive.
pub(super) struct Serving<H: Host> {
    pub shared: Weak<Shared<H>>,
}

impl<H: Host> Serve for Serving<H> {
    fn serve(self: Arc<Self>, from: &Caller, kind: u8, body: Bytes) -> Answer {
        self.shared.upgrade().map_or(Answer::Now(Vec::new()), |shared| shared.serve(from, kind, body))
    }
}

impl<H: Host> Shared<H> {
    fn serve(self: Arc<Self>, from: &Caller, kind: u8, body: Bytes) -> Answer {
        if !is_for_all(kind) && !self.is_member(from) {
            tracing::debug!(kind, from = %from.hello.identity, "a call of a node that the log does not name");
            return Answer::Now(Vec::new());
        }
        match kind {
            // The way of every reservation: answered where it is read, without a task of its own.
            kind::HOST => Answer::Now(self.shards.host().answer(&self.shards, &body)),
            kind::LOOK_UP => Answer::Later(Box::pin(async move {
                let looking = tokio::task::spawn_blocking(move || self.shards.host().look_up(&body));
                looking.await.unwrap_or_default()
            })),
            kind::ANNOUNCE => match wire::decode::<Announce>(&body) {
                Ok(said) if self.joined.get().is_some_and(|joined| joined.node == said.to) => {
                    Answer::Now(wire::encode(&mover::take(&self, &said)))
                }
                // For another: it is asked as it stands, so that nothing is passed on twice.
                Ok(said) => Answer::Later(Box::pin(async move {
                    let heard = self.ask(said.to, kind::ANNOUNCE, body.to_vec(), DETOUR).await;
                    heard.unwrap_or_else(|_| wire::encode(&Heard::default()))
                })),
                Err(_) => Answer::Now(wire::encode(&Heard::default())),
            },
            kind::LEAVE => {
                let answer = wire::decode::<Leave>(&body)
                    .map_or(Leaving::NotLeader, |leave| steward::leave(&self, from.hello.identity, leave));
                Answer::Now(wire::encode(&answer))
            }
            kind::IN_FORCE => {
                let noted = wire::decode::<InForce>(&body);
                Answer::Now(wire::encode(&Noted(noted.is_ok_and(|said| session::note_in_force(&self, said)))))
            }
            kind::RAFT.. => {
                let Some(joined) = self.joined.get() else { return Answer::Now(Vec::new()) };
                let raft = joined.raft.clone();
                Answer::Later(Box::pin(async move { raft.handle(kind - kind::RAFT, &body).await }))
            }
            kind::RENEW => Answer::Later(Box::pin(async move {
                let renewed = match wire::decode::<Renew>(&body) {
                    Ok(renew) => session::arrive(&self, renew).await,
                    Err(_) => None,
                };
                wire::encode(&renewed)
            })),
            kind::PROPOSE => Answer::Later(Box::pin(async move {
                let proposed = match wire::decode::<Propose>(&body) {
                    Ok(propose) => self.propose_here(propose.commands).await,
                    Err(problem) => Proposed::Unknown(problem.to_string()),
                };
                wire::encode(&proposed)
            })),
            kind::EXPORT => Answer::Later(Box::pin(async move {
                let taken = match wire::decode::<Exported>(&body) {
                    Ok(export) => import(&self, export).await,
                    Err(_) => false,
                };
                wire::encode(&Taken(taken))
            })),
            kind::JOIN => {
                let member = from.hello.node.is_some();
                Answer::Later(Box::pin(async move {
                    let answer = match wire::decode::<Join>(&body) {
                        Ok(join) => admit(&self, join, member).await,
                        Err(problem) => Answered::Refused(problem.to_string()),
                    };
                    wire::encode(&answer)
                }))
            }
            kind::STATUS => Answer::Later(Box::pin(async move { wire::encode(&status::here(&self)) })),
            kind::KEY => Answer::Later(Box::pin(async move {
                let held = match wire::decode::<Key>(&body) {
                    Ok(key) => keys::hold(&self, key.secret).await.ok(),
                    Err(_) => None,
                };
                wire::encode(&held.map(Held))
            })),
            _ => Answer::Now(Vec::new()),
        }
    }
}

/// Whether who holds the secret is answered, member or not: it may ask to be one, whether it has been forgotten, and what Raft asks, which
/// names cluster and node in every message and has members of its own.
const fn is_for_all(kind: u8) -> bool {
    matches!(kind, kind::JOIN | kind::LEAVE | kind::RAFT..)
}

impl<H: Host> Shared<H> {
    /// Whether the log as applied here names the caller's folder. Of its number the log is asked, and not the caller: it is made known
    /// on a connection when it has one, and calls may come before that. Who is not named here yet asks again.
    fn is_member(&self, from: &Caller) -> bool {
        self.shards.facts().is_some_and(|facts| facts.authority.node_of(from.hello.identity).is_some())
    }
}

/// Takes an export, as soon as the log as applied here says that it was meant for this session.
async fn import<H: Host>(shared: &Arc<Shared<H>>, export: Exported) -> bool {
    let Some(joined) = shared.joined.get() else { return false };
    let mut applied = joined.raft.applied();
    let mut changed = shared.changed.subscribe();
    let patience = tokio::time::sleep(PATIENCE);
    tokio::pin!(patience);
    loop {
        match shared.shards.import(export.clone()) {
            Ok(()) | Err(ImportRefusal::Repeated(_)) => {
                // The log shows nothing of it, and it is to be claimed.
                shared.core().stirred = true;
                shared.wake.notify_one();
                return true;
            }
            // The ring or the renunciation may not be applied here yet, or not followed.
            Err(
                ImportRefusal::NotRenounced(_) | ImportRefusal::Behind { .. } | ImportRefusal::NotAwaited(_),
            ) => {}
        }
        tokio::select! {
            biased;
            () = &mut patience => return false,
            moved = applied.changed() => if moved.is_err() { return false },
            moved = changed.changed() => if moved.is_err() { return false },
        }
    }
}
