//! `GET /logs` of the admin listener.

use std::time::Duration;

use http::Method;
use tracing::Level;

use super::tail::{CAPACITY, Tail};
use crate::admin::{Asked, Fault, Route};

/// `GET /logs?after=&level=&limit=`: the last lines, or those after a number, for which it waits.
pub(crate) fn routes() -> Vec<Route> {
    vec![Route::new(Method::GET, "/logs", async |asked: Asked| {
        let level = match asked.query("level") {
            Some(name) => name.parse::<Level>().map_err(|_| Fault::bad_request("level: error, warn, info or debug"))?,
            None => Level::TRACE,
        };
        let number = |name: &str| {
            let text = asked.query(name);
            text.map(|text| text.parse::<u64>().map_err(|_| Fault::bad_request(format!("{name}: a number"))))
                .transpose()
        };
        let (after, limit) = (number("after")?, number("limit")?.unwrap_or(200));
        let limit = usize::try_from(limit).unwrap_or(CAPACITY).clamp(1, CAPACITY);
        let tail = Tail::of_process();
        let mut kept = tail.read(after, level, limit);
        if let (Some(after), true) = (after, kept.lines.is_empty() && kept.lost == 0) {
            let wait = async {
                let mut seen = after;
                while kept.lines.is_empty() {
                    tail.beyond(seen).await;
                    kept = tail.read(Some(after), level, limit);
                    seen = kept.next;
                }
            };
            // Nothing new in that time is an answer too.
            let _ = tokio::time::timeout(PATIENCE, wait).await;
        }
        Ok(asked.json_answer(&kept))
    })]
}

/// How long it waits for a line: well below what a route may take.
const PATIENCE: Duration = Duration::from_secs(10);
