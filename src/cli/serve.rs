//! `tollgate serve`: run a node until it is told to stop.

use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::stop::Stop;
use crate::admin::AdminToken;
use crate::config::{self, FileSettings};
use crate::gateway::{Gateway, GatewayOptions};
use crate::limit::Options;
use crate::node::Snapshot;
use crate::policy;
use crate::proxy::{EdgeOptions, ServerOptions};
use crate::reload;
use crate::telemetry::{LogFormat, init_logs};

const ABOUT: &str = "\
Examples:
  tollgate serve --policy policy.yaml
  tollgate serve --policy policy.yaml --listen 0.0.0.0:8080 --admin 127.0.0.1:8081 --data /var/lib/tollgate

Then point an SDK at it: base_url http://HOST:8080/v1 for OpenAI, http://HOST:8080 for Anthropic, with a key of this gateway
(`tollgate keys new` makes one). Every flag may also be given as TOLLGATE_… in the environment or in the file of --config;
a flag beats the environment, which beats the file.

SIGHUP reads the policy again; it is also read when its file changes. SIGTERM and SIGINT stop: /readyz turns first, then, after
--drain-delay, no more requests are taken and those that run may end within --drain-timeout.";

/// Arguments of `tollgate serve`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = ABOUT)]
pub struct Args {
    /// Where callers connect [default: 127.0.0.1:8080]
    #[arg(long, env = "TOLLGATE_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where operators connect [default: 127.0.0.1:8081]
    #[arg(long, env = "TOLLGATE_ADMIN", value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// The folder for what the node keeps [default: ./tollgate-data]
    #[arg(long, env = "TOLLGATE_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// The policy file; it is followed
    #[arg(long, env = "TOLLGATE_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A file with these settings
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file with the token of the admin address; TOLLGATE_ADMIN_TOKEN beats it, and without either one is made in DIR/admin.token
    #[arg(long, env = "TOLLGATE_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// How logs look [default: pretty on a terminal, json elsewhere]
    #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Which logs are written, as in `info` or `warn,tollgate::decision=info` [default: info]
    #[arg(long, env = "TOLLGATE_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// How long /readyz says no before requests are no longer taken [default: 0s]
    #[arg(long, env = "TOLLGATE_DRAIN_DELAY", value_name = "TIME", value_parser = config::duration)]
    drain_delay: Option<Duration>,
    /// How long running requests may take to end [default: 30s]
    #[arg(long, env = "TOLLGATE_DRAIN_TIMEOUT", value_name = "TIME", value_parser = config::duration)]
    drain_timeout: Option<Duration>,
    /// The largest request body [default: 33554432]
    #[arg(long, env = "TOLLGATE_MAX_BODY_BYTES", value_name = "BYTES")]
    max_body_bytes: Option<usize>,
    /// The most connections of callers at once [default: 20000]
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS", value_name = "N")]
    max_connections: Option<usize>,
    /// Threads that serve requests [default: one for each core]
    #[arg(long, env = "TOLLGATE_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Start although the policy is invalid, and enforce NO limit: a way out of an outage, never a way to run
    #[arg(long, env = "TOLLGATE_WITHOUT_LIMITS_ON_INVALID_POLICY")]
    without_limits_on_invalid_policy: bool,
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    let file = match args.config.as_deref().map(FileSettings::read).transpose() {
        Ok(file) => file.unwrap_or_default(),
        Err(problem) => return refuse(&problem),
    };
    let format = args.log_format.or(file.log_format).unwrap_or_else(|| {
        if std::io::IsTerminal::is_terminal(&std::io::stderr()) { LogFormat::Pretty } else { LogFormat::Json }
    });
    let filter = args.log.clone().or(file.log.clone()).unwrap_or_else(|| "info".to_owned());
    let _logs = match init_logs(format, &filter) {
        Ok(logs) => logs,
        Err(problem) => return refuse(&problem),
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(workers) = args.workers.or(file.workers.map(std::num::NonZero::get)) {
        runtime.worker_threads(usize::from(workers));
    }
    let runtime = match runtime.enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&format!("cannot start: {error}")),
    };
    match runtime.block_on(serve(args, file)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => refuse(&problem),
    }
}

