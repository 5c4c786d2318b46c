//! What each address may use of what callers without a credential share: a speed bump, not a promise. Addresses are cheap, and
//! each node counts its own.
//!
//! Laws: an address that is forgotten had all it may have; when there is room for no more, strangers are refused.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use hashbrown::HashMap;

use crate::limit::{Bucket, Dimension, Fit, Moment, Rate, Span};
use crate::policy::Limits;

/// Addresses at once.
const MOST: usize = 50_000;

/// Buckets by address.
#[derive(Default)]
pub struct Crowd(Mutex<HashMap<IpAddr, Held>>);

struct Held {
    tokens: Option<(Rate, Bucket)>,
    requests: Option<(Rate, Bucket)>,
}

/// Why an address has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowded {
    /// What it has too little of.
    pub dimension: Dimension,
    /// When it fits; never if none.
    pub wait: Option<Span>,
}

impl Crowd {
    /// Takes a request of `tokens` from what `address` may have.
    ///
    /// # Errors
    /// It has too little, and nothing was taken.
    pub fn admit(&self, now: Moment, address: IpAddr, limits: &Limits, tokens: u64) -> Result<(), Crowded> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= MOST && !held.contains_key(&address) {
            held.retain(|_, held| !held.is_full(now));
            if held.len() >= MOST {
                return Err(Crowded { dimension: Dimension::Requests, wait: Some(Span::from_secs(60)) });
            }
        }
        let held = held.entry(address).or_insert_with(|| Held { tokens: None, requests: None });
        follow(&mut held.tokens, limits.tokens, now);
        follow(&mut held.requests, limits.requests, now);
        let parts = [(Dimension::Requests, &held.requests, 1), (Dimension::Tokens, &held.tokens, tokens)];
        for (dimension, part, need) in parts {
            let Some((rate, bucket)) = part else { continue };
            match bucket.fit(*rate, need) {
                Fit::Now => {}
                Fit::After(wait) => return Err(Crowded { dimension, wait: Some(wait) }),
                Fit::Never => return Err(Crowded { dimension, wait: None }),
            }
        }
        for (part, need) in [(&mut held.requests, 1), (&mut held.tokens, tokens)] {
            if let Some((_, bucket)) = part {
                bucket.debit(need);
            }
        }
        Ok(())
    }

    /// Gives back what [`Crowd::admit`] took: the request was refused after all.
    pub fn give_back(&self, address: IpAddr, tokens: u64) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(held) = held.get_mut(&address) else { return };
        for (part, need) in [(&mut held.requests, 1), (&mut held.tokens, tokens)] {
            if let Some((rate, bucket)) = part {
                bucket.refund(*rate, need);
            }
        }
    }

    /// How many addresses are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn follow(held: &mut Option<(Rate, Bucket)>, limit: Option<crate::policy::Rate>, now: Moment) {
    let rate = limit.map(|limit| Rate::new(limit.per_minute, limit.burst));
    *held = match (held.take(), rate) {
        (_, None) => None,
        (None, Some(rate)) => Some((rate, Bucket::full(rate, now))),
        (Some((old, mut bucket)), Some(rate)) => {
            bucket.refill(old, now);
            if old != rate {
                bucket.follow(old, rate, now);
            }
            Some((rate, bucket))
        }
    };
}

impl Held {
    fn is_full(&mut self, now: Moment) -> bool {
        [&mut self.tokens, &mut self.requests].into_iter().flatten().all(|(rate, bucket)| {
            bucket.refill(*rate, now);
            bucket.time_until_full(*rate) == Span::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_and_a_refusal_takes_nothing() {
        let rate = |per_minute| Some(crate::policy::Rate { per_minute, burst: per_minute });
        let limits = Limits { tokens: rate(100), requests: rate(2), ..Limits::default() };
        let crowd = Crowd::default();
        let now = Moment::from_nanos(1);
        let (one, two): (IpAddr, IpAddr) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        assert_eq!(crowd.admit(now, one, &limits, 90), Ok(()));
        let refused = crowd.admit(now, one, &limits, 20).unwrap_err();
        assert_eq!(refused.dimension, Dimension::Tokens);
        assert_eq!(crowd.admit(now, one, &limits, 101).unwrap_err().wait, None);
        assert_eq!(crowd.admit(now, one, &limits, 10), Ok(()));
        assert_eq!(crowd.admit(now, one, &limits, 0).unwrap_err().dimension, Dimension::Requests);
        assert_eq!(crowd.admit(now, two, &limits, 90), Ok(()));
        crowd.give_back(one, 10);
        assert_eq!(crowd.admit(now, one, &limits, 10), Ok(()));
    }
}
