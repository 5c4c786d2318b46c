//! A node's own settings: flags, then environment, then `tollgate.yaml`, then defaults. Policy is not among them.

use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::telemetry::LogFormat;

/// Settings as they may be given in a file: the names of the flags, with underscores or hyphens. Unknown ones are errors.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct FileSettings {
    /// Where callers connect.
    pub listen: Option<SocketAddr>,
    /// Where operators connect.
    pub admin: Option<SocketAddr>,
    /// A file with the certificate of the operators' address.
    pub admin_tls_cert: Option<PathBuf>,
    /// A file with its private key.
    pub admin_tls_key: Option<PathBuf>,
    /// The data folder.
    pub data: Option<PathBuf>,
    /// The policy file.
    pub policy: Option<PathBuf>,
    /// A file with the admin token.
    pub token_file: Option<PathBuf>,
    /// How logs look.
    pub log_format: Option<LogFormat>,
    /// Which logs are written.
    pub log: Option<String>,
    /// How long `/readyz` says no before the node stops taking requests.
    pub drain_delay: Option<String>,
    /// How long a node that is gone may come back and say what its requests have used.
    pub orphan_grace: Option<String>,
    /// How long running requests may take to end.
    pub drain_timeout: Option<String>,
    /// The largest request body, in bytes.
    pub max_body_bytes: Option<usize>,
    /// A file with the certificate of the callers' address.
    pub tls_cert: Option<PathBuf>,
    /// A file with its private key.
    pub tls_key: Option<PathBuf>,
    /// The most connections of callers.
    pub max_connections: Option<usize>,
    /// The most of them from one address.
    pub max_connections_per_ip: Option<usize>,
    /// The most of them that have shown the same key.
    pub max_connections_per_key: Option<usize>,
    /// The largest request head, in bytes.
    pub max_head_bytes: Option<usize>,
    /// How long a TLS handshake may take.
    pub handshake_timeout: Option<String>,
    /// How long a connection may say nothing after it was made.
    pub first_byte_timeout: Option<String>,
    /// How long a request's head may take.
    pub header_timeout: Option<String>,
    /// How long a request's body may fall silent.
    pub body_timeout: Option<String>,
    /// How long a connection may be without a request.
    pub idle_timeout: Option<String>,
    /// How long a caller may leave unread what was sent to it.
    pub reading_timeout: Option<String>,
    /// Whether a row is kept of each request that has ended.
    pub usage_ledger: Option<bool>,
    /// How long rows are kept.
    pub usage_retention: Option<String>,
    /// The most bytes of them.
    pub usage_max_bytes: Option<u64>,
    /// A file of rows that is this large is closed.
    pub usage_segment_bytes: Option<u64>,
    /// A file of rows that was begun this long ago is closed.
    pub usage_segment_age: Option<String>,
    /// Threads that serve requests.
    pub workers: Option<NonZero<u16>>,
    /// Where other nodes connect, by TCP and UDP.
    pub peer: Option<SocketAddr>,
    /// Where other nodes reach this one, `host:port`.
    pub advertise: Option<String>,
    /// `host:port` of nodes to begin with.
    pub join: Option<Vec<String>>,
    /// Found a new cluster.
    pub bootstrap: Option<bool>,
    /// Found a new cluster together with so many.
    pub bootstrap_expect: Option<u16>,
    /// A file with the cluster's secret.
    pub secret_file: Option<PathBuf>,
    /// The length of a lease.
    pub lease: Option<String>,
    /// Start without limits when the policy is invalid.
    pub without_limits_on_invalid_policy: Option<bool>,
}

impl FileSettings {
    /// Reads a settings file.
    ///
    /// # Errors
    /// It cannot be read, or says something that is no setting: what, where.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// "250ms", "10s", "2m": as a policy writes lengths of time.
///
/// # Errors
/// Anything else.
pub fn duration(text: &str) -> Result<Duration, String> {
    crate::policy::parse_duration(text).map_err(|why| format!("{text:?} {why}"))
}

/// The same, and days: "400d". For what is kept, not for what is waited for.
///
/// # Errors
/// Anything else.
pub fn long_duration(text: &str) -> Result<Duration, String> {
    const DAY: u64 = 24 * 60 * 60;
    let Some(days) = text.strip_suffix('d') else { return duration(text) };
    let days: u64 = days.parse().map_err(|_| format!("{text:?} is not a number of days, such as 400d"))?;
    days.checked_mul(DAY).map(Duration::from_secs).ok_or_else(|| format!("{text:?} is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_set_what_a_flag_sets_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tollgate.yaml");
        std::fs::write(&path, "listen: 127.0.0.1:8080\ndrain-delay: 5s\nlog-format: json\n").unwrap();
        let settings = FileSettings::read(&path).unwrap();
        assert_eq!(settings.listen, Some("127.0.0.1:8080".parse().unwrap()));
        assert_eq!(settings.log_format, Some(LogFormat::Json));

        std::fs::write(&path, "lissen: 127.0.0.1:8080\n").unwrap();
        let problem = FileSettings::read(&path).unwrap_err();
        assert!(problem.contains("lissen"), "{problem}");
    }

    #[test]
    fn the_settings_that_are_shipped_are_settings() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/tollgate.yaml");
        let settings = FileSettings::read(&path).unwrap();
        assert_eq!(settings.drain_timeout.as_deref().map(duration), Some(Ok(Duration::from_secs(60))));
    }

    #[test]
    fn lengths_of_time_have_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(long_duration("400d"), Ok(Duration::from_secs(400 * 86_400)));
        assert_eq!(long_duration("36h"), duration("36h"));
        assert!(long_duration("d").is_err() && long_duration("-1d").is_err() && duration("1d").is_err());
        assert!(duration("10").is_err() && duration("-1s").is_err() && duration("s").is_err());
    }
}
