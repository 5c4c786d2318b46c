//! Who answers for what in a cluster of equal nodes.
//!
//! N nodes share 1,024 shards. What must be agreed on is in a replicated log, what must be quick is at one owner per shard, and
//! a lease ties the two: the owner answers without asking anybody, as long as nobody else can have been given its shard.
//! What a shard *is* this crate does not know: it moves a payload, and says who may answer now.
//!
//! In reading order:
//! - [`id`], [`time`], [`log_time`]: names, and the three kinds of time;
//! - [`ring`]: members → owner of each shard;
//! - [`authority`]: what the log means: members, sessions, fences, who holds each shard;
//! - [`agreed`]: what the host has its cluster agree on, in the same log;
//! - [`lease`]: a session's right to answer, from the holder's and from the grantor's side;
//! - [`handoff`]: a shard's way from one session to another;
//! - [`view`]: the three combined: may this node answer for this shard now?
//! - [`membership`], [`keyring`]: who votes, how a cluster begins, how its secret is changed;
//! - [`shards`]: what a node has of each shard, and the one place where a decision is checked twice;
//! - [`secret`], [`wire`]: what a node must hold to be believed, and how values become bytes; [`peer`], [`gossip`]: calls between nodes,
//!   and hints of who is there;
//! - [`store`]: what outlives the process; [`raft`]: the log itself, agreed on by a majority;
//! - [`member`]: all of it put together and kept going; [`alone`]: the log of a node that is its own cluster;
//! - [`outside`]: network, clocks, chance and disk as traits, each with a twin in memory for the tests.
//!
//! Laws, each on the first page of the module that keeps it, checked over all interleavings in `tests/model.rs` and through
//! random trouble in `tests/random_trouble.rs`:
//! - `one_owner`: at any instant of true time at most one session answers for a shard, through pauses, partitions, crashes, drift
//!   within ρ, and messages lost, late or repeated;
//! - an export is used at most once;
//! - once a majority can talk, every shard is answered for again.
//!
//! From [`id`] to [`keyring`] everything is (state, now, command) → outcome: no async, I/O, clocks, locks, logs, randomness, floats,
//! or iteration over a hash map. Never anywhere in this crate: a word of what is limited.

pub mod agreed;
pub mod alone;
pub mod authority;
pub mod gossip;
pub mod handoff;
pub mod id;
pub mod keyring;
pub mod lease;
pub mod log_time;
pub mod member;
pub mod membership;
pub mod mutant;
pub mod outside;
pub mod peer;
pub mod raft;
pub mod ring;
pub mod secret;
pub mod shards;
pub mod store;
pub mod time;
pub mod view;
pub mod wire;
