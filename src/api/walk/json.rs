//! JSON: entered objects and arrays are checked as a parser would; whatever lies below the others is left to [`Nested`].
//!
//! Names and texts are compared with their escapes undone. One document may follow another.

use super::Begun;
use super::Kind;
use super::Scalar;
use super::Step;
use super::Token;
use super::Visitor;
use super::nested::Nested;

/// Stands in a token for whatever is in no text of interest.
const FOREIGN: u8 = 0xff;

#[derive(Debug)]
pub(in crate::api) struct Json<P> {
    state: State,
    /// The entered collections that are open.
    open: Vec<Frame<P>>,
    /// The place of the value that is read, if it was entered.
    entered: Option<P>,
    is_name: bool,
    token: Token,
    /// How many bytes were read.
    at: u64,
}

#[derive(Debug)]
struct Frame<P> {
    place: P,
    is_map: bool,
}

/// What the next byte belongs to.
#[derive(Debug)]
enum State {
    Value,
    /// An element, or the end of the array.
    FirstElement,
    Name,
    /// A member's name, or the end of the object.
    FirstName,
    Colon,
    Token(Part),
    Nested(Nested),
    /// A comma, or the end of the object or array.
    Separator,
    /// Anything: it is malformed, or not what the visitor wants.
    Stopped,
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

impl<P> Default for Json<P> {
    fn default() -> Self {
        Self {
            state: State::Value,
            open: Vec::new(),
            entered: None,
            is_name: false,
            token: Token::default(),
            at: 0,
        }
    }
}

impl<P: Copy> Json<P> {
    pub(in crate::api) fn feed<V: Visitor<Place = P>>(&mut self, chunk: &[u8], visitor: &mut V) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            if let State::Nested(nested) = &mut self.state {
                let end = nested.skip(rest);
                let left = end.map_or(0, <[u8]>::len);
                self.passed(rest.len().saturating_sub(left));
                let Some(after) = end else {
                    return;
                };
                self.value_ended(self.at, visitor);
                rest = after;
            } else if self.stopped() {
                return;
            } else {
                self.passed(1);
                self.step(*byte, visitor);
                rest = after;
            }
        }
    }

    /// Whether it was malformed, or not what the visitor wants.
    pub(in crate::api) const fn stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }

    /// Whether it is between two documents.
    pub(in crate::api) const fn is_between(&self) -> bool {
        self.open.is_empty() && matches!(self.state, State::Value)
    }

    fn passed(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.at = self.at.saturating_add(bytes);
    }

    fn step(&mut self, byte: u8, visitor: &mut impl Visitor<Place = P>) {
        if let State::Token(part) = self.state {
            match part {
                Part::Scalar if is_in_scalar(byte) => return self.token.push(byte),
                // This byte is the first after it.
                Part::Scalar => self.scalar_ended(visitor),
                Part::Text => return self.text(byte, visitor),
                Part::Escape => return self.escape(byte),
                Part::Unicode(read, missing) => return self.unicode(read, missing, byte),
            }
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
            return;
        }
        match (&self.state, byte) {
            (State::Name | State::FirstName, b'"') => {
                self.is_name = true;
                self.token.clear();
                self.state = State::Token(Part::Text);
            }
            (State::Colon, b':') => self.state = State::Value,
            (State::FirstElement | State::Separator, b']') => self.closed(false, visitor),
            (State::FirstName | State::Separator, b'}') => self.closed(true, visitor),
            (State::Value | State::FirstElement, _) => self.value(byte, visitor),
            (State::Separator, b',') => {
                self.state = match self.open.last() {
                    Some(frame) if frame.is_map => State::Name,
                    _ => State::Value,
                };
            }
            _ => self.state = State::Stopped,
        }
    }

    fn closed(&mut self, is_map: bool, visitor: &mut impl Visitor<Place = P>) {
        match self.open.pop() {
            Some(frame) if frame.is_map == is_map => self.value_ended(self.at, visitor),
            _ => self.state = State::Stopped,
        }
    }

    /// The first byte of a value.
    fn value(&mut self, byte: u8, visitor: &mut impl Visitor<Place = P>) {
        let kind = match byte {
            b'{' => Kind::Map,
            b'[' => Kind::List,
            b'"' => Kind::Text,
            _ if is_in_scalar(byte) => Kind::Other,
            _ => {
                self.state = State::Stopped;
                return;
            }
        };
        let within = self.open.last();
        let begun = Begun {
            within: within.map(|frame| frame.place),
            name: within
                .filter(|frame| frame.is_map)
                .and_then(|_| self.token.kept()),
            kind,
            at: self.at.saturating_sub(1),
        };
        self.entered = match visitor.visit(begun) {
            Step::Enter(place) => Some(place),
            Step::Pass => None,
            Step::Stop => {
                self.state = State::Stopped;
                return;
            }
        };
        self.is_name = false;
        self.token.clear();
        self.state = match (kind, self.entered) {
            (Kind::Text, _) => State::Token(Part::Text),
            (Kind::Other, _) => {
                self.token.push(byte);
                State::Token(Part::Scalar)
            }
            (Kind::Map | Kind::List, None) => State::Nested(Nested::opened()),
            (Kind::Map, Some(place)) => self.opened(place, true),
            (Kind::List, Some(place)) => self.opened(place, false),
        };
    }

    fn opened(&mut self, place: P, is_map: bool) -> State {
        self.open.push(Frame { place, is_map });
        if is_map {
            State::FirstName
        } else {
            State::FirstElement
        }
    }

    fn scalar_ended(&mut self, visitor: &mut impl Visitor<Place = P>) {
        let number = self.token.int64().and_then(|n| u64::try_from(n).ok());
        let value = match number {
            Some(number) => Scalar::Number(number),
            None if self.token.is(b"null") => Scalar::Null,
            None if self.token.is_scalar() => Scalar::Other,
            None => {
                self.state = State::Stopped;
                return;
            }
        };
        if self
            .entered
            .is_some_and(|place| !visitor.scalar(place, value))
        {
            self.state = State::Stopped;
        } else {
            self.value_ended(self.at.saturating_sub(1), visitor);
        }
    }

    fn text(&mut self, byte: u8, visitor: &mut impl Visitor<Place = P>) {
        match byte {
            b'"' if self.is_name => self.state = State::Colon,
            b'"' => self.text_ended(visitor),
            b'\\' => self.state = State::Token(Part::Escape),
            0..0x20 => self.state = State::Stopped,
            _ => self.token.push(byte),
        }
    }

    fn text_ended(&mut self, visitor: &mut impl Visitor<Place = P>) {
        let value = Scalar::Text(self.token.kept());
        if self
            .entered
            .is_some_and(|place| !visitor.scalar(place, value))
        {
            self.state = State::Stopped;
        } else {
            self.value_ended(self.at, visitor);
        }
    }

    /// A value has ended at that position.
    fn value_ended(&mut self, at: u64, visitor: &mut impl Visitor<Place = P>) {
        let within = self.open.last().map(|frame| frame.place);
        visitor.ended(within, at);
        self.state = if within.is_some() {
            State::Separator
        } else {
            State::Value
        };
    }

    fn escape(&mut self, byte: u8) {
        self.state = match byte {
            b'u' => State::Token(Part::Unicode(0, 4)),
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => {
                // Of these only the slash is in a text of interest, and Go does not escape it.
                self.token.push(if byte == b'/' { byte } else { FOREIGN });
                State::Token(Part::Text)
            }
            _ => State::Stopped,
        };
    }

    fn unicode(&mut self, read: u16, missing: u8, byte: u8) {
        let Some(digit) = char::from(byte).to_digit(16) else {
            self.state = State::Stopped;
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

const fn is_in_scalar(byte: u8) -> bool {
    matches!(byte, b'+' | b'-' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z')
}
