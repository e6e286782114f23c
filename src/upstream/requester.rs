//! What a request counts for where connections are shared: its user and its network. Pure.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use weir_kubernetes::api::UserInfo;

/// The user and the network that a request's slot counts for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requester {
    /// The user.
    pub(crate) user: Option<Arc<UserInfo>>,
    /// The client's network; none behind a trusted proxy, where many clients share one address.
    pub(crate) network: Option<IpAddr>,
}

/// A holder of slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum SlotHolder {
    /// A user, by name. The empty name stands for connections that watches share.
    User(String),
    /// A network: an IPv4 address, or the first 64 bits of an IPv6 address.
    Network(IpAddr),
}

impl fmt::Display for SlotHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(name) if name.is_empty() => write!(f, "connections that watches share"),
            Self::User(name) => write!(f, "user {name:?}"),
            Self::Network(address) => write!(f, "address {address}"),
        }
    }
}

impl SlotHolder {
    /// The user, or the network of anonymous requests. None for anonymous requests behind a trusted
    /// proxy, which cannot be distinguished.
    pub(crate) fn from_client(user: &UserInfo, network: Option<IpAddr>) -> Option<Self> {
        if user.is_anonymous() {
            network.map(Self::Network)
        } else {
            Some(Self::User(user.name.clone()))
        }
    }

    /// [`from_client`](Self::from_client), with one holder for all anonymous requests behind
    /// trusted proxies.
    pub(crate) fn for_client(user: &UserInfo, network: Option<IpAddr>) -> Self {
        Self::from_client(user, network).unwrap_or_else(|| Self::User(user.name.clone()))
    }
}

impl Requester {
    /// The holder that takes turns where requests wait; the empty name where there is none.
    pub(crate) fn wait_holder(&self) -> SlotHolder {
        let nameless = || SlotHolder::User(String::new());
        self.holder().unwrap_or_else(nameless)
    }

    /// The one holder that a request counts for: see [`SlotHolder::from_client`].
    pub(crate) fn holder(&self) -> Option<SlotHolder> {
        match &self.user {
            Some(user) => SlotHolder::from_client(user, self.network),
            None => self.network.map(SlotHolder::Network),
        }
    }

    pub(crate) fn holders(&self) -> Vec<SlotHolder> {
        let user = self
            .user
            .as_ref()
            .map(|user| SlotHolder::User(user.name.clone()));
        let network = self.network.map(SlotHolder::Network);
        user.into_iter().chain(network).collect()
    }
}
