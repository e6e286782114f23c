//! Clients of weir: one request at a time, over HTTP/1.1 or HTTP/2.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use rustls::ClientConfig;

use crate::support::message::{
    Framing, Headers, ReceivedBody, ReceivedResponse, SentBody, header_map,
};
use crate::support::raw_http1::{RawHttp1, RawReader};
use crate::support::weir::Endpoints;
use crate::support::{HttpVersion, UnexpectedEnd, within};

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct TestRequest {
    method: String,
    target: String,
    headers: Vec<(String, String)>,
    body: RequestPayload,
}

#[derive(Clone, Debug)]
enum RequestPayload {
    Streamed,
    Buffered(Bytes),
}

impl TestRequest {
    pub(crate) fn new(method: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: RequestPayload::Buffered(Bytes::new()),
        }
    }

    pub(crate) fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    pub(crate) fn post(target: &str, body: impl Into<Bytes>) -> Self {
        let mut request = Self::new("POST", target);
        request.body = RequestPayload::Buffered(body.into());
        request
    }

    pub(crate) fn method(mut self, method: &str) -> Self {
        self.method = method.to_owned();
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The body is sent by [`Call::send`], without a content length.
    pub(crate) fn streamed(mut self) -> Self {
        self.body = RequestPayload::Streamed;
        self
    }

    /// The request as HTTP/1.1.
    pub(crate) fn to_http1(&self) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\nhost: weir\r\n", self.method, self.target);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let body = match &self.body {
            RequestPayload::Streamed => {
                text.push_str("transfer-encoding: chunked\r\n");
                &[]
            }
            RequestPayload::Buffered(body) => {
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
        if let RequestPayload::Buffered(body) = &self.body
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

/// A complete response.
#[derive(Clone, Debug)]
pub(crate) struct FullResponse {
    pub(crate) status: u16,
    pub(crate) headers: Headers,
    pub(crate) body: Bytes,
    pub(crate) trailers: Headers,
}

impl FullResponse {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The body as a Status: its code, reason, first cause and message.
    pub(crate) fn kube_status(&self) -> KubeStatus {
        let status: serde_json::Value = serde_json::from_slice(&self.body)
            .unwrap_or_else(|why| panic!("no Status, {why}: {:?}", self.body));
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["status"], "Failure");
        assert_eq!(status["code"], self.status, "the code is the answer's");
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        KubeStatus {
            reason: text(&status["reason"]),
            cause: text(&status["details"]["causes"][0]["reason"]),
            message: text(&status["message"]),
        }
    }
}

/// The fields of a Status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KubeStatus {
    pub(crate) reason: String,
    pub(crate) cause: String,
    pub(crate) message: String,
}

/// Speaks one HTTP version to weir: HTTP/2 on one connection, HTTP/1.1 on a connection for each
/// request.
pub(crate) struct TestClient {
    endpoints: Endpoints,
    tls: Arc<ClientConfig>,
    headers: Vec<(String, String)>,
    http: HttpVersion,
    connection: Option<SendRequest<Bytes>>,
}

impl TestClient {
    /// A client that adds `headers` to all requests.
    pub(crate) fn new(
        endpoints: Endpoints,
        http: HttpVersion,
        tls: ClientConfig,
        headers: &[(&str, &str)],
    ) -> Self {
        let headers = headers
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        Self {
            endpoints,
            tls: Arc::new(tls),
            headers: headers.collect(),
            http,
            connection: None,
        }
    }

