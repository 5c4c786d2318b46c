//! What happened in a run: everything the checkers may know, as lines of JSON in the run's folder, so that an old run can be judged again.
//!
//! All instants are nanoseconds of the one clock ([`crate::sys::now`]). Whatever has no definite answer is `unknown`: it may have happened,
//! at any later time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// An instant, in nanoseconds.
pub type At = u64;

/// A second.
pub const SECOND: u64 = 1_000_000_000;
/// A millisecond.
pub const MILLI: u64 = 1_000_000;

/// What bounds a tenant: a bucket of requests, one of tokens, and how many may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Requests at once.
    pub burst: u64,
    /// Requests per minute.
    pub per_minute: u64,
    /// Requests open at the same time.
    pub in_flight: Option<u64>,
    /// Tokens, where they are bounded.
    #[serde(default)]
    pub tokens: Option<Bucket>,
    /// Tokens in a month, where they are bounded.
    #[serde(default)]
    pub budget: Option<u64>,
}

/// A bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// So many at once.
    pub burst: u64,
    /// So many refill in a minute.
    pub per_minute: u64,
}

impl Limits {
    /// The bucket of requests.
    pub const fn requests(self) -> Bucket {
        Bucket { burst: self.burst, per_minute: self.per_minute }
    }
}

/// What a run was to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Chance begins here.
    pub seed: u64,
    /// How many nodes the cluster begins with.
    pub nodes: u8,
    /// The length of a lease, in nanoseconds.
    pub lease: u64,
    /// The tenants by name, and what bounds them.
    pub tenants: BTreeMap<String, Limits>,
    /// Tenants that are asked for all the time and want more than they may have.
    pub saturated: Vec<String>,
    /// Tenants that applications with an official SDK ask for all the time, and do as they are told.
    #[serde(default)]
    pub applications: Vec<String>,
    /// What each key may have that is made and revoked in the run, if any is.
    #[serde(default)]
    pub of_a_key: Option<Bucket>,
    /// The binary under test, and its size as a fingerprint that costs nothing.
    pub binary: String,
    /// Whether the owners keep an audit file.
    pub audited: bool,
    /// The fault windows that must have been there.
    pub windows: usize,
    /// Kinds of faults each of which must have been there; with any, something of each tenant must have been admitted.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// The admissions that must have been there.
    pub admissions: usize,
    /// The workload, by name.
    pub workload: String,
}

/// What a caller knows of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// 200.
    Admitted,
    /// 429: a limit said no.
    Limited,
    /// 503 of the limiter: nobody could decide.
    Unavailable,
    /// 409: the same idempotency key is open or was dispatched.
    Duplicate,
    /// No connection: nothing was sent.
    NotSent,
    /// No answer, or one that says nothing about the limiter.
    Unknown,
}

impl Outcome {
    /// Whether a limiter has said yes or no.
    pub const fn is_decided(self) -> bool {
        matches!(self, Self::Admitted | Self::Limited | Self::Duplicate)
    }
}

/// One HTTP request of a caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number, which the provider sees too.
    pub op: u64,
    /// The logical request: attempts that share it share an `Idempotency-Key`, where they have one.
    pub request: u64,
    /// Who asks.
    pub tenant: String,
    /// With which secret, by name; the tenant's own one, if none is named.
    #[serde(default)]
    pub secret: String,
    /// At which node.
    pub node: u8,
    /// Sent, not before.
    pub inv: At,
    /// Answered (its head), not after.
    pub com: At,
    /// The caller was still there: it had not left before.
    #[serde(default)]
    pub stayed: At,
    /// How.
    pub outcome: Outcome,
    /// The status and Tollgate's own code, or what went wrong.
    pub code: String,
    /// Whether it bears an idempotency key.
    pub keyed: bool,
    /// Whether the caller went away before the end of the answer, on purpose.
    pub aborted: bool,
    /// Whether the answer was read to its end.
    pub complete: bool,
    /// What an official SDK had to do with it, if one made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sdk: Option<OfSdk>,
}

