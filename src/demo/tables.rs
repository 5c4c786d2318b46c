//! The report as a person reads it: plain tables of at most 120 columns, each term explained in a line.

use std::fmt::{self, Display, Write as _};

use comfy_table::{CellAlignment, Table, presets};

use super::report::{Alerts, Node, Report, Tenant, Tokens};
use crate::node::reason::thousands;

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write_all(&mut text)?;
        // Rows end in spaces where a column is empty.
        text.lines().try_for_each(|line| writeln!(f, "{}", line.trim_end()))
    }
}

impl Report {
    fn write_all(&self, text: &mut String) -> fmt::Result {
        writeln!(
            text,
            "Nodes\n{}\n\
             requests: that callers made here · tenants, shards: that it owns, and so decides about, whoever is asked\n\
             here: let through by itself, the owner of the tenant · elsewhere: let through by another node, the owner\n",
            self.nodes_table()
        )?;
        writeln!(text, "Tenants (tokens: input and output together)\n{}", self.tenants_table())?;
        let books = &self.tokens;
        writeln!(
            text,
            "reserved: held before a request was sent · refunded: held, not used, given back · overage: used beyond what was held\n\
             settled: charged by usage · closed: charged at the estimate, no usage came · abandoned: the same, the caller had left\n\
             aborted: streams that their callers left · –: a key that nobody has · {} more tenants asked for nothing\n\n\
             Refusals\n{}\n\
             requests that a node refused, by the code that their answers carry in x-tollgate-error\n\n\
             How reservations ended\n{}\n\
             charged: by the owner · billed: by the provider, which counts prompts 7 % higher than the nodes estimate them\n\
             settled, usage: both are equal, id by id ({} compared) · cancelled: nothing was sent, all was refunded\n\
             unenforced, shadow: let through beyond a limit that is only watched, so it is not in the books",
            self.idle_tenants,
            self.refusals_table(),
            self.endings_table(),
            thousands(self.matched),
        )?;
        self.write_agreed(text)?;
        if !self.aborted.is_empty() {
            writeln!(
                text,
                "\nStreams that their callers left\n{}\n\
                 input: of the difference, what the provider counts otherwise · in flight: output sent that had not arrived at the\n\
                 caller; beyond input, the difference is no more than that",
                self.aborted_table()
            )?;
        }
        if !self.estimated.is_empty() {
            writeln!(
                text,
                "\nReservations charged at their estimate\n{}\n\
                 there was no better number: the provider failed or told no usage; what it billed was not told to a node",
                self.estimated_table()
            )?;
        }
        let provider = &self.provider;
        let shown =
            [books.reserved, books.refunded, books.overage, books.settled, books.closed, books.abandoned]
                .map(thousands);
        let [reserved, refunded, overage, settled, closed, abandoned] = &shown;
        writeln!(
            text,
            "\nThe provider's own account: {} requests ({} completed, {} aborted, {} failed, {} refused), {} tokens billed\n\
             The books: {reserved} reserved − {refunded} refunded + {overage} overage\n         = {settled} settled + {closed} closed + {abandoned} abandoned",
            thousands(provider.requests),
            thousands(provider.completed),
            thousands(provider.aborted),
            thousands(provider.failed),
            thousands(provider.refused),
            thousands(self.provider_tokens),
        )?;
        if self.unused_tokens > 0 {
            writeln!(
                text,
                "Beside them, {} tokens were held and given back at once: an owner's answer had come late, and it was asked again",
                thousands(self.unused_tokens)
            )?;
        }
        self.write_verdict(text)
    }

    /// What all nodes agree on.
    fn write_agreed(&self, text: &mut String) -> fmt::Result {
        let Alerts { crossings, calls } = self.alerts;
        writeln!(
            text,
            "\nPools (what a provider's account serves to all tenants together)\n{}\n\
             guard: handed out in a minute · burst: at once · level: to be handed out now · held: by nodes, to pay requests from\n\
             spent: as nodes have said, once a second · written off: held by nodes that ended · refused: requests, global_capacity\n\n\
             Budgets (of a calendar period; µ$: millionths of a dollar)\n{}\n\
             used: charged, by what the provider billed · held: by nodes, for requests to come · overage: used beyond what was held\n\
             cheaper: of what is used, by the model of degrade_to, and its requests · refused: requests, deferred ones among them\n\
             told: parts of the limit whose crossing the webhook has taken: {crossings} ids in {calls} calls, as it refused the first\n\
             ledger: {} rows of the nodes' usage ledgers come to what each tenant was charged, and to each dollar of a budget",
            self.pools_table(),
            self.budgets_table(),
            thousands(self.ledger_rows),
        )
    }

    fn pools_table(&self) -> Table {
        let header = ["pool", "limit", "guard", "burst", "level", "held", "spent", "written off", "refused"];
        let mut table = table(&header, 2);
        for pool in &self.pools {
            let numbers = [pool.held, pool.spent, pool.written_off, pool.refused].map(thousands);
            let mut row = vec![pool.pool.clone(), pool.limit.clone()];
            row.extend([thousands(pool.guard_per_minute), thousands(pool.burst), signed(pool.level)]);
            row.extend(numbers);
            table.add_row(row);
        }
        table
    }

