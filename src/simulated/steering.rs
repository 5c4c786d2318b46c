//! The `x-sim` request header: how a caller steers the answer to one request.
//!
//! A comma-separated list of `item=value`. Law: an item that is not known, a value that does not parse and a half of a pair
//! are errors that say so; nothing is guessed. Items about streams leave a plain answer as it is.
//!
//! | item | meaning |
//! |---|---|
//! | `latency=50ms` | wait before the answer's head (`us`, `ms`, `s`; at most an hour) |
//! | `gap=5ms` | wait between two chunks of a stream |
//! | `tokens=200` | output tokens wanted, per choice; the request's own ceiling still caps them |
//! | `chunks=20` | content chunks per choice in a stream; default one per token |
//! | `reasoning=20` | of the output, so many tokens are hidden reasoning (OpenAI) or a thinking block (Anthropic) |
//! | `tool=1` | answer with a call of the request's tool |
//! | `cache_read=100` | of the input, so many tokens were read from the cache |
//! | `cache_write=50` | of the input, so many tokens were written to it (Anthropic; OpenAI knows no such count) |
//! | `skew=1.07` | multiply the prompt's count, rounded up, instead of the provider's own `--skew` |
//! | `usage=off` | bill, but report no usage |
//! | `n_finish=1` | of a stream's `n` choices only the first so many finish; the usage reported covers those, the bill all |
//! | `status=429` | refuse with this status (400 to 599), billing nothing |
//! | `retry_after=2` | … with this `retry-after`, in seconds |
//! | `fail_first=2,key=NAME` | refuse only the first two requests that carry this key; `status` is 503 unless given |
//! | `fail_after=3` | cut the connection after three content chunks; a plain answer is cut halfway |
//! | `close_early=1` | end a stream cleanly halfway: no finish reason, no usage, no end mark |
//! | `hang=1` | read the request and never answer |
//! | `gzip=1` | compress the answer, whatever `accept-encoding` says |
//! | `crlf=1` | end a stream's lines with CR LF |

use std::time::Duration;

/// The most output tokens a choice may be asked for: a body of some six megabytes.
const MAX_TOKENS: u64 = 1_000_000;

/// The longest wait.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// A factor in parts per thousand, so that bills stay integers. 1.07 is 1070.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skew(u32);

impl Skew {
    /// The factor 1.
    pub const NONE: Self = Self(1000);

    /// The count times the factor, rounded up: a provider that counts differently never counts less for it.
    #[must_use]
    pub fn apply(self, tokens: u64) -> u64 {
        tokens.saturating_mul(u64::from(self.0)).div_ceil(1000)
    }
}

impl Default for Skew {
    fn default() -> Self {
        Self::NONE
    }
}

impl std::str::FromStr for Skew {
    type Err = String;

    /// Reads a decimal from 0.1 to 10 with at most three places.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("skew `{text}` is not a decimal from 0.1 to 10 with at most three places, like 1.07");
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || whole.len() > 2 || fraction.len() > 3 {
            return Err(wrong());
        }
        let thousandths: u32 = format!("{whole}{fraction:0<3}").parse().map_err(|_| wrong())?;
        if (100..=10_000).contains(&thousandths) { Ok(Self(thousandths)) } else { Err(wrong()) }
    }
}

/// What one request asked for with `x-sim`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Steering {
    /// Wait before the head.
    pub latency: Duration,
    /// Wait between content chunks.
    pub gap: Duration,
    /// Output tokens wanted per choice.
    pub tokens: Option<u64>,
    /// Content chunks per choice.
    pub chunks: Option<u64>,
    /// Reasoning tokens among the output.
    pub reasoning: u64,
    /// Answer with a tool call.
    pub tool: bool,
    /// Cache reads among the input.
    pub cache_read: u64,
    /// Cache writes among the input.
    pub cache_write: u64,
    /// Replaces the provider's skew.
    pub skew: Option<Skew>,
    /// Report no usage.
    pub usage_off: bool,
    /// Choices of a stream that finish; `None` is all.
    pub n_finish: Option<u64>,
    /// Refuse with this status.
    pub status: Option<u16>,
    /// The refusal's `retry-after`, in seconds.
    pub retry_after: Option<u64>,
    /// Refuse only the first so many requests of the group.
    pub fail_first: Option<FailFirst>,
    /// Cut the connection after so many content chunks.
    pub fail_after: Option<u64>,
    /// End a stream cleanly halfway.
    pub close_early: bool,
    /// Never answer.
    pub hang: bool,
    /// Compress the answer.
    pub gzip: bool,
    /// CR LF in streams.
    pub crlf: bool,
}

/// A group of requests of which the first few are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailFirst {
    /// How many.
    pub times: u64,
    /// The group's name.
    pub key: String,
}

