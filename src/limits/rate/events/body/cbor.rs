//! CBOR as kube-apiserver takes it (`runtime/serializer/cbor/internal/modes`): strings of either kind, indefinite lengths,
//! no key twice, no NaN or infinity, nothing behind the end.

use std::borrow::Cow;
use std::collections::HashSet;

use super::ByteText;
use super::EventParser;
use super::EventValue;
use super::EventValueKind;
use super::ParsedKey;
use super::ParsedList;

/// `MaxNestedLevels` is about this; deeper ones are for those who mean harm.
const MAX_DEPTH: usize = 10_000;

/// More keys than any object has in the maps that are looked into. The names are kept to tell doubles.
const MAX_KEYS: usize = 1024;

/// `self-described CBOR`: what begins every body that Kubernetes writes.
const SELF_DESCRIBED: &[u8] = &[0xd9, 0xd9, 0xf7];

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const MAP: u8 = 5;
const TAG: u8 = 6;
const SIMPLE: u8 = 7;

/// Ends what has no length.
const BREAK: u8 = 0xff;

const FALSE: u64 = 20;
const TRUE: u64 = 21;
const NULL: u64 = 22;
const UNDEFINED: u64 = 23;

pub(super) struct CborEventParser<'b> {
    remaining: &'b [u8],
}

/// How many pairs are left, if that is told, and the names that were there.
pub(super) struct CborMapState<'b> {
    remaining: Option<u64>,
    names: HashSet<ByteText<'b>>,
}

/// The beginning of an item.
struct CborItemHead {
    major: u8,
    /// The low five bits, which for simple values tell how wide they are.
    additional_info: u8,
    /// None if the length is indefinite.
    argument: Option<u64>,
}

impl<'b> CborEventParser<'b> {
    pub(super) fn new(body: &'b [u8]) -> Self {
        Self {
            remaining: body.strip_prefix(SELF_DESCRIBED).unwrap_or(body),
        }
    }

    fn take_bytes(&mut self, length: u64) -> Option<&'b [u8]> {
        let (bytes, rest) = self
            .remaining
            .split_at_checked(usize::try_from(length).ok()?)?;
        self.remaining = rest;
        Some(bytes)
    }

    fn read_head(&mut self) -> Option<CborItemHead> {
        let initial = *self.take_bytes(1)?.first()?;
        let (major, width) = (initial >> 5, initial & 0x1f);
        let argument = match width {
            0..24 => Some(u64::from(width)),
            24..28 => {
                let bytes = self.take_bytes(1 << (width - 24))?;
                Some(bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
            }
            31 if matches!(major, BYTES | TEXT | ARRAY | MAP) => None,
            _ => return None,
        };
        Some(CborItemHead {
            major,
            additional_info: width,
            argument,
        })
    }

    /// The string that a head has begun.
    fn read_string(&mut self, head: &CborItemHead) -> Option<ByteText<'b>> {
        if let Some(length) = head.argument {
            let bytes = self.take_bytes(length)?;
            return is_valid_string(head.major, bytes).then_some(Cow::Borrowed(bytes));
        }
        let mut whole = Vec::new();
        while !self.take_break() {
            let part = self.read_head()?;
            let bytes = self.take_bytes(part.argument?)?;
            if part.major != head.major || !is_valid_string(part.major, bytes) {
                return None;
            }
            whole.extend_from_slice(bytes);
        }
        Some(Cow::Owned(whole))
    }

    /// Passes the end of what has no length, if it is there.
    fn take_break(&mut self) -> bool {
        if let Some((&BREAK, rest)) = self.remaining.split_first() {
            self.remaining = rest;
            return true;
        }
        false
    }

    fn simple_kind(head: &CborItemHead) -> Option<EventValueKind> {
        let argument = head.argument?;
        match head.additional_info {
            // Half, single and double: all bits of the exponent set is no number.
            25 if argument >> 10 & 0x1f == 0x1f => None,
            26 if argument >> 23 & 0xff == 0xff => None,
            27 if argument >> 52 & 0x7ff == 0x7ff => None,
            25..=27 => Some(EventValueKind::Other),
            24 => None,
            _ => match argument {
                NULL | UNDEFINED => Some(EventValueKind::Null),
                FALSE | TRUE => Some(EventValueKind::Bool),
                _ => None,
            },
        }
    }

    /// What a head that is no collection and no tag begins, passed over.
    fn skip_scalar(&mut self, head: &CborItemHead) -> Option<EventValueKind> {
        match head.major {
            UNSIGNED | NEGATIVE => {
                // -1 - n
                let whole = i64::try_from(head.argument?);
                Some(whole.map_or(EventValueKind::Other, EventValueKind::from_integer))
            }
            BYTES | TEXT => self.read_string(head).map(|_| EventValueKind::Text),
            SIMPLE => Self::simple_kind(head),
            _ => None,
        }
    }

    /// Passes over what a head has begun, however deep, without recursion.
    fn skip_item(&mut self, head: CborItemHead) -> Option<()> {
        // How many items are left in the collections that are open; none for those without a length.
        let mut open: Vec<Option<u64>> = Vec::new();
        let mut head = head;
        loop {
            match head.major {
                ARRAY => open.push(head.argument),
                MAP => open.push(match head.argument {
                    Some(pairs) => Some(pairs.checked_mul(2)?),
                    None => None,
                }),
                TAG => open.push(Some(1)),
                _ => {
                    self.skip_scalar(&head)?;
                }
            }
            if open.len() > MAX_DEPTH {
                return None;
            }
            loop {
                match open.last_mut() {
                    None => return Some(()),
                    Some(Some(0)) => {}
                    Some(Some(left)) => {
                        *left -= 1;
                        break;
                    }
                    Some(None) if self.take_break() => {}
                    Some(None) => break,
                }
                open.pop();
            }
            head = self.read_head()?;
        }
    }
}

