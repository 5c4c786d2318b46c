//! `tollgate usage`: what was used, row by row or summed up, over all nodes of a cluster.
//!
//! Exit code 3 when a node did not answer: what is printed then is not all, and standard error names the node.

mod columns;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use http::Method;
use serde_json::Value;

use crate::admin::client::{Failure, Operator};
use crate::ledger::row::COLUMNS;

const ABOUT: &str = "\
Examples:
  tollgate usage export --from 2026-11-01 --to 2026-12-01 --format csv --output november.csv
  tollgate usage export --tenant northwind | jq .settled
  tollgate usage sums --by model --from 2026-11-01

Times are days (midnight, UTC) or instants such as 2026-11-30T12:00:00Z; a request counts at the time when it was decided. Any node
answers for all.";

/// How long a node may take for a page.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `tollgate usage`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = ABOUT)]
pub struct Args {
    #[command(flatten)]
    operator: Operator,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print each request as a row
    Export {
        #[command(flatten)]
        which: Which,
        /// How rows look
        #[arg(long, value_enum, default_value_t = Format::Jsonl)]
        format: Format,
        /// Where to write them [default: standard output]
        #[arg(long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Print what requests come to
    Sums {
        #[command(flatten)]
        which: Which,
        /// What they are summed up by
        #[arg(long, value_parser = ["tenant", "model", "key", "day"], default_value = "tenant")]
        by: String,
    },
}

/// Which requests.
#[derive(Debug, clap::Args)]
struct Which {
    /// Decided then or later [default: all]
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Decided before then [default: until now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Of this tenant alone
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
}

impl Which {
    fn query(&self, more: &[(&str, &str)]) -> String {
        let own = [("from", &self.from), ("to", &self.to), ("tenant", &self.tenant)];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
        let pairs = own.chain(more.iter().copied());
        pairs.map(|(name, value)| format!("{name}={}", escaped(value))).collect::<Vec<_>>().join("&")
    }
}

/// As a value in a query (RFC 3986 §3.4).
fn escaped(value: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(byte);
    let bytes = value.bytes();
    bytes
        .map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// How rows look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A JSON object a line
    Jsonl,
    /// Comma-separated values (RFC 4180), the names of the columns first
    Csv,
    /// Apache Parquet
    Parquet,
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    let Args { operator, command } = args;
    let done = match command {
        Command::Export { which, format, output } => export(&operator, &which, format, output.as_deref()),
        Command::Sums { which, by } => sums(&operator, &which, &by),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("usage"),
    }
}

fn export(operator: &Operator, which: &Which, format: Format, output: Option<&Path>) -> Result<(), Failure> {
    let out: Out = match output {
        Some(path) => Box::new(BufWriter::new(File::create(path).map_err(unwritten)?)),
        None => Box::new(BufWriter::new(io::stdout())),
    };
    let mut sheet = Sheet::begin(format, out).map_err(unwritten)?;
    let written = pages(operator, which, &mut sheet);
    // What came is shown, whatever came after it.
    sheet.finish().map_err(unwritten)?;
    written
}

type Out = Box<dyn Write + Send>;

fn unwritten(error: io::Error) -> Failure {
    Failure::Refused(format!("the rows cannot be written: {error}"))
}

/// Rows on their way out.
enum Sheet {
    Jsonl(Out),
    Csv(Out),
    Parquet(Box<columns::Parquet<Out>>),
}

impl Sheet {
    fn begin(format: Format, mut out: Out) -> io::Result<Self> {
        match format {
            Format::Jsonl => Ok(Self::Jsonl(out)),
            Format::Csv => {
                writeln!(out, "{}\r", COLUMNS.join(","))?;
                Ok(Self::Csv(out))
            }
            Format::Parquet => Ok(Self::Parquet(Box::new(columns::Parquet::begin(out)?))),
        }
    }

    fn row(&mut self, row: Value) -> io::Result<()> {
        match self {
            Self::Jsonl(out) => writeln!(out, "{row}"),
            Self::Csv(out) => writeln!(out, "{}\r", csv(&row)),
            Self::Parquet(file) => file.row(row),
        }
    }

