//! Whether the API server accepts the certificate by which weir asserts users, as weir's own probes
//! show.
//!
//! A 401 or 403 to a request that weir asserts can be the answer of kube-apiserver to weir's
//! certificate, or of an API server behind it to the user. Only a probe tells them apart. The client
//! is to blame for neither, so it never receives the first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use weir_base::clock::Clock;

/// A probe that was accepted this recently decides about a 401. So API servers that answer 401 at
/// will cost one probe a second at most.
pub(crate) const ACCEPTED_TTL: Duration = Duration::from_secs(1);

/// Longest time that a 401 waits for a probe.
const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// What the probes have shown.
#[derive(Debug, Default)]
pub(crate) struct FrontProxyTrust {
    state: watch::Sender<TrustState>,
    probe_request: Notify,
}

#[derive(Clone, Debug, Default)]
struct TrustState {
    /// Whether there are probes.
    is_probed: bool,
    accepted_at: Option<Instant>,
    /// Why the last probe that decided was rejected.
    rejection: Option<Arc<str>>,
    /// Whether several were, so that no request is sent any more.
    is_failing: bool,
}

impl FrontProxyTrust {
    /// Probes begin, with a certificate of which nothing is known, or end.
    pub(crate) fn set_probed(&self, is_probed: bool) {
        self.state.send_replace(TrustState {
            is_probed,
            ..TrustState::default()
        });
    }

    /// A probe was accepted.
    pub(crate) fn record_accepted(&self, now: Instant) {
        self.state.send_replace(TrustState {
            is_probed: true,
            accepted_at: Some(now),
            ..TrustState::default()
        });
    }

    /// A probe was rejected; `is_failing` if several were.
    pub(crate) fn record_rejected(&self, why: &str, is_failing: bool) {
        self.state.send_replace(TrustState {
            is_probed: true,
            accepted_at: None,
            rejection: Some(why.into()),
            is_failing,
        });
    }

    /// A probe has shown nothing.
    pub(crate) fn record_unknown(&self) {
        self.state.send_modify(|_| ());
    }

    /// Why requests are not sent, if they are not.
    pub(crate) fn standing_rejection(&self) -> Option<Arc<str>> {
        let state = self.state.borrow();
        state.rejection.clone().filter(|_| state.is_failing)
    }

    /// Waits for a request for a probe.
    ///
    /// # Cancel safety
    /// No request is lost: it ends the next wait.
    pub(crate) async fn wait_for_probe_request(&self) {
        self.probe_request.notified().await;
    }

    /// Why the API server does not accept the certificate, after it has answered `code` to a request.
    /// `None` if it accepts it, or if that is not known soon.
    ///
    /// A certificate that has expired, or that another CA signed, gets 401. One that the server takes
    /// for another user's gets 403. That depends on the server's flags, so an accepted probe decides
    /// until the server is started again.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn rejection(&self, code: StatusCode) -> Option<Arc<str>> {
        let mut changes = self.state.subscribe();
        let state = changes.borrow_and_update().clone();
        let may_be_rejected = match code {
            StatusCode::UNAUTHORIZED => true,
            StatusCode::FORBIDDEN => state.accepted_at.is_none(),
            _ => false,
        };
        if !state.is_probed || !may_be_rejected {
            return None;
        }
        self.probe_request.notify_one();
        let is_recent = |at| Clock.now().saturating_duration_since(at) < ACCEPTED_TTL;
        if state.rejection.is_some() || state.accepted_at.is_some_and(is_recent) {
            return state.rejection;
        }
        let _ = timeout(PROBE_PATIENCE, changes.changed()).await; // not known then
        let state = changes.borrow();
        state.rejection.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_401_waits_for_a_probe_unless_one_has_just_decided() {
        const CODE: StatusCode = StatusCode::UNAUTHORIZED;
        let trust = FrontProxyTrust::default();
        assert_eq!(trust.rejection(CODE).await, None, "no probes");
        trust.set_probed(true);
        let answer = async {
            trust.wait_for_probe_request().await;
            trust.record_rejected("why", false);
        };
        let (rejection, ()) = tokio::join!(trust.rejection(CODE), answer);
        assert_eq!(rejection.as_deref(), Some("why"));
        assert_eq!(trust.standing_rejection(), None, "of one probe");
        trust.record_rejected("why", true);
        assert_eq!(trust.standing_rejection().as_deref(), Some("why"));
        trust.record_unknown();
        for code in [CODE, StatusCode::FORBIDDEN] {
            assert_eq!(trust.rejection(code).await.as_deref(), Some("why"));
        }
        for code in [StatusCode::OK, StatusCode::NOT_FOUND] {
            assert_eq!(trust.rejection(code).await, None);
        }
        trust.record_accepted(Clock.now());
        assert_eq!(trust.standing_rejection(), None);
        let before = Clock.now();
        assert_eq!(trust.rejection(CODE).await, None);
        assert_eq!(Clock.now(), before, "at once");
        tokio::time::advance(ACCEPTED_TTL).await;
        let before = Clock.now();
        assert_eq!(trust.rejection(StatusCode::FORBIDDEN).await, None);
        assert_eq!(Clock.now(), before, "at once");
        assert_eq!(trust.rejection(CODE).await, None, "no probe has ended");
        assert_eq!(Clock.now() - before, PROBE_PATIENCE);
    }
}
