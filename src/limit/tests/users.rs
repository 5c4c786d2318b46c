//! End users: a layer below the tenant that has as many members as callers care to name.

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::MINUTE;
use super::*;

/// Each user's limits.
fn each_user(rates: &[RateLimit], max_inflight: Option<u32>) -> ScopeLimits {
    limits(Scope::User, rates, max_inflight)
}

fn with_room_for(users: usize) -> Options {
    Options { max_users_per_tenant: users, ..Options::default() }
}

impl Story {
    fn with_users(users: usize, scopes: &[ScopeLimits]) -> Self {
        Self::bounded(with_room_for(users), vec![("acme".into(), rules_of(scopes))])
    }

    fn ask_as(&mut self, user: u128, need: u64) -> (ReservationId, Decision) {
        let (id, acme) = (self.next_id(), Name::from("acme"));
        let request =
            Request { user: Some(UserDigest(user)), ..request(id, &acme, "k", "m", Amount::new(need, 0)) };
        (id, self.limiter.reserve(self.now, &request, true))
    }

    fn admit_as(&mut self, user: u128, need: u64) -> ReservationId {
        let (id, decision) = self.ask_as(user, need);
        assert_eq!(decision.verdict, Verdict::Admitted, "user {user}");
        id
    }

    /// By which scope a user is refused.
    fn refuse_as(&mut self, user: u128, need: u64) -> Scope {
        match self.ask_as(user, need).1.verdict {
            Verdict::Denied(
                Denial::Rate { scope, .. } | Denial::Never { scope, .. } | Denial::Inflight { scope, .. },
            ) => scope,
            verdict => panic!("user {user}: {verdict:?}"),
        }
    }

    fn move_away(&mut self) {
        let left = std::mem::replace(&mut self.limiter, Limiter::first(self.options, self.rules.clone()));
        let exported = left.export(self.now);
        self.limiter = Limiter::import(self.now, self.options, self.rules.clone(), exported).unwrap();
    }
}

#[test]
fn each_user_has_its_own_and_the_tenant_has_them_all() {
    let mut story = Story::of(&[each_user(&[tokens(60, 40)], Some(2)), tenant(&[tokens(60, 100)])]);
    story.admit_as(1, 40);
    assert_eq!(story.refuse_as(1, 1), Scope::User);
    story.admit_as(2, 40);
    assert_eq!((story.level(), story.refuse_as(3, 30)), (20, Scope::Tenant));
    assert_eq!(story.refuse_as(3, 41), Scope::User, "never");
    // Who names nobody has the tenant's limits alone.
    story.admit(20);
    // Those who were refused have left nothing.
    assert_eq!(story.limiter.users_held(), 2);
}

#[test]
fn a_user_s_requests_in_flight_are_its_own() {
    let mut story = Story::of(&[each_user(&[], Some(1))]);
    let id = story.admit_as(1, 5);
    assert_eq!(story.refuse_as(1, 5), Scope::User);
    story.admit_as(2, 5);
    story.settle(id, 5);
    story.admit_as(1, 5);
}

#[test]
fn users_travel_with_their_tenant_and_begin_cold_with_it() {
    let mut story = Story::of(&[each_user(&[tokens(60, 40)], Some(3)), tenant(&[tokens(6_000, 1_000)])]);
    let id = story.admit_as(1, 30);
    story.move_away();
    assert_eq!((story.limiter.users_held(), story.refuse_as(1, 11)), (1, Scope::User));
    assert_eq!(story.settle(id, 5), Resolved::Now { refunded: 25, overage: 0 });
    story.admit_as(1, 35);
    assert_eq!(story.refuse_as(1, 1), Scope::User);
    // Whoever comes after a loss has what accrued since and no more; so has one who was open before.
    let open = story.admit_as(2, 30);
    story.limiter = Limiter::cold(story.now, story.options, story.rules.clone());
    story.at(10);
    let announced = Announced {
        id: open,
        tenant: "acme".into(),
        key: "k".into(),
        user: Some(UserDigest(2)),
        project: None,
        model: "m".into(),
        held: Amount::new(30, 0),
        remaining: Span::from_secs(60),
        idempotency: None,
        paid: None,
    };
    assert!(story.limiter.adopt(story.now, &announced));
    assert_eq!((story.refuse_as(2, 11), story.refuse_as(3, 11)), (Scope::User, Scope::User));
    story.admit_as(2, 10);
    story.admit_as(2, 0);
    assert_eq!(story.refuse_as(2, 0), Scope::User, "three in flight, of which one was reported");
    story.limiter.resolve_reported(story.now, &announced, Resolution::Settle(Amount::new(33, 0)), &mut Free);
    assert_eq!(story.at(12).refuse_as(2, 1), Scope::User, "debt");
    story.at(14).admit_as(2, 1);
}

