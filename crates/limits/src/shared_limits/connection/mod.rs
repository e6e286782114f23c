//! Connections to the server of the shared buckets, and its scripts.

mod connect;
mod failure;

use futures_util::future::try_join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, Script, ServerErrorKind};

use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::connection::connect::{
    ConnectionFiles, open_cluster, open_sentinel, open_single,
};
use crate::shared_limits::connection::failure::describe;
use crate::shared_limits::script;
use crate::shared_limits::script::ScriptCall;
use crate::shared_limits::server::{SharedLimitsConfig, Topology};

/// A connection, and the scripts.
pub(super) struct SharedConnection {
    kind: ConnectionKind,
    refill: ServerScript,
    heartbeat: ServerScript,
}

enum ConnectionKind {
    /// To one server.
    Single(MultiplexedConnection),
    /// To the members of a cluster.
    Cluster(ClusterConnection),
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
            Topology::Single => open_single(config, files).await.map(ConnectionKind::Single),
            Topology::Sentinel(primary) => open_sentinel(config, primary, files)
                .await
                .map(ConnectionKind::Single),
            Topology::Cluster => open_cluster(config, files)
                .await
                .map(ConnectionKind::Cluster),
        };
        Ok(Self {
            kind: opened.map_err(|error| describe(&error))?,
            refill: ServerScript::new(script::REFILL),
            heartbeat: ServerScript::new(script::HEARTBEAT),
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
        let timeout = script::REPLICA_TIMEOUT.as_secs().to_string();
        let arguments = [member, &timeout];
        let counted = match &mut self.kind {
            ConnectionKind::Single(connection) => {
                self.heartbeat.invoke(connection, name, &arguments).await
            }
            ConnectionKind::Cluster(connection) => {
                self.heartbeat.invoke(connection, name, &arguments).await
            }
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

/// A script. A server forgets those that it knows when it restarts.
struct ServerScript {
    code: &'static str,
    script: Script,
}

impl ServerScript {
    fn new(code: &'static str) -> Self {
        let script = Script::new(code);
        Self { code, script }
    }

    /// Calls the script. A server that does not know it gets its code with this call. Loading it
    /// would take all members of a cluster, and fail if any of them is away.
    async fn invoke<T: FromRedisValue>(
        &self,
        connection: &mut impl ConnectionLike,
        name: &str,
        arguments: &[impl AsRef<str>],
    ) -> Result<T, RedisError> {
        let command = |kind: &str, script: &str| {
            let mut command = Cmd::new();
            command.arg(kind).arg(script).arg(1).arg(name);
            for argument in arguments {
                command.arg(argument.as_ref());
            }
            command
        };
        let by_hash = command("EVALSHA", self.script.get_hash());
        match by_hash.query_async(connection).await {
            Err(error) if is_unknown_script(&error) => {
                command("EVAL", self.code).query_async(connection).await
            }
            answered => answered,
        }
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// All calls in one go.
async fn pipelined(
    script: &ServerScript,
    connection: &mut MultiplexedConnection,
    calls: &[ScriptCall],
) -> Result<Vec<[String; 2]>, RedisError> {
    let mut pipeline = Pipeline::with_capacity(calls.len());
    for ScriptCall { name, arguments } in calls {
        let command = pipeline.cmd("EVALSHA").arg(script.script.get_hash()).arg(1);
        command.arg(name).arg(&arguments[..]);
    }
    match pipeline.query_async(connection).await {
        Err(error) if is_unknown_script(&error) => {
            script.script.load_async(connection).await?;
            pipeline.query_async(connection).await
        }
        answered => answered,
    }
}

/// Each call by itself, to the member that has its key.
async fn each(
    script: &ServerScript,
    connection: &ClusterConnection,
    calls: &[ScriptCall],
) -> Result<Vec<[String; 2]>, RedisError> {
    try_join_all(calls.iter().map(|call| async {
        let mut connection = connection.clone();
        script
            .invoke(&mut connection, &call.name, &call.arguments)
            .await
    }))
    .await
}
