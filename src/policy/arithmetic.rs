//! What a policy's numbers come to: per pool, what was sold against what there is.
//!
//! A tenant counts towards every pool it can reach, with its whole limit: it may send all of its traffic to one of them. A limit
//! that is missing cannot be summed and is counted apart. All of it is integer arithmetic; ratios are rounded up, so that a sum
//! just above a line never prints as the line.

use super::types::{Limits, Policy, Pool, Tenant, Window};
use super::units::Ratio;
use crate::limit::Dimension;

/// Committed peaks are a reason to ask the provider for more from this part of the ceiling on.
pub(super) const COMMITTED_PEAKS_LINE: Ratio = Ratio::from_parts_per_million(800_000);
/// Guaranteed floors leave little to share from this part of the guard rate on.
pub(super) const FLOORS_LINE: Ratio = Ratio::from_parts_per_million(700_000);

const MINUTES_PER_DAY: usize = 24 * 60;
const MINUTES_PER_WEEK: usize = 7 * MINUTES_PER_DAY;

/// One dimension of a pool: what there is and what was sold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolLine {
    /// What is counted.
    pub dimension: Dimension,
    /// What the provider allows per minute.
    pub ceiling: u64,
    /// What is handed out per minute.
    pub guard: u64,
    /// The limits of every tenant that can reach the pool, added up.
    pub sold: u128,
    /// Tenants that can reach the pool and have no limit in this dimension.
    pub unlimited_tenants: u64,
}

impl PoolLine {
    /// What was sold in hundredths of the ceiling, rounded up: 200 is twice the ceiling.
    #[must_use]
    pub fn oversubscription_percent(&self) -> u128 {
        (self.sold * 100).div_ceil(u128::from(self.ceiling))
    }
}

/// What a pool's numbers come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolArithmetic {
    /// The pool's name.
    pub pool: String,
    /// A line per dimension that has a ceiling.
    pub lines: Vec<PoolLine>,
    /// All tokens the provider allows per minute, if it limits them.
    pub tokens_ceiling: Option<u64>,
    /// All tokens handed out per minute.
    pub tokens_guard: Option<u64>,
    /// The floors of every tenant that can reach the pool, added up, in tokens per minute.
    pub floors: u128,
    /// The largest sum of window limits that hold at the same minute of a week, in tokens per minute.
    pub committed_peak: u128,
}

impl PoolArithmetic {
    /// Tokens of burst that guaranteed floors occupy: each floor's bucket holds two seconds of it, and a quarter of a second more
    /// is on its way.
    #[must_use]
    pub fn floor_burst(&self) -> u128 {
        (self.floors * 2_250).div_ceil(60_000)
    }

    /// Whether committed peaks reach the part of the ceiling at which to ask the provider for more.
    #[must_use]
    pub fn peaks_are_high(&self) -> bool {
        self.tokens_ceiling
            .is_some_and(|ceiling| self.committed_peak > u128::from(COMMITTED_PEAKS_LINE.of(ceiling)))
    }
}

/// The arithmetic of one pool.
#[must_use]
pub fn of_pool(policy: &Policy, name: &str, pool: &Pool) -> PoolArithmetic {
    let tenants: Vec<&Tenant> =
        policy.tenants.iter().filter(|tenant| reaches(policy, tenant, name)).collect();
    let line = |dimension: Dimension| {
        let ceiling = ceiling(dimension, pool)?;
        let mut line =
            PoolLine { dimension, ceiling, guard: pool.guard.of(ceiling), sold: 0, unlimited_tenants: 0 };
        for tenant in &tenants {
            match limit(dimension, &policy.effective_limits(tenant)) {
                Some(limit) => line.sold += u128::from(share_cap(tenant, name, line.guard).min(limit)),
                None => line.unlimited_tenants += 1,
            }
        }
        Some(line)
    };
    let tokens_ceiling = pool.ceiling.all_tokens_per_minute();
    PoolArithmetic {
        pool: name.to_owned(),
        lines: Dimension::ALL.into_iter().filter_map(line).collect(),
        tokens_ceiling,
        tokens_guard: tokens_ceiling.map(|ceiling| pool.guard.of(ceiling)),
        floors: tenants.iter().map(|tenant| u128::from(policy.floor_of(tenant))).sum(),
        committed_peak: committed_peak(&tenants),
    }
}

/// What another version of a policy sells otherwise, a sentence per pool and dimension.
#[must_use]
pub fn compared(now: &Policy, then: &Policy) -> Vec<String> {
    let mut changes = Vec::new();
    for (name, pool) in &then.pools {
        let (before, after) = (of_pool(now, name, pool), of_pool(then, name, pool));
        for (before, after) in before.lines.iter().zip(&after.lines) {
            let (was, is) = (before.oversubscription_percent(), after.oversubscription_percent());
            if was != is {
                let dimension = after.dimension.limit_name();
                changes.push(format!(
                    "pool {name}: {dimension} is sold to {is} % of its ceiling, after {was} %"
                ));
            }
        }
    }
    changes
}