#[test]
fn an_edit_keeps_what_each_user_has_used() {
    let limited = |rate| [each_user(&[rate], None), tenant(&[tokens(60, 1_000)])];
    let mut story = Story::of(&limited(tokens(60, 40)));
    let id = story.admit_as(1, 30);
    story.edit_acme(&limited(tokens(60, 50)));
    assert_eq!(story.refuse_as(1, 21), Scope::User);
    story.admit_as(2, 50);
    // Without a limit users are nobody; with one again, they begin empty.
    story.edit_acme(&[tenant(&[tokens(60, 1_000)])]);
    story.admit_as(1, 500);
    story.edit_acme(&limited(tokens(60, 50)));
    assert_eq!((story.refuse_as(1, 1), story.refuse_as(3, 1)), (Scope::User, Scope::User));
    assert_eq!(story.settle(id, 0), Resolved::Now { refunded: 30, overage: 0 });
    assert_eq!(story.refuse_as(1, 1), Scope::User, "no refund into a bucket that it did not debit");
    story.at(1).admit_as(1, 1);
}

#[test]
fn users_are_forgotten_when_the_rules_have_none_any_more() {
    let mut story = Story::of(&[each_user(&[tokens(60, 40)], None), tenant(&[tokens(60, 1_000)])]);
    for user in 0..20 {
        story.admit_as(user, 1);
    }
    while story.limiter.open() > 0 {
        story.pass_deadline();
    }
    story.now = story.now.plus(story.options.late_settle);
    story.timeout();
    story.edit_acme(&[tenant(&[tokens(60, 1_000)])]);
    for _ in 0..3 {
        story.admit(1);
    }
    assert_eq!(story.limiter.users_held(), 0);
}

#[test]
fn a_late_settle_finds_the_user_that_it_debited() {
    let mut story = Story::with_users(2, &[each_user(&[tokens(60_000, 40)], None)]);
    let late = story.admit_as(1, 30);
    story.pass_deadline();
    for user in 10..30 {
        let id = story.admit_as(user, 30);
        story.settle(id, 30);
        story.now = story.now.plus(Span::from_secs(1));
    }
    assert_eq!(story.settle(late, 60), Resolved::Late { refunded: 0, overage: 30 });
    assert_eq!(story.refuse_as(1, 30), Scope::User);
}

#[test]
fn a_user_who_is_forgotten_had_all_it_may_have() {
    let mut story = Story::with_users(2, &[each_user(&[tokens(60, 40)], None)]);
    for user in 1..=2 {
        let id = story.admit_as(user, 40);
        story.settle(id, 40);
    }
    // No place for a third and a fourth: they share one.
    let id = story.admit_as(3, 30);
    story.settle(id, 30);
    assert_eq!(story.refuse_as(4, 20), Scope::User);
    assert_eq!((story.refuse_as(1, 1), story.refuse_as(2, 1)), (Scope::User, Scope::User));
    // The first two are full again, and leave when others come; the third has what it had.
    story.at(40);
    story.admit_as(3, 40);
    assert_eq!(story.limiter.users_held(), 1);
    assert_eq!(story.refuse_as(3, 1), Scope::User);
    story.admit_as(1, 40);
    assert_eq!(story.refuse_as(1, 1), Scope::User);
}

