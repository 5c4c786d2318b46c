//! Preloaded into a node under test: bends its clocks and breaks its disk, as a table in a file says that the harness edits.
//!
//! Laws:
//! - without `JEPSEN_SHIM_TABLE`, and while the table is all zeros, nothing is changed;
//! - every clock is bent in one place: the entry of `clock_gettime` in the process' own copy of the vDSO is overwritten with a jump to
//!   `clock`, so it does not matter by which library a reading is taken;
//! - `CLOCK_MONOTONIC_COARSE` is the one clock that tells the truth: it reads as the kernel's `CLOCK_MONOTONIC_RAW`, by which the harness
//!   and the audit file are stamped;
//! - only files under the folder that the table names are broken.
//!
//! The table, in 64-bit words: for each of REALTIME, MONOTONIC, MONOTONIC_RAW, BOOTTIME an offset (ns), a rate (parts per million), and since
//! when (ns of the true MONOTONIC_RAW) the rate is in force: words 0 to 11. Word 12 is what is wrong with the disk, 13 its parameter, 14 how
//! often that was met, 15 whether a process has this shim; the folder's name stands from byte 128 on and ends with a zero.

#![allow(unsafe_code, reason = "it stands between a process and its kernel")]

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

const TABLE_BYTES: usize = 4096;
const DISK: usize = 12;
const PARAMETER: usize = 13;
const MET: usize = 14;
const LOADED: usize = 15;
const FOLDER: usize = 128;

const REALTIME: c_int = 0;
const MONOTONIC: c_int = 1;
const RAW: c_int = 4;
const COARSE: c_int = 6;
const BOOTTIME: c_int = 7;

// What can be wrong with the disk.
const EIO: i64 = 1;
const ENOSPC: i64 = 2;
const SLOW: i64 = 3;
const HUNG: i64 = 4;
const TORN: i64 = 5;

static TABLE: AtomicPtr<AtomicI64> = AtomicPtr::new(std::ptr::null_mut());

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn mmap(
        at: *mut c_void,
        bytes: usize,
        protection: c_int,
        flags: c_int,
        fd: c_int,
        offset: i64,
    ) -> *mut c_void;
    fn mprotect(at: *mut c_void, bytes: usize, protection: c_int) -> c_int;
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("the shim knows the vDSO of Linux on x86-64 with glibc, and no other");

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs before `main`.
extern "C" fn start() {
    // SAFETY: called once, before any thread but the first exists; each pointer is checked before it is used.
    unsafe {
        let path = getenv(c"JEPSEN_SHIM_TABLE".as_ptr());
        if path.is_null() {
            return;
        }
        let fd = open(path, 2);
        if fd < 0 {
            return;
        }
        let table = mmap(std::ptr::null_mut(), TABLE_BYTES, 3, 1, fd, 0);
        if table as isize == -1 {
            return;
        }
        TABLE.store(table.cast(), Ordering::Release);
        let vdso = dlopen(c"linux-vdso.so.1".as_ptr(), 0x1 | 0x4);
        if vdso.is_null() {
            return;
        }
        let entry = dlsym(vdso, c"__vdso_clock_gettime".as_ptr());
        if entry.is_null() {
            return;
        }
        let page = (entry as usize & !4095) as *mut c_void;
        if mprotect(page, 8192, 7) != 0 && mprotect(page, 4096, 7) != 0 {
            return;
        }
        // movabs rax, clock; jmp rax
        let mut jump = [0x48, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xE0];
        jump[2..10].copy_from_slice(&(clock as *const () as usize).to_le_bytes());
        std::ptr::copy_nonoverlapping(jump.as_ptr(), entry.cast::<u8>(), jump.len());
        (*table.cast::<AtomicI64>().add(LOADED)).store(1, Ordering::Release);
    }
}

fn word(index: usize) -> i64 {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return 0;
    }
    // SAFETY: the table is mapped for the life of the process and has 512 words.
    unsafe { (*table.add(index)).load(Ordering::Relaxed) }
}

fn meet() {
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: as in `word`; only called once a word of it was read.
    unsafe { (*table.add(MET)).fetch_add(1, Ordering::Relaxed) };
}

