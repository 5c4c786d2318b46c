//! What a node tells of pools and of its purses: read off whenever somebody looks.

use std::sync::atomic::Ordering;

use prometheus_client::registry::Registry;

use super::cluster::{so_far, so_far_by};
use super::{Counters, Gauges, Labels, counters, gauges};
use crate::control::pool::Pools;
use crate::limit::{Dimension, Moment};
use crate::node::escrow::Escrow;

/// The metrics of pools, as this node knows them.
pub struct PoolMetrics {
    /// What can be granted now, by pool and unit. As of the last entry that touched the pool.
    pub level: Gauges,
    /// What sessions hold, by pool and unit.
    pub outstanding: Gauges,
    /// Held by sessions when they ended, by pool and unit.
    pub written_off: Counters,
    /// Reported as spent, by pool and unit.
    pub spent: Counters,
    /// What this node's purses hold, by pool and unit.
    pub purse_held: Gauges,
    /// Draws by result (granted, refused).
    pub draws: Counters,
    /// Commands with draws, by result (answered, unanswered): each is an entry of the log.
    pub draw_commands: Counters,
}

impl PoolMetrics {
    pub(super) fn new(r: &mut Registry) -> Self {
        Self {
            level: gauges(r, "pool_level", "What a pool can grant now"),
            outstanding: gauges(r, "pool_outstanding", "What sessions hold of a pool"),
            written_off: counters(r, "pool_written_off", "Held of a pool by sessions when they ended"),
            spent: counters(r, "pool_spent", "Reported as spent of a pool"),
            purse_held: gauges(r, "purse_held", "What this node's purses hold of a pool"),
            draws: counters(r, "draws", "Draws of this node's purses by result"),
            draw_commands: counters(r, "draw_commands", "Commands with draws by result"),
        }
    }

    /// Brings them up to date.
    pub fn tell(&self, pools: &Pools, escrow: &Escrow, now: Moment) {
        let purses = escrow.purses(now);
        for (name, view) in pools.names().filter_map(|name| Some((name, pools.view(name)?))) {
            for level in &view.levels {
                let labels = labels(name, level.dimension);
                self.level.with(labels.clone()).set(level.level);
                self.outstanding.with(labels.clone()).set(gauge(level.outstanding));
                if let Some(purse) = purses.iter().find(|purse| purse.pool == *name) {
                    self.purse_held.with(labels.clone()).set(purse.held[level.dimension.index()]);
                }
                so_far(&self.written_off.with(labels.clone()), counted(level.books.written_off));
                so_far(&self.spent.with(labels), counted(level.books.spent));
            }
        }
        let counts = escrow.counts();
        let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        so_far_by(&self.draws, "result", "granted", read(&counts.draws));
        so_far_by(&self.draws, "result", "refused", read(&counts.refused));
        let unanswered = read(&counts.unanswered);
        so_far_by(&self.draw_commands, "result", "unanswered", unanswered);
        so_far_by(
            &self.draw_commands,
            "result",
            "answered",
            read(&counts.commands).saturating_sub(unanswered),
        );
    }
}

fn labels(pool: &str, dimension: Dimension) -> Labels {
    vec![("pool", pool.to_owned()), ("unit", dimension.unit().replace(' ', "_"))]
}

fn gauge(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

fn counted(units: u128) -> u64 {
    u64::try_from(units).unwrap_or(u64::MAX)
}
