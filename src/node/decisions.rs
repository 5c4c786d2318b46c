//! What was decided, for as long as there is room: `GET /tollgate/v1/decisions/{id}` and the decision line of the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use hashbrown::HashMap;
use jiff::Timestamp;
use serde::Serialize;

use crate::limit::{Amount, Name, ReservationId, UserDigest};

/// How many decisions a node remembers, over all tenants.
pub const REMEMBERED: usize = 16_384;
const PARTS: usize = 16;

/// One decision. Holds no prompt and no secret.
#[derive(Debug)]
pub struct Record {
    /// The request's id: the reservation's, and the `x-tollgate-decision` of its answer.
    pub id: ReservationId,
    /// When it was decided.
    pub at: Timestamp,
    /// The tenant.
    pub tenant: Name,
    /// The key's label.
    pub key: Name,
    /// The key's project.
    pub project: Option<Name>,
    /// The end user, where the policy limits users.
    pub user: Option<UserDigest>,
    /// The provider that serves it.
    pub provider: Name,
    /// The route's path.
    pub route: &'static str,
    /// The model that was asked for.
    pub model_asked: Box<str>,
    /// The model that it resolved to.
    pub model: Name,
    /// What was needed.
    pub estimate: Amount,
    /// admitted, shadowed, denied.
    pub outcome: &'static str,
    /// The code of the denial, if there was one.
    pub reason: Option<&'static str>,
    /// The denial in words.
    pub sentence: Option<Box<str>>,
    /// The version of the policy that it was made under.
    pub policy_version: u64,
    /// How it ended. Unset while it runs.
    pub ending: OnceLock<Ending>,
}

/// How an admitted request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ending {
    /// settled, closed, abandoned, cancelled.
    pub how: &'static str,
    /// Why: `usage`, `no_usage`, `client_gone`, `provider_failed`, …
    pub why: &'static str,
    /// Total tokens charged.
    pub charged: u64,
    /// Held and given back.
    pub refunded: u64,
    /// Used beyond what was held.
    pub overage: u64,
    /// Requests sent to the provider.
    pub attempts: u32,
    /// The provider's last status; 0 when it gave none.
    pub upstream_status: u16,
    /// Milliseconds from the decision to the end.
    pub milliseconds: u64,
}

impl Record {
    /// The record as its own tenant may see it.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "id": self.id.to_string(),
            "at": self.at.to_string(),
            "tenant": &*self.tenant,
            "key": &*self.key,
            "project": self.project.as_deref(),
            "route": self.route,
            "model_asked": self.model_asked,
            "model": &*self.model,
            "estimate": { "total": self.estimate.total, "input": self.estimate.input, "output": self.estimate.output },
            "outcome": self.outcome,
            "reason": self.reason,
            "message": self.sentence,
            "policy_version": self.policy_version,
            "ending": self.ending.get(),
        })
    }
}

/// The last [`REMEMBERED`] decisions, the oldest forgotten first.
pub struct Decisions {
    parts: [Mutex<Part>; PARTS],
}

#[derive(Default)]
struct Part {
    records: HashMap<ReservationId, Arc<Record>>,
    order: VecDeque<ReservationId>,
}

impl Decisions {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self { parts: std::array::from_fn(|_| Mutex::default()) }
    }

    /// Remembers a decision.
    pub fn remember(&self, record: Arc<Record>) {
        let mut part = self.part(record.id);
        if part.order.len() >= REMEMBERED / PARTS
            && let Some(oldest) = part.order.pop_front()
        {
            part.records.remove(&oldest);
        }
        part.order.push_back(record.id);
        part.records.insert(record.id, record);
    }

    /// A decision of `tenant`. Another tenant's is not found.
    #[must_use]
    pub fn find(&self, tenant: &str, id: ReservationId) -> Option<Arc<Record>> {
        self.part(id).records.get(&id).filter(|record| &*record.tenant == tenant).cloned()
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().unwrap_or_else(PoisonError::into_inner).order.len()).sum()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn part(&self, id: ReservationId) -> std::sync::MutexGuard<'_, Part> {
        // Ids of one node count up in their low bits, which spreads them evenly.
        let place = (id.0 % PARTS as u128) as usize;
        self.parts[place].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Decisions {
    fn default() -> Self {
        Self::new()
    }
}
