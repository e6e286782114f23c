//! HTTP/1.1 as raw bytes on a connection: nothing is normalized.

use std::io;

use bytes::{Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;

use crate::support::message::{Framing, Headers, ReceivedBody, ReceivedRequest, ReceivedResponse};
use crate::support::{UnexpectedEnd, within};

/// A connection.
pub(crate) trait RawStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> RawStream for T {}

/// Limits the socket buffers at this end, so that weir bounds what a peer that does not read can be
/// sent.
pub(crate) fn limit_socket_buffers(tcp: &TcpStream) {
    const BUFFER: usize = 128 << 10;
    let socket = SockRef::from(tcp);
    socket.set_recv_buffer_size(BUFFER).unwrap();
    socket.set_send_buffer_size(BUFFER).unwrap();
    tcp.set_nodelay(true).unwrap();
}

/// Any connection.
pub(crate) type BoxedStream = Box<dyn RawStream>;

/// A raw connection.
pub(crate) struct RawHttp1 {
    /// The reading half.
    pub(crate) reader: RawReader,
    /// The writing half.
    pub(crate) writer: RawWriter,
}

/// The reading half of a connection.
pub(crate) struct RawReader {
    io: ReadHalf<BoxedStream>,
    buffer: BytesMut,
}

/// The writing half of a connection.
pub(crate) struct RawWriter {
    io: WriteHalf<BoxedStream>,
}

impl RawHttp1 {
    pub(crate) fn new(io: impl RawStream + 'static) -> Self {
        let io: BoxedStream = Box::new(io);
        let (reader, writer) = tokio::io::split(io);
        Self {
            reader: RawReader {
                io: reader,
                buffer: BytesMut::new(),
            },
            writer: RawWriter { io: writer },
        }
    }

    /// Sends these bytes.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.writer.send(bytes).await.unwrap();
    }

    /// The next request head.
    pub(crate) async fn read_request_head(&mut self) -> ReceivedRequest {
        ReceivedRequest::from_lines(&self.reader.read_head().await.unwrap().expect("a request"))
    }

    /// The next response head.
    pub(crate) async fn read_response_head(&mut self) -> ReceivedResponse {
        ReceivedResponse::from_lines(&self.reader.read_head().await.unwrap().expect("an answer"))
    }

    /// The next complete response to a request of this method.
    pub(crate) async fn read_response(&mut self, method: &str) -> (ReceivedResponse, Bytes) {
        let answered = self.read_response_head().await;
        let framing = Framing::from_response(&answered, method);
        let body = self.read_body(framing).await;
        (answered, body)
    }

    /// A complete body of this framing.
    pub(crate) async fn read_body(&mut self, framing: Framing) -> Bytes {
        let mut body = BytesMut::new();
        let mut trailers = Headers::default();
        let mut framing = framing;
        while let Some(piece) = framing.next_chunk(&mut self.reader, &mut trailers).await {
            body.extend_from_slice(&piece.unwrap());
        }
        body.freeze()
    }

    /// Shuts TLS down and closes.
    pub(crate) async fn close(mut self) {
        // The peer may have closed already.
        let _ = within("a connection to close", self.writer.io.shutdown()).await;
    }

    /// The connection itself. No bytes may have been read ahead.
    pub(crate) fn into_stream(self) -> BoxedStream {
        assert!(self.reader.buffer.is_empty());
        self.reader.io.unsplit(self.writer.io)
    }
}

impl RawWriter {
    /// Sends these bytes.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), UnexpectedEnd> {
        within("bytes to be taken", self.io.write_all(bytes.as_ref())).await?;
        within("bytes to be taken", self.io.flush()).await?;
        Ok(())
    }

    /// Sends these bytes, without a timeout.
    pub(crate) async fn send_without_timeout(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.write_all(bytes).await?;
        self.io.flush().await
    }

    /// Ends the writing half only.
    pub(crate) async fn shutdown(&mut self) {
        within("a half-close", self.io.shutdown()).await.unwrap();
    }
}

impl RawReader {
    async fn fill(&mut self) -> Result<usize, UnexpectedEnd> {
        let read = within("more bytes", self.io.read_buf(&mut self.buffer)).await?;
        Ok(read)
    }

    /// The lines of the next head; `None` if the connection ends before it.
    pub(crate) async fn read_head(&mut self) -> Result<Option<Vec<String>>, UnexpectedEnd> {
        within("a head", self.read_head_without_timeout()).await
    }

    /// As [`Reader::head`], without a timeout.
    pub(crate) async fn read_head_without_timeout(
        &mut self,
    ) -> Result<Option<Vec<String>>, UnexpectedEnd> {
        let mut looked = 0;
        loop {
            let end = find(&self.buffer[looked..], b"\r\n\r\n").map(|at| looked + at);
            if let Some(end) = end {
                let head = self.buffer.split_to(end + 4);
                let text = String::from_utf8_lossy(&head[..end]).into_owned();
                return Ok(Some(text.split("\r\n").map(str::to_owned).collect()));
            }
            looked = self.buffer.len().saturating_sub(3);
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(UnexpectedEnd(
                        "the connection ended within a head".to_owned(),
                    ))
                };
            }
        }
    }

    /// The next line, without its end.
    pub(crate) async fn read_line(&mut self) -> Result<String, UnexpectedEnd> {
        loop {
            if let Some(end) = find(&self.buffer, b"\r\n") {
                let line = self.buffer.split_to(end + 2);
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if self.fill().await? == 0 {
                return Err(UnexpectedEnd(
                    "the connection ended within a line".to_owned(),
                ));
            }
        }
    }

    /// The next `count` bytes.
    pub(crate) async fn read_exactly(&mut self, count: usize) -> Result<Bytes, UnexpectedEnd> {
        while self.buffer.len() < count {
            if self.fill().await? == 0 {
                return Err(UnexpectedEnd(
                    "the connection ended within a body".to_owned(),
                ));
            }
        }
        Ok(self.buffer.split_to(count).freeze())
    }

    /// The next available bytes, at most `most`; `None` at a clean end.
    pub(crate) async fn read_some(&mut self, most: usize) -> Result<Option<Bytes>, UnexpectedEnd> {
        if self.buffer.is_empty() && self.fill().await? == 0 {
            return Ok(None);
        }
        let count = most.min(self.buffer.len());
        Ok(Some(self.buffer.split_to(count).freeze()))
    }

    /// Waits for the end of the connection, clean or not, and discards bytes until then.
    pub(crate) async fn wait_for_close(&mut self) {
        while let Ok(Some(_)) = self.read_some(usize::MAX).await {}
    }

    /// The body of a message on this connection.
    pub(crate) fn into_body(self, framing: Framing) -> ReceivedBody {
        ReceivedBody::http1(self, framing)
    }
}

/// The position of `needle`.
fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len())
        .position(|window| window == needle)
}
