//! The commands of the one binary: a file each, parsed by clap, answering with an exit code.
//!
//! Exit codes: 0 done, 1 the answer is no or the input is bad, 2 usage (clap), 3 unreachable.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub mod check;
pub mod demo;
pub mod keys;
pub mod provider;
pub mod serve;
mod stop;

/// A clustered LLM gateway that enforces every tenant's limits as one machine would.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, about, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a node: authenticate, estimate, reserve, proxy, meter, settle
    Serve(serve::Args),
    /// Start a node and a simulated provider, play a minute of real traffic, print the books
    Demo(demo::Args),
    /// Validate a policy file and print what it allows
    Check(check::Args),
    /// Make keys and their hashes
    Keys(keys::Args),
    /// Run the simulated provider: an OpenAI and Anthropic look-alike that bills to the token
    Provider(provider::Args),
    /// Print a shell completion script
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
}

/// Parses the command line and runs the command.
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Check(args) => check::run(args),
        Command::Keys(args) => keys::run(args),
        Command::Provider(args) => provider::run(args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}
