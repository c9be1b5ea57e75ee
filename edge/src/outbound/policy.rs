//! `allowed_outbound_hosts`: what may be reached, by name and by address.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use ipnet::IpNet;

/// The allow-list. Empty, it allows nothing.
#[derive(Clone, Debug, Default)]
pub struct Policy(Vec<Entry>);

/// An entry that is not `scheme://host[:port]`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("allowed_outbound_hosts: entry {number}, its templates filled in, {problem}")]
pub struct PolicyError {
    /// Which entry, from 1. Not its text: a template may have put a secret into it.
    number: usize,
    problem: &'static str,
}

#[derive(Clone, Debug)]
struct Entry {
    /// `None` is any.
    scheme: Option<String>,
    host: Host,
    ports: Range<u32>,
}

#[derive(Clone, Debug)]
enum Host {
    Any,
    /// `.example.com`: subdomains, at any depth, and not the domain itself.
    Suffix(String),
    Name(String),
    Net(IpNet),
}

impl Policy {
    /// Parses entries whose templates are filled in. One that comes out empty, or as a scheme
    /// only, is an optional endpoint that is not configured, and is skipped.
    ///
    /// # Errors
    /// [`PolicyError`] for the first entry that is none.
    pub fn parse<S: AsRef<str>>(entries: &[S]) -> Result<Self, PolicyError> {
        let numbered = (1..).zip(entries.iter().map(|entry| entry.as_ref().trim()));
        let used = numbered.filter(|(_, entry)| !matches!(*entry, "" | "http://" | "https://"));
        used.map(|(number, entry)| Entry::parse(entry).map_err(|problem| PolicyError { number, problem }))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Whether a request to this destination may be made. `host` is in lower case, an IPv6 address
    /// without its brackets.
    #[must_use]
    pub fn allows(&self, scheme: &str, host: &str, port: u16) -> bool {
        let address = host.parse::<IpAddr>().ok();
        self.entries(scheme, port).any(|entry| match &entry.host {
            // A private address has to be named: `*` is for the public Internet.
            Host::Any => address.is_none_or(is_public),
            Host::Suffix(suffix) => address.is_none() && host.len() > suffix.len() && host.ends_with(suffix),
            Host::Name(name) => host == name,
            Host::Net(net) => address.is_some_and(|address| net.contains(&address)),
        })
    }

    /// Whether an allowed destination may be connected to at `address`: anywhere public; a private
    /// address where an entry names it or its network, and loopback for `localhost`.
    #[must_use]
    pub fn permits(&self, scheme: &str, host: &str, port: u16, address: IpAddr) -> bool {
        let named = |entry: &Entry| match &entry.host {
            Host::Net(net) => net.contains(&address),
            Host::Name(name) => name == "localhost" && host == name && address.is_loopback(),
            Host::Any | Host::Suffix(_) => false,
        };
        is_public(address) || self.entries(scheme, port).any(named)
    }

    /// Whether an entry names `host`, by name or address, and not as one of many.
    pub(super) fn names(&self, host: &str) -> bool {
        let address = host.parse::<IpAddr>().ok();
        self.0.iter().any(|entry| match &entry.host {
            Host::Name(name) => name == host,
            Host::Net(net) => net.prefix_len() == net.max_prefix_len() && Some(net.addr()) == address,
            Host::Any | Host::Suffix(_) => false,
        })
    }

    fn entries(&self, scheme: &str, port: u16) -> impl Iterator<Item = &Entry> {
        let port = u32::from(port);
        self.0.iter().filter(move |entry| {
            entry.ports.contains(&port) && entry.scheme.as_deref().is_none_or(|allowed| allowed == scheme)
        })
    }
}

impl Entry {
    fn parse(entry: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = entry.split_once("://").ok_or("has no scheme: write scheme://host[:port]")?;
        if scheme != "*" && (scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphabetic())) {
            return Err("has a scheme that is neither letters nor `*`");
        }
        let scheme = scheme.to_ascii_lowercase();
        let (host, port) = split_port(rest.strip_suffix('/').unwrap_or(rest))?;
        let ports = match port {
            Some("*") => 0..65_536,
            Some(port) => match port.split_once("..") {
                Some((from, to)) => parse_port(from)?..parse_port(to)?,
                None => parse_port(port).map(|port| port..port + 1)?,
            },
            None => {
                default_port(&scheme).map(|port| port..port + 1).ok_or("needs a port: its scheme has no usual one")?
            }
        };
        if ports.is_empty() {
            return Err("has an empty range of ports");
        }
        Ok(Self { host: Host::parse(host)?, ports, scheme: (scheme != "*").then_some(scheme) })
    }
}

