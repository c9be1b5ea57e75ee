//! From bytes to a revision that has answered: digest, compile, imports and types, settings, probe.
//!
//! All of it happens on a thread of its own, and compiling uses no other: requests go on being
//! answered. What is refused leaves nothing behind but compiled code in the cache.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header, uri::PathAndQuery};
use serde::Serialize;
use tokio::{runtime, task::LocalSet, time::timeout};

use super::{Refusal, live::Core};
use crate::{
    engine::{Artefact, Compiler, Engine},
    handler::{CoreHandler, Request, Response},
    problem::Own,
    revision::{Revision, Surroundings},
};

/// Makes revisions.
pub(crate) struct Intake {
    compiler: Compiler,
    engine: Arc<Engine>,
}

/// How long each step took, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Took {
    /// Compiling, or reading what was compiled before.
    pub compile: f64,
    /// Linking, and what the component says about itself.
    pub check: f64,
    /// The first answers.
    pub probe: f64,
}

impl Intake {
    /// Keeps compiled code in the folder `cache`.
    ///
    /// # Errors
    /// As [`Compiler::new`].
    pub(crate) fn new(engine: Arc<Engine>, cache: Option<&Path>) -> Result<Self, crate::engine::Error> {
        Ok(Self { compiler: Compiler::on_one_thread(cache)?, engine })
    }

    /// A revision of `wasm` in `around`. Blocks for as long as that takes; call outside a runtime.
    ///
    /// # Errors
    /// [`Refusal`], with a code for each step.
    pub(crate) fn take(&self, wasm: &[u8], around: Surroundings) -> Result<(Arc<Revision>, Took), Refusal> {
        let begun = Instant::now();
        let artefact = self.compiler.compile(wasm)?;
        let compile = begun.elapsed().as_secs_f64();
        // Blocking here is what this thread is for.
        let runtime =
            runtime::Builder::new_current_thread().enable_all().build().map_err(|error| Refusal::failed(&error))?;
        let checked = Instant::now();
        let revision = LocalSet::new().block_on(&runtime, self.checked(&artefact, around))?;
        let check = checked.elapsed().as_secs_f64();
        let probed = Instant::now();
        LocalSet::new().block_on(&runtime, probe(&revision))?;
        let took = Took { compile, check, probe: probed.elapsed().as_secs_f64() };
        runtime.shutdown_background();
        Ok((revision, took))
    }

    async fn checked(&self, artefact: &Artefact, around: Surroundings) -> Result<Arc<Revision>, Refusal> {
        match timeout(PATIENCE, Revision::load(&self.engine, artefact, around)).await {
            Ok(loaded) => Ok(Arc::new(loaded?)),
            Err(_) => Err(Refusal::new("does_not_start", format!("says nothing within {} s", PATIENCE.as_secs()))),
        }
    }
}

/// Asks a set of instances of its own what any load balancer would. `/healthz` has to be answered, by
/// the component, with a status below 500; what has no such route answers 404, and lives. `/readyz`
/// may be 503, since the store may be away for the one that serves now too; 500 is the component's
/// own fault.
async fn probe(revision: &Arc<Revision>) -> Result<(), Refusal> {
    let core = Core::alone(revision.clone());
    let asked = async {
        for (path, tolerated) in [("/healthz", None), ("/readyz", Some(StatusCode::SERVICE_UNAVAILABLE))] {
            let answer = core.handle(question(path)).await;
            judge(path, tolerated, &answer)?;
        }
        Ok(())
    };
    let judged = timeout(PATIENCE, asked).await.unwrap_or_else(|_| {
        Err(Refusal::new("probe_failed", format!("does not answer within {} s", PATIENCE.as_secs())))
    });
    core.cut_off().await;
    judged
}

fn judge(path: &str, tolerated: Option<StatusCode>, answer: &Response) -> Result<(), Refusal> {
    let own = answer.extensions().get::<Own>();
    let status = answer.status();
    match own {
        Some(Own(code)) => Err(Refusal::new("probe_failed", format!("GET {path}: {code}"))),
        None if !status.is_server_error() || tolerated == Some(status) => Ok(()),
        None => Err(Refusal::new("probe_failed", format!("GET {path} is answered {}", status.as_u16()))),
    }
}

fn question(path: &'static str) -> Request {
    let headers: HeaderMap = [
        (header::HOST, HeaderValue::from_static("localhost")),
        (header::USER_AGENT, HeaderValue::from_static("edgepass-probe")),
    ]
    .into_iter()
    .collect();
    Request {
        id: 0,
        method: Method::GET,
        target: PathAndQuery::from_static(path),
        headers,
        body: Bytes::new(),
        client: ([127, 0, 0, 1], 0).into(),
        secure: false,
        route: None,
        trace_id: "probe".into(),
        deadline: Instant::now() + PATIENCE,
    }
}

/// A component that has not answered by then never will.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Problem;

    fn answered(status: u16) -> Response {
        let mut answer = Response::default();
        *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
        answer
    }

    #[test]
    fn what_lives_may_have_no_such_route_and_a_store_that_is_away() {
        let tolerated = Some(StatusCode::SERVICE_UNAVAILABLE);
        for status in [200, 204, 404, 405, 429, 503] {
            assert!(judge("/readyz", tolerated, &answered(status)).is_ok(), "{status}");
        }
        for status in [500, 502, 504] {
            assert_eq!(judge("/readyz", tolerated, &answered(status)).expect_err("fails").code, "probe_failed");
        }
        let lost = judge("/readyz", tolerated, &Problem::InstanceLost.answer("t")).expect_err("a trap is no answer");
        assert_eq!(lost.to_string(), "probe_failed: GET /readyz: instance_lost");
    }
}
