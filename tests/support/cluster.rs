//! Clusters of real processes: nodes that are killed, stopped, paused and started again with the folder and addresses they had.

use std::fs;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::process::{sum_of_series, temporary_directory, tollgate};
use super::{Client, Key, Policy, Process, Provider, Response, eventually, policy::PROVIDER_KEY};

/// The lease of clusters under test: short, so that a story about its end is short too.
pub const LEASE: &str = "1500ms";

/// The lease of clusters whose story is not about its end: a loaded machine does not lose it.
const LONG_LEASE: &str = "15s";

/// The lease of this run: `CLUSTER_TEST_LEASE=3s` measures how long recovery takes as it is shipped.
pub fn lease() -> String {
    std::env::var("CLUSTER_TEST_LEASE").unwrap_or_else(|_| LEASE.to_owned())
}

/// A secret that every node of a test's cluster has.
pub const SECRET: &str = "a secret of forty bytes or so, for a test";

/// How a node comes to its cluster.
#[derive(Clone, Debug)]
pub enum Beginning {
    /// It founds one.
    Founds,
    /// It joins at these addresses.
    Joins(Vec<SocketAddr>),
    /// It founds one with so many others, all of which are at these addresses.
    Expects(usize, Vec<SocketAddr>),
}

/// A node that outlives its processes.
pub struct Peer {
    /// Where peers reach it.
    pub address: SocketAddr,
    /// Where callers reach it, once it was started.
    pub callers: String,
    /// Where operators reach it, once it was started.
    pub admin: String,
    beginning: Beginning,
    secret: String,
    lease: String,
    extra: Vec<String>,
    folder: TempDir,
    process: Option<Process>,
    token: String,
    client: Client,
}

/// Some nodes of one cluster, and the provider behind them.
pub struct Cluster {
    pub provider: Provider,
    pub nodes: Vec<Peer>,
}

impl Peer {
    /// A node that was never started.
    pub fn new(policy: &str, beginning: Beginning) -> Peer {
        Peer::at(free_address(), policy, beginning)
    }

    /// The same, where peers reach it at `address`.
    pub fn at(address: SocketAddr, policy: &str, beginning: Beginning) -> Peer {
        let folder = temporary_directory();
        fs::write(folder.path().join("policy.yaml"), policy).expect("the test's own folder can be written");
        Peer {
            address,
            callers: String::new(),
            admin: String::new(),
            beginning,
            secret: SECRET.to_owned(),
            lease: lease(),
            extra: Vec::new(),
            folder,
            process: None,
            token: Key::of("the operators of this test").secret,
            client: Client::new(),
        }
    }

    /// It has another secret.
    pub fn secret(mut self, secret: &str) -> Peer {
        secret.clone_into(&mut self.secret);
        self
    }

    /// It keeps its lease on a loaded machine too. As all nodes of its cluster have to.
    pub fn patient(mut self) -> Peer {
        LONG_LEASE.clone_into(&mut self.lease);
        self
    }

    /// Further arguments of `tollgate serve`.
    pub fn arguments(mut self, arguments: &[&str]) -> Peer {
        self.extra.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        self
    }

    /// Starts a process with its folder and addresses; returns when it listens, not when it can admit.
    pub async fn start(&mut self) {
        assert!(self.process.is_none(), "it runs already");
        let secret = self.folder.path().join("secret");
        fs::write(&secret, &self.secret).expect("the test's own folder can be written");
        let port = |url: &str| url.strip_prefix("http://").map_or("127.0.0.1:0".to_owned(), str::to_owned);
        let mut command = tollgate("serve");
        command
            .args(["--listen", &port(&self.callers), "--admin", &port(&self.admin), "--data"])
            .arg(self.folder.path().join("data"))
            .arg("--policy")
            .arg(self.folder.path().join("policy.yaml"))
            .args(["--peer", &self.address.to_string(), "--secret-file"])
            .arg(&secret)
            .args(["--lease", &self.lease])
            .args(&self.extra)
            .env("TOLLGATE_ADMIN_TOKEN", &self.token)
            .env(PROVIDER_KEY, "sk-simulated");
        let list = |seeds: &[SocketAddr]| seeds.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        match &self.beginning {
            Beginning::Founds => command.arg("--bootstrap"),
            Beginning::Joins(seeds) => command.args(["--join", &list(seeds)]),
            Beginning::Expects(count, seeds) => {
                command.args(["--bootstrap-expect", &count.to_string(), "--join", &list(seeds)])
            }
        };
        let mut process = Process::start("tollgate serve", command, temporary_directory());
        let line = process.line("callers=").await;
        let word = |prefix: &str| {
            let (_, rest) = line.split_once(prefix).unwrap_or_else(|| panic!("no {prefix} in {line}"));
            rest.split_whitespace().next().unwrap_or_default().to_owned()
        };
        self.callers = word("callers=");
        self.admin = word("admin=");
        self.process = Some(process);
    }

    /// Starts it and waits until it can admit.
    pub async fn start_and_join(&mut self) {
        self.start().await;
        self.until_ready().await;
    }

