//! Stories: what a tenant sees, second by second. Those named after a fault that people reported of systems like this cite the report.

use super::*;

#[test]
fn a_starter_spends_its_burst_waits_and_is_refunded() {
    let mut story = Story::of(&[tenant(&[tokens(24_000, 24_000)])]);
    let first = story.admit(10_000);
    assert_eq!(story.level(), 14_000);
    let need = Denial::Rate {
        scope: Scope::Tenant,
        dimension: Dimension::Tokens,
        need: 20_000,
        level: 14_000,
        capacity: 24_000,
        wait: Span::from_secs(15),
    };
    assert_eq!(story.refuse(20_000), need);
    assert_eq!(story.level(), 14_000);

    assert_eq!(story.at(5).level(), 16_000);
    assert_eq!(story.settle(first, 7_000), Resolved::Now { refunded: 3_000, overage: 0 });
    assert_eq!(story.level(), 19_000);
    assert_eq!(story.at(7).level(), 19_800);
    story.at(8).admit(20_000);
    assert_eq!(story.level(), 200);
}

#[test]
fn more_than_the_bucket_holds_is_refused_for_good() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    story.admit(100);
    let never =
        Denial::Never { scope: Scope::Tenant, dimension: Dimension::Tokens, need: 101, capacity: 100 };
    assert_eq!(story.refuse(101), never);
    assert_eq!(story.at(1_000).refuse(101), never);
}

#[test]
fn an_amount_cut_to_the_largest_still_never_fits_the_largest_bucket() {
    let mut story = Story::of(&[tenant(&[tokens(Rate::MOST, Rate::MOST)])]);
    assert!(matches!(story.refuse(u64::MAX), Denial::Never { .. }));
    assert!(matches!(story.refuse(Rate::MOST + 1), Denial::Never { .. }));
    story.admit(Rate::MOST);
}

#[test]
fn that_no_wait_helps_is_said_before_how_long_another_takes() {
    let mut story = Story::of(&[key("production", &[tokens(60, 100)]), tenant(&[tokens(60, 50)])]);
    story.admit(45);
    assert!(matches!(story.refuse(80), Denial::Never { scope: Scope::Tenant, .. }));
}

#[test]
fn a_refusal_names_the_first_that_refuses_and_waits_for_the_last() {
    let mut story = Story::of(&[key("production", &[tokens(120, 100)]), tenant(&[tokens(60, 100)])]);
    story.admit(100);
    let Denial::Rate { scope, wait, .. } = story.refuse(60) else { panic!() };
    assert_eq!((scope, wait), (Scope::Key("production".into()), Span::from_secs(60)));
}

#[test]
fn a_refusal_shows_every_level_as_of_now() {
    let mut story = Story::of(&[key("production", &[tokens(60, 10)]), tenant(&[requests(60, 10)])]);
    for _ in 0..10 {
        story.admit(1);
    }
    let id = story.at(4).next_id();
    let decision = story.ask(id, "acme", "production", "gpt-5", 1_000);
    assert!(matches!(decision.verdict, Verdict::Denied(Denial::Never { .. })));
    assert_eq!(decision.levels[Dimension::Requests.index()].unwrap().level, 4);
}

#[test]
fn overage_is_debt_that_only_time_repays() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let id = story.admit(100);
    assert_eq!(story.settle(id, 150), Resolved::Now { refunded: 0, overage: 50 });
    assert_eq!(story.level(), -50);
    let Denial::Rate { level, wait, .. } = story.refuse(1) else { panic!() };
    assert_eq!((level, wait), (-50, Span::from_secs(51)));
    story.at(51).admit(1);
}

// Sub-limits, projects and models.