impl Host {
    fn parse(host: &str) -> Result<Self, &'static str> {
        let host = host.to_ascii_lowercase();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
        if let Some(net) = bare.parse::<IpNet>().ok().or_else(|| bare.parse::<IpAddr>().ok().map(IpNet::from)) {
            return Ok(Self::Net(net));
        }
        if host == "self" || host == "self.alt" || host.ends_with(".spin.internal") {
            return Err("is service chaining, which edgepass does not support");
        }
        match host.strip_prefix('*') {
            Some("") => Ok(Self::Any),
            Some(suffix) if suffix.len() > 1 && suffix.starts_with('.') && is_name(&suffix[1..]) => {
                Ok(Self::Suffix(suffix.into()))
            }
            None if is_name(&host) => Ok(Self::Name(host)),
            None if host.contains('/') => Err("has a path; only scheme, host and port are compared"),
            _ => Err("has a host that is neither a name, an address, a network, `*` nor `*.suffix`"),
        }
    }
}

/// Splits at the colon that is not inside an IPv6 address.
fn split_port(rest: &str) -> Result<(&str, Option<&str>), &'static str> {
    let end = rest.find(']').map_or(0, |bracket| bracket + 1);
    match rest[end..].split_once(':') {
        Some((_, port)) if port.contains(':') => Err("has an IPv6 address without brackets"),
        Some((host, port)) => Ok((&rest[..end + host.len()], Some(port))),
        None => Ok((rest, None)),
    }
}

fn parse_port(port: &str) -> Result<u32, &'static str> {
    port.parse::<u16>().map(u32::from).map_err(|_| "has a port that is neither a number, `from..to` nor `*`")
}

fn default_port(scheme: &str) -> Option<u32> {
    Some(match scheme {
        "http" => 80,
        "https" => 443,
        "redis" => 6379,
        "mysql" => 3306,
        "postgres" => 5432,
        "mqtt" => 1883,
        _ => return None,
    })
}

