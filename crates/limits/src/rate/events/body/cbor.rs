//! CBOR as kube-apiserver reads it (`runtime/serializer/cbor/internal/modes`): strings of either
//! kind, indefinite lengths, no duplicate keys, no NaN or infinity, no trailing data.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::rate::events::body::event_parser::{
    ByteText, EventParser, EventValue, EventValueKind, ParsedKey, ParsedList,
};

/// `MaxNestedLevels` is about this. Only an attack nests deeper.
const MAX_DEPTH: usize = 10_000;

/// More keys than any object has in the maps that are read. The names are kept to detect
/// duplicates.
const MAX_KEYS: usize = 1024;

/// `self-described CBOR`: the prefix of every body that Kubernetes writes.
const SELF_DESCRIBED: &[u8] = &[0xd9, 0xd9, 0xf7];

pub(super) struct CborEventParser<'b> {
    remaining: &'b [u8],
}

/// The number of remaining pairs, if the length is definite, and the names that were read.
pub(super) struct CborMapState<'b> {
    remaining: Option<u64>,
    names: HashSet<ByteText<'b>>,
}

/// The items of a collection that is being skipped.
struct OpenItems {
    /// The number of remaining items, if the length is definite.
    remaining: Option<u64>,
    is_map: bool,
    /// Whether a name of a map with an indefinite length has no value yet.
    lacks_value: bool,
}

impl OpenItems {
    pub(super) const fn new(remaining: Option<u64>) -> Self {
        Self {
            remaining,
            is_map: false,
            lacks_value: false,
        }
    }
}

/// The head of a data item.
struct CborItemHead {
    major: u8,
    /// The low five bits, which for simple values encode the width.
    additional_info: u8,
    /// `None` for an indefinite length.
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
            31 if matches!(
                major,
                major_type::BYTES | major_type::TEXT | major_type::ARRAY | major_type::MAP
            ) =>
            {
                None
            }
            _ => return None,
        };
        Some(CborItemHead {
            major,
            additional_info: width,
            argument,
        })
    }

    /// Reads the string that follows a head.
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

    /// Consumes the end of an item of indefinite length, if it is next.
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
            // Half, single and double: an exponent of all ones is infinity or NaN.
            25 if argument >> 10 & 0x1f == 0x1f => None,
            26 if argument >> 23 & 0xff == 0xff => None,
            27 if argument >> 52 & 0x7ff == 0x7ff => None,
            25..=27 => Some(EventValueKind::Other),
            24 => None,
            _ => match argument {
                simple_value::NULL | simple_value::UNDEFINED => Some(EventValueKind::Null),
                simple_value::FALSE | simple_value::TRUE => Some(EventValueKind::Bool),
                _ => None,
            },
        }
    }

    /// Skips the item of a head that is neither a collection nor a tag.
    fn skip_scalar(&mut self, head: &CborItemHead) -> Option<EventValueKind> {
        match head.major {
            major_type::UNSIGNED | major_type::NEGATIVE => {
                // A negative integer is -1 - n, so n has the same range.
                let whole = i64::try_from(head.argument?);
                Some(whole.map_or(EventValueKind::Other, EventValueKind::from_integer))
            }
            major_type::BYTES | major_type::TEXT => {
                self.read_string(head).map(|_| EventValueKind::Text)
            }
            major_type::SIMPLE => Self::simple_kind(head),
            _ => None,
        }
    }

    /// Skips the item of a head, at any depth, without recursion.
    fn skip_item(&mut self, head: CborItemHead) -> Option<()> {
        let mut open: Vec<OpenItems> = Vec::new();
        let mut head = head;
        loop {
            match head.major {
                major_type::ARRAY => open.push(OpenItems::new(head.argument)),
                major_type::MAP => open.push(OpenItems {
                    is_map: true,
                    ..OpenItems::new(match head.argument {
                        Some(pairs) => Some(pairs.checked_mul(2)?),
                        None => None,
                    })
                }),
                major_type::TAG => open.push(OpenItems::new(Some(1))),
                _ => {
                    self.skip_scalar(&head)?;
                }
            }
            if open.len() > MAX_DEPTH {
                return None;
            }
            loop {
                let Some(items) = open.last_mut() else {
                    return Some(());
                };
                match &mut items.remaining {
                    Some(0) => {}
                    Some(left) => {
                        *left -= 1;
                        break;
                    }
                    None if !self.take_break() => {
                        items.lacks_value = items.is_map && !items.lacks_value;
                        break;
                    }
                    None if items.lacks_value => return None,
                    None => {}
                }
                open.pop();
            }
            head = self.read_head()?;
        }
    }
}

/// Whether a string is valid: text must be UTF-8, bytes may be anything.
fn is_valid_string(major: u8, bytes: &[u8]) -> bool {
    major == major_type::BYTES || std::str::from_utf8(bytes).is_ok()
}

impl<'b> EventParser<'b> for CborEventParser<'b> {
    /// The number of remaining items, if the length is definite.
    type List = Option<u64>;
    type Map = CborMapState<'b>;

    fn read_value(&mut self) -> Option<EventValue<'b, CborMapState<'b>>> {
        let head = self.read_head()?;
        Some(match head.major {
            major_type::BYTES | major_type::TEXT => EventValue::Text(self.read_string(&head)?),
            major_type::MAP => EventValue::Map(CborMapState {
                remaining: head.argument,
                names: HashSet::new(),
            }),
            major_type::ARRAY | major_type::TAG => {
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
        if !matches!(head.major, major_type::BYTES | major_type::TEXT)
            || map.names.len() >= MAX_KEYS
        {
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
            major_type::ARRAY => ParsedList::Items(head.argument),
            major_type::MAP | major_type::TAG => {
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
            major_type::ARRAY | major_type::TAG => {
                self.skip_item(head).map(|()| EventValueKind::Other)
            }
            major_type::MAP => self.skip_item(head).map(|()| EventValueKind::Map),
            _ => self.skip_scalar(&head),
        }
    }

    fn expect_end(&mut self) -> Option<()> {
        self.remaining.is_empty().then_some(())
    }
}

/// The major type of an item: the highest three bits of its first byte.
mod major_type {
    pub(super) const UNSIGNED: u8 = 0;
    pub(super) const NEGATIVE: u8 = 1;
    pub(super) const BYTES: u8 = 2;
    pub(super) const TEXT: u8 = 3;
    pub(super) const ARRAY: u8 = 4;
    pub(super) const MAP: u8 = 5;
    pub(super) const TAG: u8 = 6;
    pub(super) const SIMPLE: u8 = 7;
}

/// The simple values.
mod simple_value {
    pub(super) const FALSE: u64 = 20;
    pub(super) const TRUE: u64 = 21;
    pub(super) const NULL: u64 = 22;
    pub(super) const UNDEFINED: u64 = 23;
}

/// Ends an item of indefinite length.
const BREAK: u8 = 0xff;
