//! What weir finds out about the API servers once and says in its log: their version and, since one
//! address may stand for several, their number.

use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use tracing::info;

use crate::identity::transport::RemoteResponse;
use crate::limits::total_finder::TotalFinder;
use crate::upstream::forward::api_server_client::ApiServerClient;
use crate::upstream::servers::server_set::ServerSet;
use weir_base::clock::Clock;
use weir_kubernetes::numeric::{saturating_i64, saturating_u64};

/// The interval at which the API servers are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(60);

pub(crate) const VERSION_PATH: &str = "/version";

/// The Leases that each kube-apiserver of a cluster keeps.
const IDENTITY_LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";

/// The most API servers that Leases stand for. Others than API servers may write such Leases, and the
/// bound of the total grows with their number.
const MAX_SERVERS: usize = 64;

/// The longest duration of a Lease that counts: kube-apiserver's.
const MAX_LEASE_SECONDS: i64 = 3600;

/// How far the clock of an API server may be ahead of weir's.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

/// Reads what there is to know of the API servers.
pub(crate) struct ServerFacts {
    pub(crate) finder: Arc<TotalFinder>,
    pub(crate) servers: Arc<ServerSet>,
    /// With weir's own credentials.
    pub(crate) calls: ApiServerClient,
}

impl ServerFacts {
    /// Runs until it is dropped.
    pub(crate) async fn run(self) {
        tokio::join!(self.log_version(), self.count_periodically());
    }

    /// Logs the version of an API server once it has said it.
    async fn log_version(&self) {
        let mut ready = self.calls.ready_events();
        loop {
            ready.mark_unchanged();
            let path = PathAndQuery::from_static(VERSION_PATH);
            let answer = self.calls.send_json(Method::GET, path, None).await;
            let version = answer.ok().and_then(|answer| git_version(&answer));
            if let Some(version) = version {
                info!(%version, "the API server's version");
                return;
            }
            if ready.changed().await.is_err() {
                return;
            }
        }
    }

    async fn count_periodically(&self) {
        let mut is_denied = false;
        loop {
            let known = saturating_u64(self.servers.list().servers.len());
            let counted = match known {
                0 | 1 if !self.servers.are_local() => count_live(&self.calls).await,
                _ => Some(Ok(known)),
            };
            match counted {
                Some(Ok(servers)) => self.finder.record_servers(servers),
                Some(Err(StatusCode::FORBIDDEN)) if !is_denied => {
                    is_denied = true;
                    info!(
                        "may not list Leases in kube-system (coordination.k8s.io leases, list): an address of the API server counts as one server"
                    );
                }
                Some(Err(_)) | None => {}
            }
            tokio::time::sleep(COUNT_INTERVAL).await;
        }
    }
}

/// The version in an answer of `/version`, such as `v1.36.0`.
pub(crate) fn git_version(reply: &RemoteResponse) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ServerVersion {
        git_version: String,
    }
    let version: ServerVersion = serde_json::from_slice(&reply.body).ok()?;
    Some(version.git_version)
}

/// The API servers whose Leases are live, or the status of the refusal. `None`: there is no answer.
pub(crate) async fn count_live(calls: &ApiServerClient) -> Option<Result<u64, StatusCode>> {
    let path = PathAndQuery::from_static(IDENTITY_LEASES);
    let leases = calls.send_json(Method::GET, path, None).await.ok()?;
    if leases.status != StatusCode::OK {
        return Some(Err(leases.status));
    }
    let now = Timestamp::try_from(Clock.wall()).ok()?;
    Some(Ok(live_leases(&leases.body, now)))
}

#[derive(Deserialize)]
struct IdentityLeases {
    #[serde(default)]
    items: Vec<IdentityLease>,
}

#[derive(Deserialize)]
struct IdentityLease {
    spec: IdentityLeaseSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityLeaseSpec {
    renew_time: Option<String>,
    lease_duration_seconds: Option<i64>,
}

/// The Leases of a list that have not expired, at least one and at most [`MAX_SERVERS`].
fn live_leases(list: &[u8], now: Timestamp) -> u64 {
    let list: IdentityLeases =
        serde_json::from_slice(list).unwrap_or(IdentityLeases { items: Vec::new() });
    let is_live = |lease: &&IdentityLease| {
        let IdentityLeaseSpec {
            renew_time: renewed,
            lease_duration_seconds: seconds,
        } = &lease.spec;
        let renewed: Option<Timestamp> = renewed.as_ref().and_then(|time| time.parse().ok());
        let Some((renewed, seconds)) = renewed.zip(*seconds) else {
            return false;
        };
        let age = now.duration_since(renewed).as_secs();
        let is_future = -age > saturating_i64(MAX_CLOCK_DIFFERENCE.as_secs());
        !is_future && seconds <= MAX_LEASE_SECONDS && age <= seconds
    };
    let live = list.items.iter().filter(is_live).count();
    saturating_u64(live.clamp(1, MAX_SERVERS))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn expired_leases_of_api_servers_do_not_count() {
        let lease =
            |renewed: &str| json!({"spec": {"renewTime": renewed, "leaseDurationSeconds": 3600}});
        let now: Timestamp = "2026-11-27T12:00:00Z".parse().unwrap();
        let list = json!({"items": [
            lease("2026-11-27T11:59:55.123456Z"),
            lease("2026-11-27T11:00:01Z"),
            lease("2026-11-27T10:59:58Z"),
            {"spec": {}},
        ]});
        assert_eq!(live_leases(list.to_string().as_bytes(), now), 2);
        assert_eq!(live_leases(b"{}", now), 1);
        assert_eq!(live_leases(b"no JSON", now), 1);
    }

    #[test]
    fn leases_that_no_api_server_writes_do_not_count_for_ever_and_not_without_bound() {
        let lease = |renewed: &str, seconds: i64| json!({"spec": {"renewTime": renewed, "leaseDurationSeconds": seconds}});
        let now: Timestamp = "2026-11-27T12:00:00Z".parse().unwrap();
        let live = |leases: &[Value]| {
            let list = json!({ "items": leases });
            live_leases(list.to_string().as_bytes(), now)
        };
        let right = lease("2026-11-27T11:59:55Z", 3600);
        let ahead = lease("2026-11-27T12:00:30Z", 3600);
        let future = lease("2026-11-27T12:01:01Z", 3600);
        let long = lease("2026-11-27T11:59:55Z", i64::MAX);
        assert_eq!(live(&[right.clone(), ahead, future, long]), 2);
        assert_eq!(live(&vec![right; 1000]), 64);
    }
}
