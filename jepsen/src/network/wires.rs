//! The threads that carry packets between TUN devices: one that reads each device, and one that delivers what is late.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Host;
use super::packet::{Header, reset};
use super::switch::{Counts, Fate, Rule, Switch};
use crate::sys;

/// All hosts' devices and the switch between them. They carry for as long as the process lives.
pub struct Wires {
    inner: Arc<Inner>,
}

struct Inner {
    switch: Mutex<Switch>,
    devices: BTreeMap<Host, File>,
    late: Mutex<BinaryHeap<Reverse<Late>>>,
    more: Condvar,
}

/// A packet on its way: when, in which order, to whom.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Late(u64, u64, Host, Vec<u8>);

impl Wires {
    /// Connects these devices.
    ///
    /// # Errors
    /// A thread cannot be had.
    pub fn new(devices: BTreeMap<Host, File>, seed: u64) -> Result<Self, String> {
        let readers = devices.iter().map(|(host, device)| Ok((*host, device.try_clone()?)));
        let readers: Vec<(Host, File)> =
            readers.collect::<std::io::Result<_>>().map_err(|error| error.to_string())?;
        let inner = Arc::new(Inner {
            switch: Mutex::new(Switch::new(seed)),
            devices,
            late: Mutex::default(),
            more: Condvar::new(),
        });
        let spawn = |name: String, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name).spawn(work).map(drop).map_err(|error| error.to_string())
        };
        for (host, device) in readers {
            let inner = inner.clone();
            spawn(format!("wire {host}"), Box::new(move || inner.carry(device)))?;
        }
        let deliverer = inner.clone();
        spawn("wire late".to_owned(), Box::new(move || deliverer.deliver()))?;
        Ok(Self { inner })
    }

    /// Puts these rules in force instead of the ones before.
    pub fn apply(&self, rules: Vec<Rule>) {
        lock(&self.inner.switch).apply(rules);
    }

    /// To how many packets something was done so far.
    pub fn met(&self) -> u64 {
        let Counts { dropped, delayed, doubled, reset, passed: _ } = lock(&self.inner.switch).counts;
        dropped + delayed + doubled + reset
    }
}

impl Inner {
    fn carry(&self, mut device: File) {
        let mut buffer = vec![0; sys::MTU + 100];
        let mut number = 0;
        while let Ok(length) = device.read(&mut buffer) {
            let packet = &buffer[..length];
            let Some(header) = Header::of(packet) else { continue };
            let fate = lock(&self.switch).fate(sys::now(), &header);
            match fate {
                Fate::Now => self.hand_over(header.to, packet),
                Fate::Reset => {
                    if let Some(answer) = reset(packet) {
                        self.hand_over(header.from, &answer);
                    }
                }
                Fate::At(arrivals) => {
                    let mut late = lock(&self.late);
                    for at in arrivals {
                        number += 1;
                        late.push(Reverse(Late(at, number, header.to, packet.to_vec())));
                    }
                    self.more.notify_one();
                }
            }
        }
    }

    fn deliver(&self) {
        let mut late = lock(&self.late);
        loop {
            let now = sys::now();
            let wait = match late.peek() {
                Some(Reverse(first)) if first.0 <= now => {
                    let Some(Reverse(Late(_, _, to, packet))) = late.pop() else { continue };
                    self.hand_over(to, &packet);
                    continue;
                }
                Some(Reverse(first)) => Duration::from_nanos(first.0 - now),
                None => Duration::from_secs(1),
            };
            late = self.more.wait_timeout(late, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn hand_over(&self, to: Host, packet: &[u8]) {
        // A device whose queue is full drops, as a network does.
        if let Some(mut device) = self.devices.get(&to) {
            let _dropped = device.write(packet);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
