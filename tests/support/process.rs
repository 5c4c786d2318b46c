//! Real processes, most of them of the built binary: started on free ports, known to be ready, ended by id.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{Client, Key, eventually, policy::PROVIDER_KEY};

/// How long a process may take to end after SIGTERM before it is killed, in polls of [`END_POLL`]: 10 seconds.
const END_POLLS: u32 = 1_000;
const END_POLL: Duration = Duration::from_millis(10);

/// How much of a failed process' log is shown, in bytes from its end.
const SHOWN_LOG: usize = 16 * 1024;

/// One running process, ended when dropped.
pub struct Process {
    name: String,
    child: Child,
    directory: TempDir,
}

/// A running `tollgate provider`: the simulated provider.
pub struct Provider {
    /// The process itself.
    pub process: Process,
    /// Where it listens: `http://127.0.0.1:PORT`.
    pub url: String,
    client: Client,
}

/// A running `tollgate serve`, ready to admit.
pub struct Node {
    /// The process itself.
    pub process: Process,
    /// Where callers connect: `http://127.0.0.1:PORT`.
    pub callers: String,
    /// Where operators connect: `http://127.0.0.1:PORT`.
    pub admin: String,
    /// The operators' token.
    pub admin_token: String,
    client: Client,
}

impl Process {
    /// Starts the simulated provider on a free port, with these arguments besides `--listen`.
    ///
    /// # Panics
    /// When it ends or does not say where it listens within [`super::PATIENCE`]; its log is shown.
    pub async fn provider(arguments: &[&str]) -> Provider {
        let directory = temporary_directory();
        let mut command = tollgate("provider");
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let mut process = Process::start("tollgate provider", command, directory);
        let line = process.line("listening ").await;
        let url = format!("http://{}", word_after(&line, "http://"));
        Provider { process, url, client: Client::new() }
    }

    /// Starts a node on free ports under this policy, with these arguments besides the addresses, the data folder and
    /// the policy; returns once `/readyz` answers 200.
    ///
    /// # Panics
    /// When it ends or is not ready within [`super::PATIENCE`]; its log is shown.
    pub async fn serve(policy_yaml: &str, arguments: &[&str]) -> Node {
        let directory = temporary_directory();
        let policy = directory.path().join("policy.yaml");
        fs::write(&policy, policy_yaml).expect("the policy can be written to the test's own folder");
        let admin_token = Key::of("the operators of this test").secret;
        let mut command = tollgate("serve");
        command
            .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"])
            .arg(directory.path().join("data"))
            .arg("--policy")
            .arg(&policy)
            .args(arguments)
            .env("TOLLGATE_ADMIN_TOKEN", &admin_token)
            .env(PROVIDER_KEY, "sk-simulated");
        let mut process = Process::start("tollgate serve", command, directory);
        let line = process.line("callers=").await;
        let callers = word_after(&line, "callers=");
        let admin = word_after(&line, "admin=");
        let node = Node { process, callers, admin, admin_token, client: Client::new() };
        node.until_ready().await;
        node
    }

    /// Starts `command` with its output in files of `directory`.
    pub fn start(name: &str, mut command: Command, directory: TempDir) -> Process {
        let file = |name: &str| {
            File::create(directory.path().join(name))
                .expect("a log file can be made in the test's own folder")
        };
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let child = command.spawn().unwrap_or_else(|error| panic!("`{name}` did not start: {error}"));
        Process { name: name.to_owned(), child, directory }
    }

    /// The first whole line on standard output that contains `words`.
    pub async fn line(&mut self, words: &str) -> String {
        let stdout = self.directory.path().join("stdout");
        let name = self.name.clone();
        eventually(&format!("`{name}` prints a line with `{words}`"), async || {
            let printed = fs::read_to_string(&stdout).unwrap_or_default();
            let whole_lines = printed.rsplit_once('\n').map_or("", |(lines, _)| lines);
            if let Some(line) = whole_lines.lines().find(|line| line.contains(words)) {
                return Ok(line.to_owned());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("`{name}` ended with {status} before it printed a line with `{words}`");
            }
            Err(format!("it printed: {printed:?}"))
        })
        .await
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let what = format!("`{}` ends", self.name);
        eventually(&what, async || match self.child.try_wait() {
            Ok(Some(status)) => Ok(status),
            still => Err(format!("{still:?}")),
        })
        .await
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The folder that is this process' own: `stdout`, `stderr`, and for a node `policy.yaml` and `data/`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// What it has written to standard error: its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("stderr")).unwrap_or_default()
    }

    /// Sends a signal, unless the process has ended.
    pub fn signal(&mut self, signal: Signal) {
        if let Ok(None) = self.child.try_wait()
            && let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
        {
            // It may end between the question and the signal; it stays ours until waited for, so the id is not another's.
            let _ended_meanwhile = kill_process(pid, signal);
        }
    }

