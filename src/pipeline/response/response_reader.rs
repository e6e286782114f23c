//! The client that reads a response, for which unread bytes count while memory may become scarce.

use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http_body::Frame;

use crate::limits::memory_limit::MemoryLimit;
use crate::limits::memory_limit::unread_responses::{ReservedResponse, UnreadConnection};
use crate::upstream::requester::{Requester, SlotHolder};

/// The memory limit, for the responses of one worker: two workers share no reference count that
/// each response changes.
#[derive(Debug)]
pub(crate) struct WorkerMemoryLimit(pub(crate) Arc<MemoryLimit>);

/// The client that reads a response.
pub(crate) struct ResponseReader {
    pub(crate) requester: Requester,
    memory: Arc<WorkerMemoryLimit>,
    /// Present while the response may have data that is not read.
    reserved: Option<ReservedResponse>,
    /// Set when the response is handed to the connection.
    pub(crate) connection: Option<Arc<UnreadConnection>>,
}

impl ResponseReader {
    /// The client that has sent a request, and what the request counts for already.
    pub(crate) fn new(
        requester: Requester,
        memory: &Arc<WorkerMemoryLimit>,
        reserved: Option<ReservedResponse>,
    ) -> Self {
        Self {
            requester,
            memory: Arc::clone(memory),
            reserved,
            connection: None,
        }
    }

    /// Counts what was polled, if anything is counted. A response without data for now counts for
    /// nothing: its client has read it, as that of a watch has.
    pub(crate) fn count<E>(
        &mut self,
        polled: Poll<Option<Result<Frame<Bytes>, E>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        if !self.memory.0.is_counting() {
            return polled;
        }
        match polled {
            Poll::Ready(Some(Ok(frame))) => Poll::Ready(Some(Ok(self.count_frame(frame)))),
            Poll::Pending => {
                self.reserved = None;
                Poll::Pending
            }
            Poll::Ready(Some(Err(_)) | None) => polled,
        }
    }

    /// The response has ended. What is not read of it still counts, and its end until the
    /// connection has written it.
    pub(crate) fn end(&mut self) {
        if let (Some(ended), Some(connection)) = (self.reserved.take(), &self.connection) {
            connection.keep_until_flush(ended);
        }
    }

    fn count_frame(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        let (Some(user), Some(connection)) = (&self.requester.user, &self.connection) else {
            return frame;
        };
        let reserved = self.reserved.take().unwrap_or_else(|| {
            let holder = SlotHolder::for_client(user, self.requester.network);
            self.memory.0.reserve(holder)
        });
        let counted = match frame.into_data() {
            Ok(data) => Frame::data(reserved.count_unread(data, connection)),
            Err(trailers) => trailers,
        };
        self.reserved = Some(reserved);
        counted
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;
    use weir_base::metrics::Registry;
    use weir_kubernetes::api::UserInfo;

    fn polled(size: usize) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![7; size])))))
    }

    fn reader(memory: &Arc<MemoryLimit>) -> ResponseReader {
        let bob = UserInfo {
            name: "bob".to_owned(),
            ..UserInfo::default()
        };
        let requester = Requester {
            user: Some(Arc::new(bob)),
            network: None,
        };
        let memory = Arc::new(WorkerMemoryLimit(Arc::clone(memory)));
        let mut reader = ResponseReader::new(requester, &memory, None);
        reader.connection = Some(Arc::default());
        reader
    }

    #[test]
    fn bytes_count_while_memory_may_become_scarce_until_the_library_drops_them() {
        let registry = Registry::new();
        let memory = MemoryLimit::new(1000, &registry);
        let mut reader = reader(&memory);
        let unread = |bytes| {
            let line = format!("weir_memory_unread_response_bytes {bytes}\n");
            assert!(registry.render().contains(&line), "{bytes}");
        };
        let before = reader.count(polled(10));
        unread(0);
        memory.record(500);
        let one = reader.count(polled(20));
        let other = reader.count(polled(30));
        unread(50);
        assert!(reader.reserved.is_some(), "there may be more");
        drop(one);
        unread(30);
        assert!(reader.count::<Infallible>(Poll::Pending).is_pending());
        assert!(reader.reserved.is_none(), "nothing waits for the client");
        unread(30);
        let last = reader.count(polled(40));
        reader.end();
        assert!(reader.reserved.is_none(), "the connection has it");
        drop(last);
        unread(30);
        drop((before, other));
        unread(0);
    }

    #[test]
    fn the_bytes_are_the_same() {
        let memory = MemoryLimit::new(1000, &Registry::new());
        memory.record(500);
        let Poll::Ready(Some(Ok(frame))) = reader(&memory).count(polled(20)) else {
            panic!("a frame");
        };
        assert_eq!(frame.into_data().unwrap(), vec![7; 20]);
    }
}
