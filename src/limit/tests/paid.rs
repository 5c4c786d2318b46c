//! What else pays, beside the tenant's own buckets: a purser that keeps count.

use super::*;

/// A purser with so much to give.
#[derive(Debug, Default)]
struct Till {
    holds: u64,
    /// How often it was asked, and what it took and was told in all.
    asked: u32,
    taken: u64,
    spared: u64,
    exceeded: u64,
    cancelled: u32,
}

const LACK: Lack = Lack::Paused { wait: Span::from_millis(1) };

impl Till {
    fn take(&mut self, tokens: u64) -> Result<(), Denial> {
        self.asked += 1;
        if self.holds < tokens {
            return Err(Denial::Pool { pool: "main".into(), lack: LACK });
        }
        self.holds -= tokens;
        self.taken += tokens;
        Ok(())
    }
}

impl Purser for Till {
    fn pay(&mut self, _now: Moment, request: &Request<'_>) -> Result<Option<Box<Paid>>, Denial> {
        self.take(request.need.total)?;
        Ok(Some(Box::new(Paid { by: PurseOwner(7), pool: Some("main".into()), budgets: Box::default() })))
    }

    fn pay_again(&mut self, _now: Moment, pool: &Name, need: Units) -> Result<(), Denial> {
        assert_eq!(&**pool, "main");
        self.take(need.of(Dimension::Tokens))
    }

    fn true_up(&mut self, _now: Moment, paid: &Paid, difference: Difference) {
        assert_eq!(paid.by, PurseOwner(7));
        self.spared += difference.spared.of(Dimension::Tokens);
        self.exceeded += difference.exceeded.of(Dimension::Tokens);
        self.cancelled += u32::from(difference.cancelled);
    }
}

/// Acme has a bucket of 100 tokens.
fn story() -> Story {
    Story::of(&[limits(Scope::Tenant, &[tokens(60, 100)], Some(3))])
}

fn ask(story: &mut Story, till: &mut Till, id: u128, need: u64) -> Decision {
    let tenant = Name::from("acme");
    let request = request(ReservationId(id), &tenant, "production", "gpt-5", Amount::new(need, 0));
    story.limiter.reserve_paid(story.now, &request, true, till)
}

fn level(story: &mut Story) -> i64 {
    story.limiter.tenant(story.now, &"acme".into()).unwrap().scopes[0].limits[0].1.level
}

#[test]
fn all_or_nothing_holds_whoever_denies() {
    let (mut story, mut till) = (story(), Till { holds: 50, ..Till::default() });
    // The till denies: nothing is debited, no slot is taken, no id is remembered.
    let denied = ask(&mut story, &mut till, 1, 51);
    assert_eq!(denied.verdict, Verdict::Denied(Denial::Pool { pool: "main".into(), lack: LACK }));
    assert_eq!((level(&mut story), story.limiter.open(), till.taken), (100, 0, 0));
    // A bucket denies: the till is not asked.
    let asked = till.asked;
    assert!(matches!(ask(&mut story, &mut till, 2, 101).verdict, Verdict::Denied(Denial::Never { .. })));
    assert_eq!(till.asked, asked);
    // Neither does, and a repeated id pays once.
    for _ in 0..2 {
        let admitted = ask(&mut story, &mut till, 1, 50);
        assert_eq!(admitted.verdict, Verdict::Admitted);
        assert_eq!(admitted.paid.unwrap().by, PurseOwner(7));
    }
    assert_eq!((level(&mut story), till.taken, till.holds), (50, 50, 0));
    assert!(story.limiter.books().balance());
}

#[test]
fn a_further_attempt_is_paid_once_and_by_its_pool_alone() {
    let (mut story, mut till) = (story(), Till { holds: 100, ..Till::default() });
    ask(&mut story, &mut till, 1, 30);
    for _ in 0..3 {
        assert_eq!(story.limiter.attempt(story.now, ReservationId(1), 2, &mut till), Ok(()));
    }
    assert_eq!((till.taken, level(&mut story)), (60, 70));
    assert_eq!(story.limiter.attempt(story.now, ReservationId(1), 3, &mut till), Ok(()));
    // The fourth finds nothing, and a try of it that finds something pays.
    let lacks = Err(Denial::Pool { pool: "main".into(), lack: LACK });
    assert_eq!(story.limiter.attempt(story.now, ReservationId(1), 4, &mut till), lacks);
    till.holds = 30;
    assert_eq!(story.limiter.attempt(story.now, ReservationId(1), 4, &mut till), Ok(()));
    // One that is over has none.
    story.limiter.resolve_paid(story.now, ReservationId(1), Resolution::Close, &mut till);
    let over = story.limiter.attempt(story.now, ReservationId(1), 5, &mut till);
    assert_eq!(over, Err(Denial::Cancelled));
    assert_eq!((till.taken, till.spared, till.exceeded), (120, 0, 0));
}

