//! What the tests stand on: certificates made on the spot, a fake upstream and clients of raw sockets, and weir itself.
//!
//! Everything waits for events, with one generous limit; nothing sleeps, and every port is the system's choice.

pub(crate) mod certificates;
pub(crate) mod client;
pub(crate) mod fake_upstream;
pub(crate) mod message;
pub(crate) mod process;
pub(crate) mod raw_http1;
pub(crate) mod raw_http2;
pub(crate) mod weir;

use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::time::Duration;
use std::time::Instant;

/// How long anything may take: a loaded machine's worth, and short enough that a hang is told as such.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(40);

/// Waits for `event`, or fails the test by saying what did not happen, and where it was waited for.
#[track_caller]
pub(crate) fn within<F: Future>(what: &'static str, event: F) -> impl Future<Output = F::Output> {
    let place = Location::caller();
    async move {
        match tokio::time::timeout(EVENT_TIMEOUT, event).await {
            Ok(output) => output,
            Err(_) => panic!("{place}: waited {EVENT_TIMEOUT:?} in vain for {what}"),
        }
    }
}

/// Asks again and again until `attempt` gives something.
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

/// Runs `test` for every pair of what a client and what the upstream speaks, all at once: for tests that wait for a clock.
pub(crate) async fn for_each_protocol_pair(test: impl AsyncFn(HttpVersion, HttpVersion)) {
    futures_util::future::join_all(HttpVersion::PAIRS.map(|(near, far)| test(near, far))).await;
}

/// Tells how much time has passed, by no clock of the program's.
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

/// A message or a connection that ended before it should.
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

/// Which HTTP a test speaks.
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

    /// Every pair of what a client and what the upstream speaks.
    pub(crate) const PAIRS: [(Self, Self); 4] = [
        (Self::Http1, Self::Http1),
        (Self::Http1, Self::Http2),
        (Self::Http2, Self::Http1),
        (Self::Http2, Self::Http2),
    ];

    /// The protocol's name in a TLS handshake.
    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}