#[test]
fn three_keys_of_northwind_share_one_bucket_that_each_only_subdivides() {
    let mut story = Story::of(&[
        key("production", &[tokens(90_000, 90_000)]),
        key("staging", &[tokens(20_000, 20_000)]),
        key("data-science", &[tokens(30_000, 30_000)]),
        tenant(&[tokens(120_000, 120_000)]),
    ]);
    let mut ask = |key: &str, need| {
        let id = story.next_id();
        story.ask(id, "acme", key, "gpt-5", need).verdict
    };
    assert_eq!(ask("production", 90_000), Verdict::Admitted);
    assert_eq!(ask("staging", 20_000), Verdict::Admitted);
    // The keys' limits add up to 140,000 and the tenant has 120,000: the third key finds 10,000.
    let Verdict::Denied(Denial::Rate { scope, level, .. }) = ask("data-science", 30_000) else { panic!() };
    assert_eq!((scope, level), (Scope::Tenant, 10_000));
    assert_eq!(ask("data-science", 10_000), Verdict::Admitted);
    // A key without a limit of its own still finds the tenant's.
    assert!(matches!(ask("unlisted", 1), Verdict::Denied(Denial::Rate { scope: Scope::Tenant, .. })));
    assert_eq!(story.level_of(&Scope::Key("data-science".into())), 20_000);
}

#[test]
fn a_project_subdivides_its_tenant() {
    let project = limits(Scope::Project("search".into()), &[tokens(60, 50)], None);
    let mut story = Story::of(&[project, tenant(&[tokens(60, 100)])]);
    let acme = Name::from("acme");
    let mut ask = |project, need| {
        let id = story.next_id();
        let request = Request { project, ..request(id, &acme, "k", "m", Amount::new(need, 0)) };
        story.limiter.reserve(Moment::default(), &request, true).verdict
    };
    assert!(matches!(ask(Some("search"), 60), Verdict::Denied(Denial::Never { .. })));
    assert_eq!(ask(Some("search"), 50), Verdict::Admitted);
    assert_eq!(ask(None, 50), Verdict::Admitted);
}

#[test]
fn one_model_rule_applies() {
    let model = |name: &str, burst| limits(Scope::Model(name.into()), &[tokens(60, burst)], None);
    let mut rules = TenantRules::unlimited();
    rules.add_model(ModelMatch::Prefix("gpt-".into()), model("gpt-*", 10));
    rules.add_model(ModelMatch::Prefix("gpt-5-".into()), model("gpt-5-*", 20));
    rules.add_model(ModelMatch::Prefix("g".into()), model("g*", 5));
    rules.add_model(ModelMatch::Exact("gpt-5-mini".into()), model("gpt-5-mini", 30));
    let mut story = Story::with(vec![("acme".into(), rules)]);
    let cases = [("gpt-4", 10), ("gpt-5-large", 20), ("gpt-5-mini", 30), ("gemini", 5)];
    for (model, holds) in cases {
        for (need, fits) in [(holds + 1, false), (holds, true)] {
            let id = story.next_id();
            let verdict = story.ask(id, "acme", "k", model, need).verdict;
            assert_eq!(verdict == Verdict::Admitted, fits, "{model} with {need}: {verdict:?}");
        }
    }
    // None stacked: each bucket was drawn from once, by its own model. And no rule, no limit.
    let id = story.next_id();
    assert_eq!(story.ask(id, "acme", "k", "claude", 1_000_000).verdict, Verdict::Admitted);
}

#[test]
fn of_two_sets_for_one_scope_the_first_is_in_force() {
    let twice = [tenant(&[tokens(60, 10)]), tenant(&[tokens(60, 1_000)])];
    let mut story = Story::of(&twice);
    assert!(matches!(story.refuse(11), Denial::Never { capacity: 10, .. }));
    story.edit_acme(&[twice[0].clone(), twice[1].clone(), key("batch", &[])]);
    assert!(matches!(story.refuse(11), Denial::Never { capacity: 10, .. }));
}

// Slots in flight.

