//! Signed tokens (RFC 7519 in the compact form of RFC 7515): who signed, and for which tenant.
//!
//! Laws:
//! - the policy says which algorithms an issuer signs with, and never the token: `none`, and an HMAC keyed with a public key,
//!   verify nothing;
//! - a claim of the wrong type is a wrong claim, not an absent one;
//! - a token without an end is not accepted; every wrong token gets the same answer.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::keyset::KeySet;
use crate::policy::{Issuer, SignatureAlgorithm};

/// Clocks of two machines differ by less, in seconds.
const LEEWAY: i64 = 30;

/// A token's head. Members that are not known and not critical are ignored, as the standard demands; a repeated one is an error.
#[derive(Deserialize)]
struct Head {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that must be understood: none is.
    #[serde(default)]
    crit: Option<Value>,
}

/// A token, cut into its parts; nothing of it is verified.
pub struct Token<'t> {
    message: &'t [u8],
    signature: Vec<u8>,
    head: Head,
    claims: Value,
}

impl<'t> Token<'t> {
    /// Cuts a credential into the parts of a token; `None` for what is none.
    #[must_use]
    pub fn read(credential: &'t [u8]) -> Option<Self> {
        let text = std::str::from_utf8(credential).ok()?;
        let (message, signature) = text.rsplit_once('.')?;
        let (head, claims) = message.split_once('.')?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).ok();
        let head: Head = serde_json::from_slice(&decode(head)?).ok()?;
        let claims: Value = serde_json::from_slice(&decode(claims)?).ok()?;
        claims.is_object().then_some(Self {
            message: message.as_bytes(),
            signature: decode(signature)?,
            head,
            claims,
        })
    }

    /// Who it says has signed it.
    #[must_use]
    pub fn issuer(&self) -> Option<&str> {
        self.claims["iss"].as_str()
    }

    /// The key it says it is signed with.
    #[must_use]
    pub fn key_id(&self) -> Option<&str> {
        self.head.kid.as_deref()
    }

    /// The tenant for which `issuer` signed it, if it did, for us, and for now.
    #[must_use]
    pub fn tenant(&self, issuer: &Issuer, keys: &KeySet, now: Timestamp) -> Option<&str> {
        let algorithm = SignatureAlgorithm::of_name(&self.head.alg)?;
        let accepted = issuer.algorithms.contains(&algorithm)
            && self.head.crit.is_none()
            && keys.verifies(self.key_id(), algorithm, self.message, &self.signature);
        if !accepted || self.issuer() != Some(issuer.issuer.as_str()) || !self.is_for(&issuer.audiences) {
            return None;
        }
        let now = now.as_second();
        let in_time = now < self.instant("exp")??.saturating_add(LEEWAY)
            && self.instant("nbf")?.is_none_or(|from| from.saturating_sub(LEEWAY) <= now);
        let tenant =
            issuer.tenant_claim.iter().fold(&self.claims, |claims, step| &claims[step.as_str()]).as_str()?;
        let may = issuer.tenants.as_ref().is_none_or(|known| known.iter().any(|known| known == tenant));
        (in_time && may).then_some(tenant)
    }

    fn is_for(&self, audiences: &[String]) -> bool {
        let ours =
            |audience: &Value| audience.as_str().is_some_and(|name| audiences.iter().any(|own| own == name));
        match &self.claims["aud"] {
            Value::Array(named) => named.iter().all(Value::is_string) && named.iter().any(ours),
            named => ours(named),
        }
    }

    /// A NumericDate in whole seconds; `None` inside when absent, outside when it is something else.
    #[allow(clippy::option_option, reason = "absent and wrong are told apart")]
    fn instant(&self, claim: &str) -> Option<Option<i64>> {
        match &self.claims[claim] {
            Value::Null if self.claims.get(claim).is_none() => Some(None),
            Value::Number(number) => {
                #[allow(clippy::cast_possible_truncation, reason = "saturates, and is a date")]
                let seconds =
                    number.as_i64().or_else(|| number.as_f64().map(|seconds| seconds.floor() as i64))?;
                Some(Some(seconds))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
    use serde_json::json;

    use super::*;
    use crate::policy::IssuerKeys;

    const NOW: i64 = 1_800_000_000;

    struct House {
        pair: EcdsaKeyPair,
        random: SystemRandom,
    }

    impl House {
        fn new() -> Self {
            let random = SystemRandom::new();
            let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
            let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random)
                .unwrap();
            Self { pair, random }
        }

        fn set(&self) -> Value {
            let point = self.pair.public_key().as_ref();
            let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
            json!({"keys": [
                {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
                {"kty": "EC", "crv": "P-256", "kid": "one", "use": "sig",
                 "x": encode(&point[1..33]), "y": encode(&point[33..])},
            ]})
        }

        fn sign(&self, head: &Value, claims: &Value) -> String {
            let message = message(head, claims);
            let signature = self.pair.sign(&self.random, message.as_bytes()).unwrap();
            format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
        }
    }

    fn message(head: &Value, claims: &Value) -> String {
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}", encode(head), encode(claims))
    }

    fn issuer(algorithms: &[SignatureAlgorithm]) -> Issuer {
        Issuer {
            issuer: "https://id.example.com".to_owned(),
            audiences: vec!["tollgate".to_owned()],
            algorithms: algorithms.to_vec(),
            keys: IssuerKeys::Url(String::new()),
            tenant_claim: vec!["org".to_owned(), "id".to_owned()],
            tenants: Some(vec!["northwind".to_owned()]),
        }
    }

    fn claims() -> Value {
        json!({
            "iss": "https://id.example.com", "aud": ["other", "tollgate"], "exp": NOW + 60, "nbf": NOW - 60,
            "org": {"id": "northwind"},
        })
    }

    fn tenant(token: &str, issuer: &Issuer, keys: &KeySet) -> Option<String> {
        let now = Timestamp::from_second(NOW).unwrap();
        Token::read(token.as_bytes())?.tenant(issuer, keys, now).map(str::to_owned)
    }

    #[test]
    fn a_token_names_its_tenant() {
        let house = House::new();
        let keys = KeySet::read(house.set().to_string().as_bytes()).unwrap();
        let issuer = issuer(&[SignatureAlgorithm::Es256]);
        for head in [json!({"alg": "ES256", "kid": "one"}), json!({"alg": "ES256", "typ": "JWT"})] {
            let token = house.sign(&head, &claims());
            assert_eq!(tenant(&token, &issuer, &keys).as_deref(), Some("northwind"));
        }
        assert!(keys.knows("one") && !keys.knows("two"));
    }

    #[test]
    fn a_claim_that_is_wrong_or_of_a_wrong_kind_is_no_claim() {
        let house = House::new();
        let keys = KeySet::read(house.set().to_string().as_bytes()).unwrap();
        let issuer = issuer(&[SignatureAlgorithm::Es256]);
        for (claim, value) in [
            ("exp", json!(NOW - 31)),
            ("exp", json!((NOW + 60).to_string())),
            ("exp", Value::Null),
            ("nbf", json!(NOW + 31)),
            ("nbf", json!("0")),
            ("aud", json!("another")),
            ("aud", json!(["tollgate", 1])),
            ("aud", json!({"tollgate": true})),
            ("iss", json!("https://id.example.com/")),
            ("org", json!("northwind")),
            ("org", json!({"id": "contoso"})),
            ("org", json!({"id": ["northwind"]})),
        ] {
            let mut claims = claims();
            claims[claim] = value;
            let token = house.sign(&json!({"alg": "ES256"}), &claims);
            assert_eq!(tenant(&token, &issuer, &keys), None, "{claims}");
        }
        let mut endless = claims();
        endless.as_object_mut().unwrap().remove("exp");
        assert_eq!(tenant(&house.sign(&json!({"alg": "ES256"}), &endless), &issuer, &keys), None);
    }

    #[test]
    fn the_token_does_not_choose_how_it_is_verified() {
        let house = House::new();
        let set = house.set();
        let keys = KeySet::read(set.to_string().as_bytes()).unwrap();
        let es256 = issuer(&[SignatureAlgorithm::Es256]);
        let good = house.sign(&json!({"alg": "ES256", "kid": "one"}), &claims());
        assert!(tenant(&good, &es256, &keys).is_some());

        let hmac = |secret: &[u8]| {
            let message = message(&json!({"alg": "HS256"}), &claims());
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
            let signature = ring::hmac::sign(&key, message.as_bytes());
            format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
        };
        // An HMAC keyed with what is public: the set itself, the point, a secret that somebody published.
        let point = house.pair.public_key().as_ref();
        let all = issuer(&SignatureAlgorithm::ALL.map(|(_, algorithm)| algorithm));
        for forged in [hmac(set.to_string().as_bytes()), hmac(point), hmac(b"secret")] {
            assert_eq!(tenant(&forged, &es256, &keys), None);
            assert_eq!(tenant(&forged, &all, &keys), None);
        }
        let (signed, signature) = good.rsplit_once('.').unwrap();
        let (head, body) = signed.split_once('.').unwrap();
        let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let mut other = claims();
        other["exp"] = json!(NOW + 600);
        for forged in [
            format!("{}.{body}.", encode(json!({"alg": "none"}))),
            format!("{}.{body}.{signature}", encode(json!({"alg": "None"}))),
            format!("{}.{body}.{signature}", encode(json!({"alg": "ES384"}))),
            format!("{head}.{}.{signature}", encode(other)),
            format!("{head}.{body}."),
            format!("{head}.{body}.{}", URL_SAFE_NO_PAD.encode([0; 64])),
            format!("{head}.{body}"),
            format!("{good}.{signature}"),
            format!("{head}.{body}.{signature}="),
        ] {
            assert_eq!(tenant(&forged, &all, &keys), None, "{forged}");
        }
        let critical = house.sign(&json!({"alg": "ES256", "crit": ["b64"], "b64": false}), &claims());
        assert_eq!(tenant(&critical, &es256, &keys), None);
        let another = House::new().sign(&json!({"alg": "ES256", "kid": "one"}), &claims());
        assert_eq!(tenant(&another, &es256, &keys), None);
        let unknown = house.sign(&json!({"alg": "ES256", "kid": "two"}), &claims());
        assert_eq!(tenant(&unknown, &es256, &keys), None);
    }

    #[test]
    fn a_shared_secret_verifies_its_own_algorithms_alone() {
        let keys = KeySet::of_secret("a secret of thirty-two bytes, at least");
        let sign = |algorithm: ring::hmac::Algorithm, name: &str| {
            let message = message(&json!({"alg": name}), &claims());
            let key = ring::hmac::Key::new(algorithm, b"a secret of thirty-two bytes, at least");
            format!(
                "{message}.{}",
                URL_SAFE_NO_PAD.encode(ring::hmac::sign(&key, message.as_bytes()).as_ref())
            )
        };
        let hs256 = issuer(&[SignatureAlgorithm::Hs256]);
        assert!(tenant(&sign(ring::hmac::HMAC_SHA256, "HS256"), &hs256, &keys).is_some());
        assert_eq!(tenant(&sign(ring::hmac::HMAC_SHA512, "HS512"), &hs256, &keys), None);
        assert_eq!(tenant(&sign(ring::hmac::HMAC_SHA256, "RS256"), &hs256, &keys), None);
    }
}
