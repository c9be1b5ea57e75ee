//! Whom a canary serves.

use std::{
    fmt,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
    str::FromStr,
};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::engine::Digest;

/// Whom a canary serves: `10%`, `0.5%`, `header:x-beta=1` or `cookie:beta=1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A share of the clients.
    Percent(Share),
    /// Requests with this header field; of several of its name one is enough.
    Header {
        /// Its name.
        name: HeaderName,
        /// Its whole value.
        value: HeaderValue,
    },
    /// Requests with this cookie; of several of its name one is enough.
    Cookie {
        /// Its name, which is a token.
        name: String,
        /// Its value, as it is sent.
        value: String,
    },
}

/// A share, as text `0.01%` to `100%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u16);

/// A text that is no share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a share: write 0.01% to 100%, with at most two decimals")]
pub struct NotAShare;

/// A text that is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a canary rule: write 10%, 0.5%, header:NAME=VALUE or cookie:NAME=VALUE; a percentage is 0.01 to 100")]
pub struct NotARule;

impl From<NotAShare> for NotARule {
    fn from(_: NotAShare) -> Self {
        Self
    }
}

impl Rule {
    /// Whether `canary` takes a request with this head from this client.
    ///
    /// A percentage draws for each client and canary, so that a client stays on one side for as long
    /// as the canary lasts, on every node and over restarts, and a greater percentage only adds
    /// clients. A client is an address, of IPv6 its first 64 bits: those behind one address
    /// translator are drawn together, and a phone that changes networks may change sides. Neither a
    /// token (which changes with every refresh, and a login has none) nor a device id (the client's
    /// own word) would be better; where it matters who is drawn, a header or a cookie says so.
    #[must_use]
    pub fn takes(&self, canary: Digest, headers: &HeaderMap, client: IpAddr) -> bool {
        match self {
            Self::Percent(share) => share.draws(canary, client),
            Self::Header { name, value } => headers.get_all(name).iter().any(|sent| sent == value),
            Self::Cookie { name, value } => {
                let fields = headers.get_all(header::COOKIE).iter().filter_map(|field| field.to_str().ok());
                let mut cookies = fields.flat_map(|field| field.split(';')).filter_map(|pair| pair.split_once('='));
                cookies.any(|(sent, with)| sent.trim() == name && with.trim() == value)
            }
        }
    }
}

impl Share {
    /// All, in hundredths of a percent.
    const WHOLE: u16 = 10_000;

    /// Of so many hundredths of a percent, at most all.
    #[must_use]
    pub const fn of_hundredths(hundredths: u16) -> Self {
        if hundredths < Self::WHOLE { Self(hundredths) } else { Self(Self::WHOLE) }
    }

    /// As a fraction of one.
    #[must_use]
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE)
    }

    fn draws(self, canary: Digest, client: IpAddr) -> bool {
        let network = match client.to_canonical() {
            IpAddr::V4(address) => u64::from(u32::from(address)),
            IpAddr::V6(address) => u64::from_be_bytes(address.octets().as_chunks().0[0]),
        };
        // SipHash, keyed by what is hashed first. Who is drawn is no secret.
        let mut hasher = DefaultHasher::new();
        (canary, network).hash(&mut hasher);
        // The high bits of a product are even where a remainder would favour the low values.
        let drawn = (u128::from(hasher.finish()) * u128::from(Self::WHOLE)) >> 64;
        drawn < u128::from(self.0)
    }
}

impl FromStr for Share {
    type Err = NotAShare;

    fn from_str(text: &str) -> Result<Self, NotAShare> {
        let text = text.strip_suffix('%').ok_or(NotAShare)?;
        let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str, most| {
            let fits = (1..=most).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit());
            if fits { text.parse::<u16>().map_err(|_| NotAShare) } else { Err(NotAShare) }
        };
        let hundredths = digits(part, 2)? * if part.len() == 1 { 10 } else { 1 };
        let share = digits(whole, 3)? * 100 + hundredths;
        if (1..=Self::WHOLE).contains(&share) { Ok(Self(share)) } else { Err(NotAShare) }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 100, self.0 % 100);
        match (part, part % 10) {
            (0, _) => write!(f, "{whole}%"),
            (_, 0) => write!(f, "{whole}.{}%", part / 10),
            _ => write!(f, "{whole}.{part:02}%"),
        }
    }
}

impl FromStr for Rule {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<Self, NotARule> {
        if text.ends_with('%') {
            return Ok(Self::Percent(text.parse()?));
        }
        let (kind, pair) = text.split_once(':').ok_or(NotARule)?;
        let (name, value) = pair.split_once('=').ok_or(NotARule)?;
        // A rule is shown, kept in a line and sent in a query: printable, and not longer than a person writes.
        let fits = (1..=MAX_VALUE).contains(&value.len()) && value.bytes().all(|byte| matches!(byte, b'!'..=b'~'));
        // A cookie's name and a field's name are both tokens (RFC 6265, 4.1.1).
        let name = HeaderName::from_bytes(name.as_bytes()).map(|lower| (lower, name)).map_err(|_| NotARule)?;
        match (kind, fits) {
            ("header", true) => {
                Ok(Self::Header { name: name.0, value: HeaderValue::from_str(value).map_err(|_| NotARule)? })
            }
            ("cookie", true) if !value.contains(';') => {
                Ok(Self::Cookie { name: name.1.to_owned(), value: value.to_owned() })
            }
            _ => Err(NotARule),
        }
    }
}

