//! What is compared: each proxy as a process on CPU 0, ended by its id, and what it has used of the machine.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tollgate::policy::KeyHash;

use super::Outcome;

/// Callers' keys, spread evenly over tenants.
pub const KEYS: usize = 100;
const TENANTS: usize = 20;

/// Before everything else on the machine, so that a build beside the bench moves its figures less. Where that is not permitted, `nice`
/// says so and runs the command all the same.
const NICENESS: &str = "-15";

const PATIENCE: Duration = Duration::from_secs(20);

/// The secret of a caller's key.
pub fn key(number: usize) -> String {
    format!("tg-{number:064x}")
}

/// Moves this process, and the threads it is going to have, to the CPU of the load.
pub fn take_cpu_of_load() -> Outcome<()> {
    let id = std::process::id().to_string();
    let moved = Command::new("taskset").args(["-pc", "1", &id]).stdout(Stdio::null()).status()?;
    let _or_not = Command::new("renice").args(["-n", NICENESS, "-p", &id]).stdout(Stdio::null()).status();
    if moved.success() { Ok(()) } else { Err("taskset cannot move this process to CPU 1".into()) }
}

/// A running proxy.
pub struct Proxy {
    /// What the report calls it.
    pub name: String,
    /// Where it takes requests.
    pub requests: SocketAddr,
    /// Where it takes streams.
    pub streams: SocketAddr,
    child: Child,
}

