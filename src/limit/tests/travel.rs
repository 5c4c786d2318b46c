//! A limiter that changes hands: exported and imported, or lost and begun cold.

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::{MINUTE, seen};
use super::*;

/// From a nanosecond to about an hour.
fn nanos() -> impl Strategy<Value = u64> {
    (0..=41u32).prop_flat_map(|bits| 0..=(1u64 << bits))
}

impl Story {
    /// To a node whose clock reads `there`, and on from that reading.
    fn travel(&mut self, there: Moment) {
        let left = std::mem::replace(&mut self.limiter, Limiter::first(self.options, self.rules.clone()));
        let exported = left.export(self.now);
        self.limiter = Limiter::import(there, self.options, self.rules.clone(), exported).unwrap();
        self.now = there;
    }

    /// The holder dies and another begins cold.
    fn lose(&mut self) {
        self.limiter = Limiter::cold(self.now, self.options, self.rules.clone());
    }

    fn announced(&self, id: ReservationId, held: u64) -> Announced {
        Announced {
            id,
            tenant: "acme".into(),
            key: "production".into(),
            user: None,
            project: None,
            model: "gpt-5".into(),
            held: Amount::new(held, 0),
            remaining: Span::from_secs(60),
            idempotency: None,
            paid: None,
        }
    }

    fn adopt(&mut self, id: ReservationId, held: u64) -> bool {
        let open = self.announced(id, held);
        self.limiter.adopt(self.now, &open)
    }

    fn settle_reported(&mut self, id: ReservationId, held: u64, used: u64) -> Resolved {
        let open = self.announced(id, held);
        self.limiter.resolve_reported(self.now, &open, Resolution::Settle(Amount::new(used, 0)), &mut Free)
    }

    /// Acme asks for `need` while not all open work is known.
    fn reserve_incomplete(&mut self, need: u64) -> Verdict {
        let (id, acme) = (self.next_id(), Name::from("acme"));
        let request = request(id, &acme, "production", "gpt-5", Amount::new(need, 0));
        self.limiter.reserve(self.now, &request, false).verdict
    }
}

#[test]
fn an_open_reservation_follows_its_tenant() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(1))]);
    let id = story.at(1_000).admit(80);
    story.travel(seconds(5));
    assert_eq!((story.level(), story.view(&Scope::Tenant).inflight), (20, 1));
    assert!(matches!(story.refuse(10), Denial::Inflight { .. }));
    assert_eq!(story.settle(id, 30), Resolved::Now { refunded: 50, overage: 0 });
    assert_eq!((story.level(), story.view(&Scope::Tenant).inflight), (70, 0));
    story.travel(seconds(3));
    assert_eq!(story.settle(id, 30), Resolved::Already);
    assert_eq!(story.level(), 70);
}

#[test]
fn what_remains_of_a_deadline_travels() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let (id, late) = (story.admit(10), story.options.late_settle);
    let half = Span::from_nanos(story.options.reservation_deadline.as_nanos() / 2);
    story.now = story.now.plus(half);
    story.travel(seconds(1));
    story.now = Moment::from_nanos(story.now.plus(half).as_nanos() - 1);
    assert_eq!(story.timeout(), []);
    story.now = story.now.plus(Span::from_nanos(1));
    assert_eq!(story.timeout(), [id]);
    story.travel(seconds(0));
    // Closed before it left, and trued up where it arrived, for as long as that may be.
    story.now = Moment::from_nanos(late.as_nanos() - 1);
    assert_eq!(story.timeout(), []);
    assert_eq!(story.settle(id, 4), Resolved::Late { refunded: 6, overage: 0 });
}

#[test]
fn a_cancel_bars_its_reservation_at_the_next_holder_too() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let id = story.next_id();
    assert_eq!(story.end(id, Resolution::Cancel), Resolved::Unknown);
    story.travel(seconds(9));
    assert_eq!(story.ask(id, "acme", "k", "m", 1).verdict, Verdict::Denied(Denial::Cancelled));
}

#[test]
fn an_importer_that_knows_a_limit_to_have_gone_and_come_back_does_not_refund_it() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let id = story.admit(90);
    let exported = story.limiter.clone().export(story.now);
    story.at(1).edit_acme(&[tenant(&[])]);
    story.at(2).edit_acme(&[tenant(&[tokens(60, 100)])]);
    story.at(12);
    story.limiter = Limiter::import(story.now, story.options, story.rules.clone(), exported).unwrap();
    assert_eq!(story.level(), 10);
    story.settle(id, 0);
    assert_eq!(story.level(), 10);
}