/// An attempt that an official SDK made by itself: what its application asked for once may be several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfSdk {
    /// Which SDK.
    pub name: String,
    /// The application's call.
    pub call: u64,
    /// How many attempts of it were before, as the SDK says.
    pub retry: u64,
    /// Whether it was told not to come back: `x-should-retry: false`.
    pub stop: bool,
    /// After how long it was told to come back, in nanoseconds.
    pub wait: Option<u64>,
    /// How the call ended, by the class of what was raised if it did not end well; nothing if another attempt followed.
    pub ended: Option<String>,
}

/// One request as the provider saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The attempt's number.
    pub op: u64,
    /// The decision that the gateway says it is sent by.
    pub decision: String,
    /// The node that sent it.
    pub node: u8,
    /// Its head had arrived.
    pub at: At,
    /// Its answer was over, or its gateway gone.
    pub end: At,
    /// What was billed, in tokens.
    pub billed: u64,
    /// Whether the bill was told to the gateway.
    pub reported: bool,
    /// Whether the answer went out whole.
    pub whole: bool,
}

/// A line of an owner's audit file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k")]
pub enum Audit {
    /// A decision that stands.
    #[serde(rename = "d")]
    Decided(Decided),
    /// An end that stands.
    #[serde(rename = "e")]
    Ended(Ended),
}

/// A decision of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// The debit was not before.
    pub asked: At,
    /// The debit was not after, and the look at the lease by which the decision stands not before.
    pub lo: At,
    /// That look was not after.
    pub hi: At,
    /// Of which shard.
    pub shard: u16,
    /// Under which claim; 0 where that was not known.
    pub epoch: u64,
    /// By which life of a node.
    pub session: String,
    /// The reservation.
    pub id: String,
    /// Whose.
    pub tenant: String,
    /// In tokens.
    pub cost: u64,
    /// Or refused.
    pub admitted: bool,
    /// The node, from the name of the file.
    #[serde(default)]
    pub node: u8,
}

/// What an owner made of an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// When.
    pub at: At,
    /// Of which shard.
    pub shard: u16,
    /// Under which claim.
    pub epoch: u64,
    /// By which life of a node.
    pub session: String,
    /// The reservation.
    pub id: String,
    /// Whose.
    pub tenant: String,
    /// `now`, `late`, `already`, `unknown`.
    pub how: String,
    /// Tokens given back.
    pub refunded: u64,
    /// Tokens charged on top.
    pub overage: u64,
    /// The node, from the name of the file.
    #[serde(default)]
    pub node: u8,
}

/// A fault, from its beginning to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Which.
    pub nemesis: String,
    /// To whom and how, in words.
    pub what: String,
    /// The nodes that it strikes directly.
    pub victims: Vec<u8>,
    /// It began.
    pub begin: At,
    /// It was over: all is as before, as far as the harness can do that.
    pub healed: At,
    /// Nodes that are to answer afterwards.
    pub living: Vec<u8>,
    /// The largest limits of requests that were in force in it, in hundredths of the plan's, where it edits them.
    #[serde(default)]
    pub percent: Option<u64>,
    /// Whether it may break a guarantee by as much as is stated (a hypervisor's pause), and no more.
    pub bounded: bool,
    /// What came of it where that is part of the fault (a refused wipe), and what was wrong with it.
    pub note: String,
}

/// The cluster as a node described it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// When.
    pub at: At,
    /// Who was asked.
    pub node: u8,
    /// The cluster's id.
    pub cluster: String,
    /// The leader's number.
    pub leader: Option<u64>,
    /// The ring's.
    pub epoch: u64,
    /// Shards of each node, by the node's place in the run.
    pub shards: BTreeMap<u8, u64>,
}

/// A key that was revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revoked {
    /// The revocation was asked for, not before. From then on its owner may have forgotten what the key has used.
    #[serde(default)]
    pub asked: At,
    /// It had returned; nothing if the run was over before.
    pub at: Option<At>,
    /// Whose key.
    pub tenant: String,
    /// Which.
    pub label: String,
}

