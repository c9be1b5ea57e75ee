//! Where Redis is, and what opens it: one URL.
//!
//! ```text
//! redis://[user[:password]@]host[:port][/database]
//! redis+cluster://[…@]host[:port],host[:port],…
//! redis+sentinel://[…@]sentinel[:port],sentinel[:port],…/name-of-the-master[/database]
//! redis+unix:///path/of/the/socket
//! ```
//! `rediss` in place of `redis` is TLS. Behind `?`, joined by `&`: `password_file` (a file with the
//! password, so that it is on no command line) and `ca` (a file with the authorities to trust, in PEM).

use std::{fmt, io, path::PathBuf};

use ::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo, TlsCertificates};
use percent_encoding::percent_decode_str;

/// A Redis to talk to. `Debug` and `Display` show no password.
#[derive(Clone)]
pub struct Address {
    pub(super) kind: Kind,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u16,
    pub(super) tls: bool,
    /// Authorities to trust, in PEM; `None` trusts those every outbound call trusts.
    pub(super) roots: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Single(Host),
    Cluster(Vec<Host>),
    Sentinel { sentinels: Vec<Host>, master: String },
    Unix(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

/// Why a URL is not taken. Never shows a password.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Another scheme.
    #[error(
        "a Redis URL begins with redis://, rediss://, redis+cluster://, rediss+cluster://, redis+sentinel://, \
         rediss+sentinel:// or redis+unix://"
    )]
    Scheme,
    /// No host, or one that is none.
    #[error(
        "a Redis URL needs `host` or `host:port`; several are separated by commas where it is a Cluster or Sentinels"
    )]
    Host,
    /// What comes behind the host.
    #[error("behind the host of a Redis URL comes {0}")]
    Path(&'static str),
    /// A parameter.
    #[error("a Redis URL knows ?password_file= and ?ca=, not `{0}`")]
    Parameter(String),
    /// Percent-encoding that is no text.
    #[error("user, password or path of the Redis URL is not percent-encoded UTF-8")]
    Encoding,
    /// Password given twice.
    #[error("the Redis URL has both a password and a password_file; keep the file")]
    TwoPasswords,
    /// A file that it names.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Address {
    /// Reads a URL, and the files it names.
    ///
    /// # Errors
    /// [`AddressError`].
    pub fn parse(url: &str) -> Result<Self, AddressError> {
        let (scheme, rest) = url.split_once("://").ok_or(AddressError::Scheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (tls, form) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis" | "valkey", form) => (false, form),
            ("rediss" | "valkeys", form) => (true, form),
            _ => return Err(AddressError::Scheme),
        };
        let mut address =
            Self { kind: Kind::Cluster(Vec::new()), user: None, password: None, database: 0, tls, roots: None };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = match authority.rsplit_once('@') {
            Some((login, hosts)) => {
                let (user, password) = login.split_once(':').map_or((login, None), |(user, pw)| (user, Some(pw)));
                address.user = Some(decoded(user)?).filter(|user| !user.is_empty());
                address.password = password.map(decoded).transpose()?;
                hosts
            }
            None => authority,
        };
        address.kind = match form {
            "" => {
                address.database = database(path)?;
                Kind::Single(Host::parse(hosts, REDIS_PORT)?)
            }
            "cluster" if path.is_empty() => Kind::Cluster(Host::parse_list(hosts, REDIS_PORT)?),
            "cluster" => return Err(AddressError::Path("nothing: a Cluster has one database")),
            "sentinel" => {
                let (master, path) = path.split_once('/').unwrap_or((path, ""));
                address.database = database(path)?;
                let master = decoded(master)?;
                if master.is_empty() {
                    return Err(AddressError::Path("`/` and the name the Sentinels know the master by"));
                }
                Kind::Sentinel { sentinels: Host::parse_list(hosts, SENTINEL_PORT)?, master }
            }
            "unix" if !tls && hosts.is_empty() && !path.is_empty() => {
                Kind::Unix(PathBuf::from(format!("/{}", decoded(path)?)))
            }
            "unix" => return Err(AddressError::Path("nothing and then a path: redis+unix:///run/redis.sock")),
            _ => return Err(AddressError::Scheme),
        };
        address.read_parameters(query)?;
        Ok(address)
    }

    /// With a password from elsewhere, unless the URL brings one.
    #[must_use]
    pub fn or_password(mut self, password: Option<String>) -> Self {
        self.password = self.password.or(password);
        self
    }

    fn read_parameters(&mut self, query: &str) -> Result<(), AddressError> {
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name {
                "password_file" if self.password.is_some() => return Err(AddressError::TwoPasswords),
                "password_file" => {
                    let text = String::from_utf8(read(value)?).map_err(|_| AddressError::Encoding)?;
                    self.password = Some(text.trim_end_matches(['\r', '\n']).to_owned());
                }
                "ca" => self.roots = Some(read(value)?),
                _ => return Err(AddressError::Parameter(name.chars().take(32).collect())),
            }
        }
        Ok(())
    }

    /// What a connection says of itself once it is there.
    pub(super) fn login(&self) -> RedisConnectionInfo {
        let mut login = RedisConnectionInfo::default().set_db(self.database.into());
        if let Some(user) = &self.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        login
    }

    pub(super) fn certificates(&self) -> Option<TlsCertificates> {
        self.tls.then(|| TlsCertificates { client_tls: None, root_cert: self.roots.clone() })
    }

    pub(super) fn info(&self, host: &Host) -> ::redis::RedisResult<ConnectionInfo> {
        Ok(host.addr(self.tls).into_connection_info()?.set_redis_settings(self.login()))
    }
}

