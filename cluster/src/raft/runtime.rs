//! tokio, with a chance that can be made to repeat: what Raft draws (election timeouts, first ticks) decides who leads.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use openraft::OptionalSend;
use openraft_rt::AsyncRuntime;
use openraft_rt_tokio::TokioRuntime;
use rand::rngs::StdRng;
use rand::{SeedableRng as _, TryRng};

thread_local! {
    static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// From now on what Raft draws on this thread is decided by `seed`. For simulations, which run on one thread.
pub fn seed_for_this_thread(seed: u64) {
    SEEDED.set(Some(StdRng::seed_from_u64(seed)));
}

/// See the module.
#[derive(Debug)]
pub struct Runtime(TokioRuntime);

/// The operating system's chance, unless this thread was seeded.
#[derive(Debug)]
pub struct Chance;

impl TryRng for Chance {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        SEEDED.with_borrow_mut(|seeded| match seeded {
            Some(seeded) => seeded.try_next_u32(),
            None => rand::rng().try_next_u32(),
        })
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        SEEDED.with_borrow_mut(|seeded| match seeded {
            Some(seeded) => seeded.try_next_u64(),
            None => rand::rng().try_next_u64(),
        })
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        SEEDED.with_borrow_mut(|seeded| match seeded {
            Some(seeded) => seeded.try_fill_bytes(bytes),
            None => rand::rng().try_fill_bytes(bytes),
        })
    }
}

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = Chance;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = <TokioRuntime as AsyncRuntime>::Watch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Chance {
        Chance
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}
