//! Opens connections to the upstream: TCP (directly or through a CONNECT proxy), TLS, and the
//! negotiated HTTP version.
//!
//! There is one [`Connector`] for each [`AuthMode`]: its TLS configuration settles what a
//! connection proves. Deliberately not here: keeping connections (`pool`).

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::upstream::connection::address::{LastSocket, ProxyAddress, ServerAddress};
use crate::upstream::connection::connection_budget::{ConnectionBudget, ConnectionPermit};
use crate::upstream::connection::error::ForwardError;
use crate::upstream::connection::http_settings;
use crate::upstream::headers::auth_mode::AuthMode;
use weir_io::deferred_write_errors::DeferredWriteErrors;
use weir_io::tcp::{ReadsAheadOfDriver, TcpIo};

/// Longest time from the first packet to the end of the TLS handshake: long enough for a lost SYN
/// or two, short enough for a client to see the failure.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest time of a look-up where it is known to which address the name led last: as long as the
/// system waits for a name server, and short enough to connect there within [`CONNECT_TIMEOUT`].
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// TCP keep-alive, the only check of a connection that speaks HTTP/1.1 or was upgraded. Probes
/// begin after as long as in client-go's dialer. A connection is closed after as long without an
/// answer as HTTP/2 gives a PING.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);

const KEEPALIVE_TIMEOUT: Duration = http_settings::PING_TIMEOUT;

const KEEPALIVE_PROBES: u32 = 3;

/// `TCP_USER_TIMEOUT`: a connection on which sent data stays unacknowledged for this long is closed,
/// instead of after the 15 minutes that the kernel retransmits. As long as keep-alive takes: the
/// option also bounds keep-alive, which must not close a connection earlier than intended.
const USER_TIMEOUT: Duration = KEEPALIVE_IDLE.saturating_add(KEEPALIVE_TIMEOUT);

/// What an HTTP/1.1 connection is opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Http1Purpose {
    /// One request after the other.
    Requests,
    /// A tunnel, whose far end may take nothing for any time (a command that does not read its
    /// input): the kernel would take that for a dead path.
    Tunnel,
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A byte stream on which HTTP has not begun.
pub(crate) trait IoStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> IoStream for T {}

/// A TLS connection to the upstream.
pub(crate) struct TlsConnection {
    pub(crate) io: TokioIo<TlsIo>,
    /// On until something is written to an HTTP/1.1 connection.
    pub(crate) reads_ahead: ReadsAheadOfDriver,
}

/// The bytes of a TLS connection to the upstream.
pub(crate) type TlsIo = DeferredWriteErrors<TlsStream<Box<dyn IoStream>>>;

/// Opens the connections of one [`AuthMode`].
pub(crate) struct Connector<M> {
    address: ServerAddress,
    /// The `Host` of requests on HTTP/1.1.
    host: HeaderValue,
    /// ALPN h2 and http/1.1, or http/1.1 only where the [`AuthMode`] requires it.
    tls_any_alpn: Arc<ClientConfig>,
    /// ALPN http/1.1 only: for upgrades, which HTTP/2 has none of, and for dedicated connections.
    tls_http1: Arc<ClientConfig>,
    /// The budget for connections of clients' requests; none for weir's own, which are few.
    connection_budget: Option<ConnectionBudget>,
    mode: PhantomData<M>,
}

impl<M: AuthMode> Connector<M> {
    /// Connects to `address` with `tls` (its ALPN is set here), as far as `connection_budget`
    /// allows.
    #[must_use]
    pub(crate) fn new(
        address: ServerAddress,
        tls: ClientConfig,
        connection_budget: Option<ConnectionBudget>,
    ) -> Self {
        let mut http1 = tls.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut any = tls;
        any.alpn_protocols = http1.alpn_protocols.clone();
        if M::HTTP2 {
            any.alpn_protocols.insert(0, b"h2".to_vec());
        }
        // An authority consists of characters that a header value may have.
        let host = HeaderValue::from_str(address.authority.as_str());
        Self {
            host: host.unwrap_or_else(|_| HeaderValue::from_static("upstream")),
            address,
            tls_any_alpn: Arc::new(any),
            tls_http1: Arc::new(http1),
            connection_budget,
            mode: PhantomData,
        }
    }

