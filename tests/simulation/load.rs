//! Callers: they ask, hold what they get for a while, and end it in every way that there is.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tollgate::limit::{Amount, Name};
use tollgate::node::{Asking, Guard, Node, Principal, Reserved, reason};
use tollgate::route::Endpoint;

use super::history::Event;
use super::host::{MODEL, a_moment, below, tenant_name};
use super::pass;
use super::turmoil_world::SeededEntropy;
use super::world::{Phase, World};

/// Readings of the lease clock by a request to an owner on the same node, before the one that the debit is made by.
const BEFORE_THE_DEBIT: u64 = 1;

/// Asks until nobody asks any more.
pub async fn call(
    world: Arc<World>,
    host: usize,
    node: Arc<Node>,
    chance: SeededEntropy,
    cancel: CancellationToken,
) {
    let principals: Vec<Arc<Principal>> = (0..world.plan.tenants)
        .map(|tenant| {
            let (name, tier): (Name, Name) = (tenant_name(tenant).as_str().into(), "free".into());
            Arc::new(Principal::new(name, "production".into(), None, tier, Some(tenant)))
        })
        .collect();
    let mut next = below(&chance, world.plan.tenants as u64) as usize;
    while world.phase() < Phase::Drain && !cancel.is_cancelled() {
        next = (next + 1) % world.plan.tenants;
        let now = world.hosts[host].clock.true_now();
        let tenant = match world.bursting(now).as_slice() {
            _ if !world.plan.bursts || world.phase() == Phase::Sound => next,
            // Somebody always asks for something now and then.
            [] if below(&chance, 100) < 3 => next,
            [] => {
                a_moment(&chance, 10..30).await;
                continue;
            }
            bursting => bursting[below(&chance, bursting.len() as u64) as usize],
        };
        ask(&world, host, &node, tenant, &principals[tenant], &chance).await;
        a_moment(&chance, 2..20).await;
    }
}

async fn ask(
    world: &Arc<World>,
    host: usize,
    node: &Arc<Node>,
    tenant: usize,
    principal: &Arc<Principal>,
    chance: &SeededEntropy,
) {
    let cost = 1 + below(chance, world.plan.cost);
    let model: Name = MODEL.into();
    let asking = Asking {
        id: node.new_id(),
        principal,
        endpoint: Endpoint::ChatCompletions,
        model_asked: MODEL,
        model: &model,
        provider: "simulated",
        estimate: Amount::new(cost, 0),
        user: None,
        idempotency: None,
        lane: tollgate::limit::Lane::Regular,
    };
    let asked = asking.id.0;
    let here = node.owners().tenant(&principal.tenant).is_some();
    if here && !world.hosts[host].aims_at_answer() && below(chance, 4) > 0 {
        // If this process is to stand still, then between a debit and its second check.
        world.hosts[host].clock.aim(BEFORE_THE_DEBIT);
    }
    let reserved = node.reserve(asking).await;
    match reserved {
        Reserved::Held(guard) => {
            let Some(id) = guard.reservation() else { return };
            let at = world.hosts[host].clock.last_read();
            world.push(Event::Used { at, id: id.0, asked, tenant, cost, gateway: host });
            let ends = below(chance, 1_000_000);
            let long = world.plan.deadline < Duration::from_secs(60) && below(chance, 100) < 3;
            let held =
                if long { world.plan.deadline.as_millis() as u64 + 500 } else { 5 + below(chance, 300) };
            let world = world.clone();
            tokio::spawn(async move {
                // What is held when the callers stop ends with them.
                let mut left = held;
                while left > 0 && world.phase() < Phase::Drain {
                    let some = left.min(100);
                    pass(Duration::from_millis(some)).await;
                    left -= some;
                }
                end(guard, cost, ends, world.plan.exact);
                world.push(Event::Ended { at: world.hosts[host].clock.true_now(), id: id.0 });
            });
        }
        Reserved::Denied(denial, _) => {
            let at = world.hosts[host].clock.true_now();
            world.push(Event::Refused { at, tenant, why: reason::code(&denial), gateway: host });
        }
    }
}

/// Ends a reservation in the way that `chance` says.
fn end(mut guard: Guard, cost: u64, chance: u64, exact: u64) {
    let used = |tokens| Amount::new(tokens, 0);
    if chance % 100 < exact {
        guard.sending();
        guard.settle(used(cost), "usage");
        return;
    }
    match (chance / 100) % 8 {
        0..=2 => {
            guard.sending();
            guard.settle(used(chance / 1000 % (cost + 1)), "usage");
        }
        3 => {
            guard.sending();
            guard.settle(used(cost + 1 + chance / 1000 % 3), "usage");
        }
        4 => {
            guard.sending();
            guard.close("no usage");
        }
        5 => {
            guard.give_up("nothing sent");
        }
        6 => drop(guard),
        _ => {
            guard.sending();
            drop(guard);
        }
    }
}
