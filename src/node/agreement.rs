//! What is agreed on, in force on this node; and whatever is to be agreed on, through this node.
//!
//! A document is read here, where it is proposed and where it comes into force; the replicated state ([`crate::control`]) only stores
//! it. It is checked together with the keys beside it, against the version that is in force here, and the log takes it only while that
//! is the last one: else it is checked again.
//!
//! Laws:
//! - versions come into force whole and in their order, none twice; one that cannot be read leaves the last one in force, and this
//!   node is not ready and, once its lease asks for it, answers nothing;
//! - whoever is told that something is done is told so after every node that may answer has it in force.
//!
//! Never here: HTTP, files, what a policy means.

mod budgets;

use std::io::{Read as _, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tollgate_cluster::agreed::COMMAND_MAX;
use tollgate_cluster::alone::Alone;
use tollgate_cluster::id::Version;
use tollgate_cluster::member::HostError;
use tollgate_cluster::store::Shelf;

use super::compile::tenant_rules;
use super::escrow::drawing::Log;
use super::membership::Membership;
use super::{Beside, Node, Snapshot, Versions};
use crate::control::exceptions;
use crate::control::keys::{self, Change, KeyName, Keys};
use crate::control::policy::{self as log, Entry, Origin};
use crate::control::{Answer, Command, Control, Refusal, codec, terms};
use crate::policy::{self, Policy, Problems};
use crate::telemetry::Metrics;

/// How often a command is checked anew because something else was agreed on meanwhile. Each time somebody else got through.
const TRIES: u32 = 16;

/// How long this node may take to follow the log to what it is asked about.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often it is looked whether an override has ended.
const LAPSES: Duration = Duration::from_millis(500);

/// So much text of earlier versions is read by a node that starts, to know which limits there ever were.
const REMEMBERED_BYTES: usize = 16 * 1024 * 1024;

/// Where the log is.
pub enum Source {
    /// Here alone.
    Alone(Arc<Alone>),
    /// In a cluster.
    Member(Membership),
}

/// See the module.
pub struct Agreement {
    node: Arc<Node>,
    source: Source,
    /// One version is put in force at a time.
    following: tokio::sync::Mutex<()>,
    /// Why the last version is not in force here, once that is so.
    problem: Mutex<Option<Unreadable>>,
    in_force: watch::Sender<u64>,
}

/// A version that this node cannot put in force.
#[derive(Clone, Debug)]
struct Unreadable {
    version: u64,
    why: String,
}

/// Something that is agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// In which version.
    pub version: u64,
    /// Whether it was so before.
    pub already: bool,
    /// Whether every node has said that it has it in force. If not, those that have not have no lease any more.
    pub everywhere: bool,
}

/// Why something is not agreed on.
#[derive(Debug, thiserror::Error)]
pub enum Disagreement {
    /// The document cannot be used.
    #[error("{0}")]
    Invalid(Problems),
    /// It contradicts what else is agreed on, or is not there: in words.
    #[error("{0}")]
    Refused(String),
    /// The policy is not the one that was to be replaced.
    #[error("{}", Refusal::Expected { expected: *expected, ours: *ours })]
    Conflict {
        /// The version that was to be replaced.
        expected: u64,
        /// The version that the policy has.
        ours: u64,
    },
    /// Nobody could be asked: it is not agreed on.
    #[error("{0}")]
    Unavailable(String),
    /// It may or may not be agreed on.
    #[error("{0}")]
    Unknown(String),
}

/// A document that is to be agreed on.
#[derive(Clone, Copy, Debug)]
pub struct Proposal<'a> {
    /// Its text.
    pub text: &'a str,
    /// What problems call it.
    pub name: &'a str,
    /// The version of the policy that it is to replace; 0: there is none yet. Without it, whichever there is.
    pub expect: Option<u64>,
    /// Where it comes from.
    pub origin: Origin,
    /// Who proposes it, for people.
    pub by: &'a str,
}

