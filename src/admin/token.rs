//! The operators' token: given, or made once and kept in the data folder.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A token. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminToken(String);

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
#[error("the admin token in {path} {why}")]
pub struct TokenProblem {
    path: PathBuf,
    why: String,
}

impl AdminToken {
    /// A token that was given. Empty is none.
    #[must_use]
    pub fn given(token: &str) -> Option<Self> {
        let token = token.trim();
        (!token.is_empty()).then(|| Self(token.to_owned()))
    }

    /// The token in `folder/admin.token`, made with 256 random bits and readable by its owner alone when there is none yet.
    ///
    /// # Errors
    /// The folder or the file cannot be made or read, or the file is empty.
    pub fn of_folder(folder: &Path) -> Result<Self, TokenProblem> {
        let path = folder.join("admin.token");
        let problem =
            |error: &io::Error| TokenProblem { path: path.clone(), why: format!("cannot be kept: {error}") };
        fs::create_dir_all(folder).map_err(|error| problem(&error))?;
        let random: [u8; 32] = rand::random();
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => {
                writeln!(file, "{}", hex::encode(random)).map_err(|error| problem(&error))?;
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(problem(&error)),
        }
        Self::of_file(&path)
    }

    /// The token in a file.
    ///
    /// # Errors
    /// The file cannot be read, or is empty.
    pub fn of_file(path: &Path) -> Result<Self, TokenProblem> {
        let problem = |why: String| TokenProblem { path: path.to_owned(), why };
        let text = fs::read_to_string(path).map_err(|error| problem(format!("cannot be read: {error}")))?;
        Self::given(&text)
            .ok_or_else(|| problem("is empty: delete the file, or put a token in it".to_owned()))
    }

    /// The token itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_keeps_its_token_and_shows_it_to_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let made = AdminToken::of_folder(folder.path()).unwrap();
        assert_eq!(made.expose().len(), 64);
        assert_eq!(AdminToken::of_folder(folder.path()).unwrap(), made);
        let mode = fs::metadata(folder.path().join("admin.token")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn an_empty_token_is_an_error_that_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("admin.token"), "\n").unwrap();
        let problem = AdminToken::of_folder(folder.path()).unwrap_err().to_string();
        assert!(problem.contains("is empty: delete the file"), "{problem}");
    }
}
