//! `pods/exec`, `pods/attach` and `pods/portforward` over WebSocket, with nothing at the far end but
//! an echo.
//!
//! Speaks `v5.channel.k8s.io` and `v4.channel.k8s.io`: every message begins with the number of its
//! channel. SPDY is not spoken: whoever asks for it, as `kubectl port-forward` always does in the end,
//! is told so.

use crate::playground::answers::Answer;
use crate::playground::answers::logs;
use crate::playground::journal::Occupied;
use crate::playground::journal::PlainBody;
use crate::playground::request::Query;
use crate::playground::request::Target;
use crate::playground::state::State;
use crate::playground::status;
use crate::playground::status::Details;
use crate::playground::status::Status;
use bytes::Bytes;
use futures_util::SinkExt;
use futures_util::StreamExt;
use http::HeaderMap;
use http::HeaderValue;
use http::Request;
use http::Response;
use http::StatusCode;
use http::header::CONNECTION;
use http::header::SEC_WEBSOCKET_ACCEPT;
use http::header::SEC_WEBSOCKET_KEY;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use http::header::UPGRADE;
use http_body_util::BodyExt;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
/// The channel of the final Status.
const ERROR: u8 = 3;
/// In version 5: the channel named by the next byte is closed by the sender.
const CLOSE: u8 = 255;
/// What a terminal sends for the end of its input (Ctrl-D).
const END_OF_TRANSMISSION: u8 = 4;

/// The subprotocols, best first.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// How long the other side may take to answer the closing of a tunnel.
const CLOSING_LIMIT: Duration = Duration::from_secs(5);

/// The channels and port numbers of a port-forward are bytes; there is room for so many.
const MOST_PORTS: usize = 127;

/// What stands at the far end of a tunnel.
#[derive(Debug)]
enum FarEnd {
    /// A command that repeats its input.
    Echo { tty: bool },
    /// A command without input: one line, and done.
    Line(String),
    /// Ports that repeat what they are sent.
    Ports(Vec<u16>),
}

/// `exec` and `attach`.
pub(crate) fn run(
    state: &Arc<State>,
    target: &Target,
    query: &Query,
    request: &mut Request<Incoming>,
) -> Answer {
    let pod = logs::pod(state, target)?;
    let container = logs::container(&pod, query)?;
    let command: Vec<&str> = query.all("command").collect();
    if target.subresource == "exec" && command.is_empty() {
        return Err(Status::bad_request(
            "you must specify at least 1 command for the container",
        ));
    }
    let greeting = if target.subresource == "exec" {
        format!(
            "{}/{container}: nothing runs here: {}\n",
            pod.name,
            command.join(" ")
        )
    } else {
        format!("{}/{container}: nothing runs here\n", pod.name)
    };
    let far = if query.flag("stdin") {
        FarEnd::Echo {
            tty: query.flag("tty"),
        }
    } else {
        FarEnd::Line(greeting)
    };
    tunnel(state, request, far)
}

/// `portforward`, as client libraries speak it over WebSocket: the ports are in the query, and each has
/// a channel for data and one for errors.
pub(crate) fn port_forward(
    state: &Arc<State>,
    target: &Target,
    query: &Query,
    request: &mut Request<Incoming>,
) -> Answer {
    logs::pod(state, target)?;
    let ports: Option<Vec<u16>> = query
        .all("ports")
        .flat_map(|list| list.split(','))
        .map(|port| port.parse().ok())
        .collect();
    let websocket = upgrades_to(request.headers(), "websocket");
    let ports = ports.filter(|ports| !websocket || (1..=MOST_PORTS).contains(&ports.len()));
    let ports =
        ports.ok_or_else(|| Status::bad_request("query parameter \"ports\" is required"))?;
    tunnel(state, request, FarEnd::Ports(ports))
}

fn upgrades_to(headers: &HeaderMap, protocol: &str) -> bool {
    let value = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    value.is_some_and(|value| value.eq_ignore_ascii_case(protocol))
}