impl Agreement {
    /// The agreement of `node`, whose log is there.
    #[must_use]
    pub fn new(node: Arc<Node>, source: Source) -> Self {
        Self {
            node,
            source,
            following: tokio::sync::Mutex::new(()),
            problem: Mutex::new(None),
            in_force: watch::Sender::new(0),
        }
    }

    /// The node.
    #[must_use]
    pub const fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// What is agreed on, as far as it is applied here. Nothing is, before this node is a member of its cluster.
    #[must_use]
    pub fn control(&self) -> Control {
        self.known().unwrap_or_default()
    }

    /// [`Agreement::control`]; none before this node is a member of its cluster.
    fn known(&self) -> Option<Control> {
        let agreed = match &self.source {
            Source::Alone(alone) => alone.applied().borrow().agreed.clone(),
            Source::Member(membership) => membership.member().agreed()?,
        };
        agreed.downcast::<Control>().cloned()
    }

    /// The log, as purses are filled from it.
    #[must_use]
    pub fn log(&self) -> Arc<dyn Log> {
        match &self.source {
            Source::Alone(alone) => alone.clone(),
            Source::Member(membership) => membership.log(),
        }
    }

    /// What this node keeps on the disk of its log.
    #[must_use]
    pub fn shelf(&self) -> Shelf {
        match &self.source {
            Source::Alone(alone) => alone.shelf(),
            Source::Member(membership) => membership.member().shelf(),
        }
    }

    /// Whether this node knows what its cluster has agreed on: it is a member, and somebody leads.
    #[must_use]
    pub fn is_known(&self) -> bool {
        match &self.source {
            Source::Alone(_) => true,
            Source::Member(membership) => {
                membership.member().raft_stats().is_some_and(|stats| stats.leader.is_some())
            }
        }
    }

    /// The version that is in force here, whenever it changes.
    #[must_use]
    pub fn in_force(&self) -> watch::Receiver<u64> {
        self.in_force.subscribe()
    }

    /// What stands between this node and admitting, as far as that is the policy; nothing while it can.
    #[must_use]
    pub fn waiting_for(&self) -> Option<String> {
        if let Some(Unreadable { version, why }) = &*self.problem() {
            return Some(format!(
                "version {version} of what is agreed on cannot be put in force here: {why}"
            ));
        }
        let nothing = "waiting for a policy: start a node with --policy FILE, or run `tollgate apply FILE`";
        self.node.snapshot().is_nothing().then(|| nothing.to_owned())
    }

