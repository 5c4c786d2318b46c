//! Log lines on their way out: gathered in memory, written together by a thread of their own.
//!
//! A line for each request is the gateway's most frequent write. Handing each to a thread would wake it thousands of times a second;
//! here the thread comes by itself every [`LINGER`] while lines come, and is woken only by the first after a pause.
//!
//! Laws:
//! - whoever logs never waits for the reader of the log: a line that finds no room is dropped, and the log says how many were;
//! - lines are whole and in order, and what waits when the [`Flusher`] is dropped is written then.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a line waits at most. Short for a person who reads along, long for a request.
const LINGER: Duration = Duration::from_millis(20);

/// What may wait while the reader of the log is slow, in bytes: some ten thousand lines.
const ROOM: usize = 4 * 1024 * 1024;

/// How long the end of the process waits for a reader of the log that is stuck.
const PATIENCE: Duration = Duration::from_secs(1);

/// Lines that wait to be written. Cheap to write to, from any thread.
#[derive(Default)]
pub(super) struct Lines {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    dropped: u64,
    /// Whether the thread must be woken for the next line.
    asleep: bool,
    closing: bool,
    /// Whether the thread has written everything and ended.
    over: bool,
}

/// Writes what is left when it is dropped.
#[must_use = "dropping it ends the log"]
pub struct Flusher(Arc<Lines>);

/// Starts the thread that writes lines to `out`.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<(Arc<Lines>, Flusher)> {
    let lines = Arc::new(Lines::default());
    let writing = lines.clone();
    std::thread::Builder::new().name("log".to_owned()).spawn(move || writing.write_until_closed(out))?;
    Ok((lines.clone(), Flusher(lines)))
}

impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.lock();
        if state.waiting.len() + line.len() > ROOM {
            state.dropped += 1;
        } else {
            state.waiting.extend_from_slice(line);
            if std::mem::take(&mut state.asleep) {
                self.changed.notify_all();
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn write_until_closed(&self, mut out: impl Write) {
        let mut leaving = Vec::new();
        while self.take(&mut leaving) {
            // Where the log cannot be written there is nowhere to say so.
            let _ = out.write_all(&leaving).and_then(|()| out.flush());
            leaving.clear();
            self.tell_what_was_dropped();
            let _woken_to_close =
                self.changed.wait_timeout_while(self.lock(), LINGER, |state| !state.closing);
        }
        self.lock().over = true;
        self.changed.notify_all();
    }

    /// Swaps what waits into `leaving`, which is empty; sleeps until there is something. False: it is over.
    fn take(&self, leaving: &mut Vec<u8>) -> bool {
        let mut state = self.lock();
        while state.waiting.is_empty() && !state.closing {
            state.asleep = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(&mut state.waiting, leaving);
        !leaving.is_empty()
    }

    fn tell_what_was_dropped(&self) {
        let dropped = std::mem::take(&mut self.lock().dropped);
        if dropped > 0 {
            tracing::warn!(dropped, "log lines were dropped: whatever reads standard error is too slow");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closing = true;
        self.0.changed.notify_all();
        let _over_or_not = self.0.changed.wait_timeout_while(state, PATIENCE, |state| !state.over);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Passes each write on as one message, then waits until it is let go on.
    struct Reader {
        written: mpsc::Sender<Vec<u8>>,
        may_go_on: mpsc::Receiver<()>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.send(bytes.to_vec()).map_err(io::Error::other)?;
            // An error: whoever held it up is gone.
            let _ = self.may_go_on.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn reader() -> (Reader, mpsc::Receiver<Vec<u8>>, mpsc::Sender<()>) {
        let ((written, read), (held_up, may_go_on)) = (mpsc::channel(), mpsc::channel());
        (Reader { written, may_go_on }, read, held_up)
    }

    #[test]
    fn lines_that_wait_leave_in_one_write_and_in_order() {
        let (reader, read, held_up) = reader();
        let (lines, flusher) = start(reader).unwrap();
        let mut log = &*lines;
        log.write_all(b"first\n").unwrap();
        assert_eq!(read.recv().unwrap(), b"first\n");
        log.write_all(b"second\n").unwrap();
        log.write_all(b"third\n").unwrap();
        drop(held_up);
        drop(flusher);
        assert_eq!(read.recv().unwrap(), b"second\nthird\n");
        assert!(read.recv().is_err(), "something was written twice");
    }

    #[test]
    fn a_stuck_reader_costs_lines_and_never_the_writers_time() {
        let (reader, read, held_up) = reader();
        let (lines, flusher) = start(reader).unwrap();
        let line = [b'x'; 1024];
        // Room for what waits, and once more for what the thread may have taken before it got stuck.
        for _ in 0..3 * ROOM / line.len() {
            (&*lines).write_all(&line).unwrap();
        }
        assert!(lines.lock().dropped > 0, "more than there is room for was kept");
        assert!(lines.lock().waiting.len() <= ROOM);
        drop(held_up);
        drop(flusher);
        let written: usize = read.iter().map(|bytes| bytes.len()).sum();
        assert!(written >= ROOM && written.is_multiple_of(line.len()), "{written} bytes");
    }
}