impl Proxy {
    /// nginx as its documentation has it for an upstream with keep-alive: one worker, no access log, streams unbuffered.
    /// <https://nginx.org/en/docs/http/ngx_http_upstream_module.html#keepalive>
    pub async fn nginx(folder: &Path, provider: SocketAddr) -> Outcome<Proxy> {
        let folder = folder.join("nginx");
        fs::create_dir(&folder)?;
        let (requests, streams) = (free_address()?, free_address()?);
        let place = folder.display();
        let proxy_pass =
            "proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection \"\";";
        let config = format!(
            r#"
worker_processes 1;
daemon off;
pid {place}/pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {place}/body;
    proxy_temp_path {place}/proxy;
    fastcgi_temp_path {place}/fastcgi;
    uwsgi_temp_path {place}/uwsgi;
    scgi_temp_path {place}/scgi;
    upstream provider {{ server {provider}; keepalive 512; keepalive_requests 1000000000; }}
    server {{ listen {requests}; location / {{ {proxy_pass} }} }}
    server {{ listen {streams}; location / {{ {proxy_pass} proxy_buffering off; }} }}
}}
"#
        );
        let file = folder.join("nginx.conf");
        fs::write(&file, config)?;
        let mut command = on_cpu_of_proxies("nginx");
        command.arg("-e").arg(folder.join("error.log")).arg("-p").arg(&folder).arg("-c").arg(&file);
        let child = command.stdout(Stdio::null()).stderr(File::create(folder.join("stderr"))?).spawn()?;
        let mut proxy = Proxy { name: "nginx".to_owned(), requests, streams, child };
        proxy.until_listening(&folder).await?;
        Ok(proxy)
    }

    /// `tollgate serve` with one worker and its usual log, a line for each decision, written to a file.
    pub async fn tollgate(name: &str, binary: &str, folder: &Path, provider: SocketAddr) -> Outcome<Proxy> {
        let folder = folder.join(name);
        // Apart from the log: the policy's folder is watched, and each line would wake the watcher.
        let policy = folder.join("policy").join("policy.yaml");
        fs::create_dir_all(folder.join("policy"))?;
        fs::write(&policy, policy_yaml(provider)?)?;
        let (listen, admin) = (free_address()?, free_address()?);
        let mut command = on_cpu_of_proxies(binary);
        command
            .args(["serve", "--listen", &listen.to_string(), "--admin", &admin.to_string(), "--policy"])
            .arg(&policy)
            .arg("--data")
            .arg(folder.join("data"))
            .env("TOLLGATE_WORKERS", "1")
            .env("TOLLGATE_ADMIN_TOKEN", key(KEYS));
        let child = command.stdout(Stdio::null()).stderr(File::create(folder.join("stderr"))?).spawn()?;
        let mut proxy = Proxy { name: name.to_owned(), requests: listen, streams: listen, child };
        proxy.until_listening(&folder).await?;
        Ok(proxy)
    }

    /// On-CPU time of each of its threads so far.
    pub fn cpu(&self) -> Outcome<Cpu> {
        let mut threads = BTreeMap::new();
        for process in self.processes()? {
            for thread in fs::read_dir(format!("/proc/{process}/task"))? {
                let thread = thread?.path();
                // A thread may end between the listing and the reading.
                let Ok(schedstat) = fs::read_to_string(thread.join("schedstat")) else { continue };
                let nanos = schedstat.split_whitespace().next().unwrap_or_default().parse()?;
                threads.insert(thread.display().to_string(), nanos);
            }
        }
        Ok(Cpu(threads))
    }

    /// Resident memory of all its processes, in bytes.
    pub fn resident(&self) -> Outcome<u64> {
        let mut sum = 0;
        for process in self.processes()? {
            let status = fs::read_to_string(format!("/proc/{process}/status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
            sum += line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024;
        }
        Ok(sum)
    }

    /// The process and its children.
    fn processes(&self) -> Outcome<Vec<u32>> {
        let id = self.child.id();
        let mut processes = vec![id];
        for entry in fs::read_dir("/proc")? {
            let Ok(process) = entry?.file_name().to_string_lossy().parse::<u32>() else { continue };
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            // proc(5): the name, in parentheses, may hold anything; state and parent follow.
            let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1));
            if parent.and_then(|parent| parent.parse().ok()) == Some(id) {
                processes.push(process);
            }
        }
        Ok(processes)
    }

    async fn until_listening(&mut self, folder: &Path) -> Outcome<()> {
        let starting = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(status) = self.child.try_wait()? {
                    let said = fs::read_to_string(folder.join("stderr")).unwrap_or_default();
                    return Err(format!("{} ended with {status}:\n{said}", self.name).into());
                }
                if tokio::net::TcpStream::connect(self.requests).await.is_ok() {
                    return Ok(());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        starting.await?
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It is ours until waited for, so the id is not another's.
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ended_already = kill_process(id, Signal::TERM);
        }
        for _ in 0..500 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ended_meanwhile = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// On-CPU nanoseconds by thread.
pub struct Cpu(BTreeMap<String, u64>);

impl Cpu {
    /// What was used since `before`. Of threads that have ended meanwhile nothing is known; those of a proxy last.
    pub fn since(&self, before: &Cpu) -> u64 {
        let used = |(thread, nanos): (&String, &u64)| nanos - before.0.get(thread).copied().unwrap_or(0);
        self.0.iter().map(used).sum()
    }
}

fn on_cpu_of_proxies(program: &str) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", NICENESS, "taskset", "-c", "0", program]).stdin(Stdio::null());
    command
}

/// An address that is free now. Another process may take it first; then the proxy does not start, and says so.
fn free_address() -> Outcome<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Limits of every kind, so that each is checked and told in the headers; so high that none refuses.
fn policy_yaml(provider: SocketAddr) -> Outcome<String> {
    let mut yaml = format!(
        r#"version: 1
providers:
  openai: {{ dialect: openai, base_url: "http://{provider}", api_key: "env:PATH" }}
pools:
  openai-main: {{ provider: openai, ceiling: {{ tokens_per_minute: 1_000_000_000_000 }} }}
models:
  gpt-5: {{ provider: openai, pool: openai-main, default_output_tokens: 64 }}
tiers:
  ample: {{ tokens_per_minute: 10_000_000_000, requests_per_minute: 100_000_000, max_inflight: 10_000 }}
default_tier: ample
tenants:
"#
    );
    for tenant in 0..TENANTS {
        writeln!(yaml, "  - id: tenant-{tenant}\n    keys:")?;
        for number in (tenant..KEYS).step_by(TENANTS) {
            let hash: String = KeyHash::of(key(number).as_bytes())
                .0
                .iter()
                .fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
            writeln!(
                yaml,
                "      - {{ label: key-{number}, hash: \"sha256:{hash}\", tokens_per_minute: 5_000_000_000 }}"
            )?;
        }
    }
    Ok(yaml)
}