    /// Puts in force whatever is agreed on, until `stopping`.
    pub async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        let mut changed = self.changed();
        // Outside of the loop: something may change more often than that.
        let mut lapses = tokio::time::interval(LAPSES);
        lapses.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            changed.mark_unchanged();
            self.catch_up().await;
            tokio::select! {
                () = stopping.cancelled() => return,
                more = changed.changed() => if more.is_err() { return },
                _ = lapses.tick(), if !self.node.snapshot().exceptions.overrides().is_empty() => {
                    self.lapse().await;
                }
            }
        }
    }

    /// Puts in force what is agreed on now.
    pub async fn catch_up(&self) {
        let _one_at_a_time = self.following.lock().await;
        let (control, before) = (self.control(), self.node.snapshot());
        let known_bad = self.problem().as_ref().is_some_and(|problem| problem.version == control.version());
        if control.version() <= before.version || known_bad {
            return;
        }
        let now = self.node.now();
        let version = control.version();
        // A large policy takes a second to read and check: not on a worker that serves requests.
        let made = tokio::task::spawn_blocking(move || {
            let next = succeed(&before, &control, now)?;
            crate::estimate::warm_up(next.encodings());
            Ok(next)
        });
        match made.await.unwrap_or_else(|failed| Err(failed.to_string())) {
            Ok(next) => {
                self.say_of_secrets(&self.node.snapshot(), &next);
                let policy = next.policy_version;
                self.node.apply(next);
                *self.problem() = None;
                self.in_force.send_replace(version);
                if let Source::Member(membership) = &self.source {
                    membership.member().refresh();
                }
                tracing::info!(version, policy, "a new version of policy and keys is in force");
            }
            Err(why) => {
                tracing::error!(version, why, "a version cannot be put in force; the last one stays");
                *self.problem() = Some(Unreadable { version, why });
            }
        }
    }

    /// Reads the secrets again that the policy in force names. One that cannot be read stays as it was.
    pub async fn read_secrets_again(&self) {
        let _one_at_a_time = self.following.lock().await;
        let before = self.node.snapshot();
        let again = before.read_again();
        self.say_of_secrets(&before, &again);
        self.node.apply(again);
    }

    /// Says what has become of providers' secrets, once each.
    fn say_of_secrets(&self, before: &Snapshot, after: &Snapshot) {
        for upstream in after.upstreams.iter() {
            let earlier = before.upstreams.get(&upstream.name);
            let provider = &*upstream.name;
            let anew = earlier.and_then(|earlier| upstream.found_anew(earlier));
            if let Some(usable) = anew {
                let result = if usable { "applied" } else { "refused" };
                self.node.metrics.count_secret_reload(provider, result);
            }
            if anew == Some(true) {
                tracing::info!(provider, "a provider's new secret is in use");
            }
            if let Some(problem) = upstream.outdated()
                && earlier.and_then(|earlier| earlier.outdated()) != Some(problem)
            {
                tracing::error!(
                    provider,
                    problem,
                    "a provider's new secret is refused and the old one stays"
                );
            }
            if let Some(problem) = upstream.problem()
                && earlier.and_then(|earlier| earlier.problem()) != Some(problem)
            {
                tracing::warn!(provider, problem, "a provider cannot be called from this node");
            }
        }
    }

    /// Has a document agreed on, unless the policy in force says the same word for word.
    ///
    /// # Errors
    /// [`Disagreement`]: why not.
    pub async fn propose(&self, proposal: Proposal<'_>) -> Result<Agreed, Disagreement> {
        let policy = read(proposal.text, proposal.name).await?;
        let digest: log::Digest = Sha256::digest(proposal.text).into();
        let document = compressed(proposal.text);
        if document.len() > log::DOCUMENT_MAX {
            return Err(Disagreement::Refused(format!(
                "the document has {} bytes compressed, and {} is the most: make keys with `tollgate keys create` rather than in it, or split the tenants over more than one cluster",
                document.len(),
                log::DOCUMENT_MAX
            )));
        }
        let settings = terms::settings(&policy);
        self.agree_on(|snapshot| {
            fits_keys(&policy, &snapshot.agreed_keys)?;
            let command = Command::Policy(log::Commit {
                basis: snapshot.version,
                expect: proposal.expect,
                document: document.clone(),
                digest,
                origin: proposal.origin,
                by: proposal.by.to_owned(),
                wall_millis: wall_millis(),
                settings: settings.clone(),
            });
            fits_an_entry(&command)?;
            Ok(command)
        })
        .await
    }

    /// Has a change of a key agreed on. `change` is made for the policy and the keys in force.
    ///
    /// # Errors
    /// [`Disagreement`]: why not.
    pub async fn change_key(
        &self,
        change: impl Fn(&Snapshot) -> Result<Change, String>,
    ) -> Result<Agreed, Disagreement> {
        self.agree_on(|snapshot| {
            let change = change(snapshot)?;
            fits_policy(&snapshot.policy, &change)?;
            let (basis, wall_millis) = (snapshot.version, wall_millis());
            Ok(Command::Key(keys::Commit { basis, wall_millis, change }))
        })
        .await
    }

    /// Has something excepted from the policy. `change` is made for the policy in force.
    ///
    /// # Errors
    /// [`Disagreement`]: why not.
    pub async fn except(
        &self,
        tenant: &str,
        change: impl Fn(&Snapshot) -> Result<exceptions::Change, String>,
    ) -> Result<Agreed, Disagreement> {
        self.agree_on(|snapshot| {
            let change = change(snapshot)?;
            let (basis, wall_millis) = (snapshot.version, wall_millis());
            let tenant = tenant.to_owned();
            Ok(Command::Exception(exceptions::Commit { basis, wall_millis, tenant, change }))
        })
        .await
    }

    /// Has overrides end whose time is over, if this node leads. The log decides by its own time whether one has.
    async fn lapse(&self) {
        let time = match &self.source {
            Source::Alone(alone) => alone.log_time(),
            Source::Member(membership) => membership.member().log_time(),
        };
        let next = self.control().exceptions().next_lapse();
        if next.zip(time).is_some_and(|(next, time)| next <= time)
            && let Err(problem) = self.say(&Command::Lapse).await
        {
            tracing::warn!(%problem, "an override whose time is over has not ended yet; it is tried again");
        }
    }

    /// Makes a command for what is in force and proposes it, again while something else is agreed on in between.
    async fn agree_on(
        &self,
        command: impl Fn(&Snapshot) -> Result<Command, String>,
    ) -> Result<Agreed, Disagreement> {
        let mut least = 0;
        for _ in 0..TRIES {
            let snapshot = self.settled(least).await?;
            let command = command(&snapshot).map_err(Disagreement::Refused)?;
            let (version, already) = match self.say(&command).await? {
                Answer::Done { version } => (version, false),
                Answer::Already { version } => (version, true),
                Answer::Refused(Refusal::Stale { ours, .. }) => {
                    least = ours;
                    continue;
                }
                Answer::Refused(Refusal::Expected { expected, ours }) => {
                    return Err(Disagreement::Conflict { expected, ours });
                }
                Answer::Refused(refusal) => return Err(Disagreement::Refused(refusal.to_string())),
                Answer::Unreadable | Answer::Escrow(_) => {
                    let why = "the leader is of another version of this program: upgrade all nodes";
                    return Err(Disagreement::Refused(why.to_owned()));
                }
            };
            self.settled(version).await.map_err(|why| Disagreement::Unknown(why.to_string()))?;
            let everywhere = match &self.source {
                Source::Alone(_) => true,
                Source::Member(membership) => membership.member().in_force_everywhere(Version(version)).await,
            };
            return Ok(Agreed { version, already, everywhere });
        }
        Err(Disagreement::Unavailable(
            "others change the policy or its keys all the time: try again".to_owned(),
        ))
    }

    async fn say(&self, command: &Command) -> Result<Answer, Disagreement> {
        let bytes = codec::command(command);
        let answer = match &self.source {
            Source::Alone(alone) => alone.propose(bytes).await,
            Source::Member(membership) => membership.member().propose(bytes).await,
        };
        match answer {
            Ok(answer) => {
                codec::read_answer(&answer).map_err(|problem| Disagreement::Unknown(problem.to_string()))
            }
            Err(HostError::NotProposed(why)) => Err(Disagreement::Unavailable(why)),
            Err(problem @ HostError::Unknown(_)) => Err(Disagreement::Unknown(problem.to_string())),
        }
    }

    /// What is in force here, once that is all that is agreed on, and `least` at least.
    async fn settled(&self, least: u64) -> Result<Arc<Snapshot>, Disagreement> {
        let mut changed = self.changed();
        let follows = async {
            loop {
                changed.mark_unchanged();
                self.catch_up().await;
                let (snapshot, control) = (self.node.snapshot(), self.known());
                let known = control.is_some_and(|control| snapshot.version == control.version());
                if known && snapshot.version >= least {
                    return Ok(snapshot);
                }
                if let Some(Unreadable { why, .. }) = &*self.problem() {
                    return Err(Disagreement::Unavailable(format!(
                        "this node cannot read what is agreed on ({why}): ask another"
                    )));
                }
                if changed.changed().await.is_err() {
                    return Err(Disagreement::Unavailable("this node stops".to_owned()));
                }
            }
        };
        let late = "this node does not know yet what is agreed on: try again, or at another node";
        tokio::time::timeout(PATIENCE, follows)
            .await
            .unwrap_or_else(|_| Err(Disagreement::Unavailable(late.to_owned())))
    }

    /// Grows whenever something may have been agreed on.
    fn changed(&self) -> watch::Receiver<u64> {
        match &self.source {
            Source::Alone(_) => self.in_force.subscribe(),
            Source::Member(membership) => membership.member().changed(),
        }
    }

    /// Waits until this node cannot go on, and says why and what to do: its disk has failed, or its cluster will not have it.
    pub async fn failed(&self) -> String {
        match &self.source {
            Source::Alone(alone) => {
                let mut broken = alone.broken();
                let told = broken.wait_for(Option::is_some).await;
                let why = told.ok().and_then(|why| why.clone());
                why.map(|why| format!("{why}: start this node again when the disk is well"))
                    .unwrap_or_default()
            }
            Source::Member(membership) => membership.member().failed().await,
        }
    }

    /// Lets the data folder of a node go that is its own cluster.
    pub async fn close(&self) {
        if let Source::Alone(alone) = &self.source {
            alone.close().await;
        }
    }

    /// Tells `metrics` how much is agreed on.
    pub fn tell(&self, metrics: &Metrics) {
        let control = self.control();
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        let (budgets, gateways) = control.budgets().entries();
        let maps = [
            ("policy_versions", control.policy().entries().len()),
            ("agreed_keys", control.keys().iter().len()),
            ("revoked_keys", control.keys().revocations()),
            ("suspensions", control.exceptions().suspended().len()),
            ("overrides", control.exceptions().overrides().len()),
            ("budgets", budgets),
            ("budget_gateways", gateways),
            ("budget_alerts", control.budgets().alerts().len()),
        ];
        for (map, entries) in maps {
            metrics.held.get_or_create_owned(&vec![("map", map.to_owned())]).set(gauge(entries));
        }
        metrics.agreed_version.set(i64::try_from(control.version()).unwrap_or(i64::MAX));
        metrics.budgets.tell_used(control.budgets());
        metrics.pools.tell(control.pools(), self.node.escrow(), self.node.now());
    }

    fn problem(&self) -> MutexGuard<'_, Option<Unreadable>> {
        // A value is put in whole.
        self.problem.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The snapshot of all that is agreed on, after `before`.
