//! `pods/exec`, `pods/attach` and `pods/portforward` over WebSocket, with an echo as the backend.
//!
//! Supports `v5.channel.k8s.io` and `v4.channel.k8s.io`: every message begins with the number of
//! its channel. SPDY, to which `kubectl port-forward` always falls back, is rejected with a
//! message.

use crate::endpoints::connect::pods;
use crate::endpoints::response::HandlerResult;
use crate::request::{QueryParameters, ResourceTarget};
use crate::serving::request_log::ServingClass;
use crate::serving::response_body::PlaygroundBody;
use crate::state::ServerState;
use crate::status;
use crate::status::{StatusDetails, StatusError};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{Message, Utf8Bytes};

type WebSocket = WebSocketStream<TokioIo<Upgraded>>;

const STDIN_CHANNEL: u8 = 0;
const STDOUT_CHANNEL: u8 = 1;
/// The channel of the final Status.
const ERROR_CHANNEL: u8 = 3;
/// In version 5: the sender closes the channel that the next byte names.
const CLOSE_CHANNEL: u8 = 255;
/// The byte with which a terminal ends its input (Ctrl-D).
const END_OF_TRANSMISSION: u8 = 4;

/// The subprotocols, in order of preference.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

/// Timeout for the client's close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of ports of a port-forward: each has two channels, and channel numbers are bytes.
const MAX_PORTS: usize = 127;

/// The backend of a tunnel.
#[derive(Debug)]
enum TunnelBackend {
    /// A command that echoes its input.
    Echo { tty: bool },
    /// A command without input, which prints one line and exits.
    Line(String),
    /// Ports that echo the data that they receive.
    Ports(Vec<u16>),
}

