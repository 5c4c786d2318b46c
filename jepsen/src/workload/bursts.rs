//! Nothing for a while, then twice the burst at once through all nodes: what should be empty and starts full shows then.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::One;
use crate::client::Wish;
use crate::history::Outcome;
use crate::provider::Script;

/// How long a burst waits for shards to move before it comes without.
const NO_MOVE: Duration = Duration::from_secs(40);

/// Bursts after a time that refills the bucket, or half of it.
pub async fn after_idling(mut one: One) {
    one.a_while(0, 2_000).await;
    while one.goes_on() {
        burst(&mut one).await;
        let limits = one.limits();
        let full = limits.burst * 60_000 / limits.per_minute;
        let mut left = one.chance.within(full / 2, full + 2_000);
        while left > 0 && one.goes_on() {
            let some = left.min(250);
            one.a_while(some, some + 1).await;
            left -= some;
        }
    }
}

/// Bursts when shards have moved, and at once again when they move again.
pub async fn after_moves(mut one: One) {
    let mut moved = one.shared.moved.clone();
    let mut waited = Duration::ZERO;
    while one.goes_on() {
        let step = Duration::from_millis(250);
        let has_moved = timeout(step, moved.changed()).await.is_ok();
        waited += step;
        if has_moved || waited > NO_MOVE {
            // At a random phase of what follows a move.
            one.a_while(0, 400).await;
            burst(&mut one).await;
            waited = Duration::ZERO;
        }
    }
}

async fn burst(one: &mut One) {
    let nodes = one.shared.nodes.borrow().clone();
    if nodes.is_empty() {
        return;
    }
    let asked = (0..one.limits().burst * 2).map(|number| {
        let node = nodes[number as usize % nodes.len()];
        let (mut caller, tenant) = (one.caller(), one.tenant.clone());
        let request = caller.numbers().request();
        async move {
            let script = Script { tokens: 4, usage: true, ..Script::default() };
            caller.attempt(node, Wish::of(&tenant, request, script)).await
        }
    });
    let _outcomes: Vec<Outcome> = join_all(asked).await;
}
