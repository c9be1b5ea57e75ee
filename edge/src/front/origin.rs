//! Who is calling: the TCP peer, or whom a trusted proxy names.
//!
//! `X-Forwarded-For` is a list to which every proxy adds the address it was called from, at its end.
//! So its end is as good as the proxies are: from there on, the first address that is no trusted
//! proxy is the client, whatever stands to the left of it. `Forwarded` (RFC 7239) is not read: two
//! fields that say the same are two chances to disagree.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

/// Where a request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// Port 0 where a proxy named the address.
    pub(super) client: SocketAddr,
    /// Whether the client speaks TLS, to this node or to a trusted proxy.
    pub(super) secure: bool,
}

impl Origin {
    /// `peer` is the other end of the connection, which is TLS when `secure`.
    pub(super) fn of(peer: SocketAddr, secure: bool, headers: &HeaderMap, trusted: &[IpNet]) -> Self {
        if !is_trusted(peer.ip(), trusted) {
            return Self { client: peer, secure };
        }
        let proto = headers.get_all(X_FORWARDED_PROTO).iter().next_back();
        let secure = proto.map_or(secure, |proto| proto.as_bytes().eq_ignore_ascii_case(b"https"));
        let mut client = peer;
        let fields: Vec<&str> =
            headers.get_all(X_FORWARDED_FOR).iter().map(|value| value.to_str().unwrap_or_default()).collect();
        let hops = fields.iter().rev().flat_map(|field| field.rsplit(','));
        for hop in hops {
            // What is no address was not written by a proxy; who wrote it is the last one known.
            let Some(address) = address(hop.trim()) else { break };
            client = SocketAddr::new(address, 0);
            if !is_trusted(address, trusted) {
                break;
            }
        }
        Self { client, secure }
    }
}

/// Whether `address` is in one of these networks. An IPv4-mapped one is the IPv4 address it holds.
pub(crate) fn is_trusted(address: IpAddr, trusted: &[IpNet]) -> bool {
    let address = address.to_canonical();
    trusted.iter().any(|network| network.contains(&address))
}

/// With or without a port, an IPv6 address with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    Some(address.ok()?.to_canonical())
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn client(peer: &str, fields: &[&str]) -> String {
        let trusted: Vec<IpNet> =
            ["10.0.0.0/8", "fd00::/8"].iter().map(|network| network.parse().expect("a network")).collect();
        let mut headers = HeaderMap::new();
        for field in fields {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_bytes(field.as_bytes()).expect("a value"));
        }
        Origin::of(peer.parse().expect("an address"), false, &headers, &trusted).client.to_string()
    }

    #[test]
    fn the_client_is_the_rightmost_address_that_is_no_proxy() {
        assert_eq!(client("10.0.0.1:9", &["192.0.2.7"]), "192.0.2.7:0");
        assert_eq!(client("10.0.0.1:9", &["6.6.6.6, 192.0.2.7, 10.0.0.2"]), "192.0.2.7:0");
        assert_eq!(client("10.0.0.1:9", &["6.6.6.6", "192.0.2.7,10.0.0.2"]), "192.0.2.7:0");
        assert_eq!(client("[fd00::1]:9", &["2001:db8::5"]), "[2001:db8::5]:0");
        assert_eq!(client("[::ffff:10.0.0.1]:9", &["[2001:db8::5]:80"]), "[2001:db8::5]:0");
        assert_eq!(client("10.0.0.1:9", &["192.0.2.7:4711"]), "192.0.2.7:0");
        assert_eq!(client("10.0.0.1:9", &["::ffff:192.0.2.7"]), "192.0.2.7:0");
    }

    #[test]
    fn who_is_no_proxy_speaks_for_itself() {
        assert_eq!(client("192.0.2.1:9", &["6.6.6.6"]), "192.0.2.1:9");
        assert_eq!(client("192.0.2.1:9", &["10.0.0.2"]), "192.0.2.1:9");
    }

    #[test]
    fn what_is_no_address_ends_the_list() {
        assert_eq!(client("10.0.0.1:9", &[]), "10.0.0.1:9");
        for junk in ["", "unknown", "_hidden", "192.0.2.7.5", "\u{e9}"] {
            assert_eq!(client("10.0.0.1:9", &["6.6.6.6", junk]), "10.0.0.1:9", "{junk}");
        }
        assert_eq!(client("10.0.0.1:9", &["junk, 10.0.0.3, 10.0.0.2"]), "10.0.0.3:0", "the last that is known");
    }

    #[test]
    fn a_proxy_says_whether_its_client_came_by_tls() {
        let trusted = ["10.0.0.0/8".parse().expect("a network")];
        let mut headers = HeaderMap::new();
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("https"));
        let secure = |peer: [u8; 4]| Origin::of((peer, 1).into(), false, &headers, &trusted).secure;
        assert_eq!((secure([10, 0, 0, 1]), secure([192, 0, 2, 1])), (true, false));
    }
}
