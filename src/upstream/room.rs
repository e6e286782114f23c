//! How many connections to the API server clients' requests may have: each is a descriptor, of which the system gives so many.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::Semaphore;

use crate::upstream::ForwardError;

/// Places for connections, shared by all workers.
///
/// What lasts as long as its client likes must not keep requests that end from the API server, nor strangers those whom the API
/// server knows: requests that last have half, be it for a connection of HTTP/1.1 each or for those of HTTP/2 that watches share,
/// strangers' a quarter, and a quarter is nobody's.
#[derive(Clone, Debug)]
pub struct Room {
    most: usize,
    all: Arc<Semaphore>,
    lasting: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

/// One of the places, until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    _one: OwnedSemaphorePermit,
}

impl Room {
    /// For this many connections.
    #[must_use]
    pub fn of(most: usize) -> Self {
        let most = most.clamp(4, Semaphore::MAX_PERMITS); // one of each kind
        let places = |places| Arc::new(Semaphore::new(places));
        Self {
            most,
            all: places(most),
            lasting: places(most / 2),
            strangers: places(most / 4),
        }
    }

    /// The same, for strangers.
    #[must_use]
    pub fn for_strangers(&self) -> Self {
        Self {
            lasting: Arc::clone(&self.strangers),
            ..self.clone()
        }
    }

    /// A connection's place.
    pub(super) fn take(&self) -> Result<Taken, ForwardError> {
        self.place(&self.all)
    }

    /// The place of a request that lasts, while it has an HTTP/1.1 connection to itself; or of a connection of watches.
    pub(super) fn last(&self) -> Result<Taken, ForwardError> {
        self.place(&self.lasting)
    }

    fn place(&self, among: &Arc<Semaphore>) -> Result<Taken, ForwardError> {
        let taken = Arc::clone(among).try_acquire_owned();
        taken
            .map(|one| Taken { _one: one })
            .map_err(|_| ForwardError::NoRoom(self.most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_leaves_half_and_strangers_have_a_quarter_of_their_own() {
        let room = Room::of(8);
        let strangers = room.for_strangers();
        let full = |taken: Result<Taken, ForwardError>| {
            assert!(matches!(taken, Err(ForwardError::NoRoom(8))));
        };
        let mut lasting: Vec<_> = (0..4).map(|_| room.last().unwrap()).collect();
        full(room.last());
        let _theirs = [strangers.last().unwrap(), strangers.last().unwrap()];
        full(strangers.last());
        lasting.pop();
        full(strangers.last());
        let _again = room.last().unwrap();
        let _all: Vec<_> = (0..8).map(|_| strangers.take().unwrap()).collect();
        full(room.take());
    }

    #[test]
    fn there_is_always_one_of_each() {
        let room = Room::of(0);
        for room in [room.for_strangers(), room] {
            assert!(room.take().is_ok() && room.last().is_ok());
        }
    }
}
