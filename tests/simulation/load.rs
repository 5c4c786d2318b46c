//! Callers: they ask, hold what they get for a while, and end it in every way that there is.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tollgate::limit::{Amount, Denial, Name};
use tollgate::meter::Usage;
use tollgate::node::{Asking, Guard, Node, Principal, Reserved, reason};
use tollgate::route::{Dialect, Endpoint};

use super::budgets::Told;
use super::clock::true_nanos;
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
    (host, life): (usize, u64),
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
        ask(&world, (host, life), &node, tenant, &principals[tenant], &chance, &cancel).await;
        a_moment(&chance, 2..20).await;
    }
}

async fn ask(
    world: &Arc<World>,
    (host, life): (usize, u64),
    node: &Arc<Node>,
    tenant: usize,
    principal: &Arc<Principal>,
    chance: &SeededEntropy,
    cancel: &CancellationToken,
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
            let end = End::of(cost, below(chance, 1_000_000), world.plan.exact);
            let long = world.plan.deadline < Duration::from_secs(60) && below(chance, 100) < 3;
            // Longer than it takes until the session of a node that died is over.
            let slow = world.plan.budget.is_some() && below(chance, 100) < 8;
            let held = match (long, slow) {
                (true, _) => world.plan.deadline.as_millis() as u64 + 500,
                (false, true) => 1_000 + below(chance, 2_500),
                (false, false) => 5 + below(chance, 300),
            };
            let (world, cancel) = (world.clone(), cancel.clone());
            tokio::spawn(async move {
                // What is held when the callers stop ends with them.
                let mut left = held;
                while left > 0 && world.phase() < Phase::Drain && !cancel.is_cancelled() {
                    let some = left.min(100);
                    pass(Duration::from_millis(some)).await;
                    left -= some;
                }
                if world.plan.budget.is_some() {
                    let (at, real) = (world.hosts[host].clock.last_read(), true_nanos());
                    let charged = end.charged(cost);
                    world.push(Event::Budget(Told::Spent { at, real, id: id.0, host, life, charged }));
                }
                end.make(guard);
                world.push(Event::Ended { at: world.hosts[host].clock.true_now(), id: id.0 });
            });
        }
        Reserved::Denied(denial, _) => {
            let at = world.hosts[host].clock.true_now();
            world.count("budget refusals", u64::from(matches!(denial, Denial::Budget { .. })));
            world.push(Event::Refused { at, tenant, why: reason::code(&denial), gateway: host });
        }
    }
}

/// A way to end a reservation.
#[derive(Clone, Copy, Debug)]
enum End {
    /// With so much used.
    Used(u64),
    /// Sent, and without a report.
    Closed,
    /// Nothing was sent.
    GivenUp,
    /// Its request is gone: before anything was sent, or after.
    Dropped { sent: bool },
}

impl End {
    /// The one that `chance` says.
    const fn of(cost: u64, chance: u64, exact: u64) -> Self {
        if chance % 100 < exact {
            return Self::Used(cost);
        }
        match (chance / 100) % 8 {
            0..=2 => Self::Used(chance / 1000 % (cost + 1)),
            3 => Self::Used(cost + 1 + chance / 1000 % 3),
            4 => Self::Closed,
            5 => Self::GivenUp,
            6 => Self::Dropped { sent: false },
            _ => Self::Dropped { sent: true },
        }
    }

    /// What its budgets are charged if it held `cost`; nothing if it is cancelled.
    const fn charged(self, cost: u64) -> Option<u64> {
        match self {
            Self::Used(used) => Some(used),
            Self::Closed | Self::Dropped { sent: true } => Some(cost),
            Self::GivenUp | Self::Dropped { sent: false } => None,
        }
    }

    fn make(self, mut guard: Guard) {
        match self {
            Self::Used(used) => {
                guard.sending();
                let usage = Usage { uncached_input: used, ..Usage::default() };
                guard.settle_complete(usage, Dialect::OpenAi, 1);
            }
            Self::Closed => {
                guard.sending();
                guard.close("no usage");
            }
            Self::GivenUp => _ = guard.give_up("nothing sent"),
            Self::Dropped { sent: false } => drop(guard),
            Self::Dropped { sent: true } => {
                guard.sending();
                drop(guard);
            }
        }
    }
}
