//! The bearer token of a request (RFC 6750): from `Authorization` and nowhere else.

use crate::{message::Head, problem::Problem};

/// The token; `None` when the request brought no bearer credentials at all.
///
/// # Errors
/// `token_invalid` when the field was sent twice or holds no token: which of two a proxy in front
/// believed is unknown.
pub(super) fn token(head: &Head) -> Result<Option<&str>, Problem> {
    let value = head.only("authorization").map_err(|_| Problem::token_invalid("authorization.repeated"))?;
    let Some(value) = value else { return Ok(None) };
    let value = std::str::from_utf8(value).map_err(|_| Problem::token_invalid("authorization.form"))?;
    let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Ok(None);
    }
    match token.trim_start_matches(' ') {
        "" => Err(Problem::token_invalid("authorization.form")),
        token => Ok(Some(token)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Result<Option<String>, u16> {
        let mut head = Head::new();
        for value in values {
            head.push("authorization", value);
        }
        token(&head).map(|token| token.map(str::to_owned)).map_err(|problem| problem.status())
    }

    #[test]
    fn a_token_is_taken_from_one_field_of_its_scheme() {
        assert_eq!(of(&["Bearer abc"]), Ok(Some("abc".into())));
        assert_eq!(of(&["bEARER   abc"]), Ok(Some("abc".into())));
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&["Basic YTpi"]), Ok(None));
        assert_eq!(of(&["Bearerabc"]), Ok(None));
        assert_eq!(of(&["Bearer"]), Err(401));
        assert_eq!(of(&["Bearer a", "Bearer a"]), Err(401));
    }
}
