//! Secrets: referred to by the policy, read by the node, printed by nobody.
//!
//! Laws: a policy holds references and never values, so it may be shown, diffed and replicated; a [`Secret`] has no way to print
//! itself; an empty secret is an error, not an anonymous request.

use std::fmt;
use std::path::PathBuf;

/// The largest secret file that is read, in bytes: a private key fits, a mistaken path to a log does not.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// Where a secret is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecretReference {
    /// An environment variable of the node: `env:NAME`.
    Env(String),
    /// A file on the node: `file:PATH`. One newline at its end is not part of the secret.
    File(PathBuf),
}

impl SecretReference {
    /// Reads `env:NAME` or `file:PATH`; `None` for anything else, a value in particular.
    #[must_use]
    pub fn parse(text: &str) -> Option<SecretReference> {
        if let Some(name) = text.strip_prefix("env:") {
            let well_formed = !name.is_empty()
                && !name.starts_with(|c: char| c.is_ascii_digit())
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            return well_formed.then(|| SecretReference::Env(name.to_owned()));
        }
        let path = text.strip_prefix("file:")?;
        (!path.is_empty()).then(|| SecretReference::File(PathBuf::from(path)))
    }

    /// Reads the secret.
    ///
    /// # Errors
    /// When the variable or file is absent, unreadable, not UTF-8, empty or larger than 64 KiB.
    pub fn resolve(&self) -> Result<Secret, SecretProblem> {
        let mut value = match self {
            SecretReference::Env(name) => std::env::var_os(name)
                .ok_or_else(|| self.problem("is not set"))?
                .into_string()
                .map_err(|_| self.problem("is not UTF-8"))?,
            SecretReference::File(path) => self.read_file(path)?,
        };
        if value.ends_with('\n') {
            value.pop();
            if value.ends_with('\r') {
                value.pop();
            }
        }
        if value.trim().is_empty() { Err(self.problem("is empty")) } else { Ok(Secret(value)) }
    }

    fn read_file(&self, path: &std::path::Path) -> Result<String, SecretProblem> {
        use std::io::Read as _;
        let mut value = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_SECRET_BYTES + 1).read_to_string(&mut value))
            .map_err(|error| self.problem(&format!("cannot be read: {error}")))?;
        if value.len() as u64 > MAX_SECRET_BYTES {
            return Err(self.problem("is larger than 64 KiB: is it the right file?"));
        }
        Ok(value)
    }

    fn problem(&self, reason: &str) -> SecretProblem {
        SecretProblem { reference: self.clone(), reason: reason.to_owned() }
    }
}

impl fmt::Display for SecretReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretReference::Env(name) => write!(f, "env:{name}"),
            SecretReference::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Why a secret could not be read. Names the reference, never the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the secret {reference} {reason}")]
pub struct SecretProblem {
    /// The secret.
    pub reference: SecretReference,
    /// What is wrong with it.
    pub reason: String,
}

/// A secret in memory. It cannot be printed; [`Secret::expose`] is the one way to its value.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The value, for the header or the signature that needs it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}