/// Takes the connection over and lets `far` have it, until the server stops.
fn tunnel(state: &Arc<State>, request: &mut Request<Incoming>, far: FarEnd) -> Answer {
    let response = handshake(request.headers())?;
    let upgrade = hyper::upgrade::on(request);
    let place = state.journal.begin(Occupied::LongRunning, None);
    let mut stopping = state.stopping.subscribe();
    tokio::spawn(async move {
        let _place = place;
        let Ok(upgraded) = upgrade.await else {
            return;
        };
        let io = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        tokio::select! {
            _ = far.serve(&mut socket) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
        let _ = tokio::time::timeout(CLOSING_LIMIT, close(socket)).await;
    });
    Ok(response)
}

/// The 101, or why not.
fn handshake(headers: &HeaderMap) -> Result<Response<PlainBody>, Status> {
    if !upgrades_to(headers, "websocket") {
        let asked = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
        return Err(Status::bad_request(match asked {
            Some(other) => format!("unable to upgrade to {other}: only websocket is spoken here"),
            None => "Upgrade request required".to_owned(),
        }));
    }
    let key = headers
        .get(SEC_WEBSOCKET_KEY)
        .ok_or_else(|| Status::bad_request("Sec-WebSocket-Key is missing"))?;
    let offered: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let protocol = PROTOCOLS.iter().find(|protocol| offered.contains(protocol));
    if protocol.is_none() && !offered.is_empty() {
        return Err(Status::bad_request(format!(
            "unable to upgrade: none of the protocols [{}] is spoken here, only [{}]",
            offered.join(" "),
            PROTOCOLS.join(" ")
        )));
    }
    let mut response = Response::new(Empty::new().boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|_| Status::bad_request("Sec-WebSocket-Key is malformed"))?;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok(response)
}

fn message(channel: u8, content: &[u8]) -> Message {
    let mut bytes = Vec::with_capacity(content.len() + 1);
    bytes.push(channel);
    bytes.extend_from_slice(content);
    Message::Binary(bytes.into())
}

/// The next message's channel and content; `None` when there will be none.
async fn receive(socket: &mut Socket) -> Option<(u8, Bytes)> {
    loop {
        match socket.next().await?.ok()? {
            Message::Binary(mut bytes) if !bytes.is_empty() => {
                let channel = bytes.split_to(1);
                return Some((*channel.first()?, bytes));
            }
            Message::Close(_) => return None,
            Message::Binary(_)
            | Message::Frame(_)
            | Message::Ping(_)
            | Message::Pong(_)
            | Message::Text(_) => {}
        }
    }
}

/// Closes in good order: the WebSocket, when the other side agrees, and then TLS.
async fn close(mut socket: Socket) {
    let frame = CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::default(),
    };
    // An error here means that it is closed.
    let _ = socket.close(Some(frame)).await;
    while let Some(Ok(_)) = socket.next().await {}
    let _ = socket.get_mut().shutdown().await;
}

impl FarEnd {
    /// Until one side has enough.
    async fn serve(self, socket: &mut Socket) -> Result<(), WsError> {
        match self {
            Self::Echo { tty } => echo_input(socket, tty).await,
            Self::Line(line) => {
                socket.send(message(STDOUT, line.as_bytes())).await?;
                succeed(socket).await
            }
            Self::Ports(ports) => echo_ports(socket, &ports).await,
        }
    }
}

/// Says that the command went well.
async fn succeed(socket: &mut Socket) -> Result<(), WsError> {
    let success = status::success(&Details::default());
    socket.send(message(ERROR, &success)).await
}

/// Sends the input back until it ends.
async fn echo_input(socket: &mut Socket, tty: bool) -> Result<(), WsError> {
    while let Some((channel, content)) = receive(socket).await {
        let ended = match channel {
            STDIN if content.is_empty() => false,
            STDIN => {
                socket.send(message(STDOUT, &content)).await?;
                tty && content.contains(&END_OF_TRANSMISSION)
            }
            CLOSE => content.first() == Some(&STDIN),
            _ => false,
        };
        if ended {
            return succeed(socket).await;
        }
    }
    Ok(())
}

/// Sends back what comes for each port, until the client closes.
async fn echo_ports(socket: &mut Socket, ports: &[u16]) -> Result<(), WsError> {
    for (channel, port) in (0_u8..).step_by(2).zip(ports) {
        for channel in [channel, channel + 1] {
            socket.send(message(channel, &port.to_le_bytes())).await?;
        }
    }
    while let Some((channel, content)) = receive(socket).await {
        let data = channel % 2 == 0 && usize::from(channel / 2) < ports.len();
        if data && !content.is_empty() {
            socket.send(message(channel, &content)).await?;
        }
    }
    Ok(())
}
