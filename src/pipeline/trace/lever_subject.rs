//! Ends requests in flight that a lever is aimed at: `weir ctl block --now` and `weir ctl disconnect`.
//!
//! A new lever is compared with every request in flight, so a request keeps nothing for it but its
//! record. Nothing is looked at before there is such a lever.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use http::{HeaderValue, Method};

use crate::pipeline::trace::record::Record;
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::AdmissionAttributes;
use weir_limits::RequestSource;
use weir_limits::levers::Lever;

/// What levers match of a request in flight.
#[derive(Clone)]
pub(crate) struct LeverSubject {
    method: Method,
    target: PathAndQuery,
    user: Arc<UserInfo>,
    user_agent: Option<HeaderValue>,
    address: IpAddr,
    is_tunnel: bool,
}

/// How a lever ends a request in flight.
pub(crate) struct LeverEnd {
    /// How long it may still take.
    pub(crate) after: Duration,
    /// Whether the request itself ends, and not only its connection when the request has ended.
    pub(crate) cuts_off: bool,
}

impl LeverSubject {
    /// The subject of a request with this record. `None` if it has no user yet.
    #[must_use]
    pub(crate) fn of_record(record: &Record) -> Option<Self> {
        let user = record.counted_as.as_ref().or(record.user.as_ref())?;
        Some(Self {
            method: record.method.clone(),
            target: record.target.clone(),
            user: Arc::clone(user),
            user_agent: record.user_agent.clone(),
            address: record.peer.ip(),
            is_tunnel: false,
        })
    }

    /// The subject of what has become a tunnel, which does not end by itself.
    #[must_use]
    pub(crate) fn of_tunnel(self) -> Self {
        Self {
            is_tunnel: true,
            ..self
        }
    }

    /// How `lever` ends the request, if it does. `chance` (0 to 1) spreads the ends of many.
    #[must_use]
    pub(crate) fn end_by(&self, lever: &Lever, now: Instant, chance: f64) -> Option<LeverEnd> {
        let target = self.target.as_str().as_bytes();
        let info = RequestInfo::parse(self.method.as_str(), target).ok()?; // it was parsed before
        let attributes = AdmissionAttributes {
            info: &info,
            user: &self.user,
        };
        let source = RequestSource {
            address: self.address,
            user_agent: self.user_agent.as_ref().map_or(b"", HeaderValue::as_bytes),
        };
        let after = lever.ends_in(&attributes, source, now, chance)?;
        Some(LeverEnd {
            after,
            cuts_off: lever.spec.ends_in_flight || self.is_tunnel || info.long_running(),
        })
    }
}
