//! A provider, ready to be called.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Uri};
use prometheus_client::metrics::counter::Counter;

use super::pool::Client;
use crate::policy::{Provider, Timeouts};
use crate::route::Dialect;

/// A provider of the policy.
pub struct Upstream {
    /// Its name in the policy.
    pub name: String,
    /// What it speaks.
    pub dialect: Dialect,
    /// The version of Azure's API that it speaks; none: it is not Azure's.
    pub azure_api_version: Option<String>,
    /// Whether it may be asked to report usage in a stream.
    pub include_usage: bool,
    /// How long to wait for what.
    pub timeouts: Timeouts,
    /// Attempts for one request, the first among them.
    pub max_attempts: u32,
    settings: Provider,
    origin: Result<Origin, String>,
    credential: Result<Option<(HeaderName, HeaderValue)>, String>,
    pub(super) client: Client,
    /// The counter of its usual answer, looked up once.
    pub(super) answered_200: OnceLock<Counter>,
}

struct Origin {
    scheme: Scheme,
    authority: Authority,
    prefix: String,
}

impl Upstream {
    fn new(name: &str, provider: &Provider, client: Option<Client>) -> Self {
        let dialect = provider.dialect;
        let credential = provider.api_key.as_ref().map(|reference| match reference.resolve() {
            Ok(secret) => credential_header(provider, secret.expose())
                .map_err(|()| format!("the secret {reference} is not a header value")),
            Err(problem) => Err(problem.to_string()),
        });
        Self {
            name: name.to_owned(),
            dialect,
            azure_api_version: provider.azure_api_version.clone(),
            include_usage: provider.include_usage,
            timeouts: provider.timeouts,
            max_attempts: provider.max_attempts.clamp(1, 3),
            settings: provider.clone(),
            origin: origin(&provider.base_url),
            credential: credential.transpose(),
            client: client.unwrap_or_else(|| Client::new(&provider.timeouts)),
            answered_200: OnceLock::new(),
        }
    }

    /// What keeps it from being called: a secret that this node lacks, say.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        let origin = self.origin.as_ref().err();
        origin.or(self.credential.as_ref().err()).map(String::as_str)
    }

    /// The address of `path` at this provider.
    pub(super) fn uri(&self, path_and_query: &str) -> Result<Uri, String> {
        let origin = self.origin.as_ref().map_err(Clone::clone)?;
        let path = format!("{}{path_and_query}", origin.prefix);
        let path = PathAndQuery::from_maybe_shared(Bytes::from(path)).map_err(|error| error.to_string())?;
        Uri::builder()
            .scheme(origin.scheme.clone())
            .authority(origin.authority.clone())
            .path_and_query(path)
            .build()
            .map_err(|error| error.to_string())
    }

    /// `bytes` without this provider's credential: some providers repeat in an error what they were sent.
    #[must_use]
    pub fn redacted(&self, bytes: Bytes) -> Bytes {
        let Ok(Some((_, value))) = &self.credential else { return bytes };
        let secret = value.as_bytes();
        let secret = secret.strip_prefix(b"Bearer ").unwrap_or(secret);
        let mut kept = Vec::new();
        let mut from = 0;
        for at in memchr::memmem::find_iter(&bytes, secret) {
            kept.extend_from_slice(&bytes[from..at]);
            kept.extend_from_slice(b"[redacted]");
            from = at + secret.len();
        }
        if from == 0 {
            return bytes;
        }
        kept.extend_from_slice(&bytes[from..]);
        kept.into()
    }

    pub(super) fn credential(&self) -> Result<Option<&(HeaderName, HeaderValue)>, String> {
        self.credential.as_ref().map(Option::as_ref).map_err(Clone::clone)
    }
}

/// The providers of one policy.
pub struct Upstreams(BTreeMap<String, Arc<Upstream>>);

impl Upstreams {
    /// Reads every provider's secret. One that is unchanged since `before` keeps its connections.
    #[must_use]
    pub fn new(providers: &BTreeMap<String, Provider>, before: Option<&Self>) -> Self {
        let make = |(name, provider): (&String, &Provider)| {
            let client = before.and_then(|before| before.0.get(name)).filter(|old| old.settings == *provider);
            let client = client.map(|old| old.client.clone());
            (name.clone(), Arc::new(Upstream::new(name, provider, client)))
        };
        Self(providers.iter().map(make).collect())
    }

    /// A provider by name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.0.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.0.values()
    }
}

fn credential_header(provider: &Provider, secret: &str) -> Result<(HeaderName, HeaderValue), ()> {
    let (name, value) = match provider.dialect {
        Dialect::OpenAi if provider.azure_api_version.is_some() => {
            (HeaderName::from_static("api-key"), secret.to_owned())
        }
        Dialect::Gemini => (HeaderName::from_static("x-goog-api-key"), secret.to_owned()),
        Dialect::OpenAi => (http::header::AUTHORIZATION, format!("Bearer {secret}")),
        Dialect::Anthropic => (HeaderName::from_static("x-api-key"), secret.to_owned()),
    };
    let mut value = HeaderValue::try_from(value).map_err(|_| ())?;
    value.set_sensitive(true);
    Ok((name, value))
}

fn origin(base_url: &str) -> Result<Origin, String> {
    let bad = |why: &str| format!("the base_url {base_url:?} {why}");
    let parts = base_url.parse::<Uri>().map_err(|error| bad(&error.to_string()))?.into_parts();
    let scheme = parts.scheme.ok_or_else(|| bad("has no scheme"))?;
    if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
        return Err(bad("is neither http nor https"));
    }
    let authority = parts.authority.ok_or_else(|| bad("has no host"))?;
    let prefix =
        parts.path_and_query.map_or(String::new(), |path| path.path().trim_end_matches('/').to_owned());
    Ok(Origin { scheme, authority, prefix })
}
