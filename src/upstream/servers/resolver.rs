//! Resolves the names of configured servers: at the start, every 30 s, and after a failed
//! connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::time::timeout;
use tracing::warn;

use crate::upstream::connection::address::ServerAddress;
use crate::upstream::servers::server_set::ServerSet;

/// The interval, as long as the shortest time to live that providers of load balancers use.
const INTERVAL: Duration = Duration::from_secs(30);

/// The shortest time between two look-ups.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Longest time of a look-up. The system's resolver may take longer.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Resolves all names once. A name that does not resolve keeps its known addresses.
///
/// # Cancel safety
/// Nothing is lost.
pub(crate) async fn resolve_once(servers: &ServerSet) {
    for address in servers.names() {
        match lookup(&address).await {
            Ok(found) => servers.record_resolved(&address, found),
            Err(why) => {
                warn!(server = %address.authority, why, "the name of an API server does not resolve");
            }
        }
    }
}

/// Resolves names until the future is dropped.
///
/// # Cancel safety
/// Nothing is lost.
pub(crate) async fn run(servers: Arc<ServerSet>) {
    loop {
        let _ = timeout(INTERVAL, servers.wait_for_resolve_request()).await;
        resolve_once(&servers).await;
        tokio::time::sleep(MIN_INTERVAL).await;
    }
}

async fn lookup(address: &ServerAddress) -> Result<Vec<SocketAddr>, String> {
    let target = (
        address.authority.host(),
        ServerAddress::port(&address.authority),
    );
    match timeout(LOOKUP_TIMEOUT, lookup_host(target)).await {
        Ok(found) => found.map(Iterator::collect).map_err(|why| why.to_string()),
        Err(_) => Err(format!("no answer within {}s", LOOKUP_TIMEOUT.as_secs())),
    }
}