/// The end of a node's process that nothing had asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When it was seen.
    pub at: At,
    /// Whose.
    pub node: u8,
    /// How it ended and what it said last.
    pub how: String,
}

/// What a node said of itself when all was quiet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "k")]
pub enum Probe {
    /// A gauge of a node that ought to be 0.
    Gauge {
        /// Whose.
        node: u8,
        /// Which.
        name: String,
        /// Its value; less than 0 where it could not be had.
        value: i64,
    },
    /// As many at once as a tenant may have open.
    Burst {
        /// Whose.
        tenant: String,
        /// How many were asked for.
        wanted: u64,
        /// How many were admitted.
        admitted: u64,
        /// How many were refused for being too many at once.
        refused: u64,
    },
    /// What a node says of a tenant's budget.
    Budget {
        /// Who says it.
        node: u8,
        /// Whose.
        tenant: String,
        /// What is used of it; nothing where it was not said, or had not come to rest.
        used: Option<u64>,
        /// What is held of it.
        escrow: u64,
    },
}

/// Everything.
#[derive(Clone, Debug)]
pub struct History {
    /// What was to be done.
    pub plan: Plan,
    /// What callers saw.
    pub attempts: Vec<Attempt>,
    /// What the provider saw.
    pub arrivals: Vec<Arrival>,
    /// What owners decided.
    pub decided: Vec<Decided>,
    /// What owners were told.
    pub ended: Vec<Ended>,
    /// What was broken.
    pub windows: Vec<Window>,
    /// What nodes said of the cluster.
    pub views: Vec<View>,
    /// Which processes ended unasked.
    pub ends: Vec<End>,
    /// Which keys were revoked.
    pub revoked: Vec<Revoked>,
    /// What nodes said in the end.
    pub probes: Vec<Probe>,
}

/// The files of a run, by what they hold.
const ATTEMPTS: &str = "clients.jsonl";
const ARRIVALS: &str = "provider.jsonl";
const WINDOWS: &str = "nemesis.jsonl";
const ENDS: &str = "ends.jsonl";
const REVOKED: &str = "revoked.jsonl";
const VIEWS: &str = "views.jsonl";
const PROBES: &str = "probes.jsonl";
const PLAN: &str = "plan.json";

/// A file that records are appended to by anybody.
#[derive(Clone)]
pub struct Log(Arc<Mutex<BufWriter<File>>>);

impl Log {
    fn new(path: &Path) -> Result<Self, String> {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(Arc::new(Mutex::new(BufWriter::new(file)))))
    }

    /// Appends a record.
    pub fn push<T: Serialize>(&self, record: &T) {
        let line = serde_json::to_string(record).expect("a record is plain data");
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A disk that is full shows when the run is read again: fewer records than were made are a failure of the harness.
        let _full = writeln!(file, "{line}");
    }

    fn flush(&self) -> Result<(), String> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.flush().map_err(|error| format!("the history cannot be written: {error}"))
    }
}

/// Where a run writes what happens.
#[derive(Clone)]
pub struct Recorder {
    /// The run's folder.
    pub folder: PathBuf,
    /// Of [`Attempt`]s.
    pub attempts: Log,
    /// Of [`Arrival`]s.
    pub arrivals: Log,
    /// Of [`Window`]s.
    pub windows: Log,
    /// Of [`View`]s.
    pub views: Log,
    /// Of [`End`]s.
    pub ends: Log,
    /// Of [`Revoked`]s.
    pub revoked: Log,
    /// Of [`Probe`]s.
    pub probes: Log,
}