    /// Ends it politely: SIGTERM, then SIGKILL after ten seconds. Ending what has ended changes nothing.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        for _ in 0..END_POLLS {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status;
            }
            std::thread::sleep(END_POLL);
        }
        eprintln!("`{}` (process {}) ignored SIGTERM and is killed", self.name, self.child.id());
        self.kill()
    }

    /// Ends it at once: SIGKILL, as a crash does.
    pub fn kill(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
        self.child.wait().expect("a killed child can be waited for")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            let log = self.log();
            let mut from = log.len().saturating_sub(SHOWN_LOG);
            while !log.is_char_boundary(from) {
                from += 1;
            }
            eprintln!("--- the log of `{}` (its end) ---\n{}", self.name, &log[from..]);
        }
    }
}

impl Provider {
    /// The provider's own account: `GET /stats`.
    pub async fn stats(&self) -> Value {
        self.client.get(&format!("{}/stats", self.url), &[]).await.json()
    }

    /// One number of that account.
    pub async fn stat(&self, name: &str) -> u64 {
        let stats = self.stats().await;
        stats[name].as_u64().unwrap_or_else(|| panic!("/stats has no number `{name}`: {stats}"))
    }

    /// Every request it has seen, one JSON object each: `GET /requests`.
    pub async fn requests(&self) -> Vec<Value> {
        let answer = self.client.get(&format!("{}/requests", self.url), &[]).await;
        let lines = answer.text();
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
            .collect()
    }
}

impl Node {
    /// Waits until `/readyz` answers 200.
    pub async fn until_ready(&self) {
        let url = format!("{}/readyz", self.admin);
        eventually("the node is ready", async || match self.client.try_get(&url, &[]).await? {
            answer if answer.status == 200 => Ok(()),
            answer => Err(format!("{} {}", answer.status, answer.text())),
        })
        .await;
    }

    /// `GET path` on the admin port, as an operator.
    pub async fn operator_get(&self, path: &str) -> super::Response {
        let bearer = format!("Bearer {}", self.admin_token);
        self.client.get(&format!("{}{path}", self.admin), &[("authorization", &bearer)]).await
    }

    /// The sum of a metric's series whose text contains each of `labels`, such as `outcome="denied"`. A metric without
    /// such a series counts as 0: a counter that was never touched may not be printed.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> i64 {
        sum_of_series(&self.operator_get("/metrics").await.text(), name, labels)
    }

    /// Waits until a metric has this value.
    pub async fn until_metric(&self, name: &str, labels: &[&str], expected: i64) {
        eventually(&format!("{name} {labels:?} is {expected}"), async || {
            match self.metric(name, labels).await {
                value if value == expected => Ok(()),
                value => Err(format!("it is {value}")),
            }
        })
        .await;
    }

    /// Puts another policy in place of the present one, by an atomic rename, as deployment tools do.
    pub fn replace_policy(&self, policy_yaml: &str) {
        let next = self.process.directory().join("policy.yaml.next");
        fs::write(&next, policy_yaml).expect("the policy can be written to the test's own folder");
        fs::rename(&next, self.policy_file()).expect("a rename within one folder");
    }

    /// Where its policy lies.
    pub fn policy_file(&self) -> PathBuf {
        self.process.directory().join("policy.yaml")
    }
}

/// The sum of a metric's series on a page of `/metrics` whose text contains each of `labels`.
pub fn sum_of_series(page: &str, name: &str, labels: &[&str]) -> i64 {
    page.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.rsplit_once(' '))
        .filter(|(series, _)| series.split('{').next() == Some(name))
        .filter(|(series, _)| labels.iter().all(|label| series.contains(label)))
        .map(|(series, value)| {
            value.parse::<i64>().unwrap_or_else(|_| panic!("{series} is not an integer: {value}"))
        })
        .sum()
}

/// The built binary with one of its commands, in an environment that holds nothing of ours by accident.
pub fn tollgate(subcommand: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg(subcommand);
    for (name, _) in std::env::vars_os() {
        // Every flag can also be set as TOLLGATE_…: an exported one would steer every test.
        if name.to_string_lossy().starts_with("TOLLGATE_") {
            command.env_remove(name);
        }
    }
    command
}

/// A folder that is removed when dropped.
pub fn temporary_directory() -> TempDir {
    tempfile::Builder::new()
        .prefix("tollgate-test-")
        .tempdir()
        .expect("the system's temporary folder is writable")
}

fn word_after(line: &str, prefix: &str) -> String {
    let (_, rest) = line.split_once(prefix).unwrap_or_else(|| panic!("no `{prefix}` in: {line}"));
    rest.split_whitespace().next().unwrap_or_else(|| panic!("nothing after `{prefix}` in: {line}")).to_owned()
}
