//! Which connections a request may use: shared or dedicated, for short or for long-running
//! requests.
//!
//! A watch keeps its stream for as long as its client likes. On connections for both, watches would
//! take all streams, however many there are, and leave none for short requests.
//!
//! kube-apiserver allows 100 streams on each connection: 800 watches would take all of eight. The
//! number of watch connections is bounded by file descriptors only, since a cluster has thousands
//! of watches for good reason.

/// The kind of connection that a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionClass {
    /// For a short request: a shared connection, if the API server speaks HTTP/2.
    Shared,
    /// For a watch: a connection that watches share, if the API server speaks HTTP/2.
    SharedWatch,
    /// For a short request after which the API server closes an HTTP/2 connection: an HTTP/1.1
    /// connection, which stays open.
    Dedicated,
    /// For a long-running request whose content others than the API server write (a log, a Pod
    /// behind the API server's proxy): an HTTP/1.1 connection. On a shared one, small frames that
    /// its client does not read would cost the other requests their connection.
    DedicatedLongRunning,
}

impl ConnectionClass {
    /// The class for the same request on a connection of its own.
    pub(crate) const fn dedicated(self) -> Self {
        match self {
            Self::Shared | Self::Dedicated => Self::Dedicated,
            Self::SharedWatch | Self::DedicatedLongRunning => Self::DedicatedLongRunning,
        }
    }

    /// Whether its requests last as long as their clients like.
    pub(crate) const fn is_long_running(self) -> bool {
        matches!(self, Self::SharedWatch | Self::DedicatedLongRunning)
    }
}

/// One value for short requests, and one for long-running ones.
#[derive(Default)]
pub(crate) struct PerClass<T> {
    short: T,
    long_running: T,
}

impl<T> PerClass<T> {
    pub(crate) const fn get(&self, class: ConnectionClass) -> &T {
        match class {
            ConnectionClass::Shared | ConnectionClass::Dedicated => &self.short,
            ConnectionClass::SharedWatch | ConnectionClass::DedicatedLongRunning => {
                &self.long_running
            }
        }
    }

    pub(crate) const fn get_mut(&mut self, class: ConnectionClass) -> &mut T {
        match class {
            ConnectionClass::Shared | ConnectionClass::Dedicated => &mut self.short,
            ConnectionClass::SharedWatch | ConnectionClass::DedicatedLongRunning => {
                &mut self.long_running
            }
        }
    }

    pub(crate) const fn each(&self) -> [&T; 2] {
        [&self.short, &self.long_running]
    }

    pub(crate) fn each_mut(&mut self) -> [&mut T; 2] {
        [&mut self.short, &mut self.long_running]
    }
}
