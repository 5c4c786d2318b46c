//! Sums over rows, by whatever they are asked for. Pure; sums of sums are sums, so that nodes and pages can be added up in any order.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use super::row::Row;

/// What rows are summed up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The tenant.
    Tenant,
    /// The model that served.
    Model,
    /// The tenant and its key's label, as `tenant/label`.
    Key,
    /// The day, in UTC, on which it was decided.
    Day,
}

impl By {
    /// Reads `tenant`, `model`, `key` or `day`.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "tenant" => Some(Self::Tenant),
            "model" => Some(Self::Model),
            "key" => Some(Self::Key),
            "day" => Some(Self::Day),
            _ => None,
        }
    }

    fn group_of(self, row: &Row) -> String {
        match self {
            Self::Tenant => row.tenant.to_string(),
            Self::Model => row.model.to_string(),
            Self::Key => format!("{}/{}", row.tenant, row.key),
            Self::Day => row.at().to_zoned_datetime(TimeZone::UTC).date().to_string(),
        }
    }
}

/// What some rows come to. Sums saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Rows.
    pub requests: u64,
    /// Input tokens neither read from a cache nor written to one.
    pub uncached_tokens: u64,
    /// Input tokens read from a cache.
    pub cached_tokens: u64,
    /// Input tokens written to a cache.
    pub cache_written_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Tokens that limits were charged.
    pub settled: u64,
    /// Millionths of a dollar, of those rows that have a cost.
    pub cost_micro_dollars: u64,
    /// Rows without one: no price was known.
    pub unpriced: u64,
}

impl Sums {
    fn of(row: &Row) -> Self {
        Self {
            requests: 1,
            uncached_tokens: row.uncached,
            cached_tokens: row.cached,
            cache_written_tokens: row.cache_written,
            output_tokens: row.output,
            settled: row.settled,
            cost_micro_dollars: row.cost_micro_dollars.unwrap_or(0),
            unpriced: u64::from(row.cost_micro_dollars.is_none()),
        }
    }

    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        for (ours, theirs) in [
            (&mut self.requests, other.requests),
            (&mut self.uncached_tokens, other.uncached_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.cache_written_tokens, other.cache_written_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.settled, other.settled),
            (&mut self.cost_micro_dollars, other.cost_micro_dollars),
            (&mut self.unpriced, other.unpriced),
        ] {
            *ours = ours.saturating_add(theirs);
        }
    }
}

/// Groups in one answer. Whatever finds no room is summed up under [`OTHERS`].
pub const GROUPS_MOST: usize = 10_000;

/// The group of those that found no room.
pub const OTHERS: &str = "(others)";

/// Sums by group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollup(pub BTreeMap<String, Sums>);

impl Rollup {
    /// Counts a row.
    pub fn count(&mut self, by: By, row: &Row) {
        self.put(by.group_of(row), &Sums::of(row));
    }

    /// Adds another.
    pub fn add(&mut self, other: Self) {
        for (group, sums) in other.0 {
            self.put(group, &sums);
        }
    }

    fn put(&mut self, group: String, sums: &Sums) {
        let room = self.0.len() < GROUPS_MOST || self.0.contains_key(&group);
        let group = if room { group } else { OTHERS.to_owned() };
        self.0.entry(group).or_default().add(sums);
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn rows_are_counted_once_however_they_are_divided() {
        let rows: Vec<Row> =
            (0..20).map(|number| row(number * 10_000_000, if number % 3 == 0 { "a" } else { "b" })).collect();
        for by in [By::Tenant, By::Model, By::Key, By::Day] {
            let mut whole = Rollup::default();
            rows.iter().for_each(|row| whole.count(by, row));
            for cut in 0..rows.len() {
                let (mut first, mut second) = (Rollup::default(), Rollup::default());
                rows[..cut].iter().for_each(|row| first.count(by, row));
                rows[cut..].iter().for_each(|row| second.count(by, row));
                second.add(first);
                assert_eq!(second, whole);
            }
            assert_eq!(whole.0.values().map(|sums| sums.requests).sum::<u64>(), 20);
            assert_eq!(whole.0.values().map(|sums| sums.settled).sum::<u64>(), 400);
        }
        let mut by_key = Rollup::default();
        by_key.count(By::Key, &rows[0]);
        assert_eq!(by_key.0.keys().collect::<Vec<_>>(), ["a/production"]);
        let mut by_day = Rollup::default();
        rows.iter().for_each(|row| by_day.count(By::Day, row));
        assert_eq!(by_day.0.keys().collect::<Vec<_>>(), ["1970-01-01", "1970-01-02", "1970-01-03"]);
    }

    #[test]
    fn a_row_without_a_price_is_told_apart() {
        let mut sums = Rollup::default();
        sums.count(By::Tenant, &Row { cost_micro_dollars: None, ..row(1, "a") });
        sums.count(By::Tenant, &row(2, "a"));
        assert_eq!((sums.0["a"].cost_micro_dollars, sums.0["a"].unpriced), (61, 1));
    }

    #[test]
    fn too_many_groups_are_summed_up_under_one() {
        let mut sums = Rollup::default();
        for number in 0..GROUPS_MOST + 5 {
            sums.count(By::Tenant, &row(1, &format!("t{number}")));
        }
        assert_eq!((sums.0.len(), sums.0[OTHERS].requests), (GROUPS_MOST + 1, 5));
    }
}
