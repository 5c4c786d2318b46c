//! What to try by hand while the demo stays up: lines to copy.

use super::Stage;
use super::callers::key_of;

const MESSAGES: &str = "/v1/messages";

/// Commands, each with what it shows.
#[must_use]
pub fn lines(stage: &Stage) -> String {
    let (callers, admin, provider) = (stage.callers_url(), stage.admin_url(), stage.provider_url());
    let token = stage.token.expose();
    let policy = stage.policy_path();
    let key = |tenant: &str| key_of(tenant, super::callers::MAIN);
    let post = |tenant: &str, path: &str, body: &str| {
        // Anthropic's API asks for it on each request.
        let version = if path == MESSAGES { " -H 'anthropic-version: 2023-06-01'" } else { "" };
        format!(
            "curl -siN {callers}{path} -H 'authorization: Bearer {}'{version} \\\n    -H 'content-type: application/json' -d '{body}'",
            key(tenant)
        )
    };
    let chat = "/v1/chat/completions";
    let hello = r#""messages": [{"role": "user", "content": "Hello!"}]"#;
    let plain = post("t00", chat, &format!(r#"{{"model": "gpt-5", "max_tokens": 50, {hello}}}"#));
    let stream =
        post("t00", chat, &format!(r#"{{"model": "gpt-5", "max_tokens": 50, "stream": true, {hello}}}"#));
    let claude =
        post("t00", MESSAGES, &format!(r#"{{"model": "claude-haiku-4-5", "max_tokens": 50, {hello}}}"#));
    let rate = post("few-requests", chat, &format!(r#"{{"model": "gpt-5", "max_tokens": 50, {hello}}}"#));
    let never = post("tiny", chat, &format!(r#"{{"model": "gpt-5", "max_tokens": 2000, {hello}}}"#));
    format!(
        "The node stays up. Copy a line:\n\n\
         # OpenAI's chat completions; the headers of the answer say what is left of the tenant's limits\n{plain}\n\n\
         # the same as a stream\n{stream}\n\n\
         # Anthropic's messages\n{claude}\n\n\
         # refused for its rate: this tenant may make two requests a minute\nfor i in 1 2 3; do {rate}; echo; done\n\n\
         # refused for ever: no request of this tenant may have more than 500 tokens\n{never}\n\n\
         # a tenant's own limits and what is left of them\ncurl -s {callers}/tollgate/v1/me -H 'authorization: Bearer {}'\n\n\
         # the node's metrics, and the provider's account\ncurl -s {admin}/metrics -H 'authorization: Bearer {token}'\ncurl -s {provider}/stats\n\n\
         # the policy: edit it, and it is in force at once\n{}\n\n\
         Ctrl-C ends it.",
        key("t00"),
        policy.display(),
    )
}