#[test]
fn an_importer_with_other_rates_follows_to_them() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    story.admit(90);
    let exported = story.limiter.clone().export(story.now);
    story.edit_acme(&[tenant(&[tokens(600, 50)])]);
    story.limiter = Limiter::import(story.now, story.options, story.rules.clone(), exported).unwrap();
    assert_eq!(story.level(), -40);
    assert_eq!(story.at(1).level(), -30);
}

#[test]
fn a_tenant_that_the_importer_does_not_have_is_gone_but_its_open_work_ends_in_order() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(3))]);
    let id = story.admit(40);
    let exported = story.limiter.clone().export(story.now);
    story.edit(vec![]);
    story.limiter = Limiter::import(story.now, story.options, story.rules.clone(), exported).unwrap();
    assert_eq!(story.refuse(1), Denial::UnknownTenant);
    assert_eq!(story.settle(id, 30), Resolved::Now { refunded: 10, overage: 0 });
    assert!(story.limiter.books().balance());
}

#[test]
fn what_no_limiter_can_have_been_is_refused() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(3))]);
    story.admit(40);
    story.admit(10);
    let sound = story.limiter.clone().export(story.now);
    let refused = |break_it: &dyn Fn(&mut Exported)| {
        let mut exported = sound.clone();
        break_it(&mut exported);
        Limiter::import(story.now, story.options, story.rules.clone(), exported).err()
    };
    assert_eq!(refused(&|_| {}), None);
    assert_eq!(refused(&|e| e.tenants[0].scopes[0].buckets[0].level = 101), Some(Unsound::Bucket));
    assert_eq!(refused(&|e| e.tenants[0].scopes[0].buckets[0].carry = u64::MAX), Some(Unsound::Bucket));
    assert_eq!(refused(&|e| e.held[1].1.id = e.held[0].1.id), Some(Unsound::Twice));
    assert_eq!(refused(&|e| e.held[1].1.path = [Some(0), Some(0), None, None, None]), Some(Unsound::Twice));
    assert_eq!(refused(&|e| e.held[0].1.path[0] = Some(7)), Some(Unsound::Astray));
    assert_eq!(refused(&|e| e.held[0].1.tenant = "nobody".into()), Some(Unsound::Astray));
    assert_eq!(refused(&|e| e.tenants.push(e.tenants[0].clone())), Some(Unsound::Twice));
    assert_eq!(refused(&|e| e.books.open = 49), Some(Unsound::Books));
    assert_eq!(refused(&|e| e.books.settled = u128::MAX), Some(Unsound::Books));
}

// Cold.

#[test]
fn a_cold_start_begins_with_nothing_for_everybody() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    story.at(1_000).lose();
    assert_eq!(story.level(), 0);
    assert!(matches!(story.refuse(1), Denial::Rate { wait, .. } if wait == Span::from_secs(1)));
    // One that asks for the first time has what accrued since, and no more than its burst.
    story.lose();
    assert_eq!(story.at(1_040).level(), 40);
    assert_eq!(story.at(1_500).level(), 100);
    story.travel(seconds(7));
    assert_eq!(story.level(), 100);
}

#[test]
fn the_age_of_a_cold_start_travels() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    story.at(1_000).lose();
    story.at(1_030).travel(seconds(2));
    assert_eq!(story.level(), 30);
    assert_eq!(story.at(12).level(), 40);
}

#[test]
fn a_limit_that_is_newer_than_the_cold_start_was_never_spent_from() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    story.at(10).lose();
    story.at(20).edit_acme(&[key("production", &[tokens(60, 50)]), tenant(&[tokens(60, 100)])]);
    assert_eq!(story.level_of(&Scope::Key("production".into())), 50);
    assert_eq!(story.level(), 10);
}

#[test]
fn a_rate_that_was_raised_after_a_cold_start_does_not_count_from_before() {
    let mut story = Story::of(&[tenant(&[tokens(60, 1_000)])]);
    story.at(0).lose();
    story.at(60).edit_acme(&[tenant(&[tokens(60_000, 1_000)])]);
    // By the rates of their times 60 units; by the new rate it would stand full.
    assert_eq!(story.level(), 0);
    // An edit long after costs nobody anything.
    story.lose();
    story.at(60 + 2_000).edit_acme(&[tenant(&[tokens(120_000, 2_000)])]);
    assert_eq!(story.level(), 2_000);
}

#[test]
fn while_open_work_is_not_known_nothing_with_a_cap_is_admitted() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(2))]);
    story.lose();
    story.at(100);
    assert_eq!(story.reserve_incomplete(10), Verdict::Denied(Denial::Recovering));
    story.admit(10);
    story.edit_acme(&[tenant(&[tokens(60, 100)])]);
    assert_eq!(story.reserve_incomplete(10), Verdict::Admitted);
}

