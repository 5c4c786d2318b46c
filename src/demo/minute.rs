//! The busiest minute of a real sample: who asked when for how much. What they asked is made up of one word.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::callers::{Call, Callers, words};

const SAMPLE: &str = include_str!("data/minute.csv");
const MINUTE: Duration = Duration::from_secs(60);

/// What a chat message costs beside its words, in the provider's count: so a prompt has as many tokens as the sample says.
const OVERHEAD: u64 = 7;
/// The most chunks of a streamed answer: the tokens are the sample's, the number of chunks is bounded to go easy on small machines.
const CHUNKS: u64 = 40;
/// Shorter answers than this are not left in the middle: they would be over.
const WORTH_LEAVING: u64 = 60;

/// A request and when it is made.
pub(super) struct Arrival {
    at: Duration,
    call: Call,
}

/// The minute's requests in the order of their arrival.
///
/// # Errors
/// A line of the sample that cannot be read.
pub(super) fn requests() -> Result<Vec<Arrival>, String> {
    let lines = SAMPLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines
        .enumerate()
        .map(|(number, line)| {
            arrival(number as u64, line).ok_or_else(|| format!("the sample's line {line:?} is not a request"))
        })
        .collect()
}

/// Makes each request when it is due, the minute compressed into `length`, and waits for all answers.
pub(super) async fn play(callers: Arc<Callers>, requests: Vec<Arrival>, length: Duration) {
    let began = crate::clock::now();
    let mut running = JoinSet::new();
    for Arrival { at, call } in requests {
        let due = Duration::from_nanos(scaled(at, length));
        let elapsed = Duration::from_nanos(crate::clock::now().since(began).as_nanos());
        tokio::time::sleep(due.saturating_sub(elapsed)).await;
        let callers = callers.clone();
        running.spawn(async move {
            let seen = callers.make(&call).await;
            let refused_for_now = matches!(
                seen.code.as_deref(),
                Some("tenant_rate_limit_exceeded" | "inflight_limit_exceeded")
            );
            if seen.status.is_some_and(|status| status != 200) && !refused_for_now {
                callers.complain(format!("a request of the sample was answered unexpectedly: {seen:?}"));
            }
        });
    }
    while running.join_next().await.is_some() {}
}

fn scaled(at: Duration, length: Duration) -> u64 {
    let nanos = at.as_nanos() * length.as_nanos() / MINUTE.as_nanos();
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

fn arrival(number: u64, line: &str) -> Option<Arrival> {
    let mut fields = line.split(',');
    let at = Duration::from_millis(fields.next()?.parse().ok()?);
    let tenant = fields.next()?;
    let input: u64 = fields.next()?.parse().ok()?;
    let output: u64 = fields.next()?.parse().ok()?;
    let nothing_more = fields.next().is_none();
    nothing_more.then(|| Arrival { at, call: request(number, tenant, input, output) })
}

/// How a request is made is not in the sample; it is drawn from the request's number, so that each play is the same.
fn request(number: u64, tenant: &str, input: u64, output: u64) -> Call {
    let draw = |what: u64, of: u64| xxh3_64_with_seed(&number.to_le_bytes(), what) % of;
    let stream = draw(1, 10) < 6;
    let anthropic = draw(2, 10) < 4;
    // Some callers know what they need, some name a round number, some name none.
    let ceiling = match draw(3, 4) {
        0 => Some(output),
        1 | 2 => Some(output.next_power_of_two().max(256)),
        _ => None,
    };
    let prompt = json!([{ "role": "user", "content": words(input.saturating_sub(OVERHEAD).max(1)) }]);
    let call = if anthropic {
        let body = json!({
            "model": "claude-haiku-4-5", "max_tokens": ceiling.unwrap_or(output.max(1_024)),
            "messages": prompt, "stream": stream,
        });
        Call::new(tenant, "/v1/messages", &body)
    } else {
        let mut body = json!({ "model": "gpt-5", "messages": prompt, "stream": stream });
        if let Some(ceiling) = ceiling {
            body["max_tokens"] = ceiling.into();
        }
        Call::new(tenant, "/v1/chat/completions", &body)
    };
    let leaves = stream && output >= WORTH_LEAVING && draw(4, 12) == 0;
    let call =
        call.steered(format!("tokens={output},chunks={},gap=4ms,latency=20ms", output.clamp(1, CHUNKS)));
    if leaves { call.leaving_after(output / 3) } else { call }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_one_whole_minute_in_order() {
        let requests = requests().unwrap();
        assert_eq!(requests.len(), 648);
        assert!(requests.is_sorted_by_key(|request| request.at));
        assert!(requests.iter().all(|request| request.at < MINUTE));
    }

    #[test]
    fn a_compressed_minute_keeps_its_proportions() {
        let middle = scaled(Duration::from_secs(30), Duration::from_secs(15));
        assert_eq!(Duration::from_nanos(middle), Duration::from_millis(7_500));
    }
}
