//! The commands of the one binary: a file each, parsed by clap, answering with an exit code.
//!
//! Exit codes: 0 done, 1 the answer is no or the input is bad, 2 usage (clap), 3 unreachable.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

pub mod apply;
pub mod budgets;
pub mod check;
pub mod cluster;
pub mod demo;
pub mod keys;
mod limits;
pub mod membership;
pub mod policy;
pub mod provider;
pub mod serve;
mod stop;
pub mod tenants;
pub mod usage;

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
#[allow(clippy::large_enum_variant, reason = "there is one, and it is moved once")]
pub enum Command {
    /// Run a node: authenticate, estimate, reserve, proxy, meter, settle
    Serve(Box<serve::Args>),
    /// Start a node and a simulated provider, play a minute of real traffic, print the books
    Demo(demo::Args),
    /// Validate a policy file and print what it allows
    Check(check::Args),
    /// Put a policy in force on every node of a cluster
    Apply(apply::Args),
    /// Look at the policies that were in force, and take one back
    Policy(policy::Args),
    /// Make keys, list, rotate and revoke them
    Keys(keys::Args),
    /// Where budgets stand; say what was used before, give back what is written off
    Budgets(budgets::Args),
    /// Look at tenants, suspend them and resume them
    Tenants(tenants::Args),
    /// Have other limits than the policy's hold for a tenant for a while
    Override(tenants::OverrideArgs),
    /// Look at a cluster, take nodes out of it, change its secret
    Cluster(cluster::Args),
    /// What was used, row by row or summed up, over all nodes
    Usage(usage::Args),
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
        Command::Serve(args) => serve::run(*args),
        Command::Demo(args) => demo::run(args),
        Command::Check(args) => check::run(args),
        Command::Apply(args) => apply::run(args),
        Command::Policy(args) => policy::run(args),
        Command::Keys(args) => keys::run(args),
        Command::Budgets(args) => budgets::run(args),
        Command::Tenants(args) => tenants::run(args),
        Command::Override(args) => tenants::run_override(args),
        Command::Cluster(args) => cluster::run(args),
        Command::Usage(args) => usage::run(args),
        Command::Provider(args) => provider::run(args),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tollgate", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_arguments_of_a_command_have_one_name() {
        Cli::command().debug_assert();
    }
}
