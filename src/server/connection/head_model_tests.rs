//! Random bytes of an HTTP/1.1 client, read by the library below an [`InspectedStream`] and by a slow
//! model of RFC 9112 as the library reads it.
//!
//! What becomes of the bytes must not depend on how they are divided into reads, must be what the
//! model says, and must be the same without the stream.

#![cfg_attr(fuzzing, allow(unused, reason = "the tests themselves are not there"))]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use fastrand::Rng;
use http::{Method, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::head_monitor::{HeadMonitor, HeadTimer};
use super::inspected_stream::InspectedStream;
use super::write_progress::WriteProgress;
use super::{MAX_HTTP1_BUFFER, MAX_HTTP1_HEADERS};
use crate::pipeline::connection::head_budget::HeadBudget;
use crate::pipeline::reject::invalid_head;
use crate::pipeline::reject::invalid_head::InvalidHead;
use weir_base::metrics::Registry;
use weir_limits::throttling::read_pacing::ReadPacing;

/// How many connections are made up.
const CONNECTIONS: usize = 3_000;

/// A request as it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnderstoodRequest {
    method: String,
    target: String,
    /// Sorted, and without those that only say where the body ends.
    fields: Vec<(String, Vec<u8>)>,
    /// `None` if it breaks off or is malformed.
    body: Option<Vec<u8>>,
    verdict: Result<(), InvalidHead>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Clean,
    /// Within a head.
    Incomplete,
    Invalid,
    /// Within a body, or by one that is malformed.
    Body,
    /// The model does not say.
    Unknown,
}

/// Reads these parts, one at a time, and then the end.
struct Parts {
    parts: VecDeque<Vec<u8>>,
    /// Whether the next part has been waited for.
    waited: bool,
}

