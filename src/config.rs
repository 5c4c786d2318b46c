//! A node's own settings: flags, then environment, then `tollgate.yaml`, then defaults. Policy is not among them.

use std::net::SocketAddr;
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
    /// How long running requests may take to end.
    pub drain_timeout: Option<String>,
    /// The largest request body, in bytes.
    pub max_body_bytes: Option<usize>,
    /// The most connections of callers.
    pub max_connections: Option<usize>,
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
        assert!(duration("10").is_err() && duration("-1s").is_err() && duration("s").is_err());
    }
}