///
/// # Errors
/// The document cannot be read by this version of the program: why.
pub fn succeed(before: &Snapshot, control: &Control, now: crate::limit::Moment) -> Result<Snapshot, String> {
    let Some(entry) = control.policy().current() else {
        return Err("there are keys, and no policy".to_owned());
    };
    let versions = Versions { all: control.version(), policy: entry.version };
    let beside = Beside { keys: control.keys().clone(), exceptions: control.exceptions().clone() };
    if before.policy_version == entry.version && !before.is_nothing() && before.everyone.is_none() {
        return Ok(before.succeeded_by(versions, before.document.clone(), beside, now));
    }
    let policy = Arc::new(read_entry(entry)?);
    if before.is_nothing() {
        return Ok(remembering(before, control, now).succeeded_by(versions, policy, beside, now));
    }
    Ok(before.succeeded_by(versions, policy, beside, now))
}

/// `before`, with the memory of the limits that earlier versions held: one that went and comes back starts empty, on a node that was not
/// there as well.
fn remembering(before: &Snapshot, control: &Control, now: crate::limit::Moment) -> Snapshot {
    let mut earlier = Vec::new();
    let mut bytes = 0;
    for entry in control.policy().entries().rev().skip(1) {
        let Ok(policy) = read_entry(entry) else { continue };
        bytes += entry.document.len();
        if bytes > REMEMBERED_BYTES {
            break;
        }
        earlier.push((entry.version, policy));
    }
    let mut rules = (*before.rules).clone();
    for (version, policy) in earlier.into_iter().rev() {
        rules = rules.succeeded_by(version, tenant_rules(&policy, &Keys::default()), now);
    }
    let mut remembered = Snapshot::nothing();
    remembered.rules = Arc::new(rules);
    remembered
}

