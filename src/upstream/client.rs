//! A provider, ready to be called.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Uri};
use prometheus_client::metrics::counter::Counter;

use super::pool::Client;
use crate::policy::{Provider, Secret, SecretProblem, SecretReference, Timeouts};
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
    /// What was found where its secret lies; none: it has none.
    found: Option<Result<Secret, SecretProblem>>,
    credential: Result<Option<(HeaderName, HeaderValue)>, String>,
    /// Why the credential is still an earlier one.
    outdated: Option<String>,
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
    fn new(name: &str, provider: &Provider, before: Option<&Self>) -> Self {
        let found = provider.api_key.as_ref().map(SecretReference::resolve);
        let (credential, outdated) = match found.as_ref().map(|found| credential_of(provider, found)) {
            None => (Ok(None), None),
            Some(Ok(credential)) => (Ok(Some(credential)), None),
            Some(Err(problem)) => match before.and_then(|before| before.credential_for(provider)) {
                Some(earlier) => (Ok(Some(earlier)), Some(problem)),
                None => (Err(problem), None),
            },
        };
        let client = before.filter(|before| before.settings == *provider).map(|before| before.client.clone());
        Self {
            name: name.to_owned(),
            dialect: provider.dialect,
            azure_api_version: provider.azure_api_version.clone(),
            include_usage: provider.include_usage,
            timeouts: provider.timeouts,
            max_attempts: provider.max_attempts.clamp(1, 3),
            settings: provider.clone(),
            origin: origin(&provider.base_url),
            found,
            credential,
            outdated,
            client: client.unwrap_or_else(|| Client::new(&provider.timeouts)),
            answered_200: OnceLock::new(),
        }
    }

    /// The credential that it has, if `provider` would be sent the same secret in the same way.
    fn credential_for(&self, provider: &Provider) -> Option<(HeaderName, HeaderValue)> {
        let is_azure = |provider: &Provider| provider.azure_api_version.is_some();
        let Provider { api_key, base_url, dialect, .. } = &self.settings;
        let same = *api_key == provider.api_key
            && *base_url == provider.base_url
            && *dialect == provider.dialect
            && is_azure(&self.settings) == is_azure(provider);
        self.credential.as_ref().ok().filter(|_| same).cloned().flatten()
    }

    /// Where its secret lies, if that is a file.
    #[must_use]
    pub fn secret_file(&self) -> Option<&Path> {
        match &self.settings.api_key {
            Some(SecretReference::File(path)) => Some(path),
            Some(SecretReference::Env(_)) | None => None,
        }
    }

    /// Whether something else is found by now where its secret lies.
    fn secret_has_changed(&self) -> bool {
        let found = self.settings.api_key.as_ref().map(SecretReference::resolve);
        found != self.found
    }

    /// What was found where its secret lies, if that differs from what `before` had found there: whether it can be used.
    #[must_use]
    pub fn found_anew(&self, before: &Self) -> Option<bool> {
        let same_place = self.settings.api_key == before.settings.api_key;
        let anew = same_place && self.found.is_some() && self.found != before.found;
        anew.then(|| self.problem().or(self.outdated()).is_none())
    }

    /// Why it is called with an earlier secret: what is there now cannot be used.
    #[must_use]
    pub fn outdated(&self) -> Option<&str> {
        self.outdated.as_deref()
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
    /// Reads every provider's secret. One that is unchanged since `before` keeps its connections, and one whose secret cannot be read any
    /// more the secret that it had.
    #[must_use]
    pub fn new(providers: &BTreeMap<String, Provider>, before: Option<&Self>) -> Self {
        let make = |(name, provider): (&String, &Provider)| {
            let before = before.and_then(|before| before.get(name)).map(Arc::as_ref);
            (name.clone(), Arc::new(Upstream::new(name, provider, before)))
        };
        Self(providers.iter().map(make).collect())
    }

    /// A provider by name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<Upstream>> {
        self.0.get(name)
    }

    /// The files that their secrets lie in.
    #[must_use]
    pub fn secret_files(&self) -> BTreeSet<&Path> {
        self.iter().filter_map(|upstream| upstream.secret_file()).collect()
    }

    /// Whether one of those files, read now, says something else than when it was read last, or cannot be read any more.
    #[must_use]
    pub fn secrets_have_changed(&self) -> bool {
        self.iter().any(|upstream| upstream.secret_file().is_some() && upstream.secret_has_changed())
    }

    /// Connections to all of them that wait for a request.
    #[must_use]
    pub fn idle_connections(&self) -> usize {
        self.iter().map(|upstream| upstream.client.idle_connections()).sum()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Upstream>> {
        self.0.values()
    }
}

fn credential_of(
    provider: &Provider,
    found: &Result<Secret, SecretProblem>,
) -> Result<(HeaderName, HeaderValue), String> {
    let secret = found.as_ref().map_err(ToString::to_string)?;
    credential_header(provider, secret.expose()).map_err(|()| {
        let reference = provider.api_key.as_ref().map(ToString::to_string).unwrap_or_default();
        format!("the secret {reference} is not a header value")
    })
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
