//! No request gets the response of another: connections to the API server are shared by users.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use fastrand::Rng;
use h2::Reason;
use tokio::task::JoinSet;

use crate::support::certificates::{IssuedCertificate, pki};
use crate::support::client::TestRequest;
use crate::support::fake_upstream::{Exchange, FakeUpstream, RawUpstream};
use crate::support::message::{Framing, Headers, ReceivedResponse};
use crate::support::raw_http1::RawHttp1;
use crate::support::weir::Weir;
use crate::support::{HttpVersion, UnexpectedEnd, weir};
use ::weir::upstream::UpstreamProtocol;

const LIST: &str = "/api/v1/pods";

/// How often a response of the server names its request.
const MARKS: usize = 50;

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

/// What the server does with a request, by number.
const BEHAVIOURS: usize = 20;

/// Those that do not read the request's body first.
const EARLY: [usize; 7] = [1, 3, 7, 8, 11, 12, 17];

/// Answers `exchange` in the way that its target says, whose name is repeated in the response.
/// Fails if weir has closed the connection.
async fn answer(mut exchange: Exchange) -> Result<(), UnexpectedEnd> {
    let target = exchange.request.target.clone();
    let own = format!("<{target}>");
    let behaviour = target.rsplit('.').next().unwrap_or_default();
    let behaviour = behaviour.parse().unwrap_or_default();
    if !EARLY.contains(&behaviour) {
        let body = exchange.request_body.read_to_end().await?;
        let body = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(body.replace(&own, ""), "", "the body of another request");
    }
    let http1 = exchange.connection.http == HttpVersion::Http1;
    let connection = Arc::clone(&exchange.connection);
    let mark = Bytes::from(own.repeat(MARKS));
    match behaviour {
        // Late.
        2 => {
            for _ in 0..200 {
                tokio::task::yield_now().await;
            }
            respond(exchange, 200, mark).await?;
        }
        // Half of it.
        3 | 4 => {
            let length = mark.len().to_string();
            exchange
                .try_send_head(200, &[("content-length", &length)])
                .await?;
            exchange.try_send(mark.slice(..mark.len() / 2)).await?;
            exchange.reset(Reason::INTERNAL_ERROR);
        }
        5 | 6 | 13..=15 if http1 => answer_raw(exchange, behaviour, &mark).await?,
        7 => exchange.reset(Reason::INTERNAL_ERROR),
        8 => exchange.reset(Reason::REFUSED_STREAM),
        // The connection ends after the response, by itself or with GOAWAY.
        9 => {
            respond(exchange, 200, mark).await?;
            connection.go_away();
        }
        10 => {
            connection.go_away();
            respond(exchange, 200, mark).await?;
        }
        11 => {
            connection.go_away();
            exchange.reset(Reason::REFUSED_STREAM);
        }
        12 => exchange.cut(),
        // Piece by piece, with trailers.
        16 => {
            exchange.try_send_head(200, &[("trailer", "x-sum")]).await?;
            for piece in mark.chunks(500) {
                exchange.try_send(piece.to_vec()).await?;
                tokio::task::yield_now().await;
            }
            exchange.try_end(&[("x-sum", "1")]).await?;
        }
        // A head, then an end.
        17 => {
            exchange.try_send_head(200, &[]).await?;
            exchange.reset(Reason::CANCEL);
        }
        18 => respond(exchange, 503, mark).await?,
        19 => {
            respond(exchange, 200, mark).await?;
            connection.cut();
        }
        _ => respond(exchange, 200, mark).await?,
    }
    Ok(())
}

async fn respond(mut exchange: Exchange, status: u16, body: Bytes) -> Result<(), UnexpectedEnd> {
    let length = body.len().to_string();
    let headers = [("content-length", &*length)];
    exchange.try_send_head(status, &headers).await?;
    exchange.try_send(body).await?;
    exchange.try_end(&[]).await
}

