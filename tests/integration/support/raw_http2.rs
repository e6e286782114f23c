//! HTTP/2 frame by frame, for frames that no correct library sends.
//!
//! Headers are written without compression. Of received headers only the status is parsed.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::raw_http1::BoxedStream;
use crate::support::{UnexpectedEnd, within};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// `SETTINGS_MAX_CONCURRENT_STREAMS`.
pub(crate) const MAX_STREAMS: u16 = 3;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawFrame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl RawFrame {
    pub(crate) fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            flags,
            stream,
            payload: payload.into(),
        }
    }

    /// The head of a request or response. `end` ends the stream.
    pub(crate) fn request(stream: u32, head: &[(&str, &str)], end: bool) -> Self {
        let mut block = Vec::new();
        for (name, value) in head {
            block.push(0); // a literal without indexing, with its name
            for text in [name, value] {
                encode_integer(text.len(), &mut block);
                block.extend_from_slice(text.as_bytes());
            }
        }
        let end = if end { END_STREAM } else { 0 };
        Self::new(HEADERS, END_HEADERS | end, stream, block)
    }

    /// A response head with status 200.
    pub(crate) fn ok(stream: u32, end: bool) -> Self {
        let end = if end { END_STREAM } else { 0 };
        Self::new(HEADERS, END_HEADERS | end, stream, [0x88])
    }

    pub(crate) fn data(stream: u32, bytes: &[u8], end: bool) -> Self {
        let end = if end { END_STREAM } else { 0 };
        Self::new(DATA, end, stream, bytes)
    }

    pub(crate) fn reset(stream: u32, code: u32) -> Self {
        Self::new(RST_STREAM, 0, stream, code.to_be_bytes())
    }

    pub(crate) fn go_away(last: u32, code: u32) -> Self {
        let payload = [last.to_be_bytes(), code.to_be_bytes()].concat();
        Self::new(GOAWAY, 0, 0, payload)
    }

    pub(crate) fn settings(settings: &[(u16, u32)]) -> Self {
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend_from_slice(&name.to_be_bytes());
            payload.extend_from_slice(&value.to_be_bytes());
        }
        Self::new(SETTINGS, 0, 0, payload)
    }

    /// The frame as bytes.
    fn encode(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend_from_slice(&[self.kind, self.flags]);
        bytes.extend_from_slice(&self.stream.to_be_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }

    /// Whether it ends its stream.
    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The number at offset `at` of the payload.
    pub(crate) fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    /// Whether it is a response head with status 200.
    pub(crate) fn is_ok(&self) -> bool {
        self.kind == HEADERS && self.payload.contains(&0x88)
    }
}

/// An integer with a prefix of seven bits.
fn encode_integer(mut number: usize, block: &mut Vec<u8>) {
    const PREFIX: usize = 127;
    if number < PREFIX {
        block.push(u8::try_from(number).unwrap());
        return;
    }
    block.push(127);
    number -= PREFIX;
    while number >= 128 {
        block.push(u8::try_from(number % 128).unwrap() | 128);
        number /= 128;
    }
    block.push(u8::try_from(number).unwrap());
}

/// A raw HTTP/2 connection.
pub(crate) struct RawHttp2 {
    io: BoxedStream,
    /// The peer's settings received so far.
    pub(crate) settings: Vec<(u16, u32)>,
    /// Whether PINGs are returned instead of acknowledged.
    passes_pings: bool,
}

impl RawHttp2 {
    fn new(io: BoxedStream) -> Self {
        Self {
            io,
            settings: Vec::new(),
            passes_pings: false,
        }
    }

    /// From now on PINGs are returned, and not acknowledged.
    pub(crate) fn pass_pings(&mut self) {
        self.passes_pings = true;
    }

    /// The client's end.
    pub(crate) async fn client(mut io: BoxedStream) -> Self {
        io.write_all(PREFACE).await.unwrap();
        let mut frames = Self::new(io);
        frames.send(&RawFrame::settings(&[])).await;
        frames
    }

    /// The server's end, with these settings.
    pub(crate) async fn server(mut io: BoxedStream, settings: &[(u16, u32)]) -> Self {
        let mut preface = [0; PREFACE.len()];
        within("the preface", io.read_exact(&mut preface))
            .await
            .unwrap();
        assert_eq!(preface, PREFACE);
        let mut frames = Self::new(io);
        frames.send(&RawFrame::settings(settings)).await;
        frames
    }

    pub(crate) async fn send(&mut self, frame: &RawFrame) {
        self.try_send(frame).await.unwrap();
    }

    /// Sends a frame, unless the peer has closed.
    pub(crate) async fn try_send(&mut self, frame: &RawFrame) -> Result<(), UnexpectedEnd> {
        self.write(&frame.encode()).await
    }

    /// Sends part of the frame's bytes, unless the peer has closed.
    pub(crate) async fn send_part(&mut self, frame: &RawFrame, from: usize, to: usize) {
        let bytes = frame.encode();
        let to = to.min(bytes.len());
        let _ = self.write(&bytes[from..to]).await;
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), UnexpectedEnd> {
        within("a frame to be taken", self.io.write_all(bytes)).await?;
        within("a frame to be taken", self.io.flush()).await?;
        Ok(())
    }

    /// Waits for the acknowledgement of a PING.
    pub(crate) async fn wait_for_ping_ack(&mut self) {
        while within("a frame", self.read_frame()).await.unwrap().kind != PING {}
    }

    /// The next frame. SETTINGS and PING are acknowledged automatically and not returned.
    pub(crate) async fn next_frame(&mut self) -> Result<RawFrame, UnexpectedEnd> {
        loop {
            let frame = within("a frame", self.read_frame()).await?;
            match (frame.kind, frame.flags & ACK) {
                (SETTINGS, 0) => {
                    let pairs = frame.payload.chunks_exact(6).map(|pair| {
                        let name = u16::from_be_bytes([pair[0], pair[1]]);
                        (
                            name,
                            u32::from_be_bytes([pair[2], pair[3], pair[4], pair[5]]),
                        )
                    });
                    self.settings.extend(pairs);
                    self.try_send(&RawFrame::new(SETTINGS, ACK, 0, [])).await?;
                }
                (PING, 0) if !self.passes_pings => {
                    self.try_send(&RawFrame::new(PING, ACK, 0, frame.payload))
                        .await?
                }
                (SETTINGS, _) | (PING, ACK) => {}
                _ => return Ok(frame),
            }
        }
    }

    /// The next frame of this kind. Frames before it are discarded.
    pub(crate) async fn next_frame_of_kind(&mut self, kind: u8) -> RawFrame {
        loop {
            let frame = self.next_frame().await.unwrap();
            if frame.kind == kind {
                return frame;
            }
        }
    }

    /// Waits for the end of the connection.
    pub(crate) async fn wait_for_close(&mut self) {
        while self.next_frame().await.is_ok() {}
    }

    async fn read_frame(&mut self) -> Result<RawFrame, UnexpectedEnd> {
        let mut head = [0; 9];
        self.io.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        self.io.read_exact(&mut payload).await?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        Ok(RawFrame::new(
            head[3],
            head[4],
            stream & 0x7fff_ffff,
            payload,
        ))
    }
}
