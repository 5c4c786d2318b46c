//! Compiles the shim, so that the harness is one file that carries it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=shim/src/lib.rs");
    let of = |name: &str| env::var_os(name).map(PathBuf::from).unwrap_or_default();
    let out = of("OUT_DIR").join("shim.so");
    let compiled = Command::new(of("RUSTC"))
        .args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", "shim", "-C", "opt-level=2"])
        .args(["-C", "panic=abort", "-o"])
        .arg(&out)
        .arg("shim/src/lib.rs")
        .status();
    match compiled {
        Ok(status) if status.success() => {}
        other => panic!("the shim does not compile: {other:?}"),
    }
}
