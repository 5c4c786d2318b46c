//! What the demo starts: a provider, some nodes and a receiver of alerts on free ports of this machine, and a folder that is removed in the end.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tempfile::TempDir;

use super::nodes::{self, Company};
use super::receiver::Receiver;
use crate::admin::AdminToken;
use crate::gateway::Gateway;
use crate::policy::{self, Policy};
use crate::simulated;

/// The policy as it is in the source, before addresses are put in.
pub(super) const POLICY: &str = include_str!("policy.yaml");

/// The provider counts prompts higher than the node estimates them, as real ones do: refunds and overage both occur.
const SKEW: &str = "1.07";

/// A running provider, the nodes in front of it, and who is told what they have to say.
pub struct Stage {
    /// The nodes, in the order in which they were started.
    pub(super) nodes: Vec<Gateway>,
    /// The policy of all nodes.
    pub(super) policy: Policy,
    /// Who may operate the nodes.
    pub(super) token: AdminToken,
    /// Who is told when a budget crosses a threshold.
    pub(super) receiver: Receiver,
    provider: simulated::Provider,
    folder: TempDir,
}

impl Stage {
    /// Starts the provider and so many nodes; returns when all of them can admit and share the tenants.
    ///
    /// # Errors
    /// A folder or a port cannot be had, or the nodes do not become one cluster; says which.
    pub async fn set(count: usize) -> Result<Self, String> {
        let folder = tempfile::Builder::new()
            .prefix("tollgate-demo-")
            .tempdir()
            .map_err(|error| format!("cannot make a temporary folder: {error}"))?;
        let options = simulated::Options { skew: SKEW.parse()?, ..simulated::Options::default() };
        let provider = simulated::Provider::bind(loopback(), options)
            .await
            .map_err(|error| format!("cannot start the simulated provider: {error}"))?;

        let secret = hex::encode(rand::random::<[u8; 16]>());
        let receiver = Receiver::bind(loopback(), &secret)
            .await
            .map_err(|error| format!("cannot start the receiver of alerts: {error}"))?;

        let path = folder.path().join("policy.yaml");
        let text = POLICY
            .replace("PROVIDER", &provider.local_addr().to_string())
            .replace("RECEIVER", &receiver.local_addr().to_string())
            .replace("FOLDER", &folder.path().display().to_string());
        let written = fs::write(folder.path().join("provider.key"), "sk-simulated\n")
            .and_then(|()| fs::write(folder.path().join("webhook.secret"), &secret))
            .and_then(|()| fs::write(&path, &text));
        written.map_err(|error| format!("cannot write to {}: {error}", folder.path().display()))?;
        let policy = policy::parse(&text, &path.display().to_string())
            .map_err(|problems| format!("the demo's own policy is invalid: {problems}"))?;

        let secret: [u8; 16] = rand::random();
        let token = AdminToken::given(&hex::encode(secret)).ok_or("the admin token is empty")?;
        let company = Company { path: &path, token: &token, folder: folder.path() };
        let nodes = company.start(count).await?;
        Ok(Self { nodes, policy, token, receiver, provider, folder })
    }

    /// Where callers connect, at each node: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn callers_urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}", node.callers())).collect()
    }

    /// Where operators connect, at each node.
    #[must_use]
    pub fn admin_urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://{}", node.operators())).collect()
    }

    /// Where the provider listens.
    #[must_use]
    pub fn provider_url(&self) -> String {
        format!("http://{}", self.provider.local_addr())
    }

    /// The policy that the nodes follow.
    #[must_use]
    pub fn policy_path(&self) -> PathBuf {
        self.folder.path().join("policy.yaml")
    }

    /// Stops all, the nodes first, and removes the folder.
    pub async fn strike(self) {
        nodes::stop(self.nodes).await;
        self.receiver.shut_down();
        self.provider.shutdown().await;
    }
}

/// A port of this machine that the system chooses.
pub(super) fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::callers::key_of;
    use crate::policy::KeyHash;

    #[test]
    fn the_policy_is_valid_and_its_keys_are_those_that_the_callers_use() {
        let text = POLICY.replace("PROVIDER", "127.0.0.1:9000").replace("RECEIVER", "127.0.0.1:9001");
        let policy = policy::parse(&text, "policy.yaml").unwrap();
        assert!(policy.warnings.is_empty(), "{:#?}", policy.warnings);
        let sample = policy.tenants.iter().filter(|tenant| tenant.id.starts_with('t')).count();
        assert!(sample >= 40);
        for tenant in &policy.tenants {
            for key in &tenant.keys {
                let expected = KeyHash::of(key_of(&tenant.id, &key.label).as_bytes());
                assert_eq!(key.hash, expected, "tenant {}, key {}", tenant.id, key.label);
            }
        }
    }
}
