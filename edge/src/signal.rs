//! SIGTERM and Ctrl-C: the first asks to stop, the second stops.

use std::{io, thread};

use tokio::{
    runtime::{self, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

/// Waits for the first signal, from the moment it is made.
pub struct Stop {
    runtime: Runtime,
    signals: Signals,
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// From here on a signal is kept until it is waited for.
    ///
    /// # Errors
    /// When the system takes no handler.
    pub fn listen() -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        drop(entered);
        Ok(Self { runtime, signals: Signals { terminate, interrupt } })
    }

    /// Returns at the first signal. A second one ends the process at once, with the status a shell
    /// gives for it.
    pub fn wait(mut self) {
        self.runtime.block_on(self.signals.next());
        thread::spawn(move || {
            let status = self.runtime.block_on(self.signals.next());
            std::process::exit(status);
        });
    }
}

impl Signals {
    /// The next signal, as an exit status: 128 and its number.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => 128 + 15,
            _ = self.interrupt.recv() => 128 + 2,
        }
    }
}
