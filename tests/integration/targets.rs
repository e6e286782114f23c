//! A request target goes on byte for byte, or is refused: what is classified is what the API server sees.

use crate::support::Http;
use crate::support::client::Ask;
use crate::support::frames;
use crate::support::frames::Frame;
use crate::support::frames::Frames;
use crate::support::upstream::Upstream;
use crate::support::weir;
use crate::support::weir::Weir;
use crate::support::wire::Wire;

/// Odd, and right.
const FORWARDED: [&str; 21] = [
    "/",
    "/?",
    "/api/v1/pods?",
    "/api/v1/pods??watch=true",
    "//api//v1//pods//",
    "/api/v1/namespaces/a/pods/b%2Flog",
    "/api/v1/namespaces/a/pods/b%2flog?x=%2f",
    "/api/v1/namespaces/a/services/http:web:80/proxy//x;y=1/../z/./?a;b&c",
    "/api/v1/pods?labelSelector=a%3Db%2Cc+in+(d,e)&limit=500&limit=1",
    "/api/v1/pods?fieldSelector=metadata.name%3Da&&&=&=b&c=",
    "/api/v1/pods?continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEi-_.~!$'()*,@",
    "/%61pi/v1/pods",
    "/api/v1/%70ods",
    "/api/v1/pods/%C3%A9",
    "/api/v1/pods/\u{e9}",
    "/api/v1/pods?name=\u{e9}",
    "/api/v1/pods?bad=%zz%",
    "/a+b/a%20b/a%00b",
    "/a|b",
    "/a:80@b,c;d=e/-_.!~*'()",
    "/api/v1/pods?a=b?c=d/e:f@g",
];

async fn before_http1() -> (Weir, Upstream) {
    let upstream = Upstream::preferring(Http::One).await;
    let weir = weir::before(upstream.address).start().await;
    (weir, upstream)
}

/// A client and an upstream, and what becomes of one target after the other between them.
struct Between {
    weir: Weir,
    upstream: Upstream,
    http1: Option<Wire>,
    http2: Option<(Frames, u32)>,
}

impl Between {
    async fn new() -> Self {
        let (weir, upstream) = before_http1().await;
        Self {
            weir,
            upstream,
            http1: None,
            http2: None,
        }
    }

    /// What becomes of `target` by HTTP/1.1: as the upstream sees it, or the code of the refusal.
    async fn by_http1(&mut self, target: &str) -> Result<String, u16> {
        let mut wire = match self.http1.take() {
            Some(wire) => wire,
            None => self.weir.wire().await,
        };
        wire.send(format!("GET {target} HTTP/1.1\r\nhost: weir\r\n\r\n"))
            .await;
        tokio::select! {
            exchange = self.upstream.next() => {
                let seen = exchange.asked.target.clone();
                exchange.reply(200, "{}").await;
                assert_eq!(wire.answer("GET").await.0.status, 200);
                self.http1 = Some(wire);
                Ok(seen)
            }
            answered = wire.reader.head() => {
                let head = answered.unwrap().expect("an answer");
                self.upstream.assert_nothing_came();
                Err(head[0].split(' ').nth(1).unwrap().parse().unwrap())
            }
        }
    }

    /// What becomes of `target` by HTTP/2: as the upstream sees it, or how it was refused.
    async fn by_http2(&mut self, target: &str) -> Result<String, Frame> {
        let (mut client, stream) = match self.http2.take() {
            Some(under_way) => under_way,
            None => (self.weir.frames().await, 1),
        };
        client.send(&get(stream, target)).await;
        let became = tokio::select! {
            exchange = self.upstream.next() => {
                let seen = exchange.asked.target.clone();
                exchange.reply(200, "{}").await;
                assert!(client.until(frames::HEADERS).await.is_ok());
                Ok(seen)
            }
            refused = refusal(&mut client) => {
                self.upstream.assert_nothing_came();
                Err(refused)
            }
        };
        if became.as_ref().is_ok_and(|_| stream < 1000) {
            self.http2 = Some((client, stream + 2));
        }
        became
    }
}

