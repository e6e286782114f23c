//! The addresses of the API servers from the EndpointSlices of the Service `default/kubernetes`:
//! listed, then watched with weir's own credentials. Each event leads to another list, and so does a
//! change of the servers.
//!
//! Promises: addresses that are known stay until a list has others.

use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use http::uri::PathAndQuery;
use serde::{Deserialize, Deserializer};
use tracing::{info, warn};

use crate::upstream::forward::api_server_client::ApiServerClient;
use crate::upstream::servers::server_set::ServerSet;

/// The slices of the Service.
const PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";

/// How long a watch lasts, in seconds: less than the client's time limit for a streamed response.
const WATCH_SECONDS: u32 = 25;

/// The pause after a failure, and after a list without a watch.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The pause after a rejection for lack of a right, which needs an operator.
const FORBIDDEN_INTERVAL: Duration = Duration::from_secs(30);

/// The shortest time between two lists.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// Largest list in bytes; a slice with a hundred endpoints has 20 KiB.
const MAX_LIST_BYTES: usize = 1 << 20;

/// Follows the EndpointSlices until the future is dropped.
///
/// # Cancel safety
/// Nothing is lost.
pub(crate) async fn run(client: ApiServerClient, servers: Arc<ServerSet>) {
    let mut failing = false;
    loop {
        match list(&client).await {
            Ok(found) => {
                if std::mem::take(&mut failing) {
                    info!("the EndpointSlices of the API servers can be read again");
                }
                servers.record_discovered(found.addresses);
                let mut changes = servers.changes();
                let watched = tokio::select! {
                    watched = watch(&client, &found.resource_version) => watched,
                    // The watch may be on a server that was removed, or on another cluster.
                    _ = changes.changed() => true,
                };
                let pause = if watched {
                    MIN_INTERVAL
                } else {
                    RETRY_INTERVAL
                };
                tokio::time::sleep(pause).await;
            }
            Err(failure) => {
                if !std::mem::replace(&mut failing, true) {
                    log_failure(&failure);
                }
                tokio::time::sleep(failure.pause).await;
            }
        }
    }
}

struct ListFailure {
    why: String,
    pause: Duration,
    /// Whether weir's own user lacks the right.
    is_forbidden: bool,
}

impl ListFailure {
    const fn new(why: String, pause: Duration) -> Self {
        Self {
            why,
            pause,
            is_forbidden: false,
        }
    }

    fn from_status(code: StatusCode) -> Self {
        let why = format!("the API server answers {code}");
        match code {
            StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED => Self {
                is_forbidden: true,
                ..Self::new(why, FORBIDDEN_INTERVAL)
            },
            _ => Self::new(why, RETRY_INTERVAL),
        }
    }
}

fn log_failure(failure: &ListFailure) {
    let why = &*failure.why;
    if failure.is_forbidden {
        warn!(
            why,
            "the EndpointSlices of the API servers cannot be read; weir's own user needs the verbs list and watch for \
             endpointslices.discovery.k8s.io in the namespace default. The addresses that are known stay"
        );
    } else {
        warn!(
            why,
            "the EndpointSlices of the API servers cannot be read; the addresses that are known stay"
        );
    }
}

async fn list(client: &ApiServerClient) -> Result<FoundAddresses, ListFailure> {
    let mut body = Vec::new();
    let sink = |data: &[u8]| {
        body.extend_from_slice(data);
        match body.len() {
            ..=MAX_LIST_BYTES => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    };
    let result = client
        .stream(PathAndQuery::from_static(PATH), None, sink)
        .await;
    let failed = |why: String, pause| Err(ListFailure::new(why, pause));
    match result {
        Err(why) => failed(why.to_string(), RETRY_INTERVAL),
        Ok((StatusCode::OK, ControlFlow::Continue(()))) => {
            parse_list(&body).or_else(|why| failed(why, RETRY_INTERVAL))
        }
        Ok((StatusCode::OK, ControlFlow::Break(()))) => {
            failed("the list is too long".to_owned(), FORBIDDEN_INTERVAL)
        }
        Ok((code, _)) => Err(ListFailure::from_status(code)),
    }
}

/// Waits for a change, or for the end of the watch. Returns whether there was a watch.
async fn watch(client: &ApiServerClient, resource_version: &str) -> bool {
    let valid = resource_version
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric());
    let path = format!(
        "{PATH}&watch=1&timeoutSeconds={WATCH_SECONDS}&resourceVersion={}",
        if valid { resource_version } else { "" }
    );
    let Ok(path) = PathAndQuery::from_maybe_shared(path) else {
        return false;
    };
    let result = client.stream(path, None, |_| ControlFlow::Break(())).await;
    matches!(result, Ok((StatusCode::OK, _)))
}

