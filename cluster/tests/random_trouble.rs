//! Whole clusters of the real code through random trouble in virtual time: drifting clocks, pauses between debit and answer,
//! kills, partitions, messages lost, late and repeated. After it, every shard is answered for again.
//!
//! A failure prints its seed. `SEED=… NODES=… cargo test -p tollgate-cluster --test random_trouble replay -- --nocapture` runs it again.

#[path = "random_trouble/process.rs"]
mod process;
#[path = "random_trouble/random.rs"]
mod random;
#[path = "random_trouble/world.rs"]
mod world;

use proptest::prelude::*;
use tollgate_cluster::lease::Timing;
use tollgate_cluster::time::Span;

use crate::world::{Course, Outcome, World};

/// Twenty seconds of trouble: six leases.
const TROUBLED: u64 = 20_000_000_000;
/// Milliseconds after the heal in which every shard must be answered for: a wait for a fence, an election, another wait, and the moves.
const PATIENCE: u64 = 15_000;

fn run(seed: u64, nodes: usize) -> Outcome {
    World::new(Course { seed, nodes, troubled: TROUBLED, held: Timing::DEFAULT }).run(PATIENCE)
}

fn check(seed: u64, nodes: usize, outcome: &Outcome) -> Result<(), String> {
    let again = format!(
        "SEED={seed} NODES={nodes} cargo test -p tollgate-cluster --test random_trouble replay -- --nocapture"
    );
    if !outcome.broken.is_empty() {
        return Err(format!("{:#?}\nagain: {again}", outcome.broken));
    }
    if outcome.recovered.is_none() {
        return Err(format!(
            "some shard is not answered for {PATIENCE} ms after the heal: {outcome:?}\nagain: {again}"
        ));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_owner_through_any_trouble_and_service_after_it(seed in any::<u64>(), nodes in 3..=5usize) {
        let outcome = run(seed, nodes);
        prop_assert!(check(seed, nodes, &outcome).is_ok(), "{}", check(seed, nodes, &outcome).unwrap_err());
    }
}

/// A simulation in which nothing happens proves nothing.
#[test]
fn the_trouble_reaches_every_path() {
    let mut sum = Outcome::default();
    for seed in 0..20 {
        let outcome = run(seed, 5);
        sum.answers += outcome.answers;
        sum.imports += outcome.imports;
        sum.cold_starts += outcome.cold_starts;
        sum.elections += outcome.elections;
        sum.forfeited += outcome.forfeited;
    }
    assert!(sum.answers > 50_000, "{sum:?}");
    assert!(sum.imports > 50 && sum.cold_starts > 50 && sum.elections > 10 && sum.forfeited > 10, "{sum:?}");
}

#[test]
fn the_same_seed_gives_the_same_course() {
    assert_eq!(format!("{:?}", run(7, 5)), format!("{:?}", run(7, 5)));
}

/// Holders that believe in leases of twice the length: the check of `one_owner` must see it.
#[test]
fn a_holder_that_counts_too_long_is_found_out() {
    let held = Timing { lease: Span::from_millis(6000), ..Timing::DEFAULT };
    let found = (0..40).find(|&seed| {
        let outcome = World::new(Course { seed, nodes: 5, troubled: TROUBLED, held }).run(0);
        outcome.broken.iter().any(|law| law.contains("answer at one time"))
    });
    assert!(found.is_some(), "forty courses and two owners never met");
}

#[test]
fn replay() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
    };
    let (seed, nodes) = (number("SEED", 1), number("NODES", 3) as usize);
    let outcome = run(seed, nodes);
    println!("{outcome:#?}");
    check(seed, nodes, &outcome).unwrap();
}
