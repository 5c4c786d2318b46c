//! simulated