/// The addresses in a list.
#[derive(Debug, PartialEq, Eq)]
struct FoundAddresses {
    addresses: Vec<SocketAddr>,
    resource_version: String,
}

/// Go writes an empty slice as null.
fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Deserialize)]
struct SliceList {
    #[serde(default, deserialize_with = "null_as_default")]
    metadata: SliceListMeta,
    #[serde(default, deserialize_with = "null_as_default")]
    items: Vec<Slice>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SliceListMeta {
    resource_version: String,
}

#[derive(Deserialize)]
struct Slice {
    #[serde(default, deserialize_with = "null_as_default")]
    endpoints: Vec<Endpoint>,
    #[serde(default, deserialize_with = "null_as_default")]
    ports: Vec<EndpointPort>,
}

#[derive(Deserialize)]
struct Endpoint {
    #[serde(default, deserialize_with = "null_as_default")]
    addresses: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    conditions: Conditions,
}

#[derive(Default, Deserialize)]
struct Conditions {
    /// Absent means ready.
    ready: Option<bool>,
}

#[derive(Deserialize)]
struct EndpointPort {
    #[serde(default)]
    name: Option<String>,
    port: Option<u16>,
}

/// The ready addresses of a list, with the port that is named `https`, or the only one.
fn parse_list(body: &[u8]) -> Result<FoundAddresses, String> {
    let list: SliceList =
        serde_json::from_slice(body).map_err(|why| format!("not an EndpointSliceList: {why}"))?;
    let mut addresses = Vec::new();
    for slice in &list.items {
        let mut ports = slice.ports.iter();
        let port = match &*slice.ports {
            [only] => only.port,
            _ => ports
                .find(|port| port.name.as_deref() == Some("https"))
                .and_then(|port| port.port),
        };
        let Some(port) = port else { continue };
        let ready = slice
            .endpoints
            .iter()
            .filter(|endpoint| endpoint.conditions.ready != Some(false));
        for address in ready.flat_map(|endpoint| &endpoint.addresses) {
            let ip = address.parse::<IpAddr>();
            addresses.extend(ip.map(|ip| SocketAddr::new(ip, port)));
        }
    }
    Ok(FoundAddresses {
        addresses,
        resource_version: list.metadata.resource_version,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_ready_addresses_of_all_slices() {
        let body = br#"{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"42"},"items":[
            {"metadata":{"name":"kubernetes"},"addressType":"IPv4","ports":[{"name":"https","port":6443,"protocol":"TCP"}],
             "endpoints":[{"addresses":["10.0.0.1"],"conditions":{"ready":true}},{"addresses":["10.0.0.2"],"conditions":{}},
                          {"addresses":["10.0.0.3"],"conditions":{"ready":false}},{"addresses":["10.0.0.4"]}]},
            {"addressType":"IPv6","ports":[{"name":"metrics","port":1},{"name":"https","port":443}],"endpoints":[{"addresses":["fd00::1"]}]},
            {"addressType":"FQDN","ports":[{"port":443}],"endpoints":[{"addresses":["api.example"]}]},
            {"addressType":"IPv4","ports":[],"endpoints":[{"addresses":["10.0.0.9"]}]}]}"#;
        let found = parse_list(body).unwrap();
        let expected = [
            "10.0.0.1:6443",
            "10.0.0.2:6443",
            "10.0.0.4:6443",
            "[fd00::1]:443",
        ];
        let expected: Vec<SocketAddr> = expected.iter().map(|s| s.parse().unwrap()).collect();
        assert_eq!(found.addresses, expected);
        assert_eq!(found.resource_version, "42");
    }

    #[test]
    fn null_is_empty() {
        let body = br#"{"metadata":null,"items":[
            {"endpoints":null,"ports":[{"name":"https","port":6443}]},
            {"endpoints":[{"addresses":["10.0.0.9"]}],"ports":null},
            {"endpoints":[{"addresses":null},{"addresses":["10.0.0.1"],"conditions":null}],"ports":[{"name":null,"port":6443}]}]}"#;
        let expected: SocketAddr = "10.0.0.1:6443".parse().unwrap();
        assert_eq!(parse_list(body).unwrap().addresses, [expected]);
        assert_eq!(parse_list(br#"{"items":null}"#).unwrap().addresses, []);
    }

    #[test]
    fn only_a_lack_of_rights_is_reported_as_one() {
        for (code, is_forbidden) in [(401, true), (403, true), (404, false), (503, false)] {
            let failure = ListFailure::from_status(StatusCode::from_u16(code).unwrap());
            assert_eq!(failure.is_forbidden, is_forbidden, "{code}");
        }
    }

    #[test]
    fn an_empty_list_has_none_and_anything_else_is_an_error() {
        assert_eq!(parse_list(b"{}").unwrap().addresses, []);
        assert!(parse_list(b"[1").is_err());
        assert!(parse_list(br#"{"items":1}"#).is_err());
    }
}
