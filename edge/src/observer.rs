//! What is told of every request: counted, and where it is the node that answers, logged. The
//! component has a line of its own for what it answers.

use std::{
    cell::Cell,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use hyper::body::Incoming;

use crate::{
    handler::{Admission, CoreHandler, Handler, Head, Request, Response},
    metrics::{
        Metrics,
        http::{self, Observation, Shard},
    },
    problem::Own,
    traces::{Context, Traces},
};

/// Is told of the requests of one core.
pub struct Observer {
    shard: Arc<Shard>,
    traces: Option<Arc<Traces>>,
    voice: Rc<Voice>,
}

/// A request that is being answered.
pub(crate) struct Observed {
    observation: Observation,
    traced: Option<(Arc<Traces>, Option<Context>)>,
    voice: Rc<Voice>,
}

impl Observer {
    /// A request's head is there.
    pub(crate) fn begin(&self, message: &::http::Request<Incoming>) -> Observed {
        let traced = self.traces.clone().map(|traces| (traces, Context::of(message.headers())));
        let observation = self.shard.begin(message.method(), message.uri().path());
        Observed { observation, traced, voice: self.voice.clone() }
    }
}

impl Observed {
    /// Its body is there: so many bytes.
    pub(crate) fn received(&self, bytes: usize) {
        self.observation.received(bytes);
    }

    /// It is answered.
    pub(crate) fn end(self, answer: &Response, trace_id: &str) {
        let own = answer.extensions().get::<Own>().map(|Own(code)| *code);
        let (status, body) = (answer.status(), answer.body());
        let seen = self.observation.end(&http::Answer { status, head: answer.headers(), own, body });
        if let Some((traces, asked)) = self.traced {
            traces.answered(asked, answer.headers(), status, &seen);
        }
        let Some((code, unsaid)) = own.and_then(|code| Some((code, self.voice.may_speak(Instant::now())?))) else {
            return;
        };
        let (route, duration_ms) = (seen.route, seen.duration.as_secs_f64() * 1000.0);
        let status = status.as_u16();
        if status >= 500 {
            tracing::warn!(code, status, route, duration_ms, trace_id, unsaid, "answered by the node");
        } else {
            tracing::info!(code, status, route, duration_ms, trace_id, unsaid, "answered by the node");
        }
    }
}

/// How much is said: when thousands a second are refused, each line would cost more than its answer.
struct Voice(Cell<Said>);

#[derive(Clone, Copy)]
struct Said {
    /// Begin of the present second.
    since: Instant,
    lines: u32,
    /// Lines that were not written since the last that was.
    unsaid: u64,
}

impl Voice {
    fn new(now: Instant) -> Self {
        Self(Cell::new(Said { since: now, lines: 0, unsaid: 0 }))
    }

    /// Whether one more line may be written, and then how many before it were not.
    fn may_speak(&self, now: Instant) -> Option<u64> {
        let mut said = self.0.get();
        if now.saturating_duration_since(said.since) >= Duration::from_secs(1) {
            (said.since, said.lines) = (now, 0);
        }
        let may = said.lines < LINES_PER_SECOND;
        let before = said.unsaid;
        if may {
            (said.lines, said.unsaid) = (said.lines + 1, 0);
        } else {
            said.unsaid += 1;
        }
        self.0.set(said);
        may.then_some(before)
    }
}

/// Of one core.
const LINES_PER_SECOND: u32 = 5;

/// A handler whose requests are observed.
pub(crate) struct Observing<H> {
    handler: H,
    metrics: Metrics,
}

impl<H> Observing<H> {
    pub(crate) fn new(handler: H, metrics: Metrics) -> Self {
        Self { handler, metrics }
    }
}

impl<H: Handler> Handler for Observing<H> {
    type Core = ObservingCore<H::Core>;

    fn core(&self, core: usize) -> Self::Core {
        let (shard, traces) = (self.metrics.http().shard(), self.metrics.traces().cloned());
        ObservingCore { core: self.handler.core(core), shard, traces }
    }
}

/// An [`Observing`] handler on one core.
pub(crate) struct ObservingCore<C> {
    core: C,
    shard: Arc<Shard>,
    traces: Option<Arc<Traces>>,
}

impl<C: CoreHandler> CoreHandler for ObservingCore<C> {
    fn admit(&self, head: &Head<'_>) -> Result<Admission, Box<Response>> {
        self.core.admit(head)
    }

    fn handle(&self, request: Request) -> impl Future<Output = Response> + 'static {
        self.core.handle(request)
    }

    fn drained(&self) -> impl Future<Output = ()> + 'static {
        self.core.drained()
    }

    fn observer(&self) -> Option<Observer> {
        let voice = Rc::new(Voice::new(Instant::now()));
        Some(Observer { shard: self.shard.clone(), traces: self.traces.clone(), voice })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_counted_and_not_written() {
        let now = Instant::now();
        let voice = Voice::new(now);
        assert_eq!((0..100).filter(|_| voice.may_speak(now).is_some()).count(), 5);
        let later = now + Duration::from_secs(1);
        assert_eq!(voice.may_speak(later), Some(95));
        assert_eq!(voice.may_speak(later), Some(0));
    }
}
