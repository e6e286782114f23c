//! Clients of weir: a request at a time, by either HTTP.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::client::SendRequest;
use http::Request;
use rustls::ClientConfig;

use crate::support::Broken;
use crate::support::Http;
use crate::support::message::Answered;
use crate::support::message::Framing;
use crate::support::message::Headers;
use crate::support::message::Incoming;
use crate::support::message::Outgoing;
use crate::support::message::header_map;
use crate::support::weir::Door;
use crate::support::wire::Reader;
use crate::support::wire::Wire;
use crate::support::within;

/// A request to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: Body,
}

#[derive(Clone, Debug)]
enum Body {
    Streamed,
    Whole(Bytes),
}

impl Ask {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Body::Whole(Bytes::new()),
        }
    }

    pub(crate) fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    pub(crate) fn post(target: &str, body: impl Into<Bytes>) -> Self {
        let mut ask = Self::new("POST", target);
        ask.body = Body::Whole(body.into());
        ask
    }

    pub(crate) fn method(mut self, method: &str) -> Self {
        self.method = method.to_owned();
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The body comes by [`Call::send`], and its length is not told.
    pub(crate) fn streamed(mut self) -> Self {
        self.body = Body::Streamed;
        self
    }

    /// The request as HTTP/1.1 has it.
    pub(crate) fn to_http1(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nhost: weir\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let body = match &self.body {
            Body::Streamed => {
                text.push_str("transfer-encoding: chunked\r\n");
                &[]
            }
            Body::Whole(body) => {
                if !body.is_empty() {
                    text.push_str(&format!("content-length: {}\r\n", body.len()));
                }
                &body[..]
            }
        };
        [text.as_bytes(), b"\r\n", body].concat()
    }

    fn to_http2(&self) -> Request<()> {
        let mut request = Request::builder()
            .method(self.method.as_str())
            .uri(format!("https://weir{}", self.target))
            .body(())
            .unwrap();
        let mut headers = self.headers.clone();
        if let Body::Whole(body) = &self.body
            && !body.is_empty()
        {
            headers.push(("content-length".to_owned(), body.len().to_string()));
        }
        let pairs = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        *request.headers_mut() = header_map(pairs);
        request
    }
}

/// An answer, whole.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
    pub(crate) body: Bytes,
    pub(crate) trailers: Headers,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as a Status: its code, reason, first cause and message.
    pub(crate) fn told(&self) -> Told {
        let status: serde_json::Value = serde_json::from_slice(&self.body)
            .unwrap_or_else(|why| panic!("no Status, {why}: {:?}", self.body));
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["code"], self.status, "the code is the answer's");
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        Told {
            reason: text(&status["reason"]),
            cause: text(&status["details"]["causes"][0]["reason"]),
            message: text(&status["message"]),
        }
    }
}

/// What a Status tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) reason: String,
    pub(crate) cause: String,
    pub(crate) message: String,
}

/// Speaks one HTTP to weir: HTTP/2 on one connection, HTTP/1.1 on one for each request.
pub(crate) struct Client {
    door: Door,
    tls: Arc<ClientConfig>,
    headers: Vec<(String, String)>,
    http: Http,
    shared: Option<SendRequest<Bytes>>,
}

impl Client {
    /// One whose requests all carry `headers`.
    pub(crate) fn new(door: Door, http: Http, tls: ClientConfig, headers: &[(&str, &str)]) -> Self {
        let headers = headers
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        Self {
            door,
            tls: Arc::new(tls),
            headers: headers.collect(),
            http,
            shared: None,
        }
    }

