//! Lists in Kubernetes' protobuf: four magic bytes, then `runtime.Unknown` with the list inside.
//!
//! The scan reads `runtime.Unknown`, its `TypeMeta`, the list and its `ListMeta`; every other field
//! is skipped by its length. Only the kind tells a list from an object, because a single object has
//! fields of the same numbers: a list's kind ends in `List`. Groups, which Kubernetes does not use,
//! are malformed.

use super::totals::{ListTotals, is_transformed_kind};
use crate::api::walk::TokenBuffer;
use crate::encoding::protobuf::{KUBERNETES_MAGIC, VarintDecoder, VarintProgress, wire_type};
use crate::numeric::{saturating_u64, saturating_usize};

const MAGIC: u32 = u32::from_be_bytes(*KUBERNETES_MAGIC);
/// Suffix of a list's kind.
const LIST_SUFFIX: u32 = u32::from_be_bytes(*b"List");

#[derive(Debug)]
pub(super) struct ProtobufListScan {
    state: ProtobufListState,
    message: ListMessage,
    varint: VarintDecoder,
    /// Number of bytes read.
    offset: u64,
    /// Offset of the end of `TypeMeta` or `ListMeta`, while the scan is inside it.
    meta_end: u64,
    /// Offset of the end of the list, while the scan is inside it or its `ListMeta`.
    list_end: u64,
    /// The last four bytes of the value that is compared: the magic, later the kind.
    last_bytes: u32,
    kind: TokenBuffer,
    has_list: bool,
    totals: ListTotals,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum ProtobufListState {
    /// The magic, with the number of missing bytes.
    Magic(u8),
    Tag,
    Varint(ListField),
    Length(ListField),
    /// The kind, with the number of missing bytes.
    Kind(u64),
    /// A skipped value, with the number of missing bytes.
    Skip(u64),
    /// The body is not a list; everything is ignored.
    NotAList,
}

/// The message whose fields are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMessage {
    List,
    ListMeta,
    TypeMeta,
    Unknown,
}

#[derive(Clone, Copy, Debug)]
enum ListField {
    Continue,
    Item,
    Kind,
    List,
    ListMeta,
    Other,
    RemainingItemCount,
    TypeMeta,
}

impl Default for ProtobufListScan {
    fn default() -> Self {
        Self {
            state: ProtobufListState::Magic(4),
            message: ListMessage::Unknown,
            varint: VarintDecoder::default(),
            offset: 0,
            meta_end: 0,
            list_end: 0,
            last_bytes: 0,
            kind: TokenBuffer::default(),
            has_list: false,
            totals: ListTotals::default(),
        }
    }
}