    /// The budget for clients' requests; weir's own need none.
    pub(crate) const fn connection_budget(&self) -> Option<&ConnectionBudget> {
        self.connection_budget.as_ref()
    }

    /// Whether connections lead through a CONNECT proxy.
    pub(crate) const fn is_proxied(&self) -> bool {
        self.address.proxy.is_some()
    }

    /// Host and port of the upstream.
    #[must_use]
    pub(crate) fn authority(&self) -> &Authority {
        &self.address.authority
    }

    /// The `Host` of requests on HTTP/1.1.
    pub(crate) const fn host(&self) -> &HeaderValue {
        &self.host
    }

    /// Opens a connection. Returns it with the negotiated HTTP version.
    ///
    /// # Errors
    /// The connection failed. Nothing of a request has been sent then.
    ///
    /// # Cancel safety
    /// Dropping the future closes the connection.
    pub(crate) async fn connect(&self) -> Result<(TlsConnection, Protocol), ForwardError> {
        self.connect_tls(Arc::clone(&self.tls_any_alpn), Some(USER_TIMEOUT))
            .await
    }

    /// Opens a connection that speaks HTTP/1.1.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    ///
    /// # Cancel safety
    /// As [`Connector::connect`].
    pub(crate) async fn connect_http1(
        &self,
        purpose: Http1Purpose,
    ) -> Result<TlsConnection, ForwardError> {
        let user_timeout = match purpose {
            Http1Purpose::Requests => Some(USER_TIMEOUT),
            Http1Purpose::Tunnel => None,
        };
        self.connect_tls(Arc::clone(&self.tls_http1), user_timeout)
            .await
            .map(|(connection, _)| connection)
    }

    async fn connect_tls(
        &self,
        tls: Arc<ClientConfig>,
        user_timeout: Option<Duration>,
    ) -> Result<(TlsConnection, Protocol), ForwardError> {
        let permit = self
            .connection_budget
            .as_ref()
            .map(ConnectionBudget::acquire_connection)
            .transpose()?;
        timeout(CONNECT_TIMEOUT, async {
            let reads_ahead = ReadsAheadOfDriver::default();
            let tcp = self
                .open_transport(permit, user_timeout, &reads_ahead)
                .await?;
            let stream = TlsConnector::from(tls)
                .connect(self.address.server_name.clone(), tcp)
                .await
                .map_err(|error| ForwardError::Tls(Arc::new(error)))?;
            let (_, session) = stream.get_ref();
            let protocol = match session.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            if protocol == Protocol::Http1 {
                reads_ahead.enable(); // no request follows bytes that are there already
            }
            let io = TokioIo::new(DeferredWriteErrors::new(stream));
            Ok((TlsConnection { io, reads_ahead }, protocol))
        })
        .await
        .unwrap_or(Err(ForwardError::ConnectTimeout(CONNECT_TIMEOUT)))
    }

    async fn open_transport(
        &self,
        permit: Option<ConnectionPermit>,
        user_timeout: Option<Duration>,
        reads_ahead: &ReadsAheadOfDriver,
    ) -> Result<Box<dyn IoStream>, ForwardError> {
        let address = &self.address;
        match &address.proxy {
            None => {
                let tcp = dial(address, permit, user_timeout).await?;
                Ok(Box::new(tcp.read_ahead_of_driver(reads_ahead)))
            }
            Some(proxy) => {
                let name = host_and_port(&proxy.authority);
                let tcp = watched(TcpStream::connect(name).await, permit, user_timeout)?;
                let tcp = tcp.read_ahead_of_driver(reads_ahead);
                connect_via_proxy(tcp, proxy, &address.authority).await
            }
        }
    }
}

impl<M: AuthMode> std::fmt::Debug for Connector<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connector<{}>({})", M::NAME, self.address.authority)
    }
}

