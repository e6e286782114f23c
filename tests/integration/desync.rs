//! No request gets the response of another: connections to the API server are shared by users.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "most behaviours of a server are alike in most respects"
)]

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use fastrand::Rng;
use h2::Reason;
use h2::client::SendRequest;
use http::Request;
use rustls::ClientConfig;
use tokio::task::JoinSet;

use crate::support::certificates::{client_tls_config, pki};
use crate::support::client::TestRequest;
use crate::support::fake_upstream::{Exchange, FakeUpstream, RawUpstream};
use crate::support::message::{Framing, Headers, ReceivedResponse};
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::Weir;
use crate::support::{HttpVersion, UnexpectedEnd, eventually, weir, within};
use ::weir::upstream::UpstreamProtocol;

const LIST: &str = "/api/v1/pods";

/// How often a response of the server names its request.
const MARKS: usize = 30;

async fn start(address: SocketAddr, protocol: UpstreamProtocol) -> Weir {
    let builder = weir::builder(address);
    let builder = builder.with(|config| config.upstream.protocol = protocol);
    builder.start().await
}

/// When bytes arrive that no request asked for.
#[derive(Clone, Copy, Debug)]
enum Surplus {
    /// In the same record as the end of the response.
    Glued,
    /// In a record of their own, right after.
    NextRecord,
    /// Once the client has the response.
    Later,
}

#[tokio::test]
async fn a_connection_with_unasked_bytes_serves_no_further_request() {
    const SURPLUS: &str = "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\nunasked";
    for surplus in [Surplus::Glued, Surplus::NextRecord, Surplus::Later] {
        for (status, body) in [(200, "own"), (204, "")] {
            for next in [TestRequest::get(LIST), TestRequest::post(LIST, "{}")] {
                let upstream = RawUpstream::start().await;
                let weir = start(upstream.address, UpstreamProtocol::Http1).await;
                let mut client = weir.alice(HttpVersion::Http1);
                let call = client.send(TestRequest::get(LIST)).await;
                let io = upstream.accept_trusted(HttpVersion::Http1).await;
                let mut first = RawHttp1::new(io);
                first.read_request_head().await;
                let length = match status {
                    204 => String::new(),
                    _ => format!("content-length: {}\r\n", body.len()),
                };
                let answer = format!("HTTP/1.1 {status} Said\r\n{length}\r\n{body}");
                match surplus {
                    Surplus::Glued => first.send(format!("{answer}{SURPLUS}")).await,
                    Surplus::NextRecord => {
                        first.send(answer).await;
                        first.send(SURPLUS).await;
                    }
                    Surplus::Later => first.send(answer).await,
                }
                let response = call.response().await;
                assert_eq!((response.status, response.text()), (status, body));
                if matches!(surplus, Surplus::Later) {
                    first.send(SURPLUS).await;
                }
                let call = client.send(next.clone()).await;
                let io = upstream.accept_trusted(HttpVersion::Http1).await;
                let mut second = RawHttp1::new(io);
                second.read_request_head().await;
                second
                    .send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nasked")
                    .await;
                assert_eq!(call.response().await.text(), "asked", "{surplus:?}");
                first.reader.wait_for_close().await;
            }
        }
    }
}

/// How many requests are sent; a million with `NIGHTLY=1`.
const EXCHANGES: usize = 20_000;

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Behaviour {
    /// Answers when it has the whole request.
    Plain,
    /// Answers before the request's body has arrived.
    Early,
    /// Answers after others.
    Late,
    /// Answers with an error of its own.
    Error,
    /// Answers in pieces, with trailers.
    Pieces,
    /// HTTP/1.1: answers as long as the connection.
    UntilClose,
    /// HTTP/1.1: answers after another head, which is informational.
    Hints,
    /// HTTP/1.1: answers twice.
    Twice,
    /// HTTP/1.1: sends bytes behind its answer.
    Garbage,
    /// HTTP/1.1: sends an informational head behind its answer.
    HintsBehind,
    /// Resets the stream or closes the connection, at this place.
    Reset(Place),
    /// Ends the connection without a word, at this place.
    Cut(Place),
    /// HTTP/2: sends GOAWAY, at this place, and answers.
    GoAway(Place),
    /// HTTP/2: sends GOAWAY, and refuses the stream.
    GoAwayRefused,
    /// HTTP/2: refuses the stream.
    Refused,
}

