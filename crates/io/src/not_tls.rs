//! Connections that do not begin with TLS. A plain HTTP request gets the answer of Go's server; of
//! all others the log says what they are.

use std::{fmt, io};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::staged_close::discard_until_closed;

/// The length of the header of a TLS record in bytes.
const RECORD_HEADER: usize = 5;

/// The types of records with which a TLS connection may begin (`crypto/tls`, `readRecordOrCCS`).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// The beginnings of requests: those that Go's server knows (`tlsRecordHeaderLooksLikeHTTP`), and
/// the methods that Kubernetes uses besides.
const HTTP_REQUESTS: [&[u8; RECORD_HEADER]; 8] = [
    b"GET /", b"HEAD ", b"POST ", b"PUT /", b"OPTIO", b"PATCH", b"DELET", b"CONNE",
];

/// Go's answer (`net/http`, `conn.serve`).
const HTTP_ANSWER: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// What a connection begins with instead of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotTls {
    Http,
    ProxyHeaderV1,
    ProxyHeaderV2,
    Unknown,
}

impl NotTls {
    fn from_first_bytes(first: &[u8; RECORD_HEADER]) -> Self {
        match first {
            b"PROXY" => Self::ProxyHeaderV1,
            b"\r\n\r\n\0" => Self::ProxyHeaderV2,
            first if HTTP_REQUESTS.contains(&first) => Self::Http,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for NotTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "an HTTP request without TLS",
            Self::ProxyHeaderV1 => {
                "a PROXY header of version 1: weir reads version 2 (--proxy-protocol)"
            }
            Self::ProxyHeaderV2 => {
                "a PROXY header, which weir reads with --proxy-protocol from --trusted-proxies only"
            }
            Self::Unknown => "the first bytes are not TLS",
        })
    }
}

impl std::error::Error for NotTls {}

/// Waits for the first bytes of a connection, and reads none of a TLS connection.
///
/// # Errors
/// The connection failed, or does not begin with TLS. A plain HTTP request has been answered then.
///
/// # Cancel safety
/// Not cancel-safe: the first bytes of what is not TLS may have been read.
pub async fn wait_for_tls(tcp: &mut TcpStream) -> io::Result<()> {
    let mut first = [0; RECORD_HEADER];
    if tcp.peek(&mut first).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if let [ALERT | HANDSHAKE, ..] = first {
        return Ok(());
    }
    tcp.read_exact(&mut first).await?;
    let why = NotTls::from_first_bytes(&first);
    if why == NotTls::Http {
        tcp.write_all(HTTP_ANSWER).await?;
        tcp.shutdown().await?;
        discard_until_closed(tcp).await;
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_say_what_a_connection_is() {
        for (first, expected) in [
            (b"GET / HTTP/1.1", NotTls::Http),
            (b"POST /api HTTP", NotTls::Http),
            (b"PATCH /api HTT", NotTls::Http),
            (b"PROXY TCP4 1.2", NotTls::ProxyHeaderV1),
            (b"\r\n\r\n\0\r\nQUIT\n\x21\x11", NotTls::ProxyHeaderV2),
            (
                b"\x80\x2e\x01\x03\x01\0\x15\0\0\0\x10\0\0\0",
                NotTls::Unknown,
            ),
            (b"SSH-2.0-OpenSS", NotTls::Unknown),
        ] {
            let first = first.first_chunk().unwrap();
            assert_eq!(NotTls::from_first_bytes(first), expected);
        }
    }
}