    /// Sends a request, and its body if it is a whole one.
    pub(crate) async fn send(&mut self, mut ask: Ask) -> Call {
        ask.headers.extend(self.headers.iter().cloned());
        let method = ask.method.clone();
        match self.http {
            Http::One => {
                let mut wire = Wire::new(self.door.dial(Arc::clone(&self.tls)).await);
                wire.send(ask.to_http1()).await;
                Call {
                    method,
                    outgoing: Outgoing::Http1 {
                        writer: wire.writer,
                        chunked: matches!(ask.body, Body::Streamed),
                    },
                    state: State::Http1(wire.reader),
                }
            }
            Http::Two => {
                let shared = self.shared().await;
                let end = matches!(&ask.body, Body::Whole(body) if body.is_empty());
                let (response, mut stream) = shared.send_request(ask.to_http2(), end).unwrap();
                if let Body::Whole(body) = &ask.body
                    && !end
                {
                    // What does not fit the window waits in the library.
                    stream.send_data(body.clone(), true).unwrap();
                }
                Call {
                    method,
                    outgoing: Outgoing::Http2(stream),
                    state: State::Http2(response),
                }
            }
        }
    }

    async fn shared(&mut self) -> &mut SendRequest<Bytes> {
        if self.shared.is_none() {
            let stream = self.door.dial(Arc::clone(&self.tls)).await;
            let (sender, connection) = within(
                "the HTTP/2 handshake",
                h2::client::Builder::new()
                    .max_header_list_size(2 << 20)
                    .handshake(stream),
            )
            .await
            .unwrap();
            tokio::spawn(connection);
            self.shared = Some(sender);
        }
        let sender = self.shared.take().unwrap();
        let sender = within("a free stream", sender.ready()).await.unwrap();
        self.shared.insert(sender)
    }

    /// Sends a request and waits for all of its answer.
    pub(crate) async fn ask(&mut self, ask: Ask) -> Answer {
        self.send(ask).await.answer().await
    }

    pub(crate) async fn get(&mut self, target: &str) -> Answer {
        self.ask(Ask::get(target)).await
    }
}

/// A request under way. Dropping it gives it up.
pub(crate) struct Call {
    method: String,
    pub(crate) outgoing: Outgoing,
    state: State,
}

enum State {
    Http1(Reader),
    Http2(ResponseFuture),
    Answered(Incoming),
    Over,
}

impl Call {
    /// The answer's head.
    pub(crate) async fn head(&mut self) -> Answered {
        self.try_head().await.unwrap()
    }

    /// The answer's head, or how it failed to come. Waiting for it can be given up and begun again.
    pub(crate) async fn try_head(&mut self) -> Result<Answered, Broken> {
        let (answered, incoming) = match &mut self.state {
            State::Http1(reader) => {
                let lines = reader.head().await?;
                let lines = lines.ok_or_else(|| Broken("no answer".to_owned()))?;
                let answered = Answered::of_lines(&lines);
                let State::Http1(reader) = std::mem::replace(&mut self.state, State::Over) else {
                    unreachable!("it was a moment ago");
                };
                let framing = Framing::of_answer(&answered, &self.method);
                (answered, Incoming::http1(reader, framing))
            }
            State::Http2(response) => {
                let (parts, body) = within("an answer", response).await?.into_parts();
                (Answered::of_http2(&parts), Incoming::http2(body))
            }
            State::Answered(_) | State::Over => panic!("one head an answer"),
        };
        self.state = State::Answered(incoming);
        Ok(answered)
    }

    /// The answer's body, whose head must have come.
    pub(crate) fn body(&mut self) -> &mut Incoming {
        match &mut self.state {
            State::Answered(incoming) => incoming,
            State::Http1(_) | State::Http2(_) | State::Over => panic!("the head comes first"),
        }
    }

    /// All of the answer.
    pub(crate) async fn answer(mut self) -> Answer {
        let head = self.head().await;
        let body = self.body().rest().await.unwrap();
        Answer {
            status: head.status,
            headers: head.headers,
            body,
            trailers: self.body().trailers.clone(),
        }
    }

    /// Sends a piece of the request's body.
    pub(crate) async fn send(&mut self, bytes: impl Into<Bytes>) {
        within("the request's body to be taken", self.outgoing.send(bytes))
            .await
            .unwrap();
    }

    /// Ends the request.
    pub(crate) async fn end(&mut self) {
        self.outgoing.end(&[]).await.unwrap();
    }
}
