//! Keys that are made, rotated with a grace and revoked while they are used: one operator for a tenant, and callers at every node who go on
//! with a key for a while after it was revoked.

use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use super::One;
use crate::client::{Wish, key_of};
use crate::cluster::look;
use crate::history::{Bucket, Log, Outcome, Revoked};
use crate::network::Host;
use crate::provider::Script;
use crate::sys;

/// What each key may have, whatever its secret.
pub const OF_A_KEY: Bucket = Bucket { burst: 5, per_minute: 600 };

/// For how long a key is used after it was revoked.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// The secrets that callers use now, by name.
pub type InUse = watch::Receiver<Vec<String>>;

/// Makes keys, rotates and revokes them, until nobody asks any more.
pub async fn operate(mut one: One, in_use: watch::Sender<Vec<String>>, revoked: Log) {
    let mut number = 0;
    while one.goes_on() {
        number += 1;
        let label = format!("k{number}");
        let secret = |generation: u8| format!("{}/{label}/{generation}", one.tenant);
        let hash = |secret: &str| format!("sha256:{}", hex::encode(Sha256::digest(key_of(secret))));
        let (first, second) = (secret(1), secret(2));
        let named = json!({ "tenant": one.tenant, "label": label });
        let with = |more: serde_json::Value| {
            let mut body = named.clone();
            if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
                body.extend(more.clone());
            }
            body.to_string()
        };
        let limits = json!({
            "hash": hash(&first), "requests_per_minute": OF_A_KEY.per_minute, "burst_requests": OF_A_KEY.burst,
        });
        // Without an answer it may be there or not: nobody uses it, and the next one is made.
        if post(&mut one, "/v1/keys", &with(limits)).await.is_err() {
            one.a_while(500, 1_000).await;
            continue;
        }
        in_use.send_replace(vec![first.clone()]);
        one.a_while(1_000, 3_000).await;
        if post(&mut one, "/v1/keys/rotate", &with(json!({ "hash": hash(&second), "grace": "1h" })))
            .await
            .is_ok()
        {
            in_use.send_replace(vec![first, second]);
        }
        one.a_while(1_000, 3_000).await;
        let path = format!("/v1/keys?tenant={}&label={label}", one.tenant);
        let (asked, mut at) = (sys::now(), None);
        while at.is_none() && one.goes_on() {
            let Some(node) = any(&mut one) else { break };
            match look::delete(node, &path).await {
                Ok(_) => at = Some(sys::now()),
                Err(_) => one.a_while(200, 600).await,
            }
        }
        revoked.push(&Revoked { asked, at, tenant: one.tenant.clone(), label: label.clone() });
        tokio::time::sleep(AFTERWARDS).await;
        in_use.send_replace(Vec::new());
    }
}

async fn post(one: &mut One, path: &str, body: &str) -> Result<(), String> {
    let node = any(one).ok_or("nobody to ask")?;
    look::post(node, path, body).await.map(drop)
}

fn any(one: &mut One) -> Option<Host> {
    let nodes = one.shared.nodes.borrow().clone();
    (!nodes.is_empty()).then(|| *one.chance.pick(&nodes))
}

/// Asks at `host` with the secrets that are in use, until nobody asks any more.
pub async fn ask(mut one: One, host: Host, in_use: InUse) {
    let mut caller = one.caller();
    while one.goes_on() {
        let secrets = in_use.borrow().clone();
        if !one.knows(host) || secrets.is_empty() {
            one.a_while(50, 150).await;
            continue;
        }
        let request = caller.numbers().request();
        let script = Script { latency: one.chance.below(8), tokens: 4, usage: true, ..Script::default() };
        let secret = one.chance.pick(&secrets).clone();
        let tenant = one.tenant.clone();
        let wish = Wish { secret: Some(&secret), ..Wish::of(&tenant, request, script) };
        match caller.attempt(host, wish).await {
            Outcome::Admitted => one.a_while(10, 60).await,
            _ => one.a_while(40, 120).await,
        }
    }
}
