//! What to try by hand while the demo stays up: lines to copy.

use std::fmt::Write as _;

use super::Stage;
use super::callers::{MAIN, key_of};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const HELLO: &str = r#""messages": [{"role": "user", "content": "Hello!"}]"#;

/// Commands, each with what it shows.
#[must_use]
pub fn lines(stage: &Stage) -> String {
    let (callers, admins) = (stage.callers_urls(), stage.admin_urls());
    let (first, last) = (first(&callers), last(&callers));
    let (admin, provider) = (self::first(&admins), stage.provider_url());
    let token = stage.token.expose();
    let mine = key_of("t00", MAIN);
    let plain = post(first, "t00", CHAT, &body("gpt-5", 50, ""));
    let stream = post(last, "t00", CHAT, &body("gpt-5", 50, r#""stream": true, "#));
    let claude = post(last, "t00", MESSAGES, &body("claude-haiku-4-5", 50, ""));
    let rate = post("$node", "few-requests", CHAT, &body("gpt-5", 50, ""));
    let never = post(first, "tiny", CHAT, &body("gpt-5", 2_000, ""));
    let spent = post(first, "allowance", CHAT, &body("gpt-5", 250, ""));
    let three: Vec<&str> = callers.iter().cycle().take(3).map(String::as_str).collect();
    let mut text = String::new();
    let mut show = |what: &str, lines: &str| {
        // Writing to a String does not fail.
        let _ = write!(text, "# {what}\n{lines}\n\n");
    };
    show(
        "OpenAI's chat completions; the headers of the answer say what is left of the tenant's limits",
        &plain,
    );
    let at_another = if callers.len() > 1 {
        ", through another node: what is left is what the first has left"
    } else {
        ""
    };
    show(&format!("the same as a stream{at_another}"), &stream);
    show("Anthropic's messages", &claude);
    show(
        "refused for its rate: this tenant may make two requests a minute, at whichever node",
        &format!("for node in {}; do {rate}; echo; done", three.join(" ")),
    );
    show("refused for ever: no request of this tenant may have more than 500 tokens", &never);
    show("refused until the month ends: this tenant has used its budget up", &spent);
    show(
        "where the budgets and the pools stand, as all nodes have it",
        &format!(
            "TOLLGATE_ADMIN_TOKEN={token} {} budgets list --admin {admin}\n\
             curl -s {admin}/v1/pools -H 'authorization: Bearer {token}'",
            this_program()
        ),
    );
    show(
        "a tenant's own limits and what is left of them",
        &format!("curl -s {last}/tollgate/v1/me -H 'authorization: Bearer {mine}'"),
    );
    if callers.len() > 1 {
        show(
            "the cluster, as any of its nodes tells it; and who owns that tenant",
            &format!(
                "TOLLGATE_ADMIN_TOKEN={token} {} cluster status --admin {admin}\n\
                 curl -s {admin}/v1/tenants/t00 -H 'authorization: Bearer {token}'",
                this_program()
            ),
        );
    }
    show(
        "a node's metrics, and the provider's account",
        &format!("curl -s {admin}/metrics -H 'authorization: Bearer {token}'\ncurl -s {provider}/stats"),
    );
    show("the policy: edit it, and it is in force at once", &stage.policy_path().display().to_string());
    let stay = if callers.len() > 1 { "The nodes stay up" } else { "The node stays up" };
    format!("{stay}. Copy a line:\n\n{text}Ctrl-C ends it.")
}

fn body(model: &str, most: u64, more: &str) -> String {
    format!(r#"{{"model": "{model}", "max_tokens": {most}, {more}{HELLO}}}"#)
}

fn post(node: &str, tenant: &str, path: &str, body: &str) -> String {
    // Anthropic's API asks for it on each request.
    let version = if path == MESSAGES { " -H 'anthropic-version: 2023-06-01'" } else { "" };
    format!(
        "curl -siN {node}{path} -H 'authorization: Bearer {}'{version} \\\n    -H 'content-type: application/json' -d '{body}'",
        key_of(tenant, MAIN)
    )
}

/// As it can be run from here, installed or not.
fn this_program() -> String {
    std::env::current_exe().map_or_else(|_| "tollgate".to_owned(), |path| path.display().to_string())
}

fn first(urls: &[String]) -> &str {
    urls.first().map_or("", String::as_str)
}

fn last(urls: &[String]) -> &str {
    urls.last().map_or("", String::as_str)
}