/// Answers over HTTP/1.1 in ways that a correct library has no words for.
async fn answer_raw(
    exchange: Exchange,
    behaviour: usize,
    mark: &[u8],
) -> Result<(), UnexpectedEnd> {
    let mut raw = exchange.into_raw_http1();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", mark.len());
    let answer = [head.as_bytes(), mark].concat();
    let hints: &[u8] = b"HTTP/1.1 103 Early Hints\r\n\r\n";
    let all = match behaviour {
        5 => [&answer[..], &answer].concat(),
        6 => [&answer[..], b"garbage\r\n\r\n"].concat(),
        13 => [&answer[..], hints].concat(),
        14 => [hints, &answer].concat(),
        _ => [b"HTTP/1.1 200 OK\r\n\r\n", mark].concat(), // as long as the connection
    };
    raw.writer.send(all).await?;
    if behaviour >= 14 {
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
    InHead,
    AfterHead,
    InBody,
    AfterRequest,
    AfterResponseHead,
    InResponse,
}

/// Sends marked requests of one user, one after the other. Returns how many were answered whole.
async fn send_marked(
    endpoints: weir::Endpoints,
    certificate: &'static IssuedCertificate,
    user: usize,
    seed: u64,
    count: usize,
) -> usize {
    let mut random = Rng::with_seed(seed);
    let mut whole = 0;
    let mut connection = None;
    for n in 0..count {
        let behaviour = random.usize(..BEHAVIOURS);
        let leaves = match random.u8(..24) {
            0 => Leaves::InHead,
            1 => Leaves::AfterHead,
            2 => Leaves::InBody,
            3 => Leaves::AfterRequest,
            4 => Leaves::AfterResponseHead,
            5 => Leaves::InResponse,
            _ => Leaves::Never,
        };
        let target = format!("/api/v1/namespaces/a/configmaps/{user}.{seed}.{n}.{behaviour}");
        let mut wire: RawHttp1 = match connection.take() {
            Some(wire) => wire,
            None => {
                endpoints
                    .raw_http1_with_certificate(Some(certificate))
                    .await
            }
        };
        let repeats = [0, 1, 2, 4000][random.usize(..4)];
        let body = format!("<{target}>").repeat(repeats);
        let exchange = exchange_marked(&mut wire, &target, &body, leaves);
        if let Ok(keep) = exchange.await {
            whole += 1;
            connection = keep.then_some(wire);
        }
    }
    whole
}

/// Sends one request, and checks that what comes back is for it. Returns whether the connection
/// may be used again.
async fn exchange_marked(
    wire: &mut RawHttp1,
    target: &str,
    body: &str,
    leaves: Leaves,
) -> Result<bool, UnexpectedEnd> {
    let left = || Err(UnexpectedEnd("the client has left".to_owned()));
    let method = if body.is_empty() { "GET" } else { "PUT" };
    let head = format!("{method} {target} HTTP/1.1\r\nhost: weir\r\n");
    if leaves == Leaves::InHead {
        wire.writer.send(head).await?;
        return left();
    }
    let length = body.len();
    wire.writer
        .send(format!("{head}content-length: {length}\r\n\r\n"))
        .await?;
    if leaves == Leaves::AfterHead {
        return left();
    }
    let (half, rest) = body.as_bytes().split_at(length / 2);
    wire.writer.send(half).await?;
    if leaves == Leaves::InBody {
        return left();
    }
    // An early response may come with the end of the connection.
    let sent = wire.writer.send(rest).await;
    if leaves == Leaves::AfterRequest {
        return left();
    }
    let lines = wire.reader.read_head().await?;
    let lines = lines.ok_or_else(|| UnexpectedEnd("no response".to_owned()))?;
    let response = ReceivedResponse::from_lines(&lines);
    if leaves == Leaves::AfterResponseHead {
        return left();
    }
    let expected = format!("<{target}>").repeat(MARKS);
    let mut framing = Framing::from_response(&response, method);
    let mut received = Vec::new();
    let mut trailers = Headers::default();
    while let Some(piece) = framing.next_chunk(&mut wire.reader, &mut trailers).await {
        received.extend_from_slice(&piece?);
        let is_weirs = received.starts_with(b"{"); // a Status
        assert!(
            is_weirs || expected.as_bytes().starts_with(&received),
            "{target} got {}",
            String::from_utf8_lossy(&received)
        );
        if leaves == Leaves::InResponse {
            return left();
        }
    }
    if response.status == 200 {
        assert!(received == expected.as_bytes(), "{target} got a part");
    }
    sent?;
    Ok(response.headers.get("connection") != Some("close"))
}

#[tokio::test]
async fn no_response_is_mixed_up_and_no_seat_is_lost_whatever_clients_and_servers_do() {
    const CLIENTS: usize = 8;
    const REQUESTS: usize = 120;
    let in_flight =
        |kind| format!("apiserver_current_inflight_requests{{request_kind=\"{kind}\"}}");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for protocol in [
        UpstreamProtocol::Auto,
        UpstreamProtocol::Http1,
        UpstreamProtocol::Http2,
    ] {
        let mut upstream = FakeUpstream::start().await;
        let weir = weir::builder(upstream.address)
            .limits(64, 64)
            .with(|config| config.upstream.protocol = protocol)
            .start()
            .await;
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let certificate = [&pki().alice, &pki().admin][client % 2];
            let seed = seed.wrapping_add(u64::try_from(client).unwrap());
            let endpoints: weir::Endpoints = *weir;
            clients.spawn(send_marked(endpoints, certificate, client, seed, REQUESTS));
        }
        let serving = async {
            let mut answers = JoinSet::new();
            loop {
                tokio::select! {
                    exchange = upstream.next_exchange_without_timeout() => {
                        answers.spawn(answer(exchange));
                    }
                    Some(answered) = answers.join_next() => {
                        drop(answered.unwrap()); // weir may have closed the connection
                    }
                }
            }
        };
        let asking = async {
            let mut whole = 0;
            while let Some(count) = clients.join_next().await {
                whole += count.unwrap();
            }
            for kind in ["readOnly", "mutating"] {
                weir.wait_for_metric(&in_flight(kind), 0.0).await;
            }
            weir.wait_for_metric("weir_abandoned_requests", 0.0).await;
            whole
        };
        let whole = tokio::select! {
            whole = asking => whole,
            () = serving => unreachable!("it serves as long as it is asked"),
        };
        assert!(whole > CLIENTS * REQUESTS / 2, "{protocol:?} {whole}");
    }
}
