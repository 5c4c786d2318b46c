//! The Python environment of the scenarios: made once from the pinned requirements, kept until they change.
//!
//! A machine without Python, pip or a package registry skips what needs it, and says so on the terminal, past the test
//! harness' capture; where `CI` is set that is a failure.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};

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
    let requirements = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/requirements.txt");
    let pinned = fs::read(&requirements).map_err(|error| format!("{}: {error}", requirements.display()))?;
    let version = output(Command::new("python3").arg("--version"))?;
    let stamp = hex::encode(Sha256::new().chain_update(&version).chain_update(&pinned).finalize());

    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("the target folder has no parent")?;
    let venv = target.join("sdk-venv");
    let python = venv.join("bin/python");
    let stamp_file = venv.join("requirements.sha256");

    // Two test runs may want it at once: the second waits for the first, then finds the stamp. Closing the file unlocks it.
    let lock = target.join("sdk-venv.lock");
    let lock = File::create(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    lock.lock().map_err(|error| format!("the lock of {}: {error}", venv.display()))?;
    if fs::read_to_string(&stamp_file).is_ok_and(|made_from| made_from == stamp) {
        return Ok(python);
    }
    output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    output(
        Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements),
    )?;
    fs::write(&stamp_file, stamp).map_err(|error| format!("{}: {error}", stamp_file.display()))?;
    Ok(python)
}

fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
