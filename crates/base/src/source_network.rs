//! The network that a client's address counts for in limits for each source. Pure.

use std::net::{IpAddr, Ipv6Addr};

/// The network that an address counts for: an IPv6 host can use a whole /64.
pub fn source_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_counts_for_itself_and_an_ipv6_address_for_its_64_bit_network() {
        let network = |address: &str| source_network(address.parse().unwrap()).to_string();
        assert_eq!(network("192.0.2.1"), "192.0.2.1");
        assert_eq!(network("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(network("2001:db8:0:1:2:3:4:5"), "2001:db8:0:1::");
    }
}
