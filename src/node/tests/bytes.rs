//! The bytes on the wire: pinned, bounded, and harmless whatever they are.

use proptest::prelude::*;

use super::super::codec::*;
use super::super::wire::{End, Of, Question, RefusalCode, Reply, Reserve};
use crate::limit::{
    Account, Amount, Announced, BudgetKey, Cycle, Decision, Denial, Difference, Dimension, IdempotencyDigest,
    Lack, Lane, LevelView, Limiter, Moment, Name, Options, Paid, Part, PeriodId, PurseOwner, Purser, Rate,
    RateLimit, Request, ReservationId, Resolution, Resolved, Rules, Scope, ScopeLimits, Span, TenantRules,
    Unit, Units, UserDigest, Verdict,
};
use crate::meter::Usage;
use crate::node::possessions;
use tollgate_cluster::id::{Epoch, NodeId, SessionId};

fn paid() -> Paid {
    let budget = BudgetKey {
        tenant: "acme".into(),
        part: Part::Tenant,
        cycle: Cycle::Month,
        unit: Unit::MicroDollars,
    };
    let account = Account { budget, period: PeriodId(1_780_000_000), lane: Lane::Regular };
    Paid { by: PurseOwner(5), pool: Some("main".into()), budgets: Box::new([(account, 77)]) }
}

fn held() -> Announced {
    Announced {
        id: ReservationId(7),
        tenant: "acme".into(),
        key: "production".into(),
        user: Some(UserDigest(11)),
        project: Some("search".into()),
        model: "gpt-5".into(),
        held: Amount::new(300, 20),
        remaining: Span::from_secs(60),
        idempotency: Some(IdempotencyDigest(9)),
        paid: Some(Box::new(paid())),
    }
}

fn a_question() -> Question {
    Question::Decide {
        epoch: Epoch(3),
        session: SessionId(5),
        ends: vec![
            End { of: Of::Held(held()), how: Resolution::Settle(Amount::new(280, 31)) },
            End { of: Of::Id { tenant: "acme".into(), id: ReservationId(8) }, how: Resolution::Cancel },
        ],
        reserve: Some(Reserve {
            id: ReservationId(1 << 100),
            tenant: "acme".into(),
            key: "production".into(),
            user: Some(UserDigest(11)),
            project: None,
            model: "gpt-5".into(),
            need: Amount::new(1_000, 500),
            idempotency: None,
            lane: Lane::Regular,
        }),
    }
}

fn a_further_attempt() -> Question {
    Question::Attempt { epoch: Epoch(3), session: SessionId(5), of: Of::Held(held()), attempt: 2 }
}

fn told() -> [Question; 3] {
    let what = possessions::Possession {
        provider: "openai".into(),
        context: 40,
        batch: Some(Err("line 3".into())),
        held_by: Some(NodeId(7)),
    };
    let made = possessions::News::Made { tenant: "acme".into(), id: "resp_1".into(), what };
    let gone = possessions::News::Gone { tenant: "acme".into(), id: "file-2".into() };
    let used = Usage { uncached_input: 5, output: 9, ..Usage::default() };
    [
        Question::Kept(possessions::Question::Whose("resp_1".into())),
        Question::Kept(possessions::Question::News(vec![made, gone])),
        Question::Kept(possessions::Question::Over {
            tenant: "acme".into(),
            id: "resp_1".into(),
            used: Some(used),
        }),
    ]
}

fn whose() -> Reply {
    let what = possessions::Possession::at("openai");
    Reply::Kept(possessions::Answer::Whose(Some(("acme".into(), what))))
}

fn not_paid() -> Reply {
    let lack = Lack::Later { dimension: Dimension::Tokens, need: 9, held: -1, wait: Span::from_secs(2) };
    let denial = Denial::Pool { pool: "main".into(), lack };
    Reply::Attempted(Ok(Err(Denial::Granting(Box::new(denial)))))
}

/// Pays for everything from the same pool.
struct FromMain;

impl Purser for FromMain {
    fn pay(&mut self, _now: Moment, _request: &Request<'_>) -> Result<Option<Box<Paid>>, Denial> {
        Ok(Some(Box::new(paid())))
    }

    fn pay_again(&mut self, _now: Moment, _pool: &Name, _need: Units) -> Result<(), Denial> {
        Ok(())
    }

    fn true_up(&mut self, _now: Moment, _paid: &Paid, _difference: Difference) {}
}

fn a_reply() -> Reply {
    let level = LevelView { per_minute: 60, capacity: 100, level: -3, until_full: Span::from_secs(103) };
    let wait = Span::from_secs(4);
    let denial = Denial::Rate {
        scope: Scope::Key("production".into()),
        dimension: Dimension::Tokens,
        need: 1,
        level: -3,
        capacity: 100,
        wait,
    };
    Reply::Decided {
        ends: vec![Ok(Resolved::Now { refunded: 9, overage: 0 }), Err(RefusalCode::OtherEpoch(Epoch(4)))],
        reserved: Some(Ok(Decision {
            verdict: Verdict::Denied(denial),
            levels: [Some(level), None, None, None],
            version: 2,
            paid: None,
        })),
    }
}

