//! The forms a setting's value may have.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::{Duration, SystemTime},
};

use base64ct::{Base64UrlUnpadded, Encoding as _};

use super::{LimitPolicy, Wrong};
use crate::{clock::UnixSeconds, secret::Secret, session::MAX_RECENT, token::keys::MIN_SECRET_BYTES};

/// The longest any lifetime may be set to: ten years. Sums of them never overflow.
pub const LONGEST: Duration = days(3650);

/// Scheme and host of a platform, without a path: https, or http to a loopback address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    url: String,
    loopback: bool,
}

impl BaseUrl {
    /// Reads `https://host[:port]`, or `http://` before the literal of a loopback address. What is
    /// loopback is decided on the parsed address and never by a name.
    pub(super) fn parse(text: &str) -> Result<Self, Wrong> {
        const FORM: Wrong = "not https://host[:port]";
        let (scheme, rest) = text.split_once("://").ok_or(FORM)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => v6.split_once(']').ok_or(FORM)?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let address: Option<IpAddr> = if authority.starts_with('[') {
            Some(host.parse::<Ipv6Addr>().map_err(|_| FORM)?.into())
        } else {
            host.parse::<Ipv4Addr>().ok().map(Into::into)
        };
        let is_name = |host: &str| {
            !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-'))
        };
        let port_fits = port.is_empty()
            || port
                .strip_prefix(':')
                .is_some_and(|p| p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u16>().is_ok());
        if (address.is_none() && !is_name(host)) || !port_fits {
            return Err(FORM);
        }
        let loopback = address.is_some_and(|address| address.is_loopback());
        match scheme {
            "https" => {}
            "http" if loopback => {}
            "http" => return Err("plain http only to a loopback address"),
            _ => return Err(FORM),
        }
        Ok(Self { url: format!("{scheme}://{authority}"), loopback })
    }

    /// `https://` and a name of ours.
    pub(crate) fn of_host(host: &'static str) -> Self {
        Self { url: format!("https://{host}"), loopback: false }
    }

    /// `scheme://host[:port]`, without a slash at the end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.url
    }

    /// Whether it is the literal of a loopback address.
    #[must_use]
    pub const fn is_loopback(&self) -> bool {
        self.loopback
    }
}

/// Keys of RFC 7515 (A.1) and RFC 8037 (A.1): random, and known to everybody.
const PUBLISHED: [&str; 2] = [
    "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
    "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A",
];

pub(super) const fn days(n: u64) -> Duration {
    Duration::from_secs(n * 86_400)
}

/// `30s`, `10m`, `12h`, `90d`; from one second to ten years.
pub(super) fn duration(text: &str) -> Result<Duration, Wrong> {
    const FORM: Wrong = "not a duration such as 30s, 10m, 12h or 90d";
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or(FORM)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(FORM),
    };
    if !number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(FORM);
    }
    let seconds = number.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).ok_or(FORM)?;
    let duration = Duration::from_secs(seconds);
    if (Duration::from_secs(1)..=LONGEST).contains(&duration) { Ok(duration) } else { Err("not from 1s to 3650d") }
}

/// `0`, or a [`duration`].
pub(super) fn duration_or_none(text: &str) -> Result<Duration, Wrong> {
    if text == "0" { Ok(Duration::ZERO) } else { duration(text) }
}

/// `0`, or from 10 seconds to 5 minutes: a shorter grace loses to a slow network, a longer one is a
/// gift to whoever stole a token.
pub(super) fn grace(text: &str) -> Result<Duration, Wrong> {
    let grace = duration_or_none(text)?;
    let fits = grace.is_zero() || (Duration::from_secs(10)..=Duration::from_mins(5)).contains(&grace);
    if fits { Ok(grace) } else { Err("not 0 or from 10s to 300s") }
}

/// An instant as RFC 3339 writes it.
pub(super) fn instant(text: &str) -> Result<UnixSeconds, Wrong> {
    const FORM: Wrong = "not an instant such as 2026-11-30T12:00:00Z";
    let instant = humantime::parse_rfc3339(text).map_err(|_| FORM)?;
    let since = instant.duration_since(SystemTime::UNIX_EPOCH).map_err(|_| FORM)?;
    Ok(UnixSeconds(since.as_secs()))
}

/// How many sessions a user may have: as many as the `l` record can name, or 0 for no limit.
pub(super) fn session_limit(text: &str) -> Result<usize, Wrong> {
    text.parse().ok().filter(|n| *n <= MAX_RECENT).ok_or("not a number from 0 to 50")
}

pub(super) fn limit_policy(text: &str) -> Result<LimitPolicy, Wrong> {
    match text {
        "evict_oldest" => Ok(LimitPolicy::EvictOldest),
        "refuse" => Ok(LimitPolicy::Refuse),
        _ => Err("not evict_oldest or refuse"),
    }
}

/// Comma-separated origins as a browser sends them: `https://host[:port]`, or `http://` likewise.
pub(super) fn origins(text: &str) -> Result<Vec<String>, Wrong> {
    let origin = |text: &str| {
        let (scheme, authority) = text.split_once("://")?;
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-:[]".contains(&b);
        let fits = matches!(scheme, "https" | "http") && !authority.is_empty() && authority.bytes().all(allowed);
        fits.then(|| text.to_owned())
    };
    text.split(',')
        .map(|text| origin(text.trim()))
        .collect::<Option<_>>()
        .ok_or("not origins such as https://a.example")
}

/// A comma-separated list of keys, none twice.
pub(super) fn keys(text: &str) -> Result<Vec<Secret<Vec<u8>>>, Wrong> {
    let keys = text.split(',').map(key).collect::<Result<Vec<_>, _>>()?;
    let is_repeated = |(at, key): (usize, &Secret<Vec<u8>>)| keys[..at].iter().any(|k| k.expose() == key.expose());
    if keys.iter().enumerate().any(is_repeated) { Err("a key given twice") } else { Ok(keys) }
}

