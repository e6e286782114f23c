//! How many connections to the API server clients' requests may have: each is a descriptor, of which the system gives so many.
//!
//! What lasts as long as its client likes must not keep requests that end from the API server, nor requests without a proven
//! credential those of known users: requests that last have half of the connections, be it one of HTTP/1.1 each or those of HTTP/2
//! that watches share; unproven ones have a quarter for what lasts and half for what ends; the rest is kept free. Within each part
//! users and addresses share fairly ([`shares`](crate::upstream::shares)).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use prometheus::IntGauge;
use prometheus::IntGaugeVec;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;

use crate::api::UserInfo;
use crate::metrics::Registry;
use crate::upstream::ForwardError;
use crate::upstream::shares::Denied;
use crate::upstream::shares::Shares;

/// Holders that are named of each kind.
const MOST_HOLDERS: usize = 20;

/// Watches on one HTTP/2 connection: what kube-apiserver allows of streams.
const WATCHES_OF_A_CONNECTION: usize = 100;

/// The kinds of places, as metrics and operators have them.
const LASTING: &str = "long-running";
const WATCHES: &str = "watch";
const UNPROVEN_LASTING: &str = "unproven-long-running";
const UNPROVEN: &str = "unproven";

/// How many places there are and are taken.
#[derive(Debug)]
pub struct PlaceMetrics {
    total: IntGaugeVec,
    taken: IntGaugeVec,
}

impl PlaceMetrics {
    /// Registers them.
    #[must_use]
    pub fn register(registry: &Registry) -> Self {
        Self {
            total: registry.gauges(
                "weir_upstream_places",
                "Places for requests by kind: long-running ones with a connection to the API server each (long-running; watches that share connections take one for each connection), watches that share connections (watch), and those without a proven credential (unproven, unproven-long-running).",
                &["kind"],
            ),
            taken: registry.gauges(
                "weir_upstream_places_taken",
                "Places that are taken, by kind; /debug/places names the users and addresses that hold most of them.",
                &["kind"],
            ),
        }
    }

    fn of(&self, kind: &str, total: usize) -> IntGauge {
        let total = i64::try_from(total).unwrap_or(i64::MAX);
        self.total.with_label_values(&[kind]).set(total);
        self.taken.with_label_values(&[kind])
    }
}

/// For whom a request takes a place.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    /// The user that it counts for.
    pub user: Option<Arc<UserInfo>>,
    /// Its client's network; none behind a trusted proxy, where many clients have one address.
    pub network: Option<IpAddr>,
}

/// Something that has a share of the places.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Holder {
    /// A user, by its name.
    User(String),
    /// The addresses of one network: of IPv6 the first 64 bits.
    Network(IpAddr),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) if name.is_empty() => write!(f, "connections that watches share"),
            Self::User(name) => write!(f, "user {name:?}"),
            Self::Network(address) => write!(f, "address {address}"),
        }
    }
}

/// Places for connections, shared by all workers.
#[derive(Clone, Debug)]
pub struct Room {
    most: usize,
    all: Arc<Semaphore>,
    lasting: Places,
    /// What ends is bounded for unproven requests only, each of which has a connection to itself.
    ending: Option<Places>,
    watches: Places,
    unproven: Arc<[Places; 2]>,
}

/// The open places of one kind, for operators.
#[derive(Clone, Debug, Default)]
pub struct PlacesShown {
    /// How many there are.
    pub total: usize,
    /// How many are taken.
    pub taken: usize,
    /// Those who hold most, most first.
    pub holders: Vec<(Holder, usize)>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    _one: OwnedSemaphorePermit,
}

/// A request's place among those of its kind, until it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    places: Places,
    holders: Vec<Holder>,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.places.shares().give_back(&self.holders);
        self.places.taken.dec();
    }
}

/// Places of one kind.
#[derive(Clone, Debug)]
struct Places {
    /// Held for one step; nothing is awaited under it.
    shares: Arc<Mutex<Shares<Holder>>>,
    taken: IntGauge,
}

impl Places {
    fn new(total: usize, taken: IntGauge) -> Self {
        Self {
            shares: Arc::new(Mutex::new(Shares::new(total))),
            taken,
        }
    }

    fn shares(&self) -> MutexGuard<'_, Shares<Holder>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, holders: Vec<Holder>) -> Result<Share, Denied<Holder>> {
        self.shares().take(&holders)?;
        self.taken.inc();
        Ok(Share {
            places: self.clone(),
            holders,
        })
    }

    fn shown(&self, number: usize) -> PlacesShown {
        let shares = self.shares();
        let (total, taken) = shares.counts();
        PlacesShown {
            total,
            taken,
            holders: shares.most(number),
        }
    }
}

impl Requester {
    fn holders(&self) -> Vec<Holder> {
        let user = self
            .user
            .as_ref()
            .map(|user| Holder::User(user.name.clone()));
        let network = self.network.map(Holder::Network);
        user.into_iter().chain(network).collect()
    }
}

impl Room {
    /// For this many connections.
    #[must_use]
    pub fn of(most: usize, metrics: &PlaceMetrics) -> Self {
        let most = most.clamp(4, Semaphore::MAX_PERMITS); // one of each kind
        let places = |kind, total| Places::new(total, metrics.of(kind, total));
        Self {
            most,
            all: Arc::new(Semaphore::new(most)),
            lasting: places(LASTING, most / 2),
            ending: None,
            watches: places(WATCHES, (most / 2).saturating_mul(WATCHES_OF_A_CONNECTION)),
            unproven: Arc::new([
                places(UNPROVEN_LASTING, most / 4),
                places(UNPROVEN, most / 2),
            ]),
        }
    }

