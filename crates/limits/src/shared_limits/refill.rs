//! The task that calls the shared buckets, and keeps count of the replicas.
//!
//! It is the only one that waits for the server. While that is away, the local shares decide and
//! the task tries to connect.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::shared_limits::bucket::{CALL_INTERVAL, RefillCall};
use crate::shared_limits::connection::SharedConnection;
use crate::shared_limits::replica_count::ReplicaCount;
use crate::shared_limits::script;
use crate::shared_limits::script::{CALL_TIMEOUT, ScriptCall};
use crate::shared_limits::server::SharedLimitsConfig;
use crate::shared_limits::source::{RefillSource, Sharing, SourceCall};
use crate::shared_limits::status::{SharedLimitsStatus, SharedServerState};
use crate::throttling::token_bucket::Rate;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;

/// The longest time of an attempt to connect. Sentinels and members that do not answer have to be
/// given up within it.
const OPEN_TIMEOUT: Duration = Duration::from_millis(1500);

/// The time between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// The most keys of a source that are looked at in one interval of calls: their lock is held for
/// some tens of microseconds. Of more keys, each waits for its turn.
const MAX_KEYS_PER_INTERVAL: usize = 1024;

/// The most calls in one batch, which is answered within the timeout by far.
const MAX_BATCH: usize = 256;

/// Rate limits that are shared with other replicas.
#[derive(Debug)]
pub struct SharedLimits {
    config: SharedLimitsConfig,
    sharing: Sharing,
    status: Arc<SharedLimitsStatus>,
    /// The name of this process among the replicas.
    member: String,
    /// The name of the set of replicas in the server.
    replicas_name: String,
}

/// What the task keeps from one connection to the next.
struct TaskMemory {
    replicas: ReplicaCount,
    /// The calls of the batch that failed last, if there is no connection since. A new connection
    /// has to answer them: of a cluster, the member that has these keys may be away while all
    /// others are there, and the state would change with each attempt.
    failed: Vec<ScriptCall>,
}

impl SharedLimits {
    /// Registers the metrics. Nothing is shared until the task runs.
    #[must_use]
    pub fn new(config: SharedLimitsConfig, registry: &Registry) -> Arc<Self> {
        let mut id = [0; 16];
        // Without randomness the address of this value would do: replicas must differ.
        let _ = aws_lc_rs::rand::fill(&mut id);
        let mut member = String::new();
        for byte in id {
            let _ = write!(member, "{byte:02x}");
        }
        let status =
            SharedLimitsStatus::register(config.server.display_name(), config.replicas, registry);
        Arc::new(Self {
            sharing: Sharing::new(config.key.table_secret(), config.replicas),
            status,
            member,
            replicas_name: config.key.server_name(&[b"replicas"]),
            config,
        })
    }

    /// What limits need in order to share their buckets.
    #[must_use]
    pub const fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// The state for operators.
    #[must_use]
    pub const fn status(&self) -> &Arc<SharedLimitsStatus> {
        &self.status
    }

    /// Shares the limits until it is dropped.
    pub async fn run(self: Arc<Self>) {
        let mut memory = TaskMemory {
            replicas: ReplicaCount::new(self.config.replicas),
            failed: Vec::new(),
        };
        loop {
            let why = match self.connect(&mut memory).await {
                Ok(connection) => self.share(connection, &mut memory).await,
                Err(why) => why,
            };
            self.status.set(SharedServerState::Away(why));
            sleep(RETRY_INTERVAL).await;
        }
    }

    async fn connect(&self, memory: &mut TaskMemory) -> Result<SharedConnection, String> {
        let opened = timeout(OPEN_TIMEOUT, SharedConnection::open(&self.config)).await;
        let mut connection = opened.unwrap_or_else(|_| Err(no_connection()))?;
        self.heartbeat(&mut connection, &mut memory.replicas)
            .await?;
        within_timeout(connection.refill(&[self.probe()])).await?;
        if !memory.failed.is_empty() {
            within_timeout(connection.refill(&memory.failed)).await?;
            memory.failed.clear();
        }
        self.status.set(SharedServerState::Connected);
        Ok(connection)
    }

