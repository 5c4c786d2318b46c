//! Follows the policy file: when its content changes, or on SIGHUP, the new policy is put in force whole, or refused with the reason
//! while the old one stays.
//!
//! Editors and Kubernetes replace a file by a rename or by swinging a symlink, so the folder is watched, not the file, and what
//! counts is whether the content differs. A slow poll stands behind the watch: some file systems report nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::node::Node;
use crate::policy;

/// What a watch missed is found after this long.
const POLL: Duration = Duration::from_secs(2);
/// A write comes as several events; the last one counts.
const SETTLE: Duration = Duration::from_millis(50);

/// Reads a policy file.
///
/// # Errors
/// It cannot be read or is not UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    // One byte beyond the bound, by which the parser knows that there is more, and says so.
    let most = policy::MAX_BYTES as u64 + 1;
    std::fs::File::open(path)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// Follows `path` until `stopping`.
pub async fn follow(node: Arc<Node>, path: PathBuf, stopping: CancellationToken) {
    let changed = Arc::new(Notify::new());
    let _watcher = watch(&path, changed.clone());
    let mut hangup = signal(SignalKind::hangup()).ok();
    // The text that was last looked at, taken or refused: it is not looked at again until it differs. None at first: the file may
    // have changed since the node read its first policy from it.
    let mut seen = None;
    loop {
        let asked = tokio::select! {
            () = stopping.cancelled() => return,
            () = changed.notified() => { tokio::time::sleep(SETTLE).await; false }
            () = tokio::time::sleep(POLL) => false,
            Some(()) = next_hangup(&mut hangup) => true,
        };
        // A large policy takes a second to read and check: not on a worker that serves requests.
        let (looking, file, before) = (node.clone(), path.clone(), seen.take());
        match tokio::task::spawn_blocking(move || look(&looking, &file, before, asked)).await {
            Ok(looked_at) => seen = looked_at,
            // A panic was told by its hook; the next text may fare better.
            Err(failed) if failed.is_panic() => {}
            Err(_stopping) => return,
        }
    }
}

/// Looks at the file and puts it in force if it differs from `seen`, or if somebody has asked. Returns what was looked at.
fn look(node: &Node, path: &Path, seen: Option<String>, asked: bool) -> Option<String> {
    match read(path) {
        Ok(text) => {
            if asked || seen.as_ref() != Some(&text) {
                apply(node, path, &text, asked);
            }
            Some(text)
        }
        Err(error) => {
            // Between two steps of a replacement there may be no file; only who asked is told.
            if asked {
                node.metrics.count_reload("refused");
                tracing::error!(file = %path.display(), %error, "the policy file cannot be read; the old policy stays");
            }
            seen
        }
    }
}

/// Puts the policy in force unless it is in force already. Who has asked for it gets it anyway: a policy names its providers'
/// secrets and does not hold them, and one may have changed.
fn apply(node: &Node, path: &Path, text: &str, asked: bool) {
    let now = node.snapshot();
    match policy::parse(text, &path.display().to_string()) {
        Ok(policy) if !asked && policy == now.policy && now.everyone.is_none() => {
            node.metrics.count_reload("unchanged");
            tracing::info!(file = %path.display(), "the policy file says what is in force already");
        }
        Ok(policy) => {
            let next = now.next(policy, crate::clock::now());
            let version = next.version;
            for upstream in next.upstreams.iter() {
                if let Some(problem) = upstream.problem() {
                    tracing::warn!(
                        provider = upstream.name,
                        problem,
                        "a provider cannot be called from this node"
                    );
                }
            }
            crate::estimate::warm_up(next.encodings());
            node.apply(next);
            node.metrics.count_reload("applied");
            tracing::info!(file = %path.display(), version, "a new policy is in force");
        }
        Err(problems) => {
            node.metrics.count_reload("refused");
            tracing::error!(file = %path.display(), "the new policy is refused and the old one stays:\n{problems}");
        }
    }
}

async fn next_hangup(hangup: &mut Option<tokio::signal::unix::Signal>) -> Option<()> {
    match hangup {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

fn watch(path: &Path, changed: Arc<Notify>) -> Option<RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        // Reading the file is an event too, and must not lead to another reading.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            changed.notify_one();
        }
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let watching = notify::recommended_watcher(tell).and_then(|mut watcher| {
        watcher.watch(folder, RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(%error, "the policy's folder cannot be watched; its file is looked at every two seconds");
            None
        }
    }
}