/// The document of a version.
///
/// # Errors
/// It cannot be read by this version of the program.
pub fn read_entry(entry: &Entry) -> Result<Policy, String> {
    let text = text_of(entry)?;
    policy::parse(&text, &format!("version {}", entry.version)).map_err(|problems| problems.to_string())
}

/// The text of a version.
///
/// # Errors
/// It cannot be unpacked.
pub fn text_of(entry: &Entry) -> Result<String, String> {
    let mut text = String::new();
    // One byte beyond the bound, by which the parser knows that there is more, and says so.
    let most = policy::MAX_BYTES as u64 + 1;
    let unpacked =
        flate2::read::DeflateDecoder::new(&entry.document[..]).take(most).read_to_string(&mut text);
    unpacked.map_err(|error| format!("version {} cannot be unpacked: {error}", entry.version))?;
    Ok(text)
}

/// A document's text as the log has it.
#[must_use]
pub fn compressed(text: &str) -> Vec<u8> {
    let mut packer = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    // Memory takes every write.
    let packed = packer.write_all(text.as_bytes()).and_then(|()| packer.finish());
    packed.unwrap_or_default()
}

async fn read(text: &str, name: &str) -> Result<Policy, Disagreement> {
    let (text, name) = (text.to_owned(), name.to_owned());
    let read = tokio::task::spawn_blocking(move || policy::parse(&text, &name)).await;
    let read = read.map_err(|failed| Disagreement::Unavailable(failed.to_string()))?;
    read.map_err(Disagreement::Invalid)
}

