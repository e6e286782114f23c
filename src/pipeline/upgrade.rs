//! A change of protocol: what asks for it, and the tunnel that it becomes.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::HeaderValue;
use http::Response;
use http::StatusCode;
use http::header;
use http::request;
use hyper::upgrade::OnUpgrade;

use crate::identity::Known;
use crate::pipeline::Peer;
use crate::pipeline::Pipeline;
use crate::pipeline::body::Body;
use crate::pipeline::overdue::Expire;
use crate::pipeline::overdue::Overdue;
use crate::pipeline::overdue::Phase;
use crate::pipeline::overdue::Transfer;
use crate::pipeline::refusal::Refusal;
use crate::pipeline::request_body;
use crate::pipeline::riding::Riding;
use crate::upstream::ForwardError;
use crate::upstream::body::AnswerBody;
use crate::upstream::headers;
use crate::upstream::upgrade;
use crate::upstream::upgrade::TunnelProgress;

/// Takes the connection's own headers off, and the wish to change the protocol with them. Without `Connection` (which the library
/// refuses on HTTP/2) there is no such wish, and they may stay on until the request goes on.
pub(super) fn upgrade_of(head: &mut request::Parts) -> Option<(HeaderValue, OnUpgrade)> {
    if !head.headers.contains_key(header::CONNECTION) {
        return None;
    }
    let protocol = headers::strip_hop_by_hop(&mut head.headers);
    let upgrade = head.extensions.remove::<OnUpgrade>();
    protocol.zip(upgrade)
}

/// Whether a request asks for another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsksUpgrade {
    /// It does not.
    No,
    /// With a credential that the API server has accepted, or that weir vouches for.
    Proven,
    /// With none, or one that is not known.
    Unproven,
}

impl Pipeline {
    pub(super) fn asks_upgrade<T>(&self, known: &Known, upgrade: Option<T>) -> AsksUpgrade {
        match upgrade {
            None => AsksUpgrade::No,
            Some(_) if self.is_proven(known) => AsksUpgrade::Proven,
            Some(_) => AsksUpgrade::Unproven,
        }
    }

    /// Checks the rate of protocol upgrades of clients without a proven credential.
    pub(super) fn pass_upgrade_rate(&self, peer: &Peer, now: Instant) -> Result<(), Refusal> {
        let admitted = self.upgrades.admit(request_body::source(peer), now);
        admitted.map_err(Refusal::Rejected)
    }
}

/// The client's side of a tunnel, if the answer begins one.
pub(super) fn switched(
    status: StatusCode,
    upgrade: Option<(HeaderValue, OnUpgrade)>,
) -> Result<Option<OnUpgrade>, ForwardError> {
    if status != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(None);
    }
    let (_, client) = upgrade.ok_or(ForwardError::Unasked)?;
    Ok(Some(client))
}

/// Answers 101 and passes bytes both ways from then on.
pub(super) fn switch(
    mut response: Response<AnswerBody>,
    client: OnUpgrade,
    mut riding: Riding,
    overdue: &Arc<Overdue>,
) -> Response<Body> {
    let upstream = hyper::upgrade::on(&mut response);
    let protocol = headers::strip_hop_by_hop(response.headers_mut());
    let progress = Arc::<TunnelProgress>::default();
    let ended: Arc<dyn Expire> = Arc::<TunnelProgress>::clone(&progress);
    let entered = overdue.enter(None, ended);
    tokio::spawn(async move {
        let passed = |bytes| riding.trace.passed(bytes);
        upgrade::tunnel(client, upstream, &progress, passed).await;
        drop((riding, entered));
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
        self.end();
    }

    fn transfer(&self) -> Option<Transfer> {
        Some(Transfer {
            phase: Phase::Tunnel,
            bytes: self.bytes(),
            awaited: self.is_awaited(),
        })
    }
}
