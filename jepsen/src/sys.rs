//! What the standard library does not do: the one clock, a network of one's own, a TUN device, and children that die with their parent.
//!
//! The only file of the harness with `unsafe` in it.

#![allow(
    unsafe_code,
    reason = "system calls that no safe wrapper in the tree covers; each says why it is sound"
)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC_RAW`: the one clock by which everything in a history is stamped. All processes of a run share a
/// machine, it is not slewed while they are at it, and the shim shows it to nodes under another name.
pub fn now() -> u64 {
    let reading = clock_gettime(ClockId::MonotonicRaw);
    reading.tv_sec.unsigned_abs() * 1_000_000_000 + reading.tv_nsec.unsigned_abs()
}

/// The hour of the day in UTC, by the wall clock.
pub fn hour() -> u64 {
    clock_gettime(ClockId::Realtime).tv_sec.unsigned_abs() / 3_600 % 24
}

/// Takes the calling thread, and all that it starts from now on, into a new network with nothing in it.
///
/// # Errors
/// Not allowed here: it takes root, or a user namespace.
pub fn leave_network() -> io::Result<()> {
    // SAFETY: only the network namespace is left; no memory or descriptor table is unshared.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
    Ok(())
}

/// The longest packet: as on Ethernet, so that datagrams meet the sizes that they meet in life.
pub const MTU: usize = 1500;

/// A TUN device in the calling thread's network, named `name`: what is read from it is a whole IP packet, and what is written arrives.
///
/// # Errors
/// There is no `/dev/net/tun`, or it may not be used.
pub fn tun(name: &str) -> io::Result<File> {
    // linux/if_tun.h: a device of layer 3, packets without a header of their own.
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    const IFF_TUN_NO_PI: u16 = 0x1001;
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    let mut request = [0_u8; 40];
    request[..name.len()].copy_from_slice(name.as_bytes());
    request[16..18].copy_from_slice(&IFF_TUN_NO_PI.to_ne_bytes());
    // SAFETY: the request is a `struct ifreq` of 40 bytes that outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), TUNSETIFF, request.as_mut_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(device) }
}

/// Has the process that `command` starts be killed when the thread that starts it is gone, whatever becomes of this process.
pub fn dies_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: one system call between fork and exec, no allocation.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) }
}