/// A place in an exchange, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The request's body has not been read.
    BeforeBody,
    BeforeHead,
    AfterHead,
    InBody,
    /// The response is sent but for its end.
    BeforeEnd,
    AfterEnd,
}

/// Half of the requests are answered plainly; the others share all of these.
const BEHAVIOURS: [Behaviour; 29] = {
    use Behaviour::{Cut, GoAway, Reset};
    use Place::{AfterEnd, AfterHead, BeforeBody, BeforeEnd, BeforeHead, InBody};
    [
        Behaviour::Plain,
        Behaviour::Early,
        Behaviour::Late,
        Behaviour::Error,
        Behaviour::Pieces,
        Behaviour::UntilClose,
        Behaviour::Hints,
        Behaviour::Twice,
        Behaviour::Garbage,
        Behaviour::HintsBehind,
        Reset(BeforeBody),
        Reset(BeforeHead),
        Reset(AfterHead),
        Reset(InBody),
        Reset(BeforeEnd),
        Cut(BeforeBody),
        Cut(BeforeHead),
        Cut(AfterHead),
        Cut(InBody),
        Cut(BeforeEnd),
        Cut(AfterEnd),
        GoAway(BeforeBody),
        GoAway(BeforeHead),
        GoAway(AfterHead),
        GoAway(InBody),
        GoAway(BeforeEnd),
        GoAway(AfterEnd),
        Behaviour::GoAwayRefused,
        Behaviour::Refused,
    ]
};

impl Behaviour {
    /// The behaviour that a target names.
    fn of_target(target: &str) -> Self {
        let number = target.rsplit('.').next().unwrap();
        BEHAVIOURS[number.parse::<usize>().unwrap()]
    }

    /// The status that a client without weir would get. `None` if it would get an error.
    fn direct_status(self) -> Option<u16> {
        match self {
            Self::Error => Some(503),
            Self::Cut(Place::AfterEnd) => Some(200),
            Self::Cut(_) | Self::Reset(_) => None,
            Self::GoAwayRefused | Self::Refused => None,
            _ => Some(200),
        }
    }

    /// What may become of an exchange whose connection no other exchange ends.
    fn possible_outcomes(self, http: HttpVersion) -> &'static [Outcome] {
        use Outcome::{Broken, Direct, Own, Unsent};
        let ends = match self {
            Self::Reset(place) | Self::Cut(place) => place,
            Self::GoAwayRefused | Self::Refused => Place::BeforeHead,
            _ => Place::AfterEnd,
        };
        let is_refused = matches!(self, Self::GoAwayRefused | Self::Refused);
        match (ends, http) {
            (_, HttpVersion::Http2) if is_refused => &[Unsent],
            (Place::BeforeBody | Place::BeforeHead, HttpVersion::Http1) => &[Own],
            (Place::AfterEnd, HttpVersion::Http1) => &[Direct],
            (_, HttpVersion::Http1) => &[Broken],
            // A GOAWAY can refuse any stream that the server has not seen.
            (Place::BeforeBody | Place::BeforeHead, HttpVersion::Http2) => &[Own, Unsent],
            (Place::AfterEnd, HttpVersion::Http2) => &[Direct, Unsent],
            // The library may drop what it has not sent before a reset.
            (_, HttpVersion::Http2) => &[Broken, Own, Unsent],
        }
    }

    /// Whether weir may send the request again: a stream was refused, or an HTTP/1.1 connection ended
    /// without a byte of a response to a read.
    fn may_be_sent_again(self, exchange: &Exchange) -> bool {
        use Place::{BeforeBody, BeforeHead};
        let is_refused = matches!(self, Self::GoAwayRefused | Self::Refused);
        let is_silent = matches!(self, Self::Cut(BeforeBody | BeforeHead))
            || matches!(self, Self::Reset(BeforeBody | BeforeHead));
        match exchange.connection.http {
            HttpVersion::Http1 => (is_silent || is_refused) && exchange.request.method == "GET",
            HttpVersion::Http2 => is_refused,
        }
    }
}

