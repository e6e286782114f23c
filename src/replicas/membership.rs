//! Renews this replica's Lease, and reads those of the others.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::net::{UdpSocket, lookup_host};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::replicas::state::ReplicaState;
use crate::upstream::forward::api_server_client::ApiServerClient;
use weir_agreement::lease::{LeaseContent, LeaseScope, StoredLease, parse_lease, parse_list};
use weir_agreement::message::MAX_REPLICAS;
use weir_agreement::peer::LeaseEntry;
use weir_base::clock::Clock;

/// A Lease is renewed three times in its duration, as client-go's leader election does.
const RENEWALS: u32 = 3;

/// The pause after a failure, and before Leases are read again without peer connections.
const SHORT_PAUSE: Duration = Duration::from_secs(2);

/// The pause after weir was not permitted to use Leases. A permission that an operator adds is found
/// within a minute.
const DENIED_PAUSE: Duration = Duration::from_secs(60);

/// The least time between two reads or writes, whatever changes.
const LEAST_PAUSE: Duration = Duration::from_millis(500);

/// A replica's Lease is deleted when it was not renewed for so many lease times: long after its
/// process is gone, so that a reserved floor does not stay for ever.
const FORGET_AFTER: u32 = 20;

/// Longest list, in bytes: of 256 replicas with the largest annotations that they write.
const MAX_LIST_BYTES: usize = 16 << 20;

/// Longest time for deleting the Lease when weir ends.
const DELETE_TIMEOUT: Duration = Duration::from_secs(1);

/// The membership of this replica.
#[derive(Debug)]
pub(super) struct MembershipTask {
    state: Arc<ReplicaState>,
    calls: ApiServerClient,
    scope: LeaseScope,
    /// Where peers reach this replica.
    address: AdvertisedAddress,
    acquired: Option<String>,
    transitions: u64,
    /// The version of the own Lease, if this process holds it.
    held: Option<String>,
    /// The Lease of another process of the same name that has taken over, and since when it is as
    /// it is.
    taken_over: Option<(String, Instant)>,
    /// Whether messages are exchanged by the Leases: there are no peer connections, or another
    /// replica has none yet.
    in_leases: bool,
    /// The numbers of the others' messages that the own Lease acknowledges.
    answered: BTreeMap<String, u64>,
    /// Whether another replica waits for an acknowledgement in the own Lease.
    owes_answer: bool,
}

/// Where peers reach this replica.
#[derive(Clone, Debug)]
pub(super) enum AdvertisedAddress {
    /// Nowhere: there are no peer connections.
    None,
    /// At this address.
    Known(SocketAddr),
    /// At this port of the address from which the system connects to an API server (`HOST:PORT`).
    OfRoute(u16, String),
}

impl AdvertisedAddress {
    /// The address, if it is known. It is looked up until it is.
    async fn find(&mut self) -> Option<SocketAddr> {
        if let Self::OfRoute(port, server) = self {
            match own_address(server).await {
                Ok(own) => *self = Self::Known(SocketAddr::new(own.ip(), *port)),
                Err(why) => {
                    warn!(%server, "replicas: this one's own address is not known yet: {why}");
                }
            }
        }
        match self {
            Self::Known(address) => Some(*address),
            Self::None | Self::OfRoute(..) => None,
        }
    }
}

/// The address from which the system would send to `server`. Nothing is sent.
async fn own_address(server: &str) -> std::io::Result<SocketAddr> {
    let mut found = lookup_host(server).await?;
    let server = found.next().ok_or(std::io::ErrorKind::NotFound)?;
    let any = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(server).await?;
    socket.local_addr()
}

/// Why a request for Leases failed.
struct LeaseFailure {
    message: String,
    /// Whether weir is not permitted to do this, or the API server has no Leases.
    denied: bool,
}

