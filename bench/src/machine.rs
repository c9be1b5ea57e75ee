//! Which machine a number is from. A number without it means nothing.

use std::{fmt, fs, thread};

use serde::Serialize;

/// The machine of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: String,
    /// Processors this process may use.
    pub cpus: usize,
    /// The kernel.
    pub kernel: String,
}

impl Machine {
    /// This one; what cannot be found out is `unknown`.
    #[must_use]
    pub fn this() -> Self {
        let unknown = || "unknown".to_owned();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model =
            cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned());
        Self {
            cpu: model.map_or_else(unknown, ToOwned::to_owned),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            kernel: kernel.unwrap_or_else(|_| unknown()),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {}, Linux {}", self.cpus, self.cpu, self.kernel)
    }
}
