//! What the nodes and the provider say when the play is over, each asked through its own HTTP address.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::Stage;
use super::callers::{Seen, key_of};
use super::client::Client;
use crate::limit::Books;
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
}

/// One decision, as `GET /tollgate/v1/decisions/{id}` tells it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Decision {
    pub tenant: String,
    pub route: String,
    pub outcome: String,
    pub estimate: Estimate,
    pub ending: Option<Ending>,
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
    Ok(Evidence { seen, complaints, nodes, decisions, metrics, books, rows, stats, tiers })
}

async fn is_running(client: &Client, stage: &Stage) -> Result<bool, String> {
    let mut pages = Vec::new();
    for admin in stage.admin_urls() {
        pages.push(metrics(client, stage, &admin).await?);
    }
    let metrics = Page::all(pages);
    let of_nodes = metrics.gauge("tollgate_inflight") != 0
        || metrics.gauge("tollgate_open_reservations") != 0
        || metrics.sum("tollgate_held", &[("map", "outbox")]) != 0;
    Ok(of_nodes || stats(client, stage).await?.inflight != 0)
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
        });
    }
    Ok(nodes)
}

async fn look(client: &Client, stage: &Stage, url: &str) -> Result<Value, String> {
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
            && let Some(decision) = decision(client, at(seen.node), &seen.key, id).await?
        {
            decisions.insert(id.to_owned(), decision);
        }
    }
    let billed: BTreeSet<&str> = rows.iter().filter_map(|row| row.decision.as_deref()).collect();
    for id in billed.difference(&known) {
        let tenants = &stage.policy.tenants;
        for (tenant, url) in tenants.iter().flat_map(|tenant| callers.iter().map(move |url| (tenant, url))) {
            let key = tenant.keys.first().map(|key| key_of(&tenant.id, &key.label)).unwrap_or_default();
            if let Some(decision) = decision(client, url, &key, id).await? {
                decisions.insert((*id).to_owned(), decision);
                break;
            }
        }
    }
    Ok(decisions)
}

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
