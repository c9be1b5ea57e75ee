//! The client of one core.

use std::{
    collections::HashMap,
    net::Ipv6Addr,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, Uri, header, uri::PathAndQuery};
use http_body::Body;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Incoming;
use rustls::pki_types::ServerName;
use tokio::time::{Instant, timeout_at};

use super::{
    Call, Failure, Kind, Limits, Reply, ReplyBody, Shared, StreamLimits, body::later, connect::Destination, flat,
    pool::Upstream,
};

/// Makes exchanges over the connections of one core; clones share them. Use it inside that core's
/// runtime, on which the connections live.
#[derive(Clone)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
    /// By `scheme://authority` as the guest writes it, so that a look-up takes no copy. What is
    /// here has passed the policy.
    upstreams: Arc<Mutex<HashMap<String, Arc<Upstream>>>>,
}

impl Client {
    /// A client without connections.
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, upstreams: Arc::default() }
    }

    /// Makes one exchange. Dropping the future gives it up and closes its connection.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn send(&self, call: Call) -> Result<Reply, Failure> {
        let start = Instant::now();
        let sent = self.send_once(call, start).await;
        let result = sent.as_ref().map(|reply| reply.status).map_err(|failure| *failure);
        self.shared.guards.metrics().ended(start.elapsed(), result);
        sent
    }

    async fn send_once(&self, call: Call, start: Instant) -> Result<Reply, Failure> {
        let Call { method, url, head, body, limits, exclusive } = call;
        let total = later(start, limits.total);
        let (upstream, target) = self.destination(&url)?;
        let mut request = Request::new(Either::Left(Full::new(Bytes::from(body))));
        *request.method_mut() = Method::from_str(&method).map_err(|_| Kind::Denied.unsent())?;
        *request.uri_mut() = target.into();
        *request.headers_mut() = flat::head(&head);
        request.headers_mut().insert(header::HOST, upstream.host_field.clone());

        let mut held = match exclusive {
            Some(key) => Some(self.shared.exclusive.hold(key).ok_or(Kind::Duplicate.unsent())?),
            None => None,
        };
        let mut lease = upstream.lease(&self.shared, later(start, limits.connect).min(total)).await?;
        let by = later(Instant::now(), limits.first_byte).min(total);
        let mut sent = |sent| held.iter_mut().for_each(|held| held.sent = sent);
        sent(true);
        let response = lease.exchange(request, by).await.inspect_err(|failure| sent(failure.sent))?;
        match timeout_at(total, collect(response, limits)).await.unwrap_or(Err(Kind::Timeout.sent())) {
            Ok(reply) => {
                lease.give_back();
                Ok(reply)
            }
            Err(failure) => Err(lease.broken(failure)),
        }
    }

    /// Makes one exchange whose bodies are streamed. `request` has an absolute URI.
    ///
    /// # Errors
    /// [`Failure`]; what goes wrong later comes from the [`ReplyBody`].
    pub async fn send_http<B>(&self, request: Request<B>, limits: StreamLimits) -> Result<Response<ReplyBody>, Failure>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let start = Instant::now();
        let sent = self.stream_once(request, limits, start).await;
        let result = sent.as_ref().map(|response| response.status().as_u16()).map_err(|failure| *failure);
        self.shared.guards.metrics().ended(start.elapsed(), result);
        sent
    }

    async fn stream_once<B>(
        &self,
        request: Request<B>,
        limits: StreamLimits,
        start: Instant,
    ) -> Result<Response<ReplyBody>, Failure>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let (upstream, target) = self.destination(&parts.uri.to_string())?;
        parts.uri = target.into();
        parts.version = http::Version::HTTP_11;
        flat::strip(&mut parts.headers);
        parts.headers.insert(header::HOST, upstream.host_field.clone());
        let request = Request::from_parts(parts, Either::Right(body.map_err(Into::into).boxed_unsync()));

        let mut lease = upstream.lease(&self.shared, later(start, limits.connect)).await?;
        let mut response = lease.exchange(request, later(Instant::now(), limits.first_byte)).await?;
        flat::strip(response.headers_mut());
        // A body may take any time; a probe must not.
        lease.answered();
        Ok(response.map(|incoming| ReplyBody::new(incoming, lease, limits.between_bytes)))
    }

    /// Looks up, connects and, for `https`, shakes hands within `limit`; sends nothing.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn reach(&self, url: &str, limit: Duration) -> Result<(), Failure> {
        let (upstream, _) = self.destination(url)?;
        upstream.lease(&self.shared, later(Instant::now(), limit)).await.map(drop)
    }

    /// Splits `url` and finds its upstream.
    fn destination(&self, url: &str) -> Result<(Arc<Upstream>, PathAndQuery), Failure> {
        let denied = Kind::Denied.unsent();
        let authority = url.find("://").ok_or(denied)? + 3;
        let end = url[authority..].find(['/', '?', '#']).map_or(url.len(), |end| authority + end);
        let (origin, target) = url.split_at(end);
        let target = target.split('#').next().unwrap_or_default();
        let target = if target.starts_with('/') {
            PathAndQuery::from_str(target)
        } else {
            PathAndQuery::from_maybe_shared(format!("/{target}"))
        };
        Ok((self.upstream(origin)?, target.map_err(|_| denied)?))
    }

    fn upstream(&self, origin: &str) -> Result<Arc<Upstream>, Failure> {
        let mut upstreams = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(upstream) = upstreams.get(origin) {
            return Ok(Arc::clone(upstream));
        }
        let (destination, host_field) = parse_origin(origin).ok_or(Kind::Denied.unsent())?;
        if !self.shared.policy.allows(destination.scheme, &destination.host, destination.port) {
            return Err(Kind::Denied.unsent());
        }
        if upstreams.len() >= MAX_UPSTREAMS {
            upstreams.retain(|_, upstream| !upstream.is_unused());
        }
        if upstreams.len() >= MAX_UPSTREAMS {
            return Err(Kind::Busy.unsent());
        }
        let named = self.shared.policy.names(&destination.host);
        let authority = format!("{}:{}", destination.host, destination.port);
        let guard = self.shared.guards.guard(&authority, named).ok_or(Kind::Busy.unsent())?;
        let upstream = Arc::new(Upstream::new(destination, host_field, guard, self.shared.connections));
        upstreams.insert(origin.to_owned(), Arc::clone(&upstream));
        Ok(upstream)
    }
}

