//! Client of weir's admin listener: fetches one snapshot, or streams events and reconnects.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::upstream::tls;
use weir_status::snapshot::StatusSnapshot;
use weir_tokens::bearer::bearer_header;
use weir_top::model::StatusUpdate;

/// Timeout of a connection, a response and an event. weir sends an event each second.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Delay before a reconnect.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Maximum size of an event or a response, in bytes. A history of a thousand levels is smaller.
const MAX_BYTES: usize = 32 << 20;

/// Maximum size of the body of an error that is shown, in bytes.
const MAX_ERROR_BYTES: usize = 4096;

/// The address of an admin listener.
#[derive(Clone, Debug)]
pub(crate) struct AdminUrl {
    /// The URL without a `/` at its end.
    base: String,
    authority: String,
    host: String,
    port: u16,
    is_https: bool,
    /// TLS, and the name that the certificate must be valid for. `None` for plain HTTP.
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// The file with the bearer token.
    token_file: Option<PathBuf>,
}

/// How an admin address is reached over TLS.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AdminAccessArgs {
    /// CA of the certificate of an https admin address (PEM); the system's CAs if not given.
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// The name that this certificate must be valid for; the host of the URL if not given.
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// File with the bearer token for an https admin address.
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl AdminAccessArgs {
    /// The address with what is needed to reach it. Reads the files.
    ///
    /// # Errors
    /// A file cannot be used, or the address is not https and a token would be sent in the clear.
    pub(crate) fn resolve(&self, url: &AdminUrl) -> Result<AdminUrl, String> {
        let Self {
            certificate_authority,
            tls_server_name,
            token_file,
        } = self;
        if !url.is_https {
            let given = [
                ("certificate-authority", certificate_authority.is_some()),
                ("tls-server-name", tls_server_name.is_some()),
                ("token-file", token_file.is_some()),
            ];
            let given = given.iter().find(|(_, is_given)| *is_given);
            return match given {
                Some((flag, _)) => Err(format!("--{flag}: only with an https address")),
                None => Ok(url.clone()),
            };
        }
        let read = |flag: &str, file: &PathBuf| {
            std::fs::read(file).map_err(|why| format!("--{flag}: {}: {why}", file.display()))
        };
        let roots = match certificate_authority {
            Some(file) => {
                let pem = read("certificate-authority", file)?;
                tls::parse_roots(&file.display().to_string(), &pem)
            }
            None => tls::load_system_roots(),
        };
        let roots = roots.map_err(|why| format!("--certificate-authority: {}", why.message))?;
        let name = tls_server_name.as_ref().unwrap_or(&url.host).clone();
        let flag = tls_server_name
            .as_ref()
            .map_or("--admin", |_| "--tls-server-name");
        let name = ServerName::try_from(name).map_err(|why| format!("{flag}: {why}"))?;
        let url = AdminUrl {
            tls: Some((Arc::new(tls::client_config(roots, None)), name)),
            token_file: token_file.clone(),
            ..url.clone()
        };
        url.authorization()?;
        Ok(url)
    }
}

impl AdminUrl {
    /// Parses `http://HOST[:PORT][/PATH]` or the same with `https`. The path serves listeners behind
    /// another proxy.
    ///
    /// # Errors
    /// If it is not such a URL. The message has an example.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let invalid =
            |why: &str| format!("{text:?}: {why}; it should look like http://127.0.0.1:6480");
        let with_scheme = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        let uri: Uri = with_scheme
            .parse()
            .map_err(|why| invalid(&format!("{why}")))?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid("the admin listener speaks http or https")),
        };
        if uri.query().is_some() {
            return Err(invalid("it has no query"));
        }
        let authority = uri.authority().ok_or_else(|| invalid("there is no host"))?;
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") if is_https => 443,
            Some("") => 80,
            Some(port) => port
                .strip_prefix(':')
                .and_then(|port| port.parse().ok())
                .ok_or_else(|| invalid("its port is no number from 1 to 65535"))?,
            None => return Err(invalid("it takes no user")),
        };
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        Ok(Self {
            base: with_scheme.trim_end_matches('/').to_owned(),
            authority: authority.to_string(),
            host: host.to_owned(),
            port,
            is_https,
            tls: None,
            token_file: None,
        })
    }

    /// The header with the token, which is read each time: a service account's lives for an hour.
    fn authorization(&self) -> Result<Option<HeaderValue>, String> {
        let Some(file) = &self.token_file else {
            return Ok(None);
        };
        let wrong = |why: &dyn fmt::Display| format!("--token-file: {}: {why}", file.display());
        let token = std::fs::read(file).map_err(|why| wrong(&why))?;
        let header = bearer_header(String::from_utf8_lossy(&token).trim());
        header.map(Some).map_err(|why| wrong(&why))
    }

    async fn connect(&self) -> Result<Box<dyn Connection>, String> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port));
        let tcp = tcp.await.map_err(|why| why.to_string())?;
        let Some((tls, name)) = &self.tls else {
            return Ok(Box::new(tcp));
        };
        let connector = TlsConnector::from(Arc::clone(tls));
        let stream = connector.connect(name.clone(), tcp).await;
        Ok(Box::new(stream.map_err(|why| why.to_string())?))
    }
}

