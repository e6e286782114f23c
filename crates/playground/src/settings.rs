//! The settings of a playground.

use std::num::NonZeroUsize;
use std::time::Duration;

/// The settings of a playground. The default is a small cluster on a server without limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaygroundSettings {
    /// Number of nodes at the start. Default: 3.
    pub nodes: usize,
    /// Number of running pods at the start. Default: 20.
    pub pods: usize,
    /// Number of requests that are served at full speed at once; more requests share it. Without a
    /// service time it has no effect. Default: none, the service time is constant.
    pub capacity: Option<NonZeroUsize>,
    /// Changes of the capacity, in the order of their times. Default: none.
    pub capacity_changes: Vec<CapacityChange>,
    /// Time to serve a request at full speed; for a watch or another long-running request, the time
    /// to start it; for a request with an invalid credential, the time of the look-up. Default:
    /// zero.
    pub service_time: Duration,
    /// Maximum number of ordinary requests in flight; further requests are answered with 429, as
    /// with kube-apiserver's `--max-requests-inflight` (reads and writes together). Default: no
    /// limit.
    pub max_in_flight: Option<usize>,
    /// CPU time that each response takes on the serving thread. Default: zero.
    pub service_cpu: Duration,
    /// CPU time that each of the server's own rejections takes on the serving thread. Default:
    /// zero.
    pub rejection_cpu: Duration,
    /// Bytes of lists that the server can hold while it serves them; with more of them the process
    /// ends, as one that the kernel ends for want of memory. Default: no limit.
    pub list_memory_limit: Option<u64>,
    /// Maximum number of concurrent HTTP/2 streams per connection. Default: 100, as in
    /// kube-apiserver.
    pub max_concurrent_streams: u32,
    /// Number of changes per kind that are kept for watches and for the pages of a list. Default:
    /// 10 000.
    pub watch_history: usize,
    /// Number of requests that [`super::PlaygroundServer::requests`] keeps. Default: 1 000.
    pub max_recorded_requests: usize,
    /// Interval between the lines of a followed log. Default: one second.
    pub log_interval: Duration,
}

/// A capacity from a time on, as of a server that loses cores, gains some, or pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapacityChange {
    /// After the start.
    pub after: Duration,
    /// The number of requests that are served at full speed at once. 0 is a pause: nothing is served.
    pub capacity: u32,
}

impl Default for PlaygroundSettings {
    fn default() -> Self {
        Self {
            nodes: 3,
            pods: 20,
            capacity: None,
            capacity_changes: Vec::new(),
            service_time: Duration::ZERO,
            max_in_flight: None,
            service_cpu: Duration::ZERO,
            rejection_cpu: Duration::ZERO,
            list_memory_limit: None,
            max_concurrent_streams: 100,
            watch_history: 10_000,
            max_recorded_requests: 1_000,
            log_interval: Duration::from_secs(1),
        }
    }
}
