//! How many connections to the API server clients' requests may have: each is a descriptor, of which the system gives so many.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;

use crate::upstream::ForwardError;

/// One of so many places is kept from connections that last: streams that nobody ends must not keep requests that end from the
/// API server.
const KEPT: usize = 4;

/// Places for connections, shared by all workers and ways.
#[derive(Clone, Debug)]
pub struct Room {
    most: usize,
    all: Arc<Semaphore>,
    lasting: Arc<Semaphore>,
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    _one: OwnedSemaphorePermit,
    _lasting: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// For this many connections.
    #[must_use]
    pub fn of(most: usize) -> Self {
        let most = most.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            most,
            all: Arc::new(Semaphore::new(most)),
            lasting: Arc::new(Semaphore::new(most - most / KEPT)),
        }
    }

    /// A place for a connection that others may use after this request.
    pub(super) fn take(&self) -> Result<Taken, ForwardError> {
        self.place(&self.all).map(|one| Taken {
            _one: one,
            _lasting: None,
        })
    }

    /// A place for the connection of a request that lasts as long as its client likes.
    pub(super) fn take_lasting(&self) -> Result<Taken, ForwardError> {
        let lasting = self.place(&self.lasting)?;
        self.place(&self.all).map(|one| Taken {
            _one: one,
            _lasting: Some(lasting),
        })
    }

    fn place(&self, among: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, ForwardError> {
        Arc::clone(among)
            .try_acquire_owned()
            .map_err(|_| ForwardError::NoRoom(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_leaves_a_quarter_to_the_rest() {
        let room = Room::of(8);
        let mut lasting: Vec<_> = (0..6).map(|_| room.take_lasting().unwrap()).collect();
        assert!(matches!(room.take_lasting(), Err(ForwardError::NoRoom(8))));
        let others = [room.take().unwrap(), room.take().unwrap()];
        assert!(matches!(room.take(), Err(ForwardError::NoRoom(8))));
        lasting.pop();
        let _other = room.take().unwrap();
        assert!(room.take_lasting().is_err(), "all are taken");
        drop(others);
        let _lasting = room.take_lasting().unwrap();
    }

    #[test]
    fn there_is_always_one() {
        for most in [0, 1] {
            assert!(Room::of(most).take_lasting().is_ok());
        }
    }
}
