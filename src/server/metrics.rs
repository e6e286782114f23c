//! The metrics of client connections, handshakes and workers, and the log of connections that weir
//! does not serve.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;
use std::{fmt, io};

use prometheus::{CounterVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use rustls::PeerMisbehaved;
use tracing::{debug, warn};

use weir_base::metrics::Registry;
use weir_kubernetes::numeric::saturating_i64;
use weir_limits::throttling::log_limiter::LogLimiter;

/// The metrics of the listener and its workers.
#[derive(Clone, Debug)]
pub struct ServerMetrics {
    handshake_errors: IntCounter,
    handshake_log: Arc<LogLimiter>,
    refusal_log: Arc<LogLimiter>,
    pub(super) open_connections: IntGauge,
    pub(super) max_connections: IntGauge,
    pub(super) rejected_connections: IntCounter,
    pub(super) closed_connections: IntCounterVec,
    pub(super) pending_connections: IntGauge,
    pub(super) active_handshakes: IntGauge,
    pub(super) queued_handshakes: IntGauge,
    pub(super) rejected_handshakes: IntCounter,
    pub(super) delayed_handshakes: IntCounter,
    pub(super) panics: IntCounter,
    pub(super) worker_tasks: IntGaugeVec,
    pub(super) worker_busy_seconds: CounterVec,
    pub(super) worker_pause_seconds: CounterVec,
}

impl ServerMetrics {
    /// Registers the metrics in `registry`.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            handshake_log: Arc::default(),
            refusal_log: Arc::default(),
            handshake_errors: registry.counter(
                "apiserver_tls_handshake_errors_total",
                "[ALPHA] Connections dropped because of an error in the TLS handshake.",
            ),
            open_connections: registry.gauge("weir_client_connections", "Open connections of clients."),
            max_connections: registry.gauge(
                "weir_client_connections_limit",
                "Most open connections of clients (--max-connections).",
            ),
            rejected_connections: registry.counter(
                "weir_client_connections_refused_total",
                "Connections closed at once because as many as --max-connections are open.",
            ),
            closed_connections: registry.counters(
                "weir_client_connections_closed_total",
                "Client connections that weir closed, by reason: the CA of the client's certificate was removed (ca_removed), an incomplete request head took too long (head_timeout) or too much memory (head_budget), a frame of it had too many headers (head_fields), too many requests were reset (resets), the client did not read what was left of ended responses (stalled), no request for too long (idle) or while memory is scarce (memory), or no data after the handshake (silence).",
                &["reason"],
            ),
            pending_connections: registry.gauge(
                "weir_client_connections_pending",
                "Open client connections whose TLS handshake is not complete.",
            ),
            active_handshakes: registry.gauge(
                "weir_client_handshakes",
                "Client connections whose TLS handshake is being computed.",
            ),
            queued_handshakes: registry.gauge(
                "weir_client_handshakes_waiting",
                "Connections of clients that wait for their turn to begin the TLS handshake.",
            ),
            rejected_handshakes: registry.counter(
                "weir_client_handshakes_turned_away_total",
                "Client connections that were closed because too many waited for the TLS handshake, or for too long, or because a client with fewer connections took the slot.",
            ),
            delayed_handshakes: registry.counter(
                "weir_client_handshakes_delayed_total",
                "Client connections that waited for the TLS handshake because weir had closed another one of their address for exceeding a limit.",
            ),
            panics: registry.counter(
                "weir_panics_total",
                "Requests that ended in a panic: a defect of weir's, please report it.",
            ),
            worker_tasks: registry.gauges(
                "weir_worker_tasks",
                "Tasks that each worker has: its clients' connections and HTTP/2 streams, connections to the API server, and maintenance.",
                &["worker"],
            ),
            worker_busy_seconds: registry.seconds_counters(
                "weir_worker_busy_seconds_total",
                "Time in which each worker had something to do, in seconds: at one second a second it can do no more.",
                &["worker"],
            ),
            worker_pause_seconds: registry.seconds_counters(
                "weir_worker_pause_seconds_total",
                "Time in which each worker paused, in seconds: it has to wait for cores, and does more at once when it is woken less often.",
                &["worker"],
            ),
        }
    }

    /// Counts a connection of `client` that ended before its TLS handshake was complete, and logs why
    /// at most once a second. Clients that only connect and close are the health checks of load
    /// balancers.
    pub(super) fn record_handshake_error(&self, client: SocketAddr, why: &io::Error, now: Instant) {
        self.handshake_errors.inc();
        let has_gone = matches!(
            why.kind(),
            io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::NotConnected
        );
        if has_gone {
            debug!(%client, %why, "TLS handshake error");
        } else if let Some(more) = self.handshake_log.try_log(now) {
            let why = HandshakeError(why);
            warn!(%client, %why, more, "TLS handshake error");
        }
    }

    /// Logs, at most once a second, that a connection was closed at once.
    pub(super) fn log_refused(&self, client: SocketAddr, why: &dyn fmt::Display, now: Instant) {
        if let Some(more) = self.refusal_log.try_log(now) {
            warn!(%client, %why, more, "a connection was refused");
        }
    }

    /// Logs, at most once a second, that connections cannot be accepted. They wait.
    pub(super) fn log_waiting(&self, why: &io::Error, now: Instant) {
        if let Some(more) = self.refusal_log.try_log(now) {
            warn!(%why, more, "connections cannot be accepted and wait");
        }
    }

    /// The connections that were closed because of `--max-connections`.
    #[must_use]
    pub(crate) fn refused(&self) -> u64 {
        self.rejected_connections.get()
    }

    /// Shows `--max-connections`.
    pub(crate) fn set_max_connections(&self, max: usize) {
        self.max_connections.set(saturating_i64(max));
    }
}

/// A handshake error in words that say what to change.
struct HandshakeError<'a>(&'a io::Error);

impl fmt::Display for HandshakeError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = self.0.get_ref();
        match source.and_then(|source| source.downcast_ref::<rustls::Error>()) {
            Some(rustls::Error::PeerMisbehaved(
                PeerMisbehaved::ServerNameMustContainOneHostName,
            )) => f.write_str("the server name that the client asks for (SNI) is not a DNS name"),
            _ if self.0.kind() == io::ErrorKind::TimedOut => {
                f.write_str("the client did not complete the handshake in time")
            }
            _ => self.0.fmt(f),
        }
    }
}
