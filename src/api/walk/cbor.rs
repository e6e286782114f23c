//! CBOR as Kubernetes writes and takes it: strings of either kind (names are byte strings), lengths known or not, tags
//! passed over. One document may follow another, as in a watch (`application/cbor-seq`).

use super::Begun;
use super::Kind;
use super::Scalar;
use super::Step;
use super::Token;
use super::Visitor;

/// Deeper than any object: even a schema within a schema has some dozens.
const DEEPEST: usize = 256;

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;

/// Ends what has no length.
const BREAK: u8 = 0xff;

const NULL: u64 = 22;
const UNDEFINED: u64 = 23;

#[derive(Debug)]
pub(in crate::api) struct Cbor<P> {
    state: State,
    open: Vec<Frame<P>>,
    /// The place of the value that is read, if it was entered.
    entered: Option<P>,
    /// The string that is read comes in parts, of this major type.
    parts: Option<u8>,
    token: Token,
    /// How many bytes were read.
    at: u64,
    /// Where the item that is read began, tags included.
    item_at: u64,
}

/// A collection that is open.
#[derive(Debug)]
struct Frame<P> {
    /// None if it is passed over.
    place: Option<P>,
    is_map: bool,
    /// The next item is a name.
    at_name: bool,
    /// How many elements or pairs are missing, if that is known.
    left: Option<u64>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum State {
    /// The first byte of a head.
    Head,
    /// The argument of a head: what was read of it, and how many bytes are missing.
    Argument { initial: u8, read: u64, missing: u8 },
    /// A string, of which so many bytes are missing.
    Text(u64),
    /// Anything: it is malformed, or not what the visitor wants.
    Stopped,
}

impl<P> Default for Cbor<P> {
    fn default() -> Self {
        Self {
            state: State::Head,
            open: Vec::new(),
            entered: None,
            parts: None,
            token: Token::default(),
            at: 0,
            item_at: 0,
        }
    }
}

impl<P: Copy> Cbor<P> {
    pub(in crate::api) fn feed<V: Visitor<Place = P>>(&mut self, chunk: &[u8], visitor: &mut V) {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            match self.state {
                State::Stopped => return,
                State::Text(missing) => {
                    let here = usize::try_from(missing).unwrap_or(usize::MAX);
                    let (read, after) = rest.split_at_checked(here).unwrap_or((rest, &[]));
                    self.token.extend(read);
                    let read = u64::try_from(read.len()).unwrap_or(u64::MAX);
                    self.at = self.at.saturating_add(read);
                    self.text(missing.saturating_sub(read), visitor);
                    rest = after;
                }
                State::Head => {
                    self.at = self.at.saturating_add(1);
                    self.head(*byte, visitor);
                    rest = after;
                }
                State::Argument {
                    initial,
                    read,
                    missing,
                } => {
                    self.at = self.at.saturating_add(1);
                    let read = read << 8 | u64::from(*byte);
                    if missing > 1 {
                        self.state = State::Argument {
                            initial,
                            read,
                            missing: missing - 1,
                        };
                    } else {
                        self.item(initial, Some(read), visitor);
                    }
                    rest = after;
                }
            }
        }
    }

