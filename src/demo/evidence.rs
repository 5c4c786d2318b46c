//! What the nodes and the provider say when the play is over, each asked through its own HTTP address.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Stage;
use super::callers::{MAIN, Seen, key_of};
use super::client::Client;
use super::receiver::Told;
use crate::control::terms;
use crate::limit::{Books, BudgetKey};
use crate::node::view::{cycle_name, unit_name};
use crate::policy::Policy;
use crate::simulated::{Row, Stats};

/// How long what is still running may take to end. Nobody waits for it any more: it is what callers have left.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two questions whether it has.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// Everything that the audit compares.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// What the callers saw.
    pub seen: Vec<Seen>,
    /// What they found wrong.
    pub complaints: Vec<String>,
    /// What the cluster and each node say of the nodes, in the order of the stage.
    pub nodes: Vec<NodeSays>,
    /// The nodes' decisions, by id.
    pub decisions: BTreeMap<String, Decision>,
    /// The metrics of all nodes.
    pub metrics: Page,
    /// The books of all owners, as one.
    pub books: Books,
    /// The provider's bills.
    pub rows: Vec<Row>,
    /// Their sums, as the provider has them.
    pub stats: Stats,
    /// Each tenant's tier, in the policy's order.
    pub tiers: Vec<(String, String)>,
    /// The pools, as the cluster has them.
    pub pools: Vec<PoolSays>,
    /// What the ledgers of all nodes come to, by tenant.
    pub ledger: BTreeMap<String, Used>,
    /// What the receiver of alerts was told, call by call.
    pub told: Vec<Told>,
    /// What the policy says of each budget, under its name.
    pub terms: BTreeMap<String, Terms>,
    /// The pool of each model.
    pub pool_of: BTreeMap<String, String>,
    /// What a million tokens of a model cost, input and output, in millionths of a dollar: of each model that has a price.
    pub prices: BTreeMap<String, (u64, u64)>,
}

/// What the policy says of a budget, in its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// Whose it is.
    pub key: BudgetKey,
    /// What a cheaper model may use beyond its limit.
    pub degraded: u64,
    /// At which parts of the limit somebody is told, in millionths.
    pub thresholds: Vec<u32>,
}

/// A budget, as `GET /v1/budgets` tells it. Amounts are in its unit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct BudgetSays {
    pub tenant: String,
    pub cycle: String,
    pub unit: String,
    /// When its period began, in seconds since 1970.
    pub period: i64,
    pub limit: u64,
    pub used: u64,
    /// What nodes hold of it, for requests that run and for those to come.
    pub escrow: u64,
    pub overage: u64,
    pub degraded: u64,
}

/// What `GET /v1/budgets` tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct BudgetsSay {
    pub budgets: Vec<BudgetSays>,
    /// Crossings that the receiver has not taken yet.
    pub alerts_waiting: u64,
}

/// A pool, as `GET /v1/pools` tells it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct PoolSays {
    pub id: String,
    pub levels: Vec<LevelSays>,
}

/// One limit of a pool.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct LevelSays {
    pub limit: String,
    pub guard_per_minute: u64,
    pub burst: u64,
    pub level: i64,
    pub outstanding: u64,
    pub spent: u64,
    pub written_off: u64,
}

/// What rows of a ledger come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Used {
    pub requests: u64,
    pub settled: u64,
    pub cost_micro_dollars: u64,
}

/// One node of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeSays {
    /// Its number in the cluster.
    pub id: u64,
    /// Where its callers connect.
    pub callers: String,
    /// What it is to the others.
    pub role: String,
    /// Shards that it owns.
    pub shards: u64,
    /// Tenants of the policy that it owns.
    pub tenants: u64,
    /// Its own metrics.
    pub metrics: Page,
    /// The budgets, as it has them.
    pub budgets: BudgetsSay,
}

impl BudgetSays {
    /// The name under which the policy has it.
    pub(super) fn name(&self) -> String {
        format!("{}/{}/{}", self.tenant, self.cycle, self.unit)
    }
}

/// One decision, as `GET /tollgate/v1/decisions/{id}` tells it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Decision {
    pub tenant: String,
    pub route: String,
    pub model: String,
    pub outcome: String,
    pub reason: Option<String>,
    pub estimate: Estimate,
    pub ending: Option<Ending>,
}

impl Decision {
    /// Whether it was refused, for ever or until later.
    pub(super) fn is_refused(&self) -> bool {
        matches!(self.outcome.as_str(), "denied" | "deferred")
    }

    /// Whether it was let through and debited, for the model that was asked for or for a cheaper one.
    pub(super) fn is_debited(&self) -> bool {
        matches!(self.outcome.as_str(), "admitted" | "degraded")
    }
}