#[test]
fn who_leaves_the_shared_slot_takes_its_work_in_flight_along() {
    let mut story = Story::with_users(1, &[each_user(&[], Some(2))]);
    let first = story.admit_as(1, 1);
    let shared = [story.admit_as(2, 1), story.admit_as(2, 1)];
    assert_eq!((story.refuse_as(2, 1), story.refuse_as(3, 1)), (Scope::User, Scope::User));
    story.settle(first, 1);
    // Its own place now, and still two in flight.
    assert_eq!(story.refuse_as(2, 1), Scope::User);
    story.settle(shared[0], 1);
    story.admit_as(2, 1);
    story.move_away();
    assert_eq!(story.refuse_as(2, 1), Scope::User);
    story.settle(shared[1], 1);
    story.admit_as(2, 1);
    assert_eq!(story.refuse_as(2, 1), Scope::User);
}

#[test]
fn a_repeated_reservation_is_its_user_s_once() {
    let mut story = Story::of(&[each_user(&[tokens(60, 40)], Some(1))]);
    let acme = Name::from("acme");
    let request = Request {
        user: Some(UserDigest(1)),
        ..request(ReservationId(77), &acme, "k", "m", Amount::new(30, 0))
    };
    for _ in 0..3 {
        let decision = story.limiter.reserve(story.now, &request, true);
        assert_eq!(decision.verdict, Verdict::Admitted);
        assert_eq!(decision.levels[Dimension::Tokens.index()].map(|view| view.level), Some(10));
        story.move_away();
    }
}

#[test]
fn a_user_that_is_listed_twice_or_under_another_scope_is_refused() {
    let mut story = Story::of(&[each_user(&[tokens(60, 40)], None), tenant(&[tokens(60, 100)])]);
    story.admit_as(1, 1);
    story.admit_as(2, 1);
    let sound = story.limiter.clone().export(story.now);
    let refused = |break_it: &dyn Fn(&mut Exported)| {
        let mut exported = sound.clone();
        break_it(&mut exported);
        Limiter::import(story.now, story.options, story.rules.clone(), exported).err()
    };
    assert_eq!(refused(&|_| {}), None);
    assert_eq!(refused(&|e| e.tenants[0].scopes[3] = e.tenants[0].scopes[2].clone()), Some(Unsound::Twice));
    assert_eq!(refused(&|e| e.tenants[0].scopes[3].scope = Scope::Tenant), Some(Unsound::Astray));
    let nobody = super::super::exported::ExportedHolder::Nobody;
    assert_eq!(refused(&|e| e.tenants[0].scopes[3].holder = nobody), Some(Unsound::Astray));
}