/// Answers `exchange` in the way that its target says. The target, which names the user and no other
/// request, is repeated in the response. Fails if weir has closed the connection.
async fn answer(mut exchange: Exchange) -> Result<(), UnexpectedEnd> {
    let target = exchange.request.target.clone();
    let own = mark(&target);
    let behaviour = Behaviour::of_target(&target);
    let user = exchange.request.headers.get("x-remote-user");
    assert_eq!(
        user,
        target.split('.').nth(1),
        "the user of another request"
    );
    let early = matches!(
        behaviour,
        Behaviour::Early
            | Behaviour::Refused
            | Behaviour::Reset(Place::BeforeBody)
            | Behaviour::Cut(Place::BeforeBody)
            | Behaviour::GoAway(Place::BeforeBody)
            | Behaviour::GoAwayRefused
    );
    let at = |place| match behaviour {
        Behaviour::Reset(at) | Behaviour::Cut(at) | Behaviour::GoAway(at) => at == place,
        _ => false,
    };
    if at(Place::BeforeBody) {
        let Some(same) = disturb(exchange, behaviour) else {
            return Ok(());
        };
        exchange = same;
    }
    if !early {
        let body = exchange.request_body.read_to_end().await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(body.replace(&own, ""), "", "the body of another request");
    }
    let is_http1 = exchange.connection.http == HttpVersion::Http1;
    let mark = Bytes::from(own.repeat(MARKS));
    match behaviour {
        Behaviour::Late => {
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
        }
        Behaviour::UntilClose
        | Behaviour::Hints
        | Behaviour::Twice
        | Behaviour::Garbage
        | Behaviour::HintsBehind
            if is_http1 =>
        {
            return answer_raw(exchange, behaviour, &mark).await;
        }
        Behaviour::GoAwayRefused => {
            exchange.connection.go_away();
            exchange.reset(Reason::REFUSED_STREAM);
            return Ok(());
        }
        Behaviour::Refused => {
            exchange.reset(Reason::REFUSED_STREAM);
            return Ok(());
        }
        _ => {}
    }
    let length = mark.len().to_string();
    // Without its length, a response is not whole before its end.
    let headers = match behaviour {
        Behaviour::Pieces | Behaviour::Reset(_) | Behaviour::Cut(_) => [("trailer", "x-sum")],
        _ => [("content-length", &*length)],
    };
    let status = if behaviour == Behaviour::Error {
        503
    } else {
        200
    };
    let half = mark.len() / 2;
    let steps = [
        (Place::BeforeHead, None),
        (Place::AfterHead, Some(mark.slice(..half))),
        (Place::InBody, Some(mark.slice(half..))),
        (Place::BeforeEnd, None),
    ];
    for (place, piece) in steps {
        if at(place) {
            // The library sends what it has when its connection is polled.
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let Some(same) = disturb(exchange, behaviour) else {
                return Ok(());
            };
            exchange = same;
        }
        if place == Place::BeforeHead {
            exchange.try_send_head(status, &headers).await?;
        }
        for part in piece.iter().flat_map(|piece| piece.chunks(500)) {
            exchange.try_send(piece_of(&mark, part)).await?;
            if behaviour == Behaviour::Pieces {
                tokio::task::yield_now().await;
            }
        }
    }
    let connection = Arc::clone(&exchange.connection);
    let trailers: &[_] = match behaviour {
        Behaviour::Pieces => &[("x-sum", "1")],
        _ => &[],
    };
    exchange.try_end(trailers).await?;
    match behaviour {
        Behaviour::Cut(Place::AfterEnd) => connection.cut(),
        Behaviour::GoAway(Place::AfterEnd) => connection.go_away(),
        _ => {}
    }
    Ok(())
}

fn piece_of(mark: &Bytes, part: &[u8]) -> Bytes {
    mark.slice_ref(part)
}

/// Does what the behaviour says at its place. Returns the exchange if it goes on.
fn disturb(exchange: Exchange, behaviour: Behaviour) -> Option<Exchange> {
    match behaviour {
        Behaviour::Reset(_) => exchange.reset(Reason::INTERNAL_ERROR),
        Behaviour::Cut(_) => exchange.cut(),
        _ => {
            exchange.connection.go_away();
            return Some(exchange);
        }
    }
    None
}

