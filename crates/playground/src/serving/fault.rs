//! Faults of the API server, for rehearsals: what clients get and operators see when it fails.
//!
//! Pure: [`Fault`] is what is wrong, and [`FaultState`] what that means for connections and
//! requests. `server::faulty` lets it happen.

use crate::request::{ApiRoute, QueryParameters};
use http::Method;
use std::fmt;
use std::time::Duration;

/// What a write, or a read that etcd has to confirm, takes in addition while etcd is slow.
const ETCD_DELAY: Duration = Duration::from_secs(2);

/// A fault of the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// New connections show a certificate of another CA.
    CaChanged,
    /// New connections show a certificate that has expired.
    CertificateExpired,
    /// It does not answer in HTTP.
    Garbage,
    /// It answers nothing, health checks included.
    Hang,
    /// It sends the head of each response but not the body. Health checks pass.
    HangAfterHead,
    /// It refuses every HTTP/2 stream.
    NoStreams,
    /// `/readyz` fails. All else is served.
    NotReady,
    /// Nothing listens.
    Refuse,
    /// It resets the connection of each request.
    Reset,
    /// It answers 500. Health checks pass.
    ServerError,
    /// As kube-apiserver: `/readyz` fails and all else is served; a little later open connections
    /// end gracefully, and nothing listens.
    Shutdown,
    /// Writes, and reads that etcd has to confirm, are slow.
    SlowEtcd,
    /// It answers 429. Health checks pass.
    TooManyRequests,
}

/// A name that is no fault's. It displays as the names that are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFault;

impl Fault {
    /// All faults, by name.
    pub const ALL: [Self; 13] = [
        Self::TooManyRequests,
        Self::ServerError,
        Self::CaChanged,
        Self::CertificateExpired,
        Self::Garbage,
        Self::Hang,
        Self::HangAfterHead,
        Self::NoStreams,
        Self::NotReady,
        Self::Refuse,
        Self::Reset,
        Self::Shutdown,
        Self::SlowEtcd,
    ];

    /// The name that operators give.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CaChanged => "ca-changed",
            Self::CertificateExpired => "certificate-expired",
            Self::Garbage => "garbage",
            Self::Hang => "hang",
            Self::HangAfterHead => "hang-after-head",
            Self::NoStreams => "no-streams",
            Self::NotReady => "not-ready",
            Self::Refuse => "refuse",
            Self::Reset => "reset",
            Self::ServerError => "500",
            Self::Shutdown => "shutdown",
            Self::SlowEtcd => "slow-etcd",
            Self::TooManyRequests => "429",
        }
    }

    /// The fault of this name; `None` for `none`, which ends one.
    ///
    /// # Errors
    /// There is no such fault.
    pub fn parse(name: &str) -> Result<Option<Self>, UnknownFault> {
        let mut faults = Self::ALL.into_iter();
        match name {
            "none" => Ok(None),
            name => faults
                .find(|one| one.name() == name)
                .map(Some)
                .ok_or(UnknownFault),
        }
    }
}

impl fmt::Display for UnknownFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("none")?;
        Fault::ALL
            .iter()
            .try_for_each(|fault| write!(f, ", {}", fault.name()))
    }
}

impl std::error::Error for UnknownFault {}

/// The fault in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultState {
    pub(crate) fault: Option<Fault>,
    /// Whether a shutdown has come to its end: the server has stopped, and nothing listens.
    pub(crate) has_shut_down: bool,
}

/// How a fault ends the connections that are open when it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// At once.
    Abort,
    /// With GOAWAY or `Connection: close`; requests in flight finish.
    Graceful,
}

/// What a fault does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestEffect {
    Delay(Duration),
    Hang,
    HangAfterHead,
    NotReady,
    Reset,
    ServerError,
    TooManyRequests,
}

impl FaultState {
    pub(crate) fn accepts_connections(self) -> bool {
        self.fault != Some(Fault::Refuse) && !self.has_shut_down
    }

    /// How it ends open connections, if it does. (A shutdown stops the server.)
    pub(crate) const fn connection_end(self) -> Option<ConnectionEnd> {
        match self.fault {
            Some(Fault::Garbage | Fault::Refuse | Fault::Reset) => Some(ConnectionEnd::Abort),
            Some(Fault::CaChanged | Fault::CertificateExpired) => Some(ConnectionEnd::Graceful),
            Some(
                Fault::Hang
                | Fault::HangAfterHead
                | Fault::NoStreams
                | Fault::NotReady
                | Fault::ServerError
                | Fault::Shutdown
                | Fault::SlowEtcd
                | Fault::TooManyRequests,
            )
            | None => None,
        }
    }

