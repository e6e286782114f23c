//! Connections to the server of the shared buckets, and what its errors mean.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::try_join_all;
use redis::AsyncConnectionConfig;
use redis::Client;
use redis::ClientTlsConfig;
use redis::ConnectionAddr;
use redis::ConnectionInfo;
use redis::ErrorKind;
use redis::IntoConnectionInfo;
use redis::Pipeline;
use redis::RedisConnectionInfo;
use redis::RedisError;
use redis::Script;
use redis::TlsCertificates;
use redis::TlsMode;
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::sentinel::SentinelClientBuilder;
use redis::sentinel::SentinelServerType;

use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::script;
use crate::shared_limits::server::SharedLimitsConfig;
use crate::shared_limits::server::Topology;

/// The longest time of a connection attempt, and of a call: a server that does not answer is away
/// within a second, with the time until the next attempt.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_millis(500);

/// A connection, and the scripts.
pub(super) struct SharedConnection {
    kind: ConnectionKind,
    refill: Script,
    heartbeat: Script,
}

enum ConnectionKind {
    /// To one server.
    Single(MultiplexedConnection),
    /// To the members of a cluster.
    Cluster(ClusterConnection),
}

/// A call to a script: the name of the key, and the arguments.
pub(super) struct ScriptCall {
    pub(super) name: String,
    pub(super) arguments: [String; 6],
}

impl SharedConnection {
    /// Connects, and reads the files that are needed for it.
    ///
    /// # Errors
    /// What is wrong, for operators.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(super) async fn open(config: &SharedLimitsConfig) -> Result<Self, String> {
        let files = ConnectionFiles::read(config).await?;
        let opened = match &config.server.topology {
            Topology::Single => open_single(config, files).await,
            Topology::Sentinel(primary) => open_sentinel(config, primary, files).await,
            Topology::Cluster => open_cluster(config, files).await,
        };
        Ok(Self {
            kind: opened.map_err(|error| describe(&error))?,
            refill: Script::new(script::REFILL),
            heartbeat: Script::new(script::HEARTBEAT),
        })
    }

    /// Says that `member` is there, and returns the number of replicas.
    ///
    /// # Errors
    /// What is wrong, for operators.
    ///
    /// # Cancel safety
    /// The server may have received the call.
    pub(super) async fn heartbeat(&mut self, name: &str, member: &str) -> Result<u32, String> {
        let mut call = self.heartbeat.key(name);
        call.arg(member).arg(script::REPLICA_TIMEOUT.as_secs());
        let counted = match &mut self.kind {
            ConnectionKind::Single(connection) => call.invoke_async(connection).await,
            ConnectionKind::Cluster(connection) => call.invoke_async(connection).await,
        };
        counted.map_err(|error| describe(&error))
    }

    /// Calls the shared buckets, and returns an answer to each.
    ///
    /// # Errors
    /// What is wrong, for operators. Some of the calls may have been made.
    ///
    /// # Cancel safety
    /// Some of the calls may have been made.
    pub(super) async fn refill(
        &mut self,
        calls: &[ScriptCall],
    ) -> Result<Vec<RefillAnswer>, String> {
        let texts = match &mut self.kind {
            ConnectionKind::Single(connection) => pipelined(&self.refill, connection, calls).await,
            ConnectionKind::Cluster(connection) => each(&self.refill, connection, calls).await,
        };
        let texts = texts.map_err(|error| describe(&error))?;
        let answers = texts.iter().map(script::parse_answer);
        let answers: Option<Vec<_>> = answers.collect();
        answers
            .filter(|answers| answers.len() == calls.len())
            .ok_or_else(|| "the answer to a call is not the script's".to_owned())
    }
}

/// All calls in one go. The server forgets scripts when it restarts, and then gets them again.
async fn pipelined(
    script: &Script,
    connection: &mut MultiplexedConnection,
    calls: &[ScriptCall],
) -> Result<Vec<[String; 2]>, RedisError> {
    let mut pipeline = Pipeline::with_capacity(calls.len());
    for ScriptCall { name, arguments } in calls {
        let command = pipeline.cmd("EVALSHA").arg(script.get_hash()).arg(1);
        command.arg(name).arg(&arguments[..]);
    }
    match pipeline.query_async(connection).await {
        Err(error) if error.code() == Some("NOSCRIPT") => {
            script.load_async(connection).await?;
            pipeline.query_async(connection).await
        }
        answered => answered,
    }
}