/// Answers over HTTP/1.1 in ways that a correct library has no words for.
async fn answer_raw(
    exchange: Exchange,
    behaviour: Behaviour,
    mark: &[u8],
) -> Result<(), UnexpectedEnd> {
    let mut raw = exchange.into_raw_http1();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", mark.len());
    let answer = [head.as_bytes(), mark].concat();
    let hints: &[u8] = b"HTTP/1.1 103 Early Hints\r\n\r\n";
    let last = format!(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        mark.len()
    );
    let all = match behaviour {
        Behaviour::Twice => [&answer[..], &answer].concat(),
        Behaviour::Garbage => [&answer[..], b"garbage\r\n\r\n"].concat(),
        Behaviour::HintsBehind => [&answer[..], hints].concat(),
        Behaviour::Hints => [hints, last.as_bytes(), mark].concat(),
        _ => [b"HTTP/1.1 200 OK\r\n\r\n", mark].concat(), // as long as the connection
    };
    raw.writer.send(all).await?;
    if matches!(behaviour, Behaviour::Hints | Behaviour::UntilClose) {
        raw.close().await;
        return Ok(());
    }
    raw.reader.wait_for_close().await;
    Ok(())
}

/// Where a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaves {
    Never,
    /// When it has sent so many bytes, of the head and the body. (Over HTTP/2 a head is whole.)
    Sent(usize),
    /// When it has received so many bytes of the response's body.
    Received(usize),
}

/// What became of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// What the server has answered.
    Direct,
    /// The server's answer, cut off and recognizably so.
    Broken,
    /// weir's own answer: the server may have executed the request.
    Own,
    /// weir's own answer: the server has refused the request, or never got it. Or no answer, since a
    /// connection of the client had ended before.
    Unsent,
    /// No answer, and the end of the connection or stream.
    Nothing,
    /// The client has left.
    Left,
}

/// The answers of weir's own that may stand in for one of the server's.
fn own_answer(status: u16, cause: &str) -> Option<Outcome> {
    match (status, cause) {
        (502, "weir/upstream-reset") => Some(Outcome::Own),
        (503, "weir/upstream-closed" | "weir/upstream-refused") => Some(Outcome::Unsent),
        _ => None,
    }
}

fn mark(target: &str) -> String {
    format!("<{target}>")
}

/// weir's connections to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connections {
    /// HTTP/1.1: no exchange can disturb another.
    Own,
    /// HTTP/2, which no exchange ends without a GOAWAY: the same.
    Shared,
    /// HTTP/2, and some exchanges end the connection of others.
    SharedAndCut,
}

/// A client's requests.
struct Sender {
    connections: Connections,
    endpoints: weir::Endpoints,
    tls: Arc<ClientConfig>,
    user: &'static str,
    name: String,
    random: Rng,
    sent: usize,
}

struct SentExchange {
    target: String,
    behaviour: Behaviour,
    body: Bytes,
    leaves: Leaves,
}

impl SentExchange {
    fn method(&self) -> &'static str {
        if self.body.is_empty() { "GET" } else { "PUT" }
    }

    /// Of the request, over HTTP/1.1.
    fn head(&self) -> String {
        let (method, target, length) = (self.method(), &self.target, self.body.len());
        format!("{method} {target} HTTP/1.1\r\nhost: weir\r\ncontent-length: {length}\r\n\r\n")
    }

    /// Checks that what was received is of this exchange.
    fn check(&self, status: u16, body: &[u8], is_whole: bool) -> Outcome {
        let expected = mark(&self.target).repeat(MARKS);
        if body.starts_with(b"{") {
            assert!(is_whole, "{} got a part of a Status", self.target);
            let value: serde_json::Value = serde_json::from_slice(body).unwrap();
            let cause = value["details"]["causes"][0]["reason"].as_str();
            let outcome = own_answer(status, cause.unwrap_or_default());
            return outcome.unwrap_or_else(|| panic!("{} got {value}", self.target));
        }
        assert!(
            expected.as_bytes().starts_with(body),
            "{} got {}",
            self.target,
            String::from_utf8_lossy(body)
        );
        if !is_whole {
            return Outcome::Broken;
        }
        assert_eq!(body.len(), expected.len(), "{} got a part", self.target);
        let direct = self.behaviour.direct_status();
        assert_eq!(Some(status), direct, "{}", self.target);
        Outcome::Direct
    }
}

