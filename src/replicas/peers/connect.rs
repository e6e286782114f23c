//! Opens a connection to another replica.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::replicas::peers::tls::PeerTlsConfigs;

/// Connects to a replica, both sides authenticated.
///
/// # Errors
/// It cannot be reached, or its certificate or this one's is refused.
///
/// # Cancel safety
/// The connection ends with the future.
pub(super) async fn connect(
    address: SocketAddr,
    configs: &PeerTlsConfigs,
) -> Result<TlsStream<TcpStream>, String> {
    let stream = TcpStream::connect(address).await;
    let stream = stream.map_err(|why| why.to_string())?;
    let _ = stream.set_nodelay(true); // an optimization
    let connector = TlsConnector::from(Arc::clone(&configs.client));
    let name = ServerName::IpAddress(address.ip().into());
    let stream = connector.connect(name, stream).await;
    stream.map_err(|why| format!("TLS: {why}"))
}
