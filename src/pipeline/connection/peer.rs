//! The client's side of a connection, as its requests see it.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};

use http::{HeaderValue, header, request};
use tokio::sync::Semaphore;

use crate::identity::client_certificate::ClientTrust;
use crate::identity::client_certificate::trust::{TrustLoss, TrustObserver};
use crate::identity::review_queue::fair_queue::ClientSource;
use crate::identity::{ClientContext, PeerCertificate};
use crate::upstream::headers::forwarded_for::address_value;
use crate::upstream::requester::Requester;
use weir_base::source_network::source_network;
use weir_base::sync::Mutex;
use weir_kubernetes::api::UserInfo;
use weir_limits::RequestSource;
use weir_limits::rejection_hold::ConnectionRetryTimes;

/// How many bodies of one HTTP/2 connection are drained at once, so that endless streams cannot
/// fill the memory.
pub const BODY_DRAINS_PER_CONNECTION: usize = 4;

/// What a request needs to know of its connection.
#[derive(Debug)]
pub struct Peer {
    /// The client's address.
    pub address: SocketAddr,
    /// The address as a header value, created with the first request that is forwarded.
    pub address_value: OnceLock<HeaderValue>,
    /// A random id of the connection: random is unique enough.
    pub connection_id: u64,
    /// Whether the address is one of `--trusted-proxies`.
    pub trusted: bool,
    /// The client certificate of the handshake.
    pub certificate: Option<Arc<PeerCertificate>>,
    /// Observes whether the certificate is still trusted.
    pub trust: TrustObserver<ClientTrust>,
    /// The user of requests whose tokens nothing verifies, created with the first of them.
    pub unverified_user: OnceLock<Arc<UserInfo>>,
    /// The user of its last request that was authenticated.
    pub last_user: Mutex<Option<Arc<UserInfo>>>,
    /// The number of the latest lever when it began.
    pub levers_at_start: u64,
    /// The `Retry-After` times that were sent on the connection.
    pub hold_state: HoldState,
    /// Slots for draining the bodies of rejected requests.
    pub body_drain_slots: BodyDrainSlots,
}

impl Peer {
    pub(crate) fn client(&self) -> ClientContext<'_> {
        ClientContext {
            certificate: self.certificate.as_deref(),
            source: ClientSource {
                address: self.address.ip(),
                connection_id: self.connection_id,
            },
            from_trusted_proxy: self.trusted,
            unverified_user: &self.unverified_user,
            upgrade: None,
        }
    }

    /// When in its time a lever that disconnects clients ends the connection (0 to 1): each has its
    /// own moment.
    pub(crate) fn disconnect_moment(&self) -> f64 {
        f64::from(self.connection_id.to_le_bytes()[0]) / f64::from(u8::MAX)
    }

    /// Records the user of a request.
    pub(crate) fn record_user(&self, user: &Arc<UserInfo>) {
        let mut last = self.last_user.lock();
        if last.as_ref().is_none_or(|last| !Arc::ptr_eq(last, user)) {
            *last = Some(Arc::clone(user));
        }
    }

    /// The client's address as a header value.
    pub(crate) fn address_value(&self) -> &HeaderValue {
        let new = || address_value(self.address.ip());
        self.address_value.get_or_init(new)
    }

    /// Completes when the client certificate has given an identity that it gives no more, because a
    /// CA was removed.
    #[must_use]
    pub(crate) fn trust_loss(&self) -> TrustLoss {
        self.trust.loss(self.certificate.as_ref())
    }

    /// The network whose memory and connections are limited; `None` for a trusted proxy.
    pub(crate) fn source_network(&self) -> Option<IpAddr> {
        (!self.trusted).then(|| source_network(self.address.ip()))
    }

    /// The requester that a request of `user` is charged to.
    pub(crate) fn requester(&self, user: &Arc<UserInfo>) -> Requester {
        Requester {
            user: Some(Arc::clone(user)),
            network: self.source_network(),
        }
    }
}

/// The head of a request and the connection on which it arrived.
#[derive(Clone, Copy)]
pub(crate) struct ReceivedHead<'a> {
    pub(crate) peer: &'a Peer,
    pub(crate) head: &'a request::Parts,
}

impl<'a> ReceivedHead<'a> {
    /// Where the request comes from.
    pub(crate) fn request_source(self) -> RequestSource<'a> {
        let user_agent = self.head.headers.get(header::USER_AGENT);
        RequestSource {
            address: self.peer.address.ip(),
            user_agent: user_agent.map_or(b"", |user_agent| user_agent.as_bytes()),
        }
    }
}

/// The delayed rejections of a connection.
#[derive(Debug)]
pub struct HoldState {
    pub(crate) retry_times: Mutex<ConnectionRetryTimes>,
    /// Maximum of rejections that are delayed on it at a time.
    pub(crate) max_held: usize,
}

impl HoldState {
    /// The state of a new connection that may have this many concurrent requests. At most half of
    /// them may be delayed, but always one.
    #[must_use]
    pub fn new(requests_at_a_time: usize) -> Self {
        Self {
            retry_times: Mutex::default(),
            max_held: (requests_at_a_time / 2).max(1),
        }
    }
}

/// Slots for rejected requests of a connection whose bodies are drained.
#[derive(Debug)]
pub struct BodyDrainSlots(pub(crate) Semaphore);

impl Default for BodyDrainSlots {
    fn default() -> Self {
        Self(Semaphore::new(BODY_DRAINS_PER_CONNECTION))
    }
}