impl Sender {
    fn next_exchange(&mut self) -> SentExchange {
        let random = &mut self.random;
        let number = match random.bool() {
            true => random.usize(..BEHAVIOURS.len()),
            false => 0,
        };
        let is_cut = matches!(BEHAVIOURS[number], Behaviour::Cut(_));
        let number = match self.connections {
            Connections::Shared if is_cut => 0,
            // Each of them ends several exchanges.
            Connections::SharedAndCut if is_cut && random.u8(..4) > 0 => 0,
            _ => number,
        };
        self.sent += 1;
        let (user, name, sent) = (self.user, &self.name, self.sent);
        let target = format!("/api/v1/namespaces/a/configmaps/x.{user}.{name}.{sent}.{number}");
        let repeats = match random.u8(..64) {
            0 => 2000, // more than is read before a request goes on
            1..16 => 20,
            16..32 => 1,
            _ => 0,
        };
        let body = Bytes::from(mark(&target).repeat(repeats));
        let leaves = match random.u8(..12) {
            0 => Leaves::Sent(random.usize(..=200 + body.len())),
            1 => Leaves::Received(random.usize(..mark(&target).len() * MARKS)),
            _ => Leaves::Never,
        };
        SentExchange {
            target,
            behaviour: BEHAVIOURS[number],
            body,
            leaves,
        }
    }

    /// Sends requests over HTTP/1.1, one after the other.
    async fn run_http1(mut self, budget: Arc<AtomicUsize>, outcomes: Arc<Outcomes>) {
        let mut connection = None;
        while take_one(&budget) {
            let exchange = self.next_exchange();
            let is_reused = connection.is_some();
            let mut wire: RawHttp1 = match connection.take() {
                Some(wire) => wire,
                None => RawHttp1::new(self.endpoints.connect_tls(Arc::clone(&self.tls)).await),
            };
            let (outcome, keep) = exchange_http1(&mut wire, &exchange).await;
            let outcome = match outcome {
                // A connection may end between two requests, such as after an early answer.
                Outcome::Nothing if is_reused => Outcome::Unsent,
                outcome => outcome,
            };
            outcomes.record(&exchange, self.connections, outcome, is_reused);
            connection = keep.then_some(wire);
        }
    }

    /// Sends requests on one HTTP/2 connection, some at a time.
    async fn run_http2(mut self, budget: Arc<AtomicUsize>, outcomes: Arc<Outcomes>) {
        const STREAMS: usize = 6;
        loop {
            let stream = self.endpoints.connect_tls(Arc::clone(&self.tls)).await;
            let (client, connection) = h2::client::handshake(stream).await.unwrap();
            let mut driver = tokio::spawn(connection);
            let mut streams = JoinSet::new();
            let aborted = Arc::<AtomicBool>::default();
            // Few connections are dropped with their requests in flight.
            let most = self.random.usize(1..400);
            for _ in 0..most {
                if driver.is_finished() {
                    break;
                }
                if streams.len() == STREAMS {
                    streams.join_next().await.unwrap().unwrap();
                }
                if !take_one(&budget) {
                    while let Some(ended) = streams.join_next().await {
                        ended.unwrap();
                    }
                    driver.abort();
                    return;
                }
                let exchange = self.next_exchange();
                let (client, outcomes) = (client.clone(), Arc::clone(&outcomes));
                let (connections, aborted) = (self.connections, Arc::clone(&aborted));
                streams.spawn(async move {
                    let outcome = exchange_http2(client, &exchange).await;
                    let outcome = match outcome.unwrap_or(Outcome::Nothing) {
                        Outcome::Broken | Outcome::Nothing if aborted.load(Ordering::Relaxed) => {
                            Outcome::Left
                        }
                        outcome => outcome,
                    };
                    outcomes.record(&exchange, connections, outcome, false);
                });
            }
            if self.random.bool() {
                aborted.store(true, Ordering::Relaxed);
                driver.abort();
            }
            while let Some(ended) = streams.join_next().await {
                ended.unwrap();
            }
            drop(client);
            let _ = (&mut driver).await;
        }
    }
}