#[test]
fn a_slot_is_freed_once_whatever_ends_its_request() {
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60_000, 1_000)], Some(2))]);
    let [first, second] = [story.admit(1), story.admit(1)];
    assert_eq!(story.refuse(1), Denial::Inflight { scope: Scope::Tenant, max: 2 });
    story.settle(first, 1);
    assert_eq!(story.settle(first, 1), Resolved::Already);
    assert_eq!(story.end(first, Resolution::Abandon), Resolved::Already);
    let third = story.admit(1);
    assert!(matches!(story.refuse(1), Denial::Inflight { .. }));
    // The holders of both die.
    assert_eq!(story.pass_deadline(), [second, third]);
    assert_eq!(story.view(&Scope::Tenant).inflight, 0);
    story.settle(second, 1);
    assert_eq!(story.view(&Scope::Tenant).inflight, 0);
    for how in [Resolution::Close, Resolution::Abandon, Resolution::Cancel] {
        let id = story.admit(1);
        story.end(id, how);
    }
    assert_eq!(story.view(&Scope::Tenant).inflight, 0);
    assert_eq!(story.limiter.open(), 0);
}

#[test]
fn a_scope_that_goes_and_comes_back_still_counts_who_is_in_flight() {
    let capped = [limits(Scope::Key("production".into()), &[], Some(1)), tenant(&[tokens(60, 100)])];
    let mut story = Story::of(&capped);
    let first = story.admit(1);
    story.edit_acme(&capped[1..]);
    let second = story.admit(1);
    story.edit_acme(&capped);
    assert!(matches!(story.refuse(1), Denial::Inflight { .. }));
    story.settle(second, 1);
    assert!(matches!(story.refuse(1), Denial::Inflight { .. }));
    story.settle(first, 1);
    story.admit(1);
}

// Ends.

#[test]
fn a_deadline_charges_the_estimate_and_a_late_settle_corrects_it_once() {
    let mut story = Story::of(&[tenant(&[tokens(1, 1_000)])]);
    let id = story.admit(600);
    assert_eq!(story.pass_deadline(), [id]);
    assert_eq!(story.level(), 465, "400 and a unit for each of 65 minutes");
    assert_eq!(story.limiter.books().closed, 600);
    assert_eq!(story.end(id, Resolution::Close), Resolved::Already);
    assert_eq!(story.settle(id, 500), Resolved::Late { refunded: 100, overage: 0 });
    assert_eq!(story.level(), 565);
    assert_eq!(story.settle(id, 0), Resolved::Already);
    assert_eq!(story.level(), 565);
    let books = story.limiter.books();
    assert_eq!((books.closed, books.settled, books.refunded), (0, 500, 100));
}

#[test]
fn a_late_settle_finds_the_bucket_that_it_debited() {
    // The bucket is full again long before the late settle comes; were its tenant forgotten, the overage would be too.
    let mut story = Story::of(&[tenant(&[tokens(6_000, 100)])]);
    let id = story.admit(10);
    story.pass_deadline();
    story.now = story.now.plus(Span::from_secs(120));
    story.timeout();
    assert_eq!(story.settle(id, 60), Resolved::Late { refunded: 0, overage: 50 });
    assert_eq!(story.level(), 50);
}

#[test]
fn a_late_settle_after_an_edit_finds_the_bucket_that_it_debited() {
    let production = key("production", &[tokens(1, 1_000)]);
    let mut story = Story::of(&[production.clone(), tenant(&[tokens(1, 1_000)])]);
    let id = story.admit(600);
    story.pass_deadline();
    story.edit_acme(&[tenant(&[tokens(1, 1_000)])]);
    let other = story.admit(1);
    story.settle(other, 1);
    story.edit_acme(&[tenant(&[tokens(1, 1_000)]), key("batch", &[tokens(1, 5)])]);
    assert_eq!(story.level_of(&Scope::Key("batch".into())), 5);
    assert_eq!(story.settle(id, 700), Resolved::Late { refunded: 0, overage: 100 });
    assert_eq!(story.level(), 400 + 65 - 1 - 100);
    assert_eq!(story.level_of(&Scope::Key("batch".into())), 5);
}