/// Row 37: bounded maps, and neither a refusal of all nor a user with more than its limit.
#[test]
fn a_million_users_in_a_minute() {
    let most = 500;
    let scopes =
        [each_user(&[tokens(60, 40), requests(60, 10)], Some(5)), tenant(&[requests(600_000, 10_000)])];
    let mut story = Story::bounded(
        Options { remember: Span::from_millis(20), ..with_room_for(most) },
        vec![("acme".into(), rules_of(&scopes))],
    );
    let (mut admitted, mut known) = (0, 0);
    for user in 0..1_000_000_u128 {
        story.now = Moment::from_nanos(user as u64 * 60_000);
        let (id, decision) = story.ask_as(user, 40);
        if decision.verdict == Verdict::Admitted {
            admitted += 1;
            story.settle(id, 40);
        }
        if user % 100 == 0 {
            story.timeout();
            assert!(story.limiter.users_held() <= most);
        }
        // A user who has come before them is served as ever.
        if user % 200_000 == 199_999 {
            let id = story.admit_as(u128::MAX, 1);
            story.settle(id, 1);
            known += 1;
        }
    }
    assert_eq!(known, 5);
    assert!(admitted >= most, "{admitted}");
    while let Some(next) = story.limiter.poll_timeout() {
        story.now = next;
        story.timeout();
    }
    assert_eq!((story.limiter.tenants_held(), story.limiter.users_held()), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Ask { user: Option<u128>, need: u64 },
    End(prop::sample::Index, u64),
    Cancel(prop::sample::Index),
    Travel,
    Lose,
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let nanos = (0..=36u32).prop_flat_map(|bits| 0..=(1u64 << bits));
    let step = prop_oneof![
        8 => (prop::option::weighted(0.9, 0..6u128), 0..=40u64).prop_map(|(user, need)| Step::Ask { user, need }),
        4 => (any::<prop::sample::Index>(), 0..=40u64).prop_map(|(which, used)| Step::End(which, used)),
        1 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        1 => Just(Step::Travel),
        1 => Just(Step::Lose),
    ];
    vec((nanos, step), 1..80)
}

/// An instant, whose it was, what was admitted, what was given back at most.
type Event = (u64, Option<u128>, i128, i128);

fn within(events: &[Event], rate: Rate) -> Result<(), TestCaseError> {
    for (first, from) in events.iter().enumerate() {
        let (mut admitted, mut refunded) = (0, 0);
        for to in &events[first..] {
            admitted += to.2;
            refunded += to.3;
            let accrued = i128::from(to.0 - from.0) * i128::from(rate.per_minute);
            let over = (admitted - refunded - i128::from(rate.burst)) * MINUTE;
            prop_assert!(over <= accrued, "{from:?} to {to:?}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    /// Whatever mixture of users asks, with places for two of six: over every interval each user has at most its limit and the
    /// tenant at most its own; no user has more in flight than it may, unless the holder lost what it knew.
    #[test]
    fn a_user_and_its_tenant_stay_below_their_limits(
        each in (1..=6_000u64, 1..=40u64), all in (1..=20_000u64, 1..=80u64), most in 0..3usize, steps in steps(),
    ) {
        let (each, all) = (Rate::new(each.0, each.1), Rate::new(all.0, all.1));
        let scopes = [
            each_user(&[tokens(each.per_minute, each.burst)], Some(2)), tenant(&[tokens(all.per_minute, all.burst)]),
        ];
        let mut story = Story::with_users(most, &scopes);
        let mut events: Vec<Event> = Vec::new();
        let mut open: Vec<(ReservationId, Option<u128>, u64)> = Vec::new();
        let mut lost: usize = 0;
        for (wait, step) in steps {
            story.now = story.now.plus(Span::from_nanos(wait));
            let at = story.now.as_nanos();
            match step {
                Step::Ask { user, need } => {
                    let (id, verdict) = match user {
                        Some(user) => { let (id, decision) = story.ask_as(user, need); (id, decision.verdict) }
                        None => story.reserve(need),
                    };
                    if verdict == Verdict::Admitted {
                        events.push((at, user, i128::from(need), 0));
                        open.push((id, user, need));
                        let same = open[lost.min(open.len())..].iter().filter(|(_, other, _)| *other == user).count();
                        prop_assert!(user.is_none() || same <= 2, "{same} in flight");
                    }
                }
                Step::End(which, used) if !open.is_empty() => {
                    let which = which.index(open.len());
                    let (id, user, need) = open.remove(which);
                    lost -= usize::from(which < lost);
                    story.settle(id, used);
                    events.push((at, user, 0, i128::from(need.saturating_sub(used))));
                }
                Step::Cancel(which) if !open.is_empty() => {
                    let which = which.index(open.len());
                    let (id, user, need) = open.remove(which);
                    lost -= usize::from(which < lost);
                    story.end(id, Resolution::Cancel);
                    events.push((at, user, 0, i128::from(need)));
                }
                Step::Travel => story.move_away(),
                Step::Lose => {
                    story.limiter = Limiter::cold(story.now, story.options, story.rules.clone());
                    lost = open.len();
                }
                Step::End(..) | Step::Cancel(_) => {}
            }
            prop_assert!(story.limiter.users_held() <= most);
        }
        within(&events, all)?;
        for user in 0..6 {
            let own: Vec<Event> = events.iter().filter(|event| event.1 == Some(user)).copied().collect();
            within(&own, each)?;
        }
    }
}
