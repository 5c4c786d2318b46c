//! `tollgate apply FILE`: a policy, in force on every node: what it changes, what its numbers come to, and the version that it makes.
//!
//! The document is read here first, so that what is wrong with it is said with the file's lines and without asking anybody.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::check::{floors_and_peaks_of, json_of_problems, pools_of};
use crate::admin::client::{Failure, Operator};
use crate::policy::{self, summary};
use crate::reload;

/// How long it may take: the document is read by every node, and who does not answer is waited for until its lease is over.
const WITHIN: Duration = Duration::from_secs(90);

/// Arguments of `tollgate apply`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: Operator,
    /// The policy
    file: PathBuf,
    /// Say what it would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Only in place of this version, as `tollgate policy log` numbers them; 0: only if there is none
    #[arg(long, value_name = "VERSION")]
    expect: Option<u64>,
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    let name = args.file.display().to_string();
    let text = match reload::read(&args.file) {
        Ok(text) => text,
        Err(error) => return Failure::Refused(format!("{name} cannot be read: {error}")).report("apply"),
    };
    let read = match policy::parse(&text, &name) {
        Ok(policy) => summary::of(&policy),
        Err(problems) => {
            if args.operator.json {
                print(json_of_problems(&problems).trim_end());
            } else {
                eprintln!("{problems}");
            }
            return ExitCode::FAILURE;
        }
    };
    let mut path = format!("/v1/policy?dry_run={}&by={}", args.dry_run, encoded(&format!("apply {name}")));
    if let Some(expect) = args.expect {
        let _ = write!(path, "&expect={expect}");
    }
    let body = ("application/yaml; charset=utf-8", text);
    match args.operator.send(&Method::POST, &path, body, WITHIN) {
        Ok(page) if args.operator.json => print(&format!("{page:#}")),
        Ok(page) => print(&words(&page, Some(&read))),
        Err(failure) => return failure.report("apply"),
    }
    ExitCode::SUCCESS
}

/// A reader that went away is no failure.
pub(super) fn print(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// What a node answered to a document, for people.
pub(super) fn words(page: &Value, read: Option<&summary::Summary>) -> String {
    let mut text = String::new();
    let lines: Vec<&str> = page["diff"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for line in &lines {
        let _ = writeln!(text, "{line}");
    }
    if !lines.is_empty() {
        text.push('\n');
    }
    if let Some(read) = read.filter(|read| !read.pools.is_empty()) {
        let _ = writeln!(text, "{}", pools_of(read));
        for pool in &read.pools {
            let _ = writeln!(text, "{}", floors_and_peaks_of(pool));
        }
        for warning in &read.warnings {
            let _ = writeln!(text, "{}", warning.render("warning"));
        }
        text.push('\n');
    }
    let (version, replaces) = (&page["version"], &page["replaces"]);
    let said = if page["dry_run"] == Value::Bool(true) {
        match lines.len() {
            0 => format!("Version {replaces} says this already. Nothing was changed."),
            _ => format!("It would replace version {replaces}. Nothing was changed."),
        }
    } else if page["already"] == Value::Bool(true) {
        format!("Version {version} says this already.")
    } else {
        let where_to = page["in_force"].as_str().unwrap_or_default();
        match replaces.as_u64() {
            Some(0) | None => format!("Version {version} is in force {where_to}."),
            Some(replaced) => {
                format!("Version {version} is in force {where_to}. It replaces version {replaced}.")
            }
        }
    };
    text.push_str(&said);
    text
}

/// A text as the value of a query's parameter (RFC 3986 §2.1).
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte))
            }
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn a_value_is_encoded_byte_by_byte() {
        assert_eq!(encoded("apply a b/ü.yaml"), "apply%20a%20b%2F%C3%BC.yaml");
    }
}
