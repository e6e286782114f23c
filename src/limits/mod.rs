//! May a request go on? Which limit decides, what it gives (a [`Permit`]) and what it says no with (a [`Rejection`]).
//!
//! A permit is held until the last byte of the answer has gone, and gives itself back when it is dropped. A rejection is
//! a decision, not an error: it names the limit, and the client is told which.

pub mod max_in_flight;

use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::api::UserInfo;
use crate::clock::Clock;
use crate::request_info::RequestInfo;

pub use max_in_flight::MaxInFlight;

/// The least time for which an aborted request that the upstream had not answered yet keeps its permit: kube-apiserver
/// charges every request 3 ms (`estimatedServiceDuration`), so that opening and aborting buys no free work.
pub const LEAST_CHARGE: Duration = Duration::from_millis(3);

/// Read-only or mutating: the two kinds that kube-apiserver counts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// Everything but get, list and watch.
    Mutating,
    /// get, list, watch.
    ReadOnly,
}

impl RequestKind {
    /// Both, in the order of their labels.
    pub const ALL: [Self; 2] = [Self::Mutating, Self::ReadOnly];

    /// The kind of `info`'s verb.
    #[must_use]
    pub fn of(info: &RequestInfo<'_>) -> Self {
        if info.mutating() {
            Self::Mutating
        } else {
            Self::ReadOnly
        }
    }

    /// The value of the metric label `request_kind`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Mutating => "mutating",
            Self::ReadOnly => "readOnly",
        }
    }
}

/// A limit's no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// As many requests of the kind are being served as `limit` allows.
    MaxInFlight {
        /// Which of the two limits.
        kind: RequestKind,
        /// The limit that was hit.
        limit: u32,
    },
}

/// What admission looks at.
#[derive(Clone, Copy, Debug)]
pub struct RequestDigest<'a> {
    /// What is asked.
    pub info: &'a RequestInfo<'a>,
    /// Who asks.
    pub user: &'a UserInfo,
}

/// How many requests are let through at a time: which of the ways is configured.
#[derive(Clone, Debug)]
pub enum Admission {
    /// Two counters, as with `--enable-priority-and-fairness=false`.
    MaxInFlight(Arc<MaxInFlight>),
}

impl Admission {
    /// Admits the request, or says which limit it met.
    ///
    /// # Errors
    /// The limit's [`Rejection`].
    pub fn admit(&self, digest: &RequestDigest<'_>) -> Result<Permit, Rejection> {
        match self {
            Self::MaxInFlight(limit) => limit.admit(digest).map(Permit::new),
        }
    }
}

/// What an admitted request holds until its end; dropping it gives back what it holds.
#[derive(Debug)]
pub struct Permit {
    held: Option<max_in_flight::InFlightPermit>,
    /// When the request went to the upstream, as long as no answer has come.
    unanswered_since: Option<Instant>,
}

impl Permit {
    fn new(held: Option<max_in_flight::InFlightPermit>) -> Self {
        Self {
            held,
            unanswered_since: None,
        }
    }

    /// The request is about to be sent to the upstream.
    pub fn forwarding(&mut self, now: Instant) {
        self.unanswered_since = Some(now);
    }

    /// The upstream has answered (or will never): from here on a drop gives back at once.
    pub fn answered(&mut self) {
        self.unanswered_since = None;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let (Some(held), Some(since)) = (self.held.take(), self.unanswered_since) else {
            return;
        };
        let until = since + LEAST_CHARGE;
        let now = Clock.now();
        if until > now && tokio::runtime::Handle::try_current().is_ok() {
            tokio::spawn(async move {
                tokio::time::sleep(until - now).await;
                drop(held);
            });
        }
    }
}