/// One key in base64url (the standard alphabet and padding are taken as well), at least 32 random
/// bytes. What is plainly not random is refused: text, few different bytes, a count.
pub(super) fn key(text: &str) -> Result<Secret<Vec<u8>>, Wrong> {
    let text = text.trim().trim_end_matches('=').replace('+', "-").replace('/', "_");
    let bytes = Base64UrlUnpadded::decode_vec(&text).map_err(|_| "not base64url")?;
    let bytes = Secret::new(bytes);
    let key = bytes.expose();
    if key.len() < MIN_SECRET_BYTES {
        return Err("shorter than 32 bytes");
    }
    let is_text = key.iter().all(|b| (0x20..0x7f).contains(b));
    let few_bytes = different(key.iter().copied()) < 12;
    let few_steps = different(key.iter().zip(key.iter().skip(1)).map(|(a, b)| b.wrapping_sub(*a))) < 4;
    if is_text || few_bytes || few_steps {
        return Err("a sample or a text, not random bytes");
    }
    if PUBLISHED.contains(&Base64UrlUnpadded::encode_string(key).as_str()) {
        return Err("a key from a document");
    }
    Ok(bytes)
}

/// How many different bytes there are.
fn different(bytes: impl Iterator<Item = u8>) -> usize {
    let mut seen = [false; 256];
    bytes.for_each(|byte| seen[usize::from(byte)] = true);
    seen.iter().filter(|seen| **seen).count()
}

/// `iss`, `aud`, an owner: 1 to 256 visible ASCII characters.
pub(super) fn label(text: &str) -> Result<String, Wrong> {
    let fits = (1..=256).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
    if fits { Ok(text.to_owned()) } else { Err("not 1 to 256 visible ASCII characters") }
}

/// Our name for an app.
pub(super) fn app_id(text: &str) -> Result<String, Wrong> {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let fits = (1..=64).contains(&text.len()) && text.bytes().all(allowed);
    if fits { Ok(text.to_owned()) } else { Err("not 1 to 64 of A-Z a-z 0-9 . _ -") }
}

pub(super) fn deployment(text: &str) -> Result<String, Wrong> {
    if text.contains('.') { Err("not 1 to 64 of A-Z a-z 0-9 _ -") } else { app_id(text) }
}

pub(super) fn switch(text: &str) -> Result<bool, Wrong> {
    match text {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err("not true or false"),
    }
}

pub(super) fn share(text: &str) -> Result<f64, Wrong> {
    text.parse().ok().filter(|share| (0.0..=1.0).contains(share)).ok_or("not a number from 0 to 1")
}

pub(super) fn concurrency(text: &str) -> Result<u32, Wrong> {
    text.parse().ok().filter(|n| (1..=10_000).contains(n)).ok_or("not a number from 1 to 10000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit_and_a_range() {
        for (text, seconds) in [("30s", 30), ("10m", 600), ("12h", 43_200), ("90d", 7_776_000), ("3650d", 315_360_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in [
            "",
            "s",
            "10",
            "0s",
            "-1s",
            "+1s",
            "1.5h",
            "1h30m",
            " 1s",
            "1 s",
            "3651d",
            "99999999999999999999d",
            "1\u{e9}",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_grace_time_is_none_or_within_its_cap() {
        assert_eq!(grace("0"), Ok(Duration::ZERO));
        assert_eq!((grace("10s"), grace("5m")), (Ok(Duration::from_secs(10)), Ok(Duration::from_mins(5))));
        for bad in ["", "0s", "9s", "301s", "60"] {
            assert!(grace(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn instants_are_rfc_3339() {
        assert_eq!(instant("2023-11-14T22:13:20Z"), Ok(UnixSeconds(1_700_000_000)));
        for bad in ["", "2023-11-14", "1969-12-31T23:59:59Z", "2023-13-14T22:13:20Z", "now"] {
            assert!(instant(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn origins_are_exact() {
        let both = origins("https://a.example, http://localhost:8080").expect("two origins");
        assert_eq!(both, ["https://a.example", "http://localhost:8080"]);
        for bad in ["", "*", "null", "https://*.example", "https://a.example/", "https://A.example", "a.example", ","] {
            assert!(origins(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn plain_http_goes_to_a_loopback_literal_only() {
        for good in
            ["https://api.weixin.qq.com", "https://a:8443", "http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:80"]
        {
            assert_eq!(BaseUrl::parse(good).map(|base| base.as_str().to_owned()), Ok(good.to_owned()));
        }
        assert_eq!(BaseUrl::parse("https://a/").map(|base| base.url), Ok("https://a".to_owned()));
        for bad in [
            "",
            "a",
            "http://a",
            "http://localhost",
            "http://10.0.0.1",
            "http://127.0.0.1.evil.example",
            "http://127.1",
            "http://0x7f.0.0.1",
            "http://2130706433",
            "http://127.0.0.1@evil.example",
            "https://u:p@a",
            "https://a/path",
            "https://a?x",
            "https://a#x",
            "https://",
            "https://a:",
            "https://a:99999",
            "https://a:+1",
            "ftp://a",
            "https://[::1",
            "https://[a]",
            "https:// a",
            "http://[::2]",
            "https://a\\b",
            "HTTPS://a",
        ] {
            assert!(BaseUrl::parse(bad).is_err(), "{bad}");
        }
        assert!(!BaseUrl::parse("https://127.0.0.1.example").expect("a name").is_loopback());
        assert!(BaseUrl::parse("https://127.0.0.1").expect("an address").is_loopback());
    }
}
