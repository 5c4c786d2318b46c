//! `tollgate serve`: run a node until it is told to stop.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::stop::Stop;
use crate::admin::AdminToken;
use crate::config::{self, FileSettings};
use crate::gateway::{First, Gateway, GatewayOptions};
use crate::ledger::LedgerOptions;
use crate::limit::Options;
use crate::node::audit::AuditFile;
use crate::node::{Audit, Snapshot, UserKey};
use crate::policy::{self, Policy};
use crate::proxy::{EdgeOptions, ServerOptions, TlsFiles};
use crate::reload;
use crate::telemetry::{LogFormat, init_logs};

const ABOUT: &str = "\
Examples:
  tollgate serve --policy policy.yaml
  tollgate serve --policy policy.yaml --listen 0.0.0.0:8080 --admin 127.0.0.1:8081 --data /var/lib/tollgate

Then point an SDK at it: base_url http://HOST:8080/v1 for OpenAI, http://HOST:8080 for Anthropic, with a key of this gateway
(`tollgate keys new` makes one). Every flag may also be given as TOLLGATE_… in the environment or in the file of --config;
a flag beats the environment, which beats the file.

SIGHUP reads the policy, the certificates and the providers' secrets again; they are also read when their files change. SIGTERM and SIGINT stop: /readyz turns first, then, after
--drain-delay, no more requests are taken and those that run may end within --drain-timeout.";

/// Which logs are written unless told otherwise. What the libraries of consensus and gossip say at `info` is of no use to an operator.
const LOG: &str = "info,openraft=error,chitchat=warn,notify=warn";

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
    /// A file with the certificate of the operators' address, in PEM: they then connect by https. It is followed
    #[arg(long, env = "TOLLGATE_ADMIN_TLS_CERT", value_name = "FILE")]
    admin_tls_cert: Option<PathBuf>,
    /// A file with that certificate's private key, in PEM
    #[arg(long, env = "TOLLGATE_ADMIN_TLS_KEY", value_name = "FILE")]
    admin_tls_key: Option<PathBuf>,
    /// The folder for what the node keeps [default: ./tollgate-data, and without --peer nothing but the admin token is kept]
    #[arg(long, env = "TOLLGATE_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// The policy file: it seeds a cluster that has no policy, and is followed
    #[arg(long, env = "TOLLGATE_POLICY", value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A file with these settings
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file with the token of the admin address; TOLLGATE_ADMIN_TOKEN beats it, and without either one is made in DIR/admin.token
    #[arg(long, env = "TOLLGATE_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    usage: UsageArgs,
    #[command(flatten)]
    cluster: super::membership::ClusterArgs,
    /// How logs look [default: pretty on a terminal, json elsewhere]
    #[arg(long, env = "TOLLGATE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Which logs are written, as in `info` or `warn,tollgate::decision=info` [default: info]
    #[arg(long, env = "TOLLGATE_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// How long /readyz says no before requests are no longer taken [default: 0s]
    #[arg(long, env = "TOLLGATE_DRAIN_DELAY", value_name = "TIME", value_parser = config::duration)]
    drain_delay: Option<Duration>,
    /// How long a node that is gone may come back and say what its requests have used, before budgets are charged their estimates; the same on
    /// every node [default: 10m]
    #[arg(long, env = "TOLLGATE_ORPHAN_GRACE", value_name = "TIME", value_parser = config::duration)]
    orphan_grace: Option<Duration>,
    /// How long running requests may take to end [default: 30s]
    #[arg(long, env = "TOLLGATE_DRAIN_TIMEOUT", value_name = "TIME", value_parser = config::duration)]
    drain_timeout: Option<Duration>,
    /// The largest request body [default: 33554432]
    #[arg(long, env = "TOLLGATE_MAX_BODY_BYTES", value_name = "BYTES")]
    max_body_bytes: Option<usize>,
    /// The most connections of callers at once [default: 20000]
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS", value_name = "N")]
    max_connections: Option<usize>,
    #[command(flatten)]
    callers: Callers,
    /// Append a line for each decision of this node's owners to FILE: for tests that judge a cluster from outside
    #[arg(long, value_name = "FILE", hide = true)]
    audit_file: Option<PathBuf>,
    /// Threads that serve requests [default: one for each core]
    #[arg(long, env = "TOLLGATE_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Start although the policy is invalid, and enforce NO limit: a way out of an outage, never a way to run
    #[arg(long, env = "TOLLGATE_WITHOUT_LIMITS_ON_INVALID_POLICY")]
    without_limits_on_invalid_policy: bool,
}

