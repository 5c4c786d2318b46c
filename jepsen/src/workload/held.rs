//! A burst that is spent on long streams and refills slowly: what is still held when its gateway dies must stay charged.

use super::One;
use crate::client::Wish;
use crate::history::Outcome;
use crate::network::Host;
use crate::provider::Script;

/// Seconds of a stream: longer than any lease and what follows its end.
const SECONDS: u64 = 10;

/// How many callers ask, so that the whole burst can be held.
pub const CALLERS: usize = 48;

/// Asks at `host` until nobody asks any more.
pub async fn ask(mut one: One, host: Host) {
    let mut caller = one.caller();
    while one.goes_on() {
        if !one.knows(host) {
            one.a_while(100, 200).await;
            continue;
        }
        let request = caller.numbers().request();
        let script =
            Script { chunks: SECONDS, gap: 1_000, tokens: SECONDS, usage: true, ..Script::default() };
        let tenant = one.tenant.clone();
        if caller.attempt(host, Wish::of(&tenant, request, script)).await != Outcome::Admitted {
            one.a_while(500, 1_500).await;
        }
    }
}
