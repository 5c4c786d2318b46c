//! `tollgate policy`: the policies that were in force, and how to take one back.

use std::process::ExitCode;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use http::Method;
use serde_json::{Value, json};

use super::apply::{print, words};
use crate::admin::client::{Failure, Operator};

/// How long a look may take.
const LOOK: Duration = Duration::from_secs(10);
/// How long a change may take; see `apply`.
const CHANGE: Duration = Duration::from_secs(90);

/// Arguments of `tollgate policy`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: Operator,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// The versions that are kept: when, where from, by whom
    Log,
    /// The document of a version, or of the one in force
    Show {
        /// The version
        #[arg(value_name = "VERSION")]
        number: Option<u64>,
    },
    /// Put an earlier version's document in force again, as a new version
    Rollback {
        /// The earlier version
        #[arg(value_name = "VERSION")]
        number: u64,
        /// Only in place of this version
        #[arg(long, value_name = "VERSION")]
        expect: Option<u64>,
    },
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    match answer(&args) {
        Ok(text) => {
            print(text.trim_end());
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report("policy"),
    }
}

fn answer(args: &Args) -> Result<String, Failure> {
    let ask = |method: Method, path: &str, body: Option<Value>, within| {
        args.operator.ask(&method, path, body.as_ref(), within)
    };
    let (page, told) = match &args.command {
        Command::Log => {
            let page = ask(Method::GET, "/v1/policy/log", None, LOOK)?;
            let told = table(&page);
            (page, told)
        }
        Command::Show { number } => {
            let version = number.map_or_else(|| "current".to_owned(), |version| version.to_string());
            let page = ask(Method::GET, &format!("/v1/policy/{version}"), None, LOOK)?;
            let told = page["text"].as_str().unwrap_or_default().to_owned();
            (page, told)
        }
        Command::Rollback { number, expect } => {
            let body = json!({ "to": number, "expect": expect, "by": "policy rollback" });
            let page = ask(Method::POST, "/v1/policy/rollback", Some(body), CHANGE)?;
            let told = words(&page, None);
            (page, told)
        }
    };
    Ok(if args.operator.json { format!("{page:#}") } else { told })
}

fn table(page: &Value) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["version", "at", "from", "by", "sha256"]);
    for version in page["versions"].as_array().into_iter().flatten() {
        let text = |name: &str| version[name].as_str().unwrap_or_default().to_owned();
        let mark = if version["current"] == Value::Bool(true) { " (in force)" } else { "" };
        table.add_row([
            format!("{}{mark}", version["version"]),
            text("at"),
            text("origin"),
            text("by"),
            text("sha256").chars().take(12).collect(),
        ]);
    }
    table.to_string()
}
