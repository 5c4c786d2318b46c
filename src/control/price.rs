//! What usage costs: integer micro-dollars by the price book of the policy.
//!
//! Laws:
//! - one function prices the estimate and the actual, so an estimate that is met exactly is charged exactly;
//! - a cost errs high, by less than one micro-dollar a request: fractions of a micro-dollar are added up over the request and rounded up
//!   once. Rounded down, a thousand calls of the cheapest models would cost nothing, and a budget would bound nothing; rounded per part,
//!   it would err four times;
//! - more tokens never cost less, but at the edge of a tier that is cheaper;
//! - an estimate errs high too: nobody knows what will be read from a cache, so input counts as the dearest kind.
//!
//! A list of prices holds from its day, UTC, on; what a later one does not name costs what it did before. Which list holds for a request is
//! fixed at its admission and goes along with it: its day is the version of the book.

use jiff::civil::Date;

use crate::limit::Amount;
use crate::meter::Usage;
use crate::policy::{MicroDollars, Price, PriceList};

/// A price is stated for so many tokens.
const PRICED_TOKENS: u128 = 1_000_000;

/// What a model costs, and since which day: the version of the price book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tariff {
    /// Its price.
    pub price: Price,
    /// The day of the list that says so.
    pub since: Date,
}

/// What `model` costs on `day`, UTC: by the last list until then that names it. Lists are in the order of their days.
#[must_use]
pub fn in_force(book: &[PriceList], model: &str, day: Date) -> Option<Tariff> {
    let lists = book.iter().rev().filter(|list| list.effective <= day);
    let mut priced =
        lists.filter_map(|list| Some(Tariff { price: *list.models.get(model)?, since: list.effective }));
    priced.next()
}

/// What `usage` costs, in micro-dollars, rounded up.
#[must_use]
pub fn cost(price: &Price, usage: &Usage) -> u64 {
    let [input, cache_read, cache_write, output] = tariff(price, usage.input_total());
    let part = |tokens: u64, price: MicroDollars| u128::from(tokens) * u128::from(price.0);
    let parts = [
        part(usage.uncached_input, input),
        part(usage.cache_read, cache_read),
        part(usage.cache_write, cache_write),
        part(usage.output, output),
    ];
    let sum = parts.into_iter().fold(0, u128::saturating_add);
    u64::try_from(sum.div_ceil(PRICED_TOKENS)).unwrap_or(u64::MAX)
}

/// What a request may cost that is estimated at `need`, in micro-dollars, rounded up.
#[must_use]
pub fn estimate(price: &Price, need: Amount) -> u64 {
    // A total that is more than its parts is tokens of which nothing is said but their number: input, as far as anybody knows.
    let input = need.input.max(need.total.saturating_sub(need.output));
    let mut usage = Usage { output: need.output, ..Usage::default() };
    let [uncached, cache_read, cache_write, _] = tariff(price, input);
    let dearest = uncached.max(cache_read).max(cache_write);
    let kind = if dearest == uncached {
        &mut usage.uncached_input
    } else if dearest == cache_write {
        &mut usage.cache_write
    } else {
        &mut usage.cache_read
    };
    *kind = input;
    cost(price, &usage)
}