/// Whether a policy with what pools and budgets need of it can be committed.
fn fits_an_entry(command: &Command) -> Result<(), String> {
    let length = codec::command(command).len();
    if length <= COMMAND_MAX {
        return Ok(());
    }
    Err(format!(
        "the document has {length} bytes compressed and with its budgets listed, and {COMMAND_MAX} is the most: give tiers a budget only where it binds, or split the tenants over more than one cluster"
    ))
}

/// Whether the document's keys go together with those that are agreed on.
///
/// # Errors
/// The first that does not: why, in words.
pub fn fits_keys(policy: &Policy, keys: &Keys) -> Result<(), String> {
    if keys.iter().len() == 0 {
        return Ok(());
    }
    for tenant in &policy.tenants {
        for key in &tenant.keys {
            let name = KeyName { tenant: tenant.id.clone(), label: key.label.clone() };
            let twice = keys.get(&name).map(|_| &name).or_else(|| keys.of_hash(&key.hash.0));
            if let Some(KeyName { tenant, label }) = twice {
                return Err(format!(
                    "key {:?} of tenant {} is there already as key {label:?} of tenant {tenant}, made by `tollgate keys create`: leave it out of the document, or revoke that one",
                    key.label, name.tenant
                ));
            }
        }
    }
    Ok(())
}

/// Whether a change of a key goes together with the document.
fn fits_policy(policy: &Policy, change: &Change) -> Result<(), String> {
    let (name, hash) = match change {
        Change::Create { name, hash, .. } | Change::Rotate { name, hash, .. } => (name, hash),
        Change::Revoke { .. } => return Ok(()),
    };
    let Some(tenant) = policy.tenant(&name.tenant) else {
        return Err(format!("the policy has no tenant {}", name.tenant));
    };
    if let Change::Create { project: Some(project), .. } = change
        && !tenant.projects.iter().any(|known| known.id == *project)
    {
        return Err(format!("tenant {} has no project {project:?}", name.tenant));
    }
    if tenant.keys.iter().any(|key| key.label == name.label) {
        return Err(format!(
            "key {:?} of tenant {} is the policy document's: change it there",
            name.label, name.tenant
        ));
    }
    for tenant in &policy.tenants {
        if let Some(key) = tenant.keys.iter().find(|key| key.hash.0 == *hash) {
            return Err(format!(
                "this hash is that of key {:?} of tenant {} in the policy document: make a new key",
                key.label, tenant.id
            ));
        }
    }
    Ok(())
}

/// Says what this node lacks to serve a policy.
fn wall_millis() -> i64 {
    crate::clock::wall_now().as_millisecond()
}
