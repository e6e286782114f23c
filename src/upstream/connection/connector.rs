//! Makes connections to the upstream: TCP (straight or through a CONNECT proxy), TLS, and which HTTP was agreed on.
//!
//! One [`Connector`] for each [`Way`]: what a connection proves is settled by the TLS configuration it is made with.
//! Deliberately not here: keeping connections (`pool`).

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use http::uri::Authority;
use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use socket2::SockRef;
use socket2::TcpKeepalive;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::io::TcpIo;
use crate::upstream::ForwardError;
use crate::upstream::connection::connection_budget::ConnectionBudget;
use crate::upstream::connection::connection_budget::ConnectionPermit;
use crate::upstream::connection::http_settings;
use crate::upstream::headers::AuthMode;

/// Longest that a connection may take from the first packet to the end of the TLS handshake: long enough for a lost
/// SYN or two, short enough for a client to see the failure.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Probes on an idle TCP connection, the only watch over one that speaks HTTP/1.1 or was upgraded: after so long, as client-go's
/// dialer has it, and given up when as much time has gone without an answer as PING has on HTTP/2.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = http_settings::PING_TIMEOUT;
const KEEPALIVE_PROBES: u32 = 3;

/// Where the API server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Host and port to connect to.
    pub authority: Authority,
    /// The name that its certificate is checked against.
    pub server_name: ServerName<'static>,
    /// A proxy that is asked by CONNECT to connect there.
    pub proxy: Option<ProxyAddress>,
}

/// An HTTP proxy (`proxy-url`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyAddress {
    /// Host and port.
    pub authority: Authority,
    /// What stands in `Proxy-Authorization`, if the URL had a user.
    pub authorization: Option<HeaderValue>,
}

impl ServerAddress {
    /// The port, 443 where the authority has none.
    fn port(authority: &Authority) -> u16 {
        authority.port_u16().unwrap_or(443)
    }
}

/// Which HTTP a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// A connection, HTTP not yet spoken.
pub trait IoStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> IoStream for T {}

/// A TLS connection to the upstream.
pub type TlsConnection = TokioIo<TlsStream<Box<dyn IoStream>>>;

/// Makes connections for the way `W`.
pub struct Connector<W> {
    address: ServerAddress,
    /// ALPN h2 and http/1.1, or http/1.1 only where the way wants it.
    tls_any_alpn: Arc<ClientConfig>,
    /// ALPN http/1.1 only: for upgrades, which HTTP/2 has none of, and for what is to have a connection to itself.
    tls_http1: Arc<ClientConfig>,
    /// Where clients' requests have their connections; weir's own are few.
    connection_budget: Option<ConnectionBudget>,
    mode: PhantomData<W>,
}

impl<W: AuthMode> Connector<W> {
    /// Connects to `target` with `tls` (its ALPN is set here), as far as there is `room`, if that is bounded.
    #[must_use]
    pub fn new(target: ServerAddress, tls: ClientConfig, room: Option<ConnectionBudget>) -> Self {
        let mut http1 = tls.clone();
        http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        let mut any = tls;
        any.alpn_protocols = http1.alpn_protocols.clone();
        if W::HTTP2 {
            any.alpn_protocols.insert(0, b"h2".to_vec());
        }
        Self {
            address: target,
            tls_any_alpn: Arc::new(any),
            tls_http1: Arc::new(http1),
            connection_budget: room,
            mode: PhantomData,
        }
    }

    /// Where clients' requests have their places; weir's own need none.
    pub(in crate::upstream) const fn connection_budget(&self) -> Option<&ConnectionBudget> {
        self.connection_budget.as_ref()
    }

    /// Host and port of the upstream.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.address.authority
    }

    /// A new connection, and what to speak on it.
    ///
    /// # Errors
    /// Why there is none; nothing of a request has been sent then.
    ///
    /// # Cancel safety
    /// Dropping the future closes what was opened.
    pub async fn connect(&self) -> Result<(TlsConnection, Protocol), ForwardError> {
        self.connect_tls(Arc::clone(&self.tls_any_alpn)).await
    }

    /// A new connection that speaks HTTP/1.1.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    ///
    /// # Cancel safety
    /// As [`Connector::connect`].
    pub async fn connect_http1(&self) -> Result<TlsConnection, ForwardError> {
        self.connect_tls(Arc::clone(&self.tls_http1))
            .await
            .map(|(connection, _)| connection)
    }

    async fn connect_tls(
        &self,
        tls: Arc<ClientConfig>,
    ) -> Result<(TlsConnection, Protocol), ForwardError> {
        let place = self
            .connection_budget
            .as_ref()
            .map(ConnectionBudget::acquire_connection)
            .transpose()?;
        timeout(CONNECT_TIMEOUT, async {
            let tcp = self.open_transport(place).await?;
            let stream = TlsConnector::from(tls)
                .connect(self.address.server_name.clone(), tcp)
                .await
                .map_err(|why| ForwardError::Tls(Arc::new(why)))?;
            let (_, session) = stream.get_ref();
            let protocol = match session.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            Ok((TokioIo::new(stream), protocol))
        })
        .await
        .unwrap_or(Err(ForwardError::ConnectTimeout(CONNECT_TIMEOUT)))
    }

    async fn open_transport(
        &self,
        place: Option<ConnectionPermit>,
    ) -> Result<Box<dyn IoStream>, ForwardError> {
        match &self.address.proxy {
            None => Ok(Box::new(dial(&self.address.authority, place).await?)),
            Some(proxy) => connect_via_proxy(proxy, &self.address.authority, place).await,
        }
    }
}

impl<W: AuthMode> std::fmt::Debug for Connector<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connector<{}>({})", W::NAME, self.address.authority)
    }
}

async fn dial(
    authority: &Authority,
    place: Option<ConnectionPermit>,
) -> Result<TcpIo<Option<ConnectionPermit>>, ForwardError> {
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']');
    let stream = TcpStream::connect((host, ServerAddress::port(authority)))
        .await
        .map_err(|why| ForwardError::Connect(Arc::new(why)))?;
    let _ = stream.set_nodelay(true); // a connection without it works, if slower
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_TIMEOUT / KEEPALIVE_PROBES)
        .with_retries(KEEPALIVE_PROBES);
    let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
    Ok(TcpIo::new(stream, place))
}

/// Asks `proxy` for a tunnel to `target`.
async fn connect_via_proxy(
    proxy: &ProxyAddress,
    target: &Authority,
    place: Option<ConnectionPermit>,
) -> Result<Box<dyn IoStream>, ForwardError> {
    let stream = dial(&proxy.authority, place).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|why| ForwardError::Proxy(Arc::new(why)))?;
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
        .map_err(|why| ForwardError::Proxy(Arc::new(why)))?;
    if !response.status().is_success() {
        return Err(ForwardError::ProxyRejected(response.status()));
    }
    let upgraded = hyper::upgrade::on(response)
        .await
        .map_err(|why| ForwardError::Proxy(Arc::new(why)))?;
    Ok(Box::new(TokioIo::new(upgraded)))
}