impl ProtobufListScan {
    pub(super) fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            if let ProtobufListState::Skip(missing) = self.state {
                let here = saturating_usize(missing);
                let (skipped, after) = rest.split_at_checked(here).unwrap_or((rest, &[]));
                let skipped = saturating_u64(skipped.len());
                self.offset = self.offset.saturating_add(skipped);
                self.skip(missing.saturating_sub(skipped));
                rest = after;
            } else if matches!(self.state, ProtobufListState::NotAList) {
                return;
            } else {
                self.offset = self.offset.saturating_add(1);
                self.step(*byte);
                rest = after;
            }
        }
    }

    pub(super) fn finish(self) -> Option<ListTotals> {
        let complete = matches!(self.state, ProtobufListState::Tag)
            && self.varint == VarintDecoder::default()
            && self.message == ListMessage::Unknown;
        self.totals_so_far().filter(|_| complete && self.has_list)
    }

    /// The totals so far, if the body is a list: the kind precedes the objects.
    pub(super) fn totals_so_far(&self) -> Option<ListTotals> {
        let is_list =
            self.last_bytes == LIST_SUFFIX && !matches!(self.state, ProtobufListState::NotAList);
        is_list.then(|| ListTotals {
            transformed: self.kind.as_bytes().is_some_and(is_transformed_kind),
            ..self.totals
        })
    }

    fn step(&mut self, byte: u8) {
        match self.state {
            ProtobufListState::Magic(missing) => {
                self.last_bytes = self.last_bytes << 8 | u32::from(byte);
                self.state = match missing {
                    2.. => ProtobufListState::Magic(missing - 1),
                    _ if self.last_bytes == MAGIC => ProtobufListState::Tag,
                    _ => ProtobufListState::NotAList,
                };
            }
            ProtobufListState::Kind(missing) => {
                self.last_bytes = self.last_bytes << 8 | u32::from(byte);
                self.kind.push(byte);
                self.read_kind(missing.saturating_sub(1));
            }
            ProtobufListState::Tag
            | ProtobufListState::Varint(_)
            | ProtobufListState::Length(_) => match self.varint.push(byte) {
                VarintProgress::Complete(number) if self.offset <= self.message_end() => {
                    self.on_varint(number)
                }
                VarintProgress::Incomplete => {}
                VarintProgress::Complete(_)
                | VarintProgress::Truncated(_)
                | VarintProgress::TooLong => self.state = ProtobufListState::NotAList,
            },
            ProtobufListState::Skip(_) | ProtobufListState::NotAList => {}
        }
    }

    /// Handles a complete varint.
    fn on_varint(&mut self, number: u64) {
        match self.state {
            ProtobufListState::Tag => self.state = self.state_after_tag(number),
            ProtobufListState::Varint(field) => {
                if let ListField::RemainingItemCount = field {
                    // The field is an int64 and never negative.
                    if i64::try_from(number).is_err() {
                        self.state = ProtobufListState::NotAList;
                        return;
                    }
                    self.totals.remaining_items = Some(number);
                }
                self.end_value();
            }
            ProtobufListState::Length(field) => self.begin_delimited(field, number),
            ProtobufListState::Magic(_)
            | ProtobufListState::Kind(_)
            | ProtobufListState::Skip(_)
            | ProtobufListState::NotAList => {}
        }
    }

    fn state_after_tag(&self, tag: u64) -> ProtobufListState {
        let field = match (self.message, tag >> 3) {
            (_, 0) => return ProtobufListState::NotAList,
            (ListMessage::Unknown, 1) => ListField::TypeMeta,
            (ListMessage::Unknown, 2) => ListField::List,
            (ListMessage::TypeMeta, 2) => ListField::Kind,
            (ListMessage::List, 1) => ListField::ListMeta,
            (ListMessage::List, 2) => ListField::Item,
            (ListMessage::ListMeta, 3) => ListField::Continue,
            (ListMessage::ListMeta, 4) => ListField::RemainingItemCount,
            _ => ListField::Other,
        };
        match (tag & 7, field) {
            (wire_type::VARINT, ListField::RemainingItemCount | ListField::Other) => {
                ProtobufListState::Varint(field)
            }
            (wire_type::LENGTH_DELIMITED, ListField::RemainingItemCount) => {
                ProtobufListState::NotAList
            }
            (wire_type::LENGTH_DELIMITED, _) => ProtobufListState::Length(field),
            (wire_type::FIXED64, ListField::Other) => self.state_for_fixed(8),
            (wire_type::FIXED32, ListField::Other) => self.state_for_fixed(4),
            _ => ProtobufListState::NotAList,
        }
    }

    fn state_for_fixed(&self, length: u64) -> ProtobufListState {
        if self.end_if_fits(length).is_some() {
            ProtobufListState::Skip(length)
        } else {
            ProtobufListState::NotAList
        }
    }

    /// Begins a field of `length` bytes.
    fn begin_delimited(&mut self, field: ListField, length: u64) {
        let Some(end) = self.end_if_fits(length) else {
            self.state = ProtobufListState::NotAList;
            return;
        };
        match field {
            ListField::List if self.has_list => self.state = ProtobufListState::NotAList,
            ListField::List => {
                self.has_list = true;
                self.list_end = end;
                self.enter_message(ListMessage::List);
            }
            ListField::ListMeta => {
                self.meta_end = end;
                self.totals.has_metadata = true;
                self.enter_message(ListMessage::ListMeta);
            }
            ListField::TypeMeta => {
                self.meta_end = end;
                self.enter_message(ListMessage::TypeMeta);
            }
            ListField::Kind => {
                self.last_bytes = 0;
                self.kind.clear();
                self.read_kind(length);
            }
            ListField::Item => {
                self.totals.begin_item(self.offset);
                self.totals.end_item(end);
                self.skip(length);
            }
            ListField::Continue => {
                self.totals.has_continue_token = length > 0;
                self.skip(length);
            }
            ListField::Other | ListField::RemainingItemCount => self.skip(length),
        }
    }

    /// Offset of the end of a value of `length` bytes, if it fits in its message.
    fn end_if_fits(&self, length: u64) -> Option<u64> {
        let end = self.offset.checked_add(length)?;
        (end <= self.message_end()).then_some(end)
    }

    /// Offset of the end of the current message; the outermost ends with the body.
    const fn message_end(&self) -> u64 {
        match self.message {
            ListMessage::List => self.list_end,
            ListMessage::ListMeta | ListMessage::TypeMeta => self.meta_end,
            ListMessage::Unknown => u64::MAX,
        }
    }

    fn enter_message(&mut self, message: ListMessage) {
        self.message = message;
        self.end_value();
    }

    fn skip(&mut self, missing: u64) {
        self.state = ProtobufListState::Skip(missing);
        if missing == 0 {
            self.end_value();
        }
    }

    fn read_kind(&mut self, missing: u64) {
        self.state = ProtobufListState::Kind(missing);
        if missing == 0 {
            self.end_value();
        }
    }

    /// Ends a value: the next byte begins another field of the innermost open message.
    fn end_value(&mut self) {
        self.state = ProtobufListState::Tag;
        while self.offset == self.message_end() {
            self.message = match self.message {
                ListMessage::ListMeta => ListMessage::List,
                ListMessage::List | ListMessage::TypeMeta => ListMessage::Unknown,
                ListMessage::Unknown => return,
            };
        }
    }
}
