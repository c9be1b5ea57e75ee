//! What one instance uses: processor time in ticks, memory in bytes. Written from inside its
//! store, read from outside, where the store cannot be touched.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use wasmtime::{ResourceLimiter, Store, Trap, UpdateDeadline};

use crate::metrics::pool::Cause;

/// The meter of one instance. Relaxed atomics: one thread runs the instance and reads them.
pub(crate) struct Meter {
    /// The engine's tick count.
    ticks: Arc<AtomicU64>,
    /// Tick at which the store was last polled.
    turn: AtomicU64,
    /// The guest has been interrupted in its work and not gone on with it yet.
    interrupted: AtomicBool,
    /// Ticks the guest has worked since it last waited for something.
    worked: AtomicU32,
    /// Most ticks it may.
    max_ticks: u32,
    memory: AtomicUsize,
    max_memory: usize,
    /// The guest asked for more memory than it may have.
    refused: AtomicBool,
}

impl Meter {
    pub(crate) fn new(ticks: Arc<AtomicU64>, max_ticks: u32, max_memory: usize) -> Arc<Self> {
        Arc::new(Self {
            ticks,
            turn: AtomicU64::new(0),
            interrupted: AtomicBool::new(false),
            worked: AtomicU32::new(0),
            max_ticks,
            memory: AtomicUsize::new(0),
            max_memory,
            refused: AtomicBool::new(false),
        })
    }

    /// Puts `store` under this meter: at a tick the guest lets the core's other tasks run, and it
    /// traps once it has worked too long without waiting.
    pub(crate) fn watch<T: Metered + 'static>(self: &Arc<Self>, store: &mut Store<T>) {
        let meter = self.clone();
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| Ok(meter.tick()));
        store.limiter(|data| data.limiter());
        store.set_hostcall_fuel(MAX_CALL_BYTES);
        store.set_max_component_handles(MAX_HANDLES);
    }

    /// Call before the store is polled.
    pub(crate) fn turn_begins(&self) {
        self.turn.store(self.ticks.load(Relaxed), Relaxed);
    }

    /// Call when a poll of the store is pending. `true`: the guest is in the middle of its work;
    /// `false`: all of it waits. A poll may come before the guest can go on, for the sake of another
    /// call; it is in the middle of its work still, or neighbours would make its time endless.
    pub(crate) fn turn_ends(&self) -> bool {
        let busy = self.interrupted.load(Relaxed);
        if !busy {
            self.worked.store(0, Relaxed);
        }
        busy
    }

    /// Bytes of all linear memories.
    pub(crate) fn memory(&self) -> usize {
        self.memory.load(Relaxed)
    }

    /// What ended the guest that failed with `error`.
    pub(crate) fn cause(&self, error: &wasmtime::Error) -> Cause {
        match error.downcast_ref::<Trap>() {
            Some(Trap::Interrupt) => Cause::Cpu,
            // A guest that is refused memory aborts, which is a trap like any other.
            _ if self.refused.load(Relaxed) => Cause::Memory,
            _ => Cause::Trap,
        }
    }

    /// A store that slept finds its deadline long past; only ticks of this turn count. The
    /// built-in yield would starve the other tasks of a current-thread runtime (measured 65 ms
    /// against 4 ms), hence the runtime's own.
    fn tick(self: &Arc<Self>) -> UpdateDeadline {
        if self.ticks.load(Relaxed) == self.turn.load(Relaxed) {
            return UpdateDeadline::Continue(1);
        }
        if self.worked.fetch_add(1, Relaxed) >= self.max_ticks {
            return UpdateDeadline::Interrupt;
        }
        self.interrupted.store(true, Relaxed);
        let meter = self.clone();
        let goes_on = async move {
            tokio::task::yield_now().await;
            meter.interrupted.store(false, Relaxed);
        };
        UpdateDeadline::YieldCustom(1, Box::pin(goes_on))
    }
}

/// Store data that has a [`Limiter`].
pub(crate) trait Metered {
    fn limiter(&mut self) -> &mut Limiter;
}

/// Refuses memory above the meter's limit: the guest sees a failed `memory.grow`.
pub(crate) struct Limiter(pub(crate) Arc<Meter>);

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let all = self.0.memory() + desired.saturating_sub(current);
        let allowed = all <= self.0.max_memory;
        if allowed {
            self.0.memory.store(all, Relaxed);
        } else {
            self.0.refused.store(true, Relaxed);
        }
        Ok(allowed)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }
}

/// Most bytes a guest may hand over in one call, an answer included. Twice the longest answer taken.
const MAX_CALL_BYTES: usize = 32 << 20;
/// Most handles of resources, streams and tasks an instance may hold: a request through `wasi:http`
/// has about ten, and 32 may be under way.
pub(crate) const MAX_HANDLES: usize = 10_000;

/// Far above what a login component has (a few hundred).
const MAX_TABLE_ELEMENTS: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Interrupts the guest at the next tick, and lets it go on.
    async fn interrupted(meter: &Arc<Meter>) -> bool {
        meter.ticks.fetch_add(1, Relaxed);
        let UpdateDeadline::YieldCustom(1, goes_on) = meter.tick() else { return false };
        for _ in 0..3 {
            assert!(meter.turn_ends(), "busy, however often it is polled before it goes on");
            meter.turn_begins();
        }
        goes_on.await;
        true
    }

    #[tokio::test]
    async fn a_guest_that_works_on_is_interrupted_then_ended() {
        let meter = Meter::new(Arc::new(AtomicU64::new(7)), 2, 1);
        meter.turn_begins();
        assert!(matches!(meter.tick(), UpdateDeadline::Continue(1)), "an old deadline is no work");
        for _ in 0..2 {
            assert!(interrupted(&meter).await);
        }
        meter.ticks.fetch_add(1, Relaxed);
        assert!(matches!(meter.tick(), UpdateDeadline::Interrupt));
    }

    #[tokio::test]
    async fn waiting_ends_the_count() {
        let meter = Meter::new(Arc::default(), 1, 1);
        meter.turn_begins();
        for _ in 0..5 {
            assert!(interrupted(&meter).await);
            assert!(!meter.turn_ends(), "it waits");
            meter.turn_begins();
        }
    }

    #[test]
    fn memory_is_counted_over_all_memories_and_bounded() {
        let meter = Meter::new(Arc::default(), 1, 100);
        let mut limiter = Limiter(meter.clone());
        assert!(limiter.memory_growing(0, 60, None).expect("no trap"));
        assert!(!limiter.memory_growing(0, 60, None).expect("no trap"));
        assert!(limiter.memory_growing(60, 100, None).expect("no trap"));
        assert_eq!(meter.memory(), 100);
    }

    #[test]
    fn a_lost_guest_has_a_cause() {
        let meter = Meter::new(Arc::default(), 1, 100);
        assert_eq!(meter.cause(&Trap::UnreachableCodeReached.into()), Cause::Trap);
        let mut limiter = Limiter(meter.clone());
        assert!(!limiter.memory_growing(0, 101, None).expect("no trap"));
        assert_eq!(meter.cause(&Trap::UnreachableCodeReached.into()), Cause::Memory);
        assert_eq!(meter.cause(&Trap::Interrupt.into()), Cause::Cpu);
    }
}