impl MembershipTask {
    pub(super) fn new(
        state: &Arc<ReplicaState>,
        calls: ApiServerClient,
        address: AdvertisedAddress,
    ) -> Self {
        let config = &state.config;
        Self {
            scope: LeaseScope {
                namespace: config.namespace.clone(),
                group: config.group.clone(),
                seconds: config.lease_time.as_secs(),
            },
            state: Arc::clone(state),
            calls,
            address,
            acquired: None,
            transitions: 0,
            held: None,
            taken_over: None,
            in_leases: config.peers.is_none(),
            answered: BTreeMap::new(),
            owes_answer: false,
        }
    }

    /// Runs until it is dropped.
    pub(super) async fn run(mut self) {
        let period = self.state.config.lease_time / RENEWALS;
        let mut pulses = self.state.pulse.subscribe();
        let mut renew_at = Clock.now();
        loop {
            let mut result = Ok(());
            let has_news = self.in_leases && pulses.has_changed().unwrap_or_default();
            if Clock.now() >= renew_at || has_news || self.owes_answer {
                pulses.mark_unchanged();
                result = self.renew().await;
                renew_at = Clock.now() + jittered(period);
            }
            if result.is_ok() {
                result = self.list().await;
            }
            match result {
                Ok(()) => self.state.lease_succeeded(),
                Err(LeaseFailure { message, denied }) => {
                    let is_off = self.state.lease_failed(message, denied);
                    let pause = if is_off { DENIED_PAUSE } else { SHORT_PAUSE };
                    renew_at = Clock.now() + jittered(pause);
                }
            }
            sleep(LEAST_PAUSE).await;
            let mut pause = renew_at.saturating_duration_since(Clock.now());
            let in_leases = self.in_leases;
            if in_leases {
                pause = pause.min(SHORT_PAUSE);
            }
            if self.owes_answer {
                pause = Duration::ZERO;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.state.list_now.notified() => {}
                _ = pulses.changed(), if in_leases => pulses.mark_changed(),
            }
        }
    }

    /// Writes the own Lease.
    async fn renew(&mut self) -> Result<(), LeaseFailure> {
        if self.held.is_none() {
            self.read_own().await?;
        }
        if self.taken_over.is_some() {
            return Ok(());
        }
        let address = self.address.find().await;
        let sent = Clock.now();
        let message = self.in_leases.then(|| self.state.next_message(sent));
        let now = micro_time();
        let acquired = self.acquired.get_or_insert_with(|| now.clone());
        let content = LeaseContent {
            id: &self.state.id,
            address,
            message: message.as_ref(),
            now: &now,
            acquired,
            transitions: self.transitions,
            replaces: self.held.as_deref().filter(|version| !version.is_empty()),
        };
        let object = content.to_object(&self.scope);
        let (verb, method, path) = match content.replaces {
            Some(_) => (
                "update",
                Method::PUT,
                self.scope.lease_path(&self.state.id.name),
            ),
            None => ("create", Method::POST, self.scope.path()),
        };
        let (status, body) = self.send(verb, method, path, Some(object)).await?;
        match status {
            StatusCode::OK | StatusCode::CREATED => {
                let lease = parse_lease(&self.scope, &body);
                self.held = lease.ok().map(|lease| lease.resource_version);
                self.state
                    .update(|agreement| agreement.renewed(sent, Clock.now()));
                let received = message.map(|message| message.received).unwrap_or_default();
                let received = received.into_iter();
                self.answered = received.map(|(name, last)| (name, last.number)).collect();
                self.owes_answer = false;
                Ok(())
            }
            _ => {
                self.held = None; // it is read again
                Err(self.failure(verb, status))
            }
        }
    }

    /// Finds out whether the own Lease exists, and who holds it. One of an earlier process of this
    /// replica is taken over.
    async fn read_own(&mut self) -> Result<(), LeaseFailure> {
        let path = self.scope.lease_path(&self.state.id.name);
        let (status, body) = self.send("get", Method::GET, path, None).await?;
        let lease = match status {
            StatusCode::OK => parse_lease(&self.scope, &body).map_err(|why| {
                let name = self.scope.lease_name(&self.state.id.name);
                other_failure(format!("the Lease {name} is not a replica's: {why}"))
            })?,
            StatusCode::NOT_FOUND if is_status_of_lease(&body) => {
                // Created, with version "".
                self.hold(String::new());
                return Ok(());
            }
            status => return Err(self.failure("get", status)),
        };
        if lease.id == self.state.id {
            self.transitions = lease.transitions;
            self.hold(lease.resource_version);
        } else if self.acquired.is_none() || self.has_other_ended(&lease) {
            info!(holder = %lease.id.instance, "replicas: takes the Lease of an earlier process over");
            self.acquired = None;
            self.transitions = lease.transitions.saturating_add(1);
            self.hold(lease.resource_version);
        } else {
            self.state
                .update(|agreement| agreement.set_superseded(true));
        }
        Ok(())
    }

