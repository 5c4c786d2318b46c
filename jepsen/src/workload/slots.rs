//! Twice as many at once as may be open, some of them left before or in the middle of their answer: a slot that is held twice, or never given back, shows.

use super::One;
use crate::client::Wish;
use crate::history::Outcome;
use crate::network::Host;
use crate::provider::Script;

/// How many callers ask, so that all together want about twice the slots.
pub const CALLERS: usize = 16;

/// Asks at `host` until nobody asks any more.
pub async fn ask(mut one: One, host: Host) {
    let mut caller = one.caller();
    while one.goes_on() {
        if !one.knows(host) {
            one.a_while(100, 200).await;
            continue;
        }
        let request = caller.numbers().request();
        let plain =
            Script { latency: one.chance.within(100, 500), tokens: 4, usage: true, ..Script::default() };
        let (script, abort_after) = match one.chance.below(8) {
            0 => (
                Script { latency: 50, chunks: 6, gap: 50, tokens: 6, ..plain },
                Some(one.chance.within(1, 5)),
            ),
            1 => (Script { latency: 400, ..plain }, Some(0)),
            _ => (plain, None),
        };
        let tenant = one.tenant.clone();
        let wish = Wish { abort_after, ..Wish::of(&tenant, request, script) };
        if caller.attempt(host, wish).await != Outcome::Admitted {
            one.a_while(80, 250).await;
        }
    }
}
