//! One node: its folder, its addresses, and the process that lives there now, if any.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};

use super::Options;
use super::look::{OPERATORS, TOKEN};
use super::table::Table;
use crate::client::PORT;
use crate::network::namespace::Namespace;
use crate::network::{Host, Plane};
use crate::peers::System;
use crate::sys;

/// Where nodes listen for each other.
const PEERS: u16 = 7700;

/// What nodes log: not each decision, which the audit has.
const LOG: &str = "info,openraft=error,chitchat=warn,notify=warn,tollgate::decision=off";

/// How long a node may take to stop by itself.
const STOP: Duration = Duration::from_secs(45);

/// The files of a node.
pub struct Files {
    /// The run's folder.
    pub run: PathBuf,
    /// Its own folder.
    pub folder: PathBuf,
    /// The policy, which all have.
    pub policy: PathBuf,
    /// The secret, which all have.
    pub secret: PathBuf,
    /// The shim, which all have.
    pub shim: PathBuf,
    /// The audit of its owners.
    pub audit: Option<PathBuf>,
}

/// A node that outlives its processes.
pub struct Node {
    number: Host,
    namespace: Namespace,
    files: Files,
    options: Options,
    seeds: String,
    founders: usize,
    process: Option<Child>,
    /// How its clocks and its disk are.
    pub table: Table,
    /// How many processes it has had.
    pub lives: u32,
    /// How it ended when nothing had told it to, and what it said last.
    unasked: Vec<String>,
    /// What is wrong with its disk may end it, now or a little later.
    pub may_end: bool,
}

impl Node {
    /// A node without a process.
    ///
    /// # Errors
    /// Its folder cannot be made.
    pub fn new(
        number: Host,
        namespace: Namespace,
        founders: &[Host],
        files: Files,
        options: &Options,
    ) -> Result<Self, String> {
        let problem = |error: std::io::Error| format!("{}: {error}", files.folder.display());
        fs::create_dir_all(&files.folder).map_err(problem)?;
        let table = Table::new(&files.folder.join("table"), &files.folder.join("data")).map_err(problem)?;
        let seeds: Vec<String> =
            founders.iter().map(|founder| Plane::Peers.socket(*founder, PEERS).to_string()).collect();
        Ok(Self {
            number,
            namespace,
            options: options.clone(),
            seeds: seeds.join(","),
            founders: if founders.contains(&number) { founders.len() } else { 0 },
            files,
            process: None,
            table,
            lives: 0,
            unasked: Vec::new(),
            may_end: false,
        })
    }

