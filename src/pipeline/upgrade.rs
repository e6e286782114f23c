//! Protocol upgrades: the request, its rate limit, and the tunnel.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use http::header;
use http::request;
use hyper::upgrade::OnUpgrade;

use crate::identity::Authentication;
use crate::pipeline::components::Pipeline;
use crate::pipeline::connection::peer::Peer;
use crate::pipeline::reject::rejection::RequestRejection;
use crate::pipeline::response::body::Body;
use crate::pipeline::response::deadlines::Deadlines;
use crate::pipeline::response::deadlines::Expire;
use crate::pipeline::response::deadlines::Transfer;
use crate::pipeline::response::deadlines::TransferPhase;
use crate::pipeline::response::in_flight::ResponseGuard;
use crate::upstream::ForwardError;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::forward::upgrade;
use crate::upstream::forward::upgrade::TunnelProgress;
use crate::upstream::headers;

/// Removes the connection's own headers and with them the requested upgrade. Without `Connection`
/// (which the HTTP library rejects on HTTP/2) there is no upgrade, and the headers stay until the
/// request is forwarded.
pub(super) fn take_upgrade(head: &mut request::Parts) -> Option<(HeaderValue, OnUpgrade)> {
    if !head.headers.contains_key(header::CONNECTION) {
        return None;
    }
    let protocol = headers::strip_hop_by_hop(&mut head.headers);
    let upgrade = head.extensions.remove::<OnUpgrade>();
    protocol.zip(upgrade)
}

/// Whether a request asks for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedUpgrade {
    /// No upgrade is requested.
    NotRequested,
    /// An upgrade with a credential that the API server has accepted, or of a user that weir
    /// asserts.
    Verified,
    /// An upgrade without a credential or with an unverified one.
    Unverified,
}

impl Pipeline {
    pub(super) fn requested_upgrade<T>(
        &self,
        authentication: &Authentication,
        upgrade: Option<T>,
    ) -> RequestedUpgrade {
        match upgrade {
            None => RequestedUpgrade::NotRequested,
            Some(_) if self.is_verified(authentication) => RequestedUpgrade::Verified,
            Some(_) => RequestedUpgrade::Unverified,
        }
    }

    /// Checks the rate of protocol upgrades of clients without a verified credential.
    pub(super) fn check_upgrade_rate(
        &self,
        peer: &Peer,
        now: Instant,
    ) -> Result<(), RequestRejection> {
        let admitted = self.upgrade_rate.admit(peer.source_network(), now);
        admitted.map_err(RequestRejection::Limit)
    }
}

/// The client's side of a tunnel, if the response starts one.
pub(super) fn tunnel_client(
    status: StatusCode,
    upgrade: Option<(HeaderValue, OnUpgrade)>,
) -> Result<Option<OnUpgrade>, ForwardError> {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(None);
    }
    let (_, client) = upgrade.ok_or(ForwardError::UnexpectedUpgrade)?;
    Ok(Some(client))
}

/// Responds 101 and copies bytes in both directions from then on.
pub(super) fn start_tunnel(
    mut response: Response<ResponseBody>,
    client: OnUpgrade,
    mut guard: ResponseGuard,
    deadlines: &Arc<Deadlines>,
) -> Response<Body> {
    let upstream = hyper::upgrade::on(&mut response);
    let protocol = headers::strip_hop_by_hop(response.headers_mut());
    let progress = Arc::<TunnelProgress>::default();
    let expirable: Arc<dyn Expire> = Arc::<TunnelProgress>::clone(&progress);
    let deadline_guard = deadlines.register(None, expirable);
    tokio::spawn(async move {
        let record_sent = |bytes| guard.trace.record_sent(bytes);
        upgrade::run_tunnel(client, upstream, &progress, record_sent).await;
        drop((guard, deadline_guard));
    });
    let mut response = response.map(|_| Body::fixed(Bytes::new()));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::UPGRADE, protocol);
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    }
    response
}

impl Expire for TunnelProgress {
    fn expire(&self) {
        self.shutdown();
    }

    fn transfer(&self) -> Option<Transfer> {
        Some(Transfer {
            phase: TransferPhase::Tunnel,
            bytes: self.bytes(),
            waiting_for_client: self.is_write_blocked(),
        })
    }
}
