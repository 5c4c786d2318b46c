//! Who answers for what in a cluster of equal nodes: the pure half, which no network, disk or clock has touched.
//!
//! N nodes share 1,024 shards. What must be agreed on is in a replicated log, what must be quick is at one owner per shard, and
//! a lease ties the two: the owner answers without asking anybody, as long as nobody else can have been given its shard.
//! What a shard *is* this crate does not know: it moves a payload, and says who may answer now.
//!
//! In reading order:
//! - [`id`], [`time`], [`log_time`]: names, and the three kinds of time;
//! - [`ring`]: members → owner of each shard;
//! - [`authority`]: what the log means: members, sessions, fences, who holds each shard;
//! - [`lease`]: a session's right to answer, from the holder's and from the grantor's side;
//! - [`handoff`]: a shard's way from one session to another;
//! - [`view`]: the three combined: may this node answer for this shard now?
//! - [`membership`], [`keyring`]: who votes, how a cluster begins, how its secret is changed.
//!
//! Laws, each on the first page of the module that keeps it, checked over all interleavings in `tests/model.rs` and through
//! random trouble in `tests/simulation.rs`:
//! - `one_owner`: at any instant of true time at most one session answers for a shard, through pauses, partitions, crashes, drift
//!   within ρ, and messages lost, late or repeated;
//! - an export is used at most once;
//! - once a majority can talk, every shard is answered for again.
//!
//! Everything is (state, now, command) → outcome. Never here: async, I/O, clocks, locks, logs, randomness, floats, iteration over
//! a hash map, or a word of what is limited.

pub mod authority;
pub mod handoff;
pub mod id;
pub mod keyring;
pub mod lease;
pub mod log_time;
pub mod membership;
pub mod ring;
pub mod time;
pub mod view;