    /// Starts a process. Returns at once.
    ///
    /// # Errors
    /// It does not start, or one runs already.
    pub fn start(&mut self) -> Result<(), String> {
        if self.runs() {
            return Err(format!("n{} runs already", self.number));
        }
        self.note_end();
        self.lives += 1;
        self.may_end = false;
        let log = |name: &str| {
            let path = self.files.folder.join(format!("{name}-{}", self.lives));
            File::create(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let mut command = match self.options.system {
            System::Tollgate => self.serve(),
            other => other.command(self.number, &self.files.run)?,
        };
        command
            .env("JEPSEN_SHIM_TABLE", self.files.folder.join("table"))
            .env("LD_PRELOAD", &self.files.shim)
            // What it starts belongs to it: a signal is for all of it.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log("stdout")?)
            .stderr(log("stderr")?);
        let child = self.namespace.start(command);
        self.process = Some(child.map_err(|error| format!("{}: {error}", self.options.binary.display()))?);
        Ok(())
    }

    /// The product.
    fn serve(&self) -> Command {
        let mut command = Command::new(&self.options.binary);
        command
            .args(["serve", "--listen", &Plane::Callers.socket(self.number, PORT).to_string()])
            .args(["--admin", &Plane::Operators.socket(self.number, OPERATORS).to_string()])
            .args(["--peer", &Plane::Peers.socket(self.number, PEERS).to_string()])
            .args(["--lease", &format!("{}ms", self.options.lease.as_millis()), "--workers", "2"])
            .args(["--drain-timeout", "20s", "--orphan-grace", "15s"])
            .arg("--data")
            .arg(self.files.folder.join("data"))
            .arg("--policy")
            .arg(&self.files.policy)
            .arg("--secret-file")
            .arg(&self.files.secret)
            .args(["--join", &self.seeds])
            .env("TOLLGATE_ADMIN_TOKEN", TOKEN)
            .env("JEPSEN_PROVIDER_KEY", "sk-scripted")
            .env("TOLLGATE_LOG", LOG)
            .envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        if let Some(failpoint) = self.options.failpoint.as_ref().filter(|_| self.number == 1) {
            command.env("FAILPOINT", failpoint);
        }
        if self.founders > 0 {
            command.args(["--bootstrap-expect", &self.founders.to_string()]);
        }
        if let Some(audit) = &self.files.audit {
            command.arg("--audit-file").arg(audit);
        }
        command
    }

    /// Whether a process runs. One that has ended and was not waited for does not.
    pub fn runs(&self) -> bool {
        let Some(child) = &self.process else { return false };
        let state = fs::read_to_string(format!("/proc/{}/stat", child.id()));
        // `1234 (name) S …`: Z is one that has ended.
        state
            .is_ok_and(|line| line.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
    }

    /// How the process ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.process.as_mut()?.try_wait().ok()??;
        self.process = None;
        Some(status)
    }

    /// The ends since the last look that nothing had asked for.
    pub fn ends_unasked(&mut self) -> Vec<String> {
        self.note_end();
        std::mem::take(&mut self.unasked)
    }

    /// Notes an end that nobody waits for.
    fn note_end(&mut self) {
        if let Some(status) = self.ended() {
            self.unasked.push(format!("{status}: {}", self.log_end()));
        }
    }

    /// Sends a signal to the process, if there is one.
    pub fn signal(&mut self, signal: Signal) {
        self.note_end();
        if let Some(pid) = self.pid() {
            // It stays ours until it is waited for, so the number is not another's.
            let _ended_meanwhile = kill_process_group(pid, signal);
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        if let Some(mut child) = self.process.take() {
            let _status = child.wait();
        }
    }

    /// SIGTERM, and the end that follows it.
    ///
    /// # Errors
    /// It does not end in [`STOP`], or ends badly; it is killed then.
    pub async fn stop(&mut self) -> Result<(), String> {
        self.signal(Signal::TERM);
        if self.process.is_none() {
            return Err(format!("n{} had ended before SIGTERM", self.number));
        }
        let status = self.until_ended(STOP).await;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => {
                Err(format!("n{} ended with {status} after SIGTERM: {}", self.number, self.log_end()))
            }
            None => {
                self.kill();
                Err(format!("n{} did not end within {} s of SIGTERM", self.number, STOP.as_secs()))
            }
        }
    }

    /// Waits for the end of a process whose node was removed from the cluster: it stops, or hears that it was removed, says so and ends
    /// with 1. Any other end is one that nothing had asked for.
    ///
    /// # Errors
    /// It goes on.
    pub async fn ends_removed(&mut self, patience: Duration) -> Result<(), String> {
        let status = self.until_ended(patience).await;
        let status = status.ok_or_else(|| format!("n{} was removed and does not end", self.number))?;
        let told = status.code() == Some(1) && self.log_end().contains("was removed");
        if !status.success() && !told {
            self.unasked.push(format!("{status} after it was removed: {}", self.log_end()));
        }
        Ok(())
    }

    /// Waits for the process to end by itself.
    pub async fn until_ended(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = sys::now() + patience.as_nanos() as u64;
        while sys::now() < deadline {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            self.process.as_ref()?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        None
    }

    /// Bounds how many descriptors the process may have open; returns the bound before.
    ///
    /// # Errors
    /// There is no process.
    pub fn descriptors(&mut self, most: u64) -> Result<u64, String> {
        let pid = self.pid().ok_or("no process")?;
        let current = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(most), maximum: None })
            .or_else(|_| {
                // The hard bound cannot be lifted to none; keep it.
                let kept = rustix::process::getrlimit(Resource::Nofile).maximum;
                prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(most), maximum: kept })
            })
            .map_err(|error| format!("prlimit: {error}"))?;
        Ok(current.current.unwrap_or(u64::MAX))
    }

    /// How many descriptors the process has open.
    pub fn open_descriptors(&self) -> u64 {
        let Some(child) = &self.process else { return 0 };
        fs::read_dir(format!("/proc/{}/fd", child.id())).map_or(0, |entries| entries.count() as u64)
    }

    /// Empties its folder: a wiped disk. The audit is not on it.
    ///
    /// # Errors
    /// It cannot be emptied.
    pub fn wipe(&self) -> Result<(), String> {
        let data = self.files.folder.join("data");
        fs::remove_dir_all(&data).map_err(|error| format!("{}: {error}", data.display()))
    }

    /// The end of what the present process has logged.
    pub fn log_end(&self) -> String {
        let path = self.files.folder.join(format!("stderr-{}", self.lives));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().rev().take(3).collect::<Vec<_>>().join(" | ")
    }

    fn pid(&self) -> Option<Pid> {
        let id = self.process.as_ref()?.id();
        i32::try_from(id).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