fn take_one(budget: &AtomicUsize) -> bool {
    let left = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        left.checked_sub(1)
    });
    left.is_ok()
}

/// What became of all exchanges.
#[derive(Debug, Default)]
struct Outcomes {
    counts: Mutex<BTreeMap<(Outcome, Behaviour), usize>>,
    /// The targets of requests of which weir says that the server did not execute them.
    unsent: Mutex<Vec<String>>,
}

impl Outcomes {
    fn record(
        &self,
        exchange: &SentExchange,
        connections: Connections,
        outcome: Outcome,
        is_reused: bool,
    ) {
        let behaviour = exchange.behaviour;
        let http = match connections {
            Connections::Own => HttpVersion::Http1,
            Connections::Shared | Connections::SharedAndCut => HttpVersion::Http2,
        };
        let possible = behaviour.possible_outcomes(http);
        assert!(
            outcome == Outcome::Left
                || outcome == Outcome::Unsent && is_reused
                || connections == Connections::SharedAndCut
                || possible.contains(&outcome),
            "{} ({behaviour:?}): {outcome:?}, not {possible:?}",
            exchange.target,
        );
        if outcome == Outcome::Unsent {
            self.unsent.lock().unwrap().push(exchange.target.clone());
        }
        let mut counts = self.counts.lock().unwrap();
        *counts.entry((outcome, behaviour)).or_default() += 1;
    }

    fn count(&self, outcome: Outcome) -> usize {
        let counts = self.counts.lock().unwrap();
        let of = counts.iter().filter(|((other, _), _)| *other == outcome);
        of.map(|(_, count)| count).sum()
    }
}

/// Sends one request, and checks that what comes back is for it. Returns whether the connection can be
/// used again, too.
async fn exchange_http1(wire: &mut RawHttp1, exchange: &SentExchange) -> (Outcome, bool) {
    let all = [exchange.head().as_bytes(), &exchange.body].concat();
    if let Leaves::Sent(bytes) = exchange.leaves {
        let _ = wire.writer.send(&all[..bytes.min(all.len())]).await;
        return (Outcome::Left, false);
    }
    // An early response may come with the end of the connection.
    let sent = wire.writer.send(all).await;
    let Ok(Some(lines)) = wire.reader.read_head().await else {
        return (Outcome::Nothing, false);
    };
    let response = ReceivedResponse::from_lines(&lines);
    let mut framing = Framing::from_response(&response, exchange.method());
    let mut received = Vec::new();
    let mut trailers = Headers::default();
    let is_whole = loop {
        if matches!(exchange.leaves, Leaves::Received(bytes) if received.len() >= bytes) {
            exchange.check_prefix(&received);
            return (Outcome::Left, false);
        }
        match framing.next_chunk(&mut wire.reader, &mut trailers).await {
            Some(Ok(piece)) => received.extend_from_slice(&piece),
            Some(Err(_)) => break false,
            None => break true,
        }
    };
    let outcome = exchange.check(response.status, &received, is_whole);
    let keep = is_whole && sent.is_ok() && response.headers.get("connection") != Some("close");
    (outcome, keep)
}

