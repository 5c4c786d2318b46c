//! `tollgate budgets`: where budgets stand, and what only a person can know of them.

use std::process::ExitCode;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use http::Method;
use serde_json::{Value, json};

use super::apply::{encoded, print};
use crate::admin::client::{Failure, Operator};
use crate::node::reason::thousands;

/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(30);

/// Arguments of `tollgate budgets`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: Operator,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Each budget with its period: used, held for open requests, left
    List {
        /// Only this tenant's
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Say how much of the current period is used: for a tenant that moves in mid-month
    SetUsed {
        #[command(flatten)]
        which: Which,
        /// So much: tokens, or dollars such as 12.50
        #[arg(value_name = "AMOUNT")]
        used: String,
    },
    /// Give back what owners that died left written off; what is reported of it later is charged beyond the budget
    Release {
        #[command(flatten)]
        which: Which,
        /// The period, by its beginning in seconds since 1970; the current one without it
        #[arg(long)]
        period: Option<i64>,
    },
}

/// A budget's name.
#[derive(Debug, clap::Args)]
struct Which {
    /// Whose
    #[arg(long)]
    tenant: String,
    /// Of this project of the tenant
    #[arg(long, conflicts_with = "key")]
    project: Option<String>,
    /// Of this key of the tenant, by its label
    #[arg(long)]
    key: Option<String>,
    /// How long its periods are
    #[arg(long, default_value = "month", value_parser = ["hour", "day", "week", "month"])]
    cycle: String,
    /// The budget in dollars, not the one in tokens
    #[arg(long)]
    usd: bool,
}

/// Runs the command.
pub fn run(args: Args) -> ExitCode {
    match answer(&args) {
        Ok(text) => {
            print(text.trim_end());
            ExitCode::SUCCESS
        }
        Err(failure) => failure.report("budgets"),
    }
}

fn answer(args: &Args) -> Result<String, Failure> {
    let ask = |method: Method, path: &str, body: Option<Value>| {
        args.operator.ask(&method, path, body.as_ref(), WITHIN)
    };
    let (page, told) = match &args.command {
        Command::List { tenant } => {
            let of = tenant.as_ref().map(|tenant| format!("?tenant={}", encoded(tenant))).unwrap_or_default();
            let page = ask(Method::GET, &format!("/v1/budgets{of}"), None)?;
            let told = table(&page["budgets"]);
            (page, told)
        }
        Command::SetUsed { which, used } => {
            let mut body = which.body();
            body["used"] = units(used, which.usd).map_err(Failure::Refused)?.into();
            let page = ask(Method::POST, "/v1/budgets/used", Some(body))?;
            let told = table(&json!([page["budget"]]));
            (page, told)
        }
        Command::Release { which, period } => {
            let mut body = which.body();
            body["period"] = json!(period);
            let page = ask(Method::POST, "/v1/budgets/release", Some(body))?;
            let released = page["released"].as_u64().unwrap_or_default();
            let told =
                format!("given back: {}\n{}", amount(released, which.usd), table(&json!([page["budget"]])));
            (page, told)
        }
    };
    Ok(if args.operator.json { page.to_string() } else { told })
}

impl Which {
    fn body(&self) -> Value {
        json!({
            "tenant": self.tenant,
            "project": self.project,
            "key": self.key,
            "cycle": self.cycle,
            "unit": if self.usd { "micro_dollars" } else { "tokens" },
        })
    }
}

/// An amount as a person writes it, in the budget's unit.
fn units(text: &str, dollars: bool) -> Result<u64, String> {
    if dollars {
        let money = crate::policy::MicroDollars::parse(text);
        return money
            .map(|money| money.0)
            .map_err(|_| format!("`{text}` is no sum of dollars: write it as 12.50"));
    }
    text.replace('_', "").parse().map_err(|_| format!("`{text}` is no number of tokens"))
}

fn amount(units: u64, dollars: bool) -> String {
    match dollars {
        true => format!("${}.{:06}", thousands(units / 1_000_000), units % 1_000_000),
        false => thousands(units),
    }
}

fn table(budgets: &Value) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "tenant",
        "of",
        "period",
        "begins",
        "limit",
        "used",
        "held",
        "written off",
        "left",
    ]);
    for budget in budgets.as_array().into_iter().flatten() {
        let text = |name: &str| budget[name].as_str().unwrap_or_default().to_owned();
        let dollars = budget["unit"] == "micro_dollars";
        let units =
            |name: &str| budget[name].as_u64().map_or_else(|| "–".to_owned(), |units| amount(units, dollars));
        let of = match (budget["project"].as_str(), budget["key"].as_str()) {
            (Some(project), _) => format!("project {project}"),
            (_, Some(key)) => format!("key {key}"),
            _ => "all".to_owned(),
        };
        table.add_row([
            text("tenant"),
            of,
            text("cycle"),
            text("begins"),
            units("limit"),
            units("used"),
            units("escrow"),
            units("written_off"),
            units("remaining"),
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_as_people_write_them() {
        assert_eq!(units("1_000_000", false), Ok(1_000_000));
        assert_eq!(units("12.50", true), Ok(12_500_000));
        assert!(units("a lot", false).is_err() && units("a lot", true).is_err());
        assert_eq!(
            (amount(12_500_000, true), amount(1_000, false)),
            ("$12.500000".to_owned(), "1,000".to_owned())
        );
    }
}