    /// The same, for requests without a proven credential.
    #[must_use]
    pub fn for_unproven(&self) -> Self {
        let [lasting, ending] = &*self.unproven;
        Self {
            lasting: lasting.clone(),
            ending: Some(ending.clone()),
            ..self.clone()
        }
    }

    /// A connection's place.
    pub(super) fn take(&self) -> Result<Taken, ForwardError> {
        let taken = Arc::clone(&self.all).try_acquire_owned();
        taken
            .map(|one| Taken { _one: one })
            .map_err(|_| ForwardError::NoRoom(self.most))
    }

    /// The place of a request that lasts, while it has an HTTP/1.1 connection to itself.
    pub(super) fn last(&self, requester: &Requester) -> Result<Share, ForwardError> {
        self.share(&self.lasting, requester.holders())
    }

    /// The place of a connection that watches share: they are one holder, which leaves half to other requests that last.
    pub(super) fn connect_watches(&self) -> Result<Share, ForwardError> {
        let watches = Holder::User(String::new()); // no user has an empty name
        let place = self.lasting.take(vec![watches]);
        place.map_err(|_| ForwardError::NoRoom(self.most))
    }

    /// The place of a watch on a connection that it shares with others.
    pub(super) fn watch(&self, requester: &Requester) -> Result<Share, ForwardError> {
        self.share(&self.watches, requester.holders())
    }

    /// The place of a request that ends, where such are bounded: its user is not known, so that its address counts.
    pub(super) fn end(&self, requester: &Requester) -> Result<Option<Share>, ForwardError> {
        let network = requester.network.map(Holder::Network);
        let holders = || network.into_iter().collect();
        let ending = self.ending.as_ref();
        ending
            .map(|places| self.share(places, holders()))
            .transpose()
    }

    fn share(&self, places: &Places, holders: Vec<Holder>) -> Result<Share, ForwardError> {
        places.take(holders).map_err(|denied| match denied {
            Denied::Full => ForwardError::NoRoom(self.most),
            Denied::Share(holder) => ForwardError::Share(holder),
        })
    }

    /// The places of each kind and their holders, for operators: a line each, its parts apart by tabs.
    #[must_use]
    pub fn dump(&self) -> String {
        let mut lines = vec!["KIND\tTAKEN\tOF\tHOLDER".to_owned()];
        for (kind, places) in self.shown(MOST_HOLDERS) {
            lines.push(format!("{kind}\t{}\t{}\t", places.taken, places.total));
            for (holder, taken) in places.holders {
                lines.push(format!("{kind}\t{taken}\t{}\t{holder}", places.total));
            }
        }
        lines.push(String::new());
        lines.join("\n")
    }

    /// The places as they are taken, for operators: of long-running requests with a connection each, and of watches that share
    /// them; with so many of their holders each.
    #[must_use]
    pub fn shown(&self, holders: usize) -> [(&'static str, PlacesShown); 4] {
        let [unproven_lasting, unproven_ending] = &*self.unproven;
        [
            (LASTING, self.lasting.shown(holders)),
            (WATCHES, self.watches.shown(holders)),
            (UNPROVEN_LASTING, unproven_lasting.shown(holders)),
            (UNPROVEN, unproven_ending.shown(holders)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(last: u8) -> Requester {
        Requester {
            user: None,
            network: Some(IpAddr::from([192, 0, 2, last])),
        }
    }

    #[test]
    fn what_lasts_leaves_half_and_unproven_requests_have_a_quarter_of_their_own() {
        let room = Room::of(8, &PlaceMetrics::register(&Registry::new()));
        let unproven = room.for_unproven();
        let lasting: Vec<_> = (1..9).map_while(|n| room.last(&from(n)).ok()).collect();
        assert_eq!(lasting.len(), 4);
        assert!(matches!(room.last(&from(9)), Err(ForwardError::NoRoom(8))));
        let theirs: Vec<_> = (1..9).map_while(|n| unproven.last(&from(n)).ok()).collect();
        assert_eq!(theirs.len(), 2);
        let ending: Vec<_> = (1..9).map_while(|n| unproven.end(&from(n)).ok()).collect();
        assert_eq!(ending.len(), 4);
        assert!(
            room.end(&from(1)).unwrap().is_none(),
            "known ones share connections"
        );
        drop(lasting);
        assert!(room.last(&from(9)).is_ok());
        let _all: Vec<_> = (0..8).map(|_| unproven.take().unwrap()).collect();
        assert!(matches!(room.take(), Err(ForwardError::NoRoom(8))));
    }

    #[test]
    fn one_user_or_address_gets_half_of_a_kind() {
        let room = Room::of(16, &PlaceMetrics::register(&Registry::new()));
        let user = |name: &str| Requester {
            user: Some(Arc::new(UserInfo {
                name: name.to_owned(),
                ..UserInfo::anonymous()
            })),
            network: None,
        };
        let _held: Vec<_> = (0..4).map(|_| room.last(&user("alice")).unwrap()).collect();
        let denied = room.last(&user("alice"));
        let alice = Holder::User("alice".to_owned());
        assert!(matches!(denied, Err(ForwardError::Share(holder)) if holder == alice));
        assert!(room.last(&user("bob")).is_ok() && room.watch(&user("alice")).is_ok());
        let [(_, lasting), ..] = room.shown(1);
        assert_eq!((lasting.total, lasting.taken), (8, 4));
        assert_eq!(lasting.holders, [(alice, 4)]);
    }

    #[test]
    fn there_is_always_one_of_each() {
        let room = Room::of(0, &PlaceMetrics::register(&Registry::new()));
        for room in [room.for_unproven(), room] {
            assert!(room.take().is_ok() && room.last(&from(1)).is_ok());
            assert!(room.watch(&from(1)).is_ok() && room.end(&from(1)).is_ok());
            assert!(room.connect_watches().is_ok());
        }
    }
}
