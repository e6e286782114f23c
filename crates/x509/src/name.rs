//! Distinguished names and their strings, as Go reads them (`parseName`, `parseASN1String`). Pure.

use std::borrow::Cow;

use crate::der::{
    BIT_STRING, BOOLEAN, Der, Element, GENERALIZED_TIME, INTEGER, OBJECT_IDENTIFIER, SEQUENCE, SET,
    UTC_TIME,
};

pub(crate) const UTF8_STRING: u8 = 12;
pub(crate) const NUMERIC_STRING: u8 = 18;
pub(crate) const PRINTABLE_STRING: u8 = 19;
pub(crate) const T61_STRING: u8 = 20;
pub(crate) const IA5_STRING: u8 = 22;
pub(crate) const BMP_STRING: u8 = 30;

/// An attribute of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute<'a> {
    /// The contents of its object identifier.
    pub(crate) kind: &'a [u8],
    value: Element<'a>,
}

impl<'a> Attribute<'a> {
    /// The text of a string. `None` if it is none, or one that Go's versions do not read alike:
    /// beyond ASCII in a `T61String`.
    pub(crate) fn text(self) -> Option<Cow<'a, str>> {
        decode_string(self.value.tag, self.value.contents)
    }
}

/// The attributes of a name, in order. Like Go, what follows a value in its attribute is ignored.
///
/// `None` if Go does not accept the name: its structure is not DER, or one of its values is not what
/// its type says.
pub(crate) fn parse_name(name: &[u8]) -> Option<Vec<Attribute<'_>>> {
    let mut attributes = Vec::new();
    let mut name = Der::new(name);
    let mut sets = name.read(SEQUENCE).filter(|_| name.is_empty())?;
    while !sets.is_empty() {
        let mut set = sets.read(SET)?;
        while !set.is_empty() {
            let mut attribute = set.read(SEQUENCE)?;
            let kind = attribute.object_identifier()?;
            let value = attribute.any()?;
            if !is_value(value) {
                return None;
            }
            attributes.push(Attribute { kind, value });
        }
    }
    Some(attributes)
}

/// Whether an attribute may have this value (`readASN1Any`).
fn is_value(value: Element<'_>) -> bool {
    let mut der = Der::new(value.whole);
    match value.tag {
        T61_STRING => true,
        UTF8_STRING | NUMERIC_STRING | PRINTABLE_STRING | IA5_STRING | BMP_STRING => {
            decode_string(value.tag, value.contents).is_some()
        }
        INTEGER => der.integer().is_some_and(|bytes| bytes.len() <= 8),
        BIT_STRING => der.bit_string().is_some(),
        OBJECT_IDENTIFIER => der.object_identifier().is_some(),
        UTC_TIME | GENERALIZED_TIME => der.time().is_some(),
        BOOLEAN => der.boolean().is_some(),
        _ => true,
    }
}

fn decode_string(tag: u8, value: &[u8]) -> Option<Cow<'_, str>> {
    let valid = match tag {
        UTF8_STRING => true,
        PRINTABLE_STRING => value.iter().all(|byte| is_printable(*byte)),
        NUMERIC_STRING => value
            .iter()
            .all(|byte| byte.is_ascii_digit() || *byte == b' '),
        T61_STRING | IA5_STRING => value.is_ascii(),
        BMP_STRING => return decode_ucs2(value).map(Cow::Owned),
        _ => false,
    };
    str::from_utf8(value)
        .ok()
        .filter(|_| valid)
        .map(Cow::Borrowed)
}

/// Go's `isPrintable`, which accepts `*` and `&`.
const fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'\''..=b')' | b'+'..=b'/' | b' ' | b':' | b'=' | b'?' | b'*' | b'&')
}

/// Big-endian UCS-2, with an optional terminator, which is dropped. Without the surrogates and
/// noncharacters that newer versions of Go do not accept.
fn decode_ucs2(value: &[u8]) -> Option<String> {
    let value = value
        .strip_suffix(&[0, 0])
        .filter(|rest| rest.len() % 2 == 0)
        .unwrap_or(value);
    let (units, []) = value.as_chunks::<2>() else {
        return None;
    };
    units
        .iter()
        .map(|unit| match u32::from(u16::from_be_bytes(*unit)) {
            0xfffe | 0xffff | 0xfdd0..=0xfdef => None,
            point => char::from_u32(point), // `None` for a surrogate
        })
        .collect()
}