impl Steering {
    /// Reads the header's value.
    ///
    /// # Errors
    /// A sentence that names the item and what is wrong with it.
    pub fn parse(header: &str) -> Result<Self, String> {
        let mut steering = Self::default();
        let mut fail_first = None;
        let mut key = None;
        let mut seen = Vec::new();
        for item in header.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, value) = item
                .split_once('=')
                .ok_or_else(|| format!("x-sim: `{item}` is not of the form item=value"))?;
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(format!("x-sim: `{name}` is given twice"));
            }
            seen.push(name);
            match name {
                "latency" => steering.latency = wait(name, value)?,
                "gap" => steering.gap = wait(name, value)?,
                "tokens" => steering.tokens = Some(number(name, value, 0, MAX_TOKENS)?),
                "chunks" => steering.chunks = Some(number(name, value, 1, MAX_TOKENS)?),
                "reasoning" => steering.reasoning = number(name, value, 0, MAX_TOKENS)?,
                "tool" => steering.tool = switch(name, value)?,
                "cache_read" => steering.cache_read = number(name, value, 0, u64::MAX)?,
                "cache_write" => steering.cache_write = number(name, value, 0, u64::MAX)?,
                "skew" => steering.skew = Some(value.parse().map_err(|error| format!("x-sim: {error}"))?),
                "usage" if value == "off" => steering.usage_off = true,
                "usage" => return Err(format!("x-sim: usage `{value}` is not `off`")),
                "n_finish" => steering.n_finish = Some(number(name, value, 0, 128)?),
                "status" => steering.status = Some(number(name, value, 400, 599)? as u16),
                "retry_after" => steering.retry_after = Some(number(name, value, 0, u64::MAX)?),
                "fail_first" => fail_first = Some(number(name, value, 0, u64::MAX)?),
                "key" if value.len() <= 128 => key = Some(value.to_owned()),
                "key" => return Err("x-sim: key is longer than 128 bytes".to_owned()),
                "fail_after" => steering.fail_after = Some(number(name, value, 0, u64::MAX)?),
                "close_early" => steering.close_early = switch(name, value)?,
                "hang" => steering.hang = switch(name, value)?,
                "gzip" => steering.gzip = switch(name, value)?,
                "crlf" => steering.crlf = switch(name, value)?,
                unknown => return Err(format!("x-sim: there is no item `{unknown}`")),
            }
        }
        steering.fail_first = match (fail_first, key) {
            (Some(times), Some(key)) => Some(FailFirst { times, key }),
            (None, None) => None,
            _ => return Err("x-sim: fail_first and key go together".to_owned()),
        };
        if steering.retry_after.is_some() && steering.status.is_none() && steering.fail_first.is_none() {
            return Err("x-sim: retry_after needs a status or fail_first".to_owned());
        }
        Ok(steering)
    }
}

fn number(name: &str, value: &str, least: u64, most: u64) -> Result<u64, String> {
    let wrong = || match most {
        u64::MAX => format!("x-sim: {name} `{value}` is not a whole number of at least {least}"),
        _ => format!("x-sim: {name} `{value}` is not a whole number from {least} to {most}"),
    };
    let number = value.parse().map_err(|_| wrong())?;
    if (least..=most).contains(&number) { Ok(number) } else { Err(wrong()) }
}

fn switch(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err(format!("x-sim: {name} `{value}` is neither 1 nor 0")),
    }
}

fn wait(name: &str, value: &str) -> Result<Duration, String> {
    let wrong =
        || format!("x-sim: {name} `{value}` is not a wait of at most an hour, like 250us, 50ms or 2s");
    let unit_at = value.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(wrong)?;
    let amount: u64 = value[..unit_at].parse().map_err(|_| wrong())?;
    let wait = match &value[unit_at..] {
        "us" => Duration::from_micros(amount),
        "ms" => Duration::from_millis(amount),
        "s" => Duration::from_secs(amount),
        _ => return Err(wrong()),
    };
    if wait <= MAX_WAIT { Ok(wait) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_header_is_read_whole() {
        let steering = Steering::parse(
            "latency=50ms,chunks=20,gap=5ms,tokens=200,usage=off,status=429,retry_after=2,fail_after=3,n_finish=1",
        );
        assert_eq!(
            steering,
            Ok(Steering {
                latency: Duration::from_millis(50),
                chunks: Some(20),
                gap: Duration::from_millis(5),
                tokens: Some(200),
                usage_off: true,
                status: Some(429),
                retry_after: Some(2),
                fail_after: Some(3),
                n_finish: Some(1),
                ..Steering::default()
            })
        );
    }

    #[test]
    fn an_empty_header_steers_nothing() {
        assert_eq!(Steering::parse(" , "), Ok(Steering::default()));
    }

    #[test]
    fn nothing_is_guessed() {
        for (header, complaint) in [
            ("colour=red", "there is no item `colour`"),
            ("latency", "not of the form"),
            ("latency=50", "not a wait"),
            ("latency=2h", "not a wait"),
            ("latency=3601s", "not a wait"),
            ("tokens=-1", "not a whole number from 0"),
            ("tokens=1.5", "not a whole number from 0"),
            ("status=200", "from 400 to 599"),
            ("usage=on", "is not `off`"),
            ("hang=yes", "neither 1 nor 0"),
            ("hang=1,hang=1", "given twice"),
            ("fail_first=2", "go together"),
            ("key=a", "go together"),
            ("retry_after=2", "needs a status"),
            ("skew=1.0701", "at most three places"),
        ] {
            let error = Steering::parse(header).unwrap_err();
            assert!(error.contains(complaint), "{header}: {error}");
        }
    }

    #[test]
    fn a_skewed_count_is_rounded_up() {
        let skew: Skew = "1.07".parse().unwrap();
        assert_eq!([0, 1, 100, 101].map(|tokens| skew.apply(tokens)), [0, 2, 107, 109]);
        assert_eq!("0.9".parse::<Skew>().unwrap().apply(100), 90);
        assert_eq!("1".parse(), Ok(Skew::NONE));
        for text in ["", ".", "1.", ".5", "-1", "1e1", "0", "0.099", "10.001", "100", "١"] {
            assert!(text.parse::<Skew>().is_err(), "{text}");
        }
    }
}