    async fn heartbeat(
        &self,
        connection: &mut SharedConnection,
        replicas: &mut ReplicaCount,
    ) -> Result<(), String> {
        let call = connection.heartbeat(&self.replicas_name, &self.member);
        let replicas = replicas.record(within_timeout(call).await?, Clock.now());
        self.sharing.set_replicas(replicas);
        self.status.set_replicas(replicas);
        Ok(())
    }

    /// Calls the shared buckets until a call fails; returns why.
    async fn share(&self, mut connection: SharedConnection, memory: &mut TaskMemory) -> String {
        let mut ticks = interval(CALL_INTERVAL);
        // Two calls are never closer than the interval, also after a late one.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut next_heartbeat = Clock.now() + script::HEARTBEAT_INTERVAL;
        loop {
            let now = ticks.tick().await.into_std();
            if now >= next_heartbeat {
                next_heartbeat = now + script::HEARTBEAT_INTERVAL;
                let heartbeat = self.heartbeat(&mut connection, &mut memory.replicas);
                if let Err(why) = heartbeat.await {
                    return why;
                }
            }
            if let Err(why) = self.refill(&mut connection, memory, now).await {
                return why;
            }
        }
    }

    async fn refill(
        &self,
        connection: &mut SharedConnection,
        memory: &mut TaskMemory,
        now: Instant,
    ) -> Result<(), String> {
        let mut calls = Vec::new();
        for source in self.sharing.sources() {
            source.collect(now, MAX_KEYS_PER_INTERVAL, &mut calls);
            for batch in calls.chunks(MAX_BATCH) {
                let called = self.call(connection, &*source, batch).await;
                called.inspect_err(|_| {
                    memory.failed = batch.iter().map(|call| self.idle_call(call)).collect();
                })?;
            }
            calls.clear();
        }
        Ok(())
    }

    async fn call(
        &self,
        connection: &mut SharedConnection,
        source: &dyn RefillSource,
        batch: &[SourceCall],
    ) -> Result<(), String> {
        let calls: Vec<_> = batch
            .iter()
            .map(|call| self.script_call(call, &call.call))
            .collect();
        let answers = within_timeout(connection.refill(&calls)).await;
        self.status.add_calls(batch.len(), answers.is_err());
        let now = Clock.now();
        for (call, answer) in batch.iter().zip(answers?) {
            source.apply(call, answer.within(&call.rate, &call.call), now);
        }
        Ok(())
    }

    /// A call that a user without the permissions of the script cannot make. Without it, the server
    /// would seem to be there between two failed calls.
    fn probe(&self) -> ScriptCall {
        let rate = Rate::from_share(1.0, 1.0);
        let call = RefillCall {
            debt: 0.5, // a bucket that is not full, so that it is written
            ..RefillCall::default()
        };
        ScriptCall {
            name: self.config.key.server_name(&[b"probe"]),
            arguments: script::refill_arguments(&rate, &call),
        }
    }

    /// A call for the same key that charges and takes nothing.
    fn idle_call(&self, call: &SourceCall) -> ScriptCall {
        self.script_call(call, &RefillCall::default())
    }

    fn script_call(&self, call: &SourceCall, refill: &RefillCall) -> ScriptCall {
        let texts = [call.scope.as_bytes(), &call.key.to_le_bytes()];
        ScriptCall {
            name: self.config.key.server_name(&texts),
            arguments: script::refill_arguments(&call.rate, refill),
        }
    }
}

fn no_connection() -> String {
    format!("no connection within {} ms", OPEN_TIMEOUT.as_millis())
}

async fn within_timeout<T>(call: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let answered = timeout(CALL_TIMEOUT, call).await;
    answered.unwrap_or_else(|_| Err("no answer within 500 ms".to_owned()))
}