async fn serve(args: Args, file: FileSettings) -> Result<(), String> {
    let path = args.policy.or(file.policy).ok_or(
        "no policy: give one with --policy FILE. `tollgate check FILE` says what is wrong with one; deploy/policy.yaml is one to start from.",
    )?;
    let without_limits =
        args.without_limits_on_invalid_policy || file.without_limits_on_invalid_policy.unwrap_or(false);
    let snapshot = first_snapshot(&path, without_limits)?;
    say_what_is_missing(&snapshot);

    let data = args.data.or(file.data).unwrap_or_else(|| PathBuf::from("tollgate-data"));
    let token_file = args.token_file.or(file.token_file);
    // Never a flag: whoever lists processes would read it.
    let given = std::env::var("TOLLGATE_ADMIN_TOKEN").ok().and_then(|token| AdminToken::given(&token));
    let token = match (given, token_file) {
        (Some(token), _) => Ok(token),
        (None, Some(file)) => AdminToken::of_file(&file),
        (None, None) => AdminToken::of_folder(&data),
    };
    let time = |flag: Option<Duration>, text: Option<String>, default: u64| match (flag, text) {
        (Some(time), _) => Ok(time),
        (None, Some(text)) => config::duration(&text),
        (None, None) => Ok(Duration::from_secs(default)),
    };
    let drain_delay = time(args.drain_delay, file.drain_delay, 0)?;
    let drain_timeout = time(args.drain_timeout, file.drain_timeout, 30)?;

    let (edge, server) = (EdgeOptions::default(), ServerOptions::default());
    let options = GatewayOptions {
        listen: args.listen.or(file.listen).unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8080))),
        admin: args.admin.or(file.admin).unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8081))),
        token: token.map_err(|problem| problem.to_string())?,
        policy_file: Some(path),
        limiter: Options::default(),
        edge: EdgeOptions {
            max_body: args.max_body_bytes.or(file.max_body_bytes).unwrap_or(edge.max_body),
            ..edge
        },
        server: ServerOptions {
            max_connections: args.max_connections.or(file.max_connections).unwrap_or(server.max_connections),
            ..server
        },
    };
    let mut stop = Stop::listen()?;
    let gateway = Gateway::start(snapshot, options).await.map_err(|error| error.to_string())?;
    announce(&gateway);
    stop.asked().await;
    tracing::info!("stopping: no more requests are taken, running ones may end");
    tokio::select! {
        () = gateway.shut_down(drain_delay, drain_timeout) => {}
        () = stop.asked() => tracing::warn!("stopping at once: asked a second time"),
    }
    Ok(())
}

/// The policy that the node starts with. One that is invalid ends the start, unless the operator has asked for an open gate.
fn first_snapshot(path: &Path, without_limits: bool) -> Result<Snapshot, String> {
    let text =
        reload::read(path).map_err(|error| format!("the policy {} cannot be read: {error}", path.display()));
    let parsed = match &text {
        Ok(text) => policy::parse(text, &path.display().to_string()).map_err(|problems| problems.to_string()),
        Err(problem) => Err(problem.clone()),
    };
    match parsed {
        Ok(policy) => Ok(Snapshot::first(policy)),
        Err(problem) if without_limits => {
            tracing::error!(
                "NO LIMIT IS ENFORCED: the policy is invalid and --without-limits-on-invalid-policy was given. Whoever reaches this \
                 node may spend. It ends by itself when the file becomes valid:\n{problem}"
            );
            let saved = policy::salvage(text.as_deref().unwrap_or_default());
            let mut snapshot = Snapshot::first(saved.ok_or("nothing of the policy can be used")?);
            snapshot.open_to_everyone();
            Ok(snapshot)
        }
        Err(problem) => Err(format!(
            "{problem}\nThe node does not start with an invalid policy. `tollgate check {}` says the same.",
            path.display()
        )),
    }
}

fn say_what_is_missing(snapshot: &Snapshot) {
    for warning in &snapshot.policy.warnings {
        tracing::warn!("{}", warning.render("policy"));
    }
    for setting in policy::not_yet_enforced(&snapshot.policy) {
        tracing::warn!("not yet enforced by this version: {setting}");
    }
    for upstream in snapshot.upstreams.iter() {
        if let Some(problem) = upstream.problem() {
            tracing::warn!(provider = upstream.name, problem, "a provider cannot be called from this node");
        }
    }
}

/// The line that scripts and tests read. Standard output may be closed; that is no reason to stop.
fn announce(gateway: &Gateway) {
    let line = format!(
        "tollgate listening callers=http://{} admin=http://{}",
        gateway.callers(),
        gateway.operators()
    );
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    tracing::info!("{line}");
}

fn refuse(problem: &str) -> ExitCode {
    eprintln!("tollgate serve: {problem}");
    ExitCode::FAILURE
}
