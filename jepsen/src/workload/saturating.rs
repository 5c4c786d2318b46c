//! More than there is, all the time. A request that nobody could decide is made again, with its idempotency key, at another node.

use super::One;
use crate::client::Wish;
use crate::history::Outcome;
use crate::network::Host;
use crate::provider::Script;

/// One in so many logical requests bears an idempotency key: owners remember keys, and their memory is bounded.
const KEYED: u64 = 4;

/// Asks at `host` until nobody asks any more.
pub async fn ask(mut one: One, host: Host) {
    let mut caller = one.caller();
    one.a_while(0, 100).await;
    while one.goes_on() {
        if !one.knows(host) {
            one.a_while(100, 200).await;
            continue;
        }
        let request = caller.numbers().request();
        let keyed = one.chance.below(KEYED) == 0;
        let script = Script {
            latency: one.chance.below(8),
            tokens: 4,
            usage: one.chance.below(2) == 0,
            ..Script::default()
        };
        let tenant = one.tenant.clone();
        let wish = Wish { keyed, ..Wish::of(&tenant, request, script) };
        let outcome = caller.attempt(host, wish).await;
        match outcome {
            Outcome::Admitted => one.a_while(1, 10).await,
            Outcome::Limited | Outcome::Duplicate => one.a_while(10, 40).await,
            Outcome::Unavailable | Outcome::NotSent | Outcome::Unknown => {
                one.a_while(30, 120).await;
                let others = one.shared.nodes.borrow().clone();
                if keyed && !others.is_empty() {
                    let other = *one.chance.pick(&others);
                    caller.attempt(other, wish).await;
                }
            }
        }
    }
}