fn is_name(host: &str) -> bool {
    !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Whether `address` belongs to the public Internet, by the special-purpose registries of IANA
/// (RFC 6890 and after). An address that wraps an IPv4 one is as private as the one inside, and the
/// mapped form, which no public name needs, always is.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        [0 | 10 | 127 | 224.., ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [192, 168, ..]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
    )
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let inside = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        // NAT64 and 6to4.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => inside(high, low),
        // Protocol assignments (Teredo among them) and documentation.
        [0x2001, 0..=0x1ff | 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        // Only 2000::/3 is given out.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_allows_what_it_says_and_no_more() {
        for (entry, scheme, host, port, expected) in [
            ("https://api.example.com", "https", "api.example.com", 443, true),
            ("https://api.example.com/", "https", "api.example.com", 443, true),
            ("HTTPS://API.example.com", "https", "api.example.com", 443, true),
            ("https://api.example.com", "http", "api.example.com", 443, false),
            ("https://api.example.com", "https", "api.example.com", 444, false),
            ("https://api.example.com", "https", "api.example.com.", 443, false),
            ("https://api.example.com", "https", "x.api.example.com", 443, false),
            ("https://api.example.com", "https", "api.example.com.evil.org", 443, false),
            ("http://api.example.com", "http", "api.example.com", 80, true),
            ("*://api.example.com:8080", "http", "api.example.com", 8080, true),
            ("*://api.example.com:8080", "https", "api.example.com", 8080, true),
            ("https://api.example.com:*", "https", "api.example.com", 1, true),
            ("https://api.example.com:10..12", "https", "api.example.com", 10, true),
            ("https://api.example.com:10..12", "https", "api.example.com", 11, true),
            ("https://api.example.com:10..12", "https", "api.example.com", 12, false),
            ("https://*.example.com", "https", "a.example.com", 443, true),
            ("https://*.example.com", "https", "a.b.example.com", 443, true),
            ("https://*.example.com", "https", "example.com", 443, false),
            ("https://*.example.com", "https", ".example.com", 443, false),
            ("https://*.example.com", "https", "badexample.com", 443, false),
            ("https://*", "https", "any.example", 443, true),
            ("https://*", "https", "8.8.8.8", 443, true),
            ("*://*:*", "http", "127.0.0.1", 80, false),
            ("*://*:*", "http", "10.0.0.1", 80, false),
            ("*://*:*", "http", "::1", 80, false),
            ("*://*:*", "http", "::ffff:127.0.0.1", 80, false),
            ("http://127.0.0.1:3000", "http", "127.0.0.1", 3000, true),
            ("http://127.0.0.1:3000", "http", "localhost", 3000, false),
            ("http://127.0.0.1:3000", "http", "::ffff:127.0.0.1", 3000, false),
            ("http://127.0.0.1:3000", "http", "2130706433", 3000, false),
            ("http://[::1]:3000", "http", "::1", 3000, true),
            ("http://[::1]", "http", "::1", 80, true),
            ("http://10.0.0.0/8", "http", "10.1.2.3", 80, true),
            ("http://10.0.0.0/8:81", "http", "10.1.2.3", 81, true),
            ("http://10.0.0.0/8", "http", "11.1.2.3", 80, false),
            ("http://10.0.0.0/8", "http", "10.example.com", 80, false),
            ("http://[fd00::/8]:80", "http", "fd00::1", 80, true),
            ("redis://localhost", "http", "localhost", 6379, false),
        ] {
            let allows = Policy::parse(&[entry]).expect(entry).allows(scheme, host, port);
            assert_eq!(allows, expected, "{entry} for {scheme} {host} {port}");
        }
    }

    #[test]
    fn what_is_not_configured_allows_nothing() {
        let policy = Policy::parse(&["", " ", "https://", "http://"]).expect("all are skipped");
        assert!(!policy.allows("https", "", 443) && !policy.allows("https", "a.example", 443));
    }

    #[test]
    fn what_is_no_entry_is_refused_with_its_reason() {
        for (entry, reason) in [
            ("api.example.com", "no scheme"),
            ("https://a.example/path", "path"),
            ("https://a.example?x", "neither a name"),
            ("https://{a,b}.example", "neither a name"),
            ("https://a.*.example", "neither a name"),
            ("https://*example.com", "neither a name"),
            ("https://a.example:99999", "port"),
            ("https://a.example:12..10", "empty range"),
            ("https://a.example:", "port"),
            ("https://::1", "brackets"),
            ("*://a.example", "needs a port"),
            ("ftp://a.example", "needs a port"),
            ("ht-tp://a.example", "scheme"),
            ("insecure:allow-all", "no scheme"),
            ("http://self", "service chaining"),
            ("http://other.spin.internal", "service chaining"),
            ("https://user:canary@a.example", "a port that is neither"),
        ] {
            let error = Policy::parse(&[entry]).expect_err(entry).to_string();
            assert!(error.contains(reason) && !error.contains("canary"), "{error}");
        }
    }

    #[test]
    fn a_name_leads_to_public_addresses_only() {
        let policy = Policy::parse(&["*://*:*"]).expect("is an entry");
        let permits = |address: &str| policy.permits("http", "a.example", 80, address.parse().expect(address));
        let public = "8.8.8.8 172.15.0.1 172.32.0.1 100.128.0.1 2606:4700::1111 64:ff9b::808:808 2002:808:808::1";
        for address in public.split(' ') {
            assert!(permits(address), "{address}");
        }
        let private = "0.0.0.0 10.0.0.1 100.64.0.1 127.0.0.1 127.1.2.3 169.254.169.254 172.16.0.1 172.31.255.255 \
            192.0.0.1 192.0.2.1 192.168.1.1 198.18.0.1 224.0.0.1 240.0.0.1 255.255.255.255 :: ::1 ::127.0.0.1 \
            ::ffff:127.0.0.1 ::ffff:8.8.8.8 fe80::1 fec0::1 fc00::1 fd12::1 ff02::1 64:ff9b::7f00:1 64:ff9b:1::1 \
            2002:7f00:1::1 2001::1 2001:db8::1 3fff::1 100::1 5f00::1";
        for address in private.split_whitespace() {
            assert!(!permits(address), "{address}");
        }
    }

    #[test]
    fn a_private_address_is_permitted_where_it_is_named() {
        let entries = ["http://localhost:1", "https://in.example", "https://10.1.0.0/16"];
        let policy = Policy::parse(&entries).expect("are entries");
        let permits =
            |scheme, host, port, address: &str| policy.permits(scheme, host, port, address.parse().expect(address));
        assert!(permits("http", "localhost", 1, "127.0.0.1") && permits("http", "localhost", 1, "::1"));
        assert!(!permits("http", "localhost", 2, "127.0.0.1"));
        assert!(!permits("http", "localhost", 1, "10.0.0.1"));
        assert!(!permits("https", "in.example", 443, "127.0.0.1"));
        assert!(permits("https", "in.example", 443, "10.1.2.3"), "the network is named beside the name");
        assert!(!permits("http", "in.example", 443, "10.1.2.3") && !permits("https", "in.example", 443, "10.2.0.1"));
    }
}