    fn finish(self) -> io::Result<()> {
        match self {
            Self::Jsonl(mut out) | Self::Csv(mut out) => out.flush(),
            Self::Parquet(file) => file.finish(),
        }
    }
}

fn pages(operator: &Operator, which: &Which, sheet: &mut Sheet) -> Result<(), Failure> {
    let mut missing = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let more: Vec<(&str, &str)> = cursor.iter().map(|at| ("cursor", at.as_str())).collect();
        let path = format!("/v1/usage/rows?{}", which.query(&more));
        let mut page = operator.ask(&Method::GET, &path, None, PATIENCE)?;
        if let Some(Value::Array(rows)) = page.get_mut("rows").map(Value::take) {
            rows.into_iter().try_for_each(|row| sheet.row(row)).map_err(unwritten)?;
        }
        missing.extend(missing_in(&page));
        match page["next"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => break,
        }
    }
    if missing.is_empty() { Ok(()) } else { Err(incomplete(&missing)) }
}

fn sums(operator: &Operator, which: &Which, by: &str) -> Result<(), Failure> {
    let path = format!("/v1/usage?{}", which.query(&[("by", by)]));
    let page = operator.ask(&Method::GET, &path, None, PATIENCE)?;
    let text = if operator.json { format!("{page:#}") } else { table(&page, by).to_string() };
    // Standard output may be closed; that is no failure of the question.
    let _ = writeln!(io::stdout().lock(), "{text}");
    let missing = missing_in(&page);
    if missing.is_empty() { Ok(()) } else { Err(incomplete(&missing)) }
}

fn missing_in(page: &Value) -> Vec<String> {
    let nodes = page["missing"].as_array().into_iter().flatten();
    let mut words: Vec<String> = nodes
        .map(|missing| format!("node {}: {}", missing["node"], missing["why"].as_str().unwrap_or_default()))
        .collect();
    if page["unreadable"].as_u64().is_some_and(|count| count > 0) {
        words.push(format!(
            "{} rows or files cannot be read: their node's log says which",
            page["unreadable"]
        ));
    }
    words
}

fn incomplete(missing: &[String]) -> Failure {
    Failure::Unreachable(format!("this is not all: {}", missing.join("; ")))
}

fn table(page: &Value, by: &str) -> Table {
    let columns =
        ["requests", "uncached_tokens", "cached_tokens", "cache_written_tokens", "output_tokens", "settled"];
    let mut table = Table::new();
    let header = [by, "requests", "uncached", "cached", "cache written", "output", "settled", "dollars"];
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    let line = |name: &str, sums: &Value| {
        let mut cells = vec![name.to_owned()];
        cells.extend(columns.map(|column| sums[column].to_string()));
        let unpriced = sums["unpriced"].as_u64().unwrap_or(0);
        let note = if unpriced > 0 { format!(" ({unpriced} without a price)") } else { String::new() };
        let micros = sums["cost_micro_dollars"].as_u64().unwrap_or(0);
        cells.push(format!("{}{note}", crate::policy::MicroDollars(micros)));
        cells
    };
    for group in page["groups"].as_array().into_iter().flatten() {
        table.add_row(line(group["group"].as_str().unwrap_or_default(), group));
    }
    table.add_row(line("in all", &page["total"]));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A row as a line of values. What a spreadsheet would take for a formula gets a quote before it: callers choose some of the words.
fn csv(row: &Value) -> String {
    let cell = |column: &str| match &row[column] {
        Value::Null => String::new(),
        Value::String(text) => {
            let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
            let text = if formula { format!("'{text}") } else { text.clone() };
            let plain = !text.contains([',', '"', '\r', '\n']);
            if plain { text } else { format!("\"{}\"", text.replace('"', "\"\"")) }
        }
        other => other.to_string(),
    };
    COLUMNS.map(cell).join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_has_every_column_and_starts_no_formula() {
        let row = json!({ "id": "1", "settled": 20, "model_asked": "=cmd|\"x\",y", "project": null });
        let line = csv(&row);
        assert!(line.starts_with("1,,,"));
        assert!(line.contains(",\"'=cmd|\"\"x\"\",y\","), "{line}");
        assert_eq!(line.replace("\"\",y\"", "").matches(',').count(), COLUMNS.len() - 1);
    }

    #[test]
    fn a_query_holds_what_was_given() {
        let which = Which {
            from: Some("2026-11-01T00:00:00+01:00".to_owned()),
            to: None,
            tenant: Some("a&b".to_owned()),
        };
        assert_eq!(which.query(&[("by", "day")]), "from=2026-11-01T00:00:00%2B01:00&tenant=a%26b&by=day");
    }
}
