//! One request that has ended, as the ledger has it.
//!
//! Each token stands in one of four columns; `basis` says who counted them. `settled` is what the tenant's limits were charged, `cost`
//! what the provider will ask for: the two differ where a request failed and the provider bills nothing.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::limit::{Name, ReservationId, UserDigest};
use crate::meter::Usage;

/// A word that is known when this program is built, or that an earlier or later version knew.
pub type Word = Cow<'static, str>;

/// One request that was admitted and has ended. Holds no prompt, no secret and no user's name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The request's id: the `x-tollgate-decision` of its answer.
    pub id: ReservationId,
    /// When it was decided, in milliseconds since 1970 by the node's wall clock. It counts in that day.
    pub at_ms: i64,
    /// From the decision to its end.
    pub milliseconds: u64,
    /// Who pays.
    pub tenant: Name,
    /// The key's project.
    pub project: Option<Name>,
    /// The key's label.
    pub key: Name,
    /// The end user, where the tenant's policy limits users.
    pub user: Option<UserDigest>,
    /// The route's path.
    pub route: Word,
    /// The model as the caller named it; empty if it named none.
    pub model_asked: Box<str>,
    /// The model that served it, by its name in the policy; of a route that is passed through and names none, the path.
    pub model: Name,
    /// The provider.
    pub provider: Name,
    /// The pool that the model draws from; empty on a route that is passed through.
    pub pool: Name,
    /// Input tokens that were neither read from a cache nor written to one.
    pub uncached: u64,
    /// Input tokens that the provider read from its cache.
    pub cached: u64,
    /// Input tokens that the provider wrote to its cache.
    pub cache_written: u64,
    /// Output tokens.
    pub output: u64,
    /// Who counted those four.
    pub basis: Basis,
    /// Tokens that were held.
    pub estimate: u64,
    /// Tokens that its limits were charged in the end.
    pub settled: u64,
    /// What it costs by the price book, in millionths of a dollar; none where that has no price for it.
    pub cost_micro_dollars: Option<u64>,
    /// The version of the price book, if it has a price.
    pub price_book: Option<Box<str>>,
    /// The version of the policy that it was decided under.
    pub policy_version: u64,
    /// admitted, shadowed, unenforced.
    pub decision: Word,
    /// settled, closed, abandoned, cancelled.
    pub outcome: Word,
    /// Why it ended so: `usage`, `no_usage`, `client_gone`, `provider_failed`, …
    pub reason: Word,
    /// Requests sent to the provider.
    pub attempts: u32,
    /// The provider's last status; 0 when it gave none.
    pub status: u16,
}

/// Who counted a row's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The provider, of a complete answer.
    Reported,
    /// The provider as far as it came, and the gateway beyond: the caller left.
    Counted,
    /// Nobody; they are the estimate that was held.
    Estimate,
    /// The policy: a route with a price in tokens, which stands in `settled` alone.
    Fixed,
    /// Nobody, and nothing is billed: it failed, or was never sent.
    Nothing,
}

impl Basis {
    /// For a column.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::Counted => "counted",
            Self::Estimate => "estimate",
            Self::Fixed => "fixed",
            Self::Nothing => "nothing",
        }
    }
}

/// The columns of a table of rows, in order.
pub const COLUMNS: [&str; 27] = [
    "id",
    "at",
    "milliseconds",
    "tenant",
    "project",
    "key",
    "user",
    "route",
    "model_asked",
    "model",
    "provider",
    "pool",
    "uncached_tokens",
    "cached_tokens",
    "cache_written_tokens",
    "output_tokens",
    "basis",
    "estimate",
    "settled",
    "cost_micro_dollars",
    "price_book",
    "policy_version",
    "decision",
    "outcome",
    "reason",
    "attempts",
    "status",
];

impl Row {
    /// Its tokens, as a meter has them.
    #[must_use]
    pub const fn usage(&self) -> Usage {
        Usage {
            uncached_input: self.uncached,
            cache_read: self.cached,
            cache_write: self.cache_written,
            output: self.output,
            reasoning: 0,
        }
    }

    /// When it was decided.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        Timestamp::from_millisecond(self.at_ms).unwrap_or(Timestamp::UNIX_EPOCH)
    }

    /// The row as an object: [`COLUMNS`] are its members.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id.to_string(),
            "at": self.at().to_string(),
            "milliseconds": self.milliseconds,
            "tenant": &*self.tenant,
            "project": self.project.as_deref(),
            "key": &*self.key,
            "user": self.user.map(|user| format!("{:032x}", user.0)),
            "route": self.route,
            "model_asked": self.model_asked,
            "model": &*self.model,
            "provider": &*self.provider,
            "pool": &*self.pool,
            "uncached_tokens": self.uncached,
            "cached_tokens": self.cached,
            "cache_written_tokens": self.cache_written,
            "output_tokens": self.output,
            "basis": self.basis.name(),
            "estimate": self.estimate,
            "settled": self.settled,
            "cost_micro_dollars": self.cost_micro_dollars,
            "price_book": self.price_book,
            "policy_version": self.policy_version,
            "decision": self.decision,
            "outcome": self.outcome,
            "reason": self.reason,
            "attempts": self.attempts,
            "status": self.status,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The `number`-th row of a story, decided that many milliseconds after 1970.
    pub(in crate::ledger) fn row(number: i64, tenant: &str) -> Row {
        Row {
            id: ReservationId::new(7, number.unsigned_abs()),
            at_ms: number,
            milliseconds: 12,
            tenant: tenant.into(),
            project: Some("search".into()),
            key: "production".into(),
            user: Some(UserDigest(9)),
            route: "/v1/chat/completions".into(),
            model_asked: "gpt-5-latest".into(),
            model: "gpt-5".into(),
            provider: "openai".into(),
            pool: "openai-main".into(),
            uncached: 10,
            cached: 3,
            cache_written: 2,
            output: 5,
            basis: Basis::Reported,
            estimate: 100,
            settled: 20,
            cost_micro_dollars: Some(61),
            price_book: Some("2026-11-01".into()),
            policy_version: 4,
            decision: "admitted".into(),
            outcome: "settled".into(),
            reason: "usage".into(),
            attempts: 1,
            status: 200,
        }
    }

    #[test]
    fn the_columns_are_the_members() {
        let object = row(1, "northwind").to_json();
        let mut members: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
        let mut columns = COLUMNS;
        members.sort_unstable();
        columns.sort_unstable();
        assert_eq!(members, columns);
    }
}
