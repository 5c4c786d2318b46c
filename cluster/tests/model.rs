//! Every interleaving of lease, fence and handoff within small bounds, checked on the real code with stateright.
//!
//! A model is green for two reasons: because the protocol holds, or because nothing happens in it. So each counts its states, asks
//! that the interesting things do happen, and is run again with one margin removed, where it must find the counterexample.

#[path = "model/handoff.rs"]
mod handoff;
#[path = "model/lease.rs"]
mod lease;
