//! `tollgate cluster`: look at a cluster, take nodes out of it, change its secret.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use http::Method;
use serde_json::{Value, json};

use crate::admin::client::{Failure, Operator};

/// How long a look may take.
const LOOK: Duration = Duration::from_secs(5);
/// How long a handover may take, its node's removal with it: the session's lease must be over first.
const LEAVE: Duration = Duration::from_secs(60);

/// Arguments of `tollgate cluster`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: Operator,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Who is a member, who leads, whose lease runs, who owns how much
    Status,
    /// Take the node of --admin out: it hands its shards over, is forgotten by the cluster, and stops
    Leave,
    /// Forget a node that is gone for good. It must be out of the ring, with no session that may still live
    Remove {
        /// The node's number
        id: u64,
    },
    /// Change the cluster's secret without a stop: install, use, then remove the old one
    Keyring {
        #[command(subcommand)]
        step: Keyring,
    },
}

#[derive(Debug, clap::Subcommand)]
enum Keyring {
    /// The keys, which is in use, and who holds each
    List,
    /// Give a new key to every node
    Install {
        /// A file with the key: at least 32 bytes, of at least 128 random bits
        file: PathBuf,
    },
    /// Seal with this key from now on. Refused while a live node lacks it
    Use {
        /// The key's fingerprint
        key: String,
    },
    /// Stop reading what is sealed with this key
    Remove {
        /// The key's fingerprint
        key: String,
    },
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    match answer(&args) {
        Ok(text) => {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{text}").and_then(|()| out.flush());
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report("cluster"),
    }
}

fn answer(args: &Args) -> Result<String, Failure> {
    let ask = |method: Method, path: &str, body: Option<Value>, within| {
        args.operator.ask(&method, path, body.as_ref(), within)
    };
    let keyring = "/v1/cluster/keyring";
    let (page, words) = match &args.command {
        Command::Status => {
            let page = ask(Method::GET, "/v1/cluster", None, LOOK)?;
            let words = status(&page);
            (page, words)
        }
        Command::Leave => {
            let page = ask(Method::POST, "/v1/cluster/leave", None, LEAVE)?;
            (
                page,
                "The node has handed over its shards, the cluster has forgotten it, and it stops.".to_owned(),
            )
        }
        Command::Remove { id } => {
            let page = ask(Method::POST, "/v1/cluster/remove", Some(json!({ "id": id })), LOOK)?;
            (page, format!("Node {id} is removed. Its data folder can never join again."))
        }
        Command::Keyring { step: Keyring::List } => {
            let page = ask(Method::GET, keyring, None, LOOK)?;
            let words = keys(&page);
            (page, words)
        }
        Command::Keyring { step: Keyring::Install { file } } => {
            let secret = read_key(file)?;
            let page = ask(Method::POST, keyring, Some(json!({ "install": secret })), LOOK)?;
            let key = page["key"].as_str().unwrap_or_default().to_owned();
            (page, format!("Every live node holds {key}. Next: tollgate cluster keyring use {key}"))
        }
        Command::Keyring { step: Keyring::Use { key } } => {
            let page = ask(Method::POST, keyring, Some(json!({ "use": key })), LOOK)?;
            (
                page,
                format!(
                    "{key} is in use. Next: put it into each node's secret file, then remove the old key."
                ),
            )
        }
        Command::Keyring { step: Keyring::Remove { key } } => {
            let page = ask(Method::POST, keyring, Some(json!({ "remove": key })), LOOK)?;
            (page, format!("{key} is not read any more."))
        }
    };
    Ok(if args.operator.json { format!("{page:#}") } else { words })
}

/// The first key in the file, in hexadecimal: a secret may have any bytes.
fn read_key(file: &Path) -> Result<String, Failure> {
    let bytes =
        std::fs::read(file).map_err(|problem| Failure::Refused(format!("{}: {problem}", file.display())))?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(hex::encode(line.trim_ascii()))
}

fn status(page: &Value) -> String {
    let text = |value: &Value| match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "node",
        "address",
        "role",
        "session",
        "lease left",
        "shards",
        "lag",
    ]);
    for member in page["members"].as_array().into_iter().flatten() {
        let session = text(&member["session"]).chars().take(8).collect::<String>();
        let lease =
            member["lease_left_ms"].as_u64().map_or_else(|| "–".to_owned(), |left| format!("{left} ms"));
        let heard = if member["heard"] == Value::Bool(false) { " (not heard of)" } else { "" };
        table.add_row([
            text(&member["id"]),
            format!("{}{heard}", text(&member["address"])),
            text(&member["role"]),
            session,
            lease,
            text(&member["shards"]),
            text(&member["lag"]),
        ]);
    }
    let mut lines = vec![format!(
        "cluster {}  ·  leader {}  ·  epoch {}  ·  {} shards on their way, {} without an owner",
        text(&page["cluster"]),
        text(&page["leader"]),
        text(&page["epoch"]),
        page["moves"].as_array().map_or(0, Vec::len),
        text(&page["unowned"]),
    )];
    lines.push(table.to_string());
    let warnings = page["warnings"].as_array().into_iter().flatten();
    lines.extend(warnings.filter_map(Value::as_str).map(|warning| format!("warning: {warning}")));
    lines.join("\n")
}

fn keys(page: &Value) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["key", "in use", "held by nodes"]);
    for key in page["keys"].as_array().into_iter().flatten() {
        let holders = key["held_by"].as_array().into_iter().flatten().map(Value::to_string);
        table.add_row([
            key["key"].as_str().unwrap_or_default().to_owned(),
            if key["in_use"] == Value::Bool(true) { "yes" } else { "" }.to_owned(),
            holders.collect::<Vec<_>>().join(", "),
        ]);
    }
    table.to_string()
}
