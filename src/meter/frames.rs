//! The few events that Tollgate itself writes into a stream. They belong between two of the provider's events; see
//! [`StreamMeter::between_events`](super::StreamMeter::between_events).

use bytes::Bytes;
use serde_json::json;

use crate::route::Dialect;

/// What to send so that an idle connection is not taken for a dead one.
///
/// OpenAI routes get a comment and nothing more, since some clients fail on `id:`, `retry:` and empty `data:`; comments
/// are ignored by every reader (<https://html.spec.whatwg.org/multipage/server-sent-events.html#authoring-notes>).
/// Anthropic routes get the `ping` event (<https://docs.anthropic.com/en/api/messages-streaming#ping-events>).
pub fn keep_alive(dialect: Dialect) -> Bytes {
    match dialect {
        Dialect::OpenAi | Dialect::Gemini => Bytes::from_static(b": ping\n"),
        Dialect::Anthropic => Bytes::from_static(b"event: ping\ndata: {\"type\":\"ping\"}\n\n"),
    }
}

/// An error after the status line has gone out; the last event of its stream. `code` is Tollgate's stable code,
/// `message` a sentence for a person.
///
/// Sources: <https://platform.openai.com/docs/guides/error-codes>,
/// <https://docs.anthropic.com/en/api/messages-streaming#error-events>.
pub fn error_event(dialect: Dialect, code: &str, message: &str) -> Bytes {
    // Compact JSON escapes line ends, so that the document stays on its one `data` line.
    let event = match dialect {
        Dialect::OpenAi => {
            let error =
                json!({"error": {"message": message, "type": "server_error", "param": null, "code": code}});
            format!("data: {error}\n\n")
        }
        Dialect::Anthropic => {
            let error = json!({
                "type": "error",
                "error": {"type": "api_error", "message": message, "details": {"error_code": code}},
            });
            format!("event: error\ndata: {error}\n\n")
        }
        Dialect::Gemini => format!("data: {}\n\n", gemini_error(code, message)),
    };
    Bytes::from(event)
}

/// An error in Gemini's shape (<https://cloud.google.com/apis/design/errors#http_mapping>); Tollgate's own code is its reason.
pub(super) fn gemini_error(code: &str, message: &str) -> serde_json::Value {
    json!({"error": {
        "code": 502, "message": message, "status": "UNAVAILABLE",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "tollgate"}],
    }})
}