#[test]
fn a_tenant_is_forgotten_once_it_is_full_and_nobody_can_come_back() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let id = story.admit(10);
    story.pass_deadline();
    story.now = story.now.plus(story.options.late_settle);
    story.timeout();
    assert_eq!(story.limiter.reservations_held(), 0);
    story.settle(id, 10);
    story.now = story.limiter.poll_timeout().unwrap();
    story.timeout();
    assert_eq!((story.limiter.tenants_held(), story.limiter.poll_timeout()), (0, None));
}

#[test]
fn a_crowd_of_idle_tenants_is_forgotten_a_part_at_a_time() {
    let names: Vec<Name> = (0..2_500).map(|n| n.to_string().into()).collect();
    let limited = names.iter().map(|name| (name.clone(), rules_of(&[tenant(&[tokens(60, 100)])])));
    let mut story = Story::with(limited.collect());
    for name in &names {
        let id = story.next_id();
        story.ask(id, name, "k", "m", 1);
        story.settle(id, 1);
    }
    story.at(100);
    let mut held = Vec::new();
    while story.limiter.poll_timeout().is_some_and(|at| at <= story.now) {
        story.timeout();
        held.push(story.limiter.tenants_held());
    }
    assert_eq!(held, [1_500, 500, 0]);
}

#[test]
fn a_tenant_in_debt_is_kept_until_it_is_repaid() {
    // symfony/symfony#63996
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let id = story.admit(100);
    story.settle(id, 700);
    story.at(690).timeout();
    assert_eq!(story.limiter.tenants_held(), 1);
    assert_eq!(story.level(), 90);
    story.at(800).timeout();
    assert_eq!(story.limiter.tenants_held(), 0);
}

#[test]
fn a_cancel_bars_the_reservation_that_it_overtakes() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let id = ReservationId(77);
    assert_eq!(story.end(id, Resolution::Cancel), Resolved::Unknown);
    let verdict = story.ask(id, "acme", "k", "m", 10).verdict;
    assert_eq!(verdict, Verdict::Denied(Denial::Cancelled));
    assert_eq!((story.level(), story.limiter.open()), (100, 0));
}

#[test]
fn a_cancelled_reservation_that_is_repeated_is_not_admitted() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100), requests(60, 5)])]);
    let id = story.admit(10);
    assert_eq!(story.end(id, Resolution::Cancel), Resolved::Now { refunded: 10, overage: 0 });
    assert_eq!(story.view(&Scope::Tenant).limits[1].1.level, 5, "the request is given back as well");
    let again = story.ask(id, "acme", "production", "gpt-5", 10).verdict;
    assert_eq!(again, Verdict::Denied(Denial::Cancelled));
    assert_eq!(story.level(), 100);
}

#[test]
fn a_repeated_reservation_gets_the_same_answer_and_pays_once() {
    // gubernator-io/gubernator#71
    let mut story = Story::of(&[key("production", &[tokens(60, 100)]), tenant(&[tokens(60, 100)])]);
    let id = story.admit(60);
    let again = story.at(10).ask(id, "acme", "production", "gpt-5", 60);
    assert_eq!((again.verdict, again.version), (Verdict::Admitted, 1));
    assert_eq!(again.levels[0].unwrap().level, 50, "the levels are those of now");
    story.settle(id, 60);
    // The place of the key's slot is gone, and the answer stands.
    story.edit_acme(&[tenant(&[tokens(60, 100)])]);
    assert_eq!(story.level(), 50);
    let again = story.ask(id, "acme", "production", "gpt-5", 60);
    assert_eq!((again.verdict, again.version), (Verdict::Admitted, 1));
    assert_eq!(story.level(), 50);
}

#[test]
fn a_repeated_reservation_in_shadow_gets_the_same_answer() {
    let mut rules = rules_of(&[tenant(&[tokens(60, 100)])]);
    rules.shadow = true;
    let mut story = Story::with(vec![("acme".into(), rules)]);
    let (id, first) = story.reserve(101);
    assert!(matches!(first, Verdict::Shadowed(Denial::Never { .. })));
    assert_eq!(story.ask(id, "acme", "production", "gpt-5", 101).verdict, first);
}

