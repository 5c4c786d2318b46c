//! The small quantities of the document: ratios, money, durations, networks. Integers inside; decimals only as text.
//!
//! Every parser reads the text as it stands in the document and answers a reason when it cannot: nothing is rounded.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// A ratio between 0 and 1 in millionths: 0.85 is 850,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio {
    parts_per_million: u32,
}

impl Ratio {
    /// The whole.
    pub const ONE: Ratio = Ratio { parts_per_million: 1_000_000 };

    /// A ratio of so many millionths, at most the whole.
    #[must_use]
    pub const fn from_parts_per_million(parts: u32) -> Ratio {
        Ratio { parts_per_million: if parts > 1_000_000 { 1_000_000 } else { parts } }
    }

    /// Millionths: 0 to 1,000,000.
    #[must_use]
    pub const fn parts_per_million(self) -> u32 {
        self.parts_per_million
    }

    /// This part of an amount, rounded down.
    #[must_use]
    pub fn of(self, amount: u64) -> u64 {
        // At most `amount`, so the conversion back cannot fail.
        u64::try_from(u128::from(amount) * u128::from(self.parts_per_million) / 1_000_000).unwrap_or(amount)
    }

    /// Reads a decimal between 0 and 1 with at most six places, such as `0.85`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Ratio, &'static str> {
        match u32::try_from(decimal_millionths(text)?) {
            Ok(parts) if parts <= 1_000_000 => Ok(Ratio { parts_per_million: parts }),
            _ => Err("is more than 1"),
        }
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_millionths(f, u64::from(self.parts_per_million))
    }
}

/// Money in millionths of a US dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct MicroDollars(pub u64);

impl MicroDollars {
    /// Reads dollars with at most six places, such as `400.00`.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<MicroDollars, &'static str> {
        decimal_millionths(text).map(MicroDollars)
    }
}

impl fmt::Display for MicroDollars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_millionths(f, self.0)
    }
}

/// Reads a whole number with optional underscores between digits, such as `2_000_000`.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_count(text: &str) -> Result<u64, &'static str> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let digits = grouped_digits(unsigned)?;
    if text.starts_with('-') {
        return Err("is negative");
    }
    digits.parse().map_err(|_| "is too large")
}

/// Reads a duration: a whole number and `ms`, `s`, `m` or `h`, such as `500ms` or `10s`.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    const SHAPE: &str = "is not a duration such as 10s or 500ms";
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or(SHAPE)?;
    let (number, unit) = text.split_at(unit_at);
    let number = parse_count(number).map_err(|_| SHAPE)?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(SHAPE),
    };
    number.checked_mul(milliseconds).map(Duration::from_millis).ok_or("is too long")
}

/// Reads a decimal with at most three places as thousandths: `3.5` is 3500.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_milli(text: &str) -> Result<u64, &'static str> {
    match decimal_millionths(text)? {
        millionths if millionths % 1_000 == 0 => Ok(millionths / 1_000),
        _ => Err("has more than three decimal places"),
    }
}

fn decimal_millionths(text: &str) -> Result<u64, &'static str> {
    if text.starts_with('-') {
        return Err("is negative");
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole: u64 = grouped_digits(whole)?.parse().map_err(|_| "is too large")?;
    let fraction = grouped_digits(fraction)?;
    if fraction.trim_end_matches('0').len() > 6 {
        return Err("has more than six decimal places");
    }
    let millionths: u64 = format!("{fraction:0<6}")[..6].parse().map_err(|_| NOT_A_NUMBER)?;
    whole.checked_mul(1_000_000).and_then(|whole| whole.checked_add(millionths)).ok_or("is too large")
}

const NOT_A_NUMBER: &str = "is not a number";

fn grouped_digits(text: &str) -> Result<String, &'static str> {
    let well_formed = !text.is_empty()
        && !text.starts_with('_')
        && !text.ends_with('_')
        && !text.contains("__")
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    if well_formed { Ok(text.replace('_', "")) } else { Err(NOT_A_NUMBER) }
}

fn write_millionths(f: &mut fmt::Formatter<'_>, millionths: u64) -> fmt::Result {
    let fraction = format!("{:06}", millionths % 1_000_000);
    let fraction = fraction.trim_end_matches('0');
    write!(f, "{}.{:0<2}", millionths / 1_000_000, fraction)
}

/// A network in CIDR notation (RFC 4632, RFC 4291 §2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix_bits: u8,
}

impl IpNetwork {
    /// Reads `10.0.0.0/8`, or an address alone for that one host.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<IpNetwork, &'static str> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| "is not a network such as 10.0.0.0/8")?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = match bits.map(str::parse::<u8>) {
            None => widest,
            Some(Ok(bits)) if bits <= widest => bits,
            Some(_) => return Err("has a prefix length that its address family does not have"),
        };
        let network = IpNetwork { address, prefix_bits };
        if network.masked(address) == as_bits(address) {
            Ok(network)
        } else {
            Err("has host bits set beyond its prefix length")
        }
    }

    /// Whether an address lies in it. An IPv4 address mapped into IPv6 counts as the IPv4 address it is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && self.masked(address) == as_bits(self.address)
    }

    fn masked(&self, address: IpAddr) -> u128 {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let host_bits = width - u32::from(self.prefix_bits);
        as_bits(address).checked_shr(host_bits).and_then(|bits| bits.checked_shl(host_bits)).unwrap_or(0)
    }
}

impl fmt::Display for IpNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_bits)
    }
}

fn as_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}
