//! `tollgate demo`.

use std::process::ExitCode;

/// Arguments of `tollgate demo`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
pub fn run(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
