//! The page: one document, with its style and its script inside and nothing from anywhere else. The
//! browser is told so, and which script it may run.

use std::sync::LazyLock;

use base64ct::{Base64, Encoding as _};
use http::{HeaderName, HeaderValue, Method, StatusCode, header};
use sha2::{Digest as _, Sha256};

use crate::admin::{Asked, Route, with_type};

/// `GET /`.
pub(super) fn route() -> Route {
    Route::new(Method::GET, "/", async |_: Asked| {
        let mut answer = with_type(StatusCode::OK, "text/html; charset=utf-8", PAGE.text.as_str());
        answer.headers_mut().extend(PAGE.head.clone());
        Ok(answer)
    })
    .open()
}

struct Page {
    text: String,
    head: [(HeaderName, HeaderValue); 4],
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let [style, script] = [include_str!("page.css"), include_str!("page.js")];
    let hash = |part: &str| Base64::encode_string(&Sha256::digest(part));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(style),
        hash(script)
    );
    let fixed = HeaderValue::from_static;
    Page {
        text: include_str!("page.html").replace("{style}", style).replace("{script}", script),
        head: [
            (header::CONTENT_SECURITY_POLICY, HeaderValue::try_from(policy).unwrap_or(fixed("default-src 'none'"))),
            (header::X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
            (header::REFERRER_POLICY, fixed("no-referrer")),
            (HeaderName::from_static("cross-origin-opener-policy"), fixed("same-origin")),
        ],
    }
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_all_there_is() {
        let text = PAGE.text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("{style}") && !text.contains("{script}"), "parts are in their places");
        for away in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!text.contains(away), "{away}");
        }
        assert_eq!((text.matches("<script>").count(), text.matches("<style>").count()), (1, 1));
        let (_, rest) = PAGE.text.split_once("<script>").expect("a script");
        let (script, _) = rest.split_once("</script>").expect("its end");
        let hash = Base64::encode_string(&Sha256::digest(script));
        assert!(PAGE.head[0].1.to_str().expect("text").contains(&hash), "the browser runs it");
    }
}
