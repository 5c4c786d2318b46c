//! Requests that hold far more tokens than they use, for long enough that many are open at once: what is given back twice shows, and so does
//! what is given back to an owner that never had it.

use super::One;
use crate::client::Wish;
use crate::history::Outcome;
use crate::network::Host;
use crate::provider::Script;

/// Output tokens that each asks for, and is charged until its end: many times what it uses.
pub const CEILING: u64 = 200;

/// How many callers ask, so that all together want several times what can be held at once.
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
            Script { latency: one.chance.within(150, 450), tokens: 4, usage: true, ..Script::default() };
        let tenant = one.tenant.clone();
        let wish = Wish { ceiling: CEILING, ..Wish::of(&tenant, request, script) };
        if caller.attempt(host, wish).await != Outcome::Admitted {
            one.a_while(50, 250).await;
        }
    }
}
