//! The PROXY protocol, version 2: the address of a client behind a load balancer, accepted from
//! `--trusted-proxies` only.
//!
//! The header is optional, since the health checks of a proxy have none.

use std::io;
use std::net::SocketAddr;

use ppp::v2::{Addresses, Command, Header};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The first byte of the header's signature. A TLS handshake starts with another byte.
const SIGNATURE_FIRST_BYTE: u8 = b'\r';

/// The length of signature, version and command, family, and length field, in bytes.
const FIXED_HEADER_LENGTH: usize = 16;

/// The largest variable part, in bytes. Addresses and the TLVs of a load balancer take a few
/// hundred bytes.
const MAX_VARIABLE_LENGTH: usize = 4096;

/// Reads the header, if there is one, and returns the client's address. `None` if the connection is
/// the proxy's own.
///
/// # Errors
/// The connection failed, or the header is invalid.
///
/// # Cancel safety
/// Not cancel-safe: part of the header may have been read.
pub async fn read_client_address(tcp: &mut TcpStream) -> io::Result<Option<SocketAddr>> {
    let mut first = [0];
    if tcp.peek(&mut first).await? == 0 || first != [SIGNATURE_FIRST_BYTE] {
        return Ok(None);
    }
    let mut header = vec![0; FIXED_HEADER_LENGTH];
    tcp.read_exact(&mut header).await?;
    let rest = match header.get(FIXED_HEADER_LENGTH - 2..) {
        Some(&[high, low]) => usize::from(u16::from_be_bytes([high, low])),
        _ => 0,
    };
    if rest > MAX_VARIABLE_LENGTH {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a PROXY header of {rest} bytes; at most {MAX_VARIABLE_LENGTH} are read"),
        ));
    }
    header.resize(FIXED_HEADER_LENGTH + rest, 0);
    if let Some(rest) = header.get_mut(FIXED_HEADER_LENGTH..) {
        tcp.read_exact(rest).await?;
    }
    parse_source_address(&header)
}

/// The client's address that a whole header names.
///
/// # Errors
/// The header is invalid.
pub fn parse_source_address(header: &[u8]) -> io::Result<Option<SocketAddr>> {
    let header = Header::try_from(header)
        .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why.to_string()))?;
    if header.command == Command::Local {
        return Ok(None);
    }
    Ok(match header.addresses {
        Addresses::IPv4(v4) => Some((v4.source_address, v4.source_port).into()),
        Addresses::IPv6(v6) => Some((v6.source_address, v6.source_port).into()),
        Addresses::Unspecified | Addresses::Unix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

    fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut header = SIGNATURE.to_vec();
        header.extend([0x20 | command, family]);
        header.extend(u16::try_from(rest.len()).unwrap().to_be_bytes());
        header.extend(rest);
        header
    }

    #[test]
    fn the_source_address_is_the_client_address() {
        let v4 = [203, 0, 113, 7, 10, 0, 0, 1, 0xc0, 0x01, 0x19, 0x2b];
        let named = parse_source_address(&header(1, 0x11, &v4)).unwrap();
        assert_eq!(named, Some("203.0.113.7:49153".parse().unwrap()));
        let mut v6 = [0; 36];
        v6[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        v6[15] = 7;
        v6[32..34].copy_from_slice(&[0xc0, 0x01]);
        let named = parse_source_address(&header(1, 0x21, &v6)).unwrap();
        assert_eq!(named, Some("[2001:db8::7]:49153".parse().unwrap()));
    }

    #[test]
    fn a_local_connection_of_the_proxy_has_no_client_address() {
        assert_eq!(parse_source_address(&header(0, 0, &[])).unwrap(), None);
        assert_eq!(parse_source_address(&header(1, 0, &[])).unwrap(), None);
    }

    #[test]
    fn an_invalid_header_is_an_error() {
        assert!(parse_source_address(b"\r\n\r\nGET / HTTP/1.1\r\n").is_err());
        assert!(parse_source_address(&header(1, 0x11, &[1, 2, 3])).is_err());
    }
}
