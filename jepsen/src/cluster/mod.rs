//! The cluster under test: real processes, each in a network of its own, that are killed, stopped, paused and started again with the folder
//! and the addresses they had.

pub mod look;
pub mod node;
pub mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::client::key_of;
use crate::history::{Bucket, Limits, Plan, Recorder};
use crate::network::namespace::Namespace;
use crate::network::wires::Wires;
use crate::network::{CALLERS, Host, PROVIDER, Plane};
use crate::peers::{PRIMARY, System};
use crate::sys;
use crate::workload::Workload;
use node::Node;

/// Where the provider listens.
pub const PROVIDER_PORT: u16 = 9000;

/// How long a cluster may take to come about, or to be whole again.
const PATIENCE: Duration = Duration::from_secs(90);

/// The machine of a run: hosts, the switch between them, and the cluster's nodes.
pub struct Cluster {
    /// The nodes by number; those that were never started are among them.
    pub nodes: BTreeMap<Host, Node>,
    /// The switch.
    pub wires: Wires,
    /// What runs on the hosts.
    pub system: System,
    /// The length of a lease.
    pub lease: Duration,
    /// In which the callers live.
    pub callers: Namespace,
    /// In which the provider lives.
    pub provider: Namespace,
}

impl Cluster {
    /// Prepares `nodes` nodes and `spare` more that may join later; starts nothing.
    ///
    /// # Errors
    /// Something that the harness needs is not to be had here.
    pub fn prepare(plan: &Plan, spare: u8, recorder: &Recorder, options: &Options) -> Result<Self, String> {
        let mut devices = BTreeMap::new();
        let mut host = |number: Host| {
            let (namespace, device) = Namespace::new(number)?;
            devices.insert(number, device);
            Ok::<Namespace, String>(namespace)
        };
        let (callers, provider) = (host(CALLERS)?, host(PROVIDER)?);
        let mut namespaces = BTreeMap::new();
        for number in 1..=plan.nodes + spare {
            namespaces.insert(number, host(number)?);
        }
        let wires = Wires::new(devices, plan.seed)?;
        let write = |name: &str, bytes: &[u8]| {
            let path = recorder.folder.join(name);
            std::fs::write(&path, bytes).map_err(|error| format!("{}: {error}", path.display()))?;
            Ok::<PathBuf, String>(path)
        };
        let policy = write("policy.yaml", policy(&plan.tenants).as_bytes())?;
        let secret = write("secret", b"a secret of forty bytes or so, for a run of the harness")?;
        let shim = write("shim.so", include_bytes!(concat!(env!("OUT_DIR"), "/shim.so")))?;
        let founders: Vec<Host> = (1..=plan.nodes).collect();
        let mut nodes = BTreeMap::new();
        for (number, namespace) in namespaces {
            let audit = options.audit.then(|| recorder.audit_file(number));
            let files = node::Files {
                run: recorder.folder.clone(),
                folder: recorder.folder.join(format!("n{number}")),
                policy: policy.clone(),
                secret: secret.clone(),
                shim: shim.clone(),
                audit,
            };
            let node = Node::new(number, namespace, &founders, files, options)?;
            nodes.insert(number, node);
        }
        Ok(Self { nodes, wires, system: options.system, lease: options.lease, callers, provider })
    }

    /// Starts the founders and waits until they share all shards.
    ///
    /// # Errors
    /// That does not come about.
    pub async fn found(&mut self, count: u8) -> Result<(), String> {
        for number in 1..=count {
            self.node(number).start()?;
        }
        self.until_whole().await?;
        if self.system != System::Tollgate {
            return Ok(());
        }
        match self.nodes.iter().find(|(_, node)| node.runs() && !node.table.is_looked_at()) {
            None => Ok(()),
            Some((number, _)) => Err(format!(
                "n{number} runs without the shim, so its stamps cannot be trusted: the binary must be linked dynamically with glibc on x86-64"
            )),
        }
    }

    /// The node of this number.
    ///
    /// # Panics
    /// There is none: numbers come from this cluster.
    pub fn node(&mut self, number: Host) -> &mut Node {
        self.nodes.get_mut(&number).expect("a number of this cluster")
    }

    /// The nodes that run.
    pub fn running(&self) -> Vec<Host> {
        self.nodes.iter().filter(|(_, node)| node.runs()).map(|(number, _)| *number).collect()
    }

    /// The leader, as the first node that answers says.
    pub async fn leader(&self) -> Option<Host> {
        for number in self.running() {
            if self.system != System::Tollgate {
                return self.primary(number).await;
            }
            if let Ok(view) = look::cluster(number).await
                && let Some(leader) = view.leader
            {
                return Some(leader);
            }
        }
        None
    }

    /// The owner of `tenant`, as the first node that answers says.
    pub async fn owner_of(&self, tenant: &str) -> Option<Host> {
        for number in self.running() {
            if self.system != System::Tollgate {
                return self.primary(number).await;
            }
            if let Ok(Some(owner)) = look::owner(number, tenant).await {
                return Some(owner);
            }
        }
        None
    }

