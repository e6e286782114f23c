//! Whether an address is one of this weir's own.

use std::net::{IpAddr, SocketAddr, UdpSocket};

/// Whether a connection to `server` reaches the listener at `listener`.
pub(crate) fn is_own(listener: SocketAddr, server: SocketAddr) -> bool {
    let (bound, target) = (listener.ip().to_canonical(), server.ip().to_canonical());
    listener.port() == server.port()
        && (bound == target || (bound.is_unspecified() && is_local(target)))
}

/// Whether this machine has the address: for a destination of its own the system chooses the same
/// address as the source. Nothing is sent. (Binding to the address would not tell: load balancers'
/// hosts often allow `ip_nonlocal_bind`.)
pub(crate) fn is_local(address: IpAddr) -> bool {
    if address.is_loopback() {
        return true;
    }
    let any: IpAddr = match address {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    source().is_ok_and(|source| source.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(listener: &str, server: &str) -> bool {
        is_own(listener.parse().unwrap(), server.parse().unwrap())
    }

    #[test]
    fn a_listener_owns_its_address_and_port() {
        assert!(own("192.0.2.1:6443", "192.0.2.1:6443"));
        assert!(own("[::ffff:192.0.2.1]:6443", "192.0.2.1:6443"));
        assert!(!own("192.0.2.1:6443", "192.0.2.1:6444"));
        assert!(!own("192.0.2.1:6443", "192.0.2.2:6443"));
    }

    #[test]
    fn a_listener_on_all_addresses_owns_this_machine_s() {
        for any in ["0.0.0.0:6443", "[::]:6443"] {
            assert!(own(any, "127.0.0.1:6443"), "{any}");
            assert!(own(any, "127.1.2.3:6443"), "{any}");
            assert!(!own(any, "127.0.0.1:6444"), "{any}");
            assert!(!own(any, "192.0.2.1:6443"), "of nobody: {any}");
        }
    }
}
