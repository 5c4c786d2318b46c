//! Being asked to stop, by SIGTERM or ctrl-c: the same for every command that stays up.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for both signals from the moment it is made: make it before anybody can know that the process is there.
pub struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Begins to listen.
    ///
    /// # Errors
    /// The signals cannot be listened for.
    pub fn listen() -> Result<Self, String> {
        let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits until it is asked for, and may be waited for again.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
