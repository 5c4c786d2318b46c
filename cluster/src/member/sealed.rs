//! What a node that stops without an heir leaves to its next life: its sealed shards, on disk.
//!
//! They are exports like any others. Their session is over for every purpose but one: until its fence is committed it may still renounce
//! a shard that it holds. So the next process has each shard renounced to whom the ring names, perhaps itself, and sends the state
//! there. The log takes one claim on it, so it is used at most once; what comes after the fence is void. After a crash there is
//! nothing here, and the shards start cold.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Shared, StartError};
use crate::authority::{Authority, Command};
use crate::handoff::{Export, Outgoing, Progress};
use crate::id::{SessionId, ShardId, Version};
use crate::shards::{Host, Payload};
use crate::store::{NOTE_MAX, Store};
use crate::wire;

/// The most notes that one stop writes: with their size, what is kept of a node that stops without an heir.
const NOTES: usize = 32;

/// Room for what stands around the states in a note.
const MARGIN: usize = 4096;

/// One note: some shards of one session.
#[derive(Serialize, Deserialize)]
struct Page {
    session: SessionId,
    shards: Vec<(ShardId, Version, Payload)>,
}

/// Sealed shards of an earlier life.
pub(super) type Inherited = BTreeMap<ShardId, Outgoing<Payload>>;

fn name(page: usize) -> String {
    format!("sealed-{page}")
}

/// Seals all shards and writes them to disk. Nothing is answered for any more.
pub(super) async fn leave<H: Host>(shared: &Arc<Shared<H>>) {
    let session = {
        let mut core = shared.core();
        // From here on: what is sealed and kept must not be renounced to this very session, claimed and served again.
        core.kept = true;
        core.holder.session()
    };
    let sealed = shared.shards.seal_all();
    shared.shards.withdraw();
    if sealed.is_empty() {
        return;
    }
    let mut pages = vec![Page { session, shards: Vec::new() }];
    let (mut size, mut kept) = (0, 0);
    for outgoing in &sealed {
        let length = outgoing.payload().len() + 64;
        if size + length > NOTE_MAX - MARGIN {
            pages.push(Page { session, shards: Vec::new() });
            size = 0;
        }
        if length > NOTE_MAX - MARGIN || pages.len() > NOTES {
            tracing::warn!(shard = %outgoing.shard(), "the state of a shard is too large to be kept over a stop: it starts cold");
            continue;
        }
        size += length;
        kept += 1;
        if let Some(page) = pages.last_mut() {
            page.shards.push((outgoing.shard(), outgoing.version(), outgoing.payload().clone()));
        }
    }
    pages.truncate(NOTES);
    // Those that an earlier life left and nobody dropped go with it, or they would be read instead.
    let names: Vec<String> = (0..NOTES).map(name).collect();
    let notes = names.iter().zip(0..).map(|(name, at)| (name.as_str(), pages.get(at).map(wire::encode)));
    match shared.store.keep_all(notes).await {
        Ok(()) => {
            tracing::info!(shards = kept, "no other node takes the shards: their state is kept on disk")
        }
        Err(problem) => {
            tracing::error!(%problem, "the state of the shards could not be kept: they start cold")
        }
    }
}

/// What an earlier life left.
pub(super) fn inherit(store: &Store) -> Result<Inherited, StartError> {
    let mut inherited = Inherited::new();
    for page in 0..NOTES {
        let Some(page) = super::notes::read::<Page>(store, &name(page))? else { continue };
        for (shard, version, payload) in page.shards {
            inherited.insert(shard, Outgoing::seal(shard, page.session, version, payload));
        }
    }
    Ok(inherited)
}

/// Drops what has found its heir, or is void.
pub(super) fn follow<H: Host>(shared: &Arc<Shared<H>>, authority: &Authority) {
    let mut core = shared.core();
    if core.inherited.is_empty() || authority.applied().is_none() {
        return;
    }
    core.inherited.retain(|_, outgoing| outgoing.progress(authority) != Progress::Gone);
    if !core.inherited.is_empty() {
        return;
    }
    drop(core);
    let shared = shared.clone();
    shared.clone().spawn(async move {
        let names: Vec<String> = (0..NOTES).map(name).collect();
        let dropped = shared.store.keep_all(names.iter().map(|name| (name.as_str(), None))).await;
        if let Err(problem) = dropped {
            tracing::warn!(%problem, "what was inherited and used could not be dropped; it is void all the same");
        }
    });
}

/// What is to be proposed for them.
pub(super) fn proposals(inherited: &Inherited, authority: &Authority) -> Vec<Command> {
    inherited.values().filter_map(|outgoing| outgoing.renounce(authority)).collect()
}

/// What of them is to be sent.
pub(super) fn exports(inherited: &Inherited, authority: &Authority) -> Vec<Export<Payload>> {
    inherited.values().filter_map(|outgoing| outgoing.export(authority)).collect()
}