/// What was held.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Estimate {
    pub total: u64,
    pub input: u64,
}

/// How it ended.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Ending {
    pub how: String,
    pub why: String,
    pub charged: u64,
    pub refunded: u64,
    pub overage: u64,
}

/// A page of metrics, of one node or of several: its series of whole numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Page(Vec<Series>);

#[derive(Clone, Debug)]
struct Series {
    name: String,
    labels: BTreeMap<String, String>,
    value: i64,
}

/// Waits until nothing is running, then asks everyone.
///
/// # Errors
/// Someone does not answer, or not in the form that was agreed.
pub(super) async fn gather(
    stage: &Stage,
    seen: Vec<Seen>,
    mut complaints: Vec<String>,
) -> Result<Evidence, String> {
    let client = Client::new();
    let quiet = async {
        while is_running(&client, stage).await? {
            tokio::time::sleep(ASK_AGAIN).await;
        }
        Ok::<(), String>(())
    };
    match tokio::time::timeout(PATIENCE, quiet).await {
        Ok(asked) => asked?,
        Err(_elapsed) => complaints.push(format!("something still ran after {} s", PATIENCE.as_secs())),
    }

    let nodes = nodes(&client, stage).await?;
    let metrics = Page::all(nodes.iter().map(|node| node.metrics.clone()));
    let stats = stats(&client, stage).await?;
    let rows = rows(&client, stage).await?;
    let decisions = decisions(&client, stage, &seen, &rows).await?;
    let tiers = stage.policy.tenants.iter().map(|tenant| (tenant.id.clone(), tenant.tier.clone())).collect();
    let books = stage.nodes.iter().map(|node| node.node().owners().books());
    let books = books.fold(Books::default(), Books::plus);
    let told = stage.receiver.told();
    let pools = pools(&client, stage).await?;
    let ledger = ledger(&client, stage).await?;
    let terms = terms_of(&stage.policy);
    let models = stage.policy.models.values();
    let pool_of = models.map(|model| (model.name.clone(), model.pool.clone())).collect();
    Ok(Evidence {
        seen,
        complaints,
        nodes,
        decisions,
        metrics,
        books,
        rows,
        stats,
        tiers,
        pools,
        ledger,
        told,
        terms,
        pool_of,
        prices: prices(&stage.policy),
    })
}

async fn is_running(client: &Client, stage: &Stage) -> Result<bool, String> {
    let mut pages = Vec::new();
    for admin in stage.admin_urls() {
        pages.push(metrics(client, stage, &admin).await?);
    }
    let metrics = Page::all(pages);
    let of_nodes = metrics.gauge("tollgate_inflight") != 0
        || metrics.gauge("tollgate_open_reservations") != 0
        || metrics.sum("tollgate_held", &[("map", "outbox")]) != 0
        || metrics.sum("tollgate_held", &[("map", "unreported_ends")]) != 0;
    if of_nodes || stats(client, stage).await?.inflight != 0 {
        return Ok(true);
    }
    let rows: u64 = ledger(client, stage).await?.values().map(|used| used.requests).sum();
    Ok(rows < metrics.admitted() || are_budgets_unsettled(client, stage).await?)
}

/// Whether a crossing waits to be told, or a node has not applied yet what others have.
async fn are_budgets_unsettled(client: &Client, stage: &Stage) -> Result<bool, String> {
    let mut pages: Vec<BudgetsSay> = Vec::new();
    for admin in stage.admin_urls() {
        pages.push(read(client, stage, &format!("{admin}/v1/budgets")).await?);
    }
    let used = |page: &BudgetsSay| page.budgets.iter().map(|budget| budget.used).collect::<Vec<_>>();
    Ok(pages.iter().any(|page| page.alerts_waiting > 0 || used(page) != used(&pages[0])))
}

async fn pools(client: &Client, stage: &Stage) -> Result<Vec<PoolSays>, String> {
    #[derive(Deserialize)]
    struct Pools {
        pools: Vec<PoolSays>,
    }
    let first = stage.admin_urls().into_iter().next().unwrap_or_default();
    let page: Pools = read(client, stage, &format!("{first}/v1/pools")).await?;
    Ok(page.pools)
}

/// Any node answers for all of them.
async fn ledger(client: &Client, stage: &Stage) -> Result<BTreeMap<String, Used>, String> {
    #[derive(Deserialize)]
    struct Groups {
        groups: Vec<Group>,
    }
    #[derive(Deserialize)]
    struct Group {
        group: String,
        #[serde(flatten)]
        used: Used,
    }
    let last = stage.admin_urls().into_iter().next_back().unwrap_or_default();
    let page: Groups = read(client, stage, &format!("{last}/v1/usage?by=tenant")).await?;
    Ok(page.groups.into_iter().map(|line| (line.group, line.used)).collect())
}

