//! Budgets that run out while they are asked for through every node: the first before anything is broken, the last when most faults are over.
//! Now and then an answer uses more than was held for it, is left in the middle, or says nothing of what it used.

use super::One;
use crate::client::Wish;
use crate::history::Outcome;
use crate::network::Host;
use crate::provider::Script;

/// What each tenant of this workload may use, in tokens. At a burst and twenty requests a second that lasts for seconds, for a minute or two,
/// and for several.
pub const LIMITS: [u64; 3] = [1_500, 15_000, 40_000];

/// How many callers ask, so that single requests that are left of a budget are wanted at several nodes at once.
pub const CALLERS: usize = 8;

/// Output tokens that each asks for at most, and holds.
const CEILING: u64 = 16;

/// Asks at `host` until nobody asks any more.
pub async fn ask(mut one: One, host: Host) {
    let mut caller = one.caller();
    one.a_while(0, 300).await;
    while one.goes_on() {
        if !one.knows(host) {
            one.a_while(100, 200).await;
            continue;
        }
        let request = caller.numbers().request();
        let plain = Script {
            latency: one.chance.within(5, 80),
            tokens: one.chance.within(1, CEILING + 1),
            usage: true,
            ..Script::default()
        };
        let stream = Script { chunks: 4, gap: 20, ..plain };
        let (script, abort_after) = match one.chance.below(16) {
            0 => (Script { tokens: 3 * CEILING, ..plain }, None),
            1 => (Script { usage: false, ..plain }, None),
            2 | 3 => (stream, None),
            4 => (stream, Some(one.chance.within(1, 4))),
            _ => (plain, None),
        };
        let tenant = one.tenant.clone();
        let wish = Wish { ceiling: CEILING, abort_after, ..Wish::of(&tenant, request, script) };
        match caller.attempt(host, wish).await {
            Outcome::Admitted => one.a_while(50, 150).await,
            // Used up: now and then somebody sees whether it still is.
            _ => one.a_while(300, 900).await,
        }
    }
}