/// The frame that says no.
async fn refusal(client: &mut Frames) -> Frame {
    loop {
        let frame = client.next().await.unwrap();
        if matches!(
            frame.kind,
            frames::HEADERS | frames::RST_STREAM | frames::GOAWAY
        ) {
            assert!(!frame.is_ok(), "200, and the upstream has seen nothing");
            return frame;
        }
    }
}

fn get(stream: u32, target: &str) -> Frame {
    let head = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "weir"),
        (":path", target),
    ];
    Frame::request(stream, &head, true)
}

#[tokio::test]
async fn a_target_goes_on_byte_for_byte() {
    let mut between = Between::new().await;
    for target in FORWARDED {
        assert_eq!(between.by_http1(target).await, Ok(target.to_owned()));
        assert_eq!(between.by_http2(target).await, Ok(target.to_owned()));
    }
    let mut upstream = Upstream::start().await;
    let weir = weir::before(upstream.address).start().await;
    let mut client = weir.alice(Http::Two);
    for target in FORWARDED.into_iter().filter(|target| target.is_ascii()) {
        let call = client.send(Ask::get(target)).await;
        let exchange = upstream.next().await;
        let apart = ["%2Flog", "%2flog", "/proxy/"]
            .iter()
            .any(|last| target.contains(last));
        let http = if apart { Http::One } else { Http::Two };
        assert_eq!(
            (exchange.asked.target.as_str(), exchange.peer.http),
            (target, http)
        );
        exchange.reply(200, "{}").await;
        call.answer().await;
    }
}

