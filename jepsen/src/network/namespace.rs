//! A network namespace without a name, kept by a thread: it is gone when the harness is, and so is every process started in it.

use std::fs::File;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use super::{Host, Plane};
use crate::sys;

type Job = Box<dyn FnOnce() + Send>;

/// A namespace. What runs on its thread, and whatever is started from there, is in it.
pub struct Namespace {
    jobs: mpsc::Sender<Job>,
}

impl Namespace {
    /// The namespace of `host`, with an address on each plane, and its device.
    ///
    /// # Errors
    /// Namespaces or TUN devices are not to be had here: which, and what it takes.
    pub fn new(host: Host) -> Result<(Self, File), String> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("host {host}"));
        let keep = move || {
            let device = enter(host);
            if tell.send(device).is_ok() {
                for job in queue {
                    job();
                }
            }
        };
        thread.spawn(keep).map_err(|error| format!("no thread for host {host}: {error}"))?;
        let device = told.recv().map_err(|_gone| format!("the thread of host {host} is gone"))??;
        Ok((Self { jobs }, device))
    }

    /// Runs `work` in the namespace. Threads and processes that it starts stay there.
    pub fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let job = Box::new(move || {
            let _gone = tell.send(work());
        });
        self.jobs.send(job).expect("the thread lives as long as this");
        told.recv().expect("the work does not panic")
    }

    /// Starts `command` in the namespace. It is killed when the harness ends, however that comes about.
    ///
    /// # Errors
    /// As of [`Command::spawn`].
    pub fn start(&self, mut command: Command) -> io::Result<Child> {
        self.within(move || sys::dies_with_parent(&mut command).spawn())
    }
}

fn enter(host: Host) -> Result<File, String> {
    const DEVICE: &str = "plane0";
    sys::leave_network()
        .map_err(|error| format!("no network namespace: {error}; run as root (CAP_SYS_ADMIN)"))?;
    let device = sys::tun(DEVICE).map_err(|error| format!("no TUN device: /dev/net/tun: {error}"))?;
    ip(&["link", "set", "lo", "up"])?;
    ip(&["link", "set", DEVICE, "mtu", &sys::MTU.to_string(), "txqueuelen", "10000", "up"])?;
    for plane in Plane::ALL {
        ip(&["addr", "add", &format!("{}/24", plane.of(host)), "dev", DEVICE])?;
    }
    Ok(device)
}

fn ip(words: &[&str]) -> Result<(), String> {
    let said = Command::new("ip").args(words).stdin(Stdio::null()).output();
    let said = said.map_err(|error| format!("`ip` (iproute2) does not start: {error}"))?;
    match said.status.success() {
        true => Ok(()),
        false => Err(format!("`ip {}`: {}", words.join(" "), String::from_utf8_lossy(&said.stderr).trim())),
    }
}