    /// Waits until `/readyz` answers 200.
    pub async fn until_ready(&self) {
        eventually(&format!("{} is ready", self.address), async || {
            let answer = self.client.try_get(&format!("{}/readyz", self.admin), &[]).await?;
            if answer.status == 200 { Ok(()) } else { Err(format!("{} {}", answer.status, answer.text())) }
        })
        .await;
    }

    /// Whether `/readyz` answers 200 now.
    pub async fn is_ready(&self) -> bool {
        let answer = self.client.try_get(&format!("{}/readyz", self.admin), &[]).await;
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// SIGTERM, and waits for its end in another thread, so that what runs beside goes on.
    pub async fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let stopping = tokio::task::spawn_blocking(move || process.stop());
            let status = stopping.await.expect("the thread that waits does not panic");
            assert!(status.success(), "a node that is stopped ends well, not with {status}");
        }
    }

    /// Sends a signal.
    pub fn signal(&mut self, signal: Signal) {
        if let Some(process) = &mut self.process {
            process.signal(signal);
        }
    }

    /// What the running process has logged.
    pub fn log(&self) -> String {
        self.process.as_ref().map(Process::log).unwrap_or_default()
    }

    /// The running process.
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("it runs")
    }

    /// The id of the running process.
    pub fn id(&self) -> u32 {
        self.process.as_ref().map(Process::id).expect("it runs")
    }

    /// Whether a process runs.
    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Its data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Empties its folder: a wiped disk.
    pub fn wipe(&mut self) {
        assert!(self.process.is_none(), "it runs");
        fs::remove_dir_all(self.folder.path().join("data")).expect("the test's own folder can be removed");
    }

    /// Puts another text in place of its policy file, by an atomic rename.
    pub fn replace_policy(&self, policy: &str) {
        let next = self.write("policy.yaml.next", policy);
        fs::rename(next, self.folder.path().join("policy.yaml")).expect("a rename within one folder");
    }

    /// Writes a file into its folder, beside its policy.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("the test's own folder can be written");
        path
    }

    /// Has this document agreed on through this node: `tollgate apply` with further arguments.
    pub fn apply(&self, policy: &str, arguments: &[&str]) -> (i32, String, String) {
        let file = self.write("applied.yaml", policy);
        let file = file.to_str().expect("a temporary folder's name is text");
        self.command(&[&["apply", file], arguments].concat())
    }

    /// `GET path` as an operator.
    pub async fn look(&self, path: &str) -> Result<Value, String> {
        let bearer = format!("Bearer {}", self.token);
        let answer =
            self.client.try_get(&format!("{}{path}", self.admin), &[("authorization", &bearer)]).await?;
        if answer.status == 200 {
            Ok(answer.json())
        } else {
            Err(format!("{} {}", answer.status, answer.text()))
        }
    }

    /// The sum of a metric's series.
    pub async fn metric(&self, name: &str, labels: &[&str]) -> i64 {
        sum_of_series(&self.metrics().await, name, labels)
    }

    /// The page of its metrics.
    pub async fn metrics(&self) -> String {
        let bearer = format!("Bearer {}", self.token);
        let url = format!("{}/metrics", self.admin);
        self.client.get(&url, &[("authorization", &bearer)]).await.text()
    }

    /// One chat request with this key.
    pub async fn chat(&self, key: &Key, sim: &str, max_tokens: u64) -> Result<Response, String> {
        let bearer = format!("Bearer {}", key.secret);
        let body = json!({
            "model": "gpt-5-mini",
            "max_completion_tokens": max_tokens,
            "messages": [{ "role": "user", "content": "Hello." }],
        });
        let headers = [("authorization", bearer.as_str()), ("x-sim", sim)];
        let headers = if sim.is_empty() { &headers[..1] } else { &headers[..] };
        let url = format!("{}/v1/chat/completions", self.callers);
        self.client.try_post(&url, headers, body.to_string()).await
    }

    /// [`Peer::chat`], again while nobody can decide: what was decided.
    pub async fn decided(&self, key: &Key) -> u16 {
        eventually(&format!("{} decides", self.address), async || match self.chat(key, "", 4).await? {
            answer if answer.header("x-tollgate-error") == Some("limiter_unavailable") => Err(answer.text()),
            answer => Ok(answer.status),
        })
        .await
    }

    /// Runs one of the operators' commands against this node: its exit code and what it printed.
    pub fn command(&self, words: &[&str]) -> (i32, String, String) {
        let output = tollgate(words[0])
            .args(&words[1..])
            .args(["--admin", &self.admin])
            .env("TOLLGATE_ADMIN_TOKEN", &self.token)
            .output()
            .expect("the built binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }
}

impl Cluster {
    /// A cluster of so many nodes, all of which can admit and own shards, and as many of which vote as should.
    pub async fn of(count: usize, policy: impl FnOnce(Policy) -> Policy) -> Cluster {
        Cluster::made_of(Process::provider(&[]).await, count, policy, |node| node).await
    }

    /// The same, with further arguments for each node.
    pub async fn with(count: usize, policy: impl FnOnce(Policy) -> Policy, arguments: &[&str]) -> Cluster {
        Cluster::before(Process::provider(&[]).await, count, policy, arguments).await
    }

    /// The same, with this provider behind it.
    pub async fn before(
        provider: Provider,
        count: usize,
        policy: impl FnOnce(Policy) -> Policy,
        arguments: &[&str],
    ) -> Cluster {
        Cluster::made_of(provider, count, policy, |node| node.arguments(arguments)).await
    }

    /// The same, for a story that is not about the end of a lease.
    pub async fn patient(count: usize, policy: impl FnOnce(Policy) -> Policy) -> Cluster {
        Cluster::made_of(Process::provider(&[]).await, count, policy, Peer::patient).await
    }

    async fn made_of(
        provider: Provider,
        count: usize,
        policy: impl FnOnce(Policy) -> Policy,
        as_it_is: impl Fn(Peer) -> Peer,
    ) -> Cluster {
        let yaml = policy(Policy::at(&provider.url)).yaml();
        let mut first = as_it_is(Peer::new(&yaml, Beginning::Founds));
        first.start_and_join().await;
        let seed = first.address;
        let mut nodes = vec![first];
        for _ in 1..count {
            nodes.push(as_it_is(Peer::new(&yaml, Beginning::Joins(vec![seed]))));
        }
        join_all(nodes.iter_mut().skip(1).map(Peer::start_and_join)).await;
        let cluster = Cluster { provider, nodes };
        cluster.until_spread(count).await;
        cluster.until_seated().await;
        cluster
    }

    /// Waits until as many vote as should: of two, or while the third catches up, none may be lost.
    async fn until_seated(&self) {
        let count = self.nodes.len().min(5);
        let wanted = if count > 2 && count.is_multiple_of(2) { count - 1 } else { count };
        for node in self.nodes.iter().filter(|node| node.runs()) {
            eventually(&format!("{wanted} vote, says {}", node.address), async || {
                let page = node.look("/v1/cluster").await?;
                let members = page["members"].as_array().into_iter().flatten();
                let voters = members.filter(|member| member["role"] == "leader" || member["role"] == "voter");
                if voters.count() == wanted { Ok(()) } else { Err(page.to_string()) }
            })
            .await;
        }
    }

    /// Waits until so many nodes share all shards and nothing moves, as every running node sees it.
    pub async fn until_spread(&self, count: usize) {
        for node in self.nodes.iter().filter(|node| node.runs()) {
            eventually(&format!("{count} nodes share the shards, says {}", node.address), async || {
                let page = node.look("/v1/cluster").await?;
                let shares = page["members"].as_array().into_iter().flatten();
                let shares: Vec<u64> = shares.filter_map(|member| member["shards"].as_u64()).collect();
                let owners = shares.iter().filter(|share| **share > 0).count();
                let all: u64 = shares.iter().sum();
                let still = page["moves"].as_array().is_some_and(Vec::is_empty);
                if owners == count && all == 1024 && still { Ok(()) } else { Err(page.to_string()) }
            })
            .await;
        }
    }

    /// The place in `nodes` of the node that owns this tenant.
    pub async fn owner_of(&self, tenant: &str) -> usize {
        let asked = self.nodes.iter().find(|node| node.runs()).expect("one runs");
        let page = asked.look(&format!("/v1/tenants/{tenant}")).await.expect("the tenant's page");
        self.place_of(&page["owner"]).await
    }

    /// The place in `nodes` of the leader.
    pub async fn leader(&self) -> usize {
        let asked = self.nodes.iter().find(|node| node.runs()).expect("one runs");
        let leader = eventually("there is a leader", async || {
            let page = asked.look("/v1/cluster").await?;
            if page["leader"].is_null() { Err("none".to_owned()) } else { Ok(page["leader"].clone()) }
        })
        .await;
        self.place_of(&leader).await
    }

    async fn place_of(&self, id: &Value) -> usize {
        let asked = self.nodes.iter().find(|node| node.runs()).expect("one runs");
        let page = asked.look("/v1/cluster").await.expect("the cluster's page");
        let members = page["members"].as_array().expect("members");
        let member = members.iter().find(|member| member["id"] == *id);
        let address =
            member.and_then(|member| member["address"].as_str()).unwrap_or_else(|| panic!("{id}: {page}"));
        self.nodes
            .iter()
            .position(|node| node.address.to_string() == address)
            .unwrap_or_else(|| panic!("no node at {address}"))
    }
}

/// An address that was free a moment ago, for TCP and UDP both.
pub fn free_address() -> SocketAddr {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port of loopback");
        let address = tcp.local_addr().expect("its address");
        if UdpSocket::bind(address).is_ok() {
            return address;
        }
    }
}

/// For how long something is tried in these stories before it counts as lost: the bound that even a loaded machine must keep.
pub const RECOVERY: Duration = Duration::from_secs(15);

/// How long a fault lasts that a story makes: part of what is tested, not a wait for something to have happened.
pub async fn for_a(length: Duration) {
    let _elapsed = tokio::time::timeout(length, std::future::pending::<()>()).await;
}
