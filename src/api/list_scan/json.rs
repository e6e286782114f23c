//! The outline of a list in JSON: the members of the list and of its metadata, and where items
//! begin.
//!
//! A list is an object with an array of objects, or null, as `items` or `rows`. The outline is
//! checked as a parser would; whatever lies below it is left to [`Nested`]. Names are compared with
//! their escapes undone. An outline with more than one `items`, `rows` or `metadata` is no list.

use serde::de::IgnoredAny;

use super::Counts;
use super::nested::Nested;

/// A little more than the longest name of interest, `remainingItemCount`, and as much as the
/// longest number that Go writes has.
const TOKEN: usize = 24;
/// Stands in a token for whatever is in no name of interest.
const FOREIGN: u8 = 0xff;

#[derive(Debug, Default)]
pub(super) struct Scan {
    state: State,
    within: Within,
    /// Whose value is read; none while it is a name.
    field: Option<Field>,
    token: Token,
    counts: Counts,
    has_items: bool,
    has_metadata: bool,
}

/// What the next byte belongs to.
#[derive(Debug, Default)]
enum State {
    /// The list, not yet begun.
    #[default]
    Body,
    /// A member's name.
    Name,
    /// A member's name, the first, or the end of the object.
    FirstName,
    /// An item.
    Item,
    /// An item, the first, or the end of the array.
    FirstItem,
    Colon,
    Value,
    Token(Part),
    Nested(Nested),
    /// A comma, or the end of the object or array.
    Separator,
    /// Nothing: it is complete.
    End,
    /// Anything: it is no list.
    NoList,
}

/// What the next byte of a name or of a simple value belongs to.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// A number, `true`, `false` or `null`.
    Scalar,
    /// Something in quotes.
    Text,
    /// What follows a backslash.
    Escape,
    /// The digits of `\u0000`: those read, and how many are missing.
    Unicode(u16, u8),
}

/// Whose members or elements are read.
#[derive(Clone, Copy, Debug, Default)]
enum Within {
    #[default]
    List,
    Items,
    Metadata,
}

#[derive(Clone, Copy, Debug)]
enum Field {
    Continue,
    Items,
    Metadata,
    Other,
    RemainingItemCount,
}

