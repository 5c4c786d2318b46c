//! Who answers for what in a cluster of equal nodes.
pub mod id;
pub mod ring;
pub mod time;
