//! Heads and bodies of HTTP/1.1 and HTTP/2.

use std::ops::Index;

use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::support::raw_http1::{RawReader, RawWriter};
use crate::support::{UnexpectedEnd, within};

/// Headers in order, including repeated ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Headers(pub(crate) Vec<(String, String)>);

impl Headers {
    /// The first value of `name`.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// Every value of `name`.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        let named = self.0.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    fn from_lines(lines: &[String]) -> Self {
        let headers = lines.iter().map(|line| {
            let (name, value) = line.split_once(':').expect("a header has a colon");
            (name.to_owned(), value.trim().to_owned())
        });
        Self(headers.collect())
    }

    fn from_header_map(map: &HeaderMap) -> Self {
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = map
            .iter()
            .map(|(name, value)| (name.as_str().to_owned(), text(value)));
        Self(headers.collect())
    }
}

impl Index<&str> for Headers {
    type Output = str;
    fn index(&self, name: &str) -> &str {
        match self.get(name) {
            Some(value) => value,
            None => panic!("no {name} among {self:?}"),
        }
    }
}

/// `headers` in the library's form.
pub(crate) fn header_map<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).unwrap();
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    map
}

/// A request head.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    /// The target as it was received.
    pub(crate) target: String,
    /// `Host`, or `:authority`.
    pub(crate) authority: String,
    pub(crate) headers: Headers,
}

impl ReceivedRequest {
    pub(crate) fn from_lines(lines: &[String]) -> Self {
        let mut words = lines[0].splitn(2, ' ');
        let method = words.next().unwrap().to_owned();
        let rest = words.next().expect("a request line has a target");
        let target = rest.strip_suffix(" HTTP/1.1").expect("HTTP/1.1").to_owned();
        let headers = Headers::from_lines(&lines[1..]);
        Self {
            method,
            target,
            authority: headers.get("host").unwrap_or_default().to_owned(),
            headers,
        }
    }

    /// Whether weir itself reads flow schemas or priority levels.
    pub(crate) fn reads_flowcontrol(&self) -> bool {
        let group = "/apis/flowcontrol.apiserver.k8s.io/";
        self.target.starts_with(group) && self.is_of_weir()
    }

    /// Whether it is weir's own probe of readiness.
    pub(crate) fn is_readiness_probe(&self) -> bool {
        self.target == "/readyz" && self.is_of_weir()
    }

    fn is_of_weir(&self) -> bool {
        let agent = self.headers.get("user-agent");
        agent.is_some_and(|agent| agent.starts_with("weir/"))
    }

    /// The response of a healthy API server to weir's own request. `None` for other requests.
    pub(crate) fn self_check_response(&self) -> Option<String> {
        if !self.is_of_weir() {
            return None;
        }
        match self.target.rsplit('/').next()? {
            "selfsubjectaccessreviews" => Some("{\"status\":{\"allowed\":true}}".to_owned()),
            "selfsubjectreviews" => {
                let name = self.headers.get("x-remote-user").unwrap_or_default();
                let response = serde_json::json!({"status": {"userInfo": {"username": name}}});
                Some(response.to_string())
            }
            "version" if self.target == "/version" => Some("{}".to_owned()),
            // What the total follows from.
            "ping" if self.target == "/livez/ping" => Some("ok".to_owned()),
            "default" if self.target == "/api/v1/namespaces/default" => Some("{}".to_owned()),
            leases if leases.starts_with("leases?labelSelector=apiserver.kubernetes.io") => {
                Some("{}".to_owned())
            }
            _ => None,
        }
    }

    pub(crate) fn from_http2(parts: &http::request::Parts) -> Self {
        let target = parts
            .uri
            .path_and_query()
            .map_or("", |target| target.as_str());
        Self {
            method: parts.method.to_string(),
            target: target.to_owned(),
            authority: parts.uri.authority().map_or("", |a| a.as_str()).to_owned(),
            headers: Headers::from_header_map(&parts.headers),
        }
    }
}

/// A response head.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedResponse {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
}

