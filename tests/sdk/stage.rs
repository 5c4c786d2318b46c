//! Where a scenario plays: the simulated provider, a node before it (alone or among three), a tap before the node, and one tenant
//! with a key. What is counted is counted from the stage's opening, over all nodes, so that one cluster may serve many.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde_json::Value;

use super::support::process::{sum_of_series, temporary_directory};
use super::support::{Attempt, Client, Cluster, Key, Node, Policy, Process, Provider, Tap, eventually};
use super::venv;

/// One of the official SDKs.
#[derive(Clone, Copy, Debug)]
pub enum Sdk {
    /// `openai`.
    OpenAi,
    /// `anthropic`.
    Anthropic,
    /// `google-genai`.
    Gemini,
}

/// Which of three nodes an application talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The owner of its tenant.
    AtTheOwner,
    /// One that has to ask the owner.
    Elsewhere,
}

/// A provider, a node and a tap, up and ready.
pub struct Stage {
    python: &'static Path,
    site: Site,
    tap: Tap,
    key: Key,
    /// Of each node, as it was when this stage was opened.
    metrics_before: Vec<String>,
    requests_before: u64,
}

/// Who decides.
enum Site {
    Alone(Box<(Provider, Node)>),
    /// Which of the nodes the tap is before.
    Among(Arc<Cluster>, usize),
}

/// Three nodes with some tenants, for one stage after another.
pub struct House {
    python: &'static Path,
    cluster: Arc<Cluster>,
}

impl House {
    /// A cluster whose tenants, by name, are held by these limits; `None` where Python is missing and skipping is allowed.
    pub async fn open(tenants: &[(&str, &str)]) -> Option<House> {
        let python = venv::python()?;
        let add = |policy: Policy, (name, limits): &(&str, &str)| policy.tenant(name, &Key::of(name), limits);
        let cluster = Cluster::of(3, |policy| tenants.iter().fold(policy, add)).await;
        Some(House { python, cluster: Arc::new(cluster) })
    }

    /// A stage for one of the tenants.
    pub async fn stage(&self, tenant: &str, place: Place) -> Stage {
        let owner = self.cluster.owner_of(tenant).await;
        let node = match place {
            Place::AtTheOwner => owner,
            Place::Elsewhere => (owner + 1) % self.cluster.nodes.len(),
        };
        Stage::before(self.python, Site::Among(self.cluster.clone(), node), Key::of(tenant)).await
    }
}

impl Site {
    fn provider(&self) -> &Provider {
        match self {
            Site::Alone(alone) => &alone.0,
            Site::Among(cluster, _) => &cluster.provider,
        }
    }

    fn callers(&self) -> &str {
        match self {
            Site::Alone(alone) => &alone.1.callers,
            Site::Among(cluster, node) => &cluster.nodes[*node].callers,
        }
    }

    /// The page of each node.
    async fn metrics(&self) -> Vec<String> {
        match self {
            Site::Alone(alone) => vec![alone.1.operator_get("/metrics").await.text()],
            Site::Among(cluster, _) => {
                let mut pages = Vec::new();
                for node in &cluster.nodes {
                    pages.push(node.metrics().await);
                }
                pages
            }
        }
    }
}

/// What a scenario reported, and what passed the tap meanwhile.
#[derive(Debug)]
pub struct Played {
    /// The scenario's own report.
    pub report: Value,
    /// Every request that left the SDK, its own retries included.
    pub attempts: Vec<Attempt>,
}

impl Stage {
    /// A stage whose one tenant is held by `limits`; `None` where Python is missing and skipping is allowed.
    pub async fn open(limits: &str) -> Option<Stage> {
        let python = venv::python()?;
        let key = Key::of("the application");
        let provider = Process::provider(&[]).await;
        let policy = Policy::at(&provider.url)
            .provider("gemini", "dialect: gemini")
            .model("gemini-2.5-flash", "gemini", "")
            .tenant("application", &key, limits);
        let node = Process::serve(&policy.yaml(), &[]).await;
        Some(Stage::before(python, Site::Alone(Box::new((provider, node))), key).await)
    }

    async fn before(python: &'static Path, site: Site, key: Key) -> Stage {
        let tap = Tap::before(site.callers()).await;
        let metrics_before = site.metrics().await;
        let requests_before = site.provider().stat("requests").await;
        Stage { python, site, tap, key, metrics_before, requests_before }
    }

    /// Who answers, and what it has billed.
    pub fn provider(&self) -> &Provider {
        self.site.provider()
    }