    /// What it does to a request.
    pub(crate) fn effect(
        self,
        method: &Method,
        route: &ApiRoute,
        query: &QueryParameters,
    ) -> Option<RequestEffect> {
        let is_health_check = matches!(route, ApiRoute::Health(_));
        let unless_health_check = |effect| (!is_health_check).then_some(effect);
        match self.fault? {
            Fault::CaChanged
            | Fault::CertificateExpired
            | Fault::Garbage
            | Fault::NoStreams
            | Fault::Refuse => None,
            Fault::Hang => Some(RequestEffect::Hang),
            Fault::HangAfterHead => unless_health_check(RequestEffect::HangAfterHead),
            Fault::NotReady | Fault::Shutdown => {
                let is_readyz = matches!(route, ApiRoute::Health("readyz"));
                is_readyz.then_some(RequestEffect::NotReady)
            }
            Fault::Reset => Some(RequestEffect::Reset),
            Fault::ServerError => unless_health_check(RequestEffect::ServerError),
            Fault::SlowEtcd => {
                needs_etcd(method, route, query).then_some(RequestEffect::Delay(ETCD_DELAY))
            }
            Fault::TooManyRequests => unless_health_check(RequestEffect::TooManyRequests),
        }
    }
}

/// Whether etcd takes part in a request: in each write, and in a read without a resource version,
/// which must be of the newest one. A watch and other reads are served from the watch cache.
fn needs_etcd(method: &Method, route: &ApiRoute, query: &QueryParameters) -> bool {
    let ApiRoute::Resource(target) = route else {
        return false;
    };
    match target.verb(method, query) {
        "watch" => false,
        "get" | "list" => query.first("resourceVersion").is_none(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(fault: Fault, method: &Method, target: &str) -> Option<RequestEffect> {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let state = FaultState {
            fault: Some(fault),
            has_shut_down: false,
        };
        let query = QueryParameters::parse(Some(query));
        state.effect(method, &ApiRoute::parse(path), &query)
    }

    #[test]
    fn every_fault_has_a_name_of_its_own_and_none_ends_one() {
        for fault in Fault::ALL {
            assert_eq!(Fault::parse(fault.name()), Ok(Some(fault)));
        }
        assert_eq!(Fault::parse("none"), Ok(None));
        assert_eq!(Fault::parse("hangs"), Err(UnknownFault));
        let names = UnknownFault.to_string();
        assert!(names.starts_with("none, 429, 500, ca-changed, "), "{names}");
    }

    #[test]
    fn health_checks_pass_unless_they_are_what_fails() {
        let effects = |target| {
            let faults = Fault::ALL.into_iter();
            let effects = faults.filter_map(|fault| effect(fault, &Method::GET, target));
            effects.collect::<Vec<_>>()
        };
        assert_eq!(
            effects("/readyz"),
            [
                RequestEffect::Hang,
                RequestEffect::NotReady,
                RequestEffect::Reset,
                RequestEffect::NotReady
            ]
        );
        assert_eq!(
            effects("/livez"),
            [RequestEffect::Hang, RequestEffect::Reset]
        );
        assert_eq!(
            effects("/api/v1/pods"),
            [
                RequestEffect::TooManyRequests,
                RequestEffect::ServerError,
                RequestEffect::Hang,
                RequestEffect::HangAfterHead,
                RequestEffect::Reset,
                RequestEffect::Delay(ETCD_DELAY)
            ]
        );
    }

    #[test]
    fn a_slow_etcd_delays_writes_and_reads_of_the_newest_version() {
        for (method, target, slow) in [
            (Method::GET, "/api/v1/pods", true),
            (Method::GET, "/api/v1/namespaces/default", true),
            (Method::POST, "/api/v1/namespaces/default/configmaps", true),
            (Method::GET, "/api/v1/pods?resourceVersion=0", false),
            (Method::GET, "/api/v1/pods?watch=1", false),
            (Method::GET, "/version", false),
        ] {
            let effect = effect(Fault::SlowEtcd, &method, target);
            assert_eq!(effect.is_some(), slow, "{method} {target}");
        }
    }
}
