//! Events in Kubernetes' protobuf: each is a length of four bytes and a `metav1.WatchEvent`, whose
//! object is a `runtime.RawExtension` of the magic and a `runtime.Unknown`, as in any other body.
//!
//! Only the messages that contain the kind and the annotations are entered, the annotations only in
//! bookmarks. Every other field is skipped by its length.

use super::totals::{INITIAL_EVENTS_END, WatchEventType, WatchTotals};
use crate::api::list_scan::is_transformed_kind;
use crate::api::walk::TokenBuffer;
use crate::encoding::protobuf::{KUBERNETES_MAGIC, VarintDecoder, VarintProgress, wire_type};
use crate::numeric::{saturating_u64, saturating_usize};

/// Maximum depth of entered messages.
const MAX_DEPTH: usize = 8;

#[derive(Debug)]
pub(super) struct ProtobufWatchScan {
    state: ProtobufWatchState,
    varint: VarintDecoder,
    token: TokenBuffer,
    offset: u64,
    /// The open messages, the innermost last, with the offset of the end of each.
    open_messages: Vec<(WatchMessage, u64)>,
    event_type: WatchEventType,
    /// Whether the key of the current annotation is `k8s.io/initial-events-end`.
    is_end_key: bool,
    has_end_annotation: bool,
    object_length: u64,
    totals: WatchTotals,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum ProtobufWatchState {
    /// The length of an event: the value read so far and the number of missing bytes.
    FrameLength(u64, u8),
    Tag,
    Varint,
    Length(WatchField),
    /// The magic, with the number of bytes read.
    Magic(usize),
    /// A string, with the number of missing bytes.
    Text(WatchField, u64),
    Skip(u64),
    Malformed,
}

/// The message whose fields are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchMessage {
    Annotation,
    Event,
    Metadata,
    Object,
    RawExtension,
    TypeMeta,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchField {
    /// A message to enter.
    Enter(WatchMessage),
    Key,
    Kind,
    Other,
    Type,
    Value,
}

impl Default for ProtobufWatchScan {
    fn default() -> Self {
        Self {
            state: ProtobufWatchState::FrameLength(0, 4),
            varint: VarintDecoder::default(),
            token: TokenBuffer::default(),
            offset: 0,
            open_messages: Vec::new(),
            event_type: WatchEventType::default(),
            is_end_key: false,
            has_end_annotation: false,
            object_length: 0,
            totals: WatchTotals::default(),
        }
    }
}

impl ProtobufWatchScan {
    pub(super) const fn totals(&self) -> WatchTotals {
        self.totals
    }

    pub(super) const fn is_between_events(&self) -> bool {
        matches!(self.state, ProtobufWatchState::FrameLength(_, 4))
    }

    pub(super) const fn is_malformed(&self) -> bool {
        matches!(self.state, ProtobufWatchState::Malformed)
    }