impl ReceivedResponse {
    pub(crate) fn from_lines(lines: &[String]) -> Self {
        let status = lines[0]
            .split(' ')
            .nth(1)
            .expect("a status line has a code");
        Self {
            status: status.parse().unwrap(),
            headers: Headers::from_lines(&lines[1..]),
        }
    }

    pub(crate) fn from_http2(parts: &http::response::Parts) -> Self {
        Self {
            status: parts.status.as_u16(),
            headers: Headers::from_header_map(&parts.headers),
        }
    }
}

/// The framing of an HTTP/1.1 body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Chunked,
    Length(u64),
    UntilClose,
}

impl Framing {
    pub(crate) fn from_request(headers: &Headers) -> Self {
        Self::from_headers(headers).unwrap_or(Self::Length(0))
    }

    pub(crate) fn from_response(answered: &ReceivedResponse, method: &str) -> Self {
        if method == "HEAD" || matches!(answered.status, 100..200 | 204 | 304) {
            return Self::Length(0);
        }
        Self::from_headers(&answered.headers).unwrap_or(Self::UntilClose)
    }

    fn from_headers(headers: &Headers) -> Option<Self> {
        let length = headers.get("content-length");
        match headers.get("transfer-encoding") {
            Some(_) if length.is_some() => panic!("two framings at once: {headers:?}"),
            Some(encoding) => {
                assert_eq!(encoding, "chunked");
                Some(Self::Chunked)
            }
            None => length.map(|length| Self::Length(length.parse().unwrap())),
        }
    }

    /// The next part of a body, chunk by chunk; `None` at its end.
    pub(crate) async fn next_chunk(
        &mut self,
        reader: &mut RawReader,
        trailers: &mut Headers,
    ) -> Option<Result<Bytes, UnexpectedEnd>> {
        match *self {
            Self::Length(0) => None,
            Self::Length(left) => {
                let most = usize::try_from(left).unwrap();
                let piece = match reader.read_some(most).await {
                    Ok(Some(piece)) => piece,
                    Ok(None) => {
                        return Some(Err(UnexpectedEnd("the body is cut short".to_owned())));
                    }
                    Err(broken) => return Some(Err(broken)),
                };
                *self = Self::Length(left - u64::try_from(piece.len()).unwrap());
                Some(Ok(piece))
            }
            Self::UntilClose => reader.read_some(usize::MAX).await.transpose(),
            Self::Chunked => match read_chunk(reader, trailers).await {
                Ok(None) => {
                    *self = Self::Length(0);
                    None
                }
                other => other.transpose(),
            },
        }
    }
}

async fn read_chunk(
    reader: &mut RawReader,
    trailers: &mut Headers,
) -> Result<Option<Bytes>, UnexpectedEnd> {
    let line = reader.read_line().await?;
    let size = line.split(';').next().unwrap_or_default().trim();
    let size = usize::from_str_radix(size, 16)?;
    if size > 0 {
        let bytes = reader.read_exactly(size).await?;
        assert_eq!(reader.read_line().await?, "", "a chunk ends where it says");
        return Ok(Some(bytes));
    }
    let mut lines = Vec::new();
    loop {
        let line = reader.read_line().await?;
        if line.is_empty() {
            *trailers = Headers::from_lines(&lines);
            return Ok(None);
        }
        lines.push(line);
    }
}

/// An incoming body.
pub(crate) struct ReceivedBody {
    source: BodySource,
    /// Set after the end of the body.
    pub(crate) trailers: Headers,
}

enum BodySource {
    Http1(RawReader, Framing),
    Http2(RecvStream),
}

impl ReceivedBody {
    pub(crate) fn http1(reader: RawReader, framing: Framing) -> Self {
        Self {
            source: BodySource::Http1(reader, framing),
            trailers: Headers::default(),
        }
    }

    pub(crate) fn http2(stream: RecvStream) -> Self {
        Self {
            source: BodySource::Http2(stream),
            trailers: Headers::default(),
        }
    }