/// The kernel's own reading; `-errno` where there is none.
fn kernel_clock(id: c_int, to: *mut Timespec) -> c_long {
    let result: c_long;
    // SAFETY: the system call writes one timespec, and `to` is the caller's.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") 228_i64 => result, in("rdi") id, in("rsi") to,
            lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

/// Takes the place of the vDSO's `clock_gettime`.
extern "C" fn clock(id: c_int, to: *mut Timespec) -> c_int {
    let result = kernel_clock(if id == COARSE { RAW } else { id }, to);
    let place = match id {
        REALTIME => 0,
        MONOTONIC => 3,
        RAW => 6,
        BOOTTIME => 9,
        _ => return result as c_int,
    };
    if result != 0 {
        return result as c_int;
    }
    let (offset, rate, since) = (word(place), word(place + 1), word(place + 2));
    if offset == 0 && rate == 0 {
        return 0;
    }
    let mut shift = offset;
    if rate != 0 {
        let mut now = Timespec { seconds: 0, nanos: 0 };
        kernel_clock(RAW, &mut now);
        let passed = i128::from(now.seconds) * 1_000_000_000 + i128::from(now.nanos) - i128::from(since);
        shift += (passed * i128::from(rate) / 1_000_000) as i64;
    }
    // SAFETY: the kernel has just written it.
    unsafe {
        let bent = i128::from((*to).seconds) * 1_000_000_000 + i128::from((*to).nanos) + i128::from(shift);
        (*to).seconds = bent.div_euclid(1_000_000_000) as i64;
        (*to).nanos = bent.rem_euclid(1_000_000_000) as i64;
    }
    0
}

/// Whether `fd` is a file under the folder that is to be broken.
fn is_broken(fd: c_int) -> bool {
    if word(DISK) == 0 {
        return false;
    }
    let mut link = [0_u8; 32];
    let mut at = link.len() - 1;
    let (mut left, prefix) = (fd.unsigned_abs(), b"/proc/self/fd/");
    loop {
        at -= 1;
        link[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    at -= prefix.len();
    link[at..at + prefix.len()].copy_from_slice(prefix);
    let mut name = [0_u8; 512];
    // SAFETY: both buffers outlive the call; the table has a zero after the folder's name.
    unsafe {
        let read = syscall(89, link[at..].as_ptr(), name.as_mut_ptr(), name.len());
        let folder = CStr::from_ptr(TABLE.load(Ordering::Acquire).cast::<c_char>().add(FOLDER)).to_bytes();
        let read = usize::try_from(read).unwrap_or(0);
        !folder.is_empty() && name[..read].starts_with(folder)
    }
}

fn fail(errno: c_int) -> isize {
    // SAFETY: this thread's own errno.
    unsafe { *__errno_location() = errno };
    -1
}

fn wait(millis: i64) {
    let length = Timespec { seconds: millis / 1000, nanos: millis % 1000 * 1_000_000 };
    // SAFETY: a sleep that nobody wakes.
    unsafe { syscall(35, &length, 0_usize) };
}

/// What a sync of `fd` meets before it happens; `Some` where it does not happen.
fn meets_sync(fd: c_int) -> Option<c_int> {
    if !is_broken(fd) {
        return None;
    }
    meet();
    match word(DISK) {
        EIO => return Some(fail(5) as c_int),
        SLOW => wait(word(PARAMETER)),
        HUNG => {
            while word(DISK) == HUNG {
                wait(10);
            }
        }
        _ => {}
    }
    None
}

/// What a write to `fd` meets; `Some` where it does not happen.
fn meets_write(fd: c_int, bytes: *const c_void, count: usize, offset: Option<i64>) -> Option<isize> {
    if !is_broken(fd) {
        return None;
    }
    match word(DISK) {
        ENOSPC => {
            meet();
            Some(fail(28))
        }
        TORN => {
            meet();
            let torn = count.min(usize::try_from(word(PARAMETER)).unwrap_or(0));
            // SAFETY: a part of what the caller gave; then the end of the process, as when the power goes.
            unsafe {
                match offset {
                    Some(offset) => syscall(18, fd, bytes, torn, offset),
                    None => syscall(1, fd, bytes, torn),
                };
                syscall(62, std::process::id(), 9);
            }
            None
        }
        _ => None,
    }
}

/// See fsync(2).
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: the system call itself.
    meets_sync(fd).unwrap_or_else(|| unsafe { syscall(74, fd) } as c_int)
}

/// See fdatasync(2).
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: the system call itself.
    meets_sync(fd).unwrap_or_else(|| unsafe { syscall(75, fd) } as c_int)
}

/// See write(2).
///
/// # Safety
/// As of write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize {
    // SAFETY: the system call itself, with what the caller gave.
    meets_write(fd, bytes, count, None).unwrap_or_else(|| unsafe { syscall(1, fd, bytes, count) } as isize)
}

/// See pwrite(2).
///
/// # Safety
/// As of pwrite(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, bytes: *const c_void, count: usize, offset: i64) -> isize {
    // SAFETY: the system call itself, with what the caller gave.
    meets_write(fd, bytes, count, Some(offset))
        .unwrap_or_else(|| unsafe { syscall(18, fd, bytes, count, offset) } as isize)
}
