//! A request's body that had to be read before the request could be decided, and what all of them together may take.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Frame;

/// What the bodies that are held in memory at a time may take, in bytes.
#[derive(Debug)]
pub struct Budget {
    most: usize,
    taken: AtomicUsize,
}

/// A part of the budget, given back when it is dropped.
#[derive(Debug)]
pub struct Reserved {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    /// So many bytes.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: AtomicUsize::new(0),
        })
    }

    /// What is taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Nothing yet.
    #[must_use]
    pub fn reserve(self: &Arc<Self>) -> Reserved {
        Reserved {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }
}

impl Reserved {
    /// Takes so many bytes in all. Whether there was room for them.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let most = self.budget.most;
        // Relaxed: a sum, which orders nothing else.
        let taken = self
            .budget
            .taken
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken.checked_add(more).filter(|taken| *taken <= most)
            });
        if taken.is_ok() {
            self.bytes += more;
        }
        taken.is_ok()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A body, whole. It goes on byte for byte.
#[derive(Debug)]
pub struct ReadBody {
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// Until the body has gone, or the request has.
    _reserved: Reserved,
}

impl ReadBody {
    /// These bytes, which `reserved` covers, and the trailers, cleaned of identities.
    #[must_use]
    pub fn new(data: Bytes, trailers: Option<HeaderMap>, reserved: Reserved) -> Self {
        Self {
            data,
            trailers,
            _reserved: reserved,
        }
    }

    /// What is left of it.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    pub(super) fn frame(&mut self) -> Option<Frame<Bytes>> {
        if self.data.is_empty() {
            return self.trailers.take().map(Frame::trailers);
        }
        Some(Frame::data(std::mem::take(&mut self.data)))
    }

    pub(super) fn is_over(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    pub(super) fn left(&self) -> u64 {
        u64::try_from(self.data.len()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_never_passes_the_budget_and_comes_back() {
        let budget = Budget::new(100);
        let (mut first, mut second) = (budget.reserve(), budget.reserve());
        assert!(first.grow_to(40) && first.grow_to(60) && first.grow_to(50));
        assert!(!second.grow_to(41));
        assert!(second.grow_to(40));
        assert_eq!(budget.taken(), 100);
        drop(first);
        assert_eq!(budget.taken(), 40);
        drop(second);
        assert_eq!(budget.taken(), 0);
    }
}
