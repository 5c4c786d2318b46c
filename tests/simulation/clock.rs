//! A host's clocks: a lease clock with an origin and a rate of its own that runs on over restarts, a wall clock that can be stepped, and
//! the pause of a process between two readings.
//!
//! A pause cannot stop a task between two lines, so it is told from the outside: the reading at which it begins is the last of
//! before; every later one shows when it ends, and stays there until true time has come so far. Nothing leaves the host or
//! reaches it meanwhile, and whatever it does counts as done when the pause is over. So to all others it stood still, and to itself no
//! time has passed but on its clock.
//!
//! What a process does between two readings it may as well have done just before a pause that lies between them: no code can tell, and
//! none can promise more than that something held at the last reading. So what is judged by an instant has that of a reading
//! ([`HostClock::last_read`], [`HostClock::true_of`]), not that at which the pause was over.

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tollgate_cluster::outside::Clock;
use tollgate_cluster::time::Moment;

/// A clock of the right rate, in millionths of true time.
pub const RATE: u64 = 1_000_000;

/// Where the wall clocks begin: some day in 2026.
const WALL: u64 = 1_767_225_600_000;

/// The clocks of one host.
pub struct HostClock {
    name: String,
    others: Vec<String>,
    origin: u64,
    rate: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The pause that begins after so many more readings.
    armed: Option<(u64, u64)>,
    /// When the last pause is over.
    until: u64,
    /// What the last reading showed, in true time.
    read: u64,
    wall_step: i64,
    /// The latest that its wall clock ever showed.
    wall_shown: u64,
    /// Pauses that have begun and are not told of yet: from and until.
    begun: Vec<(u64, u64)>,
}

impl HostClock {
    /// The clock of host `name`, to be held apart from `others` while it is paused.
    pub fn new(name: String, others: Vec<String>, origin: u64, rate: u64) -> Self {
        Self { name, others, origin, rate, state: Mutex::default() }
    }

    /// The instant in true time that counts for what this host does now.
    pub fn true_now(&self) -> u64 {
        true_nanos().max(self.state().until)
    }

    /// The instant in true time that the last reading showed: the latest that this host can know of.
    pub fn last_read(&self) -> u64 {
        self.state().read
    }

    /// The instant in true time at which a reading showed `moment`.
    pub fn true_of(&self, moment: Moment) -> u64 {
        let passed = u128::from(moment.as_nanos().saturating_sub(self.origin));
        (passed * u128::from(RATE)).div_ceil(u128::from(self.rate)) as u64
    }

    /// Lets the process stand still for `length`, after `readings` more readings of the lease clock.
    pub fn arm(&self, readings: u64, length: Duration) {
        let mut state = self.state();
        if state.until <= true_nanos() {
            state.armed = Some((readings, length.as_nanos() as u64));
        }
    }

    /// As it was armed, but by this many readings from now: nothing if it is not armed.
    pub fn aim(&self, readings: u64) {
        if let Some((left, _)) = &mut self.state().armed {
            *left = readings;
        }
    }

    /// Nothing stands still that has not begun to.
    pub fn disarm(&self) {
        self.state().armed = None;
    }

    /// The pauses that have begun since this was last asked.
    pub fn begun(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.state().begun)
    }

    /// Steps the wall clock.
    pub fn step_wall(&self, millis: i64) {
        self.state().wall_step += millis;
    }

    /// The latest that its wall clock ever showed, in milliseconds since 1970.
    pub fn wall_shown(&self) -> u64 {
        self.state().wall_shown
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under it")
    }
}

impl Clock for HostClock {
    fn now(&self) -> Moment {
        let now = true_nanos();
        let mut state = self.state();
        let shown = now.max(state.until);
        state.read = shown;
        match state.armed {
            Some((0, length)) => {
                state.armed = None;
                state.until = now + length;
                state.begun.push((now, now + length));
                for other in &self.others {
                    turmoil::hold(self.name.as_str(), other.as_str());
                }
            }
            Some((left, length)) => state.armed = Some((left - 1, length)),
            None => {}
        }
        let passed = u128::from(shown) * u128::from(self.rate) / u128::from(RATE);
        Moment::from_nanos(self.origin + passed as u64)
    }

    fn wall_millis(&self) -> u64 {
        let mut state = self.state();
        let shown = (WALL + true_nanos() / 1_000_000).saturating_add_signed(state.wall_step);
        state.wall_shown = state.wall_shown.max(shown);
        shown
    }
}

/// True time, of the host that runs.
pub fn true_nanos() -> u64 {
    turmoil::sim_elapsed().map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
