//! A Python environment with the official SDKs at exact versions: made once from the pinned requirements, kept until they change. The tests
//! use it, and so does the harness that breaks clusters.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

const PINNED: &[u8] = include_bytes!("requirements.txt");

/// The interpreter of the environment in the folder `target`.
///
/// # Errors
/// Python, pip or a package registry is missing.
pub fn python_in(target: &Path) -> Result<PathBuf, String> {
    let version = output(Command::new("python3").arg("--version"))?;
    let stamp = hex::encode(Sha256::new().chain_update(&version).chain_update(PINNED).finalize());

    let venv = target.join("sdk-venv");
    let python = venv.join("bin/python");
    let stamp_file = venv.join("requirements.sha256");

    // Two runs may want it at once: the second waits for the first, then finds the stamp. Closing the file unlocks it.
    let lock = target.join("sdk-venv.lock");
    let lock = File::create(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    lock.lock().map_err(|error| format!("the lock of {}: {error}", venv.display()))?;
    if fs::read_to_string(&stamp_file).is_ok_and(|made_from| made_from == stamp) {
        return Ok(python);
    }
    output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))?;
    let write = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
    };
    let requirements = venv.join("requirements.txt");
    write(&requirements, PINNED)?;
    output(
        Command::new(&python).args(["-m", "pip", "install", "--quiet", "--requirement"]).arg(&requirements),
    )?;
    write(&stamp_file, stamp.as_bytes())?;
    Ok(python)
}

fn output(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr)))
}
