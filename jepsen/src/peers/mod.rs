//! Other limiters in the same chair: what users would run instead, under the same callers, the same faults and the same checker.
//!
//! - `redis`: stateless front ends that ask one Redis, which keeps a token bucket for each tenant in a Lua script. A replica beside every
//!   front end, Sentinels that fail over, nothing kept on disk. Who gets no answer from it refuses.
//! - `redis_open`: the same, and who gets no answer admits: how most of them come.
//! - `counters`: front ends that each have a bucket of their own.
//!
//! A host of theirs is one process of this binary (`tollgate-jepsen peer`) with its Redis and its Sentinel in the same process group, so a
//! fault strikes all of it, as it would a machine. Nothing of them is judged but `no_overspend`.

mod counter;
mod front;
mod redis;
mod table;

use std::path::Path;
use std::process::Command;

pub use front::{PRIMARY, Place, serve};
pub use table::compare;

use crate::network::Host;

/// What runs on the hosts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum System {
    /// The product.
    #[default]
    Tollgate,
    /// A token bucket in Redis; refuses when that cannot be asked.
    Redis,
    /// The same; admits when it cannot be asked.
    RedisOpen,
    /// A token bucket in each process.
    Counters,
}

impl System {
    /// Its name on the command line.
    pub fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self)
            .map_or_else(String::new, |value| value.get_name().to_owned())
    }

    const fn has_redis(self) -> bool {
        matches!(self, Self::Redis | Self::RedisOpen)
    }

    /// The process of `host` in the run whose folder is `run`.
    ///
    /// # Errors
    /// This binary cannot be found.
    pub fn command(self, host: Host, run: &Path) -> Result<Command, String> {
        let own = std::env::current_exe().map_err(|error| format!("this binary cannot be found: {error}"))?;
        let mut command = Command::new(own);
        command.args(["peer", "--system", &self.name(), "--host", &host.to_string(), "--run"]).arg(run);
        Ok(command)
    }
}
