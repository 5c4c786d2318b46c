//! Who answers for what in a cluster of equal nodes.
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