/// What is kept of requests that have ended, in DIR/usage.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Usage ledger")]
struct UsageArgs {
    /// Whether a row is kept of each request that has ended [default: true]
    #[arg(long, env = "TOLLGATE_USAGE_LEDGER", value_name = "BOOL")]
    usage_ledger: Option<bool>,
    /// How long rows are kept [default: 400d]
    #[arg(long, env = "TOLLGATE_USAGE_RETENTION", value_name = "TIME", value_parser = config::long_duration)]
    usage_retention: Option<Duration>,
    /// The most bytes of them; the oldest go first [default: 8589934592]
    #[arg(long, env = "TOLLGATE_USAGE_MAX_BYTES", value_name = "BYTES")]
    usage_max_bytes: Option<u64>,
    /// A file of rows that is this large is closed [default: 67108864]
    #[arg(long, env = "TOLLGATE_USAGE_SEGMENT_BYTES", value_name = "BYTES")]
    usage_segment_bytes: Option<u64>,
    /// A file of rows that was begun this long ago is closed [default: 1d]
    #[arg(long, env = "TOLLGATE_USAGE_SEGMENT_AGE", value_name = "TIME", value_parser = config::long_duration)]
    usage_segment_age: Option<Duration>,
}

impl UsageArgs {
    fn options(self, file: &FileSettings, data: &Path) -> Result<Option<LedgerOptions>, String> {
        if !self.usage_ledger.or(file.usage_ledger).unwrap_or(true) {
            return Ok(None);
        }
        let mut options = LedgerOptions::of_data(data);
        let keep = &mut options.keep;
        let long = |flag: Option<Duration>, text: &Option<String>, default| match (flag, text) {
            (Some(time), _) => Ok(time),
            (None, Some(text)) => config::long_duration(text),
            (None, None) => Ok(default),
        };
        keep.retention = long(self.usage_retention, &file.usage_retention, keep.retention)?;
        keep.segment_age = long(self.usage_segment_age, &file.usage_segment_age, keep.segment_age)?;
        keep.most_bytes = self.usage_max_bytes.or(file.usage_max_bytes).unwrap_or(keep.most_bytes);
        keep.segment_bytes =
            self.usage_segment_bytes.or(file.usage_segment_bytes).unwrap_or(keep.segment_bytes);
        Ok(Some(options))
    }
}

/// What callers may do before a request of theirs is looked at.
#[derive(Debug, clap::Args)]
struct Callers {
    /// A file with the certificate, and those that it is signed by, in PEM: callers then connect by https. It is followed
    #[arg(long, env = "TOLLGATE_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<PathBuf>,
    /// A file with the certificate's private key, in PEM
    #[arg(long, env = "TOLLGATE_TLS_KEY", value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// The most connections from one address, or IPv6 /64 [default: 10000]
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS_PER_IP", value_name = "N")]
    max_connections_per_ip: Option<usize>,
    /// The most connections that have shown the same key [default: 10000]
    #[arg(long, env = "TOLLGATE_MAX_CONNECTIONS_PER_KEY", value_name = "N")]
    max_connections_per_key: Option<usize>,
    /// The largest request head [default: 16384]
    #[arg(long, env = "TOLLGATE_MAX_HEAD_BYTES", value_name = "BYTES")]
    max_head_bytes: Option<usize>,
    /// How long a TLS handshake may take [default: 10s]
    #[arg(long, env = "TOLLGATE_HANDSHAKE_TIMEOUT", value_name = "TIME", value_parser = config::duration)]
    handshake_timeout: Option<Duration>,
    /// How long a connection may say nothing after it was made [default: 5s]
    #[arg(long, env = "TOLLGATE_FIRST_BYTE_TIMEOUT", value_name = "TIME", value_parser = config::duration)]
    first_byte_timeout: Option<Duration>,
    /// How long a request's head may take [default: 10s]
    #[arg(long, env = "TOLLGATE_HEADER_TIMEOUT", value_name = "TIME", value_parser = config::duration)]
    header_timeout: Option<Duration>,
    /// How long a request's body may fall silent; below 500 bytes a second it is late after a third of this [default: 30s]
    #[arg(long, env = "TOLLGATE_BODY_TIMEOUT", value_name = "TIME", value_parser = config::duration)]
    body_timeout: Option<Duration>,
    /// How long a connection may be without a request [default: 60s]
    #[arg(long, env = "TOLLGATE_IDLE_TIMEOUT", value_name = "TIME", value_parser = config::duration)]
    idle_timeout: Option<Duration>,
    /// How long a caller may leave unread what was sent to it [default: 60s]
    #[arg(long, env = "TOLLGATE_READING_TIMEOUT", value_name = "TIME", value_parser = config::duration)]
    reading_timeout: Option<Duration>,
}

