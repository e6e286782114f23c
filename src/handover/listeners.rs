//! Listening sockets that another process has opened.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};

use serde::{Deserialize, Serialize};
use tracing::info;

/// The name of a listener, between processes of weir and in systemd's `FileDescriptorName=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ListenerName {
    /// `--bind-address` and `--secure-port`.
    Main,
    /// `--admin-address`.
    Admin,
    /// `--health-address`.
    Health,
}

impl ListenerName {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "main" => Some(Self::Main),
            "admin" => Some(Self::Admin),
            "health" => Some(Self::Health),
            _ => None,
        }
    }
}

/// Who has opened a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Opener {
    /// The service manager, by a unit that says where. That address is used.
    ServiceManager,
    /// weir, perhaps an earlier process. The configuration may contain another address by now.
    Weir,
}

/// A listener, as far as another process has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListenerId {
    /// What it is for.
    pub(crate) name: ListenerName,
    /// Who has opened it.
    pub(crate) opener: Opener,
}

/// Listening sockets that another process has opened. The default has none.
#[derive(Debug, Default)]
pub(crate) struct InheritedListeners {
    sockets: BTreeMap<ListenerName, (Opener, TcpListener)>,
}

impl InheritedListeners {
    /// The sockets of an earlier process of weir.
    pub(crate) fn from_predecessor(
        sockets: impl IntoIterator<Item = (ListenerId, TcpListener)>,
    ) -> Self {
        let sockets = sockets.into_iter();
        Self {
            sockets: sockets
                .map(|(id, socket)| (id.name, (id.opener, socket)))
                .collect(),
        }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// The sockets of the service manager. A single socket with another name is that of clients.
    ///
    /// # Errors
    /// A name is unknown, or two sockets have the same.
    pub(crate) fn from_service_manager(sockets: Vec<(String, TcpListener)>) -> io::Result<Self> {
        let is_single = sockets.len() == 1;
        let mut listeners = Self::default();
        for (name, socket) in sockets {
            let known = ListenerName::parse(&name);
            let Some(known) = known.or_else(|| is_single.then_some(ListenerName::Main)) else {
                return Err(io::Error::other(format!(
                    "FileDescriptorName={name:?}: must be main, admin or health"
                )));
            };
            if listeners
                .sockets
                .insert(known, (Opener::ServiceManager, socket))
                .is_some()
            {
                return Err(io::Error::other(format!(
                    "FileDescriptorName={name}: there is more than one, and weir listens on one \
                     address"
                )));
            }
        }
        Ok(listeners)
    }

    /// The socket of a listener that is configured at `address`. `None` if it has to be bound.
    pub(crate) fn take(
        &mut self,
        name: ListenerName,
        address: SocketAddr,
    ) -> Option<(Opener, TcpListener)> {
        let (opener, socket) = self.sockets.remove(&name)?;
        let local = socket.local_addr().ok()?;
        if is_covered(local, address) {
            return Some((opener, socket));
        }
        match opener {
            Opener::ServiceManager => {
                info!(%local, configured = %address, "the service manager's socket is used");
                Some((opener, socket))
            }
            Opener::Weir => {
                info!(%local, configured = %address, "another address is configured");
                None
            }
        }
    }
}

/// Whether a socket at `local` is what `configured` asks for: port 0 is any port.
fn is_covered(local: SocketAddr, configured: SocketAddr) -> bool {
    let has_same_port = configured.port() == 0 || configured.port() == local.port();
    has_same_port && configured.ip() == local.ip()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIN: ListenerId = ListenerId {
        name: ListenerName::Main,
        opener: Opener::Weir,
    };

    fn socket() -> (TcpListener, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    #[test]
    fn a_socket_of_another_address_than_the_configured_one_is_bound_anew() {
        let elsewhere: SocketAddr = "127.0.0.2:0".parse().unwrap();
        let (one, address) = socket();
        let mut inherited = InheritedListeners::from_predecessor([(MAIN, one)]);
        assert!(inherited.take(ListenerName::Admin, address).is_none());
        assert!(inherited.take(ListenerName::Main, elsewhere).is_none());
        let (one, address) = socket();
        let mut inherited = InheritedListeners::from_predecessor([(MAIN, one)]);
        let any_port = SocketAddr::new(address.ip(), 0);
        let (_, taken) = inherited.take(ListenerName::Main, any_port).unwrap();
        assert_eq!(taken.local_addr().unwrap(), address);
        assert!(inherited.take(ListenerName::Main, address).is_none());
    }

    #[test]
    fn the_service_managers_address_is_used_whatever_is_configured() {
        let (one, address) = socket();
        let sockets = vec![("main".to_owned(), one), ("admin".to_owned(), socket().0)];
        let mut inherited = InheritedListeners::from_service_manager(sockets).unwrap();
        let configured = "127.0.0.2:6443".parse().unwrap();
        let (opener, taken) = inherited.take(ListenerName::Main, configured).unwrap();
        assert_eq!(taken.local_addr().unwrap(), address);
        assert!(inherited.take(ListenerName::Admin, configured).is_some());
        // So does the process after this one.
        let id = ListenerId {
            name: ListenerName::Main,
            opener,
        };
        let mut next = InheritedListeners::from_predecessor([(id, taken)]);
        assert!(next.take(ListenerName::Main, configured).is_some());
    }

    #[test]
    fn a_single_socket_needs_no_name_and_several_do() {
        let unnamed = || ("weir.socket".to_owned(), socket().0);
        let mut one = InheritedListeners::from_service_manager(vec![unnamed()]).unwrap();
        let anywhere = "127.0.0.1:0".parse().unwrap();
        assert!(one.take(ListenerName::Main, anywhere).is_some());
        for sockets in [
            vec![unnamed(), ("main".to_owned(), socket().0)],
            vec![
                ("main".to_owned(), socket().0),
                ("main".to_owned(), socket().0),
            ],
        ] {
            let refused = InheritedListeners::from_service_manager(sockets);
            let why = refused.unwrap_err().to_string();
            assert!(why.contains("FileDescriptorName="), "{why}");
        }
    }
}
