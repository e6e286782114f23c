//! The Unix socket between the old and the new process.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::time::Duration;
use std::{env, io};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use rustix::stdio::dup2_stdin;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::handover::listeners::{InheritedListeners, ListenerId};
use crate::handover::message::{
    LENGTH_BYTES, Message, Offer, PROTOCOL, decode_text, encode_frame, text_length,
};

/// Says to a new process that its standard input is the socket.
pub(crate) const HANDOVER_VARIABLE: &str = "WEIR_HANDOVER";

/// The most sockets of an offer.
const MAX_SOCKETS: usize = 8;

/// How long the new process waits for the offer, which was sent before it was started.
const OFFER_TIMEOUT: Duration = Duration::from_secs(10);

/// One end of the socket.
#[derive(Debug)]
pub(crate) struct HandoverChannel(UnixStream);

impl HandoverChannel {
    /// Offers sockets to a process that will be started with the second value as its standard
    /// input. Must be called within a runtime.
    ///
    /// # Errors
    /// The system provides no socket, or does not pass the descriptors on.
    pub(crate) fn offer(
        listeners: &[(ListenerId, impl AsFd)],
    ) -> io::Result<(Self, StdUnixStream)> {
        let (own, other) = StdUnixStream::pair()?;
        let offer = Offer {
            protocol: PROTOCOL,
            listeners: listeners.iter().map(|(id, _)| *id).collect(),
        };
        let sockets: Vec<_> = listeners.iter().map(|(_, one)| one.as_fd()).collect();
        // A new socket's buffer has room for it.
        send_offer(&own, &offer, &sockets)?;
        own.set_nonblocking(true)?;
        Ok((Self(UnixStream::from_std(own)?), other))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The other process has ended, or the message is too long.
    ///
    /// # Cancel safety
    /// The channel cannot be used after a cancelled call.
    pub(crate) async fn send(&mut self, message: &Message) -> io::Result<()> {
        let frame = encode_frame(message).ok_or_else(too_long)?;
        self.0.write_all(&frame).await
    }

    /// The next message of a known kind.
    ///
    /// # Errors
    /// The other process has ended or sent something else.
    ///
    /// # Cancel safety
    /// The channel cannot be used after a cancelled call.
    pub(crate) async fn receive(&mut self) -> io::Result<Message> {
        loop {
            let mut length = [0; LENGTH_BYTES];
            self.0.read_exact(&mut length).await?;
            let mut text = vec![0; text_length(length).ok_or_else(too_long)?];
            self.0.read_exact(&mut text).await?;
            let message = decode_text(&text).map_err(io::Error::other)?;
            if message != Message::Unknown {
                return Ok(message);
            }
        }
    }
}

/// An offer that this process was started with.
#[derive(Debug)]
pub(crate) struct ReceivedOffer {
    /// The other end of the channel, not yet registered with a runtime.
    stream: StdUnixStream,
    listeners: InheritedListeners,
}

impl ReceivedOffer {
    /// The offer, if the environment says that there is one. The standard input is empty afterwards.
    ///
    /// # Errors
    /// The standard input is no socket with an offer of this version.
    pub(crate) fn from_env() -> io::Result<Option<Self>> {
        if env::var_os(HANDOVER_VARIABLE).is_none() {
            return Ok(None);
        }
        let stream = StdUnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        dup2_stdin(File::open("/dev/null")?)?;
        Self::receive(stream).map(Some)
    }

    fn receive(stream: StdUnixStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(OFFER_TIMEOUT))?;
        let (offer, sockets) = receive_offer(&stream)?;
        stream.set_nonblocking(true)?;
        if offer.protocol != PROTOCOL {
            return Err(io::Error::other(format!(
                "the old process speaks version {} of the hand-over, this one version {PROTOCOL}",
                offer.protocol
            )));
        }
        if offer.listeners.len() != sockets.len() {
            return Err(io::Error::other("an offer without its sockets"));
        }
        let sockets = sockets.into_iter().map(TcpListener::from);
        let listeners = offer.listeners.into_iter().zip(sockets);
        Ok(Self {
            stream,
            listeners: InheritedListeners::from_predecessor(listeners),
        })
    }

    /// The sockets, and the channel to the old process. Must be called within a runtime.
    ///
    /// # Errors
    /// The runtime cannot register the channel.
    pub(crate) fn split(self) -> io::Result<(InheritedListeners, HandoverChannel)> {
        let channel = UnixStream::from_std(self.stream)?;
        Ok((self.listeners, HandoverChannel(channel)))
    }
}

fn too_long() -> io::Error {
    io::Error::other("a message of a hand-over is too long")
}

fn send_offer(stream: &StdUnixStream, offer: &Offer, sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
    let frame = encode_frame(offer).ok_or_else(too_long)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::Error::other("too many sockets"));
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&frame)],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    if sent == frame.len() {
        Ok(())
    } else {
        Err(too_long())
    }
}

/// Descriptors arrive with the first bytes that were sent with them.
fn receive_offer(stream: &StdUnixStream) -> io::Result<(Offer, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_SOCKETS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; LENGTH_BYTES];
    let received = recvmsg(
        stream,
        &mut [IoSliceMut::new(&mut length)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    if received.bytes != LENGTH_BYTES {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut sockets = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            sockets.extend(descriptors);
        }
    }
    let mut text = vec![0; text_length(length).ok_or_else(too_long)?];
    (&mut &*stream).read_exact(&mut text)?;
    Ok((decode_text(&text).map_err(io::Error::other)?, sockets))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::handover::listeners::{ListenerName, Opener};

    const fn id(name: ListenerName) -> ListenerId {
        ListenerId {
            name,
            opener: Opener::Weir,
        }
    }

    fn listener() -> (TcpListener, std::net::SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn an_offered_socket_accepts_what_was_waiting_in_it() {
        let ((main, address), (admin, _)) = (listener(), listener());
        let waiting = std::net::TcpStream::connect(address).unwrap();
        let offered = [
            (id(ListenerName::Main), &main),
            (id(ListenerName::Admin), &admin),
        ];
        let (mut old, other) = HandoverChannel::offer(&offered).unwrap();
        drop(main);
        let received = ReceivedOffer::receive(other).unwrap();
        let (mut listeners, mut new) = received.split().unwrap();
        let (_, taken) = listeners.take(ListenerName::Main, address).unwrap();
        let (_, client) = taken.accept().unwrap();
        assert_eq!(client, waiting.local_addr().unwrap());
        new.send(&Message::Prepared).await.unwrap();
        old.send(&Message::Main).await.unwrap();
        assert_eq!(old.receive().await.unwrap(), Message::Prepared);
        assert_eq!(new.receive().await.unwrap(), Message::Main);
        drop(new);
        assert!(old.receive().await.is_err(), "the other process has ended");
    }

    #[test]
    fn an_offer_of_another_version_or_without_its_sockets_is_refused() {
        for (protocol, expected) in [(PROTOCOL + 1, "version"), (PROTOCOL, "without its sockets")] {
            let (mut own, other) = StdUnixStream::pair().unwrap();
            let offer = Offer {
                protocol,
                listeners: vec![id(ListenerName::Main)],
            };
            own.write_all(&encode_frame(&offer).unwrap()).unwrap();
            let why = ReceivedOffer::receive(other).unwrap_err().to_string();
            assert!(why.contains(expected), "{why}");
        }
    }

    #[test]
    fn a_socket_that_ends_before_the_offer_is_an_error() {
        let (own, other) = StdUnixStream::pair().unwrap();
        drop(own);
        assert!(ReceivedOffer::receive(other).is_err());
    }
}
