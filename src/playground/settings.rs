//! How a playground is set up.

use std::num::NonZeroUsize;
use std::time::Duration;

/// Everything that can be chosen. The default is a small cluster on an unlimited server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaygroundSettings {
    /// How many nodes there are at the start. Default: 3.
    pub nodes: usize,
    /// How many running pods there are at the start. Default: 20.
    pub pods: usize,
    /// How many requests are served at full speed at once; more of them share it. Means nothing without
    /// a service time. Default: none, the service time is always the same.
    pub capacity: Option<NonZeroUsize>,
    /// How long serving a request takes, at full speed; of a watch or another long-running request
    /// its start; of a request whose credential is refused, the look-up. Default: zero.
    pub service_time: Duration,
    /// How many ordinary requests the server accepts at once; the rest are answered with 429, as
    /// kube-apiserver's `--max-requests-inflight` does (reads and writes together). Default: no limit.
    pub max_in_flight: Option<usize>,
    /// How long the serving thread is kept busy for each answer. Default: zero.
    pub service_cpu: Duration,
    /// How long the serving thread is kept busy for each of the server's own refusals. Default: zero.
    pub rejection_cpu: Duration,
    /// Concurrent HTTP/2 streams of one connection. Default: 100, as kube-apiserver's.
    pub max_concurrent_streams: u32,
    /// Changes of each kind that are remembered for watches and for the pages of a list. Default:
    /// 10 000.
    pub watch_history: usize,
    /// Requests that [`super::ApiServer::requests`] remembers. Default: 1 000.
    pub max_recorded_requests: usize,
    /// How often a followed log gets another line. Default: one second.
    pub log_interval: Duration,
}

impl Default for PlaygroundSettings {
    fn default() -> Self {
        Self {
            nodes: 3,
            pods: 20,
            capacity: None,
            service_time: Duration::ZERO,
            max_in_flight: None,
            service_cpu: Duration::ZERO,
            rejection_cpu: Duration::ZERO,
            max_concurrent_streams: 100,
            watch_history: 10_000,
            max_recorded_requests: 1_000,
            log_interval: Duration::from_secs(1),
        }
    }
}
