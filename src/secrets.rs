//! Follows the files that providers' secrets lie in: what replaces one, by whatever way, is what the next request is sent with.
//!
//! Laws:
//! - a secret that works stays until there is another: a file that is gone, cannot be read or is empty changes nothing, and that is said
//!   once, in the log, as `tollgate_secret_reloads_total` and on `/v1/policy` (`outdated`);
//! - what a watch missed is found by looking: a symlink out of the watched folder, a folder that came later, a file system that tells
//!   nothing.
//!
//! Never here: what a secret is read from, and what it is used for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::RecommendedWatcher;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::node::agreement::Agreement;
use crate::reload;

/// What a watch missed is found after this long.
const POLL: Duration = Duration::from_secs(2);
/// A write comes as several events; the last one counts.
const SETTLE: Duration = Duration::from_millis(50);

/// Follows the secrets of whatever policy is in force, until `stopping`.
pub async fn follow(agreement: Arc<Agreement>, stopping: CancellationToken) {
    let changed = Arc::new(Notify::new());
    // By folder: providers' secrets often lie side by side.
    let mut watched: BTreeMap<PathBuf, Option<RecommendedWatcher>> = BTreeMap::new();
    let mut in_force = agreement.in_force();
    loop {
        let snapshot = agreement.node().snapshot();
        let files = snapshot.upstreams.secret_files();
        watched.retain(|folder, _| files.iter().any(|file| reload::folder_of(file) == folder));
        for file in files {
            let watch = || reload::watch(file, changed.clone());
            watched.entry(reload::folder_of(file).to_owned()).or_insert_with(watch);
        }
        let looking = tokio::task::spawn_blocking(move || snapshot.upstreams.secrets_have_changed());
        if matches!(looking.await, Ok(true)) {
            agreement.read_secrets_again().await;
        }
        tokio::select! {
            () = stopping.cancelled() => return,
            () = changed.notified() => tokio::time::sleep(SETTLE).await,
            Ok(()) = in_force.changed() => {}
            () = tokio::time::sleep(POLL) => {}
        }
    }
}
