//! `tollgate-jepsen`: breaks a real cluster of Tollgate on purpose, and checks that nothing was overspent.
//!
//! A black box: it knows the product by its command line, its HTTP and its audit file. Reading order: `history` (what is known of a run),
//! `checker` (what must hold of it), `network` and `cluster` (what is broken), `nemesis` (how), `workload` with `client` and `provider` (under
//! which traffic), `run` (all of it in order), `report`, `peers` (other limiters in the same chair), `cli`.

mod checker;
mod cli;
mod client;
mod cluster;
mod history;
mod nemesis;
mod network;
mod peers;
mod provider;
mod random;
mod report;
mod run;
mod sys;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    // A bug of the harness is no verdict on the product.
    std::panic::catch_unwind(cli::main).unwrap_or(ExitCode::from(2))
}
