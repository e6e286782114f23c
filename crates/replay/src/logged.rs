//! What a log says, in memory: requests as they arrived, and the ends of long-running ones. Pure.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};

use super::clients::{ClientId, SchemaId};
use weir_flowcontrol::fairqueuing::seats::WorkEstimate;

/// An entry of a log.
#[derive(Clone, Debug, PartialEq)]
pub enum LogItem {
    /// The record begins, at best together with the weir that wrote it.
    Start {
        /// Microseconds, as [`LoggedRequest::at_us`].
        at_us: i64,
    },
    /// A request.
    Request(LoggedRequest),
    /// The end of a long-running request.
    StreamEnd {
        /// Its id: see [`LoggedRequest::stream`].
        stream: u64,
        /// Microseconds, as [`LoggedRequest::at_us`].
        at_us: i64,
    },
}

/// A request of a log. Some 100,000 of them are kept at a time, so it is small, and what few requests
/// have is apart.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedRequest {
    /// The arrival, in microseconds since the Unix epoch (or since any other moment).
    pub at_us: i64,
    /// Who sent it.
    pub client: ClientId,
    /// The method and the target.
    pub line: RequestLine,
    /// Nanoseconds from the dispatch to the release of its seats. `None` if the log does not say.
    pub service_ns: OptionalNs,
    /// What became of it.
    pub recorded: RecordedOutcome,
    /// The seats that a weir has estimated for it.
    pub seats: Option<NonZeroU32>,
    /// Of a long-running request that has not ended: its id. 0 for any other.
    pub stream: u64,
    /// What few requests have, or none of a log.
    pub rare: Option<Box<RareFields>>,
}

/// What few requests have, or none of a log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RareFields {
    /// The bytes of the response, if it was successful and the log says.
    pub bytes: Option<NonZeroU64>,
    /// What event limits look at, if the log says.
    pub event: Option<Box<LoggedEvent>>,
    /// What a weir has estimated it at, if the log says.
    pub work: Option<WorkEstimate>,
}

/// The method and the target of a request line, in one allocation: the length of the method, the
/// method, the target.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestLine(Box<[u8]>);

/// Nanoseconds that may not be known, in eight bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OptionalNs(u64);

/// What became of a request when it was recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordedOutcome {
    /// Nanoseconds in queues and for rate limits.
    pub wait_ns: u64,
    /// Whether a limit has rejected it.
    pub rejected: bool,
    /// Whether its client went away before a response.
    pub cancelled: bool,
    /// The status code of the response, if there was one.
    pub code: Option<u16>,
    /// The flow schema that it matched, if the log says.
    pub flow_schema: Option<SchemaId>,
}

/// What event limits look at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoggedEvent {
    /// What stands for source and object.
    pub key: Box<str>,
    /// Whether the event is a warning.
    pub warning: bool,
}

impl RequestLine {
    /// `None` if the method is longer than 255 bytes.
    #[must_use]
    pub fn new(method: &str, target: &[u8]) -> Option<Self> {
        let length = u8::try_from(method.len()).ok()?;
        Some(Self([&[length], method.as_bytes(), target].concat().into()))
    }

    fn parts(&self) -> Option<(&[u8], &[u8])> {
        let (length, rest) = self.0.split_first()?;
        rest.split_at_checked(usize::from(*length))
    }

    /// The method, as `GET`.
    #[must_use]
    pub fn method(&self) -> &str {
        let method = self
            .parts()
            .and_then(|(method, _)| str::from_utf8(method).ok());
        method.unwrap_or_default() // unreachable: it was made of a text
    }

    /// The target.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.parts().map_or(&[], |(_, target)| target)
    }
}

impl fmt::Debug for RequestLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method(), self.target().escape_ascii())
    }
}

impl OptionalNs {
    /// If they are known.
    #[must_use]
    pub const fn get(self) -> Option<u64> {
        match self.0 {
            u64::MAX => None,
            known => Some(known),
        }
    }
}

impl From<Option<u64>> for OptionalNs {
    fn from(nanoseconds: Option<u64>) -> Self {
        Self(nanoseconds.map_or(u64::MAX, |known| known.min(u64::MAX - 1)))
    }
}