impl Callers {
    /// The edge's bounds: flags, else the file, else the defaults.
    fn bounds(
        self,
        file: &FileSettings,
        max_body: Option<usize>,
        max_connections: Option<usize>,
    ) -> Result<(EdgeOptions, ServerOptions), String> {
        let (mut edge, mut server) = (EdgeOptions::default(), ServerOptions::default());
        let set =
            |to: &mut usize, flag: Option<usize>, text: Option<usize>| *to = flag.or(text).unwrap_or(*to);
        set(&mut edge.max_body, max_body, file.max_body_bytes);
        set(&mut server.max_connections, max_connections, file.max_connections);
        set(&mut server.max_connections_per_ip, self.max_connections_per_ip, file.max_connections_per_ip);
        set(&mut server.max_connections_per_key, self.max_connections_per_key, file.max_connections_per_key);
        set(&mut server.max_head, self.max_head_bytes, file.max_head_bytes);
        let set = |to: &mut Duration, flag, text: &Option<String>| -> Result<(), String> {
            *to = time(flag, text.as_deref(), *to)?;
            Ok(())
        };
        set(&mut server.handshake_timeout, self.handshake_timeout, &file.handshake_timeout)?;
        set(&mut server.first_byte_timeout, self.first_byte_timeout, &file.first_byte_timeout)?;
        set(&mut server.header_timeout, self.header_timeout, &file.header_timeout)?;
        set(&mut edge.pace.silence, self.body_timeout, &file.body_timeout)?;
        edge.pace.grace = edge.pace.silence / 3;
        set(&mut server.idle_timeout, self.idle_timeout, &file.idle_timeout)?;
        set(&mut server.reading_timeout, self.reading_timeout, &file.reading_timeout)?;
        let (cert, key) = (self.tls_cert.or(file.tls_cert.clone()), self.tls_key.or(file.tls_key.clone()));
        server.tls = pair(cert, key, "--tls-cert and --tls-key")?;
        Ok((edge, server))
    }
}

/// A certificate is of use with its key alone.
fn pair(cert: Option<PathBuf>, key: Option<PathBuf>, flags: &str) -> Result<Option<TlsFiles>, String> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key })),
        (None, None) => Ok(None),
        _ => Err(format!("{flags} are given together or not at all")),
    }
}

/// A length of time: the flag's, else the file's, else the default.
fn time(flag: Option<Duration>, text: Option<&str>, default: Duration) -> Result<Duration, String> {
    match (flag, text) {
        (Some(time), _) => Ok(time),
        (None, Some(text)) => config::duration(text),
        (None, None) => Ok(default),
    }
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
    let filter = args.log.clone().or(file.log.clone()).unwrap_or_else(|| LOG.to_owned());
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
    let (edge, server) = args.callers.bounds(&file, args.max_body_bytes, args.max_connections)?;
    let path = args.policy.or(file.policy.clone());
    let without_limits =
        args.without_limits_on_invalid_policy || file.without_limits_on_invalid_policy.unwrap_or(false);
    let first = match &path {
        Some(path) => first_policy(path, without_limits)?,
        None => First::Agreed,
    };
    let given_data = args.data.or(file.data.clone());
    let data = given_data.clone().unwrap_or_else(|| PathBuf::from("tollgate-data"));
    let mut membership = args.cluster.options(&file, &data)?;
    if path.is_none() && membership.is_none() && given_data.is_none() {
        return Err(
            "no policy: give one with --policy FILE, or --data DIR with what was agreed on before. `tollgate check FILE` says what is wrong with one; deploy/policy.yaml is one to start from.".to_owned(),
        );
    }
    let ledger = args.usage.options(&file, &data)?;
    let audit = args.audit_file.as_deref().map(AuditFile::at).transpose();
    let audit = audit.map_err(|error| format!("the audit file cannot be opened: {error} (--audit-file)"))?;
    let audit = audit.map(|audit| Arc::new(audit) as Arc<dyn Audit>);
    if let Some(membership) = &mut membership {
        membership.audit.clone_from(&audit);
    }
    let token_file = args.token_file.or(file.token_file);
    // Never a flag: whoever lists processes would read it.
    let given = std::env::var("TOLLGATE_ADMIN_TOKEN").ok().and_then(|token| AdminToken::given(&token));
    let token = match (given, token_file) {
        (Some(token), _) => Ok(token),
        (None, Some(file)) => AdminToken::of_file(&file),
        (None, None) => AdminToken::of_folder(&data),
    };
    let (cert, key) =
        (args.admin_tls_cert.or(file.admin_tls_cert), args.admin_tls_key.or(file.admin_tls_key));
    let admin_tls = pair(cert, key, "--admin-tls-cert and --admin-tls-key")?;
    let drain_delay = time(args.drain_delay, file.drain_delay.as_deref(), Duration::ZERO)?;
    let drain_timeout = time(args.drain_timeout, file.drain_timeout.as_deref(), Duration::from_secs(30))?;
    let orphan_grace = time(args.orphan_grace, file.orphan_grace.as_deref(), Duration::from_secs(600))?;
    let options = GatewayOptions {
        listen: args.listen.or(file.listen).unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8080))),
        admin: args.admin.or(file.admin).unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 8081))),
        admin_tls,
        ledger,
        users: match membership {
            Some(_) => None,
            None => users_of(&data),
        },
        token: token.map_err(|problem| problem.to_string())?,
        policy_file: path,
        data: membership.as_ref().map(|_| data).or(given_data),
        limiter: Options { orphan_grace: orphan_grace.into(), ..Options::default() },
        edge,
        server,
    };
    let mut stop = Stop::listen()?;
    let started = match membership {
        Some(membership) => Gateway::join(first, options, membership).await,
        None => Gateway::start(first, options).await,
    };
    let gateway = started.map_err(|error| error.to_string())?;
    if let Some(audit) = audit {
        // A node that is its own cluster; a member's was there before its first decision, and only the first is heard.
        gateway.node().audited_by(audit);
    }
    announce(&gateway);
    tokio::select! {
        () = stop.asked() => {}
        problem = gateway.failed() => {
            // What it would still say could not be kept, or would not be heard: others take over once its lease is over.
            return Err(format!("{problem}. It has let its lease go and ends"));
        }
        () = gateway.left() => tracing::info!("this node has left its cluster for good"),
    }
    tracing::info!("stopping: no more requests are taken, running ones may end");
    tokio::select! {
        () = gateway.shut_down(drain_delay, drain_timeout) => {}
        () = stop.asked() => tracing::warn!("stopping at once: asked a second time"),
    }
    Ok(())
}