    fn hold(&mut self, version: String) {
        self.held = Some(version);
        self.taken_over = None;
        self.state
            .update(|agreement| agreement.set_superseded(false));
    }

    /// Whether the process that has taken the Lease over has not renewed it for a lease time.
    fn has_other_ended(&mut self, lease: &StoredLease) -> bool {
        let now = Clock.now();
        match &self.taken_over {
            Some((renewed, since)) if *renewed == lease.renewed => {
                now.saturating_duration_since(*since) >= self.state.config.lease_time
            }
            _ => {
                self.taken_over = Some((lease.renewed.clone(), now));
                false
            }
        }
    }

    /// Reads all Leases of the group.
    async fn list(&mut self) -> Result<(), LeaseFailure> {
        let sent = Clock.now();
        let mut body = Vec::new();
        let target = target(&self.scope.list_target())?;
        let response = self.calls.stream(target, None, |piece| {
            body.extend_from_slice(piece);
            match body.len() > MAX_LIST_BYTES {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let response = response.await;
        match response.map_err(|why| other_failure(format!("list leases: {why}")))? {
            (StatusCode::OK, ControlFlow::Continue(())) => {}
            (StatusCode::OK, ControlFlow::Break(())) => {
                let limit = MAX_LIST_BYTES >> 20;
                return Err(other_failure(format!(
                    "the list of Leases has more than {limit} MiB"
                )));
            }
            (status, _) => return Err(self.failure("list", status)),
        }
        let now = Clock.now();
        let (leases, wrong) = parse_list(&self.scope, &body)
            .map_err(|why| other_failure(format!("the list of Leases is not readable: {why}")))?;
        for why in wrong {
            debug!("replicas: a Lease is left out: {why}");
        }
        self.read_others(sent, now, leases).await;
        Ok(())
    }

    async fn read_others(&mut self, sent: Instant, now: Instant, leases: Vec<StoredLease>) {
        let others = leases
            .iter()
            .filter(|lease| lease.id.name != self.state.id.name);
        let mut without_address = others.filter(|lease| lease.address.is_none());
        self.in_leases = self.state.config.peers.is_none() || without_address.next().is_some();
        self.owes_answer = self.in_leases && leases.iter().any(|lease| self.is_waiting(lease));
        let mut addresses = BTreeMap::new();
        let mut entries = Vec::new();
        let mut versions = BTreeMap::new();
        for lease in leases {
            let name = lease.id.name.clone();
            if name == self.state.id.name {
                if lease.id != self.state.id {
                    self.held = None; // it is read again before it is renewed
                }
                continue;
            }
            if let Some(address) = lease.address
                && addresses.len() < MAX_REPLICAS
            {
                addresses.insert(name.clone(), address);
            }
            versions.insert(name, lease.resource_version);
            entries.push(LeaseEntry {
                id: lease.id,
                version: lease.renewed,
                has_address: lease.address.is_some(),
                message: lease.message,
            });
        }
        let mut forgotten = Vec::new();
        self.state.update(|agreement| {
            agreement.set_leases(sent, now, entries);
            let limit = self.state.config.lease_time * FORGET_AFTER;
            let peers = agreement.peers(now).into_iter();
            forgotten.extend(peers.filter(|peer| peer.expired && peer.lease_unchanged > limit));
        });
        self.state.addresses.send_if_modified(|known| {
            let changed = *known != addresses;
            *known = addresses;
            changed
        });
        for peer in forgotten {
            if let Some(version) = versions.remove(&peer.name) {
                info!(replica = %peer.name, "replicas: its Lease ended long ago, and is deleted");
                let _ = self.delete(&peer.name, &version).await; // tried again with the next list
            }
        }
    }

    /// Whether the replica wants more than it has, and does not know yet that this one knows.
    fn is_waiting(&self, lease: &StoredLease) -> bool {
        let Some(message) = &lease.message else {
            return false;
        };
        let answered = self.answered.get(&lease.id.name);
        lease.id.name != self.state.id.name
            && message.pools.iter().any(|pool| pool.wanted > pool.held)
            && answered.is_none_or(|number| *number < message.number)
    }

    /// Deletes the own Lease, unless another process has it.
    pub(super) async fn finish(state: &Arc<ReplicaState>, calls: ApiServerClient) {
        let mut task = Self::new(state, calls, AdvertisedAddress::None);
        let path = task.scope.lease_path(&state.id.name);
        let delete = async {
            // A last renewal may be under way: a Lease that has changed meanwhile is read again.
            for _ in 0..2 {
                let get = task.send("get", Method::GET, path.clone(), None);
                let (_, body) = get.await.ok()?;
                let lease = parse_lease(&task.scope, &body).ok()?;
                if lease.id != state.id {
                    break;
                }
                let deleted = task.delete(&state.id.name, &lease.resource_version);
                deleted.await.ok()?;
            }
            Some(())
        };
        if let Ok(None) | Err(_) = timeout(DELETE_TIMEOUT, delete).await {
            info!("replicas: this one's Lease is left to end by itself");
        }
    }

    /// Deletes a Lease that has not changed.
    async fn delete(&mut self, replica: &str, version: &str) -> Result<(), LeaseFailure> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": { "resourceVersion": version },
        });
        let path = self.scope.lease_path(replica);
        let (status, _) = self
            .send("delete", Method::DELETE, path, Some(options))
            .await?;
        match status {
            StatusCode::OK | StatusCode::NOT_FOUND | StatusCode::CONFLICT => Ok(()),
            status => Err(self.failure("delete", status)),
        }
    }

