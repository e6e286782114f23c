//! Starts and ends the tasks that divide the totals.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use rustls::crypto::CryptoProvider;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::limits::levers::Levers;
use crate::limits::limiters::Limiters;
use crate::limits::total_finder::TotalFinder;
use crate::replicas::config::{PeerTls, ReplicaConfig};
use crate::replicas::membership::{AdvertisedAddress, MembershipTask};
use crate::replicas::metrics::ReplicaMetrics;
use crate::replicas::peers::levers::{LeverExchange, LeverReceiver};
use crate::replicas::peers::snapshots::{SnapshotExchange, SnapshotSource};
use crate::replicas::peers::tls::PeerTlsConfigs;
use crate::replicas::peers::{links, listener};
use crate::replicas::state::{ReplicaReport, ReplicaState};
use crate::upstream::forward::api_server_client::ApiServerClient;
use crate::upstream::loop_detection::cdn_loop::InstanceId;
use weir_agreement::message::ReplicaId;
use weir_agreement::peer::PeerStatus;
use weir_base::clock::Clock;
use weir_base::drain::Drain;
use weir_base::metrics::Registry;

/// How often shares move on. A replica drops to its floor
/// [`DROP_MARGIN`](weir_agreement::agreement::DROP_MARGIN) before its time, which is eight steps.
const STEP: Duration = Duration::from_millis(250);

/// The division of the totals among replicas.
#[derive(Clone, Debug)]
pub(crate) struct Replicas {
    state: Arc<ReplicaState>,
    snapshots: Arc<SnapshotExchange>,
    levers: Arc<LeverExchange>,
    calls: ApiServerClient,
    /// The certificates of the peer connections, if there are any.
    tls: Option<watch::Sender<Arc<PeerTlsConfigs>>>,
    /// The certificates in use.
    shown: Arc<Mutex<Option<PeerTls>>>,
    listener: Arc<Mutex<Option<TcpListener>>>,
    address: AdvertisedAddress,
    provider: Arc<CryptoProvider>,
    /// Ends the task that renews the Lease.
    membership: Arc<Mutex<Option<AbortHandle>>>,
}

/// New certificates of the peer connections.
pub(crate) struct PreparedPeerTls {
    tls: PeerTls,
    configs: Arc<PeerTlsConfigs>,
}

/// What is known of another replica's state.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotOfPeer {
    /// Its name.
    pub(crate) name: String,
    /// The age of the last snapshot.
    pub(crate) age: Option<Duration>,
    /// The last snapshot, as [`SnapshotSource::content`] has made it there.
    pub(crate) content: Option<Bytes>,
    /// Why the last request failed.
    pub(crate) failure: Option<String>,
}

/// Which of the other replicas have the levers.
#[derive(Clone, Debug)]
pub(crate) struct LeverReach {
    /// How many have them.
    pub(crate) reached: usize,
    /// The names of those that do not, and why.
    pub(crate) missing: BTreeMap<String, String>,
}

/// What the division is built from.
pub(crate) struct ReplicaDependencies<'a> {
    /// Names this process.
    pub(crate) instance: &'a InstanceId,
    /// An API server, as `HOST:PORT`.
    pub(crate) server: String,
    /// The limiters that get shares.
    pub(crate) limiters: &'a Arc<Limiters>,
    /// Finds the total that is divided, if it is to be found.
    pub(crate) finder: &'a Arc<TotalFinder>,
    /// The levers of all replicas.
    pub(crate) levers: &'a Arc<Levers>,
    /// Reads and writes the Leases.
    pub(crate) calls: ApiServerClient,
    /// The cryptography of the peer connections.
    pub(crate) provider: &'a Arc<CryptoProvider>,
    /// Gets the metrics.
    pub(crate) registry: &'a Registry,
}

impl Replicas {
    /// Binds the peer port, and limits this replica to its floor until it knows the others.
    ///
    /// # Errors
    /// The port or the certificates cannot be used.
    pub(crate) fn new(
        config: ReplicaConfig,
        dependencies: ReplicaDependencies<'_>,
    ) -> Result<Self, String> {
        let ReplicaDependencies {
            instance,
            server,
            limiters,
            finder,
            levers,
            calls,
            provider,
            registry,
        } = dependencies;
        let id = ReplicaId {
            name: config.name.clone(),
            instance: String::from_utf8_lossy(instance.as_bytes()).into_owned(),
        };
        let (mut listener, mut tls, mut address) = (None, None, AdvertisedAddress::None);
        if let Some(peers) = &config.peers {
            let bound = listener::bind(peers.address);
            let bound =
                bound.map_err(|why| format!("cannot listen on {}: {why}", peers.address))?;
            let port = bound.local_addr().map_err(|why| why.to_string())?.port();
            let configs = PeerTlsConfigs::new(&peers.tls, provider);
            let configs = configs.map_err(|why| format!("TLS between replicas: {why}"))?;
            tls = Some(watch::Sender::new(Arc::new(configs)));
            listener = Some(bound);
            address = match peers.advertised {
                Some(ip) => AdvertisedAddress::Known(SocketAddr::new(ip, port)),
                None if peers.address.ip().is_unspecified() => {
                    AdvertisedAddress::OfRoute(port, server)
                }
                None => AdvertisedAddress::Known(SocketAddr::new(peers.address.ip(), port)),
            };
        }
        let shown = config.peers.as_ref().map(|peers| peers.tls.clone());
        let metrics = ReplicaMetrics::register(registry);
        let state = ReplicaState::new(config, id, limiters, finder, levers, metrics);
        state.step(Clock.now());
        Ok(Self {
            state,
            snapshots: Arc::default(),
            levers: Arc::new(LeverExchange::new(levers)),
            calls,
            tls,
            shown: Arc::new(Mutex::new(shown)),
            listener: Arc::new(Mutex::new(listener)),
            address,
            provider: Arc::clone(provider),
            membership: Arc::default(),
        })
    }