#[test]
fn reported_work_takes_its_slot_and_gets_nothing_back() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(2))]);
    let (one, two, three) = (story.admit(20), story.admit(20), story.next_id());
    story.lose();
    for _ in 0..3 {
        assert!(story.adopt(one, 20));
    }
    assert!(story.adopt(two, 20) && story.adopt(three, 20));
    assert_eq!((story.level(), story.view(&Scope::Tenant).inflight), (0, 3));
    story.at(30);
    story.settle_reported(one, 20, 5);
    assert_eq!(story.level(), 30);
    story.settle_reported(two, 20, 32);
    assert_eq!(story.level(), 18);
    assert_eq!(story.settle_reported(two, 20, 32), Resolved::Already);
    assert_eq!((story.level(), story.view(&Scope::Tenant).inflight), (18, 1));
    // A report that was overtaken by the end of what it reports.
    story.at(50).timeout();
    assert!(!story.adopt(two, 20));
    assert_eq!(story.view(&Scope::Tenant).inflight, 1);
    assert!(story.limiter.books().balance());
}

#[test]
fn a_settle_that_comes_before_any_report_is_debt_once() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(2))]);
    let id = story.admit(20);
    story.lose();
    assert_eq!(story.settle_reported(id, 20, 50), Resolved::Now { refunded: 0, overage: 30 });
    assert_eq!(story.settle_reported(id, 20, 50), Resolved::Already);
    assert!(!story.adopt(id, 20));
    assert_eq!((story.level(), story.view(&Scope::Tenant).inflight), (-30, 0));
}

#[test]
fn who_began_cold_takes_no_report_of_what_it_has_known_and_forgotten() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(6_000, 100)], Some(2))]);
    story.lose();
    // Soon after, and long after: by then nobody can take it for one of before.
    for (begin, again) in [(1, Resolved::Already), (331, Resolved::Unknown)] {
        let id = story.at(begin).admit(20);
        let reported = |story: &mut Story, after: u64| {
            let remaining = Span::from_secs(65 * 60 - after);
            let open = Announced { remaining, ..story.announced(id, 20) };
            story.limiter.resolve_reported(
                story.now,
                &open,
                Resolution::Settle(Amount::new(50, 0)),
                &mut Free,
            )
        };
        assert_eq!(reported(&mut story, 0), Resolved::Now { refunded: 0, overage: 30 });
        story.at(begin + 20).timeout();
        assert_eq!(reported(&mut story, 20), again);
        assert_eq!(story.view(&Scope::Tenant).inflight, 0);
    }
}

#[test]
fn who_lost_nothing_takes_no_reports() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(2))]);
    assert!(!story.adopt(ReservationId(9), 20));
    assert_eq!(story.settle_reported(ReservationId(9), 20, 50), Resolved::Unknown);
    assert_eq!((story.level(), story.view(&Scope::Tenant).inflight), (100, 0));
    story.travel(seconds(4));
    assert!(!story.adopt(ReservationId(9), 20));
}