    async fn send(
        &self,
        verb: &str,
        method: Method,
        path: String,
        body: Option<Value>,
    ) -> Result<(StatusCode, Bytes), LeaseFailure> {
        let body = body.map(|body| Bytes::from(body.to_string()));
        let response = self.calls.send_json(method, target(&path)?, body).await;
        let response = response.map_err(|why| other_failure(format!("{verb} leases: {why}")))?;
        Ok((response.status, response.body))
    }

    fn failure(&self, verb: &str, status: StatusCode) -> LeaseFailure {
        let namespace = &self.scope.namespace;
        let message = match status {
            StatusCode::FORBIDDEN => format!(
                "weir may not {verb} leases in namespace {namespace} (403): bind the Role \
                 weir:replicas of docs/replicas.md to its user, or set --replica-membership=none"
            ),
            _ => {
                format!("{verb} leases in namespace {namespace}: the API server responds {status}")
            }
        };
        LeaseFailure {
            message,
            denied: matches!(
                status,
                StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED | StatusCode::NOT_FOUND
            ),
        }
    }
}

const fn other_failure(message: String) -> LeaseFailure {
    LeaseFailure {
        message,
        denied: false,
    }
}

fn target(text: &str) -> Result<PathAndQuery, LeaseFailure> {
    let invalid = |_| other_failure(format!("not a target: {text}"));
    text.parse().map_err(invalid)
}

/// Whether a 404 is about the Lease itself, and not about a resource that is not served.
fn is_status_of_lease(body: &[u8]) -> bool {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    status.pointer("/details/kind").and_then(Value::as_str) == Some("leases")
}

/// From nine tenths to all of `pause`: replicas that started together do not stay together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(1.0 - fastrand::f64() / 10.0)
}

/// The time as a `metav1.MicroTime`.
fn micro_time() -> String {
    let now = Timestamp::try_from(Clock.wall()).unwrap_or_default();
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