impl Host {
    fn parse(text: &str, default_port: u16) -> Result<Self, AddressError> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest.split_once(']').ok_or(AddressError::Host)?;
                (name, port.strip_prefix(':').or(port.is_empty().then_some("")).ok_or(AddressError::Host)?)
            }
            None => text.split_once(':').unwrap_or((text, "")),
        };
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':');
        if name.is_empty() || !name.bytes().all(plain) {
            return Err(AddressError::Host);
        }
        let port = if port.is_empty() { default_port } else { port.parse().map_err(|_| AddressError::Host)? };
        Ok(Self { name: name.to_owned(), port })
    }

    fn parse_list(text: &str, default_port: u16) -> Result<Vec<Self>, AddressError> {
        text.split(',').map(|host| Self::parse(host, default_port)).collect()
    }

    pub(super) fn addr(&self, tls: bool) -> ConnectionAddr {
        let (host, port) = (self.name.clone(), self.port);
        if tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }
}

fn decoded(text: &str) -> Result<String, AddressError> {
    Ok(percent_decode_str(text).decode_utf8().map_err(|_| AddressError::Encoding)?.into_owned())
}

fn database(path: &str) -> Result<u16, AddressError> {
    if path.is_empty() { Ok(0) } else { path.parse().map_err(|_| AddressError::Path("the number of a database")) }
}

fn read(path: &str) -> Result<Vec<u8>, AddressError> {
    let path = PathBuf::from(decoded(path)?);
    std::fs::read(&path).map_err(|source| AddressError::Read { path, source })
}

/// As it was given, without password and parameters.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |hosts: &[Host]| hosts.iter().map(Host::to_string).collect::<Vec<_>>().join(",");
        let (form, hosts, path) = match &self.kind {
            Kind::Single(host) => ("", host.to_string(), String::new()),
            Kind::Cluster(hosts) => ("+cluster", list(hosts), String::new()),
            Kind::Sentinel { sentinels, master } => ("+sentinel", list(sentinels), format!("/{master}")),
            Kind::Unix(path) => ("+unix", path.display().to_string(), String::new()),
        };
        let user = self.user.as_ref().map_or_else(String::new, |user| format!("{user}@"));
        write!(f, "redis{}{form}://{user}{hosts}{path}", if self.tls { "s" } else { "" })?;
        if self.database == 0 { Ok(()) } else { write!(f, "/{}", self.database) }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        Address::parse(url).map_or_else(|error| error.to_string(), |address| address.to_string())
    }

    #[test]
    fn every_form_is_read_and_shown_without_its_password() {
        for (url, expected) in [
            ("redis://a", "redis://a:6379"),
            ("rediss://a:1/3", "rediss://a:1/3"),
            ("redis://:s%40crit@a", "redis://a:6379"),
            ("redis://u:secret@[::1]:7", "redis://u@[::1]:7"),
            ("redis+cluster://u:secret@a,b:2", "redis+cluster://u@a:6379,b:2"),
            ("rediss+sentinel://:secret@a,b:2/mymaster/5", "rediss+sentinel://a:26379,b:2/mymaster/5"),
            ("redis+unix:///run/r.sock", "redis+unix:///run/r.sock"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
            let address = Address::parse(url).expect(url);
            assert!(!format!("{address:?}").contains("secret"), "{url}");
        }
        let address = Address::parse("redis://u:s%40crit@a").expect("a URL");
        assert_eq!((address.user.as_deref(), address.password.as_deref()), (Some("u"), Some("s@crit")));
    }

    #[test]
    fn what_is_no_address_is_refused_without_its_password() {
        for url in [
            "http://a",
            "redis:a",
            "redis+other://a",
            "redis://",
            "redis://:secret@",
            "redis://a:port",
            "redis://a/x",
            "redis://a:1,b:2",
            "redis://:secret@a b",
            "redis+cluster://a/1",
            "redis+sentinel://a",
            "redis+sentinel://a/m/x",
            "redis+unix://a/b",
            "rediss+unix:///a",
            "redis://:secret%ff@a",
            "redis://a?timeout=1",
            "redis://a?password_file=/no/such/file",
        ] {
            let error = Address::parse(url).expect_err(url);
            assert!(!format!("{error} {error:?}").contains("secret"), "{url}");
        }
    }

    #[test]
    fn a_password_comes_from_the_url_a_file_or_elsewhere() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "p w\n").expect("writes");
        let url = format!("redis://a?password_file={}", file.path().display());
        let from = |url: &str| Address::parse(url).expect("a URL").or_password(Some("other".into())).password;
        assert_eq!(from(&url).as_deref(), Some("p w"));
        assert_eq!(from("redis://:own@a").as_deref(), Some("own"));
        assert_eq!(from("redis://a").as_deref(), Some("other"));
        let twice = format!("redis://:own@a?password_file={}", file.path().display());
        assert!(matches!(Address::parse(&twice), Err(AddressError::TwoPasswords)));
    }
}
