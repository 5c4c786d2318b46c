//! `tollgate provider`: the simulated provider as a process.

use std::net::SocketAddr;
use std::process::ExitCode;

use super::stop::Stop;
use crate::simulated::{Ceilings, Options, Provider, Skew};

/// Arguments of `tollgate provider`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Address to listen on; port 0 takes a free one, and the first line printed names it
    #[arg(long, value_name = "ADDR", env = "TOLLGATE_PROVIDER_LISTEN", default_value = "127.0.0.1:9000")]
    pub listen: SocketAddr,

    /// Refuse requests that would bring the input and output tokens of any 60 s above N
    #[arg(long, value_name = "N")]
    pub ceiling_tokens_per_minute: Option<u64>,

    /// Refuse requests beyond N in any 60 s
    #[arg(long, value_name = "N")]
    pub ceiling_requests_per_minute: Option<u64>,

    /// Bill prompts this many times what the tokenizer says (0.1 to 10, three places)
    #[arg(long, value_name = "FACTOR", default_value = "1")]
    pub skew: Skew,

    /// Serve only this model (may be given several times); without it any name is served
    #[arg(long = "model", value_name = "NAME")]
    pub models: Vec<String>,
}

const AFTER_HELP: &str = "\
Steer a request with the header x-sim, a list of items:
  x-sim: latency=50ms,tokens=200,chunks=20,gap=5ms   a slower and longer answer
  x-sim: status=429,retry_after=2                    a refusal
  x-sim: fail_after=3                                a stream cut after three chunks
  x-sim: usage=off                                   billed, but no usage reported

Read what it billed:
  curl localhost:9000/stats              the sums
  curl localhost:9000/requests           a JSON line for each request
  curl -X POST localhost:9000/reset      start afresh";

/// Runs the command until SIGTERM or ctrl-c.
pub fn run(args: Args) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("tollgate provider: cannot start the runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(serve(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("tollgate provider: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: Args) -> Result<(), String> {
    // Before the address is printed: whoever reads it may send the signal at once.
    let mut stop = Stop::listen()?;

    let options = Options {
        ceilings: Ceilings {
            tokens: args.ceiling_tokens_per_minute,
            requests: args.ceiling_requests_per_minute,
        },
        skew: args.skew,
        models: args.models,
        ..Options::default()
    };
    let provider = Provider::bind(args.listen, options).await.map_err(|error| {
        format!("cannot listen on {}: {error}; choose another address with --listen", args.listen)
    })?;
    println!("listening on http://{}", provider.local_addr());

    stop.asked().await;
    provider.shutdown().await;
    Ok(())
}
