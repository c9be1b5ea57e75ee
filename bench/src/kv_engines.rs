//! Embedded key-value engines under the load of logins: what decides which one the edge uses.
//!
//! Both engines do the same work in one run, interleaved: random 16-byte keys (session ids are
//! random), values of a session's size, and group commit as `edgepass-edge` does it, with one writer
//! thread that takes what is waiting, looks each key up (the store says whether it was there), makes
//! one durable commit and answers. `docs/store.md` holds the numbers and the decision.

mod fjall_engine;
mod redb_engine;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::sync::oneshot;

use self::{fjall_engine::Fjall, redb_engine::Redb};

/// What is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the databases are made, and removed again. Default: the system's temporary folder.
    pub folder: PathBuf,
    /// Keys in the database before anything is timed.
    pub keys: u64,
    /// How long each number of writers writes, in seconds.
    pub seconds: u64,
    /// Numbers of writers, each waiting for its own write.
    pub writers: Vec<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { folder: std::env::temp_dir(), keys: 300_000, seconds: 5, writers: vec![1, 16, 64] }
    }
}

/// What was measured; `Display` draws it as a Markdown table.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Keys before the timed part.
    pub keys: u64,
    /// One per engine.
    pub engines: Vec<EngineReport>,
}

/// One engine's numbers.
#[derive(Clone, Debug, Serialize)]
pub struct EngineReport {
    /// Name and version.
    pub engine: &'static str,
    /// One per number of writers.
    pub writes: Vec<WriteReport>,
    /// Reading a random key that is there.
    pub read_present: Percentiles,
    /// Reading a random key that is not.
    pub read_absent: Percentiles,
    /// Opening what a kill leaves behind, in milliseconds.
    pub reopen_ms: f64,
    /// Bytes on disk at the end, per entry.
    pub disk_bytes_per_entry: u64,
}

/// Durable writes, each answered after its commit.
#[derive(Clone, Debug, Serialize)]
pub struct WriteReport {
    /// How many wait at once.
    pub writers: usize,
    /// Writes per second.
    pub per_second: f64,
    /// Writes per commit.
    pub per_commit: f64,
    /// CPU of the whole process per write, in microseconds; background work included.
    pub cpu_us: f64,
    /// From request to answer.
    pub latency: Percentiles,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Percentiles {
    /// Half are below.
    pub p50_us: f64,
    /// 99 of 100 are below.
    pub p99_us: f64,
}

type Key = [u8; 16];

/// What an engine has to do.
trait Engine: Send + Sync + Sized + 'static {
    const NAME: &'static str;

    fn open(folder: &Path) -> Result<Self>;
    fn contains(&self, key: &Key) -> Result<bool>;
    /// Durable when it returns.
    fn commit(&self, keys: &[Key], value: &[u8]) -> Result<()>;
}

/// Measures both engines.
///
/// # Errors
/// When an engine fails, or answers wrongly.
pub fn run(settings: &Settings) -> Result<Report> {
    let mut fjall = Candidate::<Fjall>::prepare(settings)?;
    let mut redb = Candidate::<Redb>::prepare(settings)?;
    for &writers in &settings.writers {
        fjall.write(writers, settings.seconds)?;
        redb.write(writers, settings.seconds)?;
    }
    Ok(Report { keys: settings.keys, engines: vec![fjall.finish()?, redb.finish()?] })
}

/// An engine with what has been measured of it.
struct Candidate<E> {
    folder: tempfile::TempDir,
    engine: Arc<E>,
    /// Keys below it are there from the beginning.
    prepared: u64,
    /// Keys from it on are not there.
    next: u64,
    entries: u64,
    writes: Vec<WriteReport>,
}

impl<E: Engine> Candidate<E> {
    fn prepare(settings: &Settings) -> Result<Self> {
        let folder = tempfile::tempdir_in(&settings.folder).context("making a folder")?;
        let engine = E::open(&folder.path().join("db"))?;
        let keys = (0..settings.keys).map(key).collect::<Vec<_>>();
        for keys in keys.chunks(1000) {
            engine.commit(keys, &VALUE)?;
        }
        let (prepared, engine) = (settings.keys, engine.into());
        Ok(Self { folder, engine, prepared, next: prepared, entries: prepared, writes: Vec::new() })
    }

