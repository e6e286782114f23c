//! Heads and bodies, as either HTTP has them.

use std::ops::Index;

use bytes::Bytes;
use bytes::BytesMut;
use h2::RecvStream;
use h2::SendStream;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;

use crate::support::Broken;
use crate::support::wire::Reader;
use crate::support::wire::Writer;
use crate::support::within;

/// Headers in order, repeated ones too.
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

    fn of_lines(lines: &[String]) -> Self {
        let headers = lines.iter().map(|line| {
            let (name, value) = line.split_once(':').expect("a header has a colon");
            (name.to_owned(), value.trim().to_owned())
        });
        Self(headers.collect())
    }

    fn of_map(map: &HeaderMap) -> Self {
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

/// `headers` as the library has them.
pub(crate) fn header_map<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).unwrap();
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    map
}

/// What a request's head says.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// As it came.
    pub(crate) target: String,
    /// `Host`, or `:authority`.
    pub(crate) authority: String,
    pub(crate) headers: Headers,
}

impl Asked {
    pub(crate) fn of_lines(lines: &[String]) -> Self {
        let mut words = lines[0].splitn(2, ' ');
        let method = words.next().unwrap().to_owned();
        let rest = words.next().expect("a request line has a target");
        let target = rest.strip_suffix(" HTTP/1.1").expect("HTTP/1.1").to_owned();
        let headers = Headers::of_lines(&lines[1..]);
        Self {
            method,
            target,
            authority: headers.get("host").unwrap_or_default().to_owned(),
            headers,
        }
    }

    /// What a sound API server answers to what weir asks about itself; none to anything else.
    pub(crate) fn good_self_check(&self) -> Option<String> {
        if !self.headers.get("user-agent")?.starts_with("weir/") {
            return None;
        }
        match self.target.rsplit('/').next()? {
            "selfsubjectaccessreviews" => Some("{\"status\":{\"allowed\":true}}".to_owned()),
            "selfsubjectreviews" => {
                let name = self.headers.get("x-remote-user").unwrap_or_default();
                let answer = serde_json::json!({"status": {"userInfo": {"username": name}}});
                Some(answer.to_string())
            }
            _ => None,
        }
    }

    pub(crate) fn of_http2(parts: &http::request::Parts) -> Self {
        let target = parts
            .uri
            .path_and_query()
            .map_or("", |target| target.as_str());
        Self {
            method: parts.method.to_string(),
            target: target.to_owned(),
            authority: parts.uri.authority().map_or("", |a| a.as_str()).to_owned(),
            headers: Headers::of_map(&parts.headers),
        }
    }
}

/// What an answer's head says.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
}

impl Answered {
    pub(crate) fn of_lines(lines: &[String]) -> Self {
        let status = lines[0]
            .split(' ')
            .nth(1)
            .expect("a status line has a code");
        Self {
            status: status.parse().unwrap(),
            headers: Headers::of_lines(&lines[1..]),
        }
    }

    pub(crate) fn of_http2(parts: &http::response::Parts) -> Self {
        Self {
            status: parts.status.as_u16(),
            headers: Headers::of_map(&parts.headers),
        }
    }
}

/// How an HTTP/1.1 body tells its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Chunked,
    Length(u64),
    UntilClose,
}

impl Framing {
    pub(crate) fn of_request(headers: &Headers) -> Self {
        Self::told(headers).unwrap_or(Self::Length(0))
    }

    pub(crate) fn of_answer(answered: &Answered, method: &str) -> Self {
        if method == "HEAD" || matches!(answered.status, 100..200 | 204 | 304) {
            return Self::Length(0);
        }
        Self::told(&answered.headers).unwrap_or(Self::UntilClose)
    }