    /// Waits until every running node is ready, and they share all shards with nothing on its way.
    ///
    /// # Errors
    /// That does not come about in [`PATIENCE`]; what was seen last.
    pub async fn until_whole(&self) -> Result<(), String> {
        let (deadline, running) = (sys::now() + PATIENCE.as_nanos() as u64, self.running());
        let mut last = String::new();
        while sys::now() < deadline {
            match self.is_whole(&running).await {
                Ok(()) => return Ok(()),
                Err(why) => last = why,
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err(format!("the cluster is not whole after {} s: {last}", PATIENCE.as_secs()))
    }

    /// Where another system keeps what it counts, as `host` says.
    async fn primary(&self, host: Host) -> Option<Host> {
        look::get(host, PRIMARY).await.ok()?.parse().ok()
    }

    async fn is_whole(&self, running: &[Host]) -> Result<(), String> {
        for number in running {
            if self.system != System::Tollgate {
                look::ready(*number).await.map_err(|why| format!("n{number}: {why}"))?;
                continue;
            }
            let view = look::cluster(*number).await.map_err(|why| format!("n{number}: {why}"))?;
            let owners =
                running.iter().filter(|node| view.shards.get(node).is_some_and(|shards| *shards > 0));
            let all: u64 = view.shards.values().sum();
            if owners.count() != running.len() || all != 1024 || view.moves > 0 || view.leader.is_none() {
                return Err(format!("n{number} says {view:?}"));
            }
            look::ready(*number).await.map_err(|why| format!("n{number}: {why}"))?;
        }
        Ok(())
    }
}

/// How nodes are started.
#[derive(Clone, Debug)]
pub struct Options {
    /// What runs on the hosts.
    pub system: System,
    /// The binary under test.
    pub binary: PathBuf,
    /// The length of a lease.
    pub lease: Duration,
    /// Whether owners keep an audit file.
    pub audit: bool,
    /// Further variables for the nodes: a fault in the product.
    pub environment: Vec<(String, String)>,
    /// Where the first node now and then stands still. Only that one, so that others take over meanwhile.
    pub failpoint: Option<String>,
}

impl Options {
    /// Whether the binary under test can keep an audit file.
    pub fn can_audit(binary: &Path) -> bool {
        let probe = std::process::Command::new(binary)
            .args(["serve", "--audit-file", "/dev/null", "--help"])
            .output();
        probe.is_ok_and(|said| said.status.success())
    }
}

/// A time zone in which no day ends in the next twelve hours: a budget that begins anew would be no finding.
fn zone() -> &'static str {
    if sys::hour() < 12 { "UTC" } else { "Etc/GMT+12" }
}

/// Every tenant with its limits, and nothing else that could refuse.
pub fn policy(tenants: &BTreeMap<String, Limits>) -> String {
    let provider = Plane::Provider.socket(PROVIDER, PROVIDER_PORT);
    // The other dialect, where it is spoken at all.
    let other = |line: &str| match tenants.keys().any(|tenant| tenant.starts_with(Workload::Sdk.prefix())) {
        true => format!("\n  {line}"),
        false => String::new(),
    };
    let provider_too = other(&format!(
        "anthropic: {{ dialect: anthropic, base_url: \"http://{provider}\", api_key: \"env:JEPSEN_PROVIDER_KEY\", max_attempts: 1 }}"
    ));
    let pool_too = other("other: { provider: anthropic, ceiling: { tokens_per_minute: 1_000_000_000 } }");
    let model_too =
        other("claude-haiku-4-5: { provider: anthropic, pool: other, default_output_tokens: 16 }");
    let mut text = format!(
        "version: 1
providers:
  openai: {{ dialect: openai, base_url: \"http://{provider}\", api_key: \"env:JEPSEN_PROVIDER_KEY\", max_attempts: 1 }}{provider_too}
pools:
  main: {{ provider: openai, ceiling: {{ tokens_per_minute: 1_000_000_000 }} }}{pool_too}
models:
  gpt-5-mini: {{ provider: openai, pool: main, default_output_tokens: 16 }}{model_too}
tiers:
  bare: {{ requests_per_minute: 1_000_000 }}
default_tier: bare
enforcement: enforce
tenants:
"
    );
    for (tenant, limits) in tenants {
        let hash = hex::encode(Sha256::digest(key_of(tenant)));
        let Limits { burst, per_minute, in_flight, tokens, budget } = limits;
        let slots = in_flight.map(|slots| format!(", max_inflight: {slots}")).unwrap_or_default();
        let tokens = tokens.map_or_else(String::new, |Bucket { burst, per_minute }| {
            format!(", tokens_per_minute: {per_minute}, burst_tokens: {burst}")
        });
        let budget = budget.map_or_else(String::new, |most| {
            format!(", budget: {{ period: monthly, zone: {}, tokens: {most} }}", zone())
        });
        text += &format!(
            "  - {{ id: {tenant}, requests_per_minute: {per_minute}, burst_requests: {burst}{slots}{tokens}{budget}, keys: [{{ label: k, hash: \"sha256:{hash}\" }}] }}\n"
        );
    }
    text
}
