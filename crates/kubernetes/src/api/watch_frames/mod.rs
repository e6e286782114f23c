//! Splits a watch into its events while its bytes pass, and finds the bookmark that ends the
//! initial events of a watch list (KEP-3157).
//!
//! That bookmark is a BOOKMARK event with the annotation `k8s.io/initial-events-end`. The
//! annotation on any other event is ignored: clients write the annotations of those objects. The
//! objects are not parsed. kube-apiserver writes every part of a bookmark, so its name in one is
//! enough.
//!
//! An event is a line of JSON, a length of four bytes and a protobuf `metav1.WatchEvent`, or an
//! item of a CBOR sequence. Chunk boundaries do not matter. Of an event only the first
//! [`HEAD_BYTES`] are kept, and of one that may be the bookmark at most one chunk.

mod cbor_items;
#[cfg(test)]
mod tests;

use memchr::{memchr, memmem};

use self::cbor_items::CborItems;
use crate::numeric::{saturating_u64, saturating_usize};

/// The annotation of the last initial event (`metav1.InitialEventsAnnotationKey`).
const INITIAL_EVENTS_END: &[u8] = b"k8s.io/initial-events-end";
/// The annotation with its value, as Go writes it. Quotes within a JSON string are escaped.
const JSON_INITIAL_EVENTS_END: &[u8] = b"\"k8s.io/initial-events-end\":\"true\"";

/// Enough for everything before the end of the type, in each encoding.
const HEAD_BYTES: usize = 32;

const ADDED: &[u8] = b"ADDED";
const BOOKMARK: &[u8] = b"BOOKMARK";

/// CBOR: the optional tag of self-described data, and a map of two members. Their order is
/// arbitrary (`cbor.EncodeNondeterministic`). Strings are byte strings.
const CBOR_SELF_DESCRIBED: &[u8] = &[0xd9, 0xd9, 0xf7];
const CBOR_EVENT: u8 = 0xa2;
const CBOR_TYPE_NAME: &[u8] = b"\x44type";
const CBOR_BYTE_STRING: u8 = 0x40;
/// Protobuf: the length of the event, and the tag of its type (field 1, length-delimited).
const PROTOBUF_LENGTH_BYTES: usize = 4;
const PROTOBUF_TYPE_TAG: u8 = 0x0a;

/// The encoding of objects in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaType {
    /// `application/cbor`.
    Cbor,
    /// `application/json`.
    Json,
    /// `application/vnd.kubernetes.protobuf`; kube-apiserver also stores built-in resources in it.
    Protobuf,
}

/// The events of one watch, chunk by chunk.
#[derive(Debug)]
pub struct WatchFrames {
    framing: Framing,
    /// The beginning of the current event.
    head: Vec<u8>,
    /// The last bytes of an event that may be the bookmark: too few to contain the annotation.
    window: Vec<u8>,
    has_annotation: bool,
    /// The length of the current event so far.
    length: u64,
    last_event: Option<u64>,
    initial_events: InitialEvents,
    initial_events_ended: bool,
}

/// The initial events, complete or so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitialEvents {
    /// Number of ADDED events.
    pub objects: u64,
    /// Their total length, in bytes.
    pub bytes: u64,
}

/// Where events end.
#[derive(Debug)]
enum Framing {
    Cbor(CborItems),
    Json,
    Protobuf {
        /// The bytes of the length that have been read.
        length_bytes: usize,
        /// The length so far, then the missing bytes of the event.
        missing: u32,
    },
}

impl MediaType {
    /// The encoding that a `Content-Type` names; its parameters are ignored. `None` for any other
    /// type.
    #[must_use]
    pub fn from_content_type(content_type: &[u8]) -> Option<Self> {
        let media_type = content_type
            .split(|byte| *byte == b';')
            .next()?
            .trim_ascii();
        let is = |name: &[u8]| media_type.eq_ignore_ascii_case(name);
        if is(b"application/json") {
            Some(Self::Json)
        } else if is(b"application/vnd.kubernetes.protobuf") {
            Some(Self::Protobuf)
        } else if is(b"application/cbor") || is(b"application/cbor-seq") {
            Some(Self::Cbor)
        } else {
            None
        }
    }
}

impl WatchFrames {
    /// Reads a stream in this encoding.
    #[must_use]
    pub fn new(media_type: MediaType) -> Self {
        let framing = match media_type {
            MediaType::Cbor => Framing::Cbor(CborItems::default()),
            MediaType::Json => Framing::Json,
            MediaType::Protobuf => Framing::Protobuf {
                length_bytes: 0,
                missing: 0,
            },
        };
        Self {
            framing,
            head: Vec::with_capacity(HEAD_BYTES),
            window: Vec::new(),
            has_annotation: false,
            length: 0,
            last_event: None,
            initial_events: InitialEvents::default(),
            initial_events_ended: false,
        }
    }

    /// Consumes the next chunk of the stream, of any length. Returns whether the initial events
    /// have ended.
    pub fn feed(&mut self, chunk: &[u8]) -> bool {
        let mut rest = chunk;
        while !rest.is_empty() && !self.is_malformed() {
            let end = self.framing.find_end(rest);
            let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
            self.extend_event(part);
            if end.is_some() {
                self.end_event();
            }
            rest = after;
        }
        self.initial_events_ended
    }

