//! Faults that can be put into this code, to see that the checks find them.
//!
//! A build with `--cfg mutant` holds all of them and the environment variable `MUTANT` names the one that is in force. In every
//! other build the question is the constant `false`.

/// Whether the fault `name` is in force.
#[cfg(mutant)]
#[must_use]
pub fn is(name: &str) -> bool {
    static NAME: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("MUTANT").ok());
    NAME.as_deref() == Some(name)
}

/// Whether the fault `name` is in force: never, in this build.
#[cfg(not(mutant))]
#[must_use]
#[inline(always)]
pub const fn is(_name: &str) -> bool {
    false
}

/// Stops this whole process at `point`, now and then, while the variable `FAILPOINT` names it: `FAILPOINT=debited:3000:200` stops it for
/// 3,000 ms at one in 200 passes, as a machine that stalls would. Threads that went on would keep the lease.
#[cfg(mutant)]
pub fn pause(point: &str) {
    use std::process::Command;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    static PASSES: AtomicU64 = AtomicU64::new(0);
    static FAILPOINT: LazyLock<Option<(String, u64, u64)>> = LazyLock::new(|| {
        let text = std::env::var("FAILPOINT").ok()?;
        let mut words = text.split(':');
        let name = words.next()?.to_owned();
        Some((name, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    });
    if let Some((name, millis, every)) = &*FAILPOINT
        && name == point
        && PASSES.fetch_add(1, Ordering::Relaxed) % (*every).max(1) == *every - 1
    {
        let (seconds, millis) = (millis / 1000, millis % 1000);
        let script = format!("kill -STOP $PPID; sleep {seconds}.{millis:03}; kill -CONT $PPID");
        let stopping = Command::new("sh").args(["-c", &script]).env_remove("LD_PRELOAD").spawn();
        if stopping.is_ok() {
            // The signal comes while this thread waits here.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Stands still at `point`: never, in this build.
#[cfg(not(mutant))]
#[inline(always)]
pub const fn pause(_point: &str) {}