#[tokio::test]
async fn any_byte_in_a_target_goes_on_as_it_is_or_the_request_is_refused() {
    let mut between = Between::new().await;
    let mut wrong = Vec::new();
    for byte in 0x21..=0x7f_u8 {
        let odd = char::from(byte);
        for target in [format!("/a{odd}b?c"), format!("/a?b{odd}c")] {
            match between.by_http1(&target).await {
                Ok(seen) if seen == target => {}
                Err(400) => {}
                other => wrong.push(format!("HTTP/1.1: {target:?} became {other:?}")),
            }
            match between.by_http2(&target).await {
                Ok(seen) if seen == target => {}
                Ok(_) if odd == '#' => {} // see below
                Err(_) => {}
                other => wrong.push(format!("HTTP/2: {target:?} became {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn a_fragment_is_refused_by_http1_and_by_http2_counts_for_nobody() {
    let mut between = Between::new().await;
    for (target, without) in [
        ("/api/v1/pods#", "/api/v1/pods"),
        ("/api/v1/pods#/log", "/api/v1/pods"),
        ("/api/v1/pods?watch=1#x", "/api/v1/pods?watch=1"),
        ("/#", "/"),
    ] {
        assert_eq!(between.by_http1(target).await, Err(400), "{target}");
        // The library cuts it off before anybody sees it: limits and the upstream see the same.
        assert_eq!(between.by_http2(target).await.as_deref(), Ok(without));
    }
}

#[tokio::test]
async fn a_fragment_is_refused_behind_a_body_that_ends_without_a_newline() {
    const BODY: &str = "{\"a\": \"GET /api/v1/pods#x HTTP/1.1\"}";
    const PODS: &str = "/api/v1/namespaces/a/pods";
    for at_once in [false, true] {
        let (weir, mut upstream) = before_http1().await;
        let mut wire = weir.wire().await;
        let post = format!(
            "POST {PODS} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{BODY}",
            BODY.len()
        );
        let delete = format!("DELETE {PODS}#x HTTP/1.1\r\nhost: weir\r\n\r\n");
        if at_once {
            wire.send(format!("{post}{delete}")).await;
        } else {
            wire.send(post).await;
        }
        let mut exchange = upstream.next().await;
        assert_eq!(exchange.body().await, BODY);
        exchange.reply(201, "{}").await;
        assert_eq!(wire.answer("POST").await.0.status, 201);
        if !at_once {
            wire.send(delete).await;
        }
        assert_eq!(wire.answer("DELETE").await.0.status, 400);
        upstream.assert_nothing_came();
    }
}

#[tokio::test]
async fn what_a_body_says_of_a_fragment_refuses_no_request() {
    const BODY: &str = "log: |\n  GET /api/v1/pods#x\nGET /api/v1/pods#x\n";
    let (weir, mut upstream) = before_http1().await;
    let mut wire = weir.wire().await;
    let length = BODY.len();
    for request in [
        format!("POST /a HTTP/1.1\r\nhost: weir\r\ncontent-length: {length}\r\n\r\n{BODY}"),
        "GET /api/v1/pods HTTP/1.1\r\nhost: weir\r\n\r\n".to_owned(),
    ] {
        wire.send(request).await;
        upstream.next().await.reply(200, "{}").await;
        assert_eq!(wire.answer("GET").await.0.status, 200);
    }
}

#[tokio::test]
async fn what_cannot_be_carried_is_refused_with_400() {
    let mut between = Between::new().await;
    for target in [
        "/a<b",
        "/a b",
        "/a%2",
        "/a%zz",
        "api/v1/pods",
        "?watch=1",
        "http://[::1/api",
        "/a\u{1}b",
    ] {
        assert_eq!(between.by_http1(target).await, Err(400), "{target:?}");
    }
}

#[tokio::test]
async fn a_malformed_path_is_a_bad_request_in_kubernetes_words() {
    let (weir, mut upstream) = before_http1().await;
    let answer = weir.anonymous(Http::Two).get("/api/v1/pods/%2").await;
    let told = answer.told();
    assert_eq!((answer.status, told.reason.as_str()), (400, "BadRequest"));
    assert_eq!(told.cause, "weir/bad-request");
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn what_kube_apiserver_cannot_resolve_is_answered_as_it_does() {
    let (weir, mut upstream) = before_http1().await;
    let answer = weir.anonymous(Http::Two).get("/api/v1/watch").await;
    assert_eq!(answer.status, 500);
    assert!(
        answer
            .text()
            .starts_with("Internal Server Error: \"/api/v1/watch\":"),
        "{answer:?}"
    );
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn connect_is_refused_with_405() {
    let (weir, mut upstream) = before_http1().await;
    let mut wire = weir.wire().await;
    wire.send("CONNECT kube.example:443 HTTP/1.1\r\nhost: kube.example:443\r\n\r\n")
        .await;
    assert_eq!(wire.answered().await.status, 405);
    let mut client = weir.frames().await;
    let head = [(":method", "CONNECT"), (":authority", "kube.example:443")];
    client.send(&Frame::request(1, &head, false)).await;
    let refused = refusal(&mut client).await;
    assert_eq!((refused.kind, refused.stream), (frames::HEADERS, 1));
    upstream.assert_nothing_came();
}

#[tokio::test]
async fn an_absolute_target_is_classified_and_forwarded_by_its_path() {
    let mut between = Between::new().await;
    let seen = between.by_http1("https://weir/api/v1/pods?limit=1").await;
    assert_eq!(seen.as_deref(), Ok("/api/v1/pods?limit=1"));
}

#[tokio::test]
async fn the_server_itself_can_be_asked_for_its_options() {
    for near in Http::BOTH {
        let (weir, mut upstream) = before_http1().await;
        let answered = async {
            match near {
                Http::One => {
                    let mut wire = weir.wire().await;
                    wire.send("OPTIONS * HTTP/1.1\r\nhost: weir\r\n\r\n").await;
                    assert_eq!(wire.answer("OPTIONS").await.0.status, 200);
                }
                Http::Two => {
                    let mut client = weir.frames().await;
                    let head = [
                        (":method", "OPTIONS"),
                        (":scheme", "https"),
                        (":authority", "weir"),
                        (":path", "*"),
                    ];
                    client.send(&Frame::request(1, &head, true)).await;
                    assert!(client.until(frames::HEADERS).await.is_ok());
                }
            }
        };
        let served = async {
            let exchange = upstream.next().await;
            assert_eq!(exchange.asked.target, "*");
            exchange.reply(200, "").await;
        };
        tokio::join!(answered, served);
    }
}