/// A connection, encrypted or not.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl fmt::Display for AdminUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)
    }
}

/// Fetches one snapshot: of a replica or of `all`, or of the weir that is asked itself.
///
/// # Errors
/// The reason, if there is no response, or if the response is not a snapshot.
///
/// # Cancel safety
/// The connection ends with the future. Nothing is lost.
pub(crate) async fn fetch_snapshot(
    address: &AdminUrl,
    replica: Option<&str>,
) -> Result<StatusSnapshot, String> {
    let path = match replica {
        Some(replica) => format!("/status.json?replicas={replica}"),
        None => "/status.json".to_owned(),
    };
    let response = with_timeout(get(address, &path)).await?;
    let body = Limited::new(response.into_body(), MAX_BYTES).collect();
    let body = with_timeout(async { body.await.map_err(|why| why.to_string()) }).await?;
    serde_json::from_slice(&body.to_bytes()).map_err(|why| format!("not a status: {why}"))
}

/// Fetches a JSON document of the admin listener.
///
/// # Errors
/// The reason, if there is no response, or if the response is not JSON.
///
/// # Cancel safety
/// The connection ends with the future. Nothing is lost.
pub(crate) async fn fetch_json(address: &AdminUrl, path: &str) -> Result<Value, String> {
    let response = with_timeout(get(address, path)).await?;
    let body = Limited::new(response.into_body(), MAX_BYTES).collect();
    let body = with_timeout(async { body.await.map_err(|why| why.to_string()) }).await?;
    serde_json::from_slice(&body.to_bytes()).map_err(|why| format!("not JSON: {why}"))
}

/// Fetches a text of the admin listener.
///
/// # Errors
/// The reason, if there is no response.
///
/// # Cancel safety
/// The connection ends with the future. Nothing is lost.
#[cfg(feature = "tools")]
pub(crate) async fn fetch_text(address: &AdminUrl, path: &str) -> Result<String, String> {
    let response = with_timeout(get(address, path)).await?;
    let body = Limited::new(response.into_body(), MAX_BYTES).collect();
    let body = with_timeout(async { body.await.map_err(|why| why.to_string()) }).await?;
    Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned())
}

/// Opens a stream of the admin listener.
///
/// # Errors
/// The reason, if there is no response.
///
/// # Cancel safety
/// The connection ends with the future.
pub(crate) async fn open_stream(address: &AdminUrl, path: &str) -> Result<Incoming, String> {
    Ok(with_timeout(get(address, path)).await?.into_body())
}

