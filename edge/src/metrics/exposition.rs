//! The two texts a scraper may ask for.

use prometheus_client::{
    encoding::{prometheus_text, text},
    registry::Registry,
};

/// A form of the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `OpenMetrics` 1.0.
    Open,
    /// Prometheus text 0.0.4, what everybody reads.
    Text,
}

impl Form {
    /// The form for an `Accept` field: `OpenMetrics` when it is named and not refused. Weights are
    /// not compared: whoever names it reads it.
    pub(super) fn accepted(accept: Option<&str>) -> Self {
        let names = |range: &str| {
            let mut parts = range.split(';').map(str::trim);
            parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"))
                && !parts.any(|parameter| {
                    parameter.strip_prefix("q=").is_some_and(|weight| weight.parse::<f32>().is_ok_and(|q| q == 0.0))
                })
        };
        if accept.is_some_and(|accept| accept.split(',').any(names)) { Self::Open } else { Self::Text }
    }

    /// Media type and text.
    pub(super) fn write(self, registry: &Registry) -> (&'static str, String) {
        let mut text = String::with_capacity(64 << 10);
        let (kind, written) = match self {
            Self::Open => {
                ("application/openmetrics-text; version=1.0.0; charset=utf-8", text::encode(&mut text, registry))
            }
            Self::Text => (prometheus_text::CONTENT_TYPE, prometheus_text::encode(&mut text, registry)),
        };
        if written.is_err() {
            // Writing to a string does not fail; a collector that gives up would leave half a text.
            tracing::error!("metrics cannot be written");
            text.clear();
        }
        (kind, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scraper_gets_the_form_it_names() {
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=underscores;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(Form::accepted(Some(prometheus)), Form::Open);
        for plain in [None, Some("*/*"), Some("text/plain"), Some("application/openmetrics-text;q=0"), Some("")] {
            assert_eq!(Form::accepted(plain), Form::Text, "{plain:?}");
        }
    }
}