/// The same on a stream of an HTTP/2 connection.
async fn exchange_http2(
    client: SendRequest<Bytes>,
    exchange: &SentExchange,
) -> Result<Outcome, UnexpectedEnd> {
    let mut client = client.ready().await?;
    let request = Request::builder()
        .method(exchange.method())
        .uri(format!("https://weir{}", exchange.target))
        .header("content-length", exchange.body.len())
        .body(())
        .unwrap();
    let (response, mut stream) = client.send_request(request, exchange.body.is_empty())?;
    if let Leaves::Sent(bytes) = exchange.leaves {
        let bytes = bytes.min(exchange.body.len());
        if bytes > 0 {
            let _ = stream.send_data(exchange.body.slice(..bytes), false);
        }
        tokio::task::yield_now().await;
        return Ok(Outcome::Left);
    }
    if !exchange.body.is_empty() {
        // The server may have answered, and taken the stream back.
        let _ = stream.send_data(exchange.body.clone(), true);
    }
    let (head, mut body) = within("a response", response).await?.into_parts();
    let mut received = Vec::new();
    let is_whole = loop {
        if matches!(exchange.leaves, Leaves::Received(bytes) if received.len() >= bytes) {
            exchange.check_prefix(&received);
            return Ok(Outcome::Left);
        }
        match within("data", body.data()).await {
            Some(Ok(piece)) => {
                let _ = body.flow_control().release_capacity(piece.len());
                received.extend_from_slice(&piece);
            }
            Some(Err(_)) => break false,
            None => break body.trailers().await.is_ok(),
        }
    };
    Ok(exchange.check(head.status.as_u16(), &received, is_whole))
}

impl SentExchange {
    /// Checks the beginning of a body whose rest is not read.
    fn check_prefix(&self, body: &[u8]) {
        let expected = mark(&self.target).repeat(MARKS);
        assert!(
            body.starts_with(b"{") || expected.as_bytes().starts_with(body),
            "{} got {}",
            self.target,
            String::from_utf8_lossy(body)
        );
    }
}

/// Answers all requests, and checks that none is sent twice. Keeps in `seen` which may be.
async fn serve(upstream: &mut FakeUpstream, seen: &Mutex<HashMap<String, bool>>) {
    let mut answers = JoinSet::new();
    loop {
        tokio::select! {
            exchange = upstream.next_exchange_without_timeout() => {
                let target = exchange.request.target.clone();
                let again = Behaviour::of_target(&target).may_be_sent_again(&exchange);
                let before = seen.lock().unwrap().insert(target, again);
                assert_ne!(before, Some(false), "sent twice: {:?}", exchange.request);
                answers.spawn(answer(exchange));
            }
            Some(answered) = answers.join_next() => {
                drop(answered.unwrap()); // weir may have closed the connection
            }
        }
    }
}