fn prices(policy: &Policy) -> BTreeMap<String, (u64, u64)> {
    let lists = policy.price_book.iter().flat_map(|list| &list.models);
    lists.map(|(model, price)| (model.clone(), (price.input.0, price.output.0))).collect()
}

/// What a policy says of its tenants' budgets, each under the name of [`BudgetSays::name`].
fn terms_of(policy: &Policy) -> BTreeMap<String, Terms> {
    let named = |key: &BudgetKey| format!("{}/{}/{}", key.tenant, cycle_name(key.cycle), unit_name(key.unit));
    let terms = terms::of_budgets(policy).into_iter().map(|(key, terms)| {
        (named(&key), Terms { key, degraded: terms.degraded, thresholds: terms.thresholds })
    });
    terms.collect()
}

/// What the cluster says of its nodes, and each of itself.
async fn nodes(client: &Client, stage: &Stage) -> Result<Vec<NodeSays>, String> {
    let admins = stage.admin_urls();
    let first = admins.first().map_or("", String::as_str);
    let cluster = look(client, stage, &format!("{first}/v1/cluster")).await?;
    let mut owned: BTreeMap<u64, u64> = BTreeMap::new();
    for tenant in &stage.policy.tenants {
        let page = look(client, stage, &format!("{first}/v1/tenants/{}", tenant.id)).await?;
        if let Some(owner) = page["owner"].as_u64() {
            *owned.entry(owner).or_default() += 1;
        }
    }
    let mut nodes = Vec::new();
    for (node, admin) in stage.nodes.iter().zip(&admins) {
        // A node that is its own cluster is the only member of it.
        let address = node.membership().map(|membership| membership.member().address());
        let members = cluster["members"].as_array().into_iter().flatten();
        let said = members
            .into_iter()
            .find(|said| address.is_none_or(|address| said["address"] == address))
            .ok_or_else(|| format!("{first}/v1/cluster does not list {address:?}: {cluster}"))?;
        let id = said["id"].as_u64().unwrap_or_default();
        nodes.push(NodeSays {
            id,
            callers: format!("http://{}", node.callers()),
            role: said["role"].as_str().unwrap_or_default().to_owned(),
            shards: said["shards"].as_u64().unwrap_or_default(),
            tenants: owned.get(&id).copied().unwrap_or_default(),
            metrics: metrics(client, stage, admin).await?,
            budgets: read(client, stage, &format!("{admin}/v1/budgets")).await?,
        });
    }
    Ok(nodes)
}

async fn look(client: &Client, stage: &Stage, url: &str) -> Result<Value, String> {
    read(client, stage, url).await
}

/// A page for operators.
async fn read<T: DeserializeOwned>(client: &Client, stage: &Stage, url: &str) -> Result<T, String> {
    let page = must(client, url, Some(stage.token.expose())).await?;
    serde_json::from_slice(&page).map_err(|error| format!("{url}: {error}"))
}

async fn metrics(client: &Client, stage: &Stage, admin: &str) -> Result<Page, String> {
    let url = format!("{admin}/metrics");
    let page = must(client, &url, Some(stage.token.expose())).await?;
    let text = std::str::from_utf8(&page).map_err(|error| format!("{url}: {error}"))?;
    Ok(Page::read(text))
}

async fn stats(client: &Client, stage: &Stage) -> Result<Stats, String> {
    let url = format!("{}/stats", stage.provider_url());
    let page = must(client, &url, None).await?;
    serde_json::from_slice(&page).map_err(|error| format!("{url}: {error}"))
}

async fn rows(client: &Client, stage: &Stage) -> Result<Vec<Row>, String> {
    let url = format!("{}/requests", stage.provider_url());
    let page = must(client, &url, None).await?;
    let rows = serde_json::Deserializer::from_slice(&page).into_iter::<Row>();
    rows.collect::<Result<_, _>>().map_err(|error| format!("{url}: {error}"))
}

/// The decision of each request that was seen, and of each that was billed without its caller having seen an id.
async fn decisions(
    client: &Client,
    stage: &Stage,
    seen: &[Seen],
    rows: &[Row],
) -> Result<BTreeMap<String, Decision>, String> {
    let mut decisions = BTreeMap::new();
    let callers = stage.callers_urls();
    let at = |node: usize| callers.get(node).map_or("", String::as_str);
    let known: BTreeSet<&str> = seen.iter().filter_map(|seen| seen.decision.as_deref()).collect();
    for seen in seen.iter().filter(|seen| !seen.tenant.is_empty()) {
        if let Some(id) = seen.decision.as_deref()
            && let Some(decision) = decision(client, at(seen.node), &key_of(&seen.tenant, MAIN), id).await?
        {
            decisions.insert(id.to_owned(), decision);
        }
    }
    let billed: BTreeSet<&str> = rows.iter().filter_map(|row| row.decision.as_deref()).collect();
    for id in billed.difference(&known) {
        let tenants = &stage.policy.tenants;
        for (tenant, url) in tenants.iter().flat_map(|tenant| callers.iter().map(move |url| (tenant, url))) {
            if let Some(decision) = decision(client, url, &key_of(&tenant.id, MAIN), id).await? {
                decisions.insert((*id).to_owned(), decision);
                break;
            }
        }
    }
    Ok(decisions)
}

