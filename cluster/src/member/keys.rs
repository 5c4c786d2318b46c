//! The rotation of the cluster's secret: install → use → remove.
//!
//! The log agrees on fingerprints and on who holds which; the keys themselves go from node to node over connections that the
//! present key seals, and are kept in each node's folder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::message::{Held, Key, kind};
use super::session::due;
use super::{CALL, Joined, Shared, StartError, notes};
use crate::authority::Command;
use crate::id::NodeId;
use crate::keyring::{KeyId, Keyring, KeyringCommand};
use crate::secret::{Secret, Secrets};
use crate::shards::Host;
use crate::store::Store;
use crate::time::{Moment, Span};
use crate::wire;

const NOTE: &str = "keys";

/// After how long what was said and is not in the log is said again.
const AGAIN: Span = Span::from_millis(1000);

/// The keys that were installed while a node ran.
type Kept = BTreeMap<KeyId, Vec<u8>>;

/// Holds the keys that were installed while this node ran before.
pub(super) fn load(store: &Store, secrets: &Secrets) -> Result<(), StartError> {
    let kept: Kept = notes::read(store, NOTE)?.unwrap_or_default();
    for bytes in kept.into_values() {
        let secret = Secret::new(bytes).map_err(|problem| StartError::Folder(problem.to_string()))?;
        // A ring that is full keeps what the operator gave it now.
        let _ = secrets.hold(secret);
    }
    Ok(())
}

/// The first commands about keys in a cluster's life.
pub(super) fn first<H: Host>(shared: &Shared<H>, node: NodeId) -> Vec<Command> {
    let key = shared.secrets.in_use().id();
    [KeyringCommand::Install { key }, KeyringCommand::Hold { node, key }].map(Command::Keyring).into()
}

/// Follows what the log says of keys, and says which of them this node holds.
pub(super) fn turn<H: Host>(shared: &Arc<Shared<H>>, joined: &Joined, now: Moment, news: bool) {
    let Some(authority) = shared.authority() else { return };
    let keyring = authority.keyring();
    if news {
        switch(shared, keyring);
        let named: BTreeSet<KeyId> = keyring.keys().keys().copied().collect();
        // Only what the log named before: a key that is being installed is held here before the log knows it.
        let gone: Vec<KeyId> = {
            let mut core = shared.core();
            let gone = core.keys.difference(&named).copied().collect();
            core.keys = named;
            gone
        };
        for key in gone {
            let shared = shared.clone();
            shared.clone().spawn(async move { forget(&shared, key).await });
        }
    }
    let holds = |key: &KeyId| shared.secrets.get(*key).is_some();
    let unsaid = keyring.keys().iter().filter(|(key, holders)| !holders.contains(&joined.node) && holds(key));
    let node = joined.node;
    let commands: Vec<Command> =
        unsaid.map(|(&key, _)| Command::Keyring(KeyringCommand::Hold { node, key })).collect();
    let mut core = shared.core();
    if commands.is_empty() || !authority.nodes().contains_key(&node) || !due(core.said_keys, now, AGAIN) {
        return;
    }
    core.said_keys = Some(now);
    drop(core);
    let shared = shared.clone();
    shared.clone().spawn(async move { shared.propose(commands).await });
}

fn switch<H: Host>(shared: &Shared<H>, keyring: &Keyring) {
    let Some(key) = keyring.in_use().filter(|key| *key != shared.secrets.in_use().id()) else { return };
    match shared.secrets.use_key(key) {
        Ok(()) => tracing::info!(%key, "this key seals from now on"),
        Err(problem) => {
            tracing::warn!(%key, %problem, "the cluster uses a key that this node does not hold: give it that key")
        }
    }
}

/// Forgets a key that the log names no longer.
async fn forget<H: Host>(shared: &Arc<Shared<H>>, key: KeyId) {
    if shared.secrets.forget(key).is_ok() {
        keep(shared, |kept| drop(kept.remove(&key))).await;
        tracing::info!(%key, "this key is not read any more");
    }
}

/// Holds a new key, here.
pub(super) async fn hold<H: Host>(shared: &Arc<Shared<H>>, bytes: Vec<u8>) -> Result<KeyId, String> {
    let secret = Secret::new(bytes.clone()).map_err(|problem| problem.to_string())?;
    let key = shared.secrets.hold(secret).map_err(|problem| problem.to_string())?;
    keep(shared, |kept| drop(kept.insert(key, bytes))).await;
    Ok(key)
}

async fn keep<H: Host>(shared: &Arc<Shared<H>>, change: impl FnOnce(&mut Kept)) {
    let kept = async {
        let mut kept: Kept = notes::read(&shared.store, NOTE)?.unwrap_or_default();
        change(&mut kept);
        notes::write(&shared.store, NOTE, &kept).await
    };
    if let Err(problem) = kept.await {
        tracing::error!(%problem, "the keys could not be kept: give this node the new key file before it is started again");
    }
}

/// Gives a key to every live node, then says in the log that it exists.
pub(super) async fn install<H: Host>(shared: &Arc<Shared<H>>, bytes: Vec<u8>) -> Result<KeyId, String> {
    let joined = shared.joined.get().ok_or("this node is not a member yet")?;
    let key = hold(shared, bytes.clone()).await?;
    let authority = shared.authority().ok_or("the log is not applied yet")?;
    step(shared, KeyringCommand::Install { key }).await?;
    let mut lacking = Vec::new();
    let others = authority.nodes().keys().filter(|node| **node != joined.node);
    for &node in others {
        let body = wire::encode(&Key { secret: bytes.clone() });
        let answer = shared.ask(node, kind::KEY, body, CALL).await;
        let held = answer.ok().and_then(|answer| wire::decode::<Option<Held>>(&answer).ok()).flatten();
        match held {
            Some(Held(same)) if same == key => step(shared, KeyringCommand::Hold { node, key }).await?,
            _ => lacking.push(node.to_string()),
        }
    }
    step(shared, KeyringCommand::Hold { node: joined.node, key }).await?;
    if lacking.is_empty() {
        return Ok(key);
    }
    Err(format!(
        "the key is on the ring, but nodes {} do not hold it: start them, or remove them, and install it again",
        lacking.join(", ")
    ))
}

/// Has one step of a rotation committed.
pub(super) async fn step<H: Host>(shared: &Arc<Shared<H>>, step: KeyringCommand) -> Result<(), String> {
    let outcomes = shared.propose_and_say(vec![Command::Keyring(step)]).await?;
    outcomes.into_iter().next().unwrap_or(Ok(Vec::new())).map(|_| ())
}
