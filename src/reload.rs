//! Follows the policy file: it seeds a cluster that has no policy, and when its content changes the node proposes it, in place of the
//! version that the file was last in step with.
//!
//! Laws:
//! - the file never undoes what others have agreed on since: an edit of a file that is not in step with the policy in force is a
//!   conflict, which is said in the log and on `/v1/policy`, and changes nothing;
//! - a file that says what is in force, in these or in other words, is in step, whoever brought that about: nodes whose files are
//!   edited alike propose it once;
//! - one that still says what it said when it was last in step is behind, and no edit; nor is one that says what an earlier version
//!   said and of which nothing is known;
//! - a text that cannot be used changes nothing, and is told with its problems.
//!
//! What the file was last in step with outlives the process, so that a file that is edited while its node is down is an edit all the
//! same. Editors and Kubernetes replace a file by a rename or by swinging a symlink, so the folder is watched, not the file, and what
//! counts is whether the content differs. A slow poll stands behind the watch: some file systems report nothing. On SIGHUP the file
//! is looked at whatever it says, and the secrets are read again that the policy names.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::control::policy::Origin;
use crate::node::agreement::{Agreement, Disagreement, Proposal, read_entry};
use crate::policy::{self, Policy};

/// What a watch missed is found after this long.
const POLL: Duration = Duration::from_secs(2);
/// What could not be proposed is proposed again after this long.
const AGAIN: Duration = Duration::from_millis(200);
/// A write comes as several events; the last one counts.
const SETTLE: Duration = Duration::from_millis(50);

/// The name, in the data folder, of the note about what the file was last in step with.
const NOTE: &str = "policy.in-step.json";

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

/// A policy file that is followed.
pub struct PolicyFile {
    agreement: Arc<Agreement>,
    path: PathBuf,
    /// Where is noted what it was last in step with; nowhere for a node that keeps nothing.
    note: Option<PathBuf>,
    standing: Mutex<Standing>,
}

/// How the file stands to what is agreed on.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// The version that it was last in step with.
    pub in_step_with: Option<u64>,
    /// Why it is not in force though it was edited.
    pub conflict: Option<String>,
    /// Of the text that was in step.
    digest: Option<String>,
    /// Text and policy's version that were looked at last: there is nothing new about them.
    judged: Option<(String, u64)>,
}

/// What is noted of a text in step.
#[derive(Serialize, Deserialize)]
struct Note {
    sha256: String,
    version: u64,
}

/// What is to be done after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Wait until something changes.
    Wait,
    /// Look again shortly: nobody could be asked.
    Again,
}

impl PolicyFile {
    /// The file at `path`, for a node that keeps its notes in `data`.
    #[must_use]
    pub fn new(agreement: Arc<Agreement>, path: PathBuf, data: Option<&Path>) -> Self {
        let note = data.map(|data| data.join(NOTE));
        let noted = note.as_deref().and_then(|note| std::fs::read(note).ok());
        let noted: Option<Note> = noted.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let standing = match noted {
            Some(Note { sha256, version }) => {
                Standing { in_step_with: Some(version), digest: Some(sha256), ..Standing::default() }
            }
            None => Standing::default(),
        };
        Self { agreement, path, note, standing: Mutex::new(standing) }
    }

    /// The node has begun with this text of it.
    pub fn began_with(&self, text: &str) {
        let digest = Sha256::digest(text);
        let control = self.agreement.control();
        if let Some(current) = control.policy().current().filter(|entry| entry.digest[..] == digest[..]) {
            self.in_step(hex::encode(digest), current.version);
            // It may say something else by now.
            self.lock().judged = None;
        }
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it stands to what is agreed on.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.lock().clone()
    }

