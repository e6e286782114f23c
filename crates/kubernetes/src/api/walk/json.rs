//! JSON: entered objects and arrays are checked as a parser does; the content of skipped ones is
//! left to [`NestedSkipper`].
//!
//! Names and strings are compared with their escapes decoded. One document may follow another.

use super::nested_skipper::NestedSkipper;
use super::token_buffer::TokenBuffer;
use super::visitor::{LeafValue, ValueKind, ValueStart, VisitAction, Visitor};

use crate::numeric::saturating_u64;

/// Replaces bytes in a token that occur in no string of interest.
const PLACEHOLDER: u8 = 0xff;

#[derive(Debug)]
pub(crate) struct JsonWalker<P> {
    state: JsonState,
    /// The entered collections that are open.
    open_collections: Vec<JsonFrame<P>>,
    /// The visitor's context of the current value, if it was entered.
    context: Option<P>,
    is_name: bool,
    token: TokenBuffer,
    /// Number of bytes read.
    offset: u64,
}

#[derive(Debug)]
struct JsonFrame<P> {
    context: P,
    is_map: bool,
}

/// What the next byte belongs to.
#[derive(Debug)]
enum JsonState {
    Value,
    /// An element, or the end of the array.
    FirstElement,
    Name,
    /// A member's name, or the end of the object.
    FirstName,
    Colon,
    Token(JsonTokenState),
    Nested(NestedSkipper),
    /// A comma, or the end of the object or array.
    Separator,
    /// The input is malformed or the visitor stopped; everything is ignored.
    Stopped,
}

/// What the next byte of a name or of a scalar belongs to.
#[derive(Clone, Copy, Debug)]
enum JsonTokenState {
    /// A number, `true`, `false` or `null`.
    Scalar,
    /// A quoted string.
    Text,
    /// The character after a backslash.
    Escape,
    /// The digits of `\u0000`: the value read so far and the number of missing digits.
    Unicode(u16, u8),
}

impl<P> Default for JsonWalker<P> {
    fn default() -> Self {
        Self {
            state: JsonState::Value,
            open_collections: Vec::new(),
            context: None,
            is_name: false,
            token: TokenBuffer::default(),
            offset: 0,
        }
    }
}