    /// The initial events so far, or all of them if they have ended.
    #[must_use]
    pub const fn initial_events(&self) -> InitialEvents {
        self.initial_events
    }

    /// The length of the last event that has ended, in bytes.
    #[must_use]
    pub const fn last_event(&self) -> Option<u64> {
        self.last_event
    }

    /// Whether no event is incomplete.
    #[must_use]
    pub const fn is_between_events(&self) -> bool {
        self.length == 0
    }

    /// Whether the ends of events are unknown. The bookmark is not found then.
    #[must_use]
    pub const fn is_malformed(&self) -> bool {
        matches!(&self.framing, Framing::Cbor(items) if items.is_malformed())
    }

    fn extend_event(&mut self, part: &[u8]) {
        self.length = self.length.saturating_add(saturating_u64(part.len()));
        let room = HEAD_BYTES.saturating_sub(self.head.len());
        self.head
            .extend_from_slice(part.get(..room).unwrap_or(part));
        if !self.may_be_bookmark() {
            return;
        }
        let annotation = match self.framing {
            Framing::Json => JSON_INITIAL_EVENTS_END,
            Framing::Cbor(_) | Framing::Protobuf { .. } => INITIAL_EVENTS_END,
        };
        self.window.extend_from_slice(part);
        self.has_annotation |= memmem::find(&self.window, annotation).is_some();
        let surplus = (self.window.len() + 1).saturating_sub(annotation.len());
        self.window.drain(..surplus);
    }

    fn end_event(&mut self) {
        if !self.initial_events_ended && self.is_type(ADDED) {
            let events = &mut self.initial_events;
            events.objects = events.objects.saturating_add(1);
            events.bytes = events.bytes.saturating_add(self.length);
        }
        self.initial_events_ended |= self.has_annotation && self.is_type(BOOKMARK);
        self.last_event = Some(std::mem::take(&mut self.length));
        self.has_annotation = false;
        self.head.clear();
        self.window.clear();
    }

    /// Whether the current event is a bookmark, or its type is not known yet.
    fn may_be_bookmark(&self) -> bool {
        self.head.len() < HEAD_BYTES
            || self.is_type(BOOKMARK)
            || matches!(self.framing, Framing::Cbor(_)) && !self.begins_with_cbor_type()
    }

    /// Whether the current event has this type. In CBOR, the type may be the end of the event.
    fn is_type(&self, name: &[u8]) -> bool {
        let length = u8::try_from(name.len()).unwrap_or(u8::MAX);
        let has_name = |text: Option<&[u8]>| text.is_some_and(|text| text.starts_with(name));
        match self.framing {
            Framing::Json => {
                let quoted = self.head.strip_prefix(b"{\"type\":\"");
                has_name(quoted) && quoted.and_then(|text| text.get(name.len())) == Some(&b'"')
            }
            Framing::Protobuf { .. } => has_name(
                self.head
                    .get(PROTOBUF_LENGTH_BYTES..)
                    .and_then(|event| event.strip_prefix(&[PROTOBUF_TYPE_TAG, length])),
            ),
            Framing::Cbor(_) => {
                let member = [CBOR_TYPE_NAME, &[CBOR_BYTE_STRING | length], name].concat();
                if self.begins_with_cbor_type() {
                    self.cbor_members()
                        .is_some_and(|members| members.starts_with(&member))
                } else {
                    self.cbor_members().is_some() && self.window.ends_with(&member)
                }
            }
        }
    }

    /// The beginning of a CBOR event after what introduces its members.
    fn cbor_members(&self) -> Option<&[u8]> {
        let tagged = self.head.strip_prefix(CBOR_SELF_DESCRIBED);
        tagged.unwrap_or(&self.head).strip_prefix(&[CBOR_EVENT])
    }

    fn begins_with_cbor_type(&self) -> bool {
        self.cbor_members()
            .is_some_and(|members| members.starts_with(CBOR_TYPE_NAME))
    }
}

impl Framing {
    /// The length of what belongs to the current event, if it ends within these bytes.
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        match self {
            Self::Cbor(items) => items.find_end(bytes),
            Self::Json => memchr(b'\n', bytes).map(|at| at + 1),
            Self::Protobuf {
                length_bytes,
                missing,
            } => {
                let unread = PROTOBUF_LENGTH_BYTES.saturating_sub(*length_bytes);
                let read = unread.min(bytes.len());
                for byte in bytes.iter().take(read) {
                    *missing = *missing << 8 | u32::from(*byte);
                }
                *length_bytes = length_bytes.saturating_add(read);
                if *length_bytes < PROTOBUF_LENGTH_BYTES {
                    return None;
                }
                let event = saturating_usize(u64::from(*missing));
                let end = read.saturating_add(event);
                if end <= bytes.len() {
                    (*length_bytes, *missing) = (0, 0);
                    return Some(end);
                }
                let taken = u32::try_from(bytes.len().saturating_sub(read)).unwrap_or(u32::MAX);
                *missing = missing.saturating_sub(taken);
                None
            }
        }
    }
}
