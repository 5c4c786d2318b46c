//! `tollgate tenants` and `tollgate override`: what operators except from the policy, tenant by tenant, on every node at once.

use std::process::ExitCode;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use http::Method;
use serde_json::{Value, json};

use super::apply::{encoded, print};
use super::limits::Limits;
use crate::admin::client::{Failure, Operator};

/// How long a look may take.
const LOOK: Duration = Duration::from_secs(10);
/// How long a change may take: who does not answer is waited for until its lease is over.
const CHANGE: Duration = Duration::from_secs(90);

/// Arguments of `tollgate tenants`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    operator: Operator,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// The tenants of the policy, and what is excepted from it for them
    List,
    /// Admit nothing of a tenant any more. What is open goes on to its end
    Suspend {
        /// Whom
        tenant: String,
    },
    /// Admit a tenant again. What it has used of its limits counts on
    Resume {
        /// Whom
        tenant: String,
    },
}

/// Arguments of `tollgate override`.
#[derive(Debug, clap::Args)]
pub struct OverrideArgs {
    #[command(flatten)]
    operator: Operator,
    /// Whose limits
    #[arg(long)]
    tenant: String,
    /// How long these limits hold, such as 30m; a week at most. Then the policy's hold again, by themselves
    #[arg(long = "for", value_name = "TIME", required_unless_present = "end")]
    length: Option<String>,
    /// Have the policy's limits hold again now
    #[arg(long, conflicts_with_all = ["length", "Limits"])]
    end: bool,
    /// What holds instead of the policy's; what is absent stays as the policy has it.
    #[command(flatten)]
    limits: Limits,
}

/// Runs `tollgate tenants`.
pub fn run(args: Args) -> ExitCode {
    said("tenants", &args.operator, answer(&args))
}

/// Runs `tollgate override`.
pub fn run_override(args: OverrideArgs) -> ExitCode {
    said("override", &args.operator, overridden(&args))
}

fn said(command: &str, operator: &Operator, answer: Result<(Value, String), Failure>) -> ExitCode {
    match answer {
        Ok((page, _)) if operator.json => print(&format!("{page:#}")),
        Ok((_, words)) => print(words.trim_end()),
        Err(failure) => return failure.report(command),
    }
    ExitCode::SUCCESS
}

fn answer(args: &Args) -> Result<(Value, String), Failure> {
    let (method, tenant, what) = match &args.command {
        Command::List => {
            let page = args.operator.ask(&Method::GET, "/v1/tenants", None, LOOK)?;
            let words = table(&page);
            return Ok((page, words));
        }
        Command::Suspend { tenant } => (Method::PUT, tenant, "is suspended"),
        Command::Resume { tenant } => (Method::DELETE, tenant, "is admitted again"),
    };
    let path = format!("/v1/tenants/{}/suspension", encoded(tenant));
    let page = args.operator.ask(&method, &path, None, CHANGE)?;
    let words = words(&page, &format!("Tenant {tenant} {what}"));
    Ok((page, words))
}

fn overridden(args: &OverrideArgs) -> Result<(Value, String), Failure> {
    let tenant = &args.tenant;
    let path = format!("/v1/tenants/{}/override", encoded(tenant));
    let Some(length) = args.length.as_ref().filter(|_| !args.end) else {
        let page = args.operator.ask(&Method::DELETE, &path, None, CHANGE)?;
        let words = words(&page, &format!("The policy's limits of tenant {tenant} hold again"));
        return Ok((page, words));
    };
    let body = args.limits.among(json!({ "for": length }));
    let page = args.operator.ask(&Method::PUT, &path, Some(&body), CHANGE)?;
    let words = words(&page, &format!("Limits of tenant {tenant} are overridden for {length}"));
    Ok((page, words))
}

fn words(page: &Value, what: &str) -> String {
    let sums = page["sums"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let sums: String = sums.map(|sum| format!("{sum}\n")).collect();
    let in_force = page["in_force"].as_str().unwrap_or_default();
    format!("{sums}{what}: version {}, in force {in_force}.", page["version"])
}

fn table(page: &Value) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(["tenant", "tier", "keys", "excepted"]);
    for tenant in page["tenants"].as_array().into_iter().flatten() {
        let text = |name: &str| tenant[name].as_str().unwrap_or_default().to_owned();
        let mut excepted = Vec::new();
        if tenant["suspended"] == Value::Bool(true) {
            excepted.push("suspended".to_owned());
        }
        if let Some(one) = tenant["override"].as_object() {
            let set = one["limits"].as_object().into_iter().flatten().filter(|(_, limit)| !limit.is_null());
            let set: Vec<String> = set.map(|(name, limit)| format!("{name} {limit}")).collect();
            let until = one["until_about"].as_str().unwrap_or_default();
            excepted.push(format!("{} until about {until}", set.join(", ")));
        }
        table.add_row([text("id"), text("tier"), tenant["keys"].to_string(), excepted.join("; ")]);
    }
    table.to_string()
}
