//! What an operator tells the process by signals: SIGTERM and Ctrl-C to stop, the second time at
//! once; SIGHUP to read again what can be; SIGUSR2 to make way for a new program.

use std::{io, thread, time::Duration};

use tokio::{
    runtime::{self, Runtime},
    signal::unix::{Signal, SignalKind, signal},
};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// SIGTERM, SIGINT: end.
    Stop,
    /// SIGHUP: read certificates and configuration again.
    Reload,
    /// SIGUSR2: run the program that is at our path now in our place.
    Replace,
}

/// Orders to stop, kept from the moment this is made until they are waited for. Other signals do what
/// they do to any process.
pub struct Stop {
    runtime: Runtime,
    signals: Signals,
}

/// All orders, kept likewise.
pub struct Orders {
    stop: Stop,
    hangup: Signal,
    user: Signal,
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

    /// Returns at the first signal. A second one ends the process at once.
    pub fn wait(mut self) {
        self.runtime.block_on(self.signals.stop());
        self.at_once();
    }

    /// From here on the next order to stop ends the process at once, with the status a shell gives
    /// for it.
    fn at_once(mut self) {
        thread::spawn(move || {
            let status = self.runtime.block_on(self.signals.stop());
            std::process::exit(status);
        });
    }
}

impl Orders {
    /// From here on a signal is kept until it is waited for.
    ///
    /// # Errors
    /// When the system takes no handler.
    pub fn listen() -> io::Result<Self> {
        let stop = Stop::listen()?;
        let entered = stop.runtime.enter();
        let (hangup, user) = (signal(SignalKind::hangup())?, signal(SignalKind::user_defined2())?);
        drop(entered);
        Ok(Self { stop, hangup, user })
    }

    /// The next order.
    pub fn wait(&mut self) -> Order {
        let Self { stop: Stop { runtime, signals }, hangup, user } = self;
        runtime.block_on(async {
            tokio::select! {
                biased;
                _ = signals.stop() => Order::Stop,
                _ = hangup.recv() => Order::Reload,
                _ = user.recv() => Order::Replace,
            }
        })
    }

    /// As after [`Stop::wait`]; other orders are not taken any more.
    pub fn stop_at_once(self) {
        self.stop.at_once();
    }

    /// Waits for `time`; the exit status to end with when told to stop meanwhile.
    pub fn pause(&mut self, time: Duration) -> Option<i32> {
        let Stop { runtime, signals } = &mut self.stop;
        runtime.block_on(async { tokio::time::timeout(time, signals.stop()).await.ok() })
    }
}

impl Signals {
    /// The next order to stop, as an exit status: 128 and the signal's number.
    async fn stop(&mut self) -> i32 {
        tokio::select! {
            _ = self.terminate.recv() => 128 + 15,
            _ = self.interrupt.recv() => 128 + 2,
        }
    }
}