#[test]
fn in_shadow_a_refusal_is_counted_and_nothing_is_charged_for_it() {
    let mut rules = rules_of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(1))]);
    rules.shadow = true;
    let mut story = Story::with(vec![("acme".into(), rules.clone())]);
    let first = story.admit(30);
    let (second, verdict) = story.reserve(30);
    assert_eq!(verdict, Verdict::Shadowed(Denial::Inflight { scope: Scope::Tenant, max: 1 }));
    assert_eq!((story.level(), story.limiter.open()), (70, 2));
    // Enforcement begins while both run.
    rules.shadow = false;
    story.edit(vec![("acme".into(), rules)]);
    assert_eq!(story.settle(second, 1_000), Resolved::Now { refunded: 0, overage: 0 });
    assert_eq!((story.level(), story.view(&Scope::Tenant).inflight), (70, 1));
    story.settle(first, 30);
    assert_eq!((story.level(), story.limiter.books().settled), (70, 30));
}

// Idempotency keys.

#[test]
fn an_idempotency_key_is_taken_while_its_request_runs_and_after_it_was_sent() {
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let acme = Name::from("acme");
    let mut ids = 0;
    let mut ask = |story: &mut Story, need| {
        ids += 1;
        let idempotency = Some(IdempotencyDigest(9));
        let request =
            Request { idempotency, ..request(ReservationId(ids), &acme, "k", "m", Amount::new(need, 0)) };
        (ReservationId(ids), story.limiter.reserve(story.now, &request, true).verdict)
    };
    // Denied: fresh.
    assert!(matches!(ask(&mut story, 101).1, Verdict::Denied(Denial::Never { .. })));
    let (cancelled, verdict) = ask(&mut story, 10);
    assert_eq!(verdict, Verdict::Admitted);
    assert_eq!(ask(&mut story, 10).1, Verdict::Denied(Denial::IdempotencyInProgress));
    // Never sent: fresh.
    story.end(cancelled, Resolution::Cancel);
    let (late, verdict) = ask(&mut story, 10);
    assert_eq!(verdict, Verdict::Admitted);
    story.pass_deadline();
    assert_eq!(ask(&mut story, 10).1, Verdict::Denied(Denial::AlreadyDispatched));
    // Found late to have never been sent: fresh all the same.
    assert_eq!(story.end(late, Resolution::Cancel), Resolved::Late { refunded: 10, overage: 0 });
    let since_late = story.now;
    story.now = story.now.plus(Span::from_secs(60));
    let (sent, verdict) = ask(&mut story, 10);
    assert_eq!(verdict, Verdict::Admitted);
    story.settle(sent, 10);
    assert_eq!(ask(&mut story, 10).1, Verdict::Denied(Denial::AlreadyDispatched));
    // The day counts from the request that holds the key, not from the one that held it before; the id is long forgotten.
    story.now = since_late.plus(story.options.idempotency);
    story.timeout();
    assert_eq!(ask(&mut story, 10).1, Verdict::Denied(Denial::AlreadyDispatched));
    story.now = story.now.plus(Span::from_secs(60));
    story.timeout();
    assert_eq!(ask(&mut story, 10).1, Verdict::Admitted);
}

#[test]
fn a_full_table_refuses_and_forgets_nobody() {
    let options = Options { max_reservations: 2, max_idempotency_keys: 1, ..Options::default() };
    let acme = Name::from("acme");
    let unlimited = vec![(acme.clone(), TenantRules::unlimited())];
    let mut story = Story::bounded(options, unlimited);
    let keyed = |id, digest| Request {
        idempotency: Some(IdempotencyDigest(digest)),
        ..request(ReservationId(id), &acme, "k", "m", Amount::new(1, 0))
    };
    let now = story.now;
    assert_eq!(story.limiter.reserve(now, &keyed(100, 1), true).verdict, Verdict::Admitted);
    assert_eq!(story.limiter.reserve(now, &keyed(101, 2), true).verdict, Verdict::Denied(Denial::Full));
    let second = story.admit(1);
    assert_eq!(story.refuse(1), Denial::Full);
    // A cancel that finds the table full leaves no trace.
    assert_eq!(story.end(ReservationId(55), Resolution::Cancel), Resolved::Unknown);
    assert_eq!(story.limiter.reservations_held(), 2);
    story.settle(second, 1);
    assert_eq!(story.refuse(1), Denial::Full, "an ended one is remembered for a while");
    story.at(5).timeout();
    story.admit(1);
}

