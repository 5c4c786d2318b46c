//! Which calendar period an instant belongs to, and when the cluster may leave one: pure functions of what they are given.
//!
//! Laws:
//! - the periods of a calendar cover time without gap or overlap: one ends where the next begins;
//! - a period is a real hour, day, week from Monday or month of its zone: a day that daylight saving shortens has 23 hours, February of
//!   a leap year 29 days;
//! - only a majority of the members' wall clocks moves a calendar on ([`passed_by_majority`]), so one bad clock resets nobody.
//!
//! A period is named by the instant at which it begins: names grow with time, whatever the zone is edited to.
//!
//! Zones are looked up in the database of the node that computes, and databases differ between nodes: applying an entry must not ask one.
//! So whoever proposes a rollover computes the period, and the command carries it.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde::{Deserialize, Serialize};

use tollgate_cluster::mutant;

use crate::limit::Name;
pub use crate::limit::{Cycle, PeriodId};

/// Whose months they are: a cycle in a time zone. All budgets of one calendar roll over in one entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Calendar {
    /// How long its periods are.
    pub cycle: Cycle,
    /// The IANA name of its zone.
    pub zone: Name,
}

/// One period of a calendar: from its beginning, included, to its end, excluded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Period {
    /// When it begins: its name.
    pub id: PeriodId,
    /// When it ends, in seconds since 1970-01-01T00:00:00Z. An edit of the zone may make the next one begin elsewhere.
    pub end: i64,
}

/// A zone that this node's database does not have, or an instant beyond year 9999.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no period of {zone} can be found at {instant}: the time zone is unknown here, or the year is out of range"
)]
pub struct NoPeriod {
    /// The zone that was asked for.
    pub zone: Name,
    /// In seconds since 1970-01-01T00:00:00Z.
    pub instant: i64,
}

impl Calendar {
    /// The period of this calendar that `instant` lies in.
    ///
    /// # Errors
    /// The zone is unknown to this node, or the instant is at the end of what a calendar can name.
    pub fn period(&self, instant: Timestamp) -> Result<Period, NoPeriod> {
        let refused = || NoPeriod { zone: self.zone.clone(), instant: instant.as_second() };
        let zone = TimeZone::get(&self.zone).map_err(|_| refused())?;
        let (start, end) = bounds(self.cycle, instant, &zone).map_err(|_| refused())?;
        Ok(Period { id: PeriodId(start.as_second()), end: end.as_second() })
    }
}

fn bounds(cycle: Cycle, instant: Timestamp, zone: &TimeZone) -> Result<(Timestamp, Timestamp), jiff::Error> {
    let today = zone.to_datetime(instant).date();
    let first = match cycle {
        Cycle::Hour => return hour(instant, zone),
        Cycle::Day => today,
        Cycle::Week => today.checked_sub(i64::from(today.weekday().to_monday_zero_offset()).days())?,
        Cycle::Month => today.first_of_month(),
    };
    let next = match cycle {
        Cycle::Hour | Cycle::Day => first.checked_add(1.day())?,
        Cycle::Week => first.checked_add(1.week())?,
        Cycle::Month => first.checked_add(1.month())?,
    };
    Ok((beginning(first, zone)?, beginning(next, zone)?))
}

/// The first instant of a day: midnight, the earlier of two, or when clocks resume that skip it.
fn beginning(day: jiff::civil::Date, zone: &TimeZone) -> Result<Timestamp, jiff::Error> {
    Ok(day.to_zoned_datetime(zone.clone())?.start_of_day()?.timestamp())
}

/// The hour of the zone's clock, which may be half an hour off from that of UTC, cut where its offset changes.
fn hour(instant: Timestamp, zone: &TimeZone) -> Result<(Timestamp, Timestamp), jiff::Error> {
    let offset = |instant| i64::from(zone.to_offset(instant).seconds());
    let (now, ahead) = (instant.as_second(), offset(instant));
    let begun = now - (now + ahead).rem_euclid(3_600);
    let (mut start, mut end) = (Timestamp::from_second(begun)?, Timestamp::from_second(begun + 3_600)?);
    let past = |change: &Timestamp| *change <= instant;
    let changes = zone.preceding(end).map(|change| change.timestamp()).take_while(|change| *change > start);
    let changes: Vec<Timestamp> = changes.filter(|at| offset(*at) != offset(before(*at))).collect();
    // From the latest to the earliest.
    if let Some(last) = changes.iter().find(|change| past(change)) {
        start = *last;
    }
    if let Some(next) = changes.iter().rfind(|change| !past(change)) {
        end = *next;
    }
    Ok((start, end))
}

fn before(instant: Timestamp) -> Timestamp {
    instant.saturating_sub(jiff::SignedDuration::from_secs(1)).unwrap_or(instant)
}

