//! One process for each run: what a seed decides must not be touched by a run before it.

use std::collections::VecDeque;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use super::profile::Profile;
use super::run::Report;

/// How many run at a time.
const AT_ONCE: usize = 2;

/// How many seconds a run may take. It takes some; a machine that is busy with other things may need many times that.
const SECONDS_AT_MOST: u32 = 240;

/// What a process is to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    Seed { profile: Profile, seed: u64, mutant: Option<String> },
    Measure { nodes: usize },
}

impl Job {
    fn arguments(&self) -> Vec<String> {
        match self {
            Self::Seed { profile, seed, .. } => {
                ["--seed", &seed.to_string(), "--profile", &format!("{profile:?}")].map(str::to_owned).into()
            }
            Self::Measure { nodes } => ["--measure".to_owned(), nodes.to_string()].into(),
        }
    }

    /// What repeats it.
    pub fn command(&self) -> String {
        let mutant = match self {
            Self::Seed { mutant: Some(mutant), .. } => format!("MUTANT={mutant} "),
            _ => String::new(),
        };
        format!("{mutant}cargo test --workspace --test simulation -- {}", self.arguments().join(" "))
    }

    fn run(&self) -> Report {
        let broken = |problem: String| Report { broken: vec![problem], ..Report::default() };
        let own = match std::env::current_exe() {
            Ok(own) => own,
            Err(problem) => return broken(format!("harness: {problem}")),
        };
        let mut command = Command::new(own);
        command.args(self.arguments()).arg("--json").env_remove("MUTANT");
        if let Self::Seed { mutant: Some(mutant), .. } = self {
            command.env("MUTANT", mutant);
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(problem) => return broken(format!("harness: {problem}")),
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let report = said.lines().last().and_then(|line| serde_json::from_str(line).ok());
        report.unwrap_or_else(|| {
            let complaint = String::from_utf8_lossy(&output.stderr);
            let last: Vec<&str> = complaint.lines().rev().take(3).collect();
            broken(format!("harness: the run ended with {} and {last:?}", output.status))
        })
    }
}

/// Runs all of them, some at a time, and tells each as it ends.
pub fn run_all(jobs: Vec<Job>, mut tell: impl FnMut(&Job, &Report)) -> Vec<(Job, Report)> {
    let queue = Mutex::new(VecDeque::from(jobs));
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            let (queue, sender) = (&queue, sender.clone());
            scope.spawn(move || {
                loop {
                    let job = queue.lock().expect("nothing panics under it").pop_front();
                    let Some(job) = job else { return };
                    let report = job.run();
                    let _ = sender.send((job, report));
                }
            });
        }
        drop(sender);
        done.into_iter().inspect(|(job, report)| tell(job, report)).collect()
    })
}

/// Ends this process with an abort when it takes too long. The clocks that std would wait by are the simulation's here, a socket's
/// are the kernel's. It waits a second at a time: of a while for which the process was stopped only one counts.
pub fn bound_this_process() {
    std::thread::spawn(|| {
        let Ok((mut never, _open)) = UnixStream::pair() else { return };
        if never.set_read_timeout(Some(Duration::from_secs(1))).is_err() {
            return;
        }
        for _ in 0..SECONDS_AT_MOST {
            if never.read(&mut [0]).is_ok() {
                return;
            }
        }
        eprintln!("it took longer than {SECONDS_AT_MOST} s");
        std::process::abort();
    });
}
