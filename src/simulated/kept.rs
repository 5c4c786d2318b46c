//! What the provider keeps for its account: files, batches, responses. Whoever has the account's key sees all of it, as with
//! the real ones: that is what a gateway has to tell apart.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// The most that is kept; then nothing more is.
const MOST: usize = 10_000;

/// Documents by id.
#[derive(Debug, Default)]
pub struct Store(Mutex<BTreeMap<String, (Value, bytes::Bytes)>>);

impl Store {
    /// Keeps a document, with its content.
    pub fn keep(&self, id: &str, document: Value, content: bytes::Bytes) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MOST {
            kept.insert(id.to_owned(), (document, content));
        }
    }

    /// A document with its content.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<(Value, bytes::Bytes)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    /// Forgets a document.
    #[must_use]
    pub fn remove(&self, id: &str) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id).is_some()
    }

    /// All documents whose id begins so.
    #[must_use]
    pub fn list(&self, prefix: &str) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let data: Vec<&Value> =
            kept.iter().filter(|(id, _)| id.starts_with(prefix)).map(|(_, (value, _))| value).collect();
        json!({"object": "list", "data": data, "has_more": false})
    }
}
