//! A list in Kubernetes' protobuf: four bytes of magic, then `runtime.Unknown` with the list
//! inside.
//!
//! Follows `runtime.Unknown`, its `TypeMeta`, the list and its `ListMeta`; every other field is
//! passed over by its length. Whether it is a list only the kind tells, which ends in `List`: an
//! object on its own has fields of the same numbers. Groups, which Kubernetes does not use, are
//! malformed.

use super::Counts;
use super::is_abridged;
use crate::api::varint::Pushed;
use crate::api::varint::Varint;
use crate::api::walk::Token;

/// What precedes every body (`k8s.io/apimachinery/pkg/runtime/serializer/protobuf`).
const MAGIC: u32 = u32::from_be_bytes(*b"k8s\0");
/// The end of a list's kind.
const LIST: u32 = u32::from_be_bytes(*b"List");

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

#[derive(Debug)]
pub(super) struct Scan {
    state: State,
    within: Within,
    varint: Varint,
    /// How much of the body was read.
    at: u64,
    /// Where `TypeMeta` or `ListMeta` ends, while within.
    meta_end: u64,
    /// Where the list ends, while within it or its `ListMeta`.
    list_end: u64,
    /// The last four bytes of what is to be compared: the magic, later the kind.
    last: u32,
    kind: Token,
    has_list: bool,
    counts: Counts,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The magic, of which so many bytes are missing.
    Magic(u8),
    Tag,
    Value(Field),
    Length(Field),
    /// The kind, of which so many bytes are missing.
    Kind(u64),
    /// Something else, of which so many bytes are missing.
    Skipped(u64),
    /// Anything: it is no list.
    NoList,
}

/// Whose fields are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    List,
    ListMeta,
    TypeMeta,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Continue,
    Item,
    Kind,
    List,
    ListMeta,
    Other,
    RemainingItemCount,
    TypeMeta,
}

impl Default for Scan {
    fn default() -> Self {
        Self {
            state: State::Magic(4),
            within: Within::Unknown,
            varint: Varint::default(),
            at: 0,
            meta_end: 0,
            list_end: 0,
            last: 0,
            kind: Token::default(),
            has_list: false,
            counts: Counts::default(),
        }
    }
}

