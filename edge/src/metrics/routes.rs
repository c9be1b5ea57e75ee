//! `GET /metrics` of the admin listener: open, as scrapers are configured without tokens and the
//! listener is for this machine only.

use http::{Method, header};

use super::Metrics;
use crate::admin::{Asked, Route, with_type};

/// The route.
pub(crate) fn routes(metrics: &Metrics) -> Vec<Route> {
    let metrics = metrics.clone();
    let answer = move |asked: Asked| {
        let metrics = metrics.clone();
        async move {
            let accept = asked.request.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
            let (kind, text) = metrics.text(accept);
            Ok(with_type(http::StatusCode::OK, kind, text))
        }
    };
    vec![Route::new(Method::GET, "/metrics", answer).open()]
}
