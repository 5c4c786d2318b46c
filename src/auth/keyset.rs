//! The public keys of an issuer: a JSON Web Key Set (RFC 7517), as far as it can be used here.
//!
//! Laws: a key verifies only the algorithms of its own kind, and only the one that it names if it names one; a key that is not
//! understood, or not for signatures, is left out and not guessed at; weak RSA keys are not accepted.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use serde::Deserialize;

use crate::policy::SignatureAlgorithm;

/// Keys in one set; known issuers have two to five.
const KEYS_MAX: usize = 64;

/// What an issuer's signatures are verified with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySet {
    keys: Vec<PublicKey>,
}

/// One key. Never printed.
#[derive(Clone, PartialEq, Eq)]
struct PublicKey {
    id: Option<String>,
    algorithm: Option<SignatureAlgorithm>,
    material: Material,
}

#[derive(Clone, PartialEq, Eq)]
enum Material {
    Secret(Vec<u8>),
    Rsa {
        modulus: Vec<u8>,
        exponent: Vec<u8>,
    },
    /// Uncompressed points (SEC 1 §2.3.3).
    P256(Vec<u8>),
    P384(Vec<u8>),
}

#[derive(Deserialize)]
struct WireSet {
    keys: Vec<WireKey>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WireKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    n: String,
    e: String,
    crv: String,
    x: String,
    y: String,
}

impl KeySet {
    /// Reads a set. `None` when it is none, or has no key that can be used.
    #[must_use]
    pub fn read(document: &[u8]) -> Option<Self> {
        let set: WireSet = serde_json::from_slice(document).ok()?;
        let keys: Vec<PublicKey> = set.keys.into_iter().take(KEYS_MAX).filter_map(PublicKey::read).collect();
        (!keys.is_empty()).then_some(Self { keys })
    }

    /// A set of one shared secret.
    #[must_use]
    pub fn of_secret(secret: &str) -> Self {
        let material = Material::Secret(secret.as_bytes().to_vec());
        Self { keys: vec![PublicKey { id: None, algorithm: None, material }] }
    }

    /// Whether a key of it, the one with this id if there is an id, has made `signature` over `message`.
    #[must_use]
    pub fn verifies(
        &self,
        id: Option<&str>,
        algorithm: SignatureAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> bool {
        let named = |key: &&PublicKey| id.is_none() || key.id.is_none() || key.id.as_deref() == id;
        self.keys.iter().filter(named).any(|key| key.verifies(algorithm, message, signature))
    }

    /// Whether it has a key of this id, or keys without one.
    #[must_use]
    pub fn knows(&self, id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref().is_none_or(|known| known == id))
    }
}

impl PublicKey {
    fn read(wire: WireKey) -> Option<Self> {
        if wire.purpose.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let bytes = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
        let point = |length: usize| {
            let (x, y) = (bytes(&wire.x)?, bytes(&wire.y)?);
            (x.len() == length && y.len() == length).then(|| [&[4], x.as_slice(), y.as_slice()].concat())
        };
        // Shared secrets do not belong into a set that is published: `oct` is not read.
        let material = match (wire.kty.as_str(), wire.crv.as_str()) {
            ("RSA", _) => Material::Rsa { modulus: bytes(&wire.n)?, exponent: bytes(&wire.e)? },
            ("EC", "P-256") => Material::P256(point(32)?),
            ("EC", "P-384") => Material::P384(point(48)?),
            _ => return None,
        };
        let algorithm = match &wire.alg {
            // One that we do not know is not for us.
            Some(name) => Some(SignatureAlgorithm::of_name(name)?),
            None => None,
        };
        Some(Self { id: wire.kid, algorithm, material })
    }

    fn verifies(&self, algorithm: SignatureAlgorithm, message: &[u8], signature: &[u8]) -> bool {
        use SignatureAlgorithm as Algorithm;
        if self.algorithm.is_some_and(|own| own != algorithm) {
            return false;
        }
        match (&self.material, algorithm) {
            (Material::Secret(secret), Algorithm::Hs256 | Algorithm::Hs384 | Algorithm::Hs512) => {
                let hash = match algorithm {
                    Algorithm::Hs256 => ring::hmac::HMAC_SHA256,
                    Algorithm::Hs384 => ring::hmac::HMAC_SHA384,
                    _ => ring::hmac::HMAC_SHA512,
                };
                ring::hmac::verify(&ring::hmac::Key::new(hash, secret), message, signature).is_ok()
            }
            (Material::Rsa { modulus, exponent }, Algorithm::Rs256 | Algorithm::Rs384 | Algorithm::Rs512) => {
                let parameters = match algorithm {
                    Algorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
                    Algorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
                    _ => &signature::RSA_PKCS1_2048_8192_SHA512,
                };
                RsaPublicKeyComponents { n: modulus, e: exponent }
                    .verify(parameters, message, signature)
                    .is_ok()
            }
            (Material::P256(point), Algorithm::Es256) => {
                UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, point)
                    .verify(message, signature)
                    .is_ok()
            }
            (Material::P384(point), Algorithm::Es384) => {
                UnparsedPublicKey::new(&signature::ECDSA_P384_SHA384_FIXED, point)
                    .verify(message, signature)
                    .is_ok()
            }
            _ => false,
        }
    }
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PublicKey({:?}, …)", self.id)
    }
}