impl Recorder {
    /// Begins the history of a run in `folder`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn begin(folder: &Path, plan: &Plan) -> Result<Self, String> {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let text = serde_json::to_string_pretty(plan).expect("a plan is plain data");
        fs::write(folder.join(PLAN), text).map_err(|error| format!("{}: {error}", folder.display()))?;
        let log = |name: &str| Log::new(&folder.join(name));
        Ok(Self {
            folder: folder.to_owned(),
            attempts: log(ATTEMPTS)?,
            arrivals: log(ARRIVALS)?,
            windows: log(WINDOWS)?,
            views: log(VIEWS)?,
            ends: log(ENDS)?,
            revoked: log(REVOKED)?,
            probes: log(PROBES)?,
        })
    }

    /// Where node `node` keeps its audit.
    pub fn audit_file(&self, node: u8) -> PathBuf {
        self.folder.join(format!("audit-{node}.jsonl"))
    }

    /// All that was recorded is in the files.
    ///
    /// # Errors
    /// It is not.
    pub fn flush(&self) -> Result<(), String> {
        let first = [&self.attempts, &self.arrivals, &self.windows, &self.views];
        for log in first.into_iter().chain([&self.ends, &self.revoked, &self.probes]) {
            log.flush()?;
        }
        Ok(())
    }
}

impl Plan {
    /// The plan of the run in `folder`.
    ///
    /// # Errors
    /// There is none, or it is none of ours.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(folder.join(PLAN))
            .map_err(|error| format!("{}: {error}", folder.join(PLAN).display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{PLAN}: {error}"))
    }
}

/// The life of the gateway that made this id: its upper half.
pub fn life(id: &str) -> &str {
    id.get(..16).unwrap_or(id)
}

impl History {
    /// Reads the history in `folder`.
    ///
    /// # Errors
    /// A file is missing, or a line of it is none of ours.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let plan = Plan::read(folder)?;
        let (mut decided, mut ended) = (Vec::new(), Vec::new());
        for node in 1..=u8::MAX {
            let path = folder.join(format!("audit-{node}.jsonl"));
            if !path.exists() {
                continue;
            }
            for line in lines(&path, true)? {
                match line {
                    Audit::Decided(line) => decided.push(Decided { node, ..line }),
                    Audit::Ended(line) => ended.push(Ended { node, ..line }),
                }
            }
        }
        Ok(Self {
            plan,
            attempts: lines(&folder.join(ATTEMPTS), false)?,
            arrivals: lines(&folder.join(ARRIVALS), false)?,
            decided,
            ended,
            windows: lines(&folder.join(WINDOWS), false)?,
            views: lines(&folder.join(VIEWS), false)?,
            ends: lines(&folder.join(ENDS), false)?,
            revoked: lines(&folder.join(REVOKED), false)?,
            probes: lines(&folder.join(PROBES), false)?,
        })
    }

    /// When the first and the last attempt were.
    pub fn span(&self) -> (At, At) {
        let begin = self.attempts.iter().map(|attempt| attempt.inv).min().unwrap_or(0);
        (begin, self.attempts.iter().map(|attempt| attempt.com).max().unwrap_or(begin))
    }

    /// The attempts by number.
    pub fn by_op(&self) -> BTreeMap<u64, &Attempt> {
        self.attempts.iter().map(|attempt| (attempt.op, attempt)).collect()
    }

    /// Faults around an instant, in words: what a witness is read beside.
    pub fn faults_around(&self, from: At, to: At) -> String {
        let around = |window: &&Window| window.begin <= to + SECOND && window.healed + SECOND >= from;
        let named: Vec<String> = self
            .windows
            .iter()
            .filter(around)
            .map(|window| format!("{} ({})", window.nemesis, window.what))
            .collect();
        if named.is_empty() {
            "no fault around it".to_owned()
        } else {
            format!("around it: {}", named.join("; "))
        }
    }
}

/// The lines of a file. Where a process may have been killed while it wrote, the last one may be torn.
fn lines<T: DeserializeOwned>(path: &Path, torn: bool) -> Result<Vec<T>, String> {
    let problem = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(|error| problem(&error))?;
    let mut records = Vec::new();
    let mut waiting: Option<String> = None;
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|error| problem(&error))?;
        if let Some(broken) = waiting.take() {
            return Err(problem(&format!("no record: {broken}")));
        }
        match serde_json::from_str(&line) {
            Ok(record) => records.push(record),
            Err(_) if torn => waiting = Some(line),
            Err(error) => return Err(problem(&error)),
        }
    }
    Ok(records)
}
