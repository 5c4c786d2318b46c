//! Applications that use the official SDKs of OpenAI and Anthropic as they are shipped: each a process beside the callers that tells of every
//! HTTP request its SDK makes, retries included. What it tells becomes attempts like those of any caller.
//!
//! Every call bears an idempotency key. A call that failed is made again under it, by the SDK and then by the application, and now and then one
//! that did not; some can never fit. What the application does is in `sdk.py`.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{MissedTickBehavior, interval};

use super::One;
use crate::client::{PORT, key_of, outcome};
use crate::history::{At, Attempt, Bucket, Limits, OfSdk, Outcome, SECOND};
use crate::network::namespace::Namespace;
use crate::network::{Host, Plane};
use crate::sys;

#[path = "../../../tests/sdk/pinned.rs"]
mod pinned;

const SCRIPT: &str = include_str!("sdk.py");

/// The SDKs, by the names of their packages.
pub const SDKS: [&str; 2] = ["openai", "anthropic"];

/// What each tenant may have: less than its applications want, and of tokens enough for all but a request that can never fit.
pub const LIMITS: Limits = Limits {
    burst: 6,
    per_minute: 20 * 60,
    in_flight: None,
    tokens: Some(Bucket { burst: 5_000, per_minute: 200_000 }),
    budget: None,
};

/// Calls that an application makes at once.
const THREADS: u64 = 4;

/// The numbers of each application begin beyond those of the callers and of the applications before it.
const NUMBERS: u64 = 1 << 40;

/// How long an application may take to end its last calls: three attempts of three seconds, and what is between them.
const LAST_CALLS: At = 60 * SECOND;

/// Where applications are started.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The callers' network.
    pub network: &'a Namespace,
    /// The interpreter that knows the SDKs.
    pub python: &'a Path,
    /// The run's folder.
    pub folder: &'a Path,
}

/// A running application.
pub struct Application {
    sdk: &'static str,
    process: Child,
    hears: Sender,
    says: BufReader<Receiver>,
    log: PathBuf,
}

/// A line of an application.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "k")]
enum Said {
    Sent {
        op: u64,
        call: u64,
        request: u64,
        node: Host,
        retry: u64,
        at: At,
    },
    Head {
        op: u64,
        at: At,
        status: u16,
        error: String,
        should_retry: Option<String>,
        retry_after: Option<String>,
        retry_after_ms: Option<String>,
    },
    End {
        call: u64,
        op: Option<u64>,
        at: At,
        how: String,
        why: String,
        complete: bool,
    },
}

/// The interpreter that knows the SDKs, in the folder for what is built.
///
/// # Errors
/// Python or the package registry is missing.
pub fn python() -> Result<PathBuf, String> {
    let target = Path::new("target");
    fs::create_dir_all(target).map_err(|error| format!("{}: {error}", target.display()))?;
    let target = target.canonicalize().map_err(|error| format!("{}: {error}", target.display()))?;
    pinned::python_in(&target).map_err(|why| format!("the official SDKs cannot be installed: {why}"))
}

/// Starts application `number` of a run: it waits to be told of nodes.
///
/// # Errors
/// It does not start.
pub fn start(place: Place<'_>, tenant: &str, sdk: &'static str, number: u64) -> Result<Application, String> {
    // A copy of its own: another may be reading while this is written.
    let script = place.folder.join(format!("{tenant}-{sdk}.py"));
    let log = place.folder.join(format!("{tenant}-{sdk}-stderr"));
    let problem = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    fs::write(&script, SCRIPT).map_err(|error| problem(&script, error))?;
    let errors = File::create(&log).map_err(|error| problem(&log, error))?;
    let mut command = Command::new(place.python);
    // The environment is empty: a proxy or a key of the machine's must not steer the SDK.
    command
        .arg("-B")
        .arg(&script)
        .args([sdk, &key_of(tenant)])
        .args([number * NUMBERS, number, THREADS].map(|word| word.to_string()))
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors);
    let mut process = place.network.start(command).map_err(|error| problem(place.python, error))?;
    let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
        return Err(format!("the application {sdk} of {tenant} has no pipes"));
    };
    let hears = Sender::from_owned_fd(OwnedFd::from(stdin)).map_err(|error| problem(&script, error))?;
    let says = Receiver::from_owned_fd(OwnedFd::from(stdout)).map_err(|error| problem(&script, error))?;
    Ok(Application { sdk, process, hears, says: BufReader::new(says), log })
}

/// Tells the application of nodes until nobody asks any more, and writes down what its SDK does until it ends.
///
/// # Errors
/// It ended by itself, or not at all, or said what nobody understands.
pub(super) async fn follow(one: One, application: Application) -> Result<(), String> {
    let Application { sdk, mut process, hears, says, log } = application;
    let name = format!("the application {sdk} of {}", one.tenant);
    let told = take_down(&one, sdk, hears, says).await;
    let status = match &told {
        Ok(()) => until_ended(&mut process).await,
        Err(_) => None,
    };
    if status.is_none() {
        let _ended_meanwhile = process.kill();
        let _status = process.wait();
    }
    told.map_err(|why| format!("{name}: {why}"))?;
    match status {
        Some(status) if status.success() && !one.goes_on() => Ok(()),
        Some(status) => {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let last = said.lines().next_back().unwrap_or_default();
            Err(format!("{name} ended with {status}: {last} ({})", log.display()))
        }
        None => Err(format!("{name} does not end")),
    }
}

