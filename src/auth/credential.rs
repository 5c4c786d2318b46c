//! The headers in which SDKs send a key.

use http::header::{AUTHORIZATION, HeaderName};
use http::{HeaderMap, HeaderValue};

/// Every header that may carry a credential: OpenAI and newer Anthropic SDKs send `Authorization: Bearer`, older Anthropic SDKs
/// `x-api-key`, Azure `api-key`, Gemini `x-goog-api-key`. None of them ever reaches a provider.
pub const CREDENTIAL_HEADERS: [HeaderName; 4] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];

/// The longest credential that is looked at, in bytes.
///
/// A signed token with many claims takes some kilobytes.
const MAX_CREDENTIAL: usize = 8 * 1024;

/// Whether a query's member carries a credential for Google's APIs, in whatever way its name is encoded. None of them ever
/// reaches a provider.
#[must_use]
pub fn is_query_credential(name: &str) -> bool {
    let mut decoded = Vec::with_capacity(name.len());
    let mut bytes = name.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |digit: Option<u8>| digit.and_then(|digit| char::from(digit).to_digit(16));
        decoded.push(match byte {
            b'%' => match (hex(bytes.next()), hex(bytes.next())) {
                (Some(high), Some(low)) => u8::try_from(high * 16 + low).unwrap_or(b'%'),
                _ => b'%',
            },
            _ => byte,
        });
    }
    let name = decoded.strip_prefix(b"$").unwrap_or(&decoded);
    [&b"key"[..], b"access_token", b"oauth_token"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// A key as a caller sent it. Never printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credential<'h>(&'h [u8]);

/// Why there is no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCredential {
    /// No header carries one.
    Missing,
    /// Two headers carry different ones.
    Conflicting,
    /// A header carries something that is not a key: another scheme than Bearer, nothing, or too much.
    Malformed,
}

impl<'h> Credential<'h> {
    /// The one credential in `headers`.
    ///
    /// # Errors
    /// None, several that differ, or one that is no key.
    pub fn find(headers: &'h HeaderMap) -> Result<Self, NoCredential> {
        Self::find_with(headers, None)
    }

    /// The one credential in `headers` and, where a dialect puts keys there (Gemini's `?key=`), in `query`.
    ///
    /// # Errors
    /// None, several that differ, or one that is no key.
    pub fn find_with(headers: &'h HeaderMap, query: Option<&'h str>) -> Result<Self, NoCredential> {
        let mut found: Option<Self> = None;
        for pair in query.unwrap_or_default().split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !is_query_credential(name) {
                continue;
            }
            let credential = Self(value.as_bytes());
            let well_formed = (1..=MAX_CREDENTIAL).contains(&value.len()) && !value.contains(['%', '+']);
            match found {
                _ if !well_formed || name != "key" => return Err(NoCredential::Malformed),
                Some(other) if other != credential => return Err(NoCredential::Conflicting),
                _ => found = Some(credential),
            }
        }
        for name in &CREDENTIAL_HEADERS {
            for value in headers.get_all(name) {
                let credential = Self::read(name, value).ok_or(NoCredential::Malformed)?;
                match found {
                    Some(other) if other != credential => return Err(NoCredential::Conflicting),
                    _ => found = Some(credential),
                }
            }
        }
        found.ok_or(NoCredential::Missing)
    }

    /// The key's bytes, to be hashed.
    #[must_use]
    pub const fn expose(&self) -> &[u8] {
        self.0
    }

    fn read(name: &HeaderName, value: &'h HeaderValue) -> Option<Self> {
        let mut bytes = value.as_bytes().trim_ascii();
        if *name == AUTHORIZATION {
            let (scheme, rest) = bytes.split_at_checked(7)?;
            if !scheme.eq_ignore_ascii_case(b"bearer ") {
                return None;
            }
            bytes = rest.trim_ascii();
        }
        (!bytes.is_empty() && bytes.len() <= MAX_CREDENTIAL).then_some(Self(bytes))
    }
}

impl std::fmt::Debug for Credential<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credential(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn every_header_that_sdks_use_carries_a_key() {
        for pair in [
            ("authorization", "Bearer tg-1"),
            ("authorization", "bearer  tg-1 "),
            ("x-api-key", "tg-1"),
            ("api-key", "tg-1"),
            ("x-goog-api-key", "tg-1"),
        ] {
            let headers = headers(&[pair]);
            assert_eq!(Credential::find(&headers).map(|found| found.expose().to_vec()), Ok(b"tg-1".to_vec()));
        }
    }

    #[test]
    fn the_same_key_twice_is_one_credential_and_two_keys_are_none() {
        let same = headers(&[("authorization", "Bearer tg-1"), ("x-api-key", "tg-1")]);
        assert!(Credential::find(&same).is_ok());
        let differ = headers(&[("authorization", "Bearer tg-1"), ("x-api-key", "tg-2")]);
        assert_eq!(Credential::find(&differ), Err(NoCredential::Conflicting));
        let twice = headers(&[("authorization", "Bearer tg-1"), ("authorization", "Bearer tg-2")]);
        assert_eq!(Credential::find(&twice), Err(NoCredential::Conflicting));
    }

    #[test]
    fn a_query_carries_a_key_too_and_two_that_differ_are_none() {
        let none = HeaderMap::new();
        let find = |headers, query| Credential::find_with(headers, Some(query)).map(|found| found.0.to_vec());
        assert_eq!(find(&none, "alt=sse&key=tg-1"), Ok(b"tg-1".to_vec()));
        assert_eq!(find(&none, "alt=sse"), Err(NoCredential::Missing));
        assert_eq!(find(&none, "key=tg-1&key=tg-2"), Err(NoCredential::Conflicting));
        for odd in ["key=", "key=tg%2D1", "%6bey=tg-1", "access_token=tg-1", "KEY=tg-1", "$key=tg-1"] {
            assert_eq!(find(&none, odd), Err(NoCredential::Malformed), "{odd}");
        }
        let headers = headers(&[("x-goog-api-key", "tg-1")]);
        assert_eq!(find(&headers, "key=tg-1"), Ok(b"tg-1".to_vec()));
        assert_eq!(find(&headers, "key=tg-2"), Err(NoCredential::Conflicting));
    }

    #[test]
    fn what_is_no_key_is_malformed() {
        for value in ["Basic dG9sbA==", "Bearer", "Bearer ", "tg-1", ""] {
            let mut map = HeaderMap::new();
            map.insert(AUTHORIZATION, HeaderValue::from_static(value));
            assert_eq!(Credential::find(&map), Err(NoCredential::Malformed), "{value:?}");
        }
        assert_eq!(Credential::find(&HeaderMap::new()), Err(NoCredential::Missing));
    }

    #[test]
    fn a_credential_does_not_print_itself() {
        let headers = headers(&[("x-api-key", "tg-secret")]);
        assert!(!format!("{:?}", Credential::find(&headers)).contains("secret"));
    }
}
