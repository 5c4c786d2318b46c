//! The flags of limits, as the commands take them that set some beside the policy.

use serde_json::{Value, json};

/// What is absent is not set.
#[derive(Debug, clap::Args)]
#[group(id = "Limits", multiple = true)]
pub(super) struct Limits {
    /// Tokens, input and output together
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<u64>,
    /// Input tokens
    #[arg(long, value_name = "N")]
    input_tokens_per_minute: Option<u64>,
    /// Output tokens
    #[arg(long, value_name = "N")]
    output_tokens_per_minute: Option<u64>,
    /// Tokens that may be claimed at once
    #[arg(long, value_name = "N")]
    burst_tokens: Option<u64>,
    /// Requests
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<u64>,
    /// Requests that may be made at once
    #[arg(long, value_name = "N")]
    burst_requests: Option<u64>,
    /// Requests that may be open at once
    #[arg(long, value_name = "N")]
    max_inflight: Option<u64>,
}

impl Limits {
    /// `page` with these limits among its members, by the names that a policy's document has for them.
    pub(super) fn among(&self, mut page: Value) -> Value {
        page["tokens_per_minute"] = json!(self.tokens_per_minute);
        page["input_tokens_per_minute"] = json!(self.input_tokens_per_minute);
        page["output_tokens_per_minute"] = json!(self.output_tokens_per_minute);
        page["burst_tokens"] = json!(self.burst_tokens);
        page["requests_per_minute"] = json!(self.requests_per_minute);
        page["burst_requests"] = json!(self.burst_requests);
        page["max_inflight"] = json!(self.max_inflight);
        page
    }
}