#[test]
fn what_was_adopted_ends_by_itself() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(1))]);
    let id = story.admit(20);
    story.lose();
    story.adopt(id, 20);
    assert_eq!(story.at(60).timeout(), [id]);
    assert_eq!((story.level(), story.view(&Scope::Tenant).inflight), (60, 0));
    while let Some(next) = story.limiter.poll_timeout() {
        story.now = next;
        story.timeout();
    }
    assert_eq!((story.limiter.reservations_held(), story.limiter.tenants_held()), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Ask(u64),
    /// Of those open, this one ends with this use.
    End(prop::sample::Index, Option<u64>),
    Travel(u64),
    /// The holder dies; of what is open the first so many are reported.
    Lose(usize),
    Report(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let step = prop_oneof![
        8 => (0..=70u64).prop_map(Step::Ask),
        4 => (any::<prop::sample::Index>(), prop::option::weighted(0.8, 0..=80u64)).prop_map(|(which, used)| Step::End(which, used)),
        2 => nanos().prop_map(Step::Travel),
        1 => (0..6usize).prop_map(Step::Lose),
        1 => any::<prop::sample::Index>().prop_map(Step::Report),
    ];
    vec((nanos(), step), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// `no_overspend` over every interval of true time, through any number of holders, each with a clock of its own; and nothing is
    /// refunded that was not debited where it ends.
    #[test]
    fn no_overspend_through_any_holders(per_minute in 1..=100_000u64, burst in 1..=60u64, steps in steps()) {
        let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(per_minute, burst)], Some(1_000))]);
        let mut truth = 0;
        let mut open: Vec<(ReservationId, u64)> = Vec::new();
        // (true instant, admitted, refunded)
        let mut events: Vec<(u64, i128, i128)> = Vec::new();
        for (wait, step) in steps {
            truth += wait;
            story.now = story.now.plus(Span::from_nanos(wait));
            let before = story.level();
            match step {
                Step::Ask(need) => {
                    let (id, verdict) = story.reserve(need);
                    if verdict == Verdict::Admitted {
                        open.push((id, need));
                        events.push((truth, i128::from(need), 0));
                    }
                }
                Step::End(which, used) if !open.is_empty() => {
                    let (id, held) = open.remove(which.index(open.len()));
                    let how = used.map_or(Resolution::Cancel, |used| Resolution::Settle(Amount::new(used, 0)));
                    let facts = story.announced(id, held);
                    story.limiter.resolve_reported(story.now, &facts, how, &mut Free);
                    let after = story.level();
                    prop_assert!(after - before <= held as i64 - used.unwrap_or(0) as i64 || after <= before);
                    events.push((truth, 0, i128::from((after - before).max(0))));
                    story.limiter.resolve_reported(story.now, &facts, how, &mut Free);
                    prop_assert_eq!(story.level(), after);
                }
                Step::Travel(there) => {
                    story.travel(Moment::from_nanos(there));
                    prop_assert_eq!(story.level(), before);
                }
                Step::Lose(reported) => {
                    story.lose();
                    prop_assert_eq!(story.level(), 0);
                    for (id, held) in open.iter().take(reported) {
                        story.adopt(*id, *held);
                    }
                    prop_assert_eq!(story.view(&Scope::Tenant).inflight as usize, open.len().min(reported));
                    prop_assert_eq!(story.level(), 0);
                }
                Step::Report(which) if !open.is_empty() => {
                    let (id, held) = open[which.index(open.len())];
                    story.adopt(id, held);
                    prop_assert_eq!(story.level(), before);
                }
                Step::End(..) | Step::Report(_) => {}
            }
            prop_assert!(story.limiter.books().balance());
        }
        for (first, from) in events.iter().enumerate() {
            let (mut admitted, mut refunded) = (0, 0);
            for to in &events[first..] {
                admitted += to.1;
                refunded += to.2;
                let accrued = i128::from(to.0 - from.0) * i128::from(per_minute);
                prop_assert!((admitted - refunded - i128::from(burst)) * MINUTE <= accrued, "{from:?} to {to:?}");
            }
        }
    }

    /// The time on the way credits nothing, and after it everything goes on as if there had been none.
    #[test]
    fn import_credits_nothing_for_the_way(spend in vec((nanos(), 0..=60u64), 1..20), there in nanos(), then in vec((nanos(), 0..=60u64), 0..20)) {
        let mut stayed = Story::of(&[key("production", &[tokens(7, 50)]), limits(Scope::Tenant, &[tokens(60, 60), requests(90, 9)], None)]);
        for (wait, need) in spend {
            stayed.now = stayed.now.plus(Span::from_nanos(wait));
            stayed.reserve(need);
        }
        let (limiter, rules, ids) = (stayed.limiter.clone(), stayed.rules.clone(), stayed.ids);
        let mut moved = Story { limiter, rules, now: stayed.now, ids, options: stayed.options };
        moved.travel(Moment::from_nanos(there));
        for (wait, need) in [(0, 0)].into_iter().chain(then) {
            for story in [&mut stayed, &mut moved] {
                story.now = story.now.plus(Span::from_nanos(wait));
            }
            let looks = [&mut stayed, &mut moved].map(|story| story.limiter.tenant(story.now, &"acme".into()).map(seen));
            prop_assert_eq!(&looks[0], &looks[1]);
            prop_assert_eq!(stayed.reserve(need), moved.reserve(need));
        }
    }

    /// After a cold start at most `rate·t` is admitted, whoever asks first and however often.
    #[test]
    fn a_cold_start_admits_what_accrues_since(per_minute in 1..=100_000u64, burst in 1..=60u64, asks in vec((nanos(), 0..=60u64), 1..40)) {
        let mut story = Story::of(&[tenant(&[tokens(per_minute, burst)])]);
        story.at(77).lose();
        let (mut elapsed, mut admitted) = (0, 0);
        for (wait, need) in asks {
            elapsed += i128::from(wait);
            story.now = story.now.plus(Span::from_nanos(wait));
            if story.reserve(need).1 == Verdict::Admitted {
                admitted += i128::from(need);
            }
            prop_assert!(admitted * MINUTE <= elapsed * i128::from(per_minute));
        }
    }
}
