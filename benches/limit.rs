//! The limiter's cost: a reserve and its settle in nanoseconds on 1 and on 1,000,000 tenants, a denial, and the bytes that an idle
//! tenant holds. Each tenant has four limits: tokens, requests, a key's, a model rule's.
//!
//! Run: `cargo bench --bench limit`. A pair's goal is 1 µs, a tenant's 660 bytes.

#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait; this one counts and hands on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use divan::Bencher;
use divan::counter::ItemsCount;
use tollgate::limit::{
    Amount, Dimension, Limiter, ModelMatch, Moment, Name, Options, Rate, RateLimit, Request, ReservationId,
    Resolution, Rules, Scope, ScopeLimits, Span, TenantRules,
};

/// The system's allocator, and how many bytes it has handed out that have not come back.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed to `System` unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Short, so that the whole bench fits in the minute that an idle tenant stays.
const REMEMBER: Span = Span::from_nanos(100_000);

/// Pairs in one sample.
const PAIRS: usize = 10_000;

fn main() {
    report_bytes_per_tenant();
    divan::main();
}

/// What 100,000 tenants hold in the limiter once each has sent one request, beyond the rules, which the policy holds anyway.
fn report_bytes_per_tenant() {
    const TENANTS: usize = 100_000;
    let mut world = World::new(TENANTS, u64::from(u32::MAX));
    let before = HELD.load(Ordering::Relaxed);
    for tenant in 0..TENANTS {
        world.pair(tenant);
        // The ended reservation is forgotten; the tenant stays.
        world.tick();
    }
    assert_eq!((world.limiter.reservations_held(), world.limiter.tenants_held()), (0, TENANTS));
    println!("bytes per idle tenant, 4 limits: {}", (HELD.load(Ordering::Relaxed) - before) / TENANTS);
}

/// A limiter whose tenants each have four limits.
struct World {
    limiter: Limiter,
    names: Vec<Name>,
    now: Moment,
    id: u128,
}

impl World {
    fn new(tenants: usize, burst: u64) -> Self {
        let names: Vec<Name> = (0..tenants).map(|tenant| format!("tenant-{tenant}").into()).collect();
        let rules = Rules::first(names.iter().map(|name| (name.clone(), limited(burst))).collect());
        Self {
            limiter: Limiter::first(Options { remember: REMEMBER, ..Options::default() }, Arc::new(rules)),
            names,
            now: Moment::from_nanos(1),
            id: 0,
        }
    }

    fn reserve(&mut self, tenant: usize) -> ReservationId {
        self.id += 1;
        self.now = self.now.plus(Span::from_nanos(1_000));
        let request = Request {
            // Ids are random: neighbours in time are strangers in a table.
            id: ReservationId(self.id.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)),
            tenant: &self.names[tenant],
            key: "production",
            user: None,
            project: None,
            model: "gpt-5",
            need: Amount::new(800, 200),
            idempotency: None,
            lane: tollgate::limit::Lane::Regular,
        };
        black_box(self.limiter.reserve(self.now, &request, true));
        request.id
    }

    fn pair(&mut self, tenant: usize) {
        let id = self.reserve(tenant);
        black_box(self.limiter.resolve(self.now, id, Resolution::Settle(Amount::new(800, 150))));
    }

    /// As the node's timer does, once the ended reservations have been remembered long enough.
    fn tick(&mut self) {
        self.now = self.now.plus(REMEMBER);
        black_box(self.limiter.handle_timeout(self.now));
    }

    fn pairs(&mut self, count: usize) {
        for turn in 0..count {
            // A step prime to any number of tenants visits them all in no order.
            let tenant = turn.wrapping_mul(7_919) % self.names.len();
            self.pair(tenant);
        }
        self.tick();
    }
}

fn limited(burst: u64) -> TenantRules {
    let rate = |dimension| RateLimit::new(dimension, Rate::new(600_000_000, burst));
    let mut rules = TenantRules::unlimited();
    rules.add(ScopeLimits {
        scope: Scope::Key("production".into()),
        rates: vec![rate(Dimension::Tokens)],
        max_inflight: None,
    });
    rules.add(ScopeLimits {
        scope: Scope::Tenant,
        rates: vec![rate(Dimension::Tokens), rate(Dimension::Requests)],
        max_inflight: Some(1_000),
    });
    rules.add_model(
        ModelMatch::Prefix("gpt-".into()),
        ScopeLimits {
            scope: Scope::Model("gpt-*".into()),
            rates: vec![rate(Dimension::Tokens)],
            max_inflight: None,
        },
    );
    rules
}

/// A reserve, its settle, and their share of the timer that forgets them.
#[divan::bench(args = [1, 1_000_000], sample_count = 100, sample_size = 1)]
fn reserve_and_settle(bencher: Bencher, tenants: usize) {
    let mut world = World::new(tenants, u64::from(u32::MAX));
    world.pairs(tenants);
    bencher.counter(ItemsCount::new(PAIRS)).bench_local(|| world.pairs(PAIRS));
}

/// A reservation refused because no bucket is that large: it looks at every bucket and changes nothing.
#[divan::bench(sample_count = 100, sample_size = 1)]
fn denial(bencher: Bencher) {
    let mut world = World::new(1, 999);
    bencher.counter(ItemsCount::new(PAIRS)).bench_local(|| {
        for _ in 0..PAIRS {
            world.reserve(0);
        }
    });
}
