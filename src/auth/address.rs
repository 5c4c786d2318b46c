//! Where a caller calls from, as far as that can be believed.
//!
//! Law: an address that a caller writes itself counts for nothing: `X-Forwarded-For` is read from its end, as long as whoever
//! wrote the entry is a proxy that the policy trusts.

use std::net::IpAddr;

use http::HeaderMap;

/// The address of the caller behind `peer`.
pub fn caller_address(peer: IpAddr, headers: &HeaderMap, trusts: impl Fn(IpAddr) -> bool) -> IpAddr {
    let mut address = peer.to_canonical();
    let values: Vec<&str> =
        headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok()).collect();
    let mut hops = values.iter().flat_map(|value| value.split(',')).rev();
    while trusts(address) {
        // What cannot be read was not written by a proxy that we know: its reader is the last that can be believed.
        let Some(before) = hops.next().and_then(read) else { return address };
        address = before;
    }
    address
}

/// An address with or without a port, IPv6 with or without brackets.
fn read(hop: &str) -> Option<IpAddr> {
    let hop = hop.trim();
    let plain = hop.parse::<IpAddr>().ok();
    let with_port = || hop.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || hop.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    plain.or_else(with_port).or_else(in_brackets).map(|address| address.to_canonical())
}

/// Whose addresses count as one: a household or a server has a /64 of IPv6.
#[must_use]
pub fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let kept = u128::from(address) & (u128::MAX << 64);
            IpAddr::V6(kept.into())
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_proxies_are_believed() {
        let proxy = |address: IpAddr| address.to_string().starts_with("10.");
        for (peer, forwarded, caller) in [
            ("192.0.2.1", vec!["198.51.100.7"], "192.0.2.1"),
            ("10.0.0.1", vec!["198.51.100.7"], "198.51.100.7"),
            ("10.0.0.1", vec!["203.0.113.9, 198.51.100.7"], "198.51.100.7"),
            ("10.0.0.1", vec!["203.0.113.9", "198.51.100.7, 10.0.0.2"], "198.51.100.7"),
            ("10.0.0.1", vec!["198.51.100.7:4711"], "198.51.100.7"),
            ("10.0.0.1", vec!["[2001:db8::1]:80"], "2001:db8::1"),
            ("10.0.0.1", vec!["203.0.113.9, unknown"], "10.0.0.1"),
            ("10.0.0.1", vec!["10.0.0.3"], "10.0.0.3"),
            ("10.0.0.1", vec![], "10.0.0.1"),
            ("::ffff:10.0.0.1", vec!["198.51.100.7"], "198.51.100.7"),
        ] {
            let mut headers = HeaderMap::new();
            for value in &forwarded {
                headers.append("x-forwarded-for", value.parse().unwrap());
            }
            let found = caller_address(peer.parse().unwrap(), &headers, proxy);
            assert_eq!(found, caller.parse::<IpAddr>().unwrap(), "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn a_household_is_one_neighbour() {
        let near = |text: &str| neighbourhood(text.parse().unwrap());
        assert_eq!(near("2001:db8::1"), near("2001:db8::ffff:1"));
        assert_ne!(near("2001:db8::1"), near("2001:db8:0:1::1"));
        assert_ne!(near("192.0.2.1"), near("192.0.2.2"));
    }
}
