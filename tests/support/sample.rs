//! The demo's sample of real traffic as a load: who asks when for how much, again and again, at any speed and size.

use std::time::Duration;

/// The busiest minute of 40 tenants; its first lines say where it comes from.
const SAMPLE: &str = include_str!("../../src/demo/data/minute.csv");

/// Of how many tenants, `t00` to `t39`. Some ask for nothing in this minute.
pub const TENANTS: usize = 40;

/// A request of the sample.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// How long after the beginning.
    pub at: Duration,
    /// Whose: a number below [`TENANTS`].
    pub tenant: usize,
    /// Tokens of its prompt.
    pub input: u64,
    /// Tokens of its answer.
    pub output: u64,
}

/// The minute itself, in the order of arrival.
pub fn minute() -> Vec<Arrival> {
    let lines = SAMPLE.lines().filter(|line| !line.starts_with('#')).skip(1);
    let arrival = |line: &str| {
        let mut fields = line.split(',');
        let mut next = || fields.next().unwrap_or_default();
        let at = Duration::from_millis(next().parse().ok()?);
        let tenant = next().strip_prefix('t')?.parse().ok()?;
        Some(Arrival { at, tenant, input: next().parse().ok()?, output: next().parse().ok()? })
    };
    lines.map(|line| arrival(line).unwrap_or_else(|| panic!("not a request: {line}"))).collect()
}

/// The minute again and again without an end, each time in a minute divided by `speed`, sizes as they are.
pub fn repeated(speed: u32) -> impl Iterator<Item = Arrival> {
    let minute = minute();
    (0u32..).flat_map(move |round| {
        let began = Duration::from_secs(60) * round;
        let moved = |arrival: &Arrival| Arrival { at: (began + arrival.at) / speed, ..*arrival };
        minute.iter().map(moved).collect::<Vec<_>>()
    })
}

/// What each tenant asks for in the minute, in tokens.
pub fn asked() -> [u64; TENANTS] {
    let mut asked = [0; TENANTS];
    for arrival in minute() {
        asked[arrival.tenant] += arrival.input + arrival.output;
    }
    asked
}
