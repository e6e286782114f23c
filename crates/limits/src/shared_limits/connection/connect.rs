//! Opens connections to the server of the shared buckets, to a primary that Sentinels name, or to the
//! members of a cluster.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, RedisConnectionInfo, RedisError, TlsCertificates, TlsMode,
};
use tokio::time::timeout;

use crate::shared_limits::connection::failure::is_login_failure;
use crate::shared_limits::script::CALL_TIMEOUT;
use crate::shared_limits::server::SharedLimitsConfig;

/// The longest time of a connection through one Sentinel: it is asked, its primary is asked whether
/// it is one, and then connected to.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(1000);

/// The longest time of a connection to one member of a cluster. An attempt waits for this long
/// twice if a member does not answer: for the configured members, then for those that they name.
const MEMBER_TIMEOUT: Duration = Duration::from_millis(400);

/// A call is repeated at once where the cluster answers that another member has the slot, or that the
/// slot is on its way to one. Whatever takes longer is away.
const CLUSTER_RETRIES: u32 = 2;
const MAX_RETRY_PAUSE_MS: u64 = 20;

/// What the files of a connection contain.
pub(super) struct ConnectionFiles {
    password: Option<String>,
    certificates: TlsCertificates,
}

impl ConnectionFiles {
    /// Files are read for each connection, so that what is rotated needs no restart.
    pub(super) async fn read(config: &SharedLimitsConfig) -> Result<Self, String> {
        let password = match &config.password_file {
            Some(path) => {
                let content = read(path).await?;
                let text = String::from_utf8(content)
                    .map_err(|_| format!("{}: not UTF-8", path.display()))?;
                Some(text.trim_end_matches(['\r', '\n']).to_owned())
            }
            None => None,
        };
        let root_cert = match &config.ca_file {
            Some(path) => Some(read(path).await?),
            None => None,
        };
        let client_tls = match &config.certificate {
            Some((certificate, key)) => Some(ClientTlsConfig {
                client_cert: read(certificate).await?,
                client_key: read(key).await?,
            }),
            None => None,
        };
        let certificates = TlsCertificates {
            client_tls,
            root_cert,
        };
        Ok(Self {
            password,
            certificates,
        })
    }
}

async fn read(path: &PathBuf) -> Result<Vec<u8>, String> {
    let content = tokio::fs::read(path).await;
    content.map_err(|error| format!("{}: {error}", path.display()))
}

fn addresses(config: &SharedLimitsConfig) -> impl Iterator<Item = ConnectionAddr> {
    let tls = config.server.tls;
    config.server.addresses.iter().map(move |(host, port)| {
        let (host, port) = (host.clone(), *port);
        if tls {
            ConnectionAddr::TcpTls {
                host,
                port,
                insecure: false,
                tls_params: None,
            }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    })
}

fn connection_settings() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CALL_TIMEOUT))
        .set_response_timeout(Some(CALL_TIMEOUT))
}

/// Connects to one server.
pub(super) async fn open_single(
    config: &SharedLimitsConfig,
    files: ConnectionFiles,
) -> Result<MultiplexedConnection, RedisError> {
    let Some(address) = addresses(config).next() else {
        return Err(no_server());
    };
    let mut login = RedisConnectionInfo::default()
        .set_db(config.server.database.into())
        .set_skip_set_lib_name();
    if let Some(user) = &config.user {
        login = login.set_username(user);
    }
    if let Some(password) = &files.password {
        login = login.set_password(password);
    }
    let info: ConnectionInfo = address.into_connection_info()?.set_redis_settings(login);
    let client = if config.server.tls {
        Client::build_with_tls(info, files.certificates)?
    } else {
        Client::open(info)?
    };
    let settings = connection_settings();
    let opened = client.get_multiplexed_async_connection_with_config(&settings);
    opened.await
}

fn no_server() -> RedisError {
    (ErrorKind::InvalidClientConfig, "no server").into()
}

/// Connects to the primary that the first Sentinel to answer knows. All are asked at once: one that
/// does not answer, as on a machine that has just died together with the primary, delays nothing.
pub(super) async fn open_sentinel(
    config: &SharedLimitsConfig,
    primary: &str,
    files: ConnectionFiles,
) -> Result<MultiplexedConnection, RedisError> {
    let mut attempts: FuturesUnordered<_> = addresses(config)
        .map(|sentinel| {
            let attempt = through_sentinel(config, primary, &files, sentinel);
            async {
                timeout(SENTINEL_TIMEOUT, attempt)
                    .await
                    .unwrap_or_else(|_| Err(timed_out()))
            }
        })
        .collect();
    let mut failure: Option<RedisError> = None;
    while let Some(attempt) = attempts.next().await {
        match attempt {
            Ok(connection) => return Ok(connection),
            // Of several, what an answer said says more than that there was none.
            Err(error) if failure.as_ref().is_none_or(RedisError::is_io_error) => {
                failure = Some(error);
            }
            Err(_) => {}
        }
    }
    Err(failure.unwrap_or_else(no_server))
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

/// Connects to the primary that this Sentinel knows. Sentinels often have no password where their
/// primary has one, and reject any then.
async fn through_sentinel(
    config: &SharedLimitsConfig,
    primary: &str,
    files: &ConnectionFiles,
    sentinel: ConnectionAddr,
) -> Result<MultiplexedConnection, RedisError> {
    let has_login = config.user.is_some() || files.password.is_some();
    let opened = open_primary(config, primary, files, sentinel.clone(), has_login).await;
    match opened {
        Err(error) if has_login && is_login_failure(&error) => {
            let opened = open_primary(config, primary, files, sentinel, false).await;
            opened.map_err(|_| error)
        }
        opened => opened,
    }
}

async fn open_primary(
    config: &SharedLimitsConfig,
    primary: &str,
    files: &ConnectionFiles,
    sentinel: ConnectionAddr,
    logs_in_to_sentinel: bool,
) -> Result<MultiplexedConnection, RedisError> {
    let primary_type = SentinelServerType::Master;
    let mut builder = SentinelClientBuilder::new([sentinel], primary, primary_type)?
        .set_client_to_redis_db(config.server.database.into());
    if let Some(user) = &config.user {
        builder = builder.set_client_to_redis_username(user);
        if logs_in_to_sentinel {
            builder = builder.set_client_to_sentinel_username(user);
        }
    }
    if let Some(password) = &files.password {
        builder = builder.set_client_to_redis_password(password);
        if logs_in_to_sentinel {
            builder = builder.set_client_to_sentinel_password(password);
        }
    }
    if config.server.tls {
        let certificates = &files.certificates;
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(certificates.clone())
            .set_client_to_sentinel_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_certificates(certificates.clone());
    }
    let mut client = builder.build()?;
    let settings = connection_settings();
    client.get_async_connection_with_config(&settings).await
}

/// Connects to the members of a cluster that can be reached.
pub(super) async fn open_cluster(
    config: &SharedLimitsConfig,
    files: ConnectionFiles,
) -> Result<ClusterConnection, RedisError> {
    let mut builder = ClusterClient::builder(addresses(config))
        .connection_timeout(MEMBER_TIMEOUT)
        .response_timeout(CALL_TIMEOUT)
        .retries(CLUSTER_RETRIES)
        .min_retry_wait(0)
        .max_retry_wait(MAX_RETRY_PAUSE_MS);
    if let Some(user) = &config.user {
        builder = builder.username(user);
    }
    if let Some(password) = &files.password {
        builder = builder.password(password);
    }
    if config.server.tls {
        builder = builder.tls(TlsMode::Secure).certs(files.certificates);
    }
    builder.build()?.get_async_connection().await
}