/// Sends updates and connection failures to `updates`, until its receiver or the sender of
/// `replica` is dropped. `replica` is the chosen one or `all`; the stream begins anew when it changes.
///
/// # Cancel safety
/// The connection ends with the future.
pub(crate) async fn stream_updates(
    address: AdminUrl,
    mut replica: watch::Receiver<String>,
    updates: mpsc::Sender<StatusUpdate>,
) {
    loop {
        let path = format!("/status/events?replicas={}", *replica.borrow_and_update());
        let result = tokio::select! {
            result = read_events(&address, &path, &updates) => result,
            changed = replica.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let Err(why) = result else {
            return;
        };
        if updates.send(StatusUpdate::Disconnected(why)).await.is_err() {
            return;
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Sends updates until the connection ends. `Ok` if the receiver of `updates` was dropped.
async fn read_events(
    address: &AdminUrl,
    path: &str,
    updates: &mpsc::Sender<StatusUpdate>,
) -> Result<(), String> {
    let mut body = with_timeout(get(address, path)).await?.into_body();
    let mut parser = EventStreamParser::default();
    loop {
        let frame = timeout(TIMEOUT, body.frame())
            .await
            .map_err(|_| "it sends no more data".to_owned())?
            .ok_or_else(|| "it closed the connection".to_owned())?
            .map_err(|why| why.to_string())?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        for update in parser.push(&data)? {
            if updates.send(update).await.is_err() {
                return Ok(());
            }
        }
    }
}

async fn get(address: &AdminUrl, path: &str) -> Result<Response<Incoming>, String> {
    let stream = address.connect().await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|why| why.to_string())?;
    tokio::spawn(async move {
        let _ = connection.await; // its error also ends the response
    });
    let base: Uri = address.base.parse().map_err(|why| format!("{why}"))?;
    let mut request = Request::get(format!("{}{path}", base.path().trim_end_matches('/')))
        .header(header::HOST, &address.authority)
        .body(Empty::<Bytes>::new())
        .map_err(|why| why.to_string())?;
    if let Some(authorization) = address.authorization()? {
        let headers = request.headers_mut();
        headers.insert(header::AUTHORIZATION, authorization);
    }
    let response = sender.send_request(request).await;
    let response = response.map_err(|why| why.to_string())?;
    match response.status() {
        StatusCode::OK => Ok(response),
        StatusCode::NOT_FOUND => {
            Err("it has no status page: is this weir's admin address?".to_owned())
        }
        code => Err(format!("it answers {code}: {}", body_start(response).await)),
    }
}

/// The first line of an error.
async fn body_start(response: Response<Incoming>) -> String {
    let body = Limited::new(response.into_body(), MAX_ERROR_BYTES).collect();
    let text = body.await.map(|body| body.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).collect()
}

async fn with_timeout<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let result = timeout(TIMEOUT, work).await;
    result.unwrap_or_else(|_| Err(format!("no response within {}s", TIMEOUT.as_secs())))
}

/// Parses server-sent events from chunks of any size.
#[derive(Debug, Default)]
struct EventStreamParser {
    /// A line without its end.
    line: Vec<u8>,
    event: String,
    data: String,
}

impl EventStreamParser {
    /// The events that are complete with these bytes. Unknown events are skipped.
    fn push(&mut self, bytes: &[u8]) -> Result<Vec<StatusUpdate>, String> {
        let mut updates = Vec::new();
        for chunk in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(chunk);
            if self.line.len() + self.data.len() > MAX_BYTES {
                return Err("an event without end".to_owned());
            }
            if chunk.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(&line);
                updates.extend(self.finish_line(line.trim_end_matches(['\r', '\n']))?);
            }
        }
        Ok(updates)
    }

    fn finish_line(&mut self, line: &str) -> Result<Option<StatusUpdate>, String> {
        if let Some(event) = line.strip_prefix("event: ") {
            event.clone_into(&mut self.event);
        } else if let Some(data) = line.strip_prefix("data: ") {
            self.data.push_str(data);
        }
        if !line.is_empty() {
            return Ok(None);
        }
        let (event, data) = (
            std::mem::take(&mut self.event),
            std::mem::take(&mut self.data),
        );
        let invalid = |why: serde_json::Error| format!("not a status: {why}");
        Ok(match event.as_str() {
            "history" => Some(StatusUpdate::History(
                serde_json::from_str(&data).map_err(invalid)?,
            )),
            "snapshot" => Some(StatusUpdate::Snapshot(
                serde_json::from_str(&data).map_err(invalid)?,
            )),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_url_is_a_url_or_host_and_port() {
        let address = AdminUrl::parse("10.0.0.1:6480").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("10.0.0.1", 6480));
        let address = AdminUrl::parse("http://[::1]:81/weir/").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("::1", 81));
        assert_eq!(address.to_string(), "http://[::1]:81/weir");
        let address = AdminUrl::parse("https://weir").unwrap();
        assert_eq!((address.host.as_str(), address.port), ("weir", 443));
        for wrong in [
            "ftp://weir:6480",
            "http://",
            "http://a:b",
            "http://a/?x",
            "http://me@a",
        ] {
            let why = AdminUrl::parse(wrong).unwrap_err();
            assert!(why.contains("http://127.0.0.1:6480"), "{why}");
        }
    }

    #[test]
    fn a_token_is_not_sent_in_the_clear() {
        let access = AdminAccessArgs {
            token_file: Some("token".into()),
            ..AdminAccessArgs::default()
        };
        let url = AdminUrl::parse("http://weir:6480").unwrap();
        let why = access.resolve(&url).unwrap_err();
        assert_eq!(why, "--token-file: only with an https address");
    }

    #[test]
    fn events_are_parsed_whole_from_chunks_of_any_size() {
        let text = b"retry: 2000\n\nevent: history\ndata: {\"everySeconds\":5}\n\nevent: news\ndata: 1\n\nevent: snapshot\ndata: {\"version\":\"1\"}\n\n";
        for size in 1..text.len() {
            let mut parser = EventStreamParser::default();
            let chunks = text.chunks(size);
            let updates: Vec<_> = chunks
                .flat_map(|chunk| parser.push(chunk).unwrap())
                .collect();
            assert!(
                matches!(&updates[..], [StatusUpdate::History(history), StatusUpdate::Snapshot(snapshot)]
                    if history.every_seconds == 5 && snapshot.version == "1"),
                "in pieces of {size}: {updates:?}"
            );
        }
    }

    #[test]
    fn an_event_without_end_is_an_error() {
        let mut parser = EventStreamParser::default();
        let piece = vec![b'x'; 1 << 20];
        assert!((0..64).any(|_| parser.push(&piece).is_err()));
        assert!(parser.line.len() <= MAX_BYTES + piece.len());
    }
}