/// Whether each limit that a tenant has more of than `before` is one that some pool it can reach could serve.
///
/// # Errors
/// The first limit that is above the ceilings of all of them, in words.
pub fn is_served(policy: &Policy, before: &Policy, tenant: &str) -> Result<(), String> {
    let Some(tenant) = policy.tenant(tenant) else { return Ok(()) };
    let limits = policy.effective_limits(tenant);
    let earlier = before.tenant(&tenant.id).map(|tenant| before.effective_limits(tenant));
    for dimension in Dimension::ALL {
        let Some(wanted) = limit(dimension, &limits) else { continue };
        if earlier.and_then(|earlier| limit(dimension, &earlier)).is_some_and(|earlier| earlier >= wanted) {
            // The policy promises it already, and has been warned of.
            continue;
        }
        let reached = policy.pools.iter().filter(|(name, _)| reaches(policy, tenant, name));
        let ceilings: Option<Vec<u64>> = reached.map(|(_, pool)| ceiling(dimension, pool)).collect();
        // A pool without a ceiling serves anything.
        let most = ceilings.and_then(|ceilings| ceilings.into_iter().max());
        if let Some(most) = most.filter(|most| wanted > *most) {
            return Err(format!(
                "{} of tenant {} would be {wanted}, and no pool that it can reach has a ceiling above {most}: override it with no more, or raise the pool's ceiling first",
                dimension.limit_name(),
                tenant.id
            ));
        }
    }
    Ok(())
}

/// Whether a tenant may name a model of this pool.
fn reaches(policy: &Policy, tenant: &Tenant, pool: &str) -> bool {
    policy.models.values().any(|model| model.pool == pool && tenant.allows_model(&model.name))
}

fn share_cap(tenant: &Tenant, pool: &str, guard: u64) -> u64 {
    tenant.pool_shares.get(pool).map_or(u64::MAX, |share| share.of(guard))
}

/// The largest sum of window limits that hold at once. Zones move against each other with daylight saving time, so a week in
/// January and one in July are both laid out, and the larger sum counts.
fn committed_peak(tenants: &[&Tenant]) -> u128 {
    // Any year would do; the sum depends on it only where a zone changes its rules.
    let weeks = [jiff::civil::date(2029, 1, 15), jiff::civil::date(2029, 7, 16)];
    weeks.into_iter().map(|monday| peak_of_week(tenants, monday)).max().unwrap_or(0)
}

/// Sums window limits minute by minute over one week in UTC; where several of a tenant's windows hold, its largest counts.
fn peak_of_week(tenants: &[&Tenant], monday: jiff::civil::Date) -> u128 {
    let mut sums = [0_u128; MINUTES_PER_WEEK];
    for tenant in tenants.iter().filter(|tenant| !tenant.windows.is_empty()) {
        let mut own = [0_u64; MINUTES_PER_WEEK];
        for window in &tenant.windows {
            let rate = window.limits.tokens_per_minute.unwrap_or(0);
            for minute in minutes_in_utc(window, monday) {
                own[minute] = own[minute].max(rate);
            }
        }
        sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += u128::from(own));
    }
    sums.into_iter().max().unwrap_or(0)
}

/// The minutes of the UTC week, Monday 00:00 being 0, at which a window holds.
fn minutes_in_utc(window: &Window, monday: jiff::civil::Date) -> impl Iterator<Item = usize> {
    let offset_seconds = jiff::tz::TimeZone::get(&window.zone)
        .ok()
        .and_then(|zone| zone.to_zoned_datetime(monday.at(12, 0, 0, 0)).ok())
        .map_or(0, |zoned| zoned.offset().seconds());
    // Adding a week before subtracting keeps the number positive: no zone is a week away from UTC.
    let shift = (MINUTES_PER_WEEK as i64 - i64::from(offset_seconds / 60)) as usize;
    window.days.iter().flat_map(move |day| {
        let midnight = *day as usize * MINUTES_PER_DAY + shift;
        (window.from_minute as usize..window.to_minute as usize)
            .map(move |minute| (midnight + minute) % MINUTES_PER_WEEK)
    })
}

fn ceiling(dimension: Dimension, pool: &Pool) -> Option<u64> {
    match dimension {
        Dimension::Tokens => pool.ceiling.tokens_per_minute,
        Dimension::InputTokens => pool.ceiling.input_tokens_per_minute,
        Dimension::OutputTokens => pool.ceiling.output_tokens_per_minute,
        Dimension::Requests => pool.ceiling.requests_per_minute,
    }
}

/// The most a tenant may use; a part is bounded by the total as well.
fn limit(dimension: Dimension, limits: &Limits) -> Option<u64> {
    let total = limits.tokens.map(|rate| rate.per_minute);
    let within_total = |part: Option<u64>| match (part, total) {
        (Some(part), Some(total)) => Some(part.min(total)),
        (part, total) => part.or(total),
    };
    match dimension {
        Dimension::Tokens => {
            let input = limits.input_tokens.map(|rate| rate.per_minute);
            let output = limits.output_tokens.map(|rate| rate.per_minute);
            within_total(input.zip(output).map(|(input, output)| input.saturating_add(output)))
        }
        Dimension::InputTokens => within_total(limits.input_tokens.map(|rate| rate.per_minute)),
        Dimension::OutputTokens => within_total(limits.output_tokens.map(|rate| rate.per_minute)),
        Dimension::Requests => limits.requests.map(|rate| rate.per_minute),
    }
}
