//! What a tenant sees of a cluster, and what its owners have in the end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate_cluster::outside::Clock as _;
use tollgate_cluster::time::Span;

use super::super::*;
use super::world::{Fault, World, ask, others, pass};

/// Rates so low that nothing refills while a story lasts.
const HUNDRED: &str = "tokens_per_minute: 1, burst_tokens: 100";

fn used(tokens: u64) -> Amount {
    Amount::new(tokens, 0)
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_ten_admits_exactly_ten_through_three_nodes() {
    let world = World::of(3, "requests_per_minute: 10, burst_requests: 10");
    let mut admitted = Vec::new();
    for round in 0..30 {
        if let Reserved::Held(guard) = world.ask(&world.members[round % 3], 1).await {
            admitted.push(guard);
        }
    }
    assert_eq!(admitted.len(), 10);
    let elsewhere: u64 = world.members.iter().map(|member| member.node.metrics.decided_elsewhere.get()).sum();
    assert!(elsewhere >= 6, "{elsewhere}");
    drop(admitted);
    world.comes_to_rest().await;
}

#[tokio::test(start_paused = true)]
async fn an_id_of_before_the_membership_is_replaced_by_one_that_ends_with_its_gateway() {
    let world = World::of(2, HUNDRED);
    let node = world.other().node.clone();
    let asking = Asking {
        id: ReservationId::new(7, 7),
        principal: &world.principal,
        endpoint: crate::route::Endpoint::ChatCompletions,
        model_asked: "gpt-5",
        model: &"gpt-5".into(),
        provider: "simulated",
        estimate: used(30),
        user: None,
        idempotency: None,
        lane: Lane::Regular,
    };
    let Reserved::Held(guard) = node.reserve(asking).await else { panic!() };
    assert_eq!(guard.reservation().map(|id| format!("{:016x}", id.life())), Some(node.session()));
    drop(guard);
    world.comes_to_rest().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_debits_once() {
    let world = World::of(3, HUNDRED);
    world.faults([Fault::LoseReply, Fault::NotSent, Fault::Twice]);
    let guard = world.hold(world.other(), 30).await;
    assert_eq!((world.level(), world.view().open), (70, 1));
    guard.settle(used(10), "usage");
    world.comes_to_rest().await;
    assert_eq!(world.level(), 90);
}

#[tokio::test(start_paused = true)]
async fn a_lost_question_is_asked_again() {
    let world = World::of(2, HUNDRED);
    world.faults([Fault::LoseQuestion]);
    drop(world.hold(world.other(), 30).await);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn who_asks_again_at_once_finds_the_refund() {
    let world = World::of(2, HUNDRED);
    for _ in 0..20 {
        let mut guard = world.hold(world.other(), 100).await;
        guard.sending();
        guard.settle(used(0), "usage");
    }
    assert_eq!(world.level(), 0);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_settle_is_sent_until_it_is_acknowledged() {
    let world = World::of(2, HUNDRED);
    let mut guard = world.hold(world.other(), 60).await;
    guard.sending();
    world.faults([Fault::LoseReply, Fault::LoseQuestion, Fault::NotSent, Fault::Twice]);
    let receipt = guard.settle(used(50), "usage");
    assert_eq!((receipt.charged, receipt.refunded, receipt.overage), (50, 10, 0));
    assert_eq!(world.level(), 40);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 50);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_its_tenant_to_arrive_elsewhere() {
    let mut world = World::of(3, HUNDRED);
    let open = world.hold(world.other(), 20).await;
    let owner = world.owner().id;
    let (node, principal) = (world.other().node.clone(), world.principal.clone());
    world.ring_begins(&others(&world, owner));
    let asking = tokio::spawn(async move { ask(node, principal, 30).await });
    pass(Duration::from_millis(300)).await;
    assert!(!asking.is_finished());
    world.moves();
    let Reserved::Held(guard) = asking.await.unwrap() else { panic!() };
    assert_ne!(world.owner().id, owner);
    assert_eq!((world.level(), world.view().open), (50, 2));
    // One that was debited before the move is refunded after it.
    open.settle(used(5), "usage");
    drop(guard);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 95);
}

#[tokio::test(start_paused = true)]
async fn the_answer_of_a_former_holder_is_not_believed() {
    let mut world = World::of(3, HUNDRED);
    let owner = world.owner().id;
    let (gateway, principal) = (world.other().node.clone(), world.principal.clone());
    world.faults([Fault::LateReply(Duration::from_millis(200))]);
    let asking = tokio::spawn(ask(gateway.clone(), principal, 30));
    pass(Duration::from_millis(50)).await;
    world.ring(&others(&world, owner));
    let Reserved::Held(guard) = asking.await.unwrap() else { panic!() };
    assert!(gateway.render_metrics().contains("tollgate_asked_again_total{reason=\"former_holder\"} 1"));
    // The same id at the next holder, which knows it from the export.
    assert_eq!((world.level(), world.view().open), (70, 1));
    drop(guard);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn after_a_crash_open_work_keeps_its_slots_and_is_not_refunded() {
    let mut world = World::of(3, "tokens_per_minute: 6_000, burst_tokens: 100, max_inflight: 2");
    let owner = world.owner().id;
    let gateway = world.members.iter().find(|member| member.id != owner).unwrap().id;
    let at = |world: &World| world.members.iter().position(|member| member.id == gateway).unwrap();
    let (one, two) =
        (world.hold(&world.members[at(&world)], 20).await, world.hold(&world.members[at(&world)], 20).await);
    world.kill(owner);
    assert_eq!(world.level(), 0);
    tokio::time::advance(Duration::from_millis(500)).await;
    // Until everybody has said what is open, nothing with a cap on it is admitted.
    assert_eq!(world.refused(&world.members[at(&world)], 10).await, Denial::Recovering);
    world.announce();
    assert_eq!(world.inflight(), 2);
    assert!(matches!(world.refused(&world.members[at(&world)], 10).await, Denial::Inflight { .. }));
    let before = world.level();
    assert!(before >= 49);
    one.settle(used(5), "usage");
    world.comes_to_rest_but(1).await;
    assert_eq!(world.inflight(), 1);
    two.settle(used(45), "usage");
    world.comes_to_rest().await;
    // It refilled meanwhile, and 25 of overage are debt.
    assert!(world.level() <= 100);
    assert_eq!(world.owner().node.owners().books().overage, 25);
}

#[tokio::test(start_paused = true)]
async fn a_settle_finds_the_holder_that_came_after() {
    let mut world = World::of(3, HUNDRED);
    let owner = world.owner().id;
    let guard = world.hold(world.other(), 40).await;
    // Nobody hears of it before the owner is gone.
    world.faults(std::iter::repeat_n(Fault::LoseQuestion, 1));
    guard.settle(used(70), "usage");
    world.kill(owner);
    world.announce();
    world.comes_to_rest().await;
    // Nothing of the 40 comes back, and the 30 beyond them are debt, once.
    assert_eq!(world.level(), -30);
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_too_old_is_cancelled_and_another_asked_for() {
    let world = World::of(2, HUNDRED);
    world.faults([Fault::Suspend(501)]);
    let guard = world.hold(world.other(), 30).await;
    tokio::time::advance(Duration::from_millis(100)).await;
    assert_eq!((world.level(), world.view().open), (70, 1));
    let told = world.other().node.render_metrics();
    assert!(told.contains("tollgate_asked_again_total{reason=\"stale_grant\"} 1"), "{told}");
    // The caller sees one request; what is held goes by another id.
    assert_eq!(world.owner().node.owners().held().reservations, 2);
    drop(guard);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn whenever_its_gateway_is_suspended_no_grant_is_used_that_the_clock_showed_to_be_old() {
    let (mut used, mut replaced) = (0, 0);
    for readings in 0..40 {
        let world = World::of(2, HUNDRED);
        let asked = world.network.clock.now();
        world.network.clock.suspend_after(readings, Span::from_millis(600));
        let guard = world.hold(world.other(), 30).await;
        let age = world.network.clock.shown().since(asked);
        if guard.reservation() == Some(guard.id()) {
            used += 1;
            assert!(
                age <= Span::from_millis(500),
                "suspended after {readings} more readings, used {age:?} old"
            );
        } else {
            replaced += 1;
        }
        drop(guard);
        world.comes_to_rest().await;
    }
    assert!(used > 0 && replaced > 2, "{used} used, {replaced} replaced");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_without_a_lease_asks_nobody() {
    let mut world = World::of(2, HUNDRED);
    let member = world.other_without_lease();
    let asked = world.network.asked.load(Ordering::Relaxed);
    let began = crate::clock::timer_now();
    assert_eq!(world.refused(&member, 1).await, Denial::Unavailable);
    assert!(crate::clock::timer_now() - began >= Duration::from_secs(2));
    assert_eq!(world.network.asked.load(Ordering::Relaxed), asked);
    assert_eq!(world.level(), 100);
}

/// A node that has started again knows an old policy, from its disk, and no lease. What it reads under that waits for one.
#[tokio::test(start_paused = true)]
async fn a_key_that_was_revoked_while_its_request_waited_for_a_lease_is_refused() {
    let mut world = World::of(2, HUNDRED);
    let mut member = world.other_without_lease();
    let (node, principal) = (member.node.clone(), world.principal.clone());
    let asking = tokio::spawn(async move { ask(node, principal, 30).await });
    pass(Duration::from_millis(300)).await;
    assert!(!asking.is_finished());
    member.hears_of_a_revocation();
    member.gets_a_lease(&world);
    assert!(matches!(asking.await.unwrap(), Reserved::Denied(Denial::Revoked, _)));
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_revoked_while_its_owner_was_asked_is_refused_and_what_was_held_comes_back() {
    let world = World::of(2, HUNDRED);
    world.faults([Fault::LateReply(Duration::from_millis(100))]);
    let (node, principal) = (world.other().node.clone(), world.principal.clone());
    let asking = tokio::spawn(async move { ask(node, principal, 30).await });
    pass(Duration::from_millis(50)).await;
    assert_eq!((asking.is_finished(), world.level()), (false, 70));
    world.other().hears_of_a_revocation();
    assert!(matches!(asking.await.unwrap(), Reserved::Denied(Denial::Revoked, _)));
    world.comes_to_rest().await;
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_refuses_is_told_of_an_end_now_and_then_until_it_takes_it() {
    let mut world = World::of(2, HUNDRED);
    let gateway = world.other().node.clone();
    let guard = world.hold(world.other(), 30).await;
    let place = world.members.iter().position(|member| member.id == world.owner().id).unwrap();
    let mut owner = world.members.remove(place);
    owner.loses_its_lease(&world);
    let asked = world.network.asked.load(Ordering::Relaxed);
    guard.settle(used(10), "usage");
    pass(Duration::from_secs(10)).await;
    let asked = world.network.asked.load(Ordering::Relaxed) - asked;
    assert!((10..=60).contains(&asked), "asked {asked} times in ten seconds");
    assert_eq!(gateway.metrics.outbox_retries.get(), asked - 1);
    owner.gets_a_lease(&world);
    world.members.push(owner);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 90);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_leaves_nothing_behind() {
    let world = World::of(2, HUNDRED);
    world.faults(std::iter::repeat_n(Fault::LoseReply, 4));
    assert_eq!(world.refused(world.other(), 30).await, Denial::Unavailable);
    world.faults([Fault::Late(Duration::from_millis(450))]);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_vanishes_while_its_request_is_on_the_way_leaves_nothing_behind() {
    let world = World::of(2, HUNDRED);
    world.faults([Fault::LoseReply]);
    let asking = tokio::spawn(ask(world.other().node.clone(), world.principal.clone(), 30));
    pass(Duration::from_millis(10)).await;
    assert_eq!(world.level(), 70);
    asking.abort();
    assert!(asking.await.is_err());
    world.comes_to_rest().await;
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn the_policy_may_let_through_what_nobody_can_decide_and_nothing_else() {
    let mut world = World::of(2, &format!("{HUNDRED}, on_unavailable: admit"));
    assert!(matches!(world.refused(world.other(), 200).await, Denial::Never { .. }));
    let member = world.other_without_lease();
    let guard = world.hold(&member, 30).await;
    assert!(
        member.node.render_metrics().contains("tollgate_tokens_unenforced_total{reason=\"unavailable\"} 30")
    );
    guard.settle(used(20), "usage");
    assert_eq!(world.level(), 100);
}

#[tokio::test(start_paused = true)]
async fn any_node_shows_what_a_tenant_has_left() {
    let world = World::of(3, HUNDRED);
    let guard = world.hold(world.other(), 30).await;
    for member in &world.members {
        let (owner, view) = member.node.look(&"acme".into()).await;
        assert_eq!(owner, Some(world.owner().id));
        assert_eq!(view.unwrap().scopes[0].limits[0].1.level, 70);
    }
    drop(guard);
}

/// The session was replaced between the number and the question: owners have ended what the earlier one made, and will not again.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_numbered_under_an_earlier_session_is_held_under_this_one() {
    let world = World::of(2, HUNDRED);
    let node = &world.other().node;
    let asking = Asking {
        id: ReservationId::new(7, 1),
        principal: &world.principal,
        endpoint: Endpoint::ChatCompletions,
        model_asked: "m",
        model: &"m".into(),
        provider: "simulated",
        estimate: used(30),
        user: None,
        idempotency: None,
        lane: Lane::Regular,
    };
    let Reserved::Held(guard) = node.reserve(asking).await else { panic!("it fits") };
    let open = node.owners().shards().host().open().announce(world.shard(), node.now());
    assert_eq!(open.iter().map(|open| open.id.life()).collect::<Vec<_>>(), [node.life()]);
    drop(guard);
    world.comes_to_rest().await;
    assert_eq!(world.level(), 100);
}