impl Scan {
    pub(super) fn feed(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            if let State::Nested(nested) = &mut self.state {
                let Some(after) = nested.skip(rest) else {
                    return;
                };
                self.state = State::Separator;
                rest = after;
            } else if matches!(self.state, State::NoList) {
                return;
            } else {
                self.step(*byte);
                rest = after;
            }
        }
    }

    pub(super) fn finish(self) -> Option<Counts> {
        (matches!(self.state, State::End) && self.has_items).then_some(self.counts)
    }

    fn step(&mut self, byte: u8) {
        if let State::Token(part) = self.state {
            match part {
                Part::Scalar if is_in_scalar(byte) => return self.token.push(byte),
                // This byte is the first after it.
                Part::Scalar => self.scalar_ended(),
                Part::Text => return self.text(byte),
                Part::Escape => return self.escape(byte),
                Part::Unicode(read, missing) => return self.unicode(read, missing, byte),
            }
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        self.state = match (&self.state, byte) {
            (State::Body, b'{') => State::FirstName,
            (State::Name | State::FirstName, b'"') => {
                self.field = None;
                self.token = Token::default();
                State::Token(Part::Text)
            }
            (State::Item | State::FirstItem, b'{') => {
                self.counts.items = self.counts.items.saturating_add(1);
                State::Nested(Nested::opened())
            }
            (State::Colon, b':') => State::Value,
            (State::Value, _) => self.value(byte),
            (State::Separator, b',') => match self.within {
                Within::Items => State::Item,
                Within::List | Within::Metadata => State::Name,
            },
            (State::FirstName | State::FirstItem | State::Separator, _) => self.closed(byte),
            _ => State::NoList,
        };
    }

    fn closed(&mut self, bracket: u8) -> State {
        match (self.within, bracket) {
            (Within::List, b'}') => return State::End,
            (Within::Items, b']') | (Within::Metadata, b'}') => self.within = Within::List,
            _ => return State::NoList,
        }
        State::Separator
    }

    /// The first byte of a value.
    fn value(&mut self, byte: u8) -> State {
        match (byte, self.field) {
            (b'"', Some(Field::Continue | Field::Other)) => {
                self.token = Token::default();
                State::Token(Part::Text)
            }
            (b'{', Some(Field::Metadata)) => {
                self.within = Within::Metadata;
                State::FirstName
            }
            (b'[', Some(Field::Items)) => {
                self.within = Within::Items;
                State::FirstItem
            }
            (b'{' | b'[', Some(Field::Other)) => State::Nested(Nested::opened()),
            _ if is_in_scalar(byte) => {
                self.token = Token::default();
                self.token.push(byte);
                State::Token(Part::Scalar)
            }
            _ => State::NoList,
        }
    }

    fn scalar_ended(&mut self) {
        let null = self.token.is(b"null");
        let number = self.token.int64().and_then(|n| u64::try_from(n).ok());
        self.state = State::Separator;
        match self.field {
            Some(Field::Continue) if null => self.counts.continues = false,
            Some(Field::RemainingItemCount) if null || number.is_some() => {
                self.counts.remaining_items = number;
            }
            Some(Field::Items | Field::Metadata) if null => {}
            Some(Field::Other) if self.token.is_scalar() => {}
            _ => self.state = State::NoList,
        }
    }

    fn text(&mut self, byte: u8) {
        match byte {
            b'"' => self.text_ended(),
            b'\\' => self.state = State::Token(Part::Escape),
            0..0x20 => self.state = State::NoList,
            _ => self.token.push(byte),
        }
    }

    fn text_ended(&mut self) {
        self.state = match self.field {
            Some(Field::Continue) => {
                self.counts.continues = !self.token.is(b"");
                State::Separator
            }
            Some(_) => State::Separator,
            None => self.named(),
        };
    }

    /// A member's name is complete.
    fn named(&mut self) -> State {
        let field = Field::named(self.within, &self.token);
        self.field = Some(field);
        let seen = match field {
            Field::Items => &mut self.has_items,
            Field::Metadata => &mut self.has_metadata,
            Field::Continue | Field::Other | Field::RemainingItemCount => return State::Colon,
        };
        if std::mem::replace(seen, true) {
            State::NoList
        } else {
            State::Colon
        }
    }

    fn escape(&mut self, byte: u8) {
        self.state = match byte {
            b'u' => State::Token(Part::Unicode(0, 4)),
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                self.token.push(FOREIGN);
                State::Token(Part::Text)
            }
            _ => State::NoList,
        };
    }

    fn unicode(&mut self, read: u16, missing: u8, byte: u8) {
        let Some(digit) = char::from(byte).to_digit(16) else {
            self.state = State::NoList;
            return;
        };
        let read = read << 4 | u16::try_from(digit).unwrap_or_default();
        self.state = if missing > 1 {
            State::Token(Part::Unicode(read, missing - 1))
        } else {
            let ascii = u8::try_from(read).ok().filter(u8::is_ascii);
            self.token.push(ascii.unwrap_or(FOREIGN));
            State::Token(Part::Text)
        };
    }
}

impl Field {
    fn named(within: Within, name: &Token) -> Self {
        match (within, name.kept()) {
            (Within::List, Some(b"items" | b"rows")) => Self::Items,
            (Within::List, Some(b"metadata")) => Self::Metadata,
            (Within::Metadata, Some(b"continue")) => Self::Continue,
            (Within::Metadata, Some(b"remainingItemCount")) => Self::RemainingItemCount,
            _ => Self::Other,
        }
    }
}

const fn is_in_scalar(byte: u8) -> bool {
    matches!(byte, b'+' | b'-' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}

/// A short text; of a longer one it is only known that it is longer.
#[derive(Debug, Default)]
struct Token {
    bytes: [u8; TOKEN],
    length: usize,
}

impl Token {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    fn kept(&self) -> Option<&[u8]> {
        self.bytes.get(..self.length)
    }

    fn is(&self, text: &[u8]) -> bool {
        self.kept() == Some(text)
    }

    /// Whether it is a number, `true`, `false` or `null`.
    fn is_scalar(&self) -> bool {
        self.kept()
            .is_some_and(|kept| serde_json::from_slice::<IgnoredAny>(kept).is_ok())
    }

    fn int64(&self) -> Option<i64> {
        serde_json::from_slice(self.kept()?).ok()
    }
}