// Edits.

#[test]
fn an_edit_keeps_what_is_used() {
    let mut story = Story::of(&[tenant(&[tokens(1, 100)])]);
    story.admit(80);
    story.edit_acme(&[tenant(&[tokens(1, 1_000)])]);
    assert_eq!(story.level(), 920);
    story.edit_acme(&[tenant(&[tokens(1, 50)])]);
    assert_eq!(story.level(), -30);
    story.edit_acme(&[tenant(&[tokens(1, 100)])]);
    assert_eq!(story.level(), 20);
}

#[test]
fn an_edit_counts_from_its_instant_however_late_the_tenant_follows() {
    let mut story = Story::of(&[tenant(&[tokens(6_000, 100)])]);
    let id = story.admit(100);
    story.settle(id, 1_100);
    assert_eq!(story.level(), -1_000);
    // Tightened to 60 a minute at 2 s, and nothing touches the tenant until 8 s later.
    story.at(2).edit_acme(&[tenant(&[tokens(60, 100)])]);
    assert_eq!(story.at(10).level(), -1_000 + 200 + 8);
    let id = ReservationId(99);
    story.at(1_100).ask(id, "acme", "k", "m", 10);
    // An edit of somebody else is none of this tenant's.
    story.edit(vec![
        ("acme".into(), rules_of(&[tenant(&[tokens(60, 100)])])),
        ("other".into(), TenantRules::unlimited()),
    ]);
    story.edit_acme(&[tenant(&[tokens(6_000, 100)])]);
    assert_eq!(story.level(), 90);
}

#[test]
fn a_settle_is_the_first_to_touch_a_tenant_after_an_edit() {
    let mut story = Story::of(&[tenant(&[tokens(6_000, 1_000)])]);
    let id = story.admit(1_000);
    story.edit_acme(&[tenant(&[tokens(60, 1_000)])]);
    story.at(5).settle(id, 1_000);
    assert_eq!(story.level(), 5);
}

#[test]
fn a_tenant_in_debt_is_not_forgotten_by_the_rate_that_it_had() {
    let mut story = Story::of(&[tenant(&[tokens(6_000, 100)])]);
    let id = story.admit(100);
    story.settle(id, 1_100);
    story.edit_acme(&[tenant(&[tokens(60, 100)])]);
    story.at(120).timeout();
    assert_eq!(story.limiter.tenants_held(), 1);
    assert_eq!(story.level(), -880);
}

#[test]
fn a_limit_that_comes_back_starts_empty() {
    let limited = [tenant(&[tokens(60, 100)])];
    let mut story = Story::of(&limited);
    assert_eq!(story.level(), 100);
    story.edit_acme(&[]);
    story.at(50).edit_acme(&limited);
    assert_eq!(story.level(), 0);
    assert_eq!(story.at(70).level(), 20);
    // One that no version held starts full.
    story.edit_acme(&[tenant(&[tokens(60, 100)]), key("production", &[tokens(60, 30)])]);
    assert_eq!(story.level_of(&Scope::Key("production".into())), 30);
}