    pub(super) fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            let (ProtobufWatchState::Skip(missing) | ProtobufWatchState::Text(_, missing)) =
                self.state
            else {
                if self.is_malformed() {
                    return;
                }
                self.offset = self.offset.saturating_add(1);
                self.step(*byte);
                rest = after;
                continue;
            };
            let here = saturating_usize(missing);
            let (read, after) = rest.split_at_checked(here).unwrap_or((rest, &[]));
            let length = saturating_u64(read.len());
            self.offset = self.offset.saturating_add(length);
            let missing = missing.saturating_sub(length);
            if let ProtobufWatchState::Text(field, _) = self.state {
                self.token.extend(read);
                self.read_text(field, missing);
            } else {
                self.skip(missing);
            }
            rest = after;
        }
    }

    fn step(&mut self, byte: u8) {
        match self.state {
            ProtobufWatchState::FrameLength(read, missing) => {
                let read = read << 8 | u64::from(byte);
                self.state = ProtobufWatchState::FrameLength(read, missing.saturating_sub(1));
                if missing <= 1 {
                    self.begin_event(read);
                }
            }
            ProtobufWatchState::Magic(read) => {
                self.state = match (
                    KUBERNETES_MAGIC.get(read) == Some(&byte),
                    read + 1 == KUBERNETES_MAGIC.len(),
                ) {
                    (true, true) => ProtobufWatchState::Tag,
                    (true, false) => ProtobufWatchState::Magic(read + 1),
                    (false, _) => ProtobufWatchState::Malformed,
                };
                self.close_messages();
            }
            ProtobufWatchState::Tag
            | ProtobufWatchState::Varint
            | ProtobufWatchState::Length(_) => match self.varint.push(byte) {
                VarintProgress::Complete(number) if self.offset <= self.message_end() => {
                    self.on_varint(number)
                }
                VarintProgress::Incomplete => {}
                VarintProgress::Complete(_)
                | VarintProgress::Truncated(_)
                | VarintProgress::TooLong => self.state = ProtobufWatchState::Malformed,
            },
            ProtobufWatchState::Skip(_)
            | ProtobufWatchState::Text(..)
            | ProtobufWatchState::Malformed => {}
        }
    }

    /// Begins an event of `length` bytes.
    fn begin_event(&mut self, length: u64) {
        (self.event_type, self.has_end_annotation) = (WatchEventType::Unknown, false);
        self.object_length = 0;
        self.open_messages.clear();
        self.enter_message(WatchMessage::Event, self.offset.saturating_add(length));
    }

    fn on_varint(&mut self, number: u64) {
        match self.state {
            ProtobufWatchState::Tag => self.state = self.state_after_tag(number),
            ProtobufWatchState::Varint => self.end_value(),
            ProtobufWatchState::Length(field) => self.begin_delimited(field, number),
            ProtobufWatchState::FrameLength(..)
            | ProtobufWatchState::Magic(_)
            | ProtobufWatchState::Text(..)
            | ProtobufWatchState::Skip(_)
            | ProtobufWatchState::Malformed => {}
        }
    }

    fn state_after_tag(&self, tag: u64) -> ProtobufWatchState {
        let message = self.open_messages.last().map(|(message, _)| *message);
        let is_bookmark = self.event_type == WatchEventType::Bookmark;
        let field = match (message, tag >> 3) {
            (None, _) | (_, 0) => return ProtobufWatchState::Malformed,
            (Some(WatchMessage::Event), 1) => WatchField::Type,
            (Some(WatchMessage::Event), 2) => WatchField::Enter(WatchMessage::RawExtension),
            (Some(WatchMessage::RawExtension), 1) => WatchField::Enter(WatchMessage::Unknown),
            (Some(WatchMessage::Unknown), 1) => WatchField::Enter(WatchMessage::TypeMeta),
            (Some(WatchMessage::Unknown), 2) if is_bookmark => {
                WatchField::Enter(WatchMessage::Object)
            }
            (Some(WatchMessage::TypeMeta), 2) => WatchField::Kind,
            (Some(WatchMessage::Object), 1) => WatchField::Enter(WatchMessage::Metadata),
            (Some(WatchMessage::Metadata), 12) => WatchField::Enter(WatchMessage::Annotation),
            (Some(WatchMessage::Annotation), 1) => WatchField::Key,
            (Some(WatchMessage::Annotation), 2) => WatchField::Value,
            _ => WatchField::Other,
        };
        match (tag & 7, field) {
            (wire_type::LENGTH_DELIMITED, _) => ProtobufWatchState::Length(field),
            (wire_type::VARINT, WatchField::Other) => ProtobufWatchState::Varint,
            (wire_type::FIXED64, WatchField::Other) if self.fits(8) => ProtobufWatchState::Skip(8),
            (wire_type::FIXED32, WatchField::Other) if self.fits(4) => ProtobufWatchState::Skip(4),
            _ => ProtobufWatchState::Malformed,
        }
    }

    /// Begins a field of `length` bytes.
    fn begin_delimited(&mut self, field: WatchField, length: u64) {
        let end = self.offset.saturating_add(length);
        if !self.fits(length) {
            self.state = ProtobufWatchState::Malformed;
            return;
        }
        match field {
            WatchField::Other => self.skip(length),
            WatchField::Enter(message) => {
                if message == WatchMessage::Unknown {
                    self.object_length = length;
                }
                self.is_end_key &= message != WatchMessage::Annotation;
                self.enter_message(message, end);
            }
            WatchField::Type | WatchField::Kind | WatchField::Key | WatchField::Value => {
                self.token.clear();
                self.read_text(field, length);
            }
        }
    }

    fn enter_message(&mut self, message: WatchMessage, end: u64) {
        if self.open_messages.len() >= MAX_DEPTH {
            self.state = ProtobufWatchState::Malformed;
            return;
        }
        self.open_messages.push((message, end));
        self.state = if message == WatchMessage::Unknown {
            ProtobufWatchState::Magic(0)
        } else {
            ProtobufWatchState::Tag
        };
        self.close_messages();
    }

    fn skip(&mut self, missing: u64) {
        self.state = ProtobufWatchState::Skip(missing);
        if missing == 0 {
            self.end_value();
        }
    }

    fn read_text(&mut self, field: WatchField, missing: u64) {
        self.state = ProtobufWatchState::Text(field, missing);
        if missing > 0 {
            return;
        }
        match field {
            WatchField::Type => self.event_type = WatchEventType::from_name(self.token.as_bytes()),
            WatchField::Kind => {
                let abridged = self.token.as_bytes().is_some_and(is_transformed_kind);
                self.totals.events.transformed |=
                    abridged && self.event_type == WatchEventType::Added;
            }
            WatchField::Key => self.is_end_key = self.token.equals(INITIAL_EVENTS_END),
            WatchField::Value => {
                self.has_end_annotation |= self.is_end_key && self.token.equals(b"true")
            }
            WatchField::Enter(_) | WatchField::Other => {}
        }
        self.end_value();
    }

    /// Whether a value of `length` bytes ends within its message.
    fn fits(&self, length: u64) -> bool {
        self.offset.saturating_add(length) <= self.message_end()
    }

    fn message_end(&self) -> u64 {
        self.open_messages.last().map_or(u64::MAX, |(_, end)| *end)
    }

    fn end_value(&mut self) {
        self.state = ProtobufWatchState::Tag;
        self.close_messages();
    }

    /// Closes the messages that have ended: the next byte begins another field of the innermost
    /// open message, or another event.
    fn close_messages(&mut self) {
        while !self.is_malformed() && self.offset == self.message_end() {
            if matches!(self.state, ProtobufWatchState::Magic(_)) {
                self.state = ProtobufWatchState::Malformed;
                return;
            }
            if let Some((WatchMessage::Event, _)) = self.open_messages.pop() {
                self.totals.record_event(
                    self.event_type,
                    self.has_end_annotation,
                    self.object_length,
                );
                self.state = ProtobufWatchState::FrameLength(0, 4);
                return;
            }
        }
    }
}
