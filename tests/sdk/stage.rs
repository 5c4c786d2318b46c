//! Where a scenario plays: the simulated provider, a node before it, a tap before the node, and one tenant with a key.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::support::process::temporary_directory;
use super::support::{Attempt, Client, Key, Node, Policy, Process, Provider, Tap, eventually};
use super::venv;

/// One of the official SDKs.
#[derive(Clone, Copy, Debug)]
pub enum Sdk {
    /// `openai`.
    OpenAi,
    /// `anthropic`.
    Anthropic,
}

/// A provider, a node and a tap, up and ready.
pub struct Stage {
    python: &'static Path,
    /// Who answers, and what it has billed.
    pub provider: Provider,
    /// Who decides.
    pub node: Node,
    tap: Tap,
    key: Key,
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
        let policy = Policy::at(&provider.url).tenant("application", &key, limits);
        let node = Process::serve(&policy.yaml(), &[]).await;
        let tap = Tap::before(&node.callers).await;
        Some(Stage { python, provider, node, tap, key })
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
        let url = format!("{}/tollgate/v1/decisions/{id}", self.node.callers);
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
            let rows = self.provider.requests().await;
            let count = rows.len();
            let mine: Vec<Value> = rows.into_iter().filter(|row| row["decision"] == id).collect();
            match <[Value; 1]>::try_from(mine) {
                Ok([row]) => Ok(row),
                Err(mine) => Err(format!("{} of its {count} rows are of {id}", mine.len())),
            }
        })
        .await
    }

    /// Asserts that the node's books are closed: nothing in flight, nothing reserved.
    pub async fn assert_at_rest(&self) {
        self.node.until_metric("tollgate_inflight", &[], 0).await;
        self.node.until_metric("tollgate_open_reservations", &[], 0).await;
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
