//! The process as the kernel sees it, read when somebody asks.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
};

/// Reads `/proc/self`. What cannot be read is left out.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let Some(seen) = Seen::read() else { return Ok(()) };
        encoder
            .encode_descriptor(
                "process_cpu_seconds",
                "Processor time used, user and system.",
                None,
                MetricType::Counter,
            )?
            .encode_counter::<NoLabelSet, _, u64>(&seen.cpu_seconds, None)?;
        let gauges = [
            ("process_resident_memory_bytes", "Memory in use.", seen.resident_bytes),
            ("process_virtual_memory_bytes", "Address space in use.", seen.virtual_bytes),
            ("process_open_fds", "Open file descriptors.", seen.open_fds),
            ("process_max_fds", "Most file descriptors it may open.", seen.max_fds),
            ("process_threads", "Threads.", seen.threads),
            ("process_start_time_seconds", "When it started, in Unix time.", seen.started),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
            }
        }
        Ok(())
    }
}

/// One look.
pub(crate) struct Seen {
    pub(crate) cpu_seconds: f64,
    pub(crate) resident_bytes: Option<f64>,
    virtual_bytes: Option<f64>,
    pub(crate) open_fds: Option<f64>,
    pub(crate) max_fds: Option<f64>,
    threads: Option<f64>,
    started: Option<f64>,
}

impl Seen {
    #[expect(clippy::cast_precision_loss, reason = "bytes and ticks of one process are below 2^53")]
    pub(crate) fn read() -> Option<Self> {
        use procfs::{CurrentSI as _, KernelStats};
        let process = procfs::process::Process::myself().ok()?;
        let stat = process.stat().ok()?;
        let ticks = procfs::ticks_per_second() as f64;
        let max_fds = process.limits().ok().and_then(|limits| match limits.max_open_files.soft_limit {
            procfs::process::LimitValue::Value(most) => Some(most as f64),
            procfs::process::LimitValue::Unlimited => None,
        });
        Some(Self {
            cpu_seconds: (stat.utime + stat.stime) as f64 / ticks,
            resident_bytes: Some((stat.rss * procfs::page_size()) as f64),
            virtual_bytes: Some(stat.vsize as f64),
            open_fds: process.fd_count().ok().map(|count| count as f64),
            max_fds,
            threads: u32::try_from(stat.num_threads).ok().map(f64::from),
            started: KernelStats::current().ok().map(|kernel| kernel.btime as f64 + stat.starttime as f64 / ticks),
        })
    }
}
