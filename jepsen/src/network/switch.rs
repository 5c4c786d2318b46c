//! What becomes of each packet: pure, by rules and seeded chance. Time is an argument.

use super::packet::{Carrier, Header};
use super::{Host, Plane};
use crate::random::Random;

/// Hosts as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hosts(u128, u128);

impl Hosts {
    /// Everybody.
    pub const ALL: Self = Self(u128::MAX, u128::MAX);

    /// These.
    pub fn of(hosts: &[Host]) -> Self {
        let mut set = Self::default();
        for host in hosts {
            match host {
                0..128 => set.0 |= 1 << host,
                _ => set.1 |= 1 << (host - 128),
            }
        }
        set
    }

    fn has(self, host: Host) -> bool {
        match host {
            0..128 => self.0 & (1 << host) != 0,
            _ => self.1 & (1 << (host - 128)) != 0,
        }
    }
}

/// What happens to packets that a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// They are gone.
    Drop,
    /// They are gone; TCP segments are answered with a reset, as a firewall does that rejects.
    Reset,
    /// So many of a thousand are gone.
    Lose(u64),
    /// So many of a thousand arrive twice.
    Duplicate(u64),
    /// They are late by so much and by up to so much more, in nanoseconds. Later ones overtake earlier ones.
    Delay(u64, u64),
}

/// An effect on the packets from some to others.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Of whom.
    pub from: Hosts,
    /// To whom.
    pub to: Hosts,
    /// On which plane.
    pub plane: Plane,
    /// Only what is carried so.
    pub carrier: Option<Carrier>,
    /// What happens.
    pub effect: Effect,
}

impl Rule {
    /// Nothing gets from `from` to `to` between peers.
    pub fn cut(from: &[Host], to: &[Host]) -> Self {
        Self {
            from: Hosts::of(from),
            to: Hosts::of(to),
            plane: Plane::Peers,
            carrier: None,
            effect: Effect::Drop,
        }
    }

    /// `effect` on all packets between peers.
    pub fn everywhere(effect: Effect) -> Self {
        Self { from: Hosts::ALL, to: Hosts::ALL, plane: Plane::Peers, carrier: None, effect }
    }

    fn is_about(&self, header: &Header) -> bool {
        self.plane == header.plane
            && self.carrier.is_none_or(|carrier| carrier == header.carrier)
            && self.from.has(header.from)
            && self.to.has(header.to)
    }
}

/// When copies of a packet arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Now.
    Now,
    /// At each of these instants; never, if there are none.
    At(Vec<u64>),
    /// Never, and the sender is told by a reset.
    Reset,
}

/// What was done to packets so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Went through untouched.
    pub passed: u64,
    /// Dropped.
    pub dropped: u64,
    /// Late.
    pub delayed: u64,
    /// Arrived twice.
    pub doubled: u64,
    /// Answered with a reset.
    pub reset: u64,
}

/// The rules in force, and chance.
pub struct Switch {
    rules: Vec<Rule>,
    chance: Random,
    /// What was done so far.
    pub counts: Counts,
}

impl Switch {
    /// Nothing is wrong.
    pub fn new(seed: u64) -> Self {
        Self { rules: Vec::new(), chance: Random::new(seed), counts: Counts::default() }
    }

    /// Puts these rules in force instead of the ones before.
    pub fn apply(&mut self, rules: Vec<Rule>) {
        self.rules = rules;
    }

    /// What becomes of a packet with this header, at `now`.
    pub fn fate(&mut self, now: u64, header: &Header) -> Fate {
        let (mut late, mut copies) = (0, 1_usize);
        for at in 0..self.rules.len() {
            let rule = self.rules[at];
            if !rule.is_about(header) {
                continue;
            }
            match rule.effect {
                Effect::Reset if header.carrier == Carrier::Tcp => {
                    self.counts.reset += 1;
                    return Fate::Reset;
                }
                Effect::Drop | Effect::Reset => copies = 0,
                Effect::Lose(permille) if self.chance.happens(permille) => copies = 0,
                Effect::Duplicate(permille) if self.chance.happens(permille) => copies *= 2,
                Effect::Delay(base, jitter) => late += base + self.chance.below(jitter + 1),
                Effect::Lose(_) | Effect::Duplicate(_) => {}
            }
        }
        match (copies, late) {
            (0, _) => {
                self.counts.dropped += 1;
                Fate::At(Vec::new())
            }
            (1, 0) => {
                self.counts.passed += 1;
                Fate::Now
            }
            _ => {
                self.counts.delayed += u64::from(late > 0);
                self.counts.doubled += u64::from(copies > 1);
                // A copy takes another way, and arrives a little later.
                Fate::At((0..copies as u64).map(|copy| now + late + copy * 500_000).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_TO_TWO: Header = Header { from: 1, to: 2, plane: Plane::Peers, carrier: Carrier::Udp };

    #[test]
    fn a_cut_has_a_direction_and_a_plane() {
        let mut switch = Switch::new(1);
        switch.apply(vec![Rule::cut(&[1], &[2])]);
        assert_eq!(switch.fate(0, &ONE_TO_TWO), Fate::At(vec![]));
        assert_eq!(switch.fate(0, &Header { from: 2, to: 1, ..ONE_TO_TWO }), Fate::Now);
        assert_eq!(switch.fate(0, &Header { plane: Plane::Callers, ..ONE_TO_TWO }), Fate::Now);
        switch.apply(Vec::new());
        assert_eq!(switch.fate(0, &ONE_TO_TWO), Fate::Now);
    }

    #[test]
    fn a_rule_may_be_about_datagrams_only() {
        let mut switch = Switch::new(1);
        switch.apply(vec![Rule { carrier: Some(Carrier::Udp), ..Rule::everywhere(Effect::Drop) }]);
        assert_eq!(switch.fate(0, &ONE_TO_TWO), Fate::At(vec![]));
        assert_eq!(switch.fate(0, &Header { carrier: Carrier::Tcp, ..ONE_TO_TWO }), Fate::Now);
    }

    #[test]
    fn loss_and_doubles_come_as_often_as_they_should_and_by_the_seed() {
        let run = |seed| {
            let mut switch = Switch::new(seed);
            switch.apply(vec![Rule::everywhere(Effect::Lose(200)), Rule::everywhere(Effect::Duplicate(300))]);
            let fates: Vec<Fate> = (0..10_000).map(|now| switch.fate(now, &ONE_TO_TWO)).collect();
            (fates, switch.counts)
        };
        let (fates, counts) = run(7);
        assert!((1_800..2_200).contains(&counts.dropped), "{counts:?}");
        assert!((2_200..2_600).contains(&counts.doubled), "{counts:?}");
        assert_eq!(run(7).0, fates);
        assert_ne!(run(8).0, fates);
    }

    #[test]
    fn jitter_reorders() {
        let mut switch = Switch::new(3);
        switch.apply(vec![Rule::everywhere(Effect::Delay(1_000, 50_000))]);
        let arrivals: Vec<u64> = (0..100)
            .map(|now| match switch.fate(now * 100, &ONE_TO_TWO) {
                Fate::At(at) => at[0],
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(arrivals.windows(2).any(|pair| pair[0] > pair[1]));
        assert!(arrivals.iter().zip(0..).all(|(at, sent)| (1_000..=51_000).contains(&(at - sent * 100))));
    }
}
