//! Streams, some of which are left in the middle: what they hold must come back all the same.

use super::One;
use crate::client::Wish;
use crate::history::Outcome;
use crate::network::Host;
use crate::provider::Script;

/// Pieces of a stream.
const CHUNKS: u64 = 8;

/// Asks at `host` until nobody asks any more.
pub async fn ask(mut one: One, host: Host) {
    let mut caller = one.caller();
    while one.goes_on() {
        if !one.knows(host) {
            one.a_while(100, 200).await;
            continue;
        }
        let request = caller.numbers().request();
        let abort_after = (one.chance.below(5) < 2).then(|| one.chance.within(1, CHUNKS));
        let script = Script {
            latency: one.chance.below(20),
            chunks: CHUNKS,
            gap: one.chance.within(5, 25),
            tokens: 8,
            usage: one.chance.below(4) > 0,
            ..Script::default()
        };
        let tenant = one.tenant.clone();
        let wish = Wish { abort_after, ..Wish::of(&tenant, request, script) };
        let outcome = caller.attempt(host, wish).await;
        if outcome != Outcome::Admitted {
            one.a_while(50, 150).await;
        }
    }
}