const MAX_VALUE: usize = 128;

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(share) => share.fmt(f),
            Self::Header { name, value } => write!(f, "header:{name}={}", value.to_str().unwrap_or_default()),
            Self::Cookie { name, value } => write!(f, "cookie:{name}={value}"),
        }
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn rule(text: &str) -> Rule {
        text.parse().expect(text)
    }

    fn clients() -> impl Iterator<Item = IpAddr> {
        let four = (0..10_000_u32).map(|n| Ipv4Addr::from(0x0a00_0000 + n).into());
        let six = (0..10_000_u128).map(|n| Ipv6Addr::from((0x2001_0db8 << 96) + (n << 64) + 7).into());
        four.chain(six)
    }

    fn drawn(percent: &str, canary: Digest) -> Vec<IpAddr> {
        let rule = rule(percent);
        clients().filter(|client| rule.takes(canary, &HeaderMap::new(), *client)).collect()
    }

    #[test]
    fn a_rule_is_written_as_it_is_read() {
        for text in ["10%", "0.5%", "0.01%", "12.25%", "3.05%", "100%", "header:x-beta=1", "cookie:Beta=a=b"] {
            assert_eq!(rule(text).to_string(), text);
            let kept = serde_json::to_string(&rule(text)).expect("JSON");
            assert_eq!(serde_json::from_str::<Rule>(&kept).expect("a rule"), rule(text));
        }
        assert_eq!(rule("07.50%").to_string(), "7.5%");
        assert_eq!(rule("header:X-Beta=1"), rule("header:x-beta=1"));
        for bad in [
            "",
            "%",
            "10",
            "0%",
            "0.00%",
            "100.01%",
            "1000%",
            "65536%",
            "-1%",
            "+1%",
            "1.%",
            ".5%",
            "1.234%",
            "1e1%",
            " 1%",
            "header:x-beta",
            "header:=1",
            "header:x beta=1",
            "header:x=",
            "header:x=\u{e9}",
            "header:x=a\nb",
            "cookie:a=b;c",
            "cookie:a=b c",
            "query:a=b",
            "x=1",
        ] {
            assert_eq!(bad.parse::<Rule>(), Err(NotARule), "{bad}");
        }
        assert_eq!(format!("header:x={}", "v".repeat(MAX_VALUE + 1)).parse::<Rule>(), Err(NotARule));
    }

    #[test]
    fn a_share_is_drawn_and_stays() {
        for canary in [b"a", b"b", b"c"].map(|bytes| Digest::of(bytes)) {
            let mut before = Vec::new();
            for (percent, of_100) in
                [("0.5%", 0.5), ("5%", 5.0), ("10%", 10.0), ("50%", 50.0), ("99.5%", 99.5), ("100%", 100.0)]
            {
                let taken = drawn(percent, canary);
                assert_eq!(taken, drawn(percent, canary), "the same clients again");
                let share: f64 = of_100 / 100.0;
                let expected = 20_000.0 * share;
                // Five standard deviations of a fair draw.
                let far = 5.0 * (expected * (1.0 - share)).sqrt();
                let count = u32::try_from(taken.len()).map(f64::from).expect("a count");
                assert!((count - expected).abs() <= far, "{percent}: {count} of 20000");
                assert!(before.iter().all(|client| taken.contains(client)), "{percent} only adds clients");
                before = taken.into_iter().take(1000).collect();
            }
        }
        assert_ne!(drawn("10%", Digest::of(b"a")), drawn("10%", Digest::of(b"b")), "each canary has its own");
    }

    #[test]
    fn a_client_is_an_address_or_a_network() {
        let canary = Digest::of(b"a");
        let half = |client: &str| rule("50%").takes(canary, &HeaderMap::new(), client.parse().expect("an address"));
        for n in 0..64 {
            assert_eq!(half(&format!("2001:db8:0:{n:x}::1")), half(&format!("2001:db8:0:{n:x}:ffff::9")));
            assert_eq!(half(&format!("192.0.2.{n}")), half(&format!("::ffff:192.0.2.{n}")));
        }
    }

    #[test]
    fn a_header_or_a_cookie_says_who() {
        let takes = |text: &str, fields: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            rule(text).takes(Digest::of(b"a"), &headers, Ipv4Addr::LOCALHOST.into())
        };
        assert!(takes("header:x-beta=1", &[("x-beta", "1")]));
        assert!(takes("header:x-beta=1", &[("x-beta", "0"), ("x-beta", "1")]));
        assert!(!takes("header:x-beta=1", &[("x-beta", "11")]) && !takes("header:x-beta=1", &[]));
        assert!(takes("cookie:beta=1", &[("cookie", "a=b; beta=1; c=d")]));
        assert!(takes("cookie:beta=1", &[("cookie", "a=b"), ("cookie", "beta=1")]), "as HTTP/2 splits them");
        for other in ["beta=10", "xbeta=1", "Beta=1", "beta", "a=beta=1", ""] {
            assert!(!takes("cookie:beta=1", &[("cookie", other)]), "{other}");
        }
    }
}
