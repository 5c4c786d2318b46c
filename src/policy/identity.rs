//! Who else may say which tenant a caller is: what the document writes, what it means, and what of it cannot be trusted.

use std::collections::HashSet;

use super::cursor::Cursor;
use super::document::{MAX_ALTERNATIVES, MAX_RULES};
use super::problem::{Path, Report};
use super::scalar::{MAX_NAME, long_name, name, secret_reference, url};
use super::secret::SecretReference;
use super::types::Policy;
use super::validate::is_loopback;

/// Who may say which tenant a caller is, by a signed token (a JWT, RFC 7519).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issuer {
    /// The token's `iss`, exactly.
    pub issuer: String,
    /// One of these has to be in the token's `aud`.
    pub audiences: Vec<String>,
    /// The signatures that are accepted, whatever the token says.
    pub algorithms: Vec<SignatureAlgorithm>,
    /// What they are verified with.
    pub keys: IssuerKeys,
    /// The claim that names the tenant: `org.id` is `["org", "id"]`.
    pub tenant_claim: Vec<String>,
    /// The tenants that it may name; all when absent.
    pub tenants: Option<Vec<String>>,
}

/// What an issuer's signatures are verified with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IssuerKeys {
    /// A JSON Web Key Set in a file on the node, read again when it changes.
    File(std::path::PathBuf),
    /// A JSON Web Key Set at an `https://` address (`http://` on loopback), fetched now and again.
    Url(String),
    /// A secret that both sides know, for the HS algorithms.
    Secret(SecretReference),
}

/// A signature algorithm of RFC 7518 that is accepted. `none` is not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // the names are those of the standard
pub enum SignatureAlgorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Es256,
    Es384,
}

impl SignatureAlgorithm {
    /// All of them, with their names.
    pub const ALL: [(&'static str, SignatureAlgorithm); 8] = [
        ("HS256", SignatureAlgorithm::Hs256),
        ("HS384", SignatureAlgorithm::Hs384),
        ("HS512", SignatureAlgorithm::Hs512),
        ("RS256", SignatureAlgorithm::Rs256),
        ("RS384", SignatureAlgorithm::Rs384),
        ("RS512", SignatureAlgorithm::Rs512),
        ("ES256", SignatureAlgorithm::Es256),
        ("ES384", SignatureAlgorithm::Es384),
    ];

    /// The algorithm of a name, exactly as the standard writes it.
    #[must_use]
    pub fn of_name(name: &str) -> Option<SignatureAlgorithm> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, algorithm)| algorithm)
    }

    /// Whether both sides need the same secret.
    #[must_use]
    pub const fn is_shared_secret(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }
}

/// Reads one issuer.
pub(super) fn issuer(at: Cursor<'_>) -> Option<Issuer> {
    let mut fields = at.fields()?;
    let issuer = fields.required("issuer", |at| long_name(&at)).unwrap_or_default();
    let audiences = fields
        .required("audience", |at| {
            if at.is_sequence() {
                at.short_list(MAX_ALTERNATIVES, |at| long_name(&at))
            } else {
                long_name(&at).map(|name| vec![name])
            }
        })
        .unwrap_or_default();
    let algorithms = fields
        .required("algorithms", |at| {
            at.short_list(MAX_ALTERNATIVES, |at| at.choice(&SignatureAlgorithm::ALL))
        })
        .unwrap_or_default();
    let set = fields.optional("keys", |at| {
        let text = at.text()?;
        match text.strip_prefix("file:") {
            Some(path) if !path.is_empty() => Some(IssuerKeys::File(path.into())),
            _ if text.starts_with("http") => url(at).map(IssuerKeys::Url),
            _ => {
                at.error("is no key set", "write file:PATH or the https address of a JSON Web Key Set");
                None
            }
        }
    });
    let secret = fields.optional("secret", secret_reference);
    let keys = match (set, secret) {
        (Some(_), Some(_)) => {
            fields.here().error("has `keys` and a `secret`", "remove one of the two");
            None
        }
        (None, Some(secret)) => Some(IssuerKeys::Secret(secret)),
        (set, None) => set,
    };
    let claim = fields.required("tenant_claim", |at| {
        let text = at.text()?;
        let steps: Vec<String> = text.split('.').map(str::to_owned).collect();
        if steps.len() > 4 || steps.iter().any(String::is_empty) || text.len() > MAX_NAME {
            at.error("is not a claim", "write its name, or up to four names with dots between them");
        }
        Some(steps)
    });
    let tenants = fields.optional("tenants", |at| at.short_list(MAX_RULES, |at| name(&at)));
    let issuer = Issuer {
        issuer,
        audiences,
        algorithms,
        keys: keys.unwrap_or_else(|| IssuerKeys::File(std::path::PathBuf::new())),
        tenant_claim: claim.unwrap_or_default(),
        tenants,
    };
    fields.finish();
    Some(issuer)
}

/// Checks how issuers fit with each other and with the rest.
pub(super) fn check(policy: &Policy, report: &Report<'_>, at: &Path) {
    let mut issuers = HashSet::new();
    for (index, issuer) in policy.identity.iter().enumerate() {
        let at = at.index(index);
        if !issuers.insert(issuer.issuer.as_str()) {
            let message = format!("`{}` is already here", issuer.issuer);
            report.error(&at.field("issuer"), message, "merge the two");
        }
        if issuer.audiences.is_empty() && report.has_value(&at.field("audience")) {
            let message = "accepts a token made for nobody";
            report.error(&at.field("audience"), message, "name this gateway as the issuer does");
        }
        if issuer.algorithms.is_empty() {
            let hint = "name at least one, such as [RS256, ES256]";
            report.error(&at.field("algorithms"), "accepts no signature at all", hint);
        }
        // With a public key as the secret of an HMAC anybody could sign.
        let is_secret = matches!(issuer.keys, IssuerKeys::Secret(_));
        if issuer.algorithms.iter().any(|algorithm| algorithm.is_shared_secret() != is_secret) {
            let hint =
                "HS algorithms take a `secret`, RS and ES algorithms take `keys`; make two issuers of it";
            report.error(&at.field("algorithms"), "do not go with what they are verified with", hint);
        }
        match &issuer.keys {
            IssuerKeys::File(path) if path.as_os_str().is_empty() && !report.has_value(&at.field("keys")) => {
                report.error(&at, "has nothing to verify a token with", "add `keys` or `secret`");
            }
            IssuerKeys::Url(url) if url.starts_with("http://") && !is_loopback(url) => {
                let message = "are fetched in the clear: whoever answers decides who is who";
                report.error(&at.field("keys"), message, "use https");
            }
            _ => {}
        }
        for (place, tenant) in issuer.tenants.iter().flatten().enumerate() {
            if !policy.tenants.iter().any(|known| known.id == *tenant) {
                let message = format!("there is no tenant `{tenant}`");
                report.error(&at.field("tenants").index(place), message, "");
            }
        }
    }
}