    /// The certificates of the peer connections, if the configuration has others than are in use.
    /// The rest of the configuration stays until a restart.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub(crate) fn prepare_reload(
        &self,
        config: Option<&ReplicaConfig>,
    ) -> Result<Option<PreparedPeerTls>, String> {
        let Some(peers) = config.and_then(|config| config.peers.as_ref()) else {
            return Ok(None);
        };
        let shown = self.shown.lock();
        let is_in_use = shown.as_ref().is_some_and(|tls| tls.is_same(&peers.tls));
        if self.tls.is_none() || is_in_use {
            return Ok(None);
        }
        let configs = PeerTlsConfigs::new(&peers.tls, &self.provider);
        let configs = configs.map_err(|why| format!("TLS between replicas: {why}"))?;
        Ok(Some(PreparedPeerTls {
            tls: peers.tls.clone(),
            configs: Arc::new(configs),
        }))
    }

    /// Replaces the certificates of the peer connections, all of which open anew.
    pub(crate) fn reload(&self, prepared: PreparedPeerTls) {
        if let Some(tls) = &self.tls {
            *self.shown.lock() = Some(prepared.tls);
            tls.send_replace(prepared.configs);
        }
    }

    /// Starts the tasks. Must be called within a runtime.
    pub(crate) fn run(&self, drain: &Arc<Drain>) {
        let (state, calls) = (&self.state, self.calls.clone());
        let membership = MembershipTask::new(state, calls, self.address.clone());
        *self.membership.lock() = Some(tokio::spawn(membership.run()).abort_handle());
        if let (Some(tls), Some(socket)) = (&self.tls, self.listener.lock().take()) {
            let parts = || {
                let (snapshots, levers) = (Arc::clone(&self.snapshots), Arc::clone(&self.levers));
                (Arc::clone(state), snapshots, levers)
            };
            let (replicas, snapshots, levers) = parts();
            tokio::spawn(links::run(replicas, snapshots, levers, tls.subscribe()));
            let (replicas, snapshots, levers) = parts();
            let of_tls = tls.subscribe();
            tokio::spawn(listener::run(socket, replicas, snapshots, levers, of_tls));
        }
        let (state, drain) = (Arc::clone(state), Arc::clone(drain));
        tokio::spawn(async move {
            let mut steps = interval(STEP);
            steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                steps.tick().await;
                if drain.is_closing() {
                    state.update(|agreement| agreement.leave());
                }
                state.step(Clock.now());
            }
        });
    }

    /// Takes this replica out, once its requests have ended.
    ///
    /// # Cancel safety
    /// The Lease ends by itself.
    pub(crate) async fn finish(&self) {
        if let Some(membership) = self.membership.lock().take() {
            membership.abort(); // it would renew the Lease after its end
        }
        MembershipTask::finish(&self.state, self.calls.clone()).await;
    }

    /// Sets what takes this replica's snapshots for the others. Only the first call counts.
    pub(crate) fn set_snapshot_source(&self, source: Weak<dyn SnapshotSource>) {
        self.snapshots.set_source(source);
    }

    /// Sets what takes the levers of the others. Only the first call counts.
    pub(crate) fn set_lever_receiver(&self, receiver: Weak<dyn LeverReceiver>) {
        self.levers.set_receiver(receiver);
    }

    /// Waits until the others have the levers of now, for a second at most.
    ///
    /// # Cancel safety
    /// They are sent nevertheless.
    pub(crate) async fn send_levers(&self) -> LeverReach {
        let peers = self.state.report(Clock.now()).peers.into_iter();
        let peers = peers.filter(|peer| !peer.expired).map(|peer| peer.name);
        let peers: Vec<_> = peers.collect();
        let count = peers.len();
        let without = "there are no peer connections to it (--peer-bind-address)";
        if self.tls.is_none() {
            let missing = peers.into_iter().map(|name| (name, without.to_owned()));
            return LeverReach {
                reached: 0,
                missing: missing.collect(),
            };
        }
        let mut missing = self.levers.missing(peers).await;
        for (name, why) in &mut missing {
            if !self.state.addresses.borrow().contains_key(name) {
                without.clone_into(why);
            }
        }
        let reached = count - missing.len();
        LeverReach { reached, missing }
    }

    /// The name of this replica, if it has peer connections.
    #[must_use]
    pub(crate) fn name_among_peers(&self) -> Option<&str> {
        self.tls.as_ref().map(|_| &*self.state.id.name)
    }

    /// The last snapshots of the others, which are asked for new ones at most once a second. Waits
    /// for half a second at most, and with histories for another second.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub(crate) async fn peer_snapshots(&self, with_history: bool) -> Vec<SnapshotOfPeer> {
        let addresses = self.state.addresses.borrow().clone();
        let mut snapshots = self.snapshots.ask(addresses.keys(), with_history).await;
        let now = Clock.now();
        let peers = self.state.report(now).peers.into_iter();
        let snapshot = |peer: PeerStatus| {
            let known = snapshots.remove(&peer.name).unwrap_or_default();
            let failure = match addresses.contains_key(&peer.name) {
                true => known.failure,
                false => Some("it has no peer connections".to_owned()),
            };
            let (received, content) = known.last.unzip();
            SnapshotOfPeer {
                name: peer.name,
                age: received.map(|at| now.saturating_duration_since(at)),
                content,
                failure,
            }
        };
        peers.map(snapshot).collect()
    }

    /// What is shown of the division.
    #[must_use]
    pub(crate) fn report(&self) -> ReplicaReport {
        self.state.report(Clock.now())
    }
}