    /// Sends a request, with its body if that is complete.
    pub(crate) async fn send(&mut self, mut request: TestRequest) -> TestCall {
        request.headers.extend(self.headers.iter().cloned());
        let method = request.method.clone();
        match self.http {
            HttpVersion::Http1 => {
                let mut wire =
                    RawHttp1::new(self.endpoints.connect_tls(Arc::clone(&self.tls)).await);
                wire.send(request.to_http1()).await;
                TestCall {
                    method,
                    outgoing: SentBody::Http1 {
                        writer: wire.writer,
                        chunked: matches!(request.body, RequestPayload::Streamed),
                    },
                    state: CallState::Http1(wire.reader),
                }
            }
            HttpVersion::Http2 => {
                let shared = self.shared_connection().await;
                let end =
                    matches!(&request.body, RequestPayload::Buffered(body) if body.is_empty());
                let (response, mut stream) = shared.send_request(request.to_http2(), end).unwrap();
                if let RequestPayload::Buffered(body) = &request.body
                    && !end
                {
                    // The library buffers what exceeds the window.
                    stream.send_data(body.clone(), true).unwrap();
                }
                TestCall {
                    method,
                    outgoing: SentBody::Http2(stream),
                    state: CallState::Http2(response),
                }
            }
        }
    }

    async fn shared_connection(&mut self) -> &mut SendRequest<Bytes> {
        if self.connection.is_none() {
            let stream = self.endpoints.connect_tls(Arc::clone(&self.tls)).await;
            let (sender, connection) = within(
                "the HTTP/2 handshake",
                h2::client::Builder::new()
                    .max_header_list_size(2 << 20)
                    .handshake(stream),
            )
            .await
            .unwrap();
            tokio::spawn(connection);
            self.connection = Some(sender);
        }
        let sender = self.connection.take().unwrap();
        let sender = within("a free stream", sender.ready()).await.unwrap();
        self.connection.insert(sender)
    }

    /// Sends a request and waits for the complete response.
    pub(crate) async fn request(&mut self, request: TestRequest) -> FullResponse {
        self.send(request).await.response().await
    }

    pub(crate) async fn get(&mut self, target: &str) -> FullResponse {
        self.request(TestRequest::get(target)).await
    }
}

/// A request in flight. Dropping it cancels it.
pub(crate) struct TestCall {
    method: String,
    pub(crate) outgoing: SentBody,
    state: CallState,
}

enum CallState {
    Http1(RawReader),
    Http2(ResponseFuture),
    HeadReceived(ReceivedBody),
    Done,
}

impl TestCall {
    /// The response head.
    pub(crate) async fn head(&mut self) -> ReceivedResponse {
        self.try_head().await.unwrap()
    }

    /// The response head, or the error. Can be cancelled and called again.
    pub(crate) async fn try_head(&mut self) -> Result<ReceivedResponse, UnexpectedEnd> {
        let (answered, incoming) = match &mut self.state {
            CallState::Http1(reader) => {
                let lines = reader.read_head().await?;
                let lines = lines.ok_or_else(|| UnexpectedEnd("no answer".to_owned()))?;
                let answered = ReceivedResponse::from_lines(&lines);
                let CallState::Http1(reader) = std::mem::replace(&mut self.state, CallState::Done)
                else {
                    unreachable!("it was a moment ago");
                };
                let framing = Framing::from_response(&answered, &self.method);
                (answered, ReceivedBody::http1(reader, framing))
            }
            CallState::Http2(response) => {
                let (parts, body) = within("an answer", response).await?.into_parts();
                (
                    ReceivedResponse::from_http2(&parts),
                    ReceivedBody::http2(body),
                )
            }
            CallState::HeadReceived(_) | CallState::Done => panic!("one head an answer"),
        };
        self.state = CallState::HeadReceived(incoming);
        Ok(answered)
    }

    /// The response body. The head must have arrived.
    pub(crate) fn body(&mut self) -> &mut ReceivedBody {
        match &mut self.state {
            CallState::HeadReceived(incoming) => incoming,
            CallState::Http1(_) | CallState::Http2(_) | CallState::Done => {
                panic!("the head comes first")
            }
        }
    }

    /// The complete response.
    pub(crate) async fn response(mut self) -> FullResponse {
        let head = self.head().await;
        let body = self.body().read_to_end().await.unwrap();
        FullResponse {
            status: head.status,
            headers: head.headers,
            body,
            trailers: self.body().trailers.clone(),
        }
    }

    /// Sends a chunk of the request body.
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