async fn take_down(
    one: &One,
    sdk: &'static str,
    hears: Sender,
    says: BufReader<Receiver>,
) -> Result<(), String> {
    let (mut lines, mut nodes) = (says.lines(), one.shared.nodes.clone());
    let mut book = Book { one, sdk, open: BTreeMap::new() };
    let mut ticks = interval(Duration::from_millis(100));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut hears, mut deadline) = (Some(hears), At::MAX);
    nodes.mark_changed();
    loop {
        tokio::select! {
            line = lines.next_line() => match line.map_err(|error| error.to_string())? {
                Some(line) => book.write(&line)?,
                None => break,
            },
            _ = ticks.tick() => {}
        }
        if let Some(pipe) = hears.as_mut().filter(|_| nodes.has_changed().unwrap_or(false)) {
            let known = named(&nodes.borrow_and_update());
            // Who does not read any more has ended, which shows in what it says.
            let _ended = pipe.write_all(known.as_bytes()).await;
        }
        if hears.is_some() && !one.goes_on() {
            hears = None;
            deadline = sys::now() + LAST_CALLS;
        }
        if sys::now() > deadline {
            return Err(format!("has not ended its calls in {} s", LAST_CALLS / SECOND));
        }
    }
    // What it was in the middle of when it ended.
    let left: Vec<Attempt> = std::mem::take(&mut book.open).into_values().collect();
    for attempt in left {
        book.close(attempt, sys::now());
    }
    Ok(())
}

/// The nodes, as an application is told of them.
fn named(nodes: &[Host]) -> String {
    let nodes: Vec<(Host, String)> =
        nodes.iter().map(|node| (*node, Plane::Callers.socket(*node, PORT).to_string())).collect();
    serde_json::to_string(&nodes).expect("numbers and addresses are plain data") + "\n"
}

async fn until_ended(process: &mut Child) -> Option<ExitStatus> {
    let deadline = sys::now() + 5 * SECOND;
    loop {
        match process.try_wait() {
            Ok(None) if sys::now() < deadline => tokio::time::sleep(Duration::from_millis(20)).await,
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
}

/// The attempts of an application, of which each call has one open at most.
struct Book<'a> {
    one: &'a One,
    sdk: &'static str,
    open: BTreeMap<u64, Attempt>,
}

impl Book<'_> {
    fn write(&mut self, line: &str) -> Result<(), String> {
        let said = serde_json::from_str(line).map_err(|error| format!("says {line:?}: {error}"))?;
        match said {
            Said::Sent { op, call, request, node, retry, at } => {
                // Whatever became of the one before, the SDK has given it up.
                if let Some(before) = self.open.remove(&call) {
                    self.close(before, at);
                }
                let sdk =
                    OfSdk { name: self.sdk.to_owned(), call, retry, stop: false, wait: None, ended: None };
                let attempt = Attempt {
                    op,
                    request,
                    tenant: self.one.tenant.clone(),
                    secret: String::new(),
                    node,
                    inv: at,
                    com: at,
                    stayed: at,
                    outcome: Outcome::Unknown,
                    code: "no answer".to_owned(),
                    keyed: true,
                    aborted: false,
                    complete: false,
                    sdk: Some(sdk),
                };
                self.open.insert(call, attempt);
            }
            Said::Head { op, at, status, error, should_retry, retry_after, retry_after_ms } => {
                let open = self.open.values_mut().find(|attempt| attempt.op == op);
                let attempt = open.ok_or_else(|| format!("answers {op}, which is not open"))?;
                attempt.com = at;
                attempt.outcome = outcome(status, &error);
                attempt.code = format!("{status} {error}").trim_end().to_owned();
                if let Some(sdk) = &mut attempt.sdk {
                    sdk.stop = should_retry.as_deref() == Some("false");
                    sdk.wait = wait(retry_after_ms.as_deref(), retry_after.as_deref());
                }
            }
            Said::End { call, op, at, how, why, complete } => {
                let attempt = self.open.remove(&call).filter(|attempt| Some(attempt.op) == op);
                let mut attempt =
                    attempt.ok_or_else(|| format!("ended call {call} without an attempt: {how}: {why}"))?;
                attempt.complete = complete;
                attempt.aborted = how == "left";
                if let Some(sdk) = &mut attempt.sdk {
                    sdk.ended = Some(how);
                }
                self.close(attempt, at);
            }
        }
        Ok(())
    }

    fn close(&self, mut attempt: Attempt, at: At) {
        attempt.stayed = at;
        if attempt.com == attempt.inv {
            attempt.com = at;
        }
        self.one.shared.numbers.note(attempt.outcome);
        self.one.shared.log.push(&attempt);
    }
}

/// After how many nanoseconds an SDK is told to come back: in milliseconds, or else in seconds.
fn wait(millis: Option<&str>, seconds: Option<&str>) -> Option<u64> {
    let read = |text: Option<&str>, unit: u64| text?.parse::<u64>().ok()?.checked_mul(unit);
    read(millis, SECOND / 1_000).or_else(|| read(seconds, SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milliseconds_beat_seconds() {
        assert_eq!(wait(Some("60"), Some("1")), Some(60_000_000));
        assert_eq!(wait(None, Some("2")), Some(2 * SECOND));
        assert_eq!(wait(Some("soon"), None), None);
    }

    #[test]
    fn an_application_hears_of_nodes_as_it_reads_them() {
        assert_eq!(named(&[1, 3]), "[[1,\"10.77.2.1:8080\"],[3,\"10.77.2.3:8080\"]]\n");
    }
}
