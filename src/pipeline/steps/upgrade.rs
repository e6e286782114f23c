//! Protocol upgrades: the request and the tunnel.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, request};
use hyper::upgrade::OnUpgrade;

use crate::identity::client_certificate::trust::TrustLoss;
use crate::pipeline::connection::peer::Peer;
use crate::pipeline::response::body::Body;
use crate::pipeline::response::deadlines::{
    Deadlines, Expire, SlowTransfer, Transfer, TransferPhase,
};
use crate::pipeline::response::in_flight::ResponseGuard;
use crate::pipeline::trace::lever_subject::LeverSubject;
use crate::upstream::body::response_body::ResponseBody;
use crate::upstream::forward::upgrade;
use crate::upstream::forward::upgrade::TunnelProgress;
use crate::upstream::{ForwardError, headers};

/// A client's request for another protocol.
pub(crate) struct UpgradeRequest {
    /// The value of `Upgrade`.
    pub(crate) protocol: HeaderValue,
    /// The client's connection, once weir has responded 101.
    pub(crate) client: TunnelClient,
}

/// Removes the connection's own headers and with them the requested upgrade. Without `Connection`
/// (which the HTTP library rejects on HTTP/2) there is no upgrade, and the headers stay until the
/// request is forwarded.
pub(crate) fn take_upgrade(head: &mut request::Parts, peer: &Peer) -> Option<UpgradeRequest> {
    if !head.headers.contains_key(header::CONNECTION) {
        return None;
    }
    let protocol = headers::strip_hop_by_hop(&mut head.headers);
    let connection = head.extensions.remove::<OnUpgrade>();
    let client = connection.map(|connection| TunnelClient {
        connection,
        trust_loss: peer.trust_loss(),
    });
    let (protocol, client) = protocol.zip(client)?;
    Some(UpgradeRequest { protocol, client })
}

/// The client's side of a tunnel, once there is one.
pub(crate) struct TunnelClient {
    connection: OnUpgrade,
    /// Ends the tunnel when the client's certificate is not trusted any more.
    trust_loss: TrustLoss,
}

/// Whether a request asks for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestedUpgrade {
    /// No upgrade is requested.
    NotRequested,
    /// An upgrade with a credential that the API server has accepted, or of a user that weir
    /// asserts.
    Verified,
    /// An upgrade without a credential or with an unverified one.
    Unverified,
}

/// The client's side of a tunnel, if the response starts one.
pub(crate) fn tunnel_client(
    status: StatusCode,
    upgrade: Option<UpgradeRequest>,
) -> Result<Option<TunnelClient>, ForwardError> {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(None);
    }
    let upgrade = upgrade.ok_or(ForwardError::UnexpectedUpgrade)?;
    Ok(Some(upgrade.client))
}

/// Responds 101 and copies bytes in both directions from then on.
pub(crate) fn start_tunnel(
    mut response: Response<ResponseBody>,
    client: TunnelClient,
    mut guard: Box<ResponseGuard>,
    may_pause: bool,
    deadlines: &Arc<Deadlines>,
) -> Response<Body> {
    let TunnelClient {
        connection,
        trust_loss,
    } = client;
    let upstream = hyper::upgrade::on(&mut response);
    let protocol = headers::strip_hop_by_hop(response.headers_mut());
    let tunnel = Arc::new(Tunnel {
        progress: TunnelProgress::default(),
        may_pause,
        subject: guard.trace.lever_subject().map(LeverSubject::of_tunnel),
        slow: OnceLock::new(),
    });
    let expirable: Arc<dyn Expire> = Arc::<Tunnel>::clone(&tunnel);
    let deadline_guard = deadlines.register(None, expirable);
    tokio::spawn(async move {
        let record_sent = |bytes| guard.trace.record_sent(bytes);
        let running = upgrade::run_tunnel(connection, upstream, &tunnel.progress, record_sent);
        tokio::select! {
            () = running => {}
            () = trust_loss => {}
        }
        if let Some(slow) = tunnel.slow.get() {
            guard.trace.record_slow_transfer(slow.flag, slow.bytes);
        }
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

/// A tunnel, as its deadline sees it.
struct Tunnel {
    progress: TunnelProgress,
    may_pause: bool,
    subject: Option<LeverSubject>,
    /// Why it has ended, if its client was too slow.
    slow: OnceLock<SlowTransfer>,
}

impl Expire for Tunnel {
    fn expire(&self, slow: Option<SlowTransfer>) {
        if let Some(slow) = slow {
            let _ = self.slow.set(slow); // the first one counts
        }
        self.progress.shutdown();
    }

    fn lever_subject(&self) -> Option<LeverSubject> {
        self.subject.clone()
    }

    fn transfer(&self) -> Option<Transfer> {
        let (bytes, blocked) = (self.progress.bytes(), self.progress.is_write_blocked());
        Some(Transfer {
            may_pause: self.may_pause,
            ..Transfer::new(TransferPhase::Tunnel, bytes, blocked)
        })
    }
}
