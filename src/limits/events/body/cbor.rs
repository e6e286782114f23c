//! CBOR as kube-apiserver takes it (`runtime/serializer/cbor/internal/modes`): strings of either kind, indefinite lengths,
//! no key twice, no NaN or infinity, nothing behind the end.

use std::borrow::Cow;
use std::collections::HashSet;

use super::Format;
use super::Key;
use super::Kind;
use super::Listed;
use super::Text;
use super::Value;

/// `MaxNestedLevels` is about this; deeper ones are for those who mean harm.
const DEEPEST: usize = 10_000;

/// More keys than any object has in the maps that are looked into. The names are kept to tell doubles.
const MOST_KEYS: usize = 1024;

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

pub(super) struct Cbor<'b> {
    rest: &'b [u8],
}

/// How many pairs are left, if that is told, and the names that were there.
pub(super) struct Pairs<'b> {
    left: Option<u64>,
    seen: HashSet<Text<'b>>,
}

/// The beginning of an item.
struct Head {
    major: u8,
    /// The low five bits, which for simple values tell how wide they are.
    width: u8,
    /// None if the length is indefinite.
    argument: Option<u64>,
}

impl<'b> Cbor<'b> {
    pub(super) fn new(body: &'b [u8]) -> Self {
        Self {
            rest: body.strip_prefix(SELF_DESCRIBED).unwrap_or(body),
        }
    }

    fn take(&mut self, length: u64) -> Option<&'b [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(bytes)
    }

    fn head(&mut self) -> Option<Head> {
        let initial = *self.take(1)?.first()?;
        let (major, width) = (initial >> 5, initial & 0x1f);
        let argument = match width {
            0..24 => Some(u64::from(width)),
            24..28 => {
                let bytes = self.take(1 << (width - 24))?;
                Some(bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
            }
            31 if matches!(major, BYTES | TEXT | ARRAY | MAP) => None,
            _ => return None,
        };
        Some(Head {
            major,
            width,
            argument,
        })
    }

    /// The string that a head has begun.
    fn string(&mut self, head: &Head) -> Option<Text<'b>> {
        if let Some(length) = head.argument {
            let bytes = self.take(length)?;
            return well_formed(head.major, bytes).then_some(Cow::Borrowed(bytes));
        }
        let mut whole = Vec::new();
        while !self.broke_off() {
            let part = self.head()?;
            let bytes = self.take(part.argument?)?;
            if part.major != head.major || !well_formed(part.major, bytes) {
                return None;
            }
            whole.extend_from_slice(bytes);
        }
        Some(Cow::Owned(whole))
    }

    /// Passes the end of what has no length, if it is there.
    fn broke_off(&mut self) -> bool {
        if let Some((&BREAK, rest)) = self.rest.split_first() {
            self.rest = rest;
            return true;
        }
        false
    }

    fn simple(head: &Head) -> Option<Kind> {
        let argument = head.argument?;
        match head.width {
            // Half, single and double: all bits of the exponent set is no number.
            25 if argument >> 10 & 0x1f == 0x1f => None,
            26 if argument >> 23 & 0xff == 0xff => None,
            27 if argument >> 52 & 0x7ff == 0x7ff => None,
            25..=27 => Some(Kind::Other),
            24 => None,
            _ => match argument {
                NULL | UNDEFINED => Some(Kind::Null),
                FALSE | TRUE => Some(Kind::Bool),
                _ => None,
            },
        }
    }

    /// What a head that is no collection and no tag begins, passed over.
    fn plain(&mut self, head: &Head) -> Option<Kind> {
        match head.major {
            UNSIGNED | NEGATIVE => {
                // -1 - n
                let whole = i64::try_from(head.argument?);
                Some(whole.map_or(Kind::Other, Kind::of_whole))
            }
            BYTES | TEXT => self.string(head).map(|_| Kind::Text),
            SIMPLE => Self::simple(head),
            _ => None,
        }
    }

    /// Passes over what a head has begun, however deep, without recursion.
    fn pass(&mut self, head: Head) -> Option<()> {
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
                    self.plain(&head)?;
                }
            }
            if open.len() > DEEPEST {
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
                    Some(None) if self.broke_off() => {}
                    Some(None) => break,
                }
                open.pop();
            }
            head = self.head()?;
        }
    }
}

/// Bytes are what they are, text is UTF-8.
fn well_formed(major: u8, bytes: &[u8]) -> bool {
    major == BYTES || std::str::from_utf8(bytes).is_ok()
}

impl<'b> Format<'b> for Cbor<'b> {
    /// How many items are left, if that is told.
    type List = Option<u64>;
    type Map = Pairs<'b>;

    fn value(&mut self) -> Option<Value<'b, Pairs<'b>>> {
        let head = self.head()?;
        Some(match head.major {
            BYTES | TEXT => Value::Text(self.string(&head)?),
            MAP => Value::Map(Pairs {
                left: head.argument,
                seen: HashSet::new(),
            }),
            ARRAY | TAG => {
                self.pass(head)?;
                Value::Other
            }
            _ => match self.plain(&head)? == Kind::Null {
                true => Value::Null,
                false => Value::Other,
            },
        })
    }

    fn key(&mut self, map: &mut Pairs<'b>) -> Option<Key<'b>> {
        match &mut map.left {
            Some(0) => return Some(Key::End),
            Some(left) => *left -= 1,
            None if self.broke_off() => return Some(Key::End),
            None => {}
        }
        let head = self.head()?;
        if !matches!(head.major, BYTES | TEXT) || map.seen.len() >= MOST_KEYS {
            return None;
        }
        let name = self.string(&head)?;
        map.seen.insert(name.clone()).then_some(Key::Named(name))
    }

    fn list(&mut self) -> Option<Listed<Option<u64>>> {
        let head = self.head()?;
        Some(match head.major {
            ARRAY => Listed::Items(head.argument),
            MAP | TAG => {
                self.pass(head)?;
                Listed::Other
            }
            _ => match self.plain(&head)? == Kind::Null {
                true => Listed::Null,
                false => Listed::Other,
            },
        })
    }

    fn item(&mut self, list: &mut Option<u64>) -> Option<bool> {
        match list {
            Some(0) => return Some(false),
            Some(left) => *left -= 1,
            None => return Some(!self.broke_off()),
        }
        Some(true)
    }

    fn skip(&mut self) -> Option<Kind> {
        let head = self.head()?;
        match head.major {
            ARRAY | TAG => self.pass(head).map(|()| Kind::Other),
            MAP => self.pass(head).map(|()| Kind::Map),
            _ => self.plain(&head),
        }
    }

    fn end(&mut self) -> Option<()> {
        self.rest.is_empty().then_some(())
    }
}