/// `exec` and `attach`.
pub(crate) fn exec_or_attach(
    state: &Arc<ServerState>,
    target: &ResourceTarget,
    query: &QueryParameters,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    let pod = pods::find_pod(state, target)?;
    let container = pods::find_container(&pod, query)?;
    let command: Vec<&str> = query.all("command").collect();
    if target.subresource == "exec" && command.is_empty() {
        return Err(StatusError::bad_request(
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
    let backend = if query.flag("stdin") {
        TunnelBackend::Echo {
            tty: query.flag("tty"),
        }
    } else {
        TunnelBackend::Line(greeting)
    };
    open_tunnel(state, request, backend)
}

/// `portforward`, as client libraries use it over WebSocket: the ports are in the query, and each
/// has one channel for data and one for errors.
pub(crate) fn port_forward(
    state: &Arc<ServerState>,
    target: &ResourceTarget,
    query: &QueryParameters,
    request: &mut Request<Incoming>,
) -> HandlerResult {
    pods::find_pod(state, target)?;
    let ports: Option<Vec<u16>> = query
        .all("ports")
        .flat_map(|list| list.split(','))
        .map(|port| port.parse().ok())
        .collect();
    let websocket = upgrades_to(request.headers(), "websocket");
    let ports = ports.filter(|ports| !websocket || (1..=MAX_PORTS).contains(&ports.len()));
    let ports =
        ports.ok_or_else(|| StatusError::bad_request("query parameter \"ports\" is required"))?;
    open_tunnel(state, request, TunnelBackend::Ports(ports))
}

fn upgrades_to(headers: &HeaderMap, protocol: &str) -> bool {
    let value = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
    value.is_some_and(|value| value.eq_ignore_ascii_case(protocol))
}

/// Upgrades the connection and serves it with `backend` until the server stops.
fn open_tunnel(
    state: &Arc<ServerState>,
    request: &mut Request<Incoming>,
    backend: TunnelBackend,
) -> HandlerResult {
    let response = handshake(request.headers())?;
    let upgrade = hyper::upgrade::on(request);
    let guard = state
        .request_log
        .begin_request(ServingClass::LongRunning, None);
    let mut stopping = state.stopping.subscribe();
    tokio::spawn(async move {
        let _place = guard;
        let Ok(upgraded) = upgrade.await else {
            return;
        };
        let io = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(io, Role::Server, None).await;
        tokio::select! {
            _ = backend.serve(&mut socket) => {}
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, close(socket)).await;
    });
    Ok(response)
}

/// The response 101, or the error of an invalid handshake.
fn handshake(headers: &HeaderMap) -> Result<Response<PlaygroundBody>, StatusError> {
    if !upgrades_to(headers, "websocket") {
        let upgrade = headers.get(UPGRADE).and_then(|value| value.to_str().ok());
        return Err(StatusError::bad_request(match upgrade {
            Some(other) => format!("unable to upgrade to {other}: only websocket is spoken here"),
            None => "Upgrade request required".to_owned(),
        }));
    }
    let key = headers
        .get(SEC_WEBSOCKET_KEY)
        .ok_or_else(|| StatusError::bad_request("Sec-WebSocket-Key is missing"))?;
    let offered: Vec<&str> = headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .collect();
    let protocol = PROTOCOLS.iter().find(|protocol| offered.contains(protocol));
    if protocol.is_none() && !offered.is_empty() {
        return Err(StatusError::bad_request(format!(
            "unable to upgrade: none of the protocols [{}] is spoken here, only [{}]",
            offered.join(" "),
            PROTOCOLS.join(" ")
        )));
    }
    let mut response = Response::new(Empty::new().boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = HeaderValue::try_from(derive_accept_key(key.as_bytes()))
        .map_err(|_| StatusError::bad_request("Sec-WebSocket-Key is malformed"))?;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    if let Some(protocol) = protocol {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok(response)
}

fn channel_message(channel: u8, content: &[u8]) -> Message {
    let mut bytes = Vec::with_capacity(content.len() + 1);
    bytes.push(channel);
    bytes.extend_from_slice(content);
    Message::Binary(bytes.into())
}

/// The next message's channel and content; `None` at the end.
async fn receive(socket: &mut WebSocket) -> Option<(u8, Bytes)> {
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

/// Closes the WebSocket, waits for the client's close frame, and closes TLS.
async fn close(mut socket: WebSocket) {
    let frame = CloseFrame {
        code: CloseCode::Normal,
        reason: Utf8Bytes::default(),
    };
    // An error here means that it is already closed.
    let _ = socket.close(Some(frame)).await;
    while let Some(Ok(_)) = socket.next().await {}
    let _ = socket.get_mut().shutdown().await;
}

impl TunnelBackend {
    /// Serves the tunnel until one side closes it.
    async fn serve(self, socket: &mut WebSocket) -> Result<(), WsError> {
        match self {
            Self::Echo { tty } => echo_input(socket, tty).await,
            Self::Line(line) => {
                socket
                    .send(channel_message(STDOUT_CHANNEL, line.as_bytes()))
                    .await?;
                send_success(socket).await
            }
            Self::Ports(ports) => echo_ports(socket, &ports).await,
        }
    }
}

/// Sends the Status of a successful command.
async fn send_success(socket: &mut WebSocket) -> Result<(), WsError> {
    let success = status::success_json(&StatusDetails::default());
    socket.send(channel_message(ERROR_CHANNEL, &success)).await
}

/// Echoes the input until it ends.
async fn echo_input(socket: &mut WebSocket, tty: bool) -> Result<(), WsError> {
    while let Some((channel, content)) = receive(socket).await {
        let ended = match channel {
            STDIN_CHANNEL if content.is_empty() => false,
            STDIN_CHANNEL => {
                socket
                    .send(channel_message(STDOUT_CHANNEL, &content))
                    .await?;
                tty && content.contains(&END_OF_TRANSMISSION)
            }
            CLOSE_CHANNEL => content.first() == Some(&STDIN_CHANNEL),
            _ => false,
        };
        if ended {
            return send_success(socket).await;
        }
    }
    Ok(())
}

/// Echoes the data of each port until the client closes the connection.
async fn echo_ports(socket: &mut WebSocket, ports: &[u16]) -> Result<(), WsError> {
    for (channel, port) in (0_u8..).step_by(2).zip(ports) {
        for channel in [channel, channel + 1] {
            socket
                .send(channel_message(channel, &port.to_le_bytes()))
                .await?;
        }
    }
    while let Some((channel, content)) = receive(socket).await {
        let data = channel % 2 == 0 && usize::from(channel / 2) < ports.len();
        if data && !content.is_empty() {
            socket.send(channel_message(channel, &content)).await?;
        }
    }
    Ok(())
}