    fn told(headers: &Headers) -> Option<Self> {
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

    /// The next piece of a body, chunk by chunk; `None` at its end.
    pub(crate) async fn next(
        &mut self,
        reader: &mut Reader,
        trailers: &mut Headers,
    ) -> Option<Result<Bytes, Broken>> {
        match *self {
            Self::Length(0) => None,
            Self::Length(left) => {
                let most = usize::try_from(left).unwrap();
                let piece = match reader.some(most).await {
                    Ok(Some(piece)) => piece,
                    Ok(None) => return Some(Err(Broken("the body is cut short".to_owned()))),
                    Err(broken) => return Some(Err(broken)),
                };
                *self = Self::Length(left - u64::try_from(piece.len()).unwrap());
                Some(Ok(piece))
            }
            Self::UntilClose => reader.some(usize::MAX).await.transpose(),
            Self::Chunked => match chunk(reader, trailers).await {
                Ok(None) => {
                    *self = Self::Length(0);
                    None
                }
                other => other.transpose(),
            },
        }
    }
}

async fn chunk(reader: &mut Reader, trailers: &mut Headers) -> Result<Option<Bytes>, Broken> {
    let line = reader.line().await?;
    let size = line.split(';').next().unwrap_or_default().trim();
    let size = usize::from_str_radix(size, 16)?;
    if size > 0 {
        let bytes = reader.exactly(size).await?;
        assert_eq!(reader.line().await?, "", "a chunk ends where it says");
        return Ok(Some(bytes));
    }
    let mut lines = Vec::new();
    loop {
        let line = reader.line().await?;
        if line.is_empty() {
            *trailers = Headers::of_lines(&lines);
            return Ok(None);
        }
        lines.push(line);
    }
}

/// A body that comes.
pub(crate) struct Incoming {
    source: Source,
    /// Known once the body has ended.
    pub(crate) trailers: Headers,
}

enum Source {
    Http1(Reader, Framing),
    Http2(RecvStream),
}

impl Incoming {
    pub(crate) fn http1(reader: Reader, framing: Framing) -> Self {
        Self {
            source: Source::Http1(reader, framing),
            trailers: Headers::default(),
        }
    }

    pub(crate) fn http2(stream: RecvStream) -> Self {
        Self {
            source: Source::Http2(stream),
            trailers: Headers::default(),
        }
    }

    /// The next piece (one chunk, or one DATA frame) as soon as it is there; `None` at a clean end.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, Broken>> {
        let stream = match &mut self.source {
            Source::Http1(reader, framing) => {
                return framing.next(reader, &mut self.trailers).await;
            }
            Source::Http2(stream) => stream,
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
                            self.trailers =
                                trailers.as_ref().map(Headers::of_map).unwrap_or_default();
                            None
                        }
                        Err(error) => Some(Err(error.into())),
                    };
                }
            }
        }
    }

    /// The next bytes, as text.
    pub(crate) async fn text(&mut self) -> String {
        let piece = self.next().await.expect("the body goes on").unwrap();
        String::from_utf8(piece.to_vec()).unwrap()
    }

    /// All that is left.
    pub(crate) async fn rest(&mut self) -> Result<Bytes, Broken> {
        let mut rest = BytesMut::new();
        while let Some(piece) = self.next().await {
            rest.extend_from_slice(&piece?);
        }
        Ok(rest.freeze())
    }

    /// The connection, if it is one that serves another message after this; the body must have ended.
    pub(crate) fn into_reader(self) -> Option<Reader> {
        match self.source {
            Source::Http1(reader, Framing::Length(0)) => Some(reader),
            Source::Http1(..) | Source::Http2(_) => None,
        }
    }

    /// The connection, whatever stands on it.
    pub(crate) fn reader(&mut self) -> Option<&mut Reader> {
        match &mut self.source {
            Source::Http1(reader, _) => Some(reader),
            Source::Http2(_) => None,
        }
    }
}

/// A body that goes.
pub(crate) enum Outgoing {
    /// With chunks, or as its head has told.
    Http1 {
        writer: Writer,
        chunked: bool,
    },
    Http2(SendStream<Bytes>),
}

impl Outgoing {
    /// Sends `bytes` as one chunk, or in as many frames as the peer's window asks for.
    pub(crate) async fn send(&mut self, bytes: impl Into<Bytes>) -> Result<(), Broken> {
        let mut bytes: Bytes = bytes.into();
        match self {
            Self::Http1 { writer, chunked } => {
                if *chunked {
                    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
                    chunk.extend_from_slice(&bytes);
                    chunk.extend_from_slice(b"\r\n");
                    bytes = chunk.into();
                }
                writer.send_patiently(&bytes).await.map_err(Broken::from)
            }
            Self::Http2(stream) => {
                while !bytes.is_empty() {
                    stream.reserve_capacity(bytes.len());
                    let capacity = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await;
                    let Some(capacity) = capacity else {
                        return Err(Broken("the stream is closed".to_owned()));
                    };
                    let piece = bytes.split_to(capacity?.min(bytes.len()));
                    stream.send_data(piece, false)?;
                }
                Ok(())
            }
        }
    }

    /// Ends the body, with these trailers.
    pub(crate) async fn end(&mut self, trailers: &[(&str, &str)]) -> Result<(), Broken> {
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