/// Any key of its tenant may see it; the main one of each is never revoked.
///
/// None: the request was refused before anything was decided, or at another node: each remembers those of its own callers.
async fn decision(client: &Client, callers: &str, key: &str, id: &str) -> Result<Option<Decision>, String> {
    let url = format!("{callers}/tollgate/v1/decisions/{id}");
    let Some(page) = client.page(&url, Some(key)).await? else { return Ok(None) };
    serde_json::from_slice(&page).map(Some).map_err(|error| format!("{url}: {error}"))
}

async fn must(client: &Client, url: &str, bearer: Option<&str>) -> Result<Bytes, String> {
    client.page(url, bearer).await?.ok_or_else(|| format!("{url} is not there"))
}

impl Page {
    /// Reads the OpenMetrics text format: `name{label="value",…} number`. Histograms of seconds are not whole numbers and are left out.
    pub(super) fn read(text: &str) -> Self {
        let series = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels.trim_end_matches('}').split("\",").filter_map(|label| {
                let (label, value) = label.split_once("=\"")?;
                Some((label.to_owned(), value.trim_end_matches('"').to_owned()))
            });
            Some(Series { name: name.to_owned(), labels: labels.collect(), value: value.parse().ok()? })
        });
        Self(series.collect())
    }

    /// The pages of several nodes, as one.
    pub(super) fn all(pages: impl IntoIterator<Item = Self>) -> Self {
        Self(pages.into_iter().flat_map(|page| page.0).collect())
    }

    /// A gauge without labels, over all nodes: 0 when it is not there.
    pub(super) fn gauge(&self, name: &str) -> i64 {
        self.0.iter().filter(|series| series.name == name).map(|series| series.value).sum()
    }

    /// The sum of a counter's series with these labels.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.0.iter().filter(|series| series.is(name, labels)).map(Series::count).sum()
    }

    /// Requests that were let through.
    pub(super) fn admitted(&self) -> u64 {
        let of = |outcome| self.sum("tollgate_decisions_total", &[("outcome", outcome)]);
        of("admitted") + of("degraded")
    }

    /// A counter by the values of one label, over the series with these labels.
    pub(super) fn by(&self, label: &str, name: &str, labels: &[(&str, &str)]) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for series in self.0.iter().filter(|series| series.is(name, labels)) {
            if let Some(value) = series.labels.get(label) {
                *sums.entry(value.clone()).or_default() += series.count();
            }
        }
        sums
    }
}

impl Series {
    fn is(&self, name: &str, labels: &[(&str, &str)]) -> bool {
        self.name == name
            && labels.iter().all(|(label, value)| self.labels.get(*label).is_some_and(|found| found == value))
    }

    /// A counter is never negative.
    fn count(&self) -> u64 {
        u64::try_from(self.value).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# HELP tollgate_inflight Requests being served.\n# TYPE tollgate_inflight gauge\n\
        tollgate_inflight 2\n\
        tollgate_tokens_reserved_total{tenant=\"t00\",key=\"main\",route=\"/v1/messages\"} 100\n\
        tollgate_tokens_reserved_total{tenant=\"t00\",key=\"main\",route=\"/v1/embeddings\"} 20\n\
        tollgate_tokens_reserved_total{tenant=\"t01\",key=\"main\",route=\"/v1/messages\"} 3\n\
        tollgate_step_seconds_sum{step=\"estimate\"} 0.5\n# EOF\n";

    #[test]
    fn a_page_adds_up_by_any_label() {
        let page = Page::read(PAGE);
        assert_eq!(page.gauge("tollgate_inflight"), 2);
        assert_eq!(page.sum("tollgate_tokens_reserved_total", &[("tenant", "t00")]), 120);
        assert_eq!(page.sum("tollgate_tokens_reserved_total", &[]), 123);
        let by_tenant = page.by("tenant", "tollgate_tokens_reserved_total", &[("route", "/v1/messages")]);
        assert_eq!(by_tenant, BTreeMap::from([("t00".to_owned(), 100), ("t01".to_owned(), 3)]));
    }
}
