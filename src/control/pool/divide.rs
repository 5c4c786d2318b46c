//! Weighted max-min fairness: water filling in whole units.
//!
//! Laws: nobody gets more than it wants; nothing is left while somebody wants; who did not get all it wanted has, up to one unit, as
//! much per weight as anybody has. Single units that do not divide go to the first in line.

/// One of those who share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    weight: u64,
    wants: u64,
    part: u64,
}

impl Share {
    /// Wants `wants` units, with `weight`; 0 counts as 1.
    pub(super) fn new(weight: u32, wants: u64) -> Self {
        Self { weight: u64::from(weight.max(1)), wants, part: 0 }
    }

    /// What it got.
    pub(super) const fn part(self) -> u64 {
        self.part
    }

    const fn lacks(self) -> u64 {
        self.wants - self.part
    }
}

/// Divides `units`; what remains when nobody wants more.
pub(super) fn divide(units: u64, shares: &mut [Share]) -> u64 {
    let mut left = units;
    loop {
        let weights: u64 = shares.iter().filter(|share| share.lacks() > 0).map(|share| share.weight).sum();
        if weights == 0 || left == 0 {
            return left;
        }
        let quota = |share: &Share| {
            // At most `left`.
            u64::try_from(u128::from(left) * u128::from(share.weight) / u128::from(weights)).unwrap_or(left)
        };
        // Whoever wants no more than its quota gets that, and the others divide what it leaves.
        let mut given = 0;
        for share in shares.iter_mut().filter(|share| share.lacks() > 0 && share.lacks() <= quota(share)) {
            given += share.lacks();
            share.part = share.wants;
        }
        if given > 0 {
            left -= given;
            continue;
        }
        let mut rest = left;
        for share in shares.iter_mut().filter(|share| share.lacks() > 0) {
            let quota = quota(share);
            share.part += quota;
            rest -= quota;
        }
        // Fewer than there are who still want one.
        for share in shares.iter_mut().filter(|share| share.lacks() > 0) {
            let unit = rest.min(1);
            share.part += unit;
            rest -= unit;
        }
        return rest;
    }
}
