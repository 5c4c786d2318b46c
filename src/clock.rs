//! The only reader of OS time. Everything else takes `now` as an argument.
//!
//! Two clocks:
//! - the **lease clock** ([`LeaseClock::now`]): `CLOCK_MONOTONIC_RAW + (CLOCK_BOOTTIME − CLOCK_MONOTONIC)`, which is neither
//!   slewed by NTP nor blind to suspend. Buckets refill by it, and leases will end by it.
//! - the **wall clock** ([`wall_now`]): only for what a person or a header reads.