impl Scan {
    pub(super) fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            if let State::Skipped(missing) = self.state {
                let here = usize::try_from(missing).unwrap_or(usize::MAX);
                let (skipped, after) = rest.split_at_checked(here).unwrap_or((rest, &[]));
                let skipped = u64::try_from(skipped.len()).unwrap_or(u64::MAX);
                self.at = self.at.saturating_add(skipped);
                self.skip(missing.saturating_sub(skipped));
                rest = after;
            } else if matches!(self.state, State::NoList) {
                return;
            } else {
                self.at = self.at.saturating_add(1);
                self.step(*byte);
                rest = after;
            }
        }
    }

    pub(super) fn finish(self) -> Option<Counts> {
        let complete = matches!(self.state, State::Tag)
            && self.varint == Varint::default()
            && self.within == Within::Unknown;
        self.so_far().filter(|_| complete && self.has_list)
    }

    /// What is known so far, if it is a list: the kind precedes the objects.
    pub(super) fn so_far(&self) -> Option<Counts> {
        let is_list = self.last == LIST && !matches!(self.state, State::NoList);
        is_list.then(|| Counts {
            abridged: self.kind.kept().is_some_and(is_abridged),
            ..self.counts
        })
    }

    fn step(&mut self, byte: u8) {
        match self.state {
            State::Magic(missing) => {
                self.last = self.last << 8 | u32::from(byte);
                self.state = match missing {
                    2.. => State::Magic(missing - 1),
                    _ if self.last == MAGIC => State::Tag,
                    _ => State::NoList,
                };
            }
            State::Kind(missing) => {
                self.last = self.last << 8 | u32::from(byte);
                self.kind.push(byte);
                self.read_kind(missing.saturating_sub(1));
            }
            State::Tag | State::Value(_) | State::Length(_) => match self.varint.push(byte) {
                Pushed::Complete(number) if self.at <= self.end() => self.number(number),
                Pushed::Incomplete => {}
                Pushed::Complete(_) | Pushed::TooLong => self.state = State::NoList,
            },
            State::Skipped(_) | State::NoList => {}
        }
    }

    /// A varint is complete.
    fn number(&mut self, number: u64) {
        match self.state {
            State::Tag => self.state = self.tagged(number),
            State::Value(field) => {
                if let Field::RemainingItemCount = field {
                    // An int64, which is not negative.
                    if i64::try_from(number).is_err() {
                        self.state = State::NoList;
                        return;
                    }
                    self.counts.remaining_items = Some(number);
                }
                self.value_ended();
            }
            State::Length(field) => self.delimited(field, number),
            State::Magic(_) | State::Kind(_) | State::Skipped(_) | State::NoList => {}
        }
    }

    fn tagged(&self, tag: u64) -> State {
        let field = match (self.within, tag >> 3) {
            (_, 0) => return State::NoList,
            (Within::Unknown, 1) => Field::TypeMeta,
            (Within::Unknown, 2) => Field::List,
            (Within::TypeMeta, 2) => Field::Kind,
            (Within::List, 1) => Field::ListMeta,
            (Within::List, 2) => Field::Item,
            (Within::ListMeta, 3) => Field::Continue,
            (Within::ListMeta, 4) => Field::RemainingItemCount,
            _ => Field::Other,
        };
        match (tag & 7, field) {
            (VARINT, Field::RemainingItemCount | Field::Other) => State::Value(field),
            (LENGTH_DELIMITED, Field::RemainingItemCount) => State::NoList,
            (LENGTH_DELIMITED, _) => State::Length(field),
            (FIXED64, Field::Other) => self.fixed(8),
            (FIXED32, Field::Other) => self.fixed(4),
            _ => State::NoList,
        }
    }

    fn fixed(&self, length: u64) -> State {
        if self.fits(length).is_some() {
            State::Skipped(length)
        } else {
            State::NoList
        }
    }

    /// A field of that length begins.
    fn delimited(&mut self, field: Field, length: u64) {
        let Some(end) = self.fits(length) else {
            self.state = State::NoList;
            return;
        };
        match field {
            Field::List if self.has_list => self.state = State::NoList,
            Field::List => {
                self.has_list = true;
                self.list_end = end;
                self.enter(Within::List);
            }
            Field::ListMeta => {
                self.meta_end = end;
                self.counts.has_metadata = true;
                self.enter(Within::ListMeta);
            }
            Field::TypeMeta => {
                self.meta_end = end;
                self.enter(Within::TypeMeta);
            }
            Field::Kind => {
                self.last = 0;
                self.kind.clear();
                self.read_kind(length);
            }
            Field::Item => {
                self.counts.item_begins(self.at);
                self.counts.item_ended(end);
                self.skip(length);
            }
            Field::Continue => {
                self.counts.continues = length > 0;
                self.skip(length);
            }
            Field::Other | Field::RemainingItemCount => self.skip(length),
        }
    }

    /// Where a value of that length ends, if its message goes on for as long.
    fn fits(&self, length: u64) -> Option<u64> {
        let end = self.at.checked_add(length)?;
        (end <= self.end()).then_some(end)
    }

    /// Where the message that is read ends; the outermost does with the body.
    const fn end(&self) -> u64 {
        match self.within {
            Within::List => self.list_end,
            Within::ListMeta | Within::TypeMeta => self.meta_end,
            Within::Unknown => u64::MAX,
        }
    }

    fn enter(&mut self, message: Within) {
        self.within = message;
        self.value_ended();
    }

    fn skip(&mut self, missing: u64) {
        self.state = State::Skipped(missing);
        if missing == 0 {
            self.value_ended();
        }
    }

    fn read_kind(&mut self, missing: u64) {
        self.state = State::Kind(missing);
        if missing == 0 {
            self.value_ended();
        }
    }

    /// What comes next is another field, of the innermost message that goes on.
    fn value_ended(&mut self) {
        self.state = State::Tag;
        while self.at == self.end() {
            self.within = match self.within {
                Within::ListMeta => Within::List,
                Within::List | Within::TypeMeta => Within::Unknown,
                Within::Unknown => return,
            };
        }
    }
}
