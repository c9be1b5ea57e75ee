//! One connection to a Redis of any kind.

use std::time::Duration;

use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, IntoConnectionInfo as _, Pipeline, RedisFuture, RedisResult,
    TlsMode, Value,
    aio::{ConnectionLike, MultiplexedConnection},
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClientBuilder, SentinelServerType},
};

use super::address::{Address, Kind};

/// Clones share the connection, which takes any number of commands at once.
#[derive(Clone)]
pub(super) enum Link {
    /// To the one server that is written to.
    Single(MultiplexedConnection),
    /// To every node; it follows the slots by itself.
    Cluster(ClusterConnection),
}

impl Link {
    /// Connects, and waits until the server answers: one that is paused or loads its data takes
    /// connections too. What a Sentinel calls the master is asked for anew each time.
    pub(super) async fn connect(address: &Address) -> RedisResult<Self> {
        let mut link = Self::open(address).await?;
        if let Self::Single(connection) = &mut link {
            ::redis::cmd("PING").query_async::<()>(connection).await?;
        }
        Ok(link)
    }

    async fn open(address: &Address) -> RedisResult<Self> {
        // Calls have limits of their own, and a slow answer is not a lost connection.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIME))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUED_COMMANDS);
        let certificates = address.certificates();
        match &address.kind {
            Kind::Single(host) => {
                let info = address.info(host)?;
                let client = match certificates {
                    Some(certificates) => Client::build_with_tls(info, certificates)?,
                    None => Client::open(info)?,
                };
                client.get_multiplexed_async_connection_with_config(&config).await.map(Self::Single)
            }
            Kind::Unix(path) => {
                let info = ConnectionAddr::Unix(path.clone()).into_connection_info()?;
                let client = Client::open(info.set_redis_settings(address.login()))?;
                client.get_multiplexed_async_connection_with_config(&config).await.map(Self::Single)
            }
            Kind::Sentinel { sentinels, master } => {
                let sentinels = sentinels.iter().map(|host| host.addr(address.tls));
                let mut builder = SentinelClientBuilder::new(sentinels, master, SentinelServerType::Master)?
                    .set_client_to_redis_db(address.database.into());
                if let Some(user) = &address.user {
                    builder = builder.set_client_to_redis_username(user);
                }
                if let Some(password) = &address.password {
                    builder = builder.set_client_to_redis_password(password);
                }
                if let Some(certificates) = certificates {
                    builder = builder
                        .set_client_to_redis_tls_mode(TlsMode::Secure)
                        .set_client_to_redis_certificates(certificates.clone())
                        .set_client_to_sentinel_certificates(certificates);
                }
                builder.build()?.get_async_connection_with_config(&config).await.map(Self::Single)
            }
            Kind::Cluster(hosts) => {
                let nodes = hosts.iter().map(|host| address.info(host)).collect::<RedisResult<Vec<_>>>()?;
                // No retries: the client would also send again what a node may have done. Those that
                // are safe are ours.
                let mut builder = ClusterClientBuilder::new(nodes)
                    .retries(0)
                    .connection_timeout(CONNECT_TIME)
                    .response_timeout(NODE_TIME);
                if let Some(certificates) = certificates {
                    builder = builder.tls(TlsMode::Secure).certs(certificates);
                }
                builder.build()?.get_async_connection().await.map(Self::Cluster)
            }
        }
    }
}

impl ConnectionLike for Link {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

/// For a connection to one server, with its handshakes.
pub(super) const CONNECT_TIME: Duration = Duration::from_secs(1);
/// A node of a Cluster that has not answered for this long is connected to anew.
const NODE_TIME: Duration = Duration::from_secs(2);
/// Commands that wait to be written; more are under way than this only where they are parts of one call.
const QUEUED_COMMANDS: usize = 1024;
