//! Workers: single-threaded runtimes, one a core, each serving its own connections with its own pipeline.
//!
//! Nothing of a request crosses from one core to another but the counts of the limits. Measured against one
//! multi-threaded runtime: see ARCHITECTURE.md, "Runtime".

use std::io;
use std::net::SocketAddr;
use std::net::TcpStream as StdTcpStream;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use crate::clock::Clock;
use crate::drain::DrainGuard;
use crate::pipeline::response::deadlines::SCAN_INTERVAL;
use crate::server::connection;
use crate::server::connection::ConnectionContext;
use crate::server::pending_handshakes::PendingHandshakeGuard;

/// How often idle connections to the upstream are looked through; their time-out is several times that.
const CLOSE_IDLE_EVERY: Duration = Duration::from_secs(10);

/// A connection that was accepted.
#[derive(Debug)]
pub struct AcceptedConnection {
    /// The socket, not yet part of a runtime.
    pub tcp: StdTcpStream,
    /// Where it is from.
    pub address: SocketAddr,
    /// Counts it as open.
    pub open_guard: DrainGuard,
    /// That its handshake is not over.
    pub pending_guard: PendingHandshakeGuard,
}

/// What a connection holds for as long as its socket is open, whatever is spoken on it.
#[derive(Debug)]
pub struct ConnectionGuard {
    _open_guard: DrainGuard,
    _load_guard: Arc<()>,
}

/// A thread that serves connections.
#[derive(Debug)]
pub struct Worker {
    connections: mpsc::UnboundedSender<(AcceptedConnection, Arc<()>)>,
    /// One reference for each connection, beside this one.
    load: Arc<()>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system gives no thread or no runtime.
    pub fn start(
        number: usize,
        tls: TlsAcceptor,
        serving: Arc<ConnectionContext>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (connections, accepted) = mpsc::unbounded_channel();
        let thread = thread::Builder::new()
            .name(format!("weir-worker-{number}"))
            .spawn(move || runtime.block_on(run_worker(number, accepted, tls, serving)))?;
        Ok(Self {
            connections,
            load: Arc::new(()),
            thread,
        })
    }

    /// The connections it has.
    #[must_use]
    pub fn load(&self) -> usize {
        Arc::strong_count(&self.load) - 1
    }

    /// Gives it a connection.
    pub fn assign(&self, accepted: AcceptedConnection) {
        if self
            .connections
            .send((accepted, Arc::clone(&self.load)))
            .is_err()
        {
            warn!("a worker has ended early; a connection is closed");
        }
    }

    /// Cuts off whatever it still serves, and waits for its end.
    pub fn stop(self) {
        drop(self.connections);
        if self.thread.join().is_err() {
            warn!("a worker ended in a panic");
        }
    }
}

/// Ends when no more connections can come; the runtime's end cuts off what is left.
async fn run_worker(
    number: usize,
    mut accepted: mpsc::UnboundedReceiver<(AcceptedConnection, Arc<()>)>,
    tls: TlsAcceptor,
    serving: Arc<ConnectionContext>,
) {
    tokio::spawn(run_maintenance(number, Arc::clone(&serving)));
    while let Some((accepted, load)) = accepted.recv().await {
        let AcceptedConnection {
            tcp,
            address,
            open_guard: open,
            pending_guard: newcomer,
        } = accepted;
        let tcp = match TcpStream::from_std(tcp) {
            Ok(tcp) => tcp,
            Err(why) => {
                warn!(client = %address, %why, "a connection cannot be served");
                continue;
            }
        };
        let held = ConnectionGuard {
            _open_guard: open,
            _load_guard: load,
        };
        tokio::spawn(connection::serve(
            tcp,
            address,
            (held, newcomer),
            tls.clone(),
            Arc::clone(&serving),
        ));
    }
}

async fn run_maintenance(number: usize, serving: Arc<ConnectionContext>) {
    let number = number.to_string();
    let tasks = serving.metrics.worker_tasks.with_label_values(&[&number]);
    let busy = serving
        .metrics
        .worker_busy_seconds
        .with_label_values(&[&number]);
    let runtime = Handle::current().metrics();
    let mut look = tokio::time::interval(SCAN_INTERVAL);
    let mut close_idle = tokio::time::interval(CLOSE_IDLE_EVERY);
    loop {
        tokio::select! {
            _ = look.tick() => {
                serving.pipeline.deadlines.expire(Clock.now());
                tasks.set(i64::try_from(runtime.num_alive_tasks()).unwrap_or(i64::MAX));
                let so_far = runtime.worker_total_busy_duration(0).as_secs_f64();
                busy.inc_by((so_far - busy.get()).max(0.0));
            }
            _ = close_idle.tick() => serving.pipeline.upstream.close_idle(Clock.now()),
        }
    }
}
