//! What a request counts for where connections are shared: its user and its network. Pure.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::api::UserInfo;

/// The user and the network that a request's slot counts for.
#[derive(Clone, Debug, Default)]
pub struct Requester {
    /// The user.
    pub user: Option<Arc<UserInfo>>,
    /// The client's network; none behind a trusted proxy, where many clients share one address.
    pub network: Option<IpAddr>,
}

/// A holder of slots.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SlotHolder {
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

impl Requester {
    /// The holder that takes turns where requests wait: the user, or the network of anonymous
    /// requests.
    pub(in crate::upstream) fn wait_holder(&self) -> SlotHolder {
        let user = self.user.as_ref().filter(|user| !user.is_anonymous());
        match (user, self.network) {
            (None, Some(network)) => SlotHolder::Network(network),
            (user, _) => SlotHolder::User(user.map_or_else(String::new, |user| user.name.clone())),
        }
    }

    pub(in crate::upstream) fn holders(&self) -> Vec<SlotHolder> {
        let user = self
            .user
            .as_ref()
            .map(|user| SlotHolder::User(user.name.clone()));
        let network = self.network.map(SlotHolder::Network);
        user.into_iter().chain(network).collect()
    }
}
