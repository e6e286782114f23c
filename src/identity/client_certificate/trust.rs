//! The CAs in force for client certificates, and how connections learn that one was removed.
//!
//! A reload may remove the CA of a client that is connected. Its next request is verified against
//! the new CAs, since cached results name their verifier. Requests under way, watches and tunnels
//! have to end as well: each connection with a client certificate observes the CAs, and is closed
//! if its certificate gave an identity that the new CAs do not give.

use std::fmt;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use weir_base::clock::Clock;

/// When connections verify their certificates after a change, each at a random time between these:
/// a verification takes a tenth of a millisecond, and there may be thousands of connections. The
/// first time leaves room for requests that are being authenticated under the CAs before.
const RECHECK_AFTER: Duration = Duration::from_millis(200);
const RECHECK_WITHIN: Duration = Duration::from_secs(3);

/// The time within which connections are closed after their CA was removed.
pub(crate) const TRUST_LOSS_TIMEOUT: Duration = Duration::from_secs(5);
const _: () = assert!(RECHECK_WITHIN.as_secs() < TRUST_LOSS_TIMEOUT.as_secs());

/// Decides whether a certificate still gives the identity that it gave before.
pub(crate) trait TrustedCertificate: Send + Sync + 'static {
    /// The CAs in force.
    type Trust: Send + Sync + 'static;

    /// Whether the certificate gave an identity that `trust` does not give at `wall`.
    fn has_lost_trust(&self, trust: &Self::Trust, wall: SystemTime) -> bool;
}

/// Completes when a certificate has lost the trust that it had.
pub(crate) type TrustLoss = Pin<Box<dyn Future<Output = ()> + Send + Sync>>;

/// Announces the CAs in force.
pub(crate) struct TrustPublisher<T>(watch::Sender<Arc<T>>);

/// Observes the CAs in force, from the time on at which it was created.
pub struct TrustObserver<T>(watch::Receiver<Arc<T>>);

impl<T> Clone for TrustPublisher<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Send + Sync + 'static> TrustPublisher<T> {
    /// Announces `trust` from the start.
    #[must_use]
    pub(crate) fn new(trust: Arc<T>) -> Self {
        Self(watch::Sender::new(trust))
    }

    /// Announces `trust` to all connections, unless it is announced already.
    pub(crate) fn publish(&self, trust: &Arc<T>) {
        self.0.send_if_modified(|current| {
            let changed = !Arc::ptr_eq(current, trust);
            *current = Arc::clone(trust);
            changed
        });
    }

    /// Observes changes from now on.
    #[must_use]
    pub(crate) fn observer(&self) -> TrustObserver<T> {
        TrustObserver(self.0.subscribe())
    }
}

impl<T: Send + Sync + 'static> TrustObserver<T> {
    /// Completes when `certificate` has lost the trust that it had; never without a certificate.
    #[must_use]
    pub(crate) fn loss<C: TrustedCertificate<Trust = T>>(
        &self,
        certificate: Option<&Arc<C>>,
    ) -> TrustLoss {
        let Some(certificate) = certificate.map(Arc::clone) else {
            return Box::pin(pending());
        };
        let mut changes = self.0.clone();
        Box::pin(async move {
            while changes.changed().await.is_ok() {
                let spread = RECHECK_WITHIN.saturating_sub(RECHECK_AFTER);
                tokio::time::sleep(RECHECK_AFTER + spread.mul_f64(fastrand::f64())).await;
                let trust = Arc::clone(&changes.borrow_and_update());
                if certificate.has_lost_trust(&trust, Clock.wall()) {
                    return;
                }
            }
            pending().await
        })
    }
}

impl<T> fmt::Debug for TrustPublisher<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrustPublisher")
    }
}

impl<T> fmt::Debug for TrustObserver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TrustObserver")
    }
}
