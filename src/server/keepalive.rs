//! TCP keepalive: the kernel detects clients that have disappeared.
//!
//! HTTP/2 PING would detect them as well, but with it the library reads the clock for every frame,
//! which costs a thirtieth of a rejection. kube-apiserver relies on TCP, too.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tracing::debug;

/// The idle time before the first probe: kube-apiserver's keepalive period for client connections.
const KEEPALIVE_TIME: Duration = Duration::from_secs(180);

/// The idle time and the timeout of probes on HTTP/2 connections, which may carry hundreds of
/// watches. The values are client-go's `HTTP2_READ_IDLE_TIMEOUT_SECONDS` and
/// `HTTP2_PING_TIMEOUT_SECONDS`, applied in the other direction.
const HTTP2_KEEPALIVE_TIME: Duration = Duration::from_secs(30);
const HTTP2_KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(15);

/// The number of probes within [`HTTP2_KEEPALIVE_TIMEOUT`].
const HTTP2_KEEPALIVE_RETRIES: u32 = 3;

/// Enables keepalive on any connection.
pub(super) fn enable(tcp: &TcpStream) {
    set_keepalive(tcp, &TcpKeepalive::new().with_time(KEEPALIVE_TIME));
}

/// Enables keepalive with shorter intervals, and `TCP_USER_TIMEOUT`. An HTTP/2 client reads its
/// socket all the time, since slow readers of its streams only stop HTTP/2's flow control. A client
/// that has not taken data from the socket for that long is therefore gone, or its process is
/// stopped: see [`allow_pauses`].
pub(super) fn enable_http2(tcp: &TcpStream) {
    let keepalive = TcpKeepalive::new()
        .with_time(HTTP2_KEEPALIVE_TIME)
        .with_interval(HTTP2_KEEPALIVE_TIMEOUT / HTTP2_KEEPALIVE_RETRIES)
        .with_retries(HTTP2_KEEPALIVE_RETRIES);
    set_keepalive(tcp, &keepalive);
    #[cfg(target_os = "linux")] // other systems have no such option
    if let Err(why) = SockRef::from(tcp)
        .set_tcp_user_timeout(Some(HTTP2_KEEPALIVE_TIME + HTTP2_KEEPALIVE_TIMEOUT))
    {
        debug!(%why, "a client's connection has no time-out");
    }
}

/// Lets the process of an HTTP/2 client stop (a suspended terminal): the kernel does not end a
/// connection any more whose client acknowledges and takes nothing. Keepalive stays; a client that
/// has disappeared with unacknowledged data is found when the kernel has retransmitted it for 15
/// minutes.
pub(super) fn allow_pauses(tcp: &TcpStream) {
    #[cfg(target_os = "linux")]
    if let Err(why) = SockRef::from(tcp).set_tcp_user_timeout(None) {
        debug!(%why, "a client's connection keeps its time-out");
    }
}

/// Sets the socket options. An error is logged and ignored: the connection works without them.
fn set_keepalive(tcp: &TcpStream, keepalive: &TcpKeepalive) {
    if let Err(why) = SockRef::from(tcp).set_tcp_keepalive(keepalive) {
        debug!(%why, "cannot set TCP keepalive on a client's connection");
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
        allow_pauses(&tcp);
        assert_eq!(socket.tcp_user_timeout().unwrap(), None);
    }
}
