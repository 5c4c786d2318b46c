//! The Python environment of the scenarios.
//!
//! A machine without Python, pip or a package registry skips what needs it, and says so on the terminal, past the test
//! harness' capture; where `CI` is set that is a failure.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[path = "pinned.rs"]
mod pinned;

/// The interpreter of the environment; `None` when it cannot be made here and skipping is allowed.
///
/// # Panics
/// When it cannot be made and `CI` is set.
pub fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let reason = match PYTHON.get_or_init(make) {
        Ok(python) => return Some(python),
        Err(reason) => reason,
    };
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    assert!(std::env::var_os("CI").is_none(), "the official SDKs cannot be installed: {reason}");
    // Not `eprintln!`, which the harness swallows when a test passes. A closed terminal is no reason to fail.
    let _closed = writeln!(std::io::stderr(), "SKIPPED: {test}: {reason}");
    None
}

fn make() -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("the target folder has no parent")?;
    pinned::python_in(target)
}
