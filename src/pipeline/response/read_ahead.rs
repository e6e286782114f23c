//! What is read of a response ahead of its client. Pure but for the account of its memory.
//!
//! Data is copied into chunks of one size: a small frame would otherwise keep a large buffer of its
//! connection.
//!
//! A long-running response is never read ahead: it holds no seat, and a pause must stop the API
//! server.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use http_body::Frame;

use crate::limits::memory_limit::read_ahead::{CHUNK_BYTES, ReadAheadAccount};

/// Most chunks of one response: 32 MiB, so that one response leaves some of a large share to others
/// of its user.
const MAX_CHUNKS: usize = (32 << 20) / CHUNK_BYTES;

/// Free chunks before a frame is read: more than a frame of HTTP/2 needs. A larger one of HTTP/1.1
/// may exceed the account.
const FREE_CHUNKS: usize = 2;

/// What is read ahead.
pub(crate) struct ReadAhead<E> {
    chunks: VecDeque<BytesMut>,
    account: ReadAheadAccount,
    /// What follows the data: trailers, or why the source has failed.
    last: Option<Result<Frame<Bytes>, E>>,
}

impl<E> ReadAhead<E> {
    /// Nothing yet.
    pub(crate) const fn new(account: ReadAheadAccount) -> Self {
        Self {
            chunks: VecDeque::new(),
            account,
            last: None,
        }
    }

    /// Whether there is memory for a frame. Takes it.
    pub(crate) fn has_room(&mut self) -> bool {
        let chunks = self.chunks.len() + FREE_CHUNKS;
        chunks <= MAX_CHUNKS && self.account.try_grow_to(chunks)
    }

    /// Adds a frame. Returns whether it was empty before.
    pub(crate) fn push(&mut self, frame: Frame<Bytes>) -> bool {
        let was_empty = self.is_empty();
        let mut data = match frame.into_data() {
            Ok(data) => data,
            Err(trailers) => {
                self.last = Some(Ok(trailers));
                return was_empty;
            }
        };
        while !data.is_empty() {
            let free = |chunk: &BytesMut| CHUNK_BYTES.saturating_sub(chunk.len());
            match self.chunks.back_mut().filter(|chunk| free(chunk) > 0) {
                Some(chunk) => {
                    let part = data.split_to(free(chunk).min(data.len()));
                    chunk.extend_from_slice(&part);
                }
                None => self.chunks.push_back(BytesMut::with_capacity(CHUNK_BYTES)),
            }
        }
        was_empty
    }

    /// The source has failed.
    pub(crate) fn fail(&mut self, error: E) {
        self.last = Some(Err(error));
    }

    /// The next frame. What follows the data only if the source has ended.
    pub(crate) fn pop(&mut self, source_ended: bool) -> Option<Option<Result<Frame<Bytes>, E>>> {
        if let Some(chunk) = self.chunks.pop_front() {
            self.account.shrink_to(self.chunks.len());
            return Some(Some(Ok(Frame::data(chunk.freeze()))));
        }
        if source_ended || self.last.is_some() {
            return Some(self.last.take());
        }
        None
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.last.is_none()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::limits::memory_limit::MemoryLimit;
    use crate::upstream::requester::SlotHolder;
    use weir_base::metrics::Registry;

    fn read_ahead(registry: &Registry) -> ReadAhead<&'static str> {
        let memory = MemoryLimit::new(0, registry);
        ReadAhead::new(memory.read_ahead_account(SlotHolder::User("alice".to_owned())))
    }

    fn data(frame: Frame<Bytes>) -> Bytes {
        frame.into_data().unwrap()
    }

    #[test]
    fn bytes_come_out_as_they_went_in_and_an_error_comes_last() {
        let mut ahead = read_ahead(&Registry::new());
        fastrand::seed(8);
        println!("seed 8");
        let (mut sent, mut read) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            let size = fastrand::usize(..3 * CHUNK_BYTES);
            let piece: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
                .take(size)
                .collect();
            sent.extend_from_slice(&piece);
            ahead.push(Frame::data(piece.into()));
            for _ in 0..fastrand::usize(..3) {
                if let Some(Some(Ok(frame))) = ahead.pop(false) {
                    read.extend_from_slice(&data(frame));
                }
            }
        }
        ahead.fail("cut");
        while let Some(Some(Ok(frame))) = ahead.pop(true) {
            read.extend_from_slice(&data(frame));
            assert!(!ahead.is_empty(), "the error is left");
        }
        assert!(ahead.is_empty() && sent == read);
        assert!(matches!(ahead.pop(true), Some(None)), "the end");
    }

    #[test]
    fn a_response_has_a_bound_and_gives_room_back() {
        let registry = Registry::new();
        let mut ahead = read_ahead(&registry);
        let mut pieces = 0;
        while ahead.has_room() {
            ahead.push(Frame::data(Bytes::from_static(&[7; CHUNK_BYTES])));
            pieces += 1;
        }
        assert_eq!(pieces, MAX_CHUNKS - 1);
        assert!(ahead.pop(false).is_some() && ahead.has_room());
        let used = |bytes| {
            let line = format!("weir_memory_read_ahead_bytes {bytes}\n");
            assert!(registry.render().contains(&line), "{bytes}");
        };
        used(MAX_CHUNKS * CHUNK_BYTES);
        ahead.push(Frame::trailers(HeaderMap::new()));
        assert!(!ahead.is_empty());
        drop(ahead);
        used(0);
    }
}