impl<P: Copy> JsonWalker<P> {
    pub(crate) fn feed<V: Visitor<Context = P>>(&mut self, chunk: &[u8], visitor: &mut V) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            if let JsonState::Nested(nested) = &mut self.state {
                let end = nested.skip(rest);
                let remaining = end.map_or(0, <[u8]>::len);
                self.advance(rest.len().saturating_sub(remaining));
                let Some(after) = end else {
                    return;
                };
                self.end_value(self.offset, visitor);
                rest = after;
            } else if self.is_stopped() {
                return;
            } else {
                self.advance(1);
                self.step(*byte, visitor);
                rest = after;
            }
        }
    }

    /// Whether the input was malformed or the visitor stopped.
    pub(crate) const fn is_stopped(&self) -> bool {
        matches!(self.state, JsonState::Stopped)
    }

    /// Whether the walker is between two documents.
    pub(crate) const fn is_between_documents(&self) -> bool {
        self.open_collections.is_empty() && matches!(self.state, JsonState::Value)
    }

    fn advance(&mut self, bytes: usize) {
        let bytes = saturating_u64(bytes);
        self.offset = self.offset.saturating_add(bytes);
    }

    fn step(&mut self, byte: u8, visitor: &mut impl Visitor<Context = P>) {
        if let JsonState::Token(part) = self.state {
            match part {
                JsonTokenState::Scalar if is_scalar_byte(byte) => return self.token.push(byte),
                // This byte is the first after the scalar.
                JsonTokenState::Scalar => self.end_scalar(visitor),
                JsonTokenState::Text => return self.on_text_byte(byte, visitor),
                JsonTokenState::Escape => return self.on_escape_byte(byte),
                JsonTokenState::Unicode(read, missing) => {
                    return self.on_unicode_digit(read, missing, byte);
                }
            }
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        match (&self.state, byte) {
            (JsonState::Name | JsonState::FirstName, b'"') => {
                self.is_name = true;
                self.token.clear();
                self.state = JsonState::Token(JsonTokenState::Text);
            }
            (JsonState::Colon, b':') => self.state = JsonState::Value,
            (JsonState::FirstElement | JsonState::Separator, b']') => {
                self.close_collection(false, visitor)
            }
            (JsonState::FirstName | JsonState::Separator, b'}') => {
                self.close_collection(true, visitor)
            }
            (JsonState::Value | JsonState::FirstElement, _) => self.begin_value(byte, visitor),
            (JsonState::Separator, b',') => {
                self.state = match self.open_collections.last() {
                    Some(frame) if frame.is_map => JsonState::Name,
                    _ => JsonState::Value,
                };
            }
            _ => self.state = JsonState::Stopped,
        }
    }

    fn close_collection(&mut self, is_map: bool, visitor: &mut impl Visitor<Context = P>) {
        match self.open_collections.pop() {
            Some(frame) if frame.is_map == is_map => self.end_value(self.offset, visitor),
            _ => self.state = JsonState::Stopped,
        }
    }

    /// Handles the first byte of a value.
    fn begin_value(&mut self, byte: u8, visitor: &mut impl Visitor<Context = P>) {
        let kind = match byte {
            b'{' => ValueKind::Map,
            b'[' => ValueKind::List,
            b'"' => ValueKind::Text,
            _ if is_scalar_byte(byte) => ValueKind::Other,
            _ => {
                self.state = JsonState::Stopped;
                return;
            }
        };
        let parent = self.open_collections.last();
        let start = ValueStart {
            parent: parent.map(|frame| frame.context),
            name: parent
                .filter(|frame| frame.is_map)
                .and_then(|_| self.token.as_bytes()),
            kind,
            offset: self.offset.saturating_sub(1),
        };
        self.context = match visitor.visit(start) {
            VisitAction::Enter(context) => Some(context),
            VisitAction::Skip => None,
            VisitAction::Stop => {
                self.state = JsonState::Stopped;
                return;
            }
        };
        self.is_name = false;
        self.token.clear();
        self.state = match (kind, self.context) {
            (ValueKind::Text, _) => JsonState::Token(JsonTokenState::Text),
            (ValueKind::Other, _) => {
                self.token.push(byte);
                JsonState::Token(JsonTokenState::Scalar)
            }
            (ValueKind::Map | ValueKind::List, None) => {
                JsonState::Nested(NestedSkipper::after_open_bracket())
            }
            (ValueKind::Map, Some(context)) => self.open_collection(context, true),
            (ValueKind::List, Some(context)) => self.open_collection(context, false),
        };
    }

    fn open_collection(&mut self, context: P, is_map: bool) -> JsonState {
        self.open_collections.push(JsonFrame { context, is_map });
        if is_map {
            JsonState::FirstName
        } else {
            JsonState::FirstElement
        }
    }

    fn end_scalar(&mut self, visitor: &mut impl Visitor<Context = P>) {
        let number = self.token.int64().and_then(|n| u64::try_from(n).ok());
        let value = match number {
            Some(number) => LeafValue::Number(number),
            None if self.token.equals(b"null") => LeafValue::Null,
            None if self.token.is_json_scalar() => LeafValue::Other,
            None => {
                self.state = JsonState::Stopped;
                return;
            }
        };
        if self
            .context
            .is_some_and(|context| !visitor.visit_scalar(context, value))
        {
            self.state = JsonState::Stopped;
        } else {
            self.end_value(self.offset.saturating_sub(1), visitor);
        }
    }

    fn on_text_byte(&mut self, byte: u8, visitor: &mut impl Visitor<Context = P>) {
        match byte {
            b'"' if self.is_name => self.state = JsonState::Colon,
            b'"' => self.end_text(visitor),
            b'\\' => self.state = JsonState::Token(JsonTokenState::Escape),
            0..0x20 => self.state = JsonState::Stopped,
            _ => self.token.push(byte),
        }
    }

    fn end_text(&mut self, visitor: &mut impl Visitor<Context = P>) {
        let value = LeafValue::Text(self.token.as_bytes());
        if self
            .context
            .is_some_and(|context| !visitor.visit_scalar(context, value))
        {
            self.state = JsonState::Stopped;
        } else {
            self.end_value(self.offset, visitor);
        }
    }

    /// Ends a value before offset `at`.
    fn end_value(&mut self, at: u64, visitor: &mut impl Visitor<Context = P>) {
        let parent = self.open_collections.last().map(|frame| frame.context);
        visitor.end_value(parent, at);
        self.state = if parent.is_some() {
            JsonState::Separator
        } else {
            JsonState::Value
        };
    }

    fn on_escape_byte(&mut self, byte: u8) {
        self.state = match byte {
            b'u' => JsonState::Token(JsonTokenState::Unicode(0, 4)),
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                // Of these only the slash occurs in a string of interest, and Go does not escape
                // it.
                self.token
                    .push(if byte == b'/' { byte } else { PLACEHOLDER });
                JsonState::Token(JsonTokenState::Text)
            }
            _ => JsonState::Stopped,
        };
    }

    fn on_unicode_digit(&mut self, read: u16, missing: u8, byte: u8) {
        let Some(digit) = char::from(byte).to_digit(16) else {
            self.state = JsonState::Stopped;
            return;
        };
        let read = read << 4 | u16::try_from(digit).unwrap_or_default();
        self.state = if missing > 1 {
            JsonState::Token(JsonTokenState::Unicode(read, missing - 1))
        } else {
            let ascii = u8::try_from(read).ok().filter(u8::is_ascii);
            self.token.push(ascii.unwrap_or(PLACEHOLDER));
            JsonState::Token(JsonTokenState::Text)
        };
    }
}

const fn is_scalar_byte(byte: u8) -> bool {
    matches!(byte, b'+' | b'-' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}