/// Waits until nothing is held any more.
async fn assert_nothing_is_held(weir: &Weir) {
    for kind in ["readOnly", "mutating"] {
        let series = format!("apiserver_current_inflight_requests{{request_kind=\"{kind}\"}}");
        weir.wait_for_metric(&series, 0.0).await;
    }
    for name in [
        "apiserver_flowcontrol_current_executing_requests",
        "apiserver_flowcontrol_current_executing_seats",
        "apiserver_flowcontrol_current_inqueue_requests",
        "weir_abandoned_requests",
        "weir_client_connections",
        "weir_request_body_bytes",
        "weir_request_head_bytes",
        "weir_upstream_places_taken",
        "weir_upstream_server_in_flight_requests",
    ] {
        eventually(name, async || {
            let metrics = weir.get_admin("/metrics").await;
            let series = metrics.text().lines().filter(|line| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with([' ', '{']))
            });
            let values =
                series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
            (values.sum::<f64>() == 0.0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn no_response_is_mixed_up_and_no_seat_is_lost_whatever_clients_and_servers_do() {
    const CLIENTS: usize = 12;
    let is_nightly = std::env::var("NIGHTLY").is_ok_and(|value| value == "1");
    let count = if is_nightly { 1_000_000 } else { EXCHANGES };
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for (protocol, connections, with_fairness) in [
        (UpstreamProtocol::Http1, Connections::Own, false),
        (UpstreamProtocol::Http2, Connections::Shared, false),
        (UpstreamProtocol::Auto, Connections::SharedAndCut, true),
    ] {
        let mut upstream = FakeUpstream::start().await;
        let mut builder = weir::builder(upstream.address).limits(128, 128);
        if with_fairness {
            builder = builder.fairness();
        }
        let builder = builder.with(|config| config.upstream.protocol = protocol);
        let weir = builder.start().await;
        let budget = Arc::new(AtomicUsize::new(count.div_ceil(3)));
        let outcomes = Arc::<Outcomes>::default();
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let (user, certificate) =
                [("alice", &pki().alice), ("admin", &pki().admin)][client % 2];
            let http = HttpVersion::BOTH[client / 2 % 2];
            let tls = client_tls_config(&[http.alpn()], Some(certificate));
            let sender = Sender {
                connections,
                endpoints: *weir,
                tls: Arc::new(tls),
                user,
                name: format!("{client}"),
                random: Rng::with_seed(seed.wrapping_add(u64::try_from(client).unwrap())),
                sent: 0,
            };
            let (budget, outcomes) = (Arc::clone(&budget), Arc::clone(&outcomes));
            match http {
                HttpVersion::Http1 => clients.spawn(sender.run_http1(budget, outcomes)),
                HttpVersion::Http2 => clients.spawn(sender.run_http2(budget, outcomes)),
            };
        }
        let seen = Mutex::default();
        let asking = async {
            while let Some(ended) = clients.join_next().await {
                ended.unwrap();
            }
            assert_nothing_is_held(&weir).await;
        };
        tokio::select! {
            () = asking => {}
            () = serve(&mut upstream, &seen) => unreachable!("it serves as long as it is asked"),
        }
        println!("{protocol:?}: {:?}", outcomes.counts);
        for target in &*outcomes.unsent.lock().unwrap() {
            let executed = seen.lock().unwrap().get(target) == Some(&false);
            assert!(!executed, "{target} was executed");
        }
        let [direct, broken, own, left] = [
            Outcome::Direct,
            Outcome::Broken,
            Outcome::Own,
            Outcome::Left,
        ]
        .map(|outcome| outcomes.count(outcome));
        // Each must be common, or little is proven.
        let each = count / 3;
        assert!(direct > each / 3 && broken > each / 50 && own > each / 50 && left > each / 20);
    }
}

/// Alice leaves at one byte after the other, and each time the next request, of another user, gets its
/// own response.
#[tokio::test]
async fn a_client_may_leave_at_every_byte_of_a_request_and_of_a_response() {
    let is_nightly = std::env::var("NIGHTLY").is_ok_and(|value| value == "1");
    // Of a response's body; a prime, so that no end of a mark is left out.
    let step = if is_nightly { 1 } else { 13 };
    let connect = async |weir: &Weir, certificate| {
        let tls = client_tls_config(&[HttpVersion::Http1.alpn()], Some(certificate));
        RawHttp1::new(weir.connect_tls(Arc::new(tls)).await)
    };
    let exchange_of = |user, name, leaves| {
        let target = format!("/api/v1/namespaces/a/configmaps/x.{user}.{name}.0");
        SentExchange {
            behaviour: Behaviour::Plain,
            body: Bytes::from(mark(&target)),
            leaves,
            target,
        }
    };
    for protocol in [UpstreamProtocol::Http1, UpstreamProtocol::Http2] {
        let mut upstream = FakeUpstream::start().await;
        let weir = start(upstream.address, protocol).await;
        let asking = async {
            let mut other = connect(&weir, &pki().admin).await;
            // A request whose last byte is missing, and a response likewise.
            let longest = exchange_of("alice", 9999, Leaves::Never);
            let (head, body) = (longest.head().len(), longest.body.len());
            let sent = (0..head + body).map(Leaves::Sent);
            let received = (0..body * MARKS).step_by(step).map(Leaves::Received);
            for (name, leaves) in sent.chain(received).enumerate() {
                let left = exchange_of("alice", 1000 + name, leaves);
                let mut wire = connect(&weir, &pki().alice).await;
                let (outcome, _) = exchange_http1(&mut wire, &left).await;
                assert!(outcome == Outcome::Left || outcome == Outcome::Direct);
                drop(wire);
                let whole = exchange_of("admin", name, Leaves::Never);
                let next = exchange_http1(&mut other, &whole).await;
                assert_eq!(next, (Outcome::Direct, true), "after {leaves:?}");
            }
            drop(other);
            assert_nothing_is_held(&weir).await;
        };
        let seen = Mutex::default();
        tokio::select! {
            () = asking => {}
            () = serve(&mut upstream, &seen) => unreachable!("it serves as long as it is asked"),
        }
    }
}
