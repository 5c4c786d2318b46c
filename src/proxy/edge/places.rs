//! How many connections there are, of whom: a bound for each address, and for each key once a connection has shown one.
//!
//! Memory: an entry for each name that holds a connection now, so at most one for each connection.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use crate::limit::Name;

/// Places by name.
pub struct Places<K> {
    bound: usize,
    taken: Mutex<HashMap<K, usize>>,
}

/// A taken place; given back when dropped.
pub struct Place<K: Eq + Hash> {
    places: Arc<Places<K>>,
    name: K,
}

impl<K: Eq + Hash + Clone> Places<K> {
    /// So many for each name.
    pub fn new(bound: usize) -> Arc<Self> {
        Arc::new(Self { bound, taken: Mutex::new(HashMap::new()) })
    }

    /// Takes one of a name's places, if one is free.
    pub fn take(self: &Arc<Self>, name: K) -> Option<Place<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(name.clone()).or_insert(0);
        if *count >= self.bound {
            return None;
        }
        *count += 1;
        Some(Place { places: self.clone(), name })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.name);
            }
        }
    }
}

/// The address that a bound is for: of IPv6 the network, since one caller has all of it (RFC 6177).
pub fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
        IpAddr::V4(address) => address.into(),
    }
}

/// A key, as the tenant that owns it and its label there.
pub type KeyName = (Name, Name);

/// The key whose place a connection takes: that of its last request.
pub struct Claim {
    keys: Arc<Places<KeyName>>,
    place: Mutex<Option<Place<KeyName>>>,
}

impl Claim {
    /// A connection that has shown no key.
    pub fn new(keys: Arc<Places<KeyName>>) -> Arc<Self> {
        Arc::new(Self { keys, place: Mutex::new(None) })
    }

    /// Takes a place of this key, unless the connection has one. False: none is free.
    pub fn show(&self, tenant: &Name, key: &Name) -> bool {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if place.as_ref().is_some_and(|place| place.name.0 == *tenant && place.name.1 == *key) {
            return true;
        }
        match self.keys.take((tenant.clone(), key.clone())) {
            Some(taken) => {
                *place = Some(taken);
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_and_leaves_nothing_behind() {
        let places = Places::new(2);
        let (first, second) = (places.take("a"), places.take("a"));
        assert!(first.is_some() && second.is_some() && places.take("a").is_none());
        assert!(places.take("b").is_some());
        drop(first);
        assert!(places.take("a").is_some());
        drop(second);
        assert!(places.taken.lock().unwrap().is_empty());
    }

    #[test]
    fn a_connection_has_one_place_whatever_keys_it_shows() {
        let keys = Places::new(1);
        let (one, other) = (Claim::new(keys.clone()), Claim::new(keys));
        let (tenant, a, b): (Name, Name, Name) = ("t".into(), "a".into(), "b".into());
        assert!(one.show(&tenant, &a) && one.show(&tenant, &a));
        assert!(!other.show(&tenant, &a) && other.show(&tenant, &b));
        assert!(!one.show(&tenant, &b));
        drop(other);
        assert!(one.show(&tenant, &b));
    }

    #[test]
    fn one_caller_has_all_of_an_ipv6_network() {
        let of = |text: &str| neighbourhood(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}
