//! What makes a node usable on a laptop within a minute, and is refused everywhere else: keys made
//! up on first start, and the check that nothing but loopback is involved.

use std::{
    net::{IpAddr, SocketAddr},
    path::Path,
};

use crate::secret_file;

/// Why a development switch was refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A switch on a node that others can reach.
    #[error(
        "{switch} is for development and {address} is not a loopback address; listen on 127.0.0.1 or [::1], or leave it out"
    )]
    NotLoopback {
        /// The switch.
        switch: &'static str,
        /// The address it would have been used with.
        address: String,
    },
}

/// Refuses `switch` unless `address` is loopback.
///
/// # Errors
/// [`Error::NotLoopback`].
pub fn require_loopback(switch: &'static str, address: SocketAddr) -> Result<(), Error> {
    // An IPv4-mapped loopback address is loopback too.
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(Error::NotLoopback { switch, address: address.to_string() })
}

/// Refuses `switch` unless the host of `url` is a loopback address, written as one: what a name
/// means is decided by a resolver, and later.
///
/// # Errors
/// [`Error::NotLoopback`], also for what is not a URL.
pub fn require_loopback_url(switch: &'static str, url: &str) -> Result<(), Error> {
    let host = url.parse::<http::Uri>().ok().and_then(|uri| Some(uri.host()?.to_owned()));
    let address = host.as_deref().and_then(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
    match address {
        Some(address) => require_loopback(switch, SocketAddr::new(address, 0)),
        None => Err(Error::NotLoopback { switch, address: host.unwrap_or_else(|| "the platform's URL".into()) }),
    }
}

/// The key called `name`, made on first use, in a file of its own.
///
/// # Errors
/// As [`secret_file::read_or_make`].
pub fn key(state_dir: &Path, name: &str) -> Result<String, secret_file::Error> {
    secret_file::read_or_make(&state_dir.join("keys").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_decided_on_the_parsed_address() {
        for address in ["127.0.0.1:3000", "127.9.8.7:1", "[::1]:3000", "[::ffff:127.0.0.1]:1"] {
            assert!(require_loopback("--sim", address.parse().expect("an address")).is_ok(), "{address}");
        }
        for address in ["0.0.0.0:3000", "[::]:3000", "10.0.0.1:3000", "192.168.1.127:1", "[::ffff:10.0.0.1]:1"] {
            assert!(require_loopback("--sim", address.parse().expect("an address")).is_err(), "{address}");
        }
        for url in ["http://127.0.0.1:3001", "http://[::1]:3001/x", "http://127.0.0.1"] {
            assert!(require_loopback_url("--reusable-codes", url).is_ok(), "{url}");
        }
        for url in [
            "https://api.weixin.qq.com",
            "http://localhost:3001",
            "http://127.0.0.1.evil.example",
            "http://127.0.0.1@evil.example/",
            "http://evil.example/?127.0.0.1",
            "http://0x7f000001/",
            "nonsense",
            "",
        ] {
            assert!(require_loopback_url("--reusable-codes", url).is_err(), "{url}");
        }
    }
}
