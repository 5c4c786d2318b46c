//! Seven kinds of load, each sharp against other faults: no single one finds them all.
//!
//! What a limiter admits too much can hide behind what its bucket would have held anyway. So F and G keep the burst far below what a
//! lease's length refills, while E and H let buckets fill and then empty them at once. P edits the policy under load: what was tightened
//! is judged by the tighter limit from when it is said to be in force. Q has all tenants draw from a pool that binds long before their own
//! limits do. B has them use up budgets whose periods end on the way.

use std::time::Duration;

use super::history::Limit;

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Idle, then bursts; moves, cuts, pauses, slow answers.
    E,
    /// Saturated and sharp; cuts, pauses, crashes. The shortest lease.
    F,
    /// As F, with clocks that drift as far as they may.
    G,
    /// Bursts at moves: leaving, joining, restarts, wiped disks.
    H,
    /// As F, while the policy is tightened and loosened, and nodes are slow to follow.
    P,
    /// As F, and all tenants together are held to a pool.
    Q,
    /// Budgets that are used up, crashes and restarts of those who hold and report them, and wall clocks that pass a boundary.
    B,
}

/// What a run is made of.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub profile: Profile,
    pub limit: Limit,
    /// What the limit is now and then edited to be.
    pub tight: Option<Limit>,
    /// The guard rate of the pool that serves everybody, and what may be claimed of it at once.
    pub pool: Option<Limit>,
    /// What the smallest budget has for a period: see [`super::budgets::of_tenant`].
    pub budget: Option<u64>,
    pub lease: Duration,
    pub tenants: usize,
    /// Concurrent callers at each host.
    pub callers: usize,
    pub cost: u64,
    pub bursts: bool,
    /// Of a hundred reservations, how many use exactly their estimate.
    pub exact: u64,
    /// When a reservation that has not ended is closed.
    pub deadline: Duration,
    /// How long after its fence a gateway's session may report.
    pub grace: Duration,
    /// Whether clocks drift as far as they may.
    pub drifts: bool,
}

impl Profile {
    pub const ALL: [Self; 7] = [Self::E, Self::F, Self::G, Self::H, Self::P, Self::Q, Self::B];

    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| format!("{profile:?}") == name)
    }

    pub fn plan(self) -> Plan {
        let idle = Plan {
            profile: self,
            limit: Limit { burst: 40, per_minute: 600 },
            tight: None,
            pool: None,
            budget: None,
            lease: Duration::from_millis(2000),
            tenants: 8,
            callers: 4,
            cost: 4,
            bursts: true,
            exact: 40,
            deadline: Duration::from_secs(600),
            grace: Duration::from_secs(600),
            drifts: false,
        };
        let sharp = Plan {
            limit: Limit { burst: 5, per_minute: 12_000 },
            tenants: 4,
            callers: 6,
            cost: 3,
            bursts: false,
            exact: 85,
            ..idle
        };
        match self {
            Self::E => Plan { deadline: Duration::from_secs(6), ..idle },
            Self::F => Plan { lease: Duration::from_millis(1000), ..sharp },
            Self::P => Plan {
                lease: Duration::from_millis(1000),
                // A tenth of the rate: a node that goes on by the old policy for a tenth of a second shows.
                tight: Some(Limit { burst: 4, per_minute: 1_200 }),
                ..sharp
            },
            Self::G => Plan { drifts: true, ..sharp },
            // Each second refills more than the burst.
            Self::Q => Plan {
                lease: Duration::from_millis(1000),
                limit: Limit { burst: 200, per_minute: 12_000 },
                pool: Some(Limit { burst: 60, per_minute: 6_000 }),
                drifts: true,
                ..sharp
            },
            Self::B => Plan {
                lease: Duration::from_millis(1000),
                limit: Limit { burst: 200, per_minute: 9_000 },
                budget: Some(600),
                cost: 8,
                exact: 40,
                deadline: Duration::from_secs(4),
                // Some who die are back before it is over, and some are not.
                grace: Duration::from_secs(3),
                ..sharp
            },
            // So slow that a take-over refills next to nothing: who begins with more than nothing is seen.
            Self::H => Plan { limit: Limit { burst: 40, per_minute: 120 }, ..idle },
        }
    }
}