#[test]
fn a_limit_that_goes_and_comes_back_while_nobody_looks_starts_empty_as_well() {
    let limited = [tenant(&[tokens(60, 100)])];
    let mut story = Story::of(&limited);
    story.admit(10);
    story.edit_acme(&[]);
    story.at(5).edit_acme(&limited);
    assert_eq!(story.level(), 0);
    // And so does that of a tenant that went and came back, known or new to the limiter.
    story.edit(vec![("other".into(), TenantRules::unlimited())]);
    story.at(9).edit_acme(&limited);
    assert_eq!(story.at(10).level(), 1);
    story.limiter = Limiter::first(story.options, story.rules.clone());
    assert_eq!(story.level(), 1);
}

#[test]
fn a_limit_that_came_back_and_was_loosened_has_not_refilled_faster_before() {
    let mut story = Story::of(&[tenant(&[tokens(60, 1_000)])]);
    story.edit_acme(&[]);
    story.edit_acme(&[tenant(&[tokens(60, 1_000)])]);
    story.at(100).edit_acme(&[tenant(&[tokens(6_000, 1_000)])]);
    assert_eq!(story.level(), 100);
    assert_eq!(story.at(101).level(), 200);
}

#[test]
fn a_refund_goes_only_where_it_was_debited() {
    let limited = [tenant(&[tokens(60, 100)])];
    let mut story = Story::of(&limited);
    let [refunded, overspent] = [story.admit(40), story.admit(40)];
    story.edit_acme(&[]);
    story.edit_acme(&limited);
    assert_eq!(story.at(10).level(), 10);
    // The bucket that was debited is gone: no refund into the one that came back, but overage is debt in it.
    story.settle(refunded, 0);
    assert_eq!(story.level(), 10);
    story.settle(overspent, 45);
    assert_eq!(story.level(), 5);
}

#[test]
fn keys_that_come_and_go_under_load_do_not_pile_up() {
    let limited = |n: u64| [key(&n.to_string(), &[tokens(60, 100)]), tenant(&[tokens(60_000, 1_000)])];
    let acme = Name::from("acme");
    let mut rules = Rules::first(vec![(acme.clone(), rules_of(&limited(0)))]);
    let mut state =
        super::super::tenant::TenantState::new(rules.tenant(&acme).unwrap(), 1, Moment::default(), None);
    let path = state.path(&super::super::tenant::Way { key: "none", user: None, project: None, model: "m" });
    state.debit(&path, Amount::new(1, 0));
    for n in 1..100 {
        rules = rules.next(vec![(acme.clone(), rules_of(&limited(n)))], seconds(n));
        state.follow(&rules, &acme);
    }
    assert!(state.slots_held() <= 3, "{}", state.slots_held());
}

// Reports that concern the limiter.

#[test]
fn a_denial_consumes_nothing_in_any_scope() {
    // envoyproxy/ratelimit#185, #427, #808; upstash/ratelimit-js#156
    let mut story = Story::of(&[key("production", &[tokens(60, 100)]), tenant(&[tokens(60, 50)])]);
    story.admit(50);
    for _ in 0..1_000 {
        story.refuse(20);
    }
    assert_eq!(story.level_of(&Scope::Key("production".into())), 50);
    assert_eq!(story.at(20).level(), 20);
}

#[test]
fn whoever_comes_second_finds_what_the_first_reserved() {
    // litellm#18730, envoyproxy/ai-gateway#680
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    let admitted = (0..50).filter(|_| story.reserve(30).1 == Verdict::Admitted).count();
    assert_eq!(admitted, 3);
}

#[test]
fn the_first_request_of_a_tenant_meets_its_limit() {
    // litellm#34732, #40095
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    assert!(matches!(story.refuse(101), Denial::Never { .. }));
    let id = story.next_id();
    assert_eq!(story.ask(id, "nobody", "k", "m", 1).verdict, Verdict::Denied(Denial::UnknownTenant));
}

#[test]
fn the_parallel_cap_does_not_overshoot() {
    // litellm#16011, #27900
    let mut story = Story::of(&[limits(Scope::Tenant, &[], Some(5))]);
    let admitted = (0..50).filter(|_| story.reserve(1).1 == Verdict::Admitted).count();
    assert_eq!((admitted, story.view(&Scope::Tenant).inflight), (5, 5));
}

