//! What the provider says, in the words of the dialect that it is asked in.

use super::{PROMPT, Script};

/// How a request is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `/v1/chat/completions`.
    OpenAi,
    /// `/v1/messages`.
    Anthropic,
}

impl Dialect {
    /// That of a path.
    pub fn of(path: &str) -> Self {
        if path.ends_with("/messages") { Self::Anthropic } else { Self::OpenAi }
    }

    /// The header that bears the request's id.
    pub const fn id_header(self) -> &'static str {
        match self {
            Self::OpenAi => "x-request-id",
            Self::Anthropic => "request-id",
        }
    }

    /// An answer in one piece.
    pub fn whole(self, script: Script) -> String {
        match self {
            Self::OpenAi => {
                let usage = if script.usage { format!(",{}", usage(script)) } else { String::new() };
                format!(
                    r#"{{{},"choices":[{{"index":0,"message":{{"role":"assistant","content":"ok"}},"finish_reason":"stop"}}]{usage}}}"#,
                    head("chat.completion")
                )
            }
            Self::Anthropic => format!(
                r#"{{{MESSAGE},"content":[{{"type":"text","text":"ok"}}],"stop_reason":"end_turn","stop_sequence":null,{}}}"#,
                tokens(script.tokens)
            ),
        }
    }

    /// Piece `number` of a stream.
    pub fn piece(self, number: u64) -> String {
        match self {
            Self::OpenAi => {
                chunk(r#""choices":[{"index":0,"delta":{"content":"ok "},"finish_reason":null}]"#)
            }
            Self::Anthropic => {
                let begin = if number == 0 {
                    let start = format!(
                        r#""message":{{{MESSAGE},"content":[],"stop_reason":null,"stop_sequence":null,{}}}"#,
                        tokens(0)
                    );
                    let block = r#""index":0,"content_block":{"type":"text","text":""}"#;
                    event("message_start", &start) + &event("content_block_start", block)
                } else {
                    String::new()
                };
                let delta = r#""index":0,"delta":{"type":"text_delta","text":"ok "}"#;
                begin + &event("content_block_delta", delta)
            }
        }
    }

    /// What follows the last piece of a stream.
    pub fn finish(self) -> String {
        match self {
            Self::OpenAi => chunk(r#""choices":[{"index":0,"delta":{},"finish_reason":"stop"}]"#),
            Self::Anthropic => event("content_block_stop", r#""index":0"#),
        }
    }

    /// What a stream has used.
    pub fn usage(self, script: Script) -> String {
        match self {
            Self::OpenAi => chunk(&format!(r#""choices":[],{}"#, usage(script))),
            Self::Anthropic => event(
                "message_delta",
                &format!(
                    r#""delta":{{"stop_reason":"end_turn","stop_sequence":null}},{}"#,
                    tokens(script.tokens)
                ),
            ),
        }
    }

    /// By which a stream is known to be over.
    pub fn mark(self) -> String {
        match self {
            Self::OpenAi => "data: [DONE]\n\n".to_owned(),
            Self::Anthropic => "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n".to_owned(),
        }
    }
}

fn usage(script: Script) -> String {
    let (input, output) = (PROMPT, script.tokens);
    format!(
        r#""usage":{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{}}}"#,
        input + output
    )
}

fn head(kind: &str) -> String {
    format!(r#""id":"chatcmpl-1","object":"{kind}","created":1,"model":"gpt-5-mini""#)
}

fn chunk(inner: &str) -> String {
    format!("data: {{{},{inner}}}\n\n", head("chat.completion.chunk"))
}

const MESSAGE: &str = r#""id":"msg_1","type":"message","role":"assistant","model":"claude-haiku-4-5""#;

fn tokens(output: u64) -> String {
    format!(r#""usage":{{"input_tokens":{PROMPT},"output_tokens":{output}}}"#)
}

fn event(kind: &str, inner: &str) -> String {
    format!("event: {kind}\ndata: {{\"type\":\"{kind}\",{inner}}}\n\n")
}
