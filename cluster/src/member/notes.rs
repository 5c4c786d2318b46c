//! What a member notes in its folder about itself: who it is, where it belongs, what it promised.

use std::collections::BTreeSet;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::StartError;
use crate::id::{ClusterId, Identity, NodeId};
use crate::outside::Entropy;
use crate::store::{Store, note};

/// Where the folder belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Membership {
    /// The cluster.
    pub cluster: ClusterId,
    /// Its number there.
    pub node: NodeId,
    /// Whether it is to found that cluster, should its log be empty.
    pub founder: bool,
}

/// The folder's identity, made on its first start.
pub async fn identity(store: &Store, entropy: &dyn Entropy) -> Result<Identity, StartError> {
    if let Some(identity) = read(store, note::IDENTITY)? {
        return Ok(identity);
    }
    let identity = Identity(entropy.number());
    write(store, note::IDENTITY, &identity).await?;
    Ok(identity)
}

/// The number of this start: greater than that of any before, even if the folder was restored from an older copy.
pub async fn generation(store: &Store, wall_millis: u64) -> Result<u64, StartError> {
    let last: u64 = read(store, note::START)?.unwrap_or(0);
    let next = wall_millis.max(last + 1);
    write(store, note::START, &next).await?;
    Ok(next)
}

/// Where the folder belongs, if anywhere.
pub fn membership(store: &Store) -> Result<Option<Membership>, StartError> {
    read(store, note::CLUSTER)
}

/// Notes where it belongs, before anybody is told.
pub async fn join(store: &Store, membership: Membership) -> Result<(), StartError> {
    write(store, note::CLUSTER, &membership).await
}

/// The cluster that the folder was by itself, if it ever was.
pub fn alone(store: &Store) -> Result<Option<ClusterId>, StartError> {
    read(store, note::ALONE)
}

/// Notes that it is a cluster by itself.
pub async fn be_alone(store: &Store, cluster: ClusterId) -> Result<(), StartError> {
    write(store, note::ALONE, &cluster).await
}

/// The founders that it promised itself to.
pub fn proposal(store: &Store) -> Result<Option<BTreeSet<Identity>>, StartError> {
    read(store, note::PROPOSAL)
}

/// Notes the founders that it promises itself to, before anybody is told.
pub async fn propose(store: &Store, founders: &BTreeSet<Identity>) -> Result<(), StartError> {
    write(store, note::PROPOSAL, founders).await
}

/// Reads a note.
pub fn read<T: DeserializeOwned>(store: &Store, name: &str) -> Result<Option<T>, StartError> {
    store.note(name).map_err(|problem| {
        StartError::Folder(format!(
            "{}: the note `{name}` cannot be read ({problem}): restore the folder, or start with an empty one as a new node",
            store.folder()
        ))
    })
}

/// Writes a note; it is on disk when this returns.
pub async fn write<T: Serialize + Sync>(store: &Store, name: &str, value: &T) -> Result<(), StartError> {
    store.keep(name, value).await.map_err(|problem| StartError::Folder(problem.to_string()))
}
