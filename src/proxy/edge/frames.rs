//! HTTP/2 frames that cost their sender nothing and make us work: PING, SETTINGS, PRIORITY, empty DATA and CONTINUATION, and types
//! that nobody knows (CVE-2019-9512, -9513, -9515, -9518).
//!
//! The library bounds what it keeps of them, and what it makes of resets, windows and header blocks; this bounds how many it is
//! handed. Window updates are not counted: an honest reader may send one for every frame that it gets.

use std::time::Duration;

use tokio::time::Instant;

/// Idle frames that are let through at once.
const AT_ONCE: u32 = 1_000;
/// And how often one more is.
const ONE_EACH: Duration = Duration::from_millis(20);

/// The frames that a caller has sent.
#[derive(Debug)]
pub struct Frames {
    head: [u8; 9],
    filled: usize,
    /// Bytes left of the present frame's payload.
    payload: usize,
    idle: u32,
    counted_since: Instant,
}

/// More than is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flood;

impl Frames {
    /// A connection whose preface has been read.
    pub const fn new(now: Instant) -> Self {
        Self { head: [0; 9], filled: 0, payload: 0, idle: 0, counted_since: now }
    }

    /// Takes what has come.
    pub fn pass(&mut self, mut bytes: &[u8], now: impl Fn() -> Instant) -> Result<(), Flood> {
        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            let taken = (self.head.len() - self.filled).min(bytes.len());
            if self.payload > 0 || taken == 0 {
                continue;
            }
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == self.head.len() {
                self.filled = 0;
                self.begun(&now)?;
            }
        }
        Ok(())
    }

    fn begun(&mut self, now: &impl Fn() -> Instant) -> Result<(), Flood> {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.payload = u32::from_be_bytes([0, high, middle, low]) as usize;
        // Types and the flag END_STREAM of RFC 9113 §6.
        let idle = match kind {
            0 => self.payload == 0 && flags & 1 == 0,
            9 => self.payload == 0,
            1 | 3 | 7 | 8 => false,
            _ => true,
        };
        if !idle {
            return Ok(());
        }
        self.idle += 1;
        if self.idle <= AT_ONCE {
            return Ok(());
        }
        let now = now();
        let earned = now.saturating_duration_since(self.counted_since).as_millis() / ONE_EACH.as_millis();
        self.idle = self.idle.saturating_sub(u32::try_from(earned).unwrap_or(u32::MAX));
        self.counted_since = now;
        if self.idle > AT_ONCE { Err(Flood) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::timer_now;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 1];
        frame.resize(9 + payload, 7);
        frame
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_counted_however_they_are_cut() {
        let flood: Vec<u8> = (0..=AT_ONCE).flat_map(|_| frame(6, 8)).collect();
        for size in [1, 7, 9, 17, 1_000, flood.len()] {
            let mut frames = Frames::new(timer_now());
            let caught = flood.chunks(size).position(|piece| frames.pass(piece, timer_now).is_err());
            // In the piece that has the last byte of the last frame's head.
            assert_eq!(caught, Some((flood.len() - 9) / size), "in pieces of {size}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn work_is_no_flood_and_time_forgives() {
        let mut frames = Frames::new(timer_now());
        let work: Vec<u8> =
            (0..5_000).flat_map(|_| [frame(1, 20), frame(0, 100), frame(8, 4)].concat()).collect();
        assert_eq!(frames.pass(&work, timer_now), Ok(()));
        for _ in 0..20 {
            let pings: Vec<u8> = (0..500).flat_map(|_| frame(6, 8)).collect();
            assert_eq!(frames.pass(&pings, timer_now), Ok(()));
            tokio::time::advance(Duration::from_secs(10)).await;
        }
    }
}
