//! Events in Kubernetes' protobuf: each is a length of four bytes and a `metav1.WatchEvent`, whose object is a
//! `runtime.RawExtension` of the magic and a `runtime.Unknown`, as in any other body.
//!
//! Only messages on the way to the kind and to the annotations are entered, the latter only of bookmarks; every other field
//! is passed over by its length.

use super::EventType;
use super::INITIAL_EVENTS_END;
use super::Seen;
use crate::api::list_scan::is_abridged;
use crate::api::varint::Pushed;
use crate::api::varint::Varint;
use crate::api::walk::Token;

const MAGIC: &[u8] = b"k8s\0";

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

/// As deep as messages are entered.
const DEEPEST: usize = 8;

#[derive(Debug)]
pub(super) struct Scan {
    state: State,
    varint: Varint,
    token: Token,
    at: u64,
    /// The messages that are open, the innermost last, and where each ends.
    open: Vec<(Within, u64)>,
    event: EventType,
    /// Of the annotation that is read: whether its name is the mark's.
    named: bool,
    marked: bool,
    object_length: u64,
    seen: Seen,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The length of an event: what was read of it, and how many bytes are missing.
    Frame(u64, u8),
    Tag,
    Value,
    Length(Field),
    /// The magic, of which so many bytes were read.
    Magic(usize),
    /// A text, of which so many bytes are missing.
    Text(Field, u64),
    Skipped(u64),
    Malformed,
}

/// Whose fields are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    Annotation,
    Event,
    Metadata,
    Object,
    RawExtension,
    TypeMeta,
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    /// A message.
    Enter(Within),
    Key,
    Kind,
    Other,
    Type,
    Value,
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            state: State::Frame(0, 4),
            varint: Varint::default(),
            token: Token::default(),
            at: 0,
            open: Vec::new(),
            event: EventType::default(),
            named: false,
            marked: false,
            object_length: 0,
            seen: Seen::default(),
        }
    }
}

impl Scan {
    pub(super) const fn seen(&self) -> Seen {
        self.seen
    }

    pub(super) const fn is_malformed(&self) -> bool {
        matches!(self.state, State::Malformed)
    }

