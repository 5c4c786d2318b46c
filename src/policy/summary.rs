//! Placeholder until the summary is written.