impl AsyncRead for Parts {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        if let Some(mut part) = self.parts.pop_front() {
            let rest = part.split_off(part.len().min(buffer.remaining()));
            buffer.put_slice(&part);
            if !rest.is_empty() {
                self.parts.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Parts {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn is_framing(name: &str) -> bool {
    ["content-length", "transfer-encoding"].contains(&name)
}

async fn see(request: Request<Incoming>) -> UnderstoodRequest {
    let (head, body) = request.into_parts();
    let fields = head.headers.iter();
    let mut fields: Vec<_> = fields
        .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
        .filter(|(name, _)| !is_framing(name))
        .collect();
    fields.sort();
    UnderstoodRequest {
        method: head.method.to_string(),
        target: head.uri.to_string(),
        fields,
        verdict: invalid_head::check(&head),
        body: body
            .collect()
            .await
            .ok()
            .map(|body| body.to_bytes().to_vec()),
    }
}

/// Serves a connection as `serve_http1` does. Returns the requests, the end, and whether the
/// library's response to an invalid head was held back.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    monitor: &Arc<HeadMonitor>,
) -> (Vec<UnderstoodRequest>, End, S) {
    let seen = Mutex::new(Vec::new());
    let service = service_fn(|request: Request<Incoming>| {
        monitor.http1_record_request(!request.body().is_end_stream());
        let seen = &seen;
        async move {
            let request = see(request).await;
            seen.lock().push(request);
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let mut connection = http1::Builder::new()
        .timer(HeadTimer::new(monitor))
        .header_read_timeout(Duration::from_secs(10))
        .max_headers(MAX_HTTP1_HEADERS)
        .max_buf_size(MAX_HTTP1_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    let result = Pin::new(&mut connection).await;
    let stream = connection.into_parts().io.into_inner();
    let seen = seen.into_inner();
    let is_broken = seen.last().is_some_and(|request| request.body.is_none());
    let end = match result {
        _ if is_broken => End::Body,
        Ok(()) => End::Clean,
        Err(error) if error.is_parse() => End::Invalid,
        Err(error) if error.is_incomplete_message() => End::Incomplete,
        Err(error) => panic!("{error:?}"),
    };
    (seen, end, stream)
}

fn parts(bytes: &[u8], lengths: impl IntoIterator<Item = usize>) -> Parts {
    let mut rest = bytes;
    let mut parts = VecDeque::new();
    for length in lengths {
        let (part, after) = rest.split_at(length.min(rest.len()));
        if !part.is_empty() {
            parts.push_back(part.to_vec());
        }
        rest = after;
    }
    parts.extend((!rest.is_empty()).then(|| rest.to_vec()));
    let waited = false;
    Parts { parts, waited }
}

async fn serve_inspected(stream: Parts) -> (Vec<UnderstoodRequest>, End) {
    let monitor = HeadMonitor::new(Duration::ZERO, &HeadBudget::new(&Registry::new()), None);
    let stream = InspectedStream {
        stream,
        requests: Arc::default(),
        head_monitor: Arc::clone(&monitor),
        unwritten_bytes: Arc::default(),
        write_progress: WriteProgress::unobserved(),
        pacing: ReadPacing::default(),
        unparsed: bytes::Bytes::new(),
        takes_many_fields: true,
        rejection_response: None,
        response_suppressed: false,
        _guard: (),
    };
    let (seen, end, stream) = serve(stream, &monitor).await;
    // Not the other way round: an answer that is written together with the one before is not held back.
    let is_rejected = end == End::Invalid;
    assert!(is_rejected || !stream.response_suppressed, "an answer");
    (seen, end)
}

/// A reader that says where it stops.
struct Model<'b> {
    rest: &'b [u8],
}

type Step<T> = Result<T, End>;

impl Model<'_> {
    fn byte(&mut self, at_end: End) -> Step<u8> {
        let (first, rest) = self.rest.split_first().ok_or(at_end)?;
        self.rest = rest;
        Ok(*first)
    }

    /// The bytes up to the first one that is not allowed, and that one.
    fn until(&mut self, allowed: impl Fn(u8) -> bool) -> Step<(Vec<u8>, u8)> {
        let mut text = Vec::new();
        loop {
            match self.byte(End::Incomplete)? {
                byte if allowed(byte) => text.push(byte),
                byte => return Ok((text, byte)),
            }
        }
    }

    /// The line break that begins with this byte.
    fn line_break(&mut self, first: u8) -> Step<()> {
        match first {
            b'\n' => Ok(()),
            b'\r' if self.byte(End::Incomplete)? == b'\n' => Ok(()),
            _ => Err(End::Invalid),
        }
    }

    fn request(&mut self) -> Step<(UnderstoodRequest, bool)> {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        while let Some(first @ (b'\r' | b'\n')) = self.rest.first().copied() {
            self.rest = &self.rest[1..];
            if self.rest.is_empty() {
                break; // a half of a line break is none that anything follows
            }
            self.line_break(first)?;
        }
        if self.rest.is_empty() {
            return Err(End::Clean);
        }
        let (method, end) = self.until(is_token)?;
        if method.is_empty() || end != b' ' {
            return Err(End::Invalid);
        }
        let (target, end) = self.until(|b| b > b' ' && b != 0x7f)?;
        if target.is_empty() || end != b' ' || str::from_utf8(&target).is_err() {
            return Err(End::Invalid);
        }
        for expected in *b"HTTP/1." {
            if self.byte(End::Incomplete)? != expected {
                return Err(End::Invalid);
            }
        }
        let is_old = match self.byte(End::Incomplete)? {
            b'0' => true,
            b'1' => false,
            _ => return Err(End::Invalid),
        };
        let end = self.byte(End::Incomplete)?;
        self.line_break(end)?;
        let mut fields = Vec::new();
        loop {
            let (name, end) = self.until(is_token)?;
            if name.is_empty() {
                self.line_break(end)?;
                break;
            }
            if end != b':' {
                return Err(End::Invalid);
            }
            let (value, end) = self.until(|b| b == b'\t' || b >= b' ' && b != 0x7f)?;
            self.line_break(end)?;
            let name = String::from_utf8(name).unwrap().to_ascii_lowercase();
            let blank: &[_] = &[' ', '\t'];
            let value: String = value.iter().map(|b| char::from(*b)).collect();
            let value = value.trim_matches(blank).chars();
            fields.push((
                name,
                value.map(|c| u8::try_from(c).unwrap()).collect::<Vec<u8>>(),
            ));
        }
        let uri = Uri::try_from(&target[..]).map_err(|_| End::Invalid)?;
        self.framed(String::from_utf8(method).unwrap(), &uri, fields, is_old)
    }

    fn framed(
        &mut self,
        method: String,
        uri: &Uri,
        mut fields: Vec<(String, Vec<u8>)>,
        is_old: bool,
    ) -> Step<(UnderstoodRequest, bool)> {
        let lower = |text: &[u8]| text.to_ascii_lowercase();
        let values = |of: &str| -> Vec<&Vec<u8>> {
            fields
                .iter()
                .filter(|(name, _)| name == of)
                .map(|(_, value)| value)
                .collect()
        };
        if method == Method::CONNECT.as_str() || !values("upgrade").is_empty() {
            return Err(End::Unknown);
        }
        let codings = values("transfer-encoding");
        let first_coding = fields
            .iter()
            .position(|(name, _)| name == "transfer-encoding");
        if is_old && !codings.is_empty() {
            return Err(End::Invalid);
        }
        // What follows a coding is not looked at.
        let mut length = None;
        for (name, value) in &fields[..first_coding.unwrap_or(fields.len())] {
            if name == "content-length" {
                let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
                let text = str::from_utf8(value).unwrap_or_default();
                let number = text
                    .parse::<u64>()
                    .ok()
                    .filter(|n| digits && *n < u64::MAX - 1);
                let number = number.ok_or(End::Invalid)?;
                if length.is_some_and(|before| before != number) {
                    return Err(End::Invalid);
                }
                length = Some(number);
            }
        }
        let is_chunked = codings.last().is_some_and(|coding| {
            let last = coding.rsplit(|b| *b == b',').next().unwrap_or_default();
            coding
                .iter()
                .all(|b| b.is_ascii() && (*b >= b' ' || *b == b'\t'))
                && lower(last.trim_ascii()) == b"chunked"
        });
        if !codings.is_empty() && !is_chunked {
            return Err(End::Invalid);
        }
        let says = |word: &str| {
            let lists = values("connection")
                .into_iter()
                .filter(|list| list.is_ascii());
            let words = lists.flat_map(|list| list.split(|b| *b == b','));
            words
                .into_iter()
                .any(|one| lower(one.trim_ascii()) == word.as_bytes())
        };
        let both = !codings.is_empty() && !values("content-length").is_empty();
        let goes_on = !says("close") && (!is_old || says("keep-alive")) && !both;
        let verdict = self.verdict(&values, is_old);
        let body = if is_chunked {
            self.chunks()
        } else {
            let length = usize::try_from(length.unwrap_or(0)).unwrap_or(usize::MAX);
            let body = self.rest.split_at_checked(length);
            self.rest = body.map_or(&[], |(_, rest)| rest);
            body.map(|(body, _)| body.to_vec()).ok_or(End::Body)
        };
        let body = match body {
            Err(End::Unknown) => return Err(End::Unknown),
            body => body.ok(),
        };
        fields.retain(|(name, _)| !is_framing(name));
        fields.sort();
        let target = uri.to_string();
        let seen = UnderstoodRequest {
            method,
            target,
            fields,
            body,
            verdict,
        };
        Ok((seen, goes_on))
    }

    /// What `net/http` checks besides.
    fn verdict<'f>(
        &self,
        values: &impl Fn(&str) -> Vec<&'f Vec<u8>>,
        is_old: bool,
    ) -> Result<(), InvalidHead> {
        let hosts = values("host");
        let codings = values("transfer-encoding");
        let in_host = |b: &u8| b.is_ascii_alphanumeric() || b"!$%&'()*+,-.:;=[]_~".contains(b);
        let expects =
            |value: &&Vec<u8>| value.is_empty() || value.eq_ignore_ascii_case(b"100-continue");
        if hosts.len() > 1 {
            Err(InvalidHead::RepeatedHost)
        } else if codings.len() > 1 || codings.iter().any(|c| !c.eq_ignore_ascii_case(b"chunked")) {
            Err(InvalidHead::TransferEncoding)
        } else if !hosts.iter().all(|host| host.iter().all(in_host)) {
            Err(InvalidHead::MalformedHost)
        } else if hosts.is_empty() && !is_old {
            Err(InvalidHead::MissingHost)
        } else if !values("expect").iter().all(expects) {
            Err(InvalidHead::Expectation)
        } else {
            Ok(())
        }
    }

    fn chunks(&mut self) -> Step<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let mut size = None;
            let mut next = self.byte(End::Body)?;
            while let Some(digit) = char::from(next).to_digit(16) {
                let shifted = size.unwrap_or(0_u64).checked_mul(16).ok_or(End::Body)?;
                size = Some(shifted + u64::from(digit));
                next = self.byte(End::Body)?;
            }
            let size = size.ok_or(End::Body)?;
            while matches!(next, b' ' | b'\t') {
                next = self.byte(End::Body)?;
            }
            if next == b';' {
                while next != b'\r' {
                    next = self.byte(End::Body)?;
                    if next == b'\n' {
                        return Err(End::Body);
                    }
                }
            }
            if next != b'\r' || self.byte(End::Body)? != b'\n' {
                return Err(End::Body);
            }
            if size == 0 {
                // Trailers are not modelled.
                return match (self.byte(End::Body)?, self.byte(End::Body)) {
                    (b'\r', Ok(b'\n')) => Ok(body),
                    (b'\r', _) => Err(End::Body),
                    _ => Err(End::Unknown),
                };
            }
            for _ in 0..size {
                body.push(self.byte(End::Body)?);
            }
            if self.byte(End::Body)? != b'\r' || self.byte(End::Body)? != b'\n' {
                return Err(End::Body);
            }
        }
    }
}

/// The requests, and the end.
fn model(bytes: &[u8]) -> (Vec<UnderstoodRequest>, End) {
    let mut model = Model { rest: bytes };
    let mut seen = Vec::new();
    loop {
        match model.request() {
            Ok((request, goes_on)) => {
                let is_broken = request.body.is_none();
                seen.push(request);
                if is_broken {
                    return (seen, End::Body);
                }
                if !goes_on {
                    return (seen, End::Clean);
                }
            }
            Err(end) => return (seen, end),
        }
    }
}

/// Whether both are the same. The library looks at a head that comes in parts once it is whole: that it
/// is invalid is found earlier if the first part has the fault, and not at all if it never ends. Line
/// ends in place of a head that never ends are left out as those before a head, even `\r\r\n`.
fn is_same(
    found: &(Vec<UnderstoodRequest>, End),
    whole: &(Vec<UnderstoodRequest>, End),
    bytes: &[u8],
) -> bool {
    let is_later = match found.1 {
        End::Incomplete | End::Invalid => true,
        End::Clean => matches!(bytes, [.., b'\r' | b'\n']),
        End::Body | End::Unknown => false,
    };
    found.0 == whole.0 && (found.1 == whole.1 || is_later && whole.1 == End::Invalid)
}

fn pick<T: Copy>(random: &mut Rng, from: &[T]) -> T {
    from[random.usize(..from.len())]
}

#[rustfmt::skip]
const FIELDS: &[&str] = &[
    "host: a", "Host: a:443", "host: a b", "content-length: 5", "Content-Length: 5",
    "content-length: 05", "content-length: 0", "content-length: 5, 5", "content-length: +5",
    "content-length: 18446744073709551616", "content-length:", "transfer-encoding: chunked",
    "Transfer-Encoding: Chunked", "transfer-encoding: gzip, chunked", "transfer-encoding: gzip",
    "transfer-encoding: chunked, gzip", "transfer-encoding: xchunked", "transfer-encoding:\tchunked \t",
    "transfer-encoding : chunked", "transfer-encoding: \x0bchunked", "connection: close", "x: y",
    "connection: keep-alive, x", "connection: Close , x", "expect: 100-continue", "expect: other",
    "x:  a\tb  ", " folded: 1", "x: 1\r\n folded", "x: 1\n\ty", "x: \u{e9}", "no colon", ": 1", "x: a\rb",
];

#[rustfmt::skip]
const BODIES: &[&str] = &[
    "", "", "abcde", "5\r\nabcde\r\n0\r\n\r\n", "5;x=y\r\nabcde\r\n0\r\n\r\n", "5 \r\nabcde\r\n00\r\n\r\n",
    "5\nabcde\n0\n\n", "0\r\n\r\n", "0\r\nx: y\r\n\r\n", "ffffffffffffffff1\r\n", "0x5\r\nabcde\r\n", "\r\n",
];

/// Mostly what is usual.
fn unusual<'t>(random: &mut Rng, usual: &'t str, others: &[&'t str]) -> &'t str {
    match random.u8(..12) {
        0 => pick(random, others),
        _ => usual,
    }
}

/// Requests one behind the other, most of them nearly well-formed.
fn random_bytes(random: &mut Rng) -> Vec<u8> {
    let mut text = String::new();
    for _ in 0..random.usize(1..4) {
        text.push_str(unusual(random, "", &["\r\n", "\n\r\n", "\r"]));
        let method = unusual(random, "POST", &["GET", "PUT", "G@T", "M-SEARCH", "get"]);
        let target = unusual(
            random,
            "/a?x",
            &["/a b", "*", "http://h/x", "/\u{e9}", "/a<b"],
        );
        let version = unusual(random, "1.1", &["1.0", "2.0", "1.1 "]);
        text.push_str(&format!("{method} {target} HTTP/{version}"));
        let line = if random.u8(..8) == 0 { "\n" } else { "\r\n" };
        text.push_str(line);
        if random.u8(..4) > 0 {
            text.push_str(&format!("host: a{line}"));
        }
        let body = random.usize(..5);
        let usual = [
            None,
            Some("content-length: 5"),
            Some("transfer-encoding: chunked"),
        ];
        if let Some(Some(field)) = usual.get(body) {
            text.push_str(&format!("{field}{line}"));
        }
        for _ in 0..random.usize(..8).saturating_sub(5) {
            text.push_str(&format!("{}{line}", pick(random, FIELDS)));
        }
        text.push_str(line);
        text.push_str(match body {
            1 => "abcde",
            2 => BODIES[3 + random.usize(..3)],
            3 => pick(random, BODIES),
            _ => "",
        });
    }
    let mut bytes = text.into_bytes();
    for _ in 0..random.usize(..6).saturating_sub(4) {
        let at = random.usize(..bytes.len());
        match random.u8(..4) {
            0 => bytes[at] = random.u8(..),
            1 => bytes.insert(at, pick(random, b"\r\n :,\0\t\x7f\x80")),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at.max(1)),
        }
    }
    bytes
}

/// Asserts that the bytes of a connection are read as by the model, at once and one by one, and as
/// without the stream. Returns what was read.
pub(crate) async fn compare(seed: u64, bytes: &[u8]) -> (Vec<UnderstoodRequest>, End) {
    let text = bytes.escape_ascii();
    let whole = serve_inspected(parts(bytes, [])).await;
    let (expected, end) = model(bytes);
    if end == End::Unknown {
        assert!(whole.0.starts_with(&expected), "seed {seed}: {text}");
    } else {
        assert_eq!(whole, (expected, end), "seed {seed}: {text}");
    }
    let monitor = HeadMonitor::new(Duration::ZERO, &HeadBudget::new(&Registry::new()), None);
    let (seen, end, _) = serve(parts(bytes, []), &monitor).await;
    assert_eq!(
        (seen, end),
        whole,
        "seed {seed}: without the stream: {text}"
    );
    let one_by_one = serve_inspected(parts(bytes, bytes.iter().map(|_| 1))).await;
    assert!(
        is_same(&one_by_one, &whole, bytes),
        "seed {seed}: byte by byte: {text}: {one_by_one:?}, not {whole:?}"
    );
    whole
}

#[tokio::test]
async fn what_a_client_has_sent_does_not_depend_on_the_reads_and_is_what_the_model_says() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = Rng::with_seed(seed);
    let mut ends = [0; 5];
    let mut requests = 0;
    for _ in 0..CONNECTIONS {
        let bytes = random_bytes(&mut random);
        let text = bytes.escape_ascii();
        let whole = compare(seed, &bytes).await;
        for _ in 0..2 {
            let most = pick(&mut random, &[3, 20, 200]);
            let lengths: Vec<_> = bytes.iter().map(|_| random.usize(1..=most)).collect();
            let divided = serve_inspected(parts(&bytes, lengths.clone())).await;
            assert!(
                is_same(&divided, &whole, &bytes),
                "seed {seed}: {lengths:?} of {text}: {divided:?}, not {whole:?}"
            );
        }
        let (seen, end) = whole;
        requests += seen.len();
        ends[match end {
            End::Clean => 0,
            End::Incomplete => 1,
            End::Invalid => 2,
            End::Body => 3,
            End::Unknown => 4,
        }] += 1;
    }
    println!("{requests} requests; clean, incomplete, invalid, body: {ends:?}");
    assert!(requests > CONNECTIONS / 3);
    assert!(
        ends[..4].iter().all(|count| *count > CONNECTIONS / 200),
        "{ends:?}"
    );
}
