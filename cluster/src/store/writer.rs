//! The serial stream of writes: a thread with a bounded queue, or the caller itself.
//!
//! Laws:
//! - every job's `done` is called exactly once, in the order of the jobs, and with `Ok` only after its transaction is on disk;
//! - after the first failure no job succeeds.
//!
//! Never here: what is written.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tokio::sync::{mpsc, oneshot, watch};

use super::disk::Disk;
use super::{Broken, Change};

/// What is called when a job is on disk, or never will be.
pub(crate) type Done = Box<dyn FnOnce(Result<(), Broken>) + Send>;

/// How many writes may wait. Whoever comes next waits for a place.
const QUEUE: usize = 256;

/// How many writes one transaction takes: all that wait, at most.
const GROUP: usize = QUEUE;

/// One write: made whole, then `done`.
pub(super) struct Job {
    pub(super) changes: Vec<Change>,
    pub(super) done: Done,
}

pub(super) enum Order {
    Write(Job),
    /// Let the file go, and say when.
    Close(oneshot::Sender<()>),
}

pub(super) enum Writer {
    Thread(mpsc::Sender<Order>),
    /// `None` once closed.
    Inline(Mutex<Option<Disk>>),
}

/// A place in the stream.
pub(super) enum Slot<'a> {
    Queue(mpsc::Permit<'a, Order>),
    Inline(&'a Mutex<Option<Disk>>),
    /// There is none any more.
    Over,
}

impl Writer {
    pub(super) fn inline(disk: Disk) -> Self {
        Self::Inline(Mutex::new(Some(disk)))
    }

    pub(super) fn thread(
        disk: Disk,
        folder: Arc<str>,
        broken: watch::Sender<Option<Broken>>,
    ) -> io::Result<Self> {
        let (orders, mut queue) = mpsc::channel(QUEUE);
        thread::Builder::new().name("store".into()).spawn(move || {
            // Before the disk, so that it goes after it.
            let _last = LastWord { folder: &folder, broken: &broken };
            let closing = run(&disk, &mut queue, &folder, &broken);
            drop(disk);
            // Whoever waited for the file to be let go finds it free.
            if let Some(closing) = closing {
                let _ = closing.send(());
            }
        })?;
        Ok(Self::Thread(orders))
    }

    /// Waits for a place in the stream.
    pub(super) async fn slot(&self) -> Slot<'_> {
        match self {
            Self::Thread(orders) => orders.reserve().await.map_or(Slot::Over, Slot::Queue),
            Self::Inline(disk) => Slot::Inline(disk),
        }
    }

    pub(super) async fn close(&self) {
        match self {
            Self::Thread(orders) => {
                let (closing, closed) = oneshot::channel();
                if orders.send(Order::Close(closing)).await.is_ok() {
                    // An error says that it was closed before.
                    let _ = closed.await;
                }
            }
            Self::Inline(disk) => drop(disk.lock().unwrap_or_else(PoisonError::into_inner).take()),
        }
    }
}

/// Says that nothing is written any more when the thread ends, however it does.
struct LastWord<'a> {
    folder: &'a Arc<str>,
    broken: &'a watch::Sender<Option<Broken>>,
}

impl Drop for LastWord<'_> {
    fn drop(&mut self) {
        let over = Broken::closed(self.folder);
        self.broken.send_if_modified(|broken| broken.is_none() && broken.replace(over).is_none());
    }
}

impl Slot<'_> {
    pub(super) fn submit(self, job: Job, folder: &Arc<str>, broken: &watch::Sender<Option<Broken>>) {
        match self {
            Self::Queue(permit) => permit.send(Order::Write(job)),
            Self::Inline(disk) => {
                let disk = disk.lock().unwrap_or_else(PoisonError::into_inner);
                match &*disk {
                    Some(disk) => settle(disk, vec![job], folder, broken),
                    None => (job.done)(Err(Broken::closed(folder))),
                }
            }
            Self::Over => (job.done)(Err(Broken::closed(folder))),
        }
    }
}

/// Writes whatever waits, group by group, until nobody can submit any more or one says to close.
fn run(
    disk: &Disk,
    queue: &mut mpsc::Receiver<Order>,
    folder: &Arc<str>,
    broken: &watch::Sender<Option<Broken>>,
) -> Option<oneshot::Sender<()>> {
    let mut orders = Vec::with_capacity(GROUP);
    loop {
        if queue.blocking_recv_many(&mut orders, GROUP) == 0 {
            return None;
        }
        let mut group = Vec::with_capacity(orders.len());
        let mut closing = None;
        for order in orders.drain(..) {
            match order {
                Order::Write(job) if closing.is_none() => group.push(job),
                Order::Write(job) => (job.done)(Err(Broken::closed(folder))),
                Order::Close(closed) => closing = Some(closed),
            }
        }
        settle(disk, group, folder, broken);
        if closing.is_some() {
            queue.close();
            return closing;
        }
    }
}

/// One transaction, and everybody told.
fn settle(disk: &Disk, group: Vec<Job>, folder: &Arc<str>, broken: &watch::Sender<Option<Broken>>) {
    let before = broken.borrow().clone();
    let outcome = match before {
        Some(broken) => Err(broken),
        None if group.is_empty() => Ok(()),
        None => disk.commit(group.iter().flat_map(|job| &job.changes)).map_err(|error| {
            let reason = Broken::of_redb(folder, &error);
            tracing::error!(%reason, "the disk failed");
            broken.send_replace(Some(reason.clone()));
            reason
        }),
    };
    for job in group {
        (job.done)(outcome.clone());
    }
}