    /// How many requests the provider has got since this stage was opened.
    pub async fn sent(&self) -> u64 {
        self.provider().stat("requests").await - self.requests_before
    }

    /// By how much a counter has grown since this stage was opened, over all nodes.
    pub async fn counted(&self, name: &str, labels: &[&str]) -> i64 {
        let sum = |pages: &[String]| pages.iter().map(|page| sum_of_series(page, name, labels)).sum::<i64>();
        sum(&self.site.metrics().await) - sum(&self.metrics_before)
    }

    /// Plays a scenario to its end.
    pub async fn play(&self, sdk: Sdk, scenario: &str) -> Played {
        self.play_as(sdk, scenario, &self.key).await
    }

    /// Plays a scenario with a key of its own.
    ///
    /// # Panics
    /// When the scenario fails by itself, which no scenario should; what it wrote is shown.
    pub async fn play_as(&self, sdk: Sdk, scenario: &str, key: &Key) -> Played {
        let script = match sdk {
            Sdk::OpenAi => "openai_scenarios.py",
            Sdk::Anthropic => "anthropic_scenarios.py",
            Sdk::Gemini => "gemini_scenarios.py",
        };
        let script: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests", "sdk", script].iter().collect();
        let mut command = Command::new(self.python);
        // -B: the repository stays as it was. The environment is empty but for what is named: a proxy or a key of the
        // machine's must not steer the SDK.
        command.arg("-B").arg(script).arg(scenario).env_clear();
        command.env("GATEWAY", &self.tap.url).env("GATEWAY_KEY", &key.secret);
        command.envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "CI_RUN"));

        let mut process = Process::start(scenario, command, temporary_directory());
        let status = process.ended().await;
        let printed = fs::read_to_string(process.directory().join("stdout")).unwrap_or_default();
        assert!(status.success(), "{sdk:?} {scenario}: {status}\n{printed}{}", process.log());
        let report = serde_json::from_str(&printed)
            .unwrap_or_else(|error| panic!("{sdk:?} {scenario}: {error} in: {printed}"));
        Played { report, attempts: self.tap.take() }
    }

    /// The node's own account of an attempt, once it is over: what it decided and how that ended. Asked for as the tenant may,
    /// with its own key.
    pub async fn decision(&self, attempt: &Attempt) -> Value {
        let id = attempt.answer("x-tollgate-decision").expect("every answer names its decision");
        let url = format!("{}/tollgate/v1/decisions/{id}", self.site.callers());
        let bearer = self.key.bearer();
        eventually("the decision has ended", async || {
            let record = Client::new().get(&url, &[("authorization", &bearer)]).await.json();
            let is_over = record["outcome"] == "denied" || record["ending"].is_object();
            if is_over { Ok(record) } else { Err(record.to_string()) }
        })
        .await
    }

    /// The provider's own account of an attempt, once it is over. The two books share the decision's id.
    pub async fn bill(&self, attempt: &Attempt) -> Value {
        let id = attempt.answer("x-tollgate-decision").expect("every answer names its decision");
        eventually("the provider has written it down", async || {
            let rows = self.provider().requests().await;
            let count = rows.len();
            let mine: Vec<Value> = rows.into_iter().filter(|row| row["decision"] == id).collect();
            match <[Value; 1]>::try_from(mine) {
                Ok([row]) => Ok(row),
                Err(mine) => Err(format!("{} of its {count} rows are of {id}", mine.len())),
            }
        })
        .await
    }

    /// Asserts that the books are closed: nothing in flight, nothing reserved, at any node.
    pub async fn assert_at_rest(&self) {
        eventually("nothing is in flight and nothing reserved", async || {
            let pages = self.site.metrics().await;
            let sum = |name: &str| pages.iter().map(|page| sum_of_series(page, name, &[])).sum::<i64>();
            match (sum("tollgate_inflight"), sum("tollgate_open_reservations")) {
                (0, 0) => Ok(()),
                (inflight, open) => Err(format!("{inflight} in flight, {open} reserved")),
            }
        })
        .await;
    }
}

impl Played {
    /// The status of each attempt, in order.
    pub fn statuses(&self) -> Vec<u16> {
        self.attempts.iter().map(|attempt| attempt.status).collect()
    }

    /// The one attempt of a scenario that must not have made more.
    pub fn only_attempt(&self) -> &Attempt {
        let [attempt] = self.attempts.as_slice() else {
            panic!("one attempt, not {}: {:#?}", self.attempts.len(), self.attempts);
        };
        attempt
    }
}