    /// Whether it was malformed, or not what the visitor wants.
    pub(in crate::api) const fn stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }

    /// Whether it is between two documents.
    pub(in crate::api) const fn is_between(&self) -> bool {
        self.open.is_empty() && self.parts.is_none() && matches!(self.state, State::Head)
    }

    fn head(&mut self, initial: u8, visitor: &mut impl Visitor<Place = P>) {
        if initial == BREAK {
            return self.broke_off(visitor);
        }
        match initial & 0x1f {
            low @ 0..24 => self.item(initial, Some(low.into()), visitor),
            low @ 24..28 => {
                self.state = State::Argument {
                    initial,
                    read: 0,
                    missing: 1 << (low - 24),
                };
            }
            31 if matches!(initial >> 5, BYTES | TEXT | ARRAY | MAP) => {
                self.item(initial, None, visitor);
            }
            _ => self.state = State::Stopped,
        }
    }

    /// The end of what has no length.
    fn broke_off(&mut self, visitor: &mut impl Visitor<Place = P>) {
        if self.parts.take().is_some() {
            return self.text_ended(visitor);
        }
        match self.open.last() {
            Some(frame) if frame.left.is_none() && frame.is_map == frame.at_name => {
                self.open.pop();
                self.value_ended(visitor);
            }
            _ => self.state = State::Stopped,
        }
    }

    /// A head is complete.
    fn item(&mut self, initial: u8, argument: Option<u64>, visitor: &mut impl Visitor<Place = P>) {
        let major = initial >> 5;
        self.state = State::Head;
        if let Some(parts) = self.parts {
            match argument {
                Some(length) if major == parts => self.text(length, visitor),
                _ => self.state = State::Stopped,
            }
        } else if major == TAG {
            // What it tags follows.
        } else if self.open.last().is_some_and(|frame| frame.at_name) {
            if matches!(major, BYTES | TEXT) {
                self.string(major, argument, visitor);
            } else {
                self.state = State::Stopped;
            }
        } else {
            self.value(initial, argument, visitor);
        }
    }

    fn value(&mut self, initial: u8, argument: Option<u64>, visitor: &mut impl Visitor<Place = P>) {
        let major = initial >> 5;
        let kind = match major {
            ARRAY => Kind::List,
            MAP => Kind::Map,
            BYTES | TEXT => Kind::Text,
            _ => Kind::Other,
        };
        let frame = self.open.last();
        let begun = Begun {
            within: frame.and_then(|frame| frame.place),
            name: frame
                .filter(|frame| frame.is_map)
                .and_then(|_| self.token.kept()),
            kind,
            at: self.item_at,
        };
        let step = if frame.is_some_and(|frame| frame.place.is_none()) {
            Step::Pass
        } else {
            visitor.visit(begun)
        };
        self.entered = match step {
            Step::Enter(place) => Some(place),
            Step::Pass => None,
            Step::Stop => {
                self.state = State::Stopped;
                return;
            }
        };
        match kind {
            Kind::Map | Kind::List => self.opened(kind == Kind::Map, argument, visitor),
            Kind::Text => self.string(major, argument, visitor),
            Kind::Other => self.scalar(initial, argument.unwrap_or_default(), visitor),
        }
    }

    fn opened(&mut self, is_map: bool, left: Option<u64>, visitor: &mut impl Visitor<Place = P>) {
        if self.open.len() >= DEEPEST {
            self.state = State::Stopped;
            return;
        }
        if left == Some(0) {
            return self.value_ended(visitor);
        }
        self.open.push(Frame {
            place: self.entered,
            is_map,
            at_name: is_map,
            left,
        });
        self.item_at = self.at;
    }

    fn string(&mut self, major: u8, length: Option<u64>, visitor: &mut impl Visitor<Place = P>) {
        self.token.clear();
        match length {
            Some(length) => self.text(length, visitor),
            None => self.parts = Some(major),
        }
    }

    /// So many bytes of a string are missing.
    fn text(&mut self, missing: u64, visitor: &mut impl Visitor<Place = P>) {
        if missing > 0 {
            self.state = State::Text(missing);
        } else if self.parts.is_some() {
            self.state = State::Head; // the next part
        } else {
            self.text_ended(visitor);
        }
    }

    fn text_ended(&mut self, visitor: &mut impl Visitor<Place = P>) {
        self.state = State::Head;
        if let Some(frame) = self.open.last_mut()
            && frame.at_name
        {
            frame.at_name = false;
            self.item_at = self.at;
            return;
        }
        let value = Scalar::Text(self.token.kept());
        if self
            .entered
            .is_some_and(|place| !visitor.scalar(place, value))
        {
            self.state = State::Stopped;
        } else {
            self.value_ended(visitor);
        }
    }

    fn scalar(&mut self, initial: u8, argument: u64, visitor: &mut impl Visitor<Place = P>) {
        let value = match (initial >> 5, argument) {
            (UNSIGNED, number) if i64::try_from(number).is_ok() => Scalar::Number(number),
            (UNSIGNED | NEGATIVE, _) => Scalar::Other,
            (_, NULL | UNDEFINED) if initial & 0x1f < 24 => Scalar::Null,
            _ => Scalar::Other,
        };
        if self
            .entered
            .is_some_and(|place| !visitor.scalar(place, value))
        {
            self.state = State::Stopped;
        } else {
            self.value_ended(visitor);
        }
    }

    /// A value has ended, and with it all that it was the last of.
    fn value_ended(&mut self, visitor: &mut impl Visitor<Place = P>) {
        self.item_at = self.at;
        loop {
            let Some(frame) = self.open.last_mut() else {
                return visitor.ended(None, self.at);
            };
            if frame.place.is_some() {
                visitor.ended(frame.place, self.at);
            }
            frame.at_name = frame.is_map;
            match &mut frame.left {
                Some(left) if *left > 1 => *left -= 1,
                Some(_) => {
                    self.open.pop();
                    continue;
                }
                None => {}
            }
            return;
        }
    }
}