impl fmt::Debug for OptionalNs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl RareFields {
    /// The fields, unless all are empty.
    #[must_use]
    pub fn boxed(self) -> Option<Box<Self>> {
        (self != Self::default()).then(|| Box::new(self))
    }
}

impl LoggedRequest {
    /// The method, as `GET`.
    #[must_use]
    pub fn method(&self) -> &str {
        self.line.method()
    }

    /// The target of the request line.
    #[must_use]
    pub fn target(&self) -> &[u8] {
        self.line.target()
    }

    /// The bytes of the response, if it was successful and the log says.
    #[must_use]
    pub fn bytes(&self) -> Option<NonZeroU64> {
        self.rare.as_ref()?.bytes
    }

    /// What event limits look at, if the log says.
    #[must_use]
    pub fn event(&self) -> Option<&LoggedEvent> {
        self.rare.as_ref()?.event.as_deref()
    }

    /// What a weir has estimated it at, if the log says.
    #[must_use]
    pub fn work(&self) -> Option<WorkEstimate> {
        self.rare.as_ref()?.work
    }

    /// Nanoseconds that it waited until it was dispatched. 0 if it was not: a limit rejected it, or its
    /// client left. A simulation counts waits in the same way.
    #[must_use]
    pub const fn recorded_wait_ns(&self) -> u64 {
        let left = self.recorded.cancelled && self.service_ns.get().is_none();
        if self.recorded.rejected || left {
            return 0;
        }
        self.recorded.wait_ns
    }
}

impl LogItem {
    /// The same at another time, which is not the recorded one.
    #[must_use]
    pub fn moved_to(mut self, time_us: i64) -> Self {
        match &mut self {
            Self::Request(request) => request.at_us = time_us,
            Self::Start { at_us } | Self::StreamEnd { at_us, .. } => *at_us = time_us,
        }
        self
    }

    /// When it happened.
    #[must_use]
    pub const fn at_us(&self) -> i64 {
        match self {
            Self::Request(request) => request.at_us,
            Self::Start { at_us } | Self::StreamEnd { at_us, .. } => *at_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_small() {
        assert_eq!(size_of::<LoggedRequest>(), 72);
        assert_eq!(size_of::<LogItem>(), 72);
    }

    #[test]
    fn a_recorded_wait_is_that_of_a_request_that_was_dispatched() {
        let request = |rejected: bool, cancelled: bool, service_ns: Option<u64>| LoggedRequest {
            at_us: 0,
            client: ClientId(0),
            line: RequestLine::new("GET", b"/").unwrap(),
            service_ns: service_ns.into(),
            recorded: RecordedOutcome {
                wait_ns: 7,
                rejected,
                cancelled,
                ..RecordedOutcome::default()
            },
            seats: None,
            stream: 0,
            rare: None,
        };
        for (rejected, cancelled, service_ns, wait_ns) in [
            (false, false, Some(1), 7),
            (false, false, None, 7),
            (false, true, Some(1), 7),
            (false, true, None, 0),
            (true, false, None, 0),
        ] {
            let request = request(rejected, cancelled, service_ns);
            assert_eq!(request.recorded_wait_ns(), wait_ns, "{request:?}");
        }
    }

    #[test]
    fn a_line_has_its_method_and_its_target() {
        for (method, target) in [("GET", &b"/api?a=b c"[..]), ("", b""), ("A B", b"\xff\0/")] {
            let line = RequestLine::new(method, target).unwrap();
            assert_eq!((line.method(), line.target()), (method, target));
        }
        assert!(RequestLine::new(&"G".repeat(255), b"/").is_some());
        assert_eq!(RequestLine::new(&"G".repeat(256), b"/"), None);
    }

    #[test]
    fn unknown_nanoseconds_stay_unknown() {
        for nanoseconds in [None, Some(0), Some(7)] {
            assert_eq!(OptionalNs::from(nanoseconds).get(), nanoseconds);
        }
        let longest = OptionalNs::from(Some(u64::MAX)).get();
        assert_eq!(longest, Some(u64::MAX - 1));
    }
}