    /// Follows it until `stopping`.
    pub async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        let changed = Arc::new(Notify::new());
        let _watcher = watch(&self.path, changed.clone());
        let mut hangup = signal(SignalKind::hangup()).ok();
        let mut in_force = self.agreement.in_force();
        // It may have changed since the node read its first policy from it.
        let mut next = self.look(false).await;
        loop {
            let pause = if next == Next::Again { AGAIN } else { POLL };
            let asked = tokio::select! {
                () = stopping.cancelled() => return,
                () = changed.notified() => { tokio::time::sleep(SETTLE).await; false }
                Ok(()) = in_force.changed() => false,
                () = tokio::time::sleep(pause) => false,
                Some(()) = next_hangup(&mut hangup) => true,
            };
            next = self.look(asked).await;
        }
    }

    /// Looks at the file, and has it agreed on if it was edited.
    async fn look(&self, asked: bool) -> Next {
        if !self.agreement.is_known() {
            return Next::Again;
        }
        if asked {
            self.agreement.read_secrets_again().await;
        }
        match read(&self.path) {
            Ok(text) => self.judge(&text, asked).await,
            Err(error) => {
                // Between two steps of a replacement there may be no file; only who asked is told.
                if asked {
                    self.count("refused");
                    tracing::error!(file = %self.path.display(), %error, "the policy file cannot be read; the old policy stays");
                }
                Next::Wait
            }
        }
    }

    async fn judge(&self, text: &str, asked: bool) -> Next {
        let digest = Sha256::digest(text);
        let hex = hex::encode(digest);
        let control = self.agreement.control();
        let ours = control.policy().version();
        if !asked && self.lock().judged.as_ref().is_some_and(|judged| *judged == (hex.clone(), ours)) {
            return Next::Wait;
        }
        let file = self.path.display().to_string();
        let read = {
            let (text, file) = (text.to_owned(), file.clone());
            // A large policy takes a second to read and check: not on a worker that serves requests.
            tokio::task::spawn_blocking(move || policy::parse(&text, &file)).await
        };
        let policy = match read {
            Ok(Ok(policy)) => policy,
            Ok(Err(problems)) => {
                self.count("refused");
                self.lock().judged = Some((hex, ours));
                tracing::error!(file, "the new policy is refused and the old one stays:\n{problems}");
                return Next::Wait;
            }
            // A panic was told by its hook, or the node stops.
            Err(_failed) => return Next::Wait,
        };
        let known = self.lock().digest.clone();
        let in_step = self.lock().in_step_with;
        let same = control.policy().current().is_some_and(|current| current.digest[..] == digest[..])
            || self.is_in_force(&policy, ours);
        if same {
            self.count(if asked { "applied" } else { "unchanged" });
            tracing::info!(file, version = ours, "the policy file says what is in force already");
            self.in_step(hex, ours);
            return Next::Wait;
        }
        let earlier = control.policy().find(&digest.into()).map(|entry| entry.version);
        let unchanged = match &known {
            Some(known) => *known == hex,
            None => earlier.is_some(),
        };
        if ours != 0 && unchanged {
            self.count(if asked { "applied" } else { "behind" });
            tracing::warn!(
                file,
                in_force = ours,
                "the policy file is behind: it says what an earlier version said, and another is in force"
            );
            self.behind(hex, ours, earlier);
            return Next::Wait;
        }
        let Some(expect) = in_step.or((ours == 0).then_some(0)) else {
            self.conflicts(hex, ours, "it was never in step with a policy of this cluster".to_owned());
            return Next::Wait;
        };
        self.propose(text, hex, expect, ours).await
    }

    async fn propose(&self, text: &str, hex: String, expect: u64, ours: u64) -> Next {
        let file = self.path.display().to_string();
        let origin = if expect == 0 { Origin::Seed } else { Origin::File };
        let proposal = Proposal { text, name: &file, expect: Some(expect), origin, by: &file };
        match self.agreement.propose(proposal).await {
            Ok(agreed) => {
                self.count("applied");
                tracing::info!(file, version = agreed.version, "the policy file is in force");
                self.in_step(hex, agreed.version);
                Next::Wait
            }
            // Another was there first: what it is shows at the next look.
            Err(Disagreement::Conflict { expected: 0, .. }) => Next::Again,
            Err(problem @ Disagreement::Conflict { .. }) => {
                self.conflicts(hex, ours, problem.to_string());
                Next::Wait
            }
            Err(problem @ (Disagreement::Invalid(_) | Disagreement::Refused(_))) => {
                self.count("refused");
                self.lock().judged = Some((hex, ours));
                tracing::error!(file, "the new policy is refused and the old one stays:\n{problem}");
                Next::Wait
            }
            Err(problem @ (Disagreement::Unavailable(_) | Disagreement::Unknown(_))) => {
                tracing::warn!(file, %problem, "the policy file could not be proposed yet; tried again");
                Next::Again
            }
        }
    }

    /// Whether `policy` is the one in force, in other words.
    fn is_in_force(&self, policy: &Policy, version: u64) -> bool {
        let snapshot = self.agreement.node().snapshot();
        if version == 0 || snapshot.everyone.is_some() {
            return false;
        }
        let bare = |policy: &Policy| Policy { warnings: Vec::new(), ..policy.clone() };
        if snapshot.policy_version == version {
            return bare(policy) == bare(&snapshot.policy);
        }
        // It is agreed on, and not in force here yet.
        let control = self.agreement.control();
        let current = control.policy().current().filter(|entry| entry.version == version);
        current.is_some_and(|entry| read_entry(entry).is_ok_and(|current| bare(policy) == bare(&current)))
    }

    fn in_step(&self, sha256: String, version: u64) {
        {
            let mut standing = self.lock();
            standing.conflict = None;
            standing.in_step_with = Some(version);
            standing.digest = Some(sha256.clone());
            standing.judged = Some((sha256.clone(), version));
        }
        let Some(note) = &self.note else { return };
        let written = serde_json::to_vec(&Note { sha256, version }).map_err(io::Error::other);
        let next = note.with_extension("next");
        let kept = written
            .and_then(|bytes| std::fs::write(&next, bytes))
            .and_then(|()| std::fs::rename(&next, note));
        if let Err(error) = kept {
            tracing::warn!(note = %note.display(), %error, "it cannot be noted that the policy file is in step: an edit while this node is down may be a conflict");
        }
    }

    fn behind(&self, hex: String, ours: u64, earlier: Option<u64>) {
        let mut standing = self.lock();
        standing.conflict = None;
        if standing.in_step_with.is_none() {
            standing.in_step_with = earlier;
            standing.digest = Some(hex.clone());
        }
        standing.judged = Some((hex, ours));
    }

    fn conflicts(&self, hex: String, ours: u64, why: String) {
        self.count("conflict");
        let file = self.path.display();
        tracing::error!(
            file = %file,
            "the policy file is not in force: {why}. `tollgate apply {file} --expect {ours}` puts it in force"
        );
        let mut standing = self.lock();
        standing.conflict = Some(why);
        standing.judged = Some((hex, ours));
    }

    fn count(&self, result: &str) {
        self.agreement.node().metrics.count_reload(result);
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        // Each change is a few moves of whole values.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The next SIGHUP, if the process can be told of any.
pub(crate) async fn next_hangup(hangup: &mut Option<tokio::signal::unix::Signal>) -> Option<()> {
    match hangup {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Watches the folder of `path` and tells of every change in it.
pub(crate) fn watch(path: &Path, changed: Arc<Notify>) -> Option<RecommendedWatcher> {
    let tell = move |event: notify::Result<notify::Event>| {
        // Reading the file is an event too, and must not lead to another reading.
        if event.is_ok_and(|event| !event.kind.is_access()) {
            changed.notify_one();
        }
    };
    let watching = notify::recommended_watcher(tell).and_then(|mut watcher| {
        watcher.watch(folder_of(path), RecursiveMode::NonRecursive)?;
        Ok(watcher)
    });
    match watching {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "a folder cannot be watched; its file is looked at every two seconds");
            None
        }
    }
}

/// The folder that a file lies in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