    pub(super) fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            let (State::Skipped(missing) | State::Text(_, missing)) = self.state else {
                if self.is_malformed() {
                    return;
                }
                self.at = self.at.saturating_add(1);
                self.step(*byte);
                rest = after;
                continue;
            };
            let here = usize::try_from(missing).unwrap_or(usize::MAX);
            let (read, after) = rest.split_at_checked(here).unwrap_or((rest, &[]));
            let length = u64::try_from(read.len()).unwrap_or(u64::MAX);
            self.at = self.at.saturating_add(length);
            let missing = missing.saturating_sub(length);
            if let State::Text(field, _) = self.state {
                self.token.extend(read);
                self.text(field, missing);
            } else {
                self.skip(missing);
            }
            rest = after;
        }
    }

    fn step(&mut self, byte: u8) {
        match self.state {
            State::Frame(read, missing) => {
                let read = read << 8 | u64::from(byte);
                self.state = State::Frame(read, missing.saturating_sub(1));
                if missing <= 1 {
                    self.begin(read);
                }
            }
            State::Magic(read) => {
                self.state = match (MAGIC.get(read) == Some(&byte), read + 1 == MAGIC.len()) {
                    (true, true) => State::Tag,
                    (true, false) => State::Magic(read + 1),
                    (false, _) => State::Malformed,
                };
                self.fields_ended();
            }
            State::Tag | State::Value | State::Length(_) => match self.varint.push(byte) {
                Pushed::Complete(number) if self.at <= self.end() => self.number(number),
                Pushed::Incomplete => {}
                Pushed::Complete(_) | Pushed::TooLong => self.state = State::Malformed,
            },
            State::Skipped(_) | State::Text(..) | State::Malformed => {}
        }
    }

    /// An event of that length.
    fn begin(&mut self, length: u64) {
        (self.event, self.marked) = (EventType::Unknown, false);
        self.object_length = 0;
        self.open.clear();
        self.enter(Within::Event, self.at.saturating_add(length));
    }

    fn number(&mut self, number: u64) {
        match self.state {
            State::Tag => self.state = self.tagged(number),
            State::Value => self.value_ended(),
            State::Length(field) => self.delimited(field, number),
            State::Frame(..)
            | State::Magic(_)
            | State::Text(..)
            | State::Skipped(_)
            | State::Malformed => {}
        }
    }

    fn tagged(&self, tag: u64) -> State {
        let within = self.open.last().map(|(within, _)| *within);
        let is_bookmark = self.event == EventType::Bookmark;
        let field = match (within, tag >> 3) {
            (None, _) | (_, 0) => return State::Malformed,
            (Some(Within::Event), 1) => Field::Type,
            (Some(Within::Event), 2) => Field::Enter(Within::RawExtension),
            (Some(Within::RawExtension), 1) => Field::Enter(Within::Unknown),
            (Some(Within::Unknown), 1) => Field::Enter(Within::TypeMeta),
            (Some(Within::Unknown), 2) if is_bookmark => Field::Enter(Within::Object),
            (Some(Within::TypeMeta), 2) => Field::Kind,
            (Some(Within::Object), 1) => Field::Enter(Within::Metadata),
            (Some(Within::Metadata), 12) => Field::Enter(Within::Annotation),
            (Some(Within::Annotation), 1) => Field::Key,
            (Some(Within::Annotation), 2) => Field::Value,
            _ => Field::Other,
        };
        match (tag & 7, field) {
            (LENGTH_DELIMITED, _) => State::Length(field),
            (VARINT, Field::Other) => State::Value,
            (FIXED64, Field::Other) if self.fits(8) => State::Skipped(8),
            (FIXED32, Field::Other) if self.fits(4) => State::Skipped(4),
            _ => State::Malformed,
        }
    }

    /// A field of that length begins.
    fn delimited(&mut self, field: Field, length: u64) {
        let end = self.at.saturating_add(length);
        if !self.fits(length) {
            self.state = State::Malformed;
            return;
        }
        match field {
            Field::Other => self.skip(length),
            Field::Enter(within) => {
                if within == Within::Unknown {
                    self.object_length = length;
                }
                self.named &= within != Within::Annotation;
                self.enter(within, end);
            }
            Field::Type | Field::Kind | Field::Key | Field::Value => {
                self.token.clear();
                self.text(field, length);
            }
        }
    }

    fn enter(&mut self, within: Within, end: u64) {
        if self.open.len() >= DEEPEST {
            self.state = State::Malformed;
            return;
        }
        self.open.push((within, end));
        self.state = if within == Within::Unknown {
            State::Magic(0)
        } else {
            State::Tag
        };
        self.fields_ended();
    }

    fn skip(&mut self, missing: u64) {
        self.state = State::Skipped(missing);
        if missing == 0 {
            self.value_ended();
        }
    }

    fn text(&mut self, field: Field, missing: u64) {
        self.state = State::Text(field, missing);
        if missing > 0 {
            return;
        }
        match field {
            Field::Type => self.event = EventType::named(self.token.kept()),
            Field::Kind => {
                let abridged = self.token.kept().is_some_and(is_abridged);
                self.seen.events.abridged |= abridged && self.event == EventType::Added;
            }
            Field::Key => self.named = self.token.is(INITIAL_EVENTS_END),
            Field::Value => self.marked |= self.named && self.token.is(b"true"),
            Field::Enter(_) | Field::Other => {}
        }
        self.value_ended();
    }

    /// Whether a value of that length ends within its message.
    fn fits(&self, length: u64) -> bool {
        self.at.saturating_add(length) <= self.end()
    }

    fn end(&self) -> u64 {
        self.open.last().map_or(u64::MAX, |(_, end)| *end)
    }

    fn value_ended(&mut self) {
        self.state = State::Tag;
        self.fields_ended();
    }

    /// What comes next is another field, of the innermost message that goes on, or another event.
    fn fields_ended(&mut self) {
        while !self.is_malformed() && self.at == self.end() {
            if matches!(self.state, State::Magic(_)) {
                self.state = State::Malformed;
                return;
            }
            if let Some((Within::Event, _)) = self.open.pop() {
                self.seen.event(self.event, self.marked, self.object_length);
                self.state = State::Frame(0, 4);
                return;
            }
        }
    }
}