#[test]
fn a_reservation_whose_holder_died_does_not_leak() {
    // litellm#27639, #27001
    let mut story = Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(1))]);
    let id = story.admit(100);
    let deadline = story.limiter.poll_timeout().unwrap();
    assert_eq!(deadline, Moment::default().plus(story.options.reservation_deadline));
    story.now = Moment::from_nanos(deadline.as_nanos() - 1);
    assert!(story.timeout().is_empty());
    story.now = deadline;
    assert_eq!(story.timeout(), [id]);
    assert_eq!(story.limiter.open(), 0);
    story.admit(1);
}

#[test]
fn what_is_enforced_is_what_the_books_say() {
    // litellm#40050, #35569
    let mut story = Story::of(&[tenant(&[tokens(1, 1_000)])]);
    let ids = [100, 200, 300].map(|need| story.admit(need));
    story.settle(ids[0], 60);
    story.end(ids[1], Resolution::Close);
    let books = story.limiter.books();
    assert_eq!(i128::from(story.level()), 1_000 - (books.settled + books.closed + books.open) as i128);
}

#[test]
fn receipts_in_another_order_refund_the_right_scopes() {
    // tensorzero PR#3862
    let [a, b] = ["a", "b"].map(|label| key(label, &[tokens(1, 1_000)]));
    let mut story = Story::of(&[a, b, tenant(&[tokens(1, 1_000)])]);
    let [first, second] = [story.next_id(), story.next_id()];
    story.ask(first, "acme", "a", "m", 100);
    story.ask(second, "acme", "b", "m", 200);
    story.settle(second, 20);
    story.settle(first, 10);
    assert_eq!(story.level_of(&Scope::Key("a".into())), 990);
    assert_eq!(story.level_of(&Scope::Key("b".into())), 980);
    assert_eq!(story.level(), 970);
}

#[test]
fn a_refund_into_an_empty_bucket_counts_and_no_window_resets() {
    // mailgun/gubernator#156, #118
    let mut story = Story::of(&[tenant(&[tokens(60, 60)])]);
    let id = story.admit(60);
    story.at(59).settle(id, 60);
    assert_eq!(story.level(), 59);
    let id = story.admit(59);
    assert_eq!(story.at(61).level(), 2, "no window turned at 60 s");
    story.settle(id, 9);
    assert_eq!(story.level(), 52);
}

#[test]
fn an_hour_of_rest_holds_the_burst_and_not_one_more() {
    // governor#249
    let mut story = Story::of(&[tenant(&[requests(60, 5)])]);
    for rest in [0, 1, 3_600, 100_000] {
        story.at(200_000 + rest);
        story.now = story.now.plus(Span::from_secs(rest));
        let admitted = (0..20).filter(|_| story.reserve(0).1 == Verdict::Admitted).count();
        assert!(admitted <= 5, "{admitted} after {rest} s");
        story.now = story.now.plus(Span::from_secs(10));
    }
}

#[test]
fn readings_out_of_order_mint_nothing() {
    // golang/go#56287
    let mut story = Story::of(&[tenant(&[tokens(60, 100)])]);
    story.at(1_000).admit(100);
    for second in [0, 1_000, 500, 999, 1_000, 1] {
        assert_eq!(story.at(second).level(), 0);
        story.refuse(1);
    }
    assert_eq!(story.at(1_001).level(), 1);
}

#[test]
fn a_number_far_outside_any_limit_neither_panics_nor_wraps() {
    let mut story = Story::of(&[tenant(&[tokens(1, 1)])]);
    let id = story.admit(1);
    let used = Amount { total: u64::MAX, input: u64::MAX, output: u64::MAX };
    story.end(id, Resolution::Settle(used));
    assert!(story.level() < -(Rate::MOST as i64));
    story.now = Moment::from_nanos(u64::MAX / 2);
    story.timeout();
    assert!(story.level() < 0);
    assert!(story.limiter.books().balance());
}