/// The policy that the node starts with, unless another is agreed on. One that is invalid ends the start, unless the operator has asked
/// for an open gate.
fn first_policy(path: &Path, without_limits: bool) -> Result<First, String> {
    let text =
        reload::read(path).map_err(|error| format!("the policy {} cannot be read: {error}", path.display()));
    let parsed = match &text {
        Ok(text) => policy::parse(text, &path.display().to_string()).map_err(|problems| problems.to_string()),
        Err(problem) => Err(problem.clone()),
    };
    match parsed {
        Ok(policy) => {
            say_what_is_not_kept(&policy);
            Ok(First::Document { text: text.unwrap_or_default(), name: path.display().to_string() })
        }
        Err(problem) if without_limits => {
            tracing::error!(
                "NO LIMIT IS ENFORCED: the policy is invalid and --without-limits-on-invalid-policy was given. Whoever reaches this \
                 node may spend. It ends by itself when the file becomes valid:\n{problem}"
            );
            let saved = policy::salvage(text.as_deref().unwrap_or_default());
            let mut snapshot = Snapshot::first(saved.ok_or("nothing of the policy can be used")?);
            snapshot.open_to_everyone();
            Ok(First::Open(Box::new(snapshot)))
        }
        Err(problem) => Err(format!(
            "{problem}\nThe node does not start with an invalid policy. `tollgate check {}` says the same.",
            path.display()
        )),
    }
}

/// Without a folder to keep it in, users have other digests in the node's next life: no limit outlasts this one either.
fn users_of(data: &Path) -> Option<UserKey> {
    let kept = UserKey::of_folder(data);
    if let Err(problem) = &kept {
        tracing::warn!(%problem, "the key of users' digests cannot be kept in users.key of the data folder");
    }
    kept.ok()
}

fn say_what_is_not_kept(policy: &Policy) {
    for warning in &policy.warnings {
        tracing::warn!("{}", warning.render("policy"));
    }
    for setting in policy::not_yet_enforced(policy) {
        tracing::warn!("not yet enforced by this version: {setting}");
    }
}

/// The line that scripts and tests read. Standard output may be closed; that is no reason to stop.
fn announce(gateway: &Gateway) {
    let mut line = format!(
        "tollgate listening callers={}://{} admin={}://{}",
        scheme(gateway.is_tls()),
        gateway.callers(),
        scheme(gateway.is_admin_tls()),
        gateway.operators()
    );
    if let Some(membership) = gateway.membership() {
        let _ = write!(line, " peer={}", membership.member().address());
    }
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    tracing::info!("{line}");
}

const fn scheme(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}

fn refuse(problem: &str) -> ExitCode {
    eprintln!("tollgate serve: {problem}");
    ExitCode::FAILURE
}
