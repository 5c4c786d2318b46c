//! Follows the keys of those who sign tokens: files as they change, addresses every few minutes and when a token is signed with a
//! key that is new.
//!
//! Laws: keys that were good stay until better ones are had; a stranger who sends tokens with made-up key ids makes us ask at most
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
use crate::policy::IssuerKeys;
use crate::upstream::fetch;

/// How often it is looked whether anything is due.
const TICK: Duration = Duration::from_millis(250);
/// How often a file is read.
const FILE: Duration = Duration::from_secs(2);
/// How long fetched keys are used before they are fetched again. Issuers publish a key long before they sign with it.
const FRESH: Duration = Duration::from_secs(5 * 60);
/// The shortest time between two fetches.
const PAUSE: Duration = Duration::from_secs(10);
/// The largest file.
const MOST: u64 = 256 * 1024;

/// Follows the issuers of whatever policy is in force, until `stopping`.
pub async fn follow(node: Arc<Node>, stopping: CancellationToken) {
    let mut asked: HashMap<String, Instant> = HashMap::new();
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stopping.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let snapshot = node.snapshot();
        asked.retain(|name, _| snapshot.issuers.iter().any(|trusted| trusted.issuer.issuer == *name));
        for trusted in snapshot.issuers.iter() {
            let name = &trusted.issuer.issuer;
            let now = crate::clock::timer_now();
            let since = asked.get(name).map(|at| now - *at);
            let due = |every: Duration| since.is_none_or(|since| since >= every);
            let wanted = |every: Duration| {
                // Taken in any case: what is fetched now is what was asked for.
                due(PAUSE) && (trusted.take_want() || !trusted.has_keys() || due(every))
            };
            let document = match &trusted.issuer.keys {
                IssuerKeys::Secret(_) => continue,
                IssuerKeys::File(path) if due(FILE) => {
                    let path = path.clone();
                    let reading = tokio::task::spawn_blocking(move || read(&path)).await;
                    reading.unwrap_or_else(|_| Err("could not be read".to_owned()))
                }
                IssuerKeys::Url(url) if wanted(FRESH) => {
                    let fetching = fetch(url);
                    tokio::select! {
                        () = stopping.cancelled() => return,
                        fetched = fetching => fetched.map(Vec::from),
                    }
                }
                IssuerKeys::File(_) | IssuerKeys::Url(_) => continue,
            };
            asked.insert(name.clone(), now);
            match document.and_then(|text| {
                KeySet::read(&text).ok_or_else(|| "holds no key that can be used".to_owned())
            }) {
                Ok(keys) => trusted.learn(keys),
                Err(why) => tracing::warn!(issuer = name, why, "the keys of an issuer were not renewed"),
            }
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MOST).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}