    /// The next part (one chunk, or one DATA frame) as soon as it arrives; `None` at a clean end.
    pub(crate) async fn next_chunk(&mut self) -> Option<Result<Bytes, UnexpectedEnd>> {
        let stream = match &mut self.source {
            BodySource::Http1(reader, framing) => {
                return framing.next_chunk(reader, &mut self.trailers).await;
            }
            BodySource::Http2(stream) => stream,
        };
        loop {
            match within("data", stream.data()).await {
                Some(Ok(bytes)) if bytes.is_empty() => {}
                Some(Ok(bytes)) => {
                    let _ = stream.flow_control().release_capacity(bytes.len());
                    return Some(Ok(bytes));
                }
                Some(Err(error)) => return Some(Err(error.into())),
                None => {
                    return match within("trailers", stream.trailers()).await {
                        Ok(trailers) => {
                            self.trailers = trailers
                                .as_ref()
                                .map(Headers::from_header_map)
                                .unwrap_or_default();
                            None
                        }
                        Err(error) => Some(Err(error.into())),
                    };
                }
            }
        }
    }

    /// The next bytes as text.
    pub(crate) async fn next_text(&mut self) -> String {
        let piece = self.next_chunk().await.expect("the body goes on").unwrap();
        String::from_utf8(piece.to_vec()).unwrap()
    }

    /// The rest of the body.
    pub(crate) async fn read_to_end(&mut self) -> Result<Bytes, UnexpectedEnd> {
        let mut rest = BytesMut::new();
        while let Some(piece) = self.next_chunk().await {
            rest.extend_from_slice(&piece?);
        }
        Ok(rest.freeze())
    }

    /// The connection, if it is reusable. The body must have ended.
    pub(crate) fn into_reader(self) -> Option<RawReader> {
        match self.source {
            BodySource::Http1(reader, Framing::Length(0)) => Some(reader),
            BodySource::Http1(..) | BodySource::Http2(_) => None,
        }
    }

    /// The connection, in any state.
    pub(crate) fn reader(&mut self) -> Option<&mut RawReader> {
        match &mut self.source {
            BodySource::Http1(reader, _) => Some(reader),
            BodySource::Http2(_) => None,
        }
    }
}

/// An outgoing body.
pub(crate) enum SentBody {
    /// Chunked, or with a content length.
    Http1 {
        writer: RawWriter,
        chunked: bool,
    },
    Http2(SendStream<Bytes>),
}

impl SentBody {
    /// Sends `bytes` as one chunk, or in as many frames as the peer's window requires.
    pub(crate) async fn send(&mut self, bytes: impl Into<Bytes>) -> Result<(), UnexpectedEnd> {
        let mut bytes: Bytes = bytes.into();
        match self {
            Self::Http1 { writer, chunked } => {
                if *chunked {
                    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
                    chunk.extend_from_slice(&bytes);
                    chunk.extend_from_slice(b"\r\n");
                    bytes = chunk.into();
                }
                writer
                    .send_without_timeout(&bytes)
                    .await
                    .map_err(UnexpectedEnd::from)
            }
            Self::Http2(stream) => {
                while !bytes.is_empty() {
                    stream.reserve_capacity(bytes.len());
                    let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                    let Some(capacity) = capacity else {
                        return Err(UnexpectedEnd("the stream is closed".to_owned()));
                    };
                    let piece = bytes.split_to(capacity?.min(bytes.len()));
                    stream.send_data(piece, false)?;
                }
                Ok(())
            }
        }
    }

    /// Ends the body with these trailers.
    pub(crate) async fn end(&mut self, trailers: &[(&str, &str)]) -> Result<(), UnexpectedEnd> {
        match self {
            Self::Http1 { chunked: false, .. } => Ok(()),
            Self::Http1 { writer, .. } => {
                let lines = trailers
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}\r\n"));
                let end = format!("0\r\n{}\r\n", lines.collect::<String>());
                writer.send(end).await
            }
            Self::Http2(stream) if trailers.is_empty() => Ok(stream.send_data(Bytes::new(), true)?),
            Self::Http2(stream) => Ok(stream.send_trailers(header_map(trailers.iter().copied()))?),
        }
    }
}
