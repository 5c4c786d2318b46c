//! The table of what is served. Law: `one_canonical_path`. Never decodes, trims or lower-cases: a path that
//! needs it is not ours, so no spelling can reach a provider past the limits of its route.
//!
//! Some endpoints have more than one door: Azure's SDKs name the deployment in the path, Gemini's the model. A
//! door changes where the model's name is found and in whose shape errors are told; limits hold for the endpoint.

use std::fmt;

use super::Dialect;

/// An endpoint that is served, whichever tenant or model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    ChatCompletions,
    /// `POST /v1/completions`: text in, text out, as before there were chats
    Completions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `GET /v1/models`, in either dialect; `GET /v1beta/models` in Gemini's
    Models,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/messages/count_tokens`: answers with a number, costs no output
    CountTokens,
    /// `POST /v1beta/models/{model}:generateContent`, or below `/v1`
    GenerateContent,
    /// `POST /v1beta/models/{model}:streamGenerateContent`
    StreamGenerateContent,
    /// `POST /v1beta/models/{model}:countTokens`: answers with a number, costs no output
    CountContent,
    /// A path that only a policy names: passed through, its body not read
    PassedThrough,
}

/// How a request came to its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door<'p> {
    /// By the endpoint's own path.
    Own,
    /// By Azure's, `/openai/deployments/{deployment}/…`, which names the model; `None`: by `/openai/responses`,
    /// whose body does.
    Azure(Option<&'p str>),
    /// By Gemini's, which names the model; empty where there is none.
    Gemini {
        /// The model.
        model: &'p str,
        /// The version of the API, `v1beta` or `v1`: the provider is asked in the same.
        version: &'static str,
    },
}

/// What a method and a path lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'p> {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// How it was found.
    pub door: Door<'p>,
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
    pub const ALL: [Endpoint; 11] = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Responses,
        Endpoint::Embeddings,
        Endpoint::Models,
        Endpoint::Messages,
        Endpoint::CountTokens,
        Endpoint::GenerateContent,
        Endpoint::StreamGenerateContent,
        Endpoint::CountContent,
        Endpoint::PassedThrough,
    ];

    /// Those whose path is one string, alike for every request.
    const AT_OWN_PATH: [Endpoint; 7] = [
        Endpoint::ChatCompletions,
        Endpoint::Completions,
        Endpoint::Responses,
        Endpoint::Embeddings,
        Endpoint::Models,
        Endpoint::Messages,
        Endpoint::CountTokens,
    ];

    /// Finds the endpoint of a method and a path. `path` is the raw path as it arrived, without its query.
    pub fn find<'p>(method: &str, path: &'p str) -> Result<Found<'p>, Missing> {
        let own = Self::AT_OWN_PATH.into_iter().find(|known| known.path() == path);
        let found = own
            .map(|endpoint| Found { endpoint, door: Door::Own })
            .or_else(|| path.strip_prefix("/openai/").and_then(azure))
            .or_else(|| path.strip_prefix("/v1beta/models").and_then(|rest| gemini("v1beta", rest)))
            .or_else(|| path.strip_prefix("/v1/models").and_then(|rest| gemini("v1", rest)));
        let Some(found) = found else { return Err(Missing::Path { dialect: Dialect::guess(path) }) };
        if method != found.endpoint.method() {
            return Err(Missing::Method { dialect: Dialect::guess(path), allow: found.endpoint.method() });
        }
        Ok(found)
    }

    /// Its name in policies, metrics and decisions: the one path at which it is served, here and at the provider,
    /// with `{model}` where a name goes.
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::ChatCompletions => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
            Endpoint::Responses => "/v1/responses",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Models => "/v1/models",
            Endpoint::Messages => "/v1/messages",
            Endpoint::CountTokens => "/v1/messages/count_tokens",
            Endpoint::GenerateContent => "/v1beta/models/{model}:generateContent",
            Endpoint::StreamGenerateContent => "/v1beta/models/{model}:streamGenerateContent",
            Endpoint::CountContent => "/v1beta/models/{model}:countTokens",
            Endpoint::PassedThrough => "passed_through",
        }
    }

    /// The one method with which it is served.
    pub fn method(self) -> &'static str {
        match self {
            Endpoint::Models => "GET",
            _ => "POST",
        }
    }

    /// The dialect that its provider has to speak; of those that both OpenAI and Anthropic have, OpenAI's.
    pub fn spoken(self) -> Dialect {
        match self {
            Endpoint::Messages | Endpoint::CountTokens => Dialect::Anthropic,
            Endpoint::GenerateContent | Endpoint::StreamGenerateContent | Endpoint::CountContent => {
                Dialect::Gemini
            }
            _ => Dialect::OpenAi,
        }
    }

    /// Whose shapes to answer in. `anthropic_version`: the request carries that header, which every Anthropic
    /// SDK sends and no OpenAI SDK does; only `/v1/models`, which both APIs have, is told apart by it.
    pub fn dialect(self, anthropic_version: bool) -> Dialect {
        match self {
            Endpoint::Models if anthropic_version => Dialect::Anthropic,
            _ => self.spoken(),
        }
    }

    /// Whether the model writes anything that is billed as output.
    pub fn has_output(self) -> bool {
        match self {
            Endpoint::ChatCompletions
            | Endpoint::Completions
            | Endpoint::Responses
            | Endpoint::Messages
            | Endpoint::GenerateContent
            | Endpoint::StreamGenerateContent => true,
            Endpoint::Embeddings
            | Endpoint::Models
            | Endpoint::CountTokens
            | Endpoint::CountContent
            | Endpoint::PassedThrough => false,
        }
    }

    /// Whether it asks how many tokens there are, which no provider bills.
    pub fn only_counts(self) -> bool {
        matches!(self, Endpoint::CountTokens | Endpoint::CountContent)
    }
}

impl<'p> Found<'p> {
    /// Whose shapes to answer in: see [`Endpoint::dialect`].
    pub fn dialect(&self, anthropic_version: bool) -> Dialect {
        match self.door {
            Door::Gemini { .. } => Dialect::Gemini,
            Door::Azure(_) => Dialect::OpenAi,
            Door::Own => self.endpoint.dialect(anthropic_version),
        }
    }

    /// The model that the path names.
    pub fn model(&self) -> Option<&'p str> {
        match self.door {
            Door::Own => None,
            Door::Azure(deployment) => deployment,
            Door::Gemini { model, .. } => Some(model).filter(|model| !model.is_empty()),
        }
    }
}

/// What follows `/openai/`. <https://learn.microsoft.com/azure/ai-services/openai/reference>
fn azure(rest: &str) -> Option<Found<'_>> {
    if rest == "responses" {
        return Some(Found { endpoint: Endpoint::Responses, door: Door::Azure(None) });
    }
    let (deployment, operation) = rest.strip_prefix("deployments/")?.split_once('/')?;
    let endpoint = match operation {
        "chat/completions" => Endpoint::ChatCompletions,
        "completions" => Endpoint::Completions,
        "embeddings" => Endpoint::Embeddings,
        "responses" => Endpoint::Responses,
        _ => return None,
    };
    is_plain_name(deployment).then_some(Found { endpoint, door: Door::Azure(Some(deployment)) })
}

/// What follows `/v1beta/models`, or `/v1/models` as newer SDKs have it. <https://ai.google.dev/api/generate-content>
fn gemini<'p>(version: &'static str, rest: &'p str) -> Option<Found<'p>> {
    if rest.is_empty() {
        return Some(Found { endpoint: Endpoint::Models, door: Door::Gemini { model: "", version } });
    }
    let (model, operation) = rest.strip_prefix('/')?.split_once(':')?;
    let endpoint = match operation {
        "generateContent" => Endpoint::GenerateContent,
        "streamGenerateContent" => Endpoint::StreamGenerateContent,
        "countTokens" => Endpoint::CountContent,
        _ => return None,
    };
    is_plain_name(model).then_some(Found { endpoint, door: Door::Gemini { model, version } })
}

/// A name that stands for itself in a path: nothing in it is ever encoded, and it is no step up.
fn is_plain_name(name: &str) -> bool {
    (1..=super::ask::MODEL_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'@'))
        && name.bytes().any(|byte| byte != b'.')
}

impl Dialect {
    /// The dialect of a path that is not served.
    pub fn guess(path: &str) -> Dialect {
        if path.starts_with(Endpoint::Messages.path()) {
            Dialect::Anthropic
        } else if path.starts_with("/v1beta/") || path.starts_with("/v1/models/") && path.contains(':') {
            Dialect::Gemini
        } else {
            Dialect::OpenAi
        }
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
                let served =
                    Endpoint::ALL.into_iter().filter(|endpoint| *endpoint != Endpoint::PassedThrough);
                for (at, endpoint) in served.enumerate() {
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
        for endpoint in Endpoint::AT_OWN_PATH {
            let found = Endpoint::find(endpoint.method(), endpoint.path());
            assert_eq!(found, Ok(Found { endpoint, door: Door::Own }));
        }
    }

    #[test]
    fn azure_names_the_model_in_the_path() {
        for (operation, endpoint) in [
            ("chat/completions", Endpoint::ChatCompletions),
            ("completions", Endpoint::Completions),
            ("embeddings", Endpoint::Embeddings),
            ("responses", Endpoint::Responses),
        ] {
            let path = format!("/openai/deployments/our-gpt-5/{operation}");
            let found = Endpoint::find("POST", &path).unwrap();
            assert_eq!((found.endpoint, found.model()), (endpoint, Some("our-gpt-5")));
            assert_eq!(found.dialect(true), Dialect::OpenAi);
        }
        let found = Endpoint::find("POST", "/openai/responses").unwrap();
        assert_eq!((found.endpoint, found.model()), (Endpoint::Responses, None));
    }

    #[test]
    fn gemini_names_the_model_in_the_path() {
        for (operation, endpoint) in [
            ("generateContent", Endpoint::GenerateContent),
            ("streamGenerateContent", Endpoint::StreamGenerateContent),
            ("countTokens", Endpoint::CountContent),
        ] {
            for version in ["v1beta", "v1"] {
                let path = format!("/{version}/models/gemini-2.5-flash:{operation}");
                let found = Endpoint::find("POST", &path).unwrap();
                let door = Door::Gemini { model: "gemini-2.5-flash", version };
                assert_eq!((found.endpoint, found.door), (endpoint, door));
                assert_eq!(found.dialect(false), Dialect::Gemini);
            }
        }
        let list = Endpoint::find("GET", "/v1beta/models").unwrap();
        assert_eq!(
            (list.endpoint, list.model(), list.dialect(false)),
            (Endpoint::Models, None, Dialect::Gemini)
        );
    }

    #[test]
    fn another_spelling_of_a_door_is_not_found() {
        for path in [
            "/openai/deployments//chat/completions",
            "/openai/deployments/../chat/completions",
            "/openai/deployments/a%2Fb/chat/completions",
            "/openai/deployments/a/b/chat/completions",
            "/openai/deployments/a/chat/completions/",
            "/openai/deployments/a/images/generations",
            "/openai/Deployments/a/completions",
            "/v1beta/models/",
            "/v1beta/models/:generateContent",
            "/v1beta/models/..:generateContent",
            "/v1beta/models/a:generatecontent",
            "/v1beta/models/a:generateContent:countTokens",
            "/v1beta/models/a%3AgenerateContent",
            "/v1beta/models/a/b:generateContent",
            "/v1beta/tunedModels/a:generateContent",
            "/v1/models/a:embedContent",
            "/v2/models/a:generateContent",
        ] {
            assert!(matches!(Endpoint::find("POST", path), Err(Missing::Path { .. })), "{path:?} was served");
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
            "/v1/responses/resp_1",
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
