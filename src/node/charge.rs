//! What budgets are charged for a reservation that has ended.
//!
//! Laws:
//! - what the provider reported is charged, whether it is more or less than what was held;
//! - what was counted while an answer was streamed is the least that it can have been, so it takes nothing off what was held: the provider may
//!   go on after its caller has left, and bill it. The policy may say otherwise (`on_disconnect: counted`);
//! - a request that the provider refused, or failed without a report, is billed by nobody and charged 0: an outage would use up the month
//!   otherwise;
//! - what costs nothing by the price book, since that does not name its model, is charged no dollars.

use tollgate_cluster::id::SessionId;

use super::bill::Known;
use crate::control::budget::{Line, Unit};
use crate::control::price::{self, Tariff};
use crate::ledger::Basis;
use crate::limit::{Account, Paid};

/// From which escrow a reservation was paid, and how much it took there, in each budget's unit.
pub(super) fn lines_of(paid: &Paid) -> impl Iterator<Item = (Line, u64)> + '_ {
    paid.budgets.iter().map(|(account, units)| {
        let Account { budget, period, lane } = account.clone();
        (Line { budget, period, owner: SessionId(paid.by.0), lane }, *units)
    })
}

/// What is charged in `unit` for what was `reserved` in it.
pub(super) fn charge(
    unit: Unit,
    reserved: u64,
    known: &Known,
    tariff: Option<&Tariff>,
    counted_counts: bool,
) -> u64 {
    let used = match unit {
        Unit::Tokens => known.usage.total().max(known.total),
        Unit::MicroDollars => tariff.map_or(0, |tariff| price::cost(&tariff.price, &known.usage)),
    };
    match known.basis {
        Basis::Reported => used,
        Basis::Counted if counted_counts => used,
        Basis::Counted => used.max(reserved),
        Basis::Nothing => 0,
        Basis::Estimate | Basis::Fixed => reserved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Usage;
    use crate::policy::{MicroDollars, Price};

    fn known(basis: Basis, input: u64, output: u64) -> Known {
        let usage = Usage { uncached_input: input, output, ..Usage::default() };
        Known { usage, basis, total: 0 }
    }

    fn tariff() -> Tariff {
        let dollar = MicroDollars::parse("1.00").unwrap();
        let price = Price {
            input: dollar,
            cache_read: dollar,
            cache_write: dollar,
            output: dollar,
            long_context: None,
        };
        Tariff { price, since: "2026-11-01".parse().unwrap() }
    }

    #[test]
    fn a_report_is_charged_as_it_is_and_what_is_only_counted_takes_nothing_off() {
        let tokens = |basis, input, output, counts| {
            charge(Unit::Tokens, 100, &known(basis, input, output), None, counts)
        };
        assert_eq!(tokens(Basis::Reported, 30, 20, false), 50);
        assert_eq!(tokens(Basis::Reported, 130, 20, false), 150);
        assert_eq!(tokens(Basis::Counted, 30, 20, false), 100);
        assert_eq!(tokens(Basis::Counted, 30, 90, false), 120);
        assert_eq!(tokens(Basis::Counted, 30, 20, true), 50);
        assert_eq!(tokens(Basis::Estimate, 30, 20, false), 100);
        assert_eq!(tokens(Basis::Fixed, 0, 0, false), 100);
        assert_eq!(tokens(Basis::Nothing, 0, 0, false), 0);
    }

    #[test]
    fn dollars_are_charged_at_the_price_of_the_admission() {
        let priced = tariff();
        let dollars = |basis, tariff: Option<&Tariff>| {
            charge(Unit::MicroDollars, 400, &known(basis, 30, 20), tariff, false)
        };
        assert_eq!(dollars(Basis::Reported, Some(&priced)), 50);
        assert_eq!(dollars(Basis::Reported, None), 0);
        assert_eq!(dollars(Basis::Counted, Some(&priced)), 400);
        assert_eq!(dollars(Basis::Nothing, Some(&priced)), 0);
    }
}
