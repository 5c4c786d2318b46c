//! `tollgate check FILE`: what is wrong with a policy, or what it allows.
//!
//! Errors go to standard error, one `FILE:LINE:COLUMN: setting: what` each with a hint below; the summary goes to standard
//! output. With `--json` both are one object on standard output. Exit code 0: a node would take this policy; 1: it would not.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};

use crate::policy::summary::{self, PoolSummary, Summary, grouped};
use crate::policy::{self, Problems};
use crate::reload;

/// Arguments of `tollgate check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The policy to check
    pub file: PathBuf,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
}

/// How many tenants that differ from their tier are told in the text; more than a screen.
const MAX_EXCEPTIONS: usize = 50;

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    let name = args.file.display().to_string();
    let text = match reload::read(&args.file) {
        Ok(text) => text,
        Err(error) => {
            if args.json {
                print(&format!(
                    "{}\n",
                    serde_json::json!({ "ok": false, "message": format!("{name}: {error}") })
                ));
            } else {
                eprintln!("{name}: cannot be read: {error}\n  hint: give the path of a policy file");
            }
            return ExitCode::FAILURE;
        }
    };
    match policy::parse(&text, &name) {
        Ok(policy) => {
            let summary = summary::of(&policy);
            print(&if args.json { json_of(&summary) } else { tables_of(&summary, &name) });
            ExitCode::SUCCESS
        }
        Err(problems) => {
            if args.json {
                print(&json_of_problems(&problems));
            } else {
                eprintln!("{problems}");
            }
            ExitCode::FAILURE
        }
    }
}

/// A reader that went away (`| head`) is no failure of the check.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn json_of(summary: &Summary) -> String {
    format!("{}\n", serde_json::json!({ "ok": true, "summary": summary }))
}

pub(super) fn json_of_problems(problems: &Problems) -> String {
    let object = serde_json::json!({
        "ok": false,
        "file": problems.source_name,
        "errors": problems.errors,
        "untold_errors": problems.untold,
        "warnings": problems.warnings,
    });
    format!("{object}\n")
}

fn tables_of(summary: &Summary, name: &str) -> String {
    let mut text = format!(
        "{name}: good. {}, {}.\n\nTiers (a request larger than `largest request` can never be admitted)\n{}\n\n\
         Pools (sold: the limits of every tenant that can reach it)\n{}\n",
        counted(summary.tenants, "tenant"),
        counted(summary.keys, "key"),
        tiers_of(summary),
        pools_of(summary),
    );
    for pool in &summary.pools {
        let _ = writeln!(text, "{}", floors_and_peaks_of(pool));
    }
    if !summary.exceptions.is_empty() {
        text.push_str("\nTenants that differ from their tier\n");
        for exception in summary.exceptions.iter().take(MAX_EXCEPTIONS) {
            let _ = writeln!(
                text,
                "  {} ({}; largest request {}): {}",
                exception.tenant,
                exception.tier,
                shown(exception.largest_request),
                exception.differences.join("; ")
            );
        }
        if let Some(more @ 1..) = summary.exceptions.len().checked_sub(MAX_EXCEPTIONS) {
            let _ = writeln!(text, "  and {more} more, all of them with --json");
        }
    }
    if !summary.requests.is_empty() {
        text.push_str("\nRefused for what is in them\n");
        for rule in &summary.requests {
            let context =
                rule.context_tokens.map(|most| format!("more than {} tokens to read", grouped(most)));
            let fields = (!rule.forbid_fields.is_empty()).then(|| rule.forbid_fields.join(", "));
            let refused: Vec<String> = context.into_iter().chain(fields).collect();
            let _ = writeln!(text, "  {}: {}", rule.of, refused.join("; "));
        }
    }
    if !summary.not_yet_enforced.is_empty() {
        text.push_str("\nRead and checked, but not yet enforced by this version\n");
        for setting in &summary.not_yet_enforced {
            let _ = writeln!(text, "  {setting}");
        }
    }
    if !summary.warnings.is_empty() {
        text.push_str("\nWarnings\n");
        for warning in &summary.warnings {
            let _ = writeln!(text, "{}", warning.render(name));
        }
    }
    text
}

fn tiers_of(summary: &Summary) -> Table {
    let mut table = table(&[
        "tier",
        "tokens/min",
        "input/min",
        "output/min",
        "burst",
        "requests/min",
        "in flight",
        "largest request",
        "tenants",
    ]);
    for tier in &summary.tiers {
        table.add_row([
            tier.tier.clone(),
            shown(tier.tokens_per_minute),
            shown(tier.input_tokens_per_minute),
            shown(tier.output_tokens_per_minute),
            shown(tier.burst_tokens),
            shown(tier.requests_per_minute),
            shown(tier.max_inflight),
            shown(tier.largest_request),
            grouped(tier.tenants),
        ]);
    }
    align_numbers(table)
}

pub(super) fn pools_of(summary: &Summary) -> Table {
    let mut table = table(&["pool", "per minute", "ceiling", "guard rate", "sold", "sold/ceiling"]);
    for pool in &summary.pools {
        for line in &pool.dimensions {
            let unlimited = match line.unlimited_tenants {
                0 => String::new(),
                tenants => format!(" + {} unlimited", grouped(tenants)),
            };
            let percent = line.oversubscription_percent;
            table.add_row([
                pool.pool.clone(),
                line.dimension.to_owned(),
                grouped(line.ceiling),
                grouped(line.guard),
                format!("{}{unlimited}", grouped(line.sold)),
                format!("{}.{:02}", percent / 100, percent % 100),
            ]);
        }
    }
    align_numbers(table)
}

pub(super) fn floors_and_peaks_of(pool: &PoolSummary) -> String {
    let guard = match pool.floors_guard {
        Some(guard) if pool.floors_fit => format!("within the guard rate of {}", grouped(guard)),
        Some(guard) => format!("more than the guard rate of {}", grouped(guard)),
        None => "the pool does not limit tokens".to_owned(),
    };
    let mut text = format!(
        "{}: burst {}, and no larger request; floors ({}) add up to {}, {guard}",
        pool.pool,
        grouped(pool.burst_tokens),
        pool.floors,
        grouped(pool.sum_of_floors)
    );
    if let Some(line) = pool.committed_peak_line.filter(|_| pool.committed_peak > 0) {
        let relation = if pool.committed_peak > u128::from(line) { "above" } else { "within" };
        let _ = write!(
            text,
            "; windows commit up to {}, {relation} 80 % of the ceiling ({})",
            grouped(pool.committed_peak),
            grouped(line)
        );
    }
    text
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header(header.to_vec());
    table
}

fn align_numbers(mut table: Table) -> Table {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number), if number == 1 { "" } else { "s" })
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "–".to_owned(), grouped)
}
