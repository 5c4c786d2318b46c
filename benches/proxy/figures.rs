//! What was measured, by round, and how it is told: minimum, median and maximum, and the ratio to nginx round by round.

use std::fmt;

use super::proxies::Proxy;

/// One proxy's figures of one round. Times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Round {
    pub request_cpu: u64,
    pub requests_per_second: u64,
    /// CPU for each request when there are few of them.
    pub paced_cpu: u64,
    pub chunk_cpu: u64,
    pub chunk_delay_p50: u64,
    pub chunk_delay_p99: u64,
    pub added_p50: u64,
    pub added_p99: u64,
    /// Resident memory that came with the streams, for each.
    pub stream_bytes: u64,
    /// Resident memory before them.
    pub idle_bytes: u64,
}

impl fmt::Display for Round {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        write!(
            out,
            "request {:5.1} µs CPU ({:6} a second) · chunk {:5.1} µs CPU, delay p50 {:4.0} p99 {:5.0} µs · added p50 {:4.0} p99 {:5.0} µs · {:.1} MiB before, {:.1} KiB a stream",
            micros(self.request_cpu),
            self.requests_per_second,
            micros(self.chunk_cpu),
            micros(self.chunk_delay_p50),
            micros(self.chunk_delay_p99),
            micros(self.added_p50),
            micros(self.added_p99),
            self.idle_bytes as f64 / 1048576.0,
            self.stream_bytes as f64 / 1024.0,
        )
    }
}

/// A line of the table: its name, how to read it from a round, its scale, and which ratio to nginx is aimed at, if any.
type Line = (&'static str, fn(&Round) -> u64, f64, Option<&'static str>);

const LINES: [Line; 8] = [
    ("CPU ms per 1,000 requests", |round| round.request_cpu, 1e3, Some("≤ 2.0")),
    ("requests a second", |round| round.requests_per_second, 1.0, None),
    ("CPU ms per 1,000 requests, at 200 a second", |round| round.paced_cpu, 1e3, None),
    ("CPU ms per 1,000 chunks", |round| round.chunk_cpu, 1e3, Some("≤ 1.3")),
    ("chunk delay p50, µs", |round| round.chunk_delay_p50, 1e3, None),
    ("chunk delay p99, µs", |round| round.chunk_delay_p99, 1e3, Some("≤ 1.3")),
    ("added latency p50, µs", |round| round.added_p50, 1e3, Some("≤ 1.15")),
    ("added latency p99, µs", |round| round.added_p99, 1e3, Some("≤ 1.3")),
];

/// Prints the table. The first proxy is the one that the others are compared with.
pub fn report(proxies: &[Proxy], taken: &[Vec<Round>]) {
    println!("\n{} rounds; each figure as minimum – median – maximum", taken[0].len());
    for (name, figure, scale, goal) in LINES {
        println!("{name}");
        for (proxy, rounds) in proxies.iter().zip(taken) {
            let values = spread(rounds.iter().map(|round| figure(round) as f64 / scale));
            let ratios = rounds.iter().zip(&taken[0]);
            let ratios = spread(ratios.map(|(own, nginx)| figure(own) as f64 / figure(nginx).max(1) as f64));
            let goal = goal.map(|goal| format!(", goal {goal}")).unwrap_or_default();
            match proxy.name == proxies[0].name {
                true => println!("    {:9} {}", proxy.name, values.told(1)),
                false => {
                    println!("    {:9} {}    × nginx {}{goal}", proxy.name, values.told(1), ratios.told(2))
                }
            }
        }
    }
    println!(
        "First round, on a fresh process: resident MiB when idle, then KiB for each open stream (goals ≤ 40 and ≤ 26)"
    );
    for (proxy, rounds) in proxies.iter().zip(taken) {
        let first = &rounds[0];
        let (idle, stream) = (first.idle_bytes as f64 / 1048576.0, first.stream_bytes as f64 / 1024.0);
        println!("    {:9} {idle:.1} MiB, {stream:.1} KiB", proxy.name);
    }
}

struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn told(&self, digits: usize) -> String {
        format!("{:.digits$} – {:.digits$} – {:.digits$}", self.least, self.median, self.most)
    }
}

fn spread(values: impl Iterator<Item = f64>) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = |place: usize| values.get(place).copied().unwrap_or(f64::NAN);
    Spread { least: at(0), median: at(values.len() / 2), most: at(values.len().saturating_sub(1)) }
}
