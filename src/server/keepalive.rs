//! Whether a client is still there: asked by the system, for a connection of which nothing is heard.
//!
//! HTTP/2's PING would ask as well, but the library reads the clock for each frame then, a thirtieth of what a refusal costs.
//! kube-apiserver leaves it to TCP, too.

use std::time::Duration;

use socket2::SockRef;
use socket2::TcpKeepalive;
use tokio::net::TcpStream;
use tracing::debug;

/// kube-apiserver's keep-alive towards clients.
const KEEPALIVE_TIME: Duration = Duration::from_secs(180);

/// client-go's `HTTP2_READ_IDLE_TIMEOUT_SECONDS` and `HTTP2_PING_TIMEOUT_SECONDS`, towards the client: an HTTP/2 connection may
/// have hundreds of watches.
const HTTP2_KEEPALIVE_TIME: Duration = Duration::from_secs(30);
const HTTP2_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(15);

/// How often is asked in [`HTTP2_KEEPALIVE_TIMEOUT`].
const HTTP2_KEEPALIVE_RETRIES: u32 = 3;

/// Asks of any connection, from time to time.
pub(super) fn enable(tcp: &TcpStream) {
    set_keepalive(tcp, &TcpKeepalive::new().with_time(KEEPALIVE_TIME));
}

/// Asks more often. What a client of HTTP/2 does not take from the system for so long it will not take: streams wait for their
/// readers elsewhere.
pub(super) fn enable_http2(tcp: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(HTTP2_KEEPALIVE_TIME)
        .with_interval(HTTP2_KEEPALIVE_TIMEOUT / HTTP2_KEEPALIVE_RETRIES)
        .with_retries(HTTP2_KEEPALIVE_RETRIES);
    set_keepalive(tcp, &keepalive);
    #[cfg(target_os = "linux")] // elsewhere the system has its own
    if let Err(why) = SockRef::from(tcp)
        .set_tcp_user_timeout(Some(HTTP2_KEEPALIVE_TIME + HTTP2_KEEPALIVE_TIMEOUT))
    {
        debug!(%why, "a client's connection has no time-out");
    }
}

/// A connection works without, if less well.
fn set_keepalive(tcp: &TcpStream, keepalive: &TcpKeepalive) {
    if let Err(why) = SockRef::from(tcp).set_tcp_keepalive(keepalive) {
        debug!(%why, "a client's connection is not asked for signs of life");
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_socket_gets_the_keepalive_options() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, _) = tokio::join!(TcpStream::connect(address), listener.accept());
        let tcp = client.unwrap();
        let socket = SockRef::from(&tcp);
        enable(&tcp);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_TIME);
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            None,
            "a reader may pause for as long as it likes"
        );
        enable_http2(&tcp);
        assert_eq!(socket.tcp_keepalive_time().unwrap(), HTTP2_KEEPALIVE_TIME);
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap().as_secs(),
            5,
            "it is gone after 30 s of silence and 15 s without an answer"
        );
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 3);
        assert_eq!(
            socket.tcp_user_timeout().unwrap(),
            Some(Duration::from_secs(45))
        );
    }
}
