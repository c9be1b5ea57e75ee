//! Names to addresses, by the system's resolver.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Remembers answers for a moment and asks for each name once at a time.
///
/// A look-up is made for a new connection only, but new connections come in bursts, and each one
/// would cost a blocking thread and a packet. The system's resolver does not say how long an answer
/// holds; [`KEEP`] is far below the minute in which services move their names.
#[derive(Default)]
pub(super) struct Resolver(Mutex<BTreeMap<String, Arc<Name>>>);

/// Held while the name is being looked up, so that others wait for the same answer.
type Name = tokio::sync::Mutex<Option<(Instant, Vec<IpAddr>)>>;

impl Resolver {
    /// The addresses of `host`, at least one, in the resolver's order.
    pub(super) async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        let name = self.name(host);
        let mut known = name.lock().await;
        if let Some((at, addresses)) = &*known
            && at.elapsed() < KEEP
        {
            return Ok(addresses.clone());
        }
        // tokio asks getaddrinfo on a blocking thread.
        let mut addresses = Vec::new();
        for found in tokio::net::lookup_host((host, 0)).await? {
            if !addresses.contains(&found.ip()) {
                addresses.push(found.ip());
            }
        }
        if addresses.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        *known = Some((Instant::now(), addresses.clone()));
        Ok(addresses)
    }

    fn name(&self, host: &str) -> Arc<Name> {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() >= MAX_NAMES {
            // Those being looked up are also held by whoever looks them up.
            names.retain(|_, name| Arc::strong_count(name) > 1);
        }
        names.entry(host.to_owned()).or_default().clone()
    }

    /// Makes `host` resolve to `addresses`.
    #[cfg(test)]
    pub(super) fn set(&self, host: &str, addresses: Vec<IpAddr>) {
        *self.name(host).try_lock().expect("nobody is looking it up") = Some((Instant::now(), addresses));
    }
}

const KEEP: Duration = Duration::from_secs(10);
/// A component with a `*` in its allow-list can make up names.
const MAX_NAMES: usize = 1024;
