//! Follows the keys of those who sign tokens: files, those with a shared secret among them, as they change, addresses every few minutes and when a token is signed with a
//! key that is new.
//!
//! Laws: keys that were good stay until better ones are had, and why they are not renewed is said once; a stranger who sends tokens with made-up key ids makes us ask at most
//! once in `PAUSE`.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::auth::KeySet;
use crate::node::Node;
use crate::policy::{IssuerKeys, SecretReference};
use crate::upstream::fetch;

/// How often it is looked whether anything is due.
const TICK: Duration = Duration::from_millis(250);
/// How often a file is read.
const FILE: Duration = Duration::from_secs(2);
/// How long fetched keys are used before they are fetched again. Issuers publish a key long before they sign with it.
const FRESH: Duration = Duration::from_secs(5 * 60);
/// The shortest time between two fetches.
const PAUSE: Duration = Duration::from_secs(10);
/// Why, when the task that reads has failed.
const UNREAD: &str = "could not be read";
/// The largest file.
const MOST: u64 = 256 * 1024;

/// Follows the issuers of whatever policy is in force, until `stopping`.
pub async fn follow(node: Arc<Node>, stopping: CancellationToken) {
    let mut asked: HashMap<String, Instant> = HashMap::new();
    // By issuer, why its keys were not renewed last.
    let mut said: HashMap<String, String> = HashMap::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let snapshot = node.snapshot();
        let known = |name: &String| snapshot.issuers.iter().any(|trusted| trusted.issuer.issuer == *name);
        asked.retain(|name, _| known(name));
        said.retain(|name, _| known(name));
        for trusted in snapshot.issuers.iter() {
            let name = &trusted.issuer.issuer;
            let now = crate::clock::timer_now();
            let since = asked.get(name).map(|at| now - *at);
            let due = |every: Duration| since.is_none_or(|since| since >= every);
            let wanted = |every: Duration| {
                // Taken in any case: what is fetched now is what was asked for.
                due(PAUSE) && (trusted.take_want() || !trusted.has_keys() || due(every))
            };
            let renewed = match &trusted.issuer.keys {
                IssuerKeys::Secret(reference @ SecretReference::File(_)) if due(FILE) => {
                    let reference = reference.clone();
                    let reading = tokio::task::spawn_blocking(move || reference.resolve()).await;
                    let secret = reading.map(|secret| secret.map_err(|problem| problem.to_string()));
                    secret
                        .unwrap_or_else(|_| Err(UNREAD.to_owned()))
                        .map(|secret| KeySet::of_secret(secret.expose()))
                }
                IssuerKeys::File(path) if due(FILE) => {
                    let path = path.clone();
                    let reading = tokio::task::spawn_blocking(move || read(&path)).await;
                    reading.unwrap_or_else(|_| Err(UNREAD.to_owned())).and_then(|text| keys_in(&text))
                }
                IssuerKeys::Url(url) if wanted(FRESH) => {
                    let fetching = fetch(url);
                    tokio::select! {
                        () = stopping.cancelled() => return,
                        fetched = fetching => fetched.and_then(|text| keys_in(&text)),
                    }
                }
                IssuerKeys::Secret(_) | IssuerKeys::File(_) | IssuerKeys::Url(_) => continue,
            };
            asked.insert(name.clone(), now);
            match renewed {
                Ok(keys) => {
                    said.remove(name);
                    trusted.learn(keys);
                }
                Err(why) if said.get(name) == Some(&why) => {}
                Err(why) => {
                    tracing::warn!(issuer = name, why, "the keys of an issuer were not renewed");
                    said.insert(name.clone(), why);
                }
            }
        }
    }
}

fn keys_in(document: &[u8]) -> Result<KeySet, String> {
    KeySet::read(document).ok_or_else(|| "holds no key that can be used".to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MOST).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}