/// A limiter with one of everything.
fn a_limiter() -> Limiter {
    let mut rules = TenantRules::unlimited();
    let limit = RateLimit::new(Dimension::Tokens, Rate::new(60, 100));
    rules.add(ScopeLimits { scope: Scope::Tenant, rates: vec![limit], max_inflight: Some(4) });
    rules.add(ScopeLimits { scope: Scope::User, rates: vec![limit], max_inflight: None });
    let rules = std::sync::Arc::new(Rules::first(vec![("acme".into(), rules)]));
    let mut limiter = Limiter::first(Options::default(), rules);
    let acme = Name::from("acme");
    for id in 1..=3 {
        let request = Request {
            id: ReservationId(id),
            tenant: &acme,
            key: "production",
            user: Some(UserDigest(id)),
            project: None,
            model: "gpt-5",
            need: Amount::new(10, 5),
            idempotency: (id == 3).then_some(IdempotencyDigest(4)),
            lane: Lane::Regular,
        };
        limiter.reserve_paid(Moment::from_nanos(0), &request, true, &mut FromMain);
    }
    limiter.resolve(Moment::from_nanos(1), ReservationId(3), Resolution::Settle(Amount::new(12, 9)));
    limiter.resolve(Moment::from_nanos(2), ReservationId(9), Resolution::Cancel);
    limiter
}

fn hex(bytes: &[u8]) -> String {
    hex::encode(bytes)
}

/// A change here is a new version of the wire: raise it, and let the old one be refused.
#[test]
fn golden_bytes() {
    insta::assert_snapshot!("question", hex(&question(&a_question()).unwrap()));
    insta::assert_snapshot!("reply", hex(&reply(&a_reply()).unwrap()));
    insta::assert_snapshot!("attempt", hex(&question(&a_further_attempt()).unwrap()));
    insta::assert_snapshot!("attempted", hex(&reply(&not_paid()).unwrap()));
    insta::assert_snapshot!("told", told().map(|told| hex(&question(&told).unwrap())).join("\n"));
    insta::assert_snapshot!("whose", hex(&reply(&whose()).unwrap()));
    insta::assert_snapshot!("announced", hex(&announced(&vec![held()]).unwrap()));
    insta::assert_snapshot!("exported", hex(&exported(&a_limiter().export(Moment::from_nanos(3))).unwrap()));
}

#[test]
fn what_was_written_is_read() {
    assert_eq!(read_question(&question(&a_question()).unwrap()), Ok(a_question()));
    assert_eq!(read_reply(&reply(&a_reply()).unwrap()), Ok(a_reply()));
    assert_eq!(read_question(&question(&a_further_attempt()).unwrap()), Ok(a_further_attempt()));
    assert_eq!(read_reply(&reply(&not_paid()).unwrap()), Ok(not_paid()));
    assert_eq!(read_announced(&announced(&vec![held()]).unwrap()), Ok(vec![held()]));
    let export = a_limiter().export(Moment::from_nanos(3));
    assert_eq!(read_exported(&exported(&export).unwrap()), Ok(export));
}

#[test]
fn another_version_and_a_tail_are_not_read() {
    let bytes = question(&a_question()).unwrap();
    let mut newer = bytes.clone();
    newer[0] += 1;
    assert_eq!(read_question(&newer), Err(Unreadable));
    assert_eq!(read_question(&[&bytes[..], &[0]].concat()), Err(Unreadable));
    assert_eq!(read_question(&bytes[..bytes.len() - 1]), Err(Unreadable));
    assert_eq!(read_question(&[]), Err(Unreadable));
}

proptest! {
    /// Any bytes, and any change of good ones, are read or refused; what is read of an export is imported or refused.
    #[test]
    fn hostile_bytes_do_no_harm(noise in prop::collection::vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>(), to: u8) {
        let mut versioned = noise.clone();
        versioned.insert(0, 3);
        let options = Options::default();
        let good = exported(&a_limiter().export(Moment::from_nanos(3))).unwrap();
        let mut changed = good.clone();
        changed[at.index(good.len())] = to;
        for bytes in [&noise, &versioned, &changed] {
            let _ = (read_question(bytes), read_reply(bytes), read_announced(bytes));
            if let Ok(export) = read_exported(bytes) {
                let rules = std::sync::Arc::new(Rules::first(vec![("acme".into(), TenantRules::unlimited())]));
                if let Ok(mut limiter) = Limiter::import(Moment::from_nanos(5), options, rules, export) {
                    limiter.handle_timeout(Moment::from_nanos(u64::MAX));
                    limiter.resolve(Moment::from_nanos(6), ReservationId(1), Resolution::Settle(Amount::new(u64::MAX, 0)));
                }
            }
        }
        let mut question = question(&a_question()).unwrap();
        let place = at.index(question.len());
        question[place] = to;
        let _ = read_question(&question);
    }
}