/// The prices of input, cache reads, cache writes and output for a request with so many input tokens.
fn tariff(price: &Price, input: u64) -> [MicroDollars; 4] {
    match price.long_context.filter(|long| input > long.above_input_tokens) {
        Some(long) => [long.input, long.cache_read, long.cache_write, long.output],
        None => [price.input, price.cache_read, price.cache_write, price.output],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::LongContext;

    fn dollars(text: &str) -> MicroDollars {
        MicroDollars::parse(text).unwrap()
    }

    /// Per million tokens: input, cache reads, cache writes, output.
    fn price(input: &str, cache_read: &str, cache_write: &str, output: &str) -> Price {
        Price {
            input: dollars(input),
            cache_read: dollars(cache_read),
            cache_write: dollars(cache_write),
            output: dollars(output),
            long_context: None,
        }
    }

    fn usage(uncached_input: u64, cache_read: u64, cache_write: u64, output: u64) -> Usage {
        Usage { uncached_input, cache_read, cache_write, output, reasoning: 0 }
    }

    #[test]
    fn each_kind_of_token_has_its_price() {
        let price = price("3.00", "0.30", "3.75", "15.00");
        assert_eq!(cost(&price, &usage(1_000_000, 0, 0, 0)), 3_000_000);
        assert_eq!(cost(&price, &usage(1_000, 10_000, 2_000, 500)), 3_000 + 3_000 + 7_500 + 7_500);
        assert_eq!(cost(&price, &usage(0, 0, 0, 0)), 0);
    }

    #[test]
    fn a_fraction_of_a_micro_dollar_is_a_whole_one_once_per_request() {
        let price = price("0.02", "0.02", "0.02", "0.02");
        assert_eq!(cost(&price, &usage(1, 0, 0, 0)), 1);
        // Four times 0.02 × 13 = 0.26.
        assert_eq!(cost(&price, &usage(13, 13, 13, 13)), 2);
        assert_eq!(cost(&price, &usage(50, 0, 0, 0)), 1);
        assert_eq!(cost(&price, &usage(51, 0, 0, 0)), 2);
    }

    #[test]
    fn a_long_prompt_costs_more_for_all_of_its_tokens() {
        let long = LongContext {
            above_input_tokens: 200_000,
            input: dollars("6.00"),
            cache_read: dollars("0.60"),
            cache_write: dollars("7.50"),
            output: dollars("22.50"),
        };
        let price = Price { long_context: Some(long), ..price("3.00", "0.30", "3.75", "15.00") };
        assert_eq!(cost(&price, &usage(200_000, 0, 0, 1_000)), 600_000 + 15_000);
        assert_eq!(cost(&price, &usage(200_001, 0, 0, 1_000)), 1_200_006 + 22_500);
        assert_eq!(
            cost(&price, &usage(1, 200_000, 0, 0)),
            6 + 120_000,
            "what the cache holds is part of the prompt"
        );
        assert_eq!(estimate(&price, Amount::new(200_001, 0)), 1_500_008);
    }

    #[test]
    fn the_list_of_a_day_holds_until_the_next() {
        let price = price("1", "1", "1", "1");
        let list = |day: &str, models: &[&str]| PriceList {
            effective: day.parse().unwrap(),
            models: models.iter().map(|model| ((*model).to_owned(), price)).collect(),
        };
        let book = [list("2026-11-01", &["a", "b"]), list("2027-01-15", &["a"])];
        let on = |model: &str, day: &str| {
            in_force(&book, model, day.parse().unwrap()).map(|tariff| tariff.since.to_string())
        };
        assert_eq!(on("a", "2026-10-31"), None);
        assert_eq!(on("a", "2026-11-01").as_deref(), Some("2026-11-01"));
        assert_eq!(on("a", "2027-01-14").as_deref(), Some("2026-11-01"));
        assert_eq!(on("a", "2028-02-29").as_deref(), Some("2027-01-15"));
        assert_eq!(on("b", "2028-02-29").as_deref(), Some("2026-11-01"), "the later list does not name it");
        assert_eq!(on("c", "2028-02-29"), None);
    }

    #[test]
    fn a_cost_beyond_all_bounds_is_the_largest_there_is() {
        let price = price("1000000000", "0", "0", "1000000000");
        assert_eq!(cost(&price, &usage(u64::MAX, 0, 0, u64::MAX)), u64::MAX);
    }

    proptest! {
        /// However the input splits into kinds, and with any part of the output: within the estimate, and each cost is the exact one, rounded up.
        #[test]
        fn an_estimate_that_is_kept_covers_the_cost(
            prices in proptest::array::uniform4(0..100_000_000u64),
            tokens in proptest::array::uniform4(0..300_000u64),
            spare in 0..1_000u64,
        ) {
            let [input, cache_read, cache_write, output] = prices.map(MicroDollars);
            let price = Price { input, cache_read, cache_write, output, long_context: None };
            let usage = usage(tokens[0], tokens[1], tokens[2], tokens[3]);
            let charged = cost(&price, &usage);
            prop_assert!(charged <= estimate(&price, Amount::new(usage.input_total(), usage.output + spare)));
            let exact: u128 = (0..4).map(|kind| u128::from(prices[kind]) * u128::from(tokens[kind])).sum();
            prop_assert!(u128::from(charged) * 1_000_000 >= exact);
            prop_assert!(exact == 0 || (u128::from(charged) - 1) * 1_000_000 < exact);
        }
    }
}
