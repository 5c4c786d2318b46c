//! The table of what is served. Law: `one_canonical_path`. Never decodes, trims or lower-cases: a path that needs it is not ours,
//! so no spelling can reach a provider past the limits of its route.

use std::fmt;

use super::Dialect;

/// An endpoint that is served, whichever tenant or model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `GET /v1/models`, in either dialect
    Models,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/messages/count_tokens`: answers with a number, costs no output
    CountTokens,
}

/// Why no endpoint answers, and in whose shape to say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Nothing is served at this path: 404.
    Path {
        /// Whose error shape the caller most likely understands.
        dialect: Dialect,
    },
    /// The path is served, for another method: 405.
    Method {
        /// Whose error shape the caller most likely understands.
        dialect: Dialect,
        /// The one method that is served here: the value of the `Allow` header (RFC 9110 §10.2.1).
        allow: &'static str,
    },
}

impl Endpoint {
    /// All of them, in the order of the README.
    pub const ALL: [Endpoint; 5] = [
        Endpoint::ChatCompletions,
        Endpoint::Embeddings,
        Endpoint::Models,
        Endpoint::Messages,
        Endpoint::CountTokens,
    ];

    /// Finds the endpoint of a method and a path. `path` is the raw path as it arrived, without its query.
    pub fn find(method: &str, path: &str) -> Result<Endpoint, Missing> {
        let Some(endpoint) = Self::ALL.into_iter().find(|known| known.path() == path) else {
            return Err(Missing::Path { dialect: Dialect::guess(path) });
        };
        if method != endpoint.method() {
            return Err(Missing::Method { dialect: Dialect::guess(path), allow: endpoint.method() });
        }
        Ok(endpoint)
    }

    /// The one path at which it is served, here and at the provider.
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::ChatCompletions => "/v1/chat/completions",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Models => "/v1/models",
            Endpoint::Messages => "/v1/messages",
            Endpoint::CountTokens => "/v1/messages/count_tokens",
        }
    }

    /// The one method with which it is served.
    pub fn method(self) -> &'static str {
        match self {
            Endpoint::Models => "GET",
            _ => "POST",
        }
    }

    /// Whose shapes to answer in. `anthropic_version`: the request carries that header, which every Anthropic SDK sends and no
    /// OpenAI SDK does; only `/v1/models`, which both APIs have, is told apart by it.
    pub fn dialect(self, anthropic_version: bool) -> Dialect {
        match self {
            Endpoint::ChatCompletions | Endpoint::Embeddings => Dialect::OpenAi,
            Endpoint::Messages | Endpoint::CountTokens => Dialect::Anthropic,
            Endpoint::Models if anthropic_version => Dialect::Anthropic,
            Endpoint::Models => Dialect::OpenAi,
        }
    }

    /// Whether the model writes anything that is billed as output.
    pub fn has_output(self) -> bool {
        matches!(self, Endpoint::ChatCompletions | Endpoint::Messages)
    }
}

impl Dialect {
    fn guess(path: &str) -> Dialect {
        if path.starts_with(Endpoint::Messages.path()) { Dialect::Anthropic } else { Dialect::OpenAi }
    }
}

impl Missing {
    /// The HTTP status: 404 or 405.
    pub fn status(self) -> u16 {
        match self {
            Missing::Path { .. } => 404,
            Missing::Method { .. } => 405,
        }
    }

    /// Whose error shape to answer in.
    pub fn dialect(self) -> Dialect {
        match self {
            Missing::Path { dialect } | Missing::Method { dialect, .. } => dialect,
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Path { .. } => {
                out.write_str("nothing is served at this path; served are ")?;
                for (at, endpoint) in Endpoint::ALL.into_iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(out, "{comma}{} {}", endpoint.method(), endpoint.path())?;
                }
                Ok(())
            }
            Missing::Method { allow, .. } => write!(out, "this path is served for {allow} only"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_found_at_its_own_path() {
        for endpoint in Endpoint::ALL {
            assert_eq!(Endpoint::find(endpoint.method(), endpoint.path()), Ok(endpoint));
        }
    }

    #[test]
    fn another_spelling_of_a_served_path_is_not_found() {
        for path in [
            "",
            "/",
            "/v1",
            "/v1/",
            "//v1/messages",
            "/v1//messages",
            "/v1/messages/",
            "/v1/./messages",
            "/v1/x/../messages",
            "/v1/%6dessages",
            "/v1/messages%2e",
            "/v1/messages%00",
            "/v1/messages;x",
            "/v1/messages;x=1",
            "/V1/messages",
            "/v1/Messages",
            "/v1/messages?beta=true",
            "/v1/messages#x",
            "v1/messages",
            "/v1/messages ",
            "/v1/messages\0",
            "\\v1\\messages",
            "/v1/chat/completions/",
            "/v1/chat/completions/../embeddings",
            "/v1/chat%2Fcompletions",
            "/v1/models/gpt-5",
            "/v1/responses",
            "http://example.com/v1/messages",
        ] {
            assert!(matches!(Endpoint::find("POST", path), Err(Missing::Path { .. })), "{path:?} was served");
        }
    }

    #[test]
    fn a_wrong_method_is_told_the_right_one() {
        let missing = Endpoint::find("GET", "/v1/chat/completions").unwrap_err();
        assert_eq!(missing, Missing::Method { dialect: Dialect::OpenAi, allow: "POST" });
        assert_eq!(missing.status(), 405);
        for method in ["post", "PUT", "CONNECT", "TRACE", "OPTIONS", "HEAD", ""] {
            assert_eq!(
                Endpoint::find(method, "/v1/messages"),
                Err(Missing::Method { dialect: Dialect::Anthropic, allow: "POST" })
            );
        }
        assert_eq!(
            Endpoint::find("POST", "/v1/models"),
            Err(Missing::Method { dialect: Dialect::OpenAi, allow: "GET" })
        );
    }

    #[test]
    fn what_is_missing_is_said_in_the_dialect_of_its_path() {
        assert_eq!(Endpoint::find("POST", "/v1/messages/batches").unwrap_err().dialect(), Dialect::Anthropic);
        let missing = Endpoint::find("POST", "/v1/audio/speech").unwrap_err();
        assert_eq!((missing.dialect(), missing.status()), (Dialect::OpenAi, 404));
        assert!(missing.to_string().contains("POST /v1/messages/count_tokens"), "{missing}");
    }

    #[test]
    fn models_answers_in_the_dialect_of_the_caller() {
        assert_eq!(Endpoint::Models.dialect(false), Dialect::OpenAi);
        assert_eq!(Endpoint::Models.dialect(true), Dialect::Anthropic);
        assert_eq!(Endpoint::ChatCompletions.dialect(true), Dialect::OpenAi);
    }
}