#[test]
fn what_was_spared_and_exceeded_is_told_once() {
    let (mut story, mut till) = (story(), Till { holds: 100, ..Till::default() });
    let settle = |used| Resolution::Settle(Amount::new(used, 0));
    for (id, how) in [(1, settle(10)), (2, settle(37)), (3, Resolution::Cancel)] {
        ask(&mut story, &mut till, id, 30);
        for _ in 0..2 {
            story.limiter.resolve_paid(story.now, ReservationId(id), how, &mut till);
        }
    }
    assert_eq!((till.spared, till.exceeded, till.cancelled), (20 + 30, 7, 1));
}

#[test]
fn a_deadline_spares_nothing_and_a_late_settle_does() {
    let (mut story, mut till) = (story(), Till { holds: 100, ..Till::default() });
    ask(&mut story, &mut till, 1, 30);
    story.now = story.now.plus(story.options.reservation_deadline);
    let expired = story.limiter.handle_timeout(story.now);
    assert_eq!(expired[0].paid.as_ref().unwrap().pool.as_deref(), Some("main"));
    assert_eq!(till.spared, 0);
    let late = Resolution::Settle(Amount::new(12, 0));
    story.limiter.resolve_paid(story.now, ReservationId(1), late, &mut till);
    assert_eq!(till.spared, 18);
}

#[test]
fn what_paid_moves_with_a_handoff_and_spares_nothing_after_a_loss() {
    let (mut story, mut till) = (story(), Till { holds: 100, ..Till::default() });
    ask(&mut story, &mut till, 1, 30);
    assert_eq!(story.limiter.attempt(story.now, ReservationId(1), 2, &mut till), Ok(()));
    let exported = story.limiter.clone().export(story.now);
    let rules = story.rules.clone();
    let mut moved = Limiter::import(story.now, story.options, rules.clone(), exported).unwrap();
    // The second attempt was paid where it came from.
    assert_eq!(moved.attempt(story.now, ReservationId(1), 2, &mut till), Ok(()));
    assert_eq!(till.taken, 60);
    let settle = |used| Resolution::Settle(Amount::new(used, 0));
    moved.resolve_paid(story.now, ReservationId(1), settle(20), &mut till);
    assert_eq!(till.spared, 10);

    // Whoever begins cold is told of it, spares nothing of what it has not debited, and charges what was exceeded.
    let paid = Paid { by: PurseOwner(7), pool: Some("main".into()), budgets: Box::default() };
    let announced = |id| Announced {
        id: ReservationId(id),
        tenant: "acme".into(),
        key: "production".into(),
        user: None,
        project: None,
        model: "gpt-5".into(),
        held: Amount::new(30, 0),
        remaining: Span::from_secs(60),
        idempotency: None,
        paid: Some(Box::new(paid.clone())),
    };
    let mut cold = Limiter::cold(story.now, story.options, rules);
    cold.resolve_reported(story.now, &announced(8), settle(20), &mut till);
    cold.resolve_reported(story.now, &announced(9), settle(33), &mut till);
    cold.resolve_reported(story.now, &announced(10), Resolution::Cancel, &mut till);
    assert_eq!((till.spared, till.exceeded, till.cancelled), (10, 3, 0));
}

#[test]
fn shadow_lets_through_what_the_till_denies_and_waits_for_what_it_expects() {
    let mut rules = rules_of(&[limits(Scope::Tenant, &[tokens(60, 100)], None)]);
    rules.shadow = true;
    let mut story = Story::bounded(Options::default(), vec![("acme".into(), rules)]);
    let mut till = Till::default();
    let shadowed = ask(&mut story, &mut till, 1, 30);
    assert!(matches!(shadowed.verdict, Verdict::Shadowed(Denial::Pool { .. })));
    assert_eq!(shadowed.paid, None);
    assert_eq!(level(&mut story), 100);
    assert_eq!(story.limiter.attempt(story.now, ReservationId(1), 2, &mut till), Ok(()));
}
