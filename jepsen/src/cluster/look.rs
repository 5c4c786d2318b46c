//! What a node says of itself to operators: read over the operators' plane, which is never broken.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request};
use serde_json::Value;
use tokio::time::timeout;

use crate::client::connect;
use crate::network::{Host, Plane};

/// Where nodes listen for operators.
pub const OPERATORS: u16 = 8081;

/// The operators' token.
pub const TOKEN: &str = "tg-a-token-of-the-operators-of-a-run-of-the-harness";

/// How long a node may take to say how it is.
const PATIENCE: Duration = Duration::from_secs(4);

/// The cluster as a node sees it; nodes by their numbers in the run.
#[derive(Clone, Debug, Default)]
pub struct Cluster {
    /// Its id.
    pub id: String,
    /// Who leads.
    pub leader: Option<Host>,
    /// The ring's version.
    pub epoch: u64,
    /// Ring moves under way.
    pub moves: usize,
    /// Shards by node.
    pub shards: BTreeMap<Host, u64>,
    /// The ids of members by node: nodes that came back have several.
    pub ids: BTreeMap<u64, Host>,
}

/// `GET path` at `node`.
///
/// # Errors
/// No answer in time, or not 200.
pub async fn get(node: Host, path: &str) -> Result<String, String> {
    ask(node, Method::GET, path, "").await
}

/// `POST path` at `node`.
///
/// # Errors
/// No answer in time, or not 200.
pub async fn post(node: Host, path: &str, body: &str) -> Result<String, String> {
    ask(node, Method::POST, path, body).await
}

/// `DELETE path` at `node`.
///
/// # Errors
/// No answer in time, or not 200.
pub async fn delete(node: Host, path: &str) -> Result<String, String> {
    ask(node, Method::DELETE, path, "").await
}

async fn ask(node: Host, method: Method, path: &str, body: &str) -> Result<String, String> {
    let patience = if method == Method::GET { PATIENCE } else { PATIENCE * 12 };
    let exchange = async {
        let mut sender = connect(node, Plane::Operators, OPERATORS).await?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", Plane::Operators.socket(node, OPERATORS).to_string())
            .header("authorization", format!("Bearer {TOKEN}"))
            .header("content-type", "application/json")
            .body(Full::<Bytes>::from(body.to_owned()))
            .map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if status.as_u16() == 200 { Ok(text) } else { Err(format!("{status}: {text}")) }
    };
    timeout(patience, exchange).await.map_err(|_late| "no answer".to_owned())?
}

/// Whether `node` can admit.
///
/// # Errors
/// It cannot, and why.
pub async fn ready(node: Host) -> Result<(), String> {
    get(node, "/readyz").await.map(drop)
}

/// The cluster, as `node` sees it.
///
/// # Errors
/// It does not say.
pub async fn cluster(node: Host) -> Result<Cluster, String> {
    let page: Value =
        serde_json::from_str(&get(node, "/v1/cluster").await?).map_err(|error| error.to_string())?;
    let mut seen = Cluster {
        id: page["cluster"].as_str().unwrap_or_default().to_owned(),
        epoch: page["epoch"].as_u64().unwrap_or(0),
        moves: page["moves"].as_array().map_or(0, Vec::len),
        ..Cluster::default()
    };
    for member in page["members"].as_array().into_iter().flatten() {
        let Some(host) = member["address"].as_str().and_then(host_of) else { continue };
        let id = member["id"].as_u64().unwrap_or(0);
        seen.ids.insert(id, host);
        *seen.shards.entry(host).or_default() += member["shards"].as_u64().unwrap_or(0);
    }
    seen.leader = page["leader"].as_u64().and_then(|leader| seen.ids.get(&leader).copied());
    Ok(seen)
}

/// What is used of the budget of `tenant`, and what is held of it, as `node` sees it.
///
/// # Errors
/// It does not say.
pub async fn budget(node: Host, tenant: &str) -> Result<(u64, u64), String> {
    let text = get(node, &format!("/v1/budgets?tenant={tenant}")).await?;
    let page: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let budget = &page["budgets"][0];
    let number = |name: &str| budget[name].as_u64().ok_or_else(|| format!("no `{name}` in {page}"));
    Ok((number("used")?, number("escrow")?))
}

/// The owner of `tenant`, as `node` sees it.
///
/// # Errors
/// It does not say.
pub async fn owner(node: Host, tenant: &str) -> Result<Option<Host>, String> {
    let text = get(node, &format!("/v1/tenants/{tenant}")).await?;
    let page: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let Some(owner) = page["owner"].as_u64() else { return Ok(None) };
    Ok(cluster(node).await?.ids.get(&owner).copied())
}

/// A metric without labels; `None` where it is not on the page.
///
/// # Errors
/// There is no page.
pub async fn gauge(node: Host, name: &str) -> Result<Option<i64>, String> {
    let page = get(node, "/metrics").await?;
    let value =
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<f64>().ok());
    Ok(value.map(|value| value as i64))
}

fn host_of(address: &str) -> Option<Host> {
    address.split(':').next()?.rsplit('.').next()?.parse().ok()
}
