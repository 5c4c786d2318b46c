//! What the demo starts: a provider and a node on free ports of this machine, and a folder that is removed in the end.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::admin::AdminToken;
use crate::gateway::{Gateway, GatewayOptions};
use crate::limit::Options;
use crate::node::Snapshot;
use crate::policy::{self, Policy};
use crate::proxy::{EdgeOptions, ServerOptions};
use crate::simulated;

/// The policy as it is in the source, before addresses are put in.
pub(super) const POLICY: &str = include_str!("policy.yaml");

/// The provider counts prompts higher than the node estimates them, as real ones do: refunds and overage both occur.
const SKEW: &str = "1.07";

/// How long requests that run may take to end when the demo is over.
const PATIENCE: Duration = Duration::from_secs(2);

/// A running provider and a node in front of it.
pub struct Stage {
    /// The node.
    pub(super) gateway: Gateway,
    /// The node's policy.
    pub(super) policy: Policy,
    /// Who may operate the node.
    pub(super) token: AdminToken,
    provider: simulated::Provider,
    folder: TempDir,
}

impl Stage {
    /// Starts both.
    ///
    /// # Errors
    /// A folder or a port cannot be had; says which.
    pub async fn set() -> Result<Self, String> {
        let folder = tempfile::Builder::new()
            .prefix("tollgate-demo-")
            .tempdir()
            .map_err(|error| format!("cannot make a temporary folder: {error}"))?;
        let options = simulated::Options { skew: SKEW.parse()?, ..simulated::Options::default() };
        let provider = simulated::Provider::bind(loopback(), options)
            .await
            .map_err(|error| format!("cannot start the simulated provider: {error}"))?;

        let path = folder.path().join("policy.yaml");
        let text = POLICY
            .replace("PROVIDER", &provider.local_addr().to_string())
            .replace("FOLDER", &folder.path().display().to_string());
        let written = fs::write(folder.path().join("provider.key"), "sk-simulated\n")
            .and_then(|()| fs::write(&path, &text));
        written.map_err(|error| format!("cannot write to {}: {error}", folder.path().display()))?;
        let policy = policy::parse(&text, &path.display().to_string())
            .map_err(|problems| format!("the demo's own policy is invalid: {problems}"))?;

        let secret: [u8; 16] = rand::random();
        let token = AdminToken::given(&hex::encode(secret)).ok_or("the admin token is empty")?;
        let gateway = start(policy.clone(), path, token.clone())
            .await
            .map_err(|error| format!("cannot start the node: {error}"))?;
        Ok(Self { gateway, policy, token, provider, folder })
    }

    /// Where callers connect: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn callers_url(&self) -> String {
        format!("http://{}", self.gateway.callers())
    }

    /// Where operators connect.
    #[must_use]
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.gateway.operators())
    }

    /// Where the provider listens.
    #[must_use]
    pub fn provider_url(&self) -> String {
        format!("http://{}", self.provider.local_addr())
    }

    /// The policy that the node follows.
    #[must_use]
    pub fn policy_path(&self) -> PathBuf {
        self.folder.path().join("policy.yaml")
    }

    /// Stops both, the node first, and removes the folder.
    pub async fn strike(self) {
        self.gateway.shut_down(Duration::ZERO, PATIENCE).await;
        self.provider.shutdown().await;
    }
}

async fn start(policy: Policy, path: PathBuf, token: AdminToken) -> io::Result<Gateway> {
    let options = GatewayOptions {
        listen: loopback(),
        admin: loopback(),
        token,
        policy_file: Some(path),
        limiter: Options::default(),
        edge: EdgeOptions::default(),
        server: ServerOptions::default(),
    };
    Gateway::start(Snapshot::first(policy), options).await
}

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::callers::key_of;
    use crate::policy::KeyHash;

    #[test]
    fn the_policy_is_valid_and_its_keys_are_those_that_the_callers_use() {
        let text = POLICY.replace("PROVIDER", "127.0.0.1:9000");
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