    fn write(&mut self, writers: usize, seconds: u64) -> Result<()> {
        let (queue, jobs) = mpsc::channel::<(Key, oneshot::Sender<bool>)>();
        let engine = self.engine.clone();
        let writer = thread::spawn(move || group_commit(&*engine, &jobs));

        let cpu = process_cpu()?;
        let start = Instant::now();
        let end = start + Duration::from_secs(seconds);
        let next = self.next;
        let step = u64::try_from(writers)?;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let mut latencies = runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for n in 0..step {
                tasks.spawn(write_until(end, (next + n..).step_by(writers), queue.clone()));
            }
            drop(queue);
            tasks.join_all().await.into_iter().collect::<Result<Vec<_>>>()
        })?;
        let elapsed = start.elapsed().as_secs_f64();
        let cpu = process_cpu()?.saturating_sub(cpu);
        let commits = writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;

        let most = latencies.iter().map(Vec::len).max().unwrap_or_default();
        self.next += u64::try_from(most)? * step;
        let mut latencies = latencies.iter_mut().flat_map(std::mem::take).collect::<Vec<_>>();
        self.entries += u64::try_from(latencies.len())?;
        let count = f64::from(u32::try_from(latencies.len())?);
        self.writes.push(WriteReport {
            writers,
            per_second: count / elapsed,
            per_commit: count / f64::from(commits),
            cpu_us: cpu.as_secs_f64() * 1e6 / count,
            latency: Percentiles::of(&mut latencies),
        });
        Ok(())
    }

    fn finish(self) -> Result<EngineReport> {
        let read = |first: u64, expected: bool| {
            let mut latencies = Vec::new();
            for n in 0..READS {
                // Spread over all keys, in no order.
                let key = key(first + n.wrapping_mul(7_919_993) % self.prepared);
                let start = Instant::now();
                let present = self.engine.contains(&key)?;
                latencies.push(start.elapsed());
                ensure!(present == expected, "{} answers wrongly", E::NAME);
            }
            Ok::<_, anyhow::Error>(Percentiles::of(&mut latencies))
        };
        let (read_present, read_absent) = (read(0, true)?, read(u64::MAX / 4, false)?);
        // Nothing is being written: a copy of the open files is what a kill would leave.
        let (open, killed) = (self.folder.path().join("db"), self.folder.path().join("killed"));
        let bytes = copy(&open, &killed)?;
        let start = Instant::now();
        let engine = E::open(&killed)?;
        ensure!(engine.contains(&key(0))?, "{} has lost a key", E::NAME);
        let reopen_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(EngineReport {
            engine: E::NAME,
            writes: self.writes,
            read_present,
            read_absent,
            reopen_ms,
            disk_bytes_per_entry: bytes / self.entries,
        })
    }
}

/// The shape of the edge's writer. Returns the number of commits.
fn group_commit<E: Engine>(engine: &E, jobs: &mpsc::Receiver<(Key, oneshot::Sender<bool>)>) -> Result<u32> {
    let mut commits = 0;
    while let Ok(first) = jobs.recv() {
        let mut answers = Vec::new();
        let mut keys = Vec::new();
        for (key, answer) in std::iter::once(first).chain(jobs.try_iter()) {
            answers.push((engine.contains(&key)?, answer));
            keys.push(key);
        }
        engine.commit(&keys, &VALUE)?;
        commits += 1;
        for (present, answer) in answers {
            // Fails only when the run is being given up.
            _ = answer.send(present);
        }
    }
    Ok(commits)
}

