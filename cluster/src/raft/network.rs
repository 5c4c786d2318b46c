//! Raft's messages on their way: what each is on the wire, and which of them to wait for how long.
//!
//! Laws:
//! - every message names the cluster and the node that it is for, and begins with a version: one that reached another is refused there;
//! - a message is waited for three quarters of what openraft would, so that a peer that hangs wedges nothing;
//! - a snapshot goes in pieces, so that nothing waits behind one.
//!
//! Never here: sockets, what is answered.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use openraft::OptionalSend;
use openraft::alias::SnapshotOf;
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::machine::SnapshotData;
use super::types::{Address, SnapshotMeta, Types, Vote};
use crate::id::{ClusterId, NodeId};
use crate::wire;

/// The version of every message.
pub(super) const VERSION: u8 = 1;

/// How much of a snapshot one message takes.
const PIECE: usize = 256 * 1024;

/// What a message asks. The number is on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum RpcKind {
    /// A candidate asks for a vote.
    Vote = 1,
    /// Somebody asks whether it would get one.
    PreVote = 2,
    /// A leader's entries.
    Append = 3,
    /// A leader's sign of life: an append without entries, that must not wait behind others.
    Heartbeat = 4,
    /// A piece of a snapshot.
    Snapshot = 5,
    /// A leader asks to be succeeded.
    Transfer = 6,
}

impl From<RpcKind> for u8 {
    fn from(kind: RpcKind) -> Self {
        kind as Self
    }
}

impl TryFrom<u8> for RpcKind {
    type Error = u8;

    fn try_from(number: u8) -> Result<Self, u8> {
        let all = [Self::Vote, Self::PreVote, Self::Append, Self::Heartbeat, Self::Snapshot, Self::Transfer];
        all.into_iter().find(|&kind| u8::from(kind) == number).ok_or(number)
    }
}

/// How a message got lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// It was not sent.
    #[error("it cannot be reached")]
    Unreachable,
    /// It may have arrived.
    #[error("it did not answer")]
    Unknown,
}

/// What carries messages to other nodes.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Asks `node` at `address`, and waits for its answer `within` that time: what [`super::Raft::handle`] returned there.
    ///
    /// # Errors
    /// There is no answer.
    async fn call(
        &self,
        node: NodeId,
        address: &str,
        kind: RpcKind,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<Vec<u8>, TransportError>;
}

/// For whom a message is; what it asks follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Envelope {
    pub(super) cluster: ClusterId,
    pub(super) to: NodeId,
}

/// A piece of a snapshot.
#[derive(Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) vote: Vote,
    pub(super) meta: SnapshotMeta,
    /// How long the whole is.
    pub(super) total: u64,
    /// Where in it this piece belongs.
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
}

/// What became of a piece.
#[derive(Serialize, Deserialize)]
pub(super) enum PieceAnswer {
    /// Send the next.
    Next,
    /// It was the last; the snapshot is installed, or this is why not.
    Done(SnapshotResponse<Types>),
}

/// Where each node is reached, as the newest membership has it.
pub(super) type Addresses = Arc<RwLock<BTreeMap<u64, Address>>>;

/// Makes a [`Peer`] of a node's number.
#[derive(Clone)]
pub(super) struct Peers {
    pub(super) cluster: ClusterId,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) addresses: Addresses,
}

/// A node, to talk to.
pub(super) struct Peer {
    peers: Peers,
    target: u64,
    /// Where it was when it was first talked to.
    address: Address,
    append: RpcKind,
}

impl Peers {
    fn peer(&self, target: u64, address: &Address, append: RpcKind) -> Peer {
        Peer { peers: self.clone(), target, address: address.clone(), append }
    }
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, address: &Address) -> Peer {
        self.peer(target, address, RpcKind::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, address: &Address) -> Peer {
        self.peer(target, address, RpcKind::Heartbeat)
    }
}

impl Peer {
    async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        kind: RpcKind,
        question: &Q,
        within: Duration,
    ) -> Result<A, Unreachable<Types>> {
        let envelope = Envelope { cluster: self.peers.cluster, to: NodeId(self.target) };
        let body = versioned(&(envelope, question));
        // A lock for a look.
        let address = {
            let known = self.peers.addresses.read().unwrap_or_else(PoisonError::into_inner);
            known.get(&self.target).unwrap_or(&self.address).clone()
        };
        let call = self.peers.transport.call(envelope.to, &address.0, kind, body, within);
        let answer = tokio::time::timeout(within, call).await.unwrap_or(Err(TransportError::Unknown));
        // However it got lost, Raft sends it again, and backs off: an error that comes at once must not be repeated at once.
        let answer = answer.map_err(|error| Unreachable::new(&error))?;
        match unversioned::<Result<A, String>>(&answer) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refusal)) => Err(Unreachable::from_string(refusal)),
            Err(malformed) => Err(Unreachable::new(&malformed)),
        }
    }

    async fn send_pieces(
        &self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotData>,
        within: Duration,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let SnapshotOf::<Types, _> { meta, snapshot: data } = snapshot;
        let total = data.len() as u64;
        let mut offset = 0;
        loop {
            let end = data.len().min(offset + PIECE);
            let piece = Piece {
                vote,
                meta: meta.clone(),
                total,
                offset: offset as u64,
                data: data[offset..end].to_vec(),
            };
            match self.ask(RpcKind::Snapshot, &piece, within).await? {
                PieceAnswer::Done(done) => return Ok(done),
                PieceAnswer::Next if end < data.len() => offset = end,
                PieceAnswer::Next => {
                    return Err(Unreachable::from_string("the last piece had no answer").into());
                }
            }
        }
    }
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Ok(self.ask(self.append, &request, option.soft_ttl()).await?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Ok(self.ask(RpcKind::Vote, &request, option.soft_ttl()).await?)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Ok(self.ask(RpcKind::PreVote, &request, option.soft_ttl()).await?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let mut cancel = pin!(cancel);
        tokio::select! {
            biased;
            closed = &mut cancel => Err(closed.into()),
            sent = self.send_pieces(vote, snapshot, option.soft_ttl()) => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        Ok(self.ask(RpcKind::Transfer, &request, option.soft_ttl()).await?)
    }
}

/// A version byte and the value.
pub(super) fn versioned<T: Serialize>(value: &T) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    bytes.extend(wire::encode(value));
    bytes
}

/// The value behind a version byte that is known.
pub(super) fn unversioned<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, wire::Malformed> {
    match bytes {
        [VERSION, value @ ..] => wire::decode(value),
        [version, ..] => {
            Err(wire::Malformed::because(format!("version {version}, this node speaks {VERSION}")))
        }
        [] => Err(wire::Malformed::because("no bytes")),
    }
}
