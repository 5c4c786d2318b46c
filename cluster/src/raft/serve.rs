//! Raft's messages answered.
//!
//! Laws:
//! - a message for another cluster or another node is refused, whatever it says;
//! - of snapshots on their way at most one is held, never longer than it said, and only pieces that follow on one another count.
//!
//! Never here: who is allowed to send one. A peer that could speak to us at all is a member.

use std::sync::{Mutex, PoisonError};

use openraft::{Raft, Snapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::machine::Machine;
use super::network::{Envelope, Piece, PieceAnswer, RpcKind, unversioned, versioned};
use super::types::{SnapshotMeta, Types, Vote};
use crate::wire::MESSAGE_MAX;

pub(super) struct Server {
    pub(super) raft: Raft<Types, Machine>,
    pub(super) me: Envelope,
    incoming: Mutex<Option<Incoming>>,
}

/// A snapshot on its way.
struct Incoming {
    vote: Vote,
    meta: SnapshotMeta,
    total: u64,
    bytes: Vec<u8>,
}

impl Server {
    pub(super) fn new(raft: Raft<Types, Machine>, me: Envelope) -> Self {
        Self { raft, me, incoming: Mutex::new(None) }
    }

    pub(super) async fn handle(&self, kind: u8, body: &[u8]) -> Vec<u8> {
        match RpcKind::try_from(kind) {
            Ok(RpcKind::Vote) => answer(self.opened(body), |question| self.raft.vote(question)).await,
            Ok(RpcKind::PreVote) => answer(self.opened(body), |question| self.raft.pre_vote(question)).await,
            Ok(RpcKind::Append | RpcKind::Heartbeat) => {
                answer(self.opened(body), |question| self.raft.append_entries(question)).await
            }
            Ok(RpcKind::Snapshot) => answer(self.opened(body), |piece| self.piece(piece)).await,
            Ok(RpcKind::Transfer) => {
                answer(self.opened(body), |question| self.raft.handle_transfer_leader(question)).await
            }
            Err(kind) => refuse(&format!("no kind {kind} of message is known here")),
        }
    }

    fn opened<Q: DeserializeOwned>(&self, body: &[u8]) -> Result<Q, String> {
        let (envelope, question) =
            unversioned::<(Envelope, Q)>(body).map_err(|malformed| malformed.to_string())?;
        if envelope != self.me {
            return Err(format!("a message for node {} of another life of this address", envelope.to));
        }
        Ok(question)
    }

    async fn piece(&self, piece: Piece) -> Result<PieceAnswer, String> {
        let Some(whole) = self.collect(piece)? else { return Ok(PieceAnswer::Next) };
        let snapshot = Snapshot { meta: whole.meta, snapshot: whole.bytes.into() };
        let installed = self.raft.install_full_snapshot(whole.vote, snapshot).await;
        installed.map(PieceAnswer::Done).map_err(|fatal| fatal.to_string())
    }

    /// Puts a piece to those before it; the whole, when it was the last.
    fn collect(&self, piece: Piece) -> Result<Option<Incoming>, String> {
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        if piece.offset == 0 {
            if piece.total > MESSAGE_MAX as u64 {
                return Err(format!("a snapshot of {} bytes is longer than one may be", piece.total));
            }
            let Piece { vote, meta, total, .. } = piece;
            *incoming = Some(Incoming { vote, meta, total, bytes: Vec::new() });
        }
        let follows = |held: &Incoming| {
            let end = piece.offset + piece.data.len() as u64;
            held.vote == piece.vote
                && held.total == piece.total
                && held.bytes.len() as u64 == piece.offset
                && end <= held.total
        };
        let Some(held) = incoming.as_mut().filter(|held| follows(held)) else {
            *incoming = None;
            return Err("a piece of a snapshot that does not follow on the last: begin again".into());
        };
        held.bytes.extend_from_slice(&piece.data);
        Ok(if held.bytes.len() as u64 == held.total { incoming.take() } else { None })
    }
}

async fn answer<Q, A, E, F>(question: Result<Q, String>, ask: impl FnOnce(Q) -> F) -> Vec<u8>
where
    A: Serialize,
    E: ToString,
    F: Future<Output = Result<A, E>>,
{
    match question {
        Ok(question) => versioned(&ask(question).await.map_err(|error| error.to_string())),
        Err(refusal) => refuse(&refusal),
    }
}

fn refuse(why: &str) -> Vec<u8> {
    versioned(&Err::<(), &str>(why))
}