/// Connects to a server.
async fn dial(
    address: &ServerAddress,
    permit: Option<ConnectionPermit>,
    user_timeout: Option<Duration>,
) -> Result<TcpIo<Option<ConnectionPermit>>, ForwardError> {
    let opened = match address.socket {
        Some(socket) => TcpStream::connect(socket).await,
        None => connect_by_name(host_and_port(&address.authority), &address.last_socket).await,
    };
    watched(opened, permit, user_timeout)
}

/// Connects to what a name resolves to. If it does not resolve, connects to where it led last.
async fn connect_by_name(name: (&str, u16), last: &LastSocket) -> io::Result<TcpStream> {
    let resolved: Vec<_> = match last.get() {
        None => lookup_host(name).await?.collect(),
        Some(last) => match timeout(LOOKUP_TIMEOUT, lookup_host(name)).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(_)) | Err(_) => vec![last],
        },
    };
    let stream = TcpStream::connect(&*resolved).await?;
    last.set(stream.peer_addr()?);
    Ok(stream)
}

fn host_and_port(authority: &Authority) -> (&str, u16) {
    let host = authority.host();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    (host, ServerAddress::port(authority))
}

/// A connection that ends when its path is dead.
fn watched(
    opened: io::Result<TcpStream>,
    permit: Option<ConnectionPermit>,
    user_timeout: Option<Duration>,
) -> Result<TcpIo<Option<ConnectionPermit>>, ForwardError> {
    let stream = opened.map_err(|error| ForwardError::Connect(Arc::new(error)))?;
    let _ = stream.set_nodelay(true); // without it a connection is slower, but works
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_TIMEOUT / KEEPALIVE_PROBES)
        .with_retries(KEEPALIVE_PROBES);
    let options = SockRef::from(&stream);
    let _ = options.set_tcp_keepalive(&keepalive);
    let _ = options.set_tcp_user_timeout(user_timeout);
    Ok(TcpIo::new(stream, permit))
}

/// Requests a tunnel to `target` from `proxy`, to which `stream` leads.
async fn connect_via_proxy(
    stream: TcpIo<Option<ConnectionPermit>>,
    proxy: &ProxyAddress,
    target: &Authority,
) -> Result<Box<dyn IoStream>, ForwardError> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| ForwardError::Proxy(Arc::new(error)))?;
    tokio::spawn(connection.with_upgrades());
    let to = format!("{}:{}", target.host(), ServerAddress::port(target));
    let mut request = http::Request::connect(to.as_str()).header(http::header::HOST, to.as_str());
    if let Some(value) = &proxy.authorization {
        request = request.header(http::header::PROXY_AUTHORIZATION, value.clone());
    }
    let request = request
        .body(Empty::<bytes::Bytes>::new())
        .map_err(|_| ForwardError::ProxyRejected(http::StatusCode::BAD_REQUEST))?;
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| ForwardError::Proxy(Arc::new(error)))?;
    if !response.status().is_success() {
        return Err(ForwardError::ProxyRejected(response.status()));
    }
    let upgraded = hyper::upgrade::on(response)
        .await
        .map_err(|error| ForwardError::Proxy(Arc::new(error)))?;
    Ok(Box::new(TokioIo::new(upgraded)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_have_keep_alive_and_a_user_timeout() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let name = "name.invalid";
        let authority = format!("{name}:1").parse().unwrap();
        let address = ServerAddress::new(authority, name.try_into().unwrap()).at(at);
        for user_timeout in [Some(USER_TIMEOUT), None] {
            let stream = dial(&address, None, user_timeout).await.unwrap();
            let options = SockRef::from(stream.tcp());
            assert_eq!(options.tcp_user_timeout().unwrap(), user_timeout);
            assert_eq!(options.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);
        }
        assert_eq!(USER_TIMEOUT.as_secs(), 45);
    }

    #[tokio::test]
    async fn a_name_that_does_not_resolve_leads_where_it_led_last() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let last = LastSocket::default();
        connect_by_name(("127.0.0.1", at.port()), &last)
            .await
            .unwrap();
        let again = connect_by_name(("name.invalid", 1), &last).await.unwrap();
        assert_eq!(again.peer_addr().unwrap(), at);
        let none = LastSocket::default();
        assert!(connect_by_name(("name.invalid", 1), &none).await.is_err());
    }
}
