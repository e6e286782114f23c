//! Workers: single-threaded runtimes, one for each core. Each serves its own connections with its
//! own pipeline.
//!
//! Only the counters of the limits are shared between cores. One multi-threaded runtime needs more
//! CPU for each request; responses a second were equal within noise. Both were measured on two cores
//! shared with origin and load, in two interleaved runs:
//!
//! | CPU for each request | a runtime for each core | one shared runtime |
//! |---|---|---|
//! | HTTP/1.1, 64 connections | 21.2 and 21.7 µs | 23.9 and 25.2 µs |
//! | HTTP/2, 8 × 16 streams | 22.2 and 22.5 µs | 25.0 and 25.8 µs |
//!
//! Sockets are looked at after 61 tasks, which is Tokio's default: 16 cost 15.6 µs a request in
//! place of 14.7.

use std::io;
use std::net::SocketAddr;
use std::net::TcpStream as StdTcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tracing::warn;

use crate::pipeline::response::deadlines::SCAN_INTERVAL;
use crate::server::connection;
use crate::server::connection::ConnectionContext;
use crate::server::connection::connection_guard::ConnectionGuard;
use crate::server::connection::connection_shares::ConnectionShare;
use crate::server::pending_handshakes::PendingHandshakeGuard;
use crate::upstream::forward::server_probes::PROBE_INTERVAL;
use weir_base::clock::Clock;
use weir_base::drain::DrainGuard;
use weir_io::pauses::{CpuTimes, Pauses};
use weir_kubernetes::numeric::saturating_i64;

/// The interval at which idle upstream connections are checked: that of the probes of `/readyz`,
/// after whose failure they are closed.
const CLOSE_IDLE_EVERY: Duration = PROBE_INTERVAL;

/// A connection that the acceptor has accepted.
#[derive(Debug)]
pub(crate) struct AcceptedConnection {
    /// The socket, which is not yet registered with a runtime.
    pub(crate) tcp: StdTcpStream,
    /// The address of the peer: the client or a proxy.
    pub(crate) address: SocketAddr,
    /// Counts the connection as open.
    pub(crate) open_guard: DrainGuard,
    /// Counts the connection as pending until its TLS handshake is complete.
    pub(crate) pending_guard: PendingHandshakeGuard,
    /// Counts the connection for its address.
    pub(crate) share: ConnectionShare,
}

/// A thread that serves connections.
#[derive(Debug)]
pub(crate) struct Worker {
    connections: mpsc::UnboundedSender<(AcceptedConnection, Arc<()>)>,
    /// Has one reference more than the worker has connections.
    load: Arc<()>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system provides no thread or no runtime.
    pub(crate) fn start(number: usize, context: Arc<ConnectionContext>) -> io::Result<Self> {
        let pauses = Pauses::default();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        pauses.apply_to(&mut runtime);
        let runtime = runtime.enable_all().build()?;
        let (connections, accepted) = mpsc::unbounded_channel();
        let thread = thread::Builder::new()
            .name(format!("weir-worker-{number}"))
            .spawn(move || runtime.block_on(run_worker(number, pauses, accepted, context)))?;
        Ok(Self {
            connections,
            load: Arc::new(()),
            thread,
        })
    }

    /// The number of connections that the worker serves.
    #[must_use]
    pub(crate) fn load(&self) -> usize {
        Arc::strong_count(&self.load) - 1
    }

    /// Hands a connection to the worker.
    pub(crate) fn assign(&self, accepted: AcceptedConnection) {
        if self
            .connections
            .send((accepted, Arc::clone(&self.load)))
            .is_err()
        {
            warn!("a worker has ended early; a connection is closed");
        }
    }

    /// Stops the worker and waits for its thread. Connections that are still open are closed.
    pub(crate) fn stop(self) {
        drop(self.connections);
        if self.thread.join().is_err() {
            warn!("a worker ended in a panic");
        }
    }
}

/// Serves connections until the acceptor closes the channel. The end of the runtime closes the
/// connections that are left.
async fn run_worker(
    number: usize,
    pauses: Pauses,
    mut accepted: mpsc::UnboundedReceiver<(AcceptedConnection, Arc<()>)>,
    context: Arc<ConnectionContext>,
) {
    tokio::spawn(run_maintenance(number, pauses, Arc::clone(&context)));
    tokio::spawn(context.pipeline.load().announce_levers());
    while let Some((accepted, load)) = accepted.recv().await {
        let AcceptedConnection {
            tcp,
            address,
            open_guard,
            pending_guard,
            share,
        } = accepted;
        let tcp = match TcpStream::from_std(tcp) {
            Ok(tcp) => tcp,
            Err(why) => {
                warn!(client = %address, %why, "a connection cannot be served");
                continue;
            }
        };
        let guard = ConnectionGuard::new(open_guard, load, share);
        tokio::spawn(connection::serve(
            tcp,
            address,
            guard,
            pending_guard,
            Arc::clone(&context),
        ));
    }
}

async fn run_maintenance(number: usize, mut pauses: Pauses, context: Arc<ConnectionContext>) {
    let number = number.to_string();
    let tasks = context.metrics.worker_tasks.with_label_values(&[&number]);
    let busy = context
        .metrics
        .worker_busy_seconds
        .with_label_values(&[&number]);
    let paused = context
        .metrics
        .worker_pause_seconds
        .with_label_values(&[&number]);
    let runtime = Handle::current().metrics();
    let mut maintenance = tokio::time::interval(SCAN_INTERVAL);
    let mut close_idle = tokio::time::interval(CLOSE_IDLE_EVERY);
    loop {
        tokio::select! {
            _ = maintenance.tick() => {
                context.heartbeats.fetch_add(1, Ordering::Relaxed);
                let deadlines = &context.worker.deadlines;
                deadlines.set_memory_scarce(context.memory_limit.is_scarce());
                deadlines.expire(Clock.now());
                tasks.set(saturating_i64(runtime.num_alive_tasks()));
                let total = runtime.worker_total_busy_duration(0).as_secs_f64();
                busy.inc_by((total - busy.get()).max(0.0));
                let load = context.pipeline.load().upstream_load();
                pauses.adjust(Clock.now(), CpuTimes::of_this_thread(), load);
                paused.inc_by((pauses.total().as_secs_f64() - paused.get()).max(0.0));
            }
            _ = close_idle.tick() => context.pipeline.load().close_idle(Clock.now()),
        }
    }
}