/// The latest instant that more than half of `members` clocks have reached; `readings` are those that are known, and a clock that is not
/// known has reached nothing. None while too few are known.
#[must_use]
pub fn passed_by_majority(readings: &[Timestamp], members: usize) -> Option<Timestamp> {
    let mut latest_first = readings.to_vec();
    latest_first.sort_unstable_by(|a, b| b.cmp(a));
    let majority = if mutant::is("rollover_one_clock") { 1 } else { members / 2 + 1 };
    latest_first.get(majority - 1).copied()
}

/// The calendars that are to move on at `passed`, an instant that a majority has passed, with the periods they move to.
///
/// A zone that this node does not know moves on when another leads.
pub fn due(
    calendars: &BTreeMap<Calendar, Option<Period>>,
    passed: Timestamp,
) -> impl Iterator<Item = (Calendar, Period)> + '_ {
    calendars.iter().filter_map(move |(calendar, current)| {
        let period = calendar.period(passed).ok()?;
        let onwards = current.is_none_or(|current| current.id < period.id);
        onwards.then(|| (calendar.clone(), period))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    fn calendar(cycle: Cycle, zone: &str) -> Calendar {
        Calendar { cycle, zone: zone.into() }
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Its first instant, and how many hours it has, if they are whole.
    fn hours(cycle: Cycle, zone: &str, instant: &str) -> (String, i64) {
        let period = calendar(cycle, zone).period(at(instant)).unwrap();
        let seconds = period.end - period.id.0;
        assert_eq!(seconds % 3_600, 0, "{seconds} s");
        (Timestamp::from_second(period.id.0).unwrap().to_string(), seconds / 3_600)
    }

    fn of(start: &str, hours: i64) -> (String, i64) {
        (start.to_owned(), hours)
    }

    #[test]
    fn february_of_a_leap_year_has_29_days_wherever_it_begins() {
        let cases = [
            ("UTC", "2028-02-01T00:00:00Z"),
            ("Asia/Tokyo", "2028-01-31T15:00:00Z"),
            ("America/New_York", "2028-02-01T05:00:00Z"),
            ("Asia/Kathmandu", "2028-01-31T18:15:00Z"),
        ];
        for (zone, start) in cases {
            assert_eq!(hours(Cycle::Month, zone, "2028-02-29T12:00:00Z"), of(start, 29 * 24), "{zone}");
        }
        assert_eq!(hours(Cycle::Month, "UTC", "2027-02-28T23:59:59Z").1, 28 * 24);
        assert_eq!(hours(Cycle::Month, "UTC", "2100-02-28T12:00:00Z").1, 28 * 24, "not every fourth year");
        assert_eq!(hours(Cycle::Month, "UTC", "2028-03-01T00:00:00Z").0, "2028-03-01T00:00:00Z");
    }

    #[test]
    fn daylight_saving_makes_periods_longer_and_shorter() {
        let spring = |cycle, zone, instant| hours(cycle, zone, instant).1;
        assert_eq!(spring(Cycle::Month, "Europe/Berlin", "2027-03-15T12:00:00Z"), 31 * 24 - 1);
        assert_eq!(spring(Cycle::Month, "Europe/Berlin", "2027-10-15T12:00:00Z"), 31 * 24 + 1);
        assert_eq!(spring(Cycle::Month, "America/New_York", "2027-11-15T12:00:00Z"), 30 * 24 + 1);
        assert_eq!(spring(Cycle::Day, "Europe/Berlin", "2027-03-28T12:00:00Z"), 23);
        assert_eq!(spring(Cycle::Day, "Europe/Berlin", "2027-10-31T12:00:00Z"), 25);
        assert_eq!(spring(Cycle::Week, "Europe/Berlin", "2027-03-24T12:00:00Z"), 7 * 24 - 1);
        // Clocks that skip midnight: the day begins at one.
        let start = of("2018-11-04T03:00:00Z", 23);
        assert_eq!(hours(Cycle::Day, "America/Sao_Paulo", "2018-11-04T12:00:00Z"), start);
        // A zone that skipped a whole day.
        assert_eq!(hours(Cycle::Month, "Pacific/Apia", "2011-12-15T12:00:00Z").1, 30 * 24);
    }

    #[test]
    fn an_hour_that_comes_twice_is_two_periods() {
        assert_eq!(
            hours(Cycle::Hour, "Europe/Berlin", "2027-10-31T00:30:00Z"),
            of("2027-10-31T00:00:00Z", 1)
        );
        assert_eq!(
            hours(Cycle::Hour, "Europe/Berlin", "2027-10-31T01:30:00Z"),
            of("2027-10-31T01:00:00Z", 1)
        );
        assert_eq!(
            hours(Cycle::Hour, "Asia/Kathmandu", "2027-06-01T00:20:00Z"),
            of("2027-06-01T00:15:00Z", 1)
        );
        // Half an hour of daylight saving: 01:30 to 02:00 comes twice, and the second time is a period of its own.
        let period = calendar(Cycle::Hour, "Australia/Lord_Howe").period(at("2027-04-03T15:10:00Z")).unwrap();
        assert_eq!(period.end - period.id.0, 1_800);
    }

    #[test]
    fn a_week_begins_on_monday() {
        assert_eq!(hours(Cycle::Week, "UTC", "2026-11-30T00:00:00Z"), of("2026-11-30T00:00:00Z", 168));
        assert_eq!(hours(Cycle::Week, "UTC", "2026-11-29T23:59:59Z"), of("2026-11-23T00:00:00Z", 168));
    }

    #[test]
    fn a_zone_that_is_not_known_is_an_error() {
        assert!(calendar(Cycle::Day, "Mars/Olympus").period(at("2027-01-01T00:00:00Z")).is_err());
    }

    #[test]
    fn one_clock_a_month_ahead_moves_nobody() {
        let (now, ahead) = (at("2026-11-30T12:00:00Z"), at("2026-12-30T12:00:00Z"));
        assert_eq!(passed_by_majority(&[ahead, now, now], 3), Some(now));
        assert_eq!(passed_by_majority(&[ahead, now], 3), Some(now));
        assert_eq!(passed_by_majority(&[ahead], 3), None);
        assert_eq!(passed_by_majority(&[ahead, ahead, now], 3), Some(ahead));
        assert_eq!(passed_by_majority(&[now, ahead, now, ahead], 4), Some(now), "half is not more than half");
        assert_eq!(passed_by_majority(&[now], 1), Some(now));
        assert_eq!(passed_by_majority(&[], 0), None);

        let months = calendar(Cycle::Month, "UTC");
        let november = months.period(now).unwrap();
        let calendars = BTreeMap::from([(months.clone(), Some(november))]);
        assert_eq!(due(&calendars, now).count(), 0);
        let moves: Vec<_> = due(&calendars, ahead).collect();
        assert_eq!(moves, [(months.clone(), months.period(ahead).unwrap())]);
        assert_eq!(moves[0].1.id.0, november.end);
        assert_eq!(due(&BTreeMap::from([(months, None)]), now).count(), 1, "it begins at once");
    }

    /// What a zone's own clock says of an instant: the same all through a period, and another behind it.
    fn label(cycle: Cycle, zone: &TimeZone, instant: Timestamp) -> String {
        let (local, offset) = (zone.to_datetime(instant), zone.to_offset(instant));
        match cycle {
            Cycle::Hour => format!("{} {} {offset}", local.date(), local.hour()),
            Cycle::Day => local.date().to_string(),
            Cycle::Week => {
                format!("{:?}", (local.date().iso_week_date().year(), local.date().iso_week_date().week()))
            }
            Cycle::Month => format!("{} {}", local.year(), local.month()),
        }
    }

    const ZONES: [&str; 12] = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "America/Sao_Paulo",
        "Asia/Kathmandu",
        "Asia/Beirut",
        "Africa/Cairo",
        "Africa/Casablanca",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "America/St_Johns",
        "Antarctica/Troll",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn periods_cover_time_without_gap_or_overlap(
            cycle in select(&[Cycle::Hour, Cycle::Day, Cycle::Week, Cycle::Month]),
            name in select(&ZONES),
            second in 1_262_304_000..2_524_608_000i64,
            near_change: bool,
        ) {
            let zone = TimeZone::get(name).unwrap();
            let mut instant = Timestamp::from_second(second).unwrap();
            // Half of the instants are within a day of a change of the clocks.
            if near_change && let Some(change) = zone.following(instant).next() {
                instant = Timestamp::from_second(change.timestamp().as_second() + second % 172_800 - 86_400).unwrap();
            }
            let calendar = calendar(cycle, name);
            let period = calendar.period(instant).unwrap();
            let (start, end) = (Timestamp::from_second(period.id.0).unwrap(), Timestamp::from_second(period.end).unwrap());
            prop_assert!(start <= instant && instant < end);
            prop_assert_eq!(calendar.period(end).unwrap().id.0, period.end);
            prop_assert_eq!(calendar.period(start).unwrap(), period);
            prop_assert_eq!(calendar.period(before(end)).unwrap(), period);
            let label = |instant| label(cycle, &zone, instant);
            prop_assert_eq!(label(start), label(instant));
            prop_assert_eq!(label(before(end)), label(instant));
            prop_assert_ne!(label(end), label(instant));
            prop_assert_ne!(label(before(start)), label(instant));
        }
    }
}