/// Reads the reply to its end.
async fn collect(response: Response<Incoming>, limits: Limits) -> Result<Reply, Failure> {
    let (parts, mut incoming) = response.into_parts();
    let expected = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > limits.max_body_bytes {
        return Err(Kind::TooLarge.sent());
    }
    let mut body = Vec::with_capacity(expected.min(64 * 1024));
    while !incoming.is_end_stream() {
        let Some(frame) = incoming.frame().await else { break };
        let frame = frame.map_err(|_| Kind::Broken.sent())?;
        if let Some(data) = frame.data_ref() {
            if data.len() > limits.max_body_bytes - body.len() {
                return Err(Kind::TooLarge.sent());
            }
            body.extend_from_slice(data);
        }
    }
    Ok(Reply { status: parts.status.as_u16(), head: flat::lines(&parts.headers), body })
}

/// `scheme://host[:port]`, and the `Host` field for it. `None` for anything else, userinfo included.
fn parse_origin(origin: &str) -> Option<(Destination, HeaderValue)> {
    let uri = Uri::from_str(origin).ok()?;
    let authority = uri.authority().filter(|authority| !authority.as_str().contains('@'))?;
    let (scheme, default_port) = match uri.scheme_str()? {
        "http" => ("http", 80),
        "https" => ("https", 443),
        _ => return None,
    };
    let host = authority.host().to_ascii_lowercase();
    let port = match authority.port() {
        Some(port) => port.as_str().parse().ok().filter(|&port: &u16| port != 0)?,
        None if authority.as_str().len() > host.len() => return None,
        None => default_port,
    };
    let field = if port == default_port { host.clone() } else { format!("{host}:{port}") };
    let host = match host.strip_prefix('[') {
        // With a zone it would be a name to us and an address to the resolver.
        Some(address) => address.strip_suffix(']').filter(|address| address.parse::<Ipv6Addr>().is_ok())?.to_owned(),
        None => host,
    };
    let tls = match scheme {
        "https" => Some(ServerName::try_from(host.clone()).ok()?),
        _ => None,
    };
    Some((Destination { scheme, host, port, tls }, field.try_into().ok()?))
}

/// Upstreams kept per core. A component with a `*` in its allow-list can make up names.
const MAX_UPSTREAMS: usize = 1024;