/// Each call by itself, to the member that has its key.
async fn each(
    script: &Script,
    connection: &ClusterConnection,
    calls: &[ScriptCall],
) -> Result<Vec<[String; 2]>, RedisError> {
    try_join_all(calls.iter().map(|call| async {
        let mut connection = connection.clone();
        let mut invocation = script.key(&call.name);
        for argument in &call.arguments {
            invocation.arg(argument);
        }
        invocation.invoke_async(&mut connection).await
    }))
    .await
}

/// What the files of a connection contain.
struct ConnectionFiles {
    password: Option<String>,
    certificates: TlsCertificates,
}

impl ConnectionFiles {
    /// Files are read for each connection, so that what is rotated needs no restart.
    async fn read(config: &SharedLimitsConfig) -> Result<Self, String> {
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

async fn open_single(
    config: &SharedLimitsConfig,
    files: ConnectionFiles,
) -> Result<ConnectionKind, RedisError> {
    let Some(address) = addresses(config).next() else {
        return Err((ErrorKind::InvalidClientConfig, "no server").into());
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
    opened.await.map(ConnectionKind::Single)
}

async fn open_sentinel(
    config: &SharedLimitsConfig,
    primary: &str,
    files: ConnectionFiles,
) -> Result<ConnectionKind, RedisError> {
    let primary_type = SentinelServerType::Master;
    let mut builder = SentinelClientBuilder::new(addresses(config), primary, primary_type)?
        .set_client_to_redis_db(config.server.database.into());
    if let Some(user) = &config.user {
        builder = builder
            .set_client_to_redis_username(user)
            .set_client_to_sentinel_username(user);
    }
    if let Some(password) = &files.password {
        builder = builder
            .set_client_to_redis_password(password)
            .set_client_to_sentinel_password(password);
    }
    if config.server.tls {
        builder = builder
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(files.certificates.clone())
            .set_client_to_sentinel_tls_mode(TlsMode::Secure)
            .set_client_to_sentinel_certificates(files.certificates);
    }
    let mut client = builder.build()?;
    let settings = connection_settings();
    let opened = client.get_async_connection_with_config(&settings);
    opened.await.map(ConnectionKind::Single)
}

async fn open_cluster(
    config: &SharedLimitsConfig,
    files: ConnectionFiles,
) -> Result<ConnectionKind, RedisError> {
    let mut builder = ClusterClient::builder(addresses(config))
        .connection_timeout(CALL_TIMEOUT)
        .response_timeout(CALL_TIMEOUT)
        .retries(1);
    if let Some(user) = &config.user {
        builder = builder.username(user);
    }
    if let Some(password) = &files.password {
        builder = builder.password(password);
    }
    if config.server.tls {
        builder = builder.tls(TlsMode::Secure).certs(files.certificates);
    }
    let opened = builder.build()?.get_async_connection().await;
    opened.map(ConnectionKind::Cluster)
}

/// What an error means, and what would be right.
fn describe(error: &RedisError) -> String {
    let text = error.to_string();
    let has = |word: &str| text.contains(word) || error.code() == Some(word);
    let meaning = if error.kind() == ErrorKind::AuthenticationFailed
        || has("WRONGPASS")
        || has("NOAUTH")
    {
        "it rejects the user or the password (--shared-limits-user, --shared-limits-password-file)"
    } else if has("NOPERM") || text.contains("The user executing the script can't") {
        "the user may not run scripts on keys weir:* (ACL: ~weir:* +@scripting +@read +@write +time)"
    } else if has("READONLY") {
        "it is read-only: name the primary"
    } else if has("OOM") {
        "its memory is full (maxmemory)"
    } else if has("LOADING") {
        "it is loading its data"
    } else if has("UnknownIssuer") || has("invalid peer certificate") {
        "its certificate is not valid for this name, or its CA is not that of --shared-limits-ca-file"
    } else if has("InvalidContentType") {
        "it speaks no TLS: use redis:// instead of rediss://"
    } else if error.is_timeout() {
        "no answer within 500 ms; with rediss:// it has to be a port with TLS"
    } else if error.is_connection_refusal() {
        "nothing listens there"
    } else {
        return text;
    };
    format!("{meaning} ({text})")
}
