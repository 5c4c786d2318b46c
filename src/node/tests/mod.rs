//! Nodes of one cluster in one process, on tokio's paused clock: the real shards, limiters, guards and outboxes, a log written by
//! hand, and a network that does as it is told.

mod agreed;
mod bytes;
mod stories;
mod trouble;
mod world;
