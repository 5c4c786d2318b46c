//! What came of it, for a person and for a program. The names of the JSON are stable.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::simulated::Stats;

/// The account of one play. Tokens are input and output together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// Whether everything adds up: there is no problem.
    pub balanced: bool,
    /// Requests that callers made.
    pub requests: u64,
    /// Of these, let through to a provider.
    pub admitted: u64,
    /// Of these, refused by the node.
    pub refused: u64,
    /// Sums over all tenants.
    #[serde(flatten)]
    pub tokens: Tokens,
    /// Billed by the provider, for everything.
    pub provider_tokens: u64,
    /// Of it, billed for requests that no limit was enforced on: tenants in shadow.
    pub unenforced_tokens: u64,
    /// Completed answers whose settlement was compared with their bill, and is equal.
    pub matched: u64,
    /// Held and given back for nothing: a node asked again under another id, since an answer had not come in time.
    pub unused_tokens: u64,
    /// How long the play took, in seconds.
    pub seconds: f64,
    /// The nodes, in the order in which they were started.
    pub nodes: Vec<Node>,
    /// Each tenant that asked for something.
    pub tenants: BTreeMap<String, Tenant>,
    /// Tenants of the policy that asked for nothing.
    pub idle_tenants: u64,
    /// The pools, a line for each of their limits.
    pub pools: Vec<Pool>,
    /// The budgets, as all nodes have them.
    pub budgets: Vec<Budget>,
    /// What the receiver of alerts was told.
    pub alerts: Alerts,
    /// Rows in the usage ledgers of all nodes: requests that were let through and have ended.
    pub ledger_rows: u64,
    /// Refused requests by code.
    pub refusals: BTreeMap<String, u64>,
    /// Reservations by how they ended and why.
    pub endings: BTreeMap<String, Sum>,
    /// Streams that their callers left.
    pub aborted: Vec<Aborted>,
    /// Reservations that ended at their estimate, since the provider gave no better number.
    pub estimated: Vec<Estimated>,
    /// The provider's own account.
    pub provider: Stats,
    /// Whatever does not add up.
    pub problems: Vec<String>,
}

/// Tokens by what became of them: `reserved − refunded + overage = settled + closed + abandoned`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tokens {
    /// Held before requests were sent.
    #[serde(rename = "reserved_tokens")]
    pub reserved: u64,
    /// Held, not used and given back.
    #[serde(rename = "refunded_tokens")]
    pub refunded: u64,
    /// Used beyond what was held.
    #[serde(rename = "overage_tokens")]
    pub overage: u64,
    /// Charged by usage.
    #[serde(rename = "settled_tokens")]
    pub settled: u64,
    /// Charged at the estimate.
    #[serde(rename = "closed_tokens")]
    pub closed: u64,
    /// Charged at the estimate, since the caller left before there was an answer.
    #[serde(rename = "abandoned_tokens")]
    pub abandoned: u64,
}

/// One node's part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number in the cluster.
    pub node: u64,
    /// Where its callers connect.
    pub callers: String,
    /// What it is to the others: leader, voter or learner.
    pub role: String,
    /// Shards that it owns.
    pub shards_owned: u64,
    /// Tenants that it owns.
    pub tenants_owned: u64,
    /// Requests that callers made here.
    pub requests: u64,
    /// Of these, let through by this node itself, the owner of their tenants.
    pub decided_here: u64,
    /// Of these, let through by another node, the owner of their tenants.
    pub decided_elsewhere: u64,
}

/// One limit of a pool: what a provider's account serves to all tenants together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pool {
    /// Its name.
    pub pool: String,
    /// What is limited.
    pub limit: String,
    /// What it hands out in a minute.
    pub guard_per_minute: u64,
    /// What it hands out at once.
    pub burst: u64,
    /// What it can hand out now.
    pub level: i64,
    /// What nodes hold of it, to pay requests from.
    pub held: u64,
    /// What they have said to have paid.
    pub spent: u64,
    /// What was held by nodes that ended.
    pub written_off: u64,
    /// Requests refused since the pool did not have what they need.
    pub refused: u64,
}

/// One budget. Amounts are in its unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Budget {
    /// Whose.
    pub tenant: String,
    /// hour, day, week or month.
    pub cycle: String,
    /// tokens or micro_dollars.
    pub unit: String,
    /// What a period may use.
    pub limit: u64,
    /// Used of the period.
    pub used: u64,
    /// Held by nodes for requests to come.
    pub held: u64,
    /// Used by answers beyond what was held for them.
    pub overage: u64,
    /// Of what is used, by a cheaper model.
    pub degraded: u64,
    /// Requests refused by it, deferred ones among them.
    pub requests_refused: u64,
    /// Requests served by a cheaper model since it was used up.
    pub requests_degraded: u64,
    /// Parts of the limit whose crossing the receiver of alerts has taken.
    pub thresholds_told: Vec<f64>,
}

/// What the receiver of alerts was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Alerts {
    /// Crossings, each under an id of its own.
    pub crossings: u64,
    /// Calls. One that was not taken is repeated under the same id.
    pub calls: u64,
}

/// One tenant's account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tenant {
    /// Its tier; empty for callers whose key nobody has.
    pub tier: String,
    /// Requests it made.
    pub requests: u64,
    /// Of these, let through.
    pub admitted: u64,
    /// Of these, refused.
    pub refused: u64,
    /// Streams that its callers left.
    pub aborted: u64,
    /// Its tokens.
    #[serde(flatten)]
    pub tokens: Tokens,
    /// Billed by the provider.
    pub provider_tokens: u64,
}

/// How many, and how many tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sum {
    /// How many.
    pub count: u64,
    /// Tokens charged.
    pub charged_tokens: u64,
    /// Tokens billed by the provider.
    pub provider_tokens: u64,
}

/// A stream that its caller left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Aborted {
    /// The decision's id.
    pub decision: String,
    /// Whose it was.
    pub tenant: String,
    /// What the node charged.
    pub settled_tokens: u64,
    /// What the provider billed.
    pub provider_tokens: u64,
    /// Billed less settled.
    pub difference: i128,
    /// Of it, input: what the provider counts otherwise than the node, where the stream had not said yet.
    pub input_difference: i128,
    /// Output that had been sent and had not arrived at the caller: the most by which the node may differ otherwise.
    pub in_flight: u64,
}

/// A reservation that ended at its estimate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Estimated {
    /// The decision's id.
    pub decision: String,
    /// Whose it was.
    pub tenant: String,
    /// closed or abandoned.
    pub how: String,
    /// Why there was no better number.
    pub why: String,
    /// What the node charged.
    pub charged_tokens: u64,
    /// What the provider billed.
    pub provider_tokens: u64,
}

impl Tokens {
    /// Whether the law of the books holds.
    #[must_use]
    pub fn balance(&self) -> bool {
        let [reserved, refunded, overage, settled, closed, abandoned] =
            [self.reserved, self.refunded, self.overage, self.settled, self.closed, self.abandoned]
                .map(u128::from);
        reserved + overage == refunded + settled + closed + abandoned
    }
}

impl Report {
    /// The report as a program reads it.
    #[must_use]
    pub fn to_json(&self) -> String {
        // A report has string keys and finite numbers only, so it always has a JSON form.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