    fn budgets_table(&self) -> Table {
        let header =
            ["tenant", "period", "unit", "told", "limit", "used", "held", "overage", "cheaper", "refused"];
        let mut table = table(&header, 4);
        for budget in &self.budgets {
            let unit = if budget.unit == "tokens" { "tokens" } else { "µ$" };
            let told: Vec<String> = budget.thresholds_told.iter().map(f64::to_string).collect();
            let told = if told.is_empty() { "–".to_owned() } else { told.join(" ") };
            let mut row = vec![budget.tenant.clone(), budget.cycle.clone(), unit.to_owned(), told];
            row.extend([budget.limit, budget.used, budget.held, budget.overage].map(thousands));
            row.push(match budget.requests_degraded {
                0 => thousands(budget.degraded),
                requests => format!("{} ({requests})", thousands(budget.degraded)),
            });
            row.push(thousands(budget.requests_refused));
            table.add_row(row);
        }
        table
    }

    fn nodes_table(&self) -> Table {
        let mut table =
            table(&["node", "callers", "role", "requests", "tenants", "shards", "here", "elsewhere"], 3);
        for node in &self.nodes {
            let Node { requests, tenants_owned, shards_owned, decided_here, decided_elsewhere, .. } = node;
            let mut row = vec![node.node.to_string(), node.callers.clone(), node.role.clone()];
            let numbers = [requests, tenants_owned, shards_owned, decided_here, decided_elsewhere];
            row.extend(numbers.map(|number| thousands(*number)));
            table.add_row(row);
        }
        table
    }

    fn write_verdict(&self, text: &mut String) -> fmt::Result {
        if self.balanced {
            return writeln!(
                text,
                "Balanced: for every tenant and in all; nothing is in flight, and no bill is unaccounted for ({} requests in {:.1} s).",
                thousands(self.requests),
                self.seconds
            );
        }
        writeln!(text, "NOT balanced:")?;
        self.problems.iter().try_for_each(|problem| writeln!(text, "  {problem}"))
    }

    fn tenants_table(&self) -> Table {
        let mut table = table(
            &[
                "tenant",
                "tier",
                "requests",
                "admitted",
                "refused",
                "reserved",
                "refunded",
                "overage",
                "settled",
                "closed",
                "abandoned",
                "aborted",
            ],
            2,
        );
        // The busiest first: that is where a reader looks.
        let mut tenants: Vec<(&String, &Tenant)> = self.tenants.iter().collect();
        tenants.sort_by_key(|(name, tenant)| (std::cmp::Reverse(tenant.tokens.reserved), *name));
        for (name, tenant) in tenants {
            let name = if name.is_empty() { "–" } else { name };
            let counts = [tenant.requests, tenant.admitted, tenant.refused];
            table.add_row(tenant_row(name, &tenant.tier, counts, &tenant.tokens, tenant.aborted));
        }
        let counts = [self.requests, self.admitted, self.refused];
        table.add_row(tenant_row("all", "", counts, &self.tokens, self.aborted.len() as u64));
        table
    }

    fn refusals_table(&self) -> Table {
        let mut table = table(&["code", "requests"], 1);
        for (code, count) in &self.refusals {
            table.add_row([code.clone(), thousands(*count)]);
        }
        table
    }

    fn endings_table(&self) -> Table {
        let mut table = table(&["ending", "requests", "charged", "billed"], 1);
        for (ending, sum) in &self.endings {
            table.add_row([
                ending.clone(),
                thousands(sum.count),
                thousands(sum.charged_tokens),
                thousands(sum.provider_tokens),
            ]);
        }
        table
    }

    fn aborted_table(&self) -> Table {
        let mut table =
            table(&["decision", "tenant", "settled", "billed", "difference", "input", "in flight"], 2);
        for aborted in &self.aborted {
            table.add_row([
                aborted.decision.clone(),
                aborted.tenant.clone(),
                thousands(aborted.settled_tokens),
                thousands(aborted.provider_tokens),
                aborted.difference.to_string(),
                aborted.input_difference.to_string(),
                thousands(aborted.in_flight),
            ]);
        }
        table
    }

    fn estimated_table(&self) -> Table {
        let mut table = table(&["decision", "tenant", "ended", "charged", "billed"], 3);
        for estimated in &self.estimated {
            table.add_row([
                estimated.decision.clone(),
                estimated.tenant.clone(),
                format!("{}: {}", estimated.how, estimated.why),
                thousands(estimated.charged_tokens),
                thousands(estimated.provider_tokens),
            ]);
        }
        table
    }
}

fn tenant_row(name: &str, tier: &str, counts: [u64; 3], tokens: &Tokens, aborted: u64) -> [String; 12] {
    let [requests, admitted, refused] = counts.map(thousands);
    let Tokens { reserved, refunded, overage, settled, closed, abandoned } = *tokens;
    let [reserved, refunded, overage, settled, closed, abandoned, aborted] =
        [reserved, refunded, overage, settled, closed, abandoned, aborted].map(thousands);
    [
        name.to_owned(),
        tier.to_owned(),
        requests,
        admitted,
        refused,
        reserved,
        refunded,
        overage,
        settled,
        closed,
        abandoned,
        aborted,
    ]
}

/// A level may be a debt.
fn signed(level: i64) -> String {
    let sign = if level < 0 { "−" } else { "" };
    format!("{sign}{}", thousands(level.unsigned_abs()))
}

/// A table without lines, whose columns from number `words` on hold numbers.
fn table(header: &[&str], words: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.to_vec());
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if place >= words {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}