/// Bytes are what they are, text is UTF-8.
fn is_valid_string(major: u8, bytes: &[u8]) -> bool {
    major == BYTES || std::str::from_utf8(bytes).is_ok()
}

impl<'b> EventParser<'b> for CborEventParser<'b> {
    /// How many items are left, if that is told.
    type List = Option<u64>;
    type Map = CborMapState<'b>;

    fn read_value(&mut self) -> Option<EventValue<'b, CborMapState<'b>>> {
        let head = self.read_head()?;
        Some(match head.major {
            BYTES | TEXT => EventValue::Text(self.read_string(&head)?),
            MAP => EventValue::Map(CborMapState {
                remaining: head.argument,
                names: HashSet::new(),
            }),
            ARRAY | TAG => {
                self.skip_item(head)?;
                EventValue::Other
            }
            _ => match self.skip_scalar(&head)? == EventValueKind::Null {
                true => EventValue::Null,
                false => EventValue::Other,
            },
        })
    }

    fn next_key(&mut self, map: &mut CborMapState<'b>) -> Option<ParsedKey<'b>> {
        match &mut map.remaining {
            Some(0) => return Some(ParsedKey::End),
            Some(left) => *left -= 1,
            None if self.take_break() => return Some(ParsedKey::End),
            None => {}
        }
        let head = self.read_head()?;
        if !matches!(head.major, BYTES | TEXT) || map.names.len() >= MAX_KEYS {
            return None;
        }
        let name = self.read_string(&head)?;
        map.names
            .insert(name.clone())
            .then_some(ParsedKey::Named(name))
    }

    fn read_list(&mut self) -> Option<ParsedList<Option<u64>>> {
        let head = self.read_head()?;
        Some(match head.major {
            ARRAY => ParsedList::Items(head.argument),
            MAP | TAG => {
                self.skip_item(head)?;
                ParsedList::Other
            }
            _ => match self.skip_scalar(&head)? == EventValueKind::Null {
                true => ParsedList::Null,
                false => ParsedList::Other,
            },
        })
    }

    fn next_item(&mut self, list: &mut Option<u64>) -> Option<bool> {
        match list {
            Some(0) => return Some(false),
            Some(left) => *left -= 1,
            None => return Some(!self.take_break()),
        }
        Some(true)
    }

    fn skip_value(&mut self) -> Option<EventValueKind> {
        let head = self.read_head()?;
        match head.major {
            ARRAY | TAG => self.skip_item(head).map(|()| EventValueKind::Other),
            MAP => self.skip_item(head).map(|()| EventValueKind::Map),
            _ => self.skip_scalar(&head),
        }
    }

    fn expect_end(&mut self) -> Option<()> {
        self.remaining.is_empty().then_some(())
    }
}