async fn write_until(
    end: Instant,
    keys: impl Iterator<Item = u64>,
    queue: mpsc::Sender<(Key, oneshot::Sender<bool>)>,
) -> Result<Vec<Duration>> {
    let mut latencies = Vec::new();
    for n in keys {
        let start = Instant::now();
        if start >= end {
            break;
        }
        let (answer, answered) = oneshot::channel();
        queue.send((key(n), answer)).context("the writer has stopped")?;
        ensure!(!answered.await.context("the writer has stopped")?, "a new key was there before");
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}

impl Percentiles {
    fn of(latencies: &mut [Duration]) -> Self {
        latencies.sort_unstable();
        let at = |percent: usize| {
            let at = latencies.get(latencies.len() * percent / 100);
            at.map_or(f64::NAN, |latency| latency.as_secs_f64() * 1e6)
        };
        Self { p50_us: at(50), p99_us: at(99) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} keys of 16 random bytes, values of {} bytes, one durable commit for all that wait\n",
            self.keys,
            VALUE.len()
        )?;
        writeln!(f, "| engine | writers | writes/s | per commit | CPU per write | p50 | p99 |")?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|---:|")?;
        for engine in &self.engines {
            for WriteReport { writers, per_second, per_commit, cpu_us, latency } in &engine.writes {
                let Percentiles { p50_us, p99_us } = latency;
                let name = engine.engine;
                writeln!(
                    f,
                    "| {name} | {writers} | {per_second:.0} | {per_commit:.1} | {cpu_us:.0} µs | {p50_us:.0} µs | {p99_us:.0} µs |",
                )?;
            }
        }
        writeln!(f, "\n| engine | read p50 / p99 | read of an absent key | reopen after a kill | disk per entry |")?;
        writeln!(f, "|---|---:|---:|---:|---:|")?;
        for engine in &self.engines {
            let EngineReport { engine, read_present, read_absent, reopen_ms, disk_bytes_per_entry, .. } = engine;
            writeln!(
                f,
                "| {engine} | {:.1} / {:.1} µs | {:.1} / {:.1} µs | {reopen_ms:.1} ms | {disk_bytes_per_entry} B |",
                read_present.p50_us, read_present.p99_us, read_absent.p50_us, read_absent.p99_us,
            )?;
        }
        Ok(())
    }
}

/// Key number `n`: the same in every run, and as good as random (`SplitMix64`).
fn key(n: u64) -> Key {
    let mix = |n: u64| {
        let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    };
    let n = n.wrapping_mul(2);
    let halves = [n, n.wrapping_add(1)].map(|n| mix(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes());
    let mut key = Key::default();
    key[..8].copy_from_slice(&halves[0]);
    key[8..].copy_from_slice(&halves[1]);
    key
}

/// User and system time of this process, from `/proc/self/stat` in hundredths of a second.
fn process_cpu() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").context("reading /proc/self/stat")?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks = fields.skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

/// Copies a folder or file; returns the bytes of it.
fn copy(from: &Path, to: &Path) -> Result<u64> {
    if from.is_file() {
        return Ok(fs::copy(from, to)?);
    }
    fs::create_dir_all(to)?;
    let entries = fs::read_dir(from)?.map(|entry| {
        let name = entry?.file_name();
        copy(&from.join(&name), &to.join(&name))
    });
    entries.sum()
}

/// A sealed session with its envelope is about this long, and does not compress.
static VALUE: [u8; 300] = {
    let mut value = [0; 300];
    let mut n = 0;
    let mut state = 1_u32;
    while n < value.len() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        value[n] = (state >> 24) as u8;
        n += 1;
    }
    value
};
const READS: u64 = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_engines_are_measured_and_answer_rightly() {
        let settings = Settings { keys: 1000, seconds: 1, writers: vec![1, 4], ..Settings::default() };
        let report = run(&settings).expect("measures");
        for engine in &report.engines {
            assert_eq!(engine.writes.iter().map(|writes| writes.writers).collect::<Vec<_>>(), [1, 4]);
            assert!(engine.writes.iter().all(|writes| writes.per_second > 0.0 && writes.per_commit >= 1.0));
            assert!(engine.disk_bytes_per_entry > 300, "{} keeps less than the values", engine.engine);
        }
        assert_eq!(report.to_string().matches("| fjall 3 |").count(), 3);
    }
}
