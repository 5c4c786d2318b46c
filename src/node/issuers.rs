//! Those who may say by a signed token which tenant a caller is, each with the keys that it signs with now.
//!
//! Keys outlive an edit of the policy as long as their issuer's entry does, and the last good ones stay while newer ones cannot be
//! had. Never here: fetching; see [`crate::issuers`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;

use crate::auth::{KeySet, Token};
use crate::policy::{Issuer, IssuerKeys};

/// An issuer of the policy.
pub struct Trusted {
    /// Its entry.
    pub issuer: Issuer,
    keys: ArcSwapOption<KeySet>,
    /// Whether a token came that is signed with a key that is not known: it may be new.
    wants_keys: AtomicBool,
}

/// The issuers of one policy.
pub struct Issuers(Vec<Arc<Trusted>>);

impl Issuers {
    /// The issuers of a policy; one whose entry is as `before` keeps its keys.
    #[must_use]
    pub fn new(issuers: &[Issuer], before: Option<&Self>) -> Self {
        let make = |issuer: &Issuer| {
            let old = before.and_then(|before| before.0.iter().find(|old| old.issuer == *issuer));
            old.cloned().unwrap_or_else(|| {
                let trusted = Trusted {
                    issuer: issuer.clone(),
                    keys: ArcSwapOption::empty(),
                    wants_keys: AtomicBool::new(true),
                };
                if let IssuerKeys::Secret(secret) = &issuer.keys {
                    match secret.resolve() {
                        Ok(secret) => trusted.learn(KeySet::of_secret(secret.expose())),
                        Err(problem) => {
                            tracing::warn!(issuer = issuer.issuer, %problem, "no secret to verify with")
                        }
                    }
                }
                Arc::new(trusted)
            })
        };
        Self(issuers.iter().map(make).collect())
    }

    /// The tenant that a credential names, if it is a token of one of these, made for us and for now.
    #[must_use]
    pub fn tenant(&self, credential: &[u8], now: Timestamp) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let token = Token::read(credential)?;
        let named = token.issuer()?;
        let trusted = self.0.iter().find(|trusted| trusted.issuer.issuer == named)?;
        let keys = trusted.keys.load();
        let Some(keys) = keys.as_ref() else {
            trusted.wants_keys.store(true, Ordering::Relaxed);
            return None;
        };
        if token.key_id().is_some_and(|id| !keys.knows(id)) {
            trusted.wants_keys.store(true, Ordering::Relaxed);
        }
        token.tenant(&trusted.issuer, keys, now).map(str::to_owned)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Trusted>> {
        self.0.iter()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Trusted {
    /// Verifies with these keys from now on.
    pub fn learn(&self, keys: KeySet) {
        self.keys.store(Some(Arc::new(keys)));
    }

    /// Whether it has keys.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.keys.load().is_some()
    }

    /// Whether somebody has asked for keys that it does not have; asked once, it is no longer so.
    #[must_use]
    pub fn take_want(&self) -> bool {
        self.wants_keys.swap(false, Ordering::Relaxed)
    }
}
