//! Shared by all tests: generated certificates, a fake upstream, raw clients, and weir itself.
//!
//! Everything waits for events, with one generous timeout. Nothing sleeps, and the system chooses
//! every port.

pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod fake_upstream;
pub(crate) mod message;
pub(crate) mod process;
pub(crate) mod raw_http1;
pub(crate) mod raw_http2;
pub(crate) mod weir;
#[cfg(feature = "playground")]
pub(crate) mod yaml;

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::{Duration, Instant};

/// Timeout of all events: enough for a loaded machine, and short enough to report a hang as such.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(40);

/// Waits for `event`. On timeout, fails the test with a message and the caller's location.
#[track_caller]
pub(crate) fn within<F: Future>(
    what: impl fmt::Display,
    event: F,
) -> impl Future<Output = F::Output> {
    let place = Location::caller();
    async move {
        match tokio::time::timeout(EVENT_TIMEOUT, event).await {
            Ok(output) => output,
            Err(_) => panic!("{place}: waited {EVENT_TIMEOUT:?} in vain for {what}"),
        }
    }
}

/// Retries until `attempt` returns a value.
#[track_caller]
pub(crate) fn eventually<T>(
    what: &'static str,
    mut attempt: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    within(what, async move {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            tokio::task::yield_now().await;
        }
    })
}

/// Runs `test` concurrently for every pair of client and upstream HTTP versions. For tests that
/// wait for a clock.
pub(crate) async fn for_each_protocol_pair(test: impl AsyncFn(HttpVersion, HttpVersion)) {
    futures_util::future::join_all(HttpVersion::PAIRS.map(|(near, far)| test(near, far))).await;
}

/// Measures time independently of the program's clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

#[expect(
    clippy::disallowed_methods,
    reason = "what a test has waited is told by its own clock"
)]
impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}

/// A message or a connection that ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnexpectedEnd(pub String);

impl<E: std::error::Error> From<E> for UnexpectedEnd {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for UnexpectedEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The HTTP version of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

impl HttpVersion {
    /// Both.
    pub(crate) const BOTH: [Self; 2] = [Self::Http1, Self::Http2];

    /// Every pair of client and upstream HTTP versions.
    pub(crate) const PAIRS: [(Self, Self); 4] = [
        (Self::Http1, Self::Http1),
        (Self::Http1, Self::Http2),
        (Self::Http2, Self::Http1),
        (Self::Http2, Self::Http2),
    ];

    /// The protocol's name in a TLS handshake (ALPN).
    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}
