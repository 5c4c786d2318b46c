//! `tollgate demo`: the first thing to run. Prints the account of a minute of real traffic and, unless told otherwise, stays up.
//!
//! Exit code 0: everything balances. 1: something does not, and is printed with its id.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use super::stop::Stop;
use crate::demo::{self, Stage, encore};

const ABOUT: &str = "\
Starts a simulated provider and a cluster of nodes in front of it on free ports of this machine, plays the busiest minute of a real
sample of 40 tenants through real HTTP (streams, callers that leave, a provider that fails, budgets that run out, every way to be
refused), each request at the next node, and compares what the nodes charged with what the provider billed, request by request.
Nothing leaves this machine, and no key is needed.";

/// Arguments of `tollgate demo`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = ABOUT)]
pub struct Args {
    /// End when the books have been printed, instead of staying up
    #[arg(long)]
    pub once: bool,
    /// Print the account as one JSON object, and nothing else, to standard output
    #[arg(long)]
    pub json: bool,
    /// How many nodes share the work; one is its own cluster
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    pub nodes: u8,
    /// Compress the minute into so many seconds
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=30))]
    pub seconds: u64,
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start the runtime: {error}")),
    };
    match runtime.block_on(run_until_stopped(&args)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => fail(&problem),
    }
}

/// Answers whether the books balanced.
async fn run_until_stopped(args: &Args) -> Result<bool, String> {
    let mut stop = Stop::listen()?;
    let stage = tokio::select! {
        stage = Stage::set(usize::from(args.nodes)) => stage?,
        () = stop.asked() => return Err("stopped before the nodes were ready".to_owned()),
    };
    let nodes = match args.nodes {
        1 => "A node".to_owned(),
        count => format!("A cluster of {count} nodes"),
    };
    eprintln!(
        "{nodes} on {} in front of a simulated provider on {}.\n\
         Playing the busiest minute of a real sample of 40 tenants in {} s, and every way to be refused beside it.\n",
        stage.callers_urls().join(", "),
        stage.provider_url(),
        args.seconds
    );
    let report = tokio::select! {
        report = demo::play(&stage, Duration::from_secs(args.seconds)) => report?,
        () = stop.asked() => {
            stage.strike().await;
            return Err("stopped before the end of the play".to_owned());
        }
    };
    print(&if args.json { format!("{}\n", report.to_json()) } else { report.to_string() });
    if args.json {
        report.problems.iter().for_each(|problem| eprintln!("{problem}"));
    }
    if !args.once {
        let lines = encore::lines(&stage);
        if args.json {
            eprintln!("{lines}")
        } else {
            print(&format!("\n{lines}\n"))
        }
        stop.asked().await;
    }
    stage.strike().await;
    Ok(report.balanced)
}

/// A reader that went away (`| head`) is no failure of the demo.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn fail(problem: &str) -> ExitCode {
    eprintln!("tollgate demo: {problem}");
    ExitCode::FAILURE
}
