//! JSON as Go's decoder reads it: unpaired surrogates and invalid UTF-8 become U+FFFD.

use std::borrow::Cow;

use crate::rate::events::body::event_parser::{
    ByteText, EventParser, EventValue, EventValueKind, ParsedKey, ParsedList,
};
use weir_kubernetes::encoding::go_text;

/// Go's `maxNestingDepth` without the event itself.
const MAX_DEPTH: usize = 9_999;

pub(super) struct JsonEventParser<'b> {
    text: &'b [u8],
    position: usize,
    /// The closing brackets of the collections that are being skipped, outermost first.
    open_collections: Vec<u8>,
}

/// Whether a key or an item was read already.
pub(super) struct JsonCollectionState(bool);

impl<'b> JsonEventParser<'b> {
    pub(super) fn new(text: &'b [u8]) -> Self {
        Self {
            text,
            position: 0,
            open_collections: Vec::new(),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.position).copied()
    }

    /// The next byte that is not white space, without consuming it.
    fn peek_token(&mut self) -> Option<u8> {
        loop {
            match self.peek()? {
                b' ' | b'\t' | b'\n' | b'\r' => self.position += 1,
                byte => return Some(byte),
            }
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek_token()? == byte).then(|| self.position += 1)
    }

    /// Consumes a string with its quotes. Returns the text, and whether it has escapes.
    fn read_raw_string(&mut self) -> Option<(&'b [u8], bool)> {
        self.expect(b'"')?;
        let start = self.position;
        let mut escaped = false;
        loop {
            let rest = self.text.get(self.position..)?;
            let plain = rest
                .iter()
                .position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
            self.position += plain;
            match self.peek()? {
                b'"' => {
                    let raw = self.text.get(start..self.position)?;
                    self.position += 1;
                    return Some((raw, escaped));
                }
                b'\\' => {
                    escaped = true;
                    self.skip_escape()?;
                }
                _ => return None,
            }
        }
    }

    fn skip_escape(&mut self) -> Option<()> {
        match self.text.get(self.position + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.position += 2,
            b'u' => {
                let digits = self.text.get(self.position + 2..self.position + 6)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                self.position += 6;
            }
            _ => return None,
        }
        Some(())
    }

    fn read_string(&mut self) -> Option<ByteText<'b>> {
        let (raw, escaped) = self.read_raw_string()?;
        Some(if escaped {
            Cow::Owned(go_text::unescape_json(raw))
        } else if std::str::from_utf8(raw).is_ok() {
            Cow::Borrowed(raw)
        } else {
            Cow::Owned(go_text::replace_invalid_utf8(raw))
        })
    }

    /// Skips a number, `true`, `false` or `null`.
    fn skip_scalar(&mut self) -> Option<EventValueKind> {
        let rest = self.text.get(self.position..)?;
        let length = rest
            .iter()
            .position(|byte| !matches!(byte, b'+' | b'-' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z'))
            .unwrap_or(rest.len());
        let scalar = rest.get(..length)?;
        self.position += length;
        match scalar {
            b"null" => Some(EventValueKind::Null),
            b"true" | b"false" => Some(EventValueKind::Bool),
            number if is_number(number) => {
                let whole = std::str::from_utf8(number).ok()?.parse::<i64>();
                Some(whole.map_or(EventValueKind::Other, EventValueKind::from_integer))
            }
            _ => None,
        }
    }

    /// Skips a collection of any depth, without recursion.
    fn skip_collection(&mut self) -> Option<()> {
        self.open_collections.clear();
        loop {
            let empty = match self.peek_token()? {
                b'{' => self.enter_collection(b'}')?,
                b'[' => self.enter_collection(b']')?,
                b'"' => self.read_raw_string().map(|_| true)?,
                _ => self.skip_scalar().map(|_| true)?,
            };
            if empty && self.advance_to_next_value()? {
                return Some(());
            }
        }
    }

    /// Enters a collection, up to its first value. Whether it is empty.
    fn enter_collection(&mut self, close: u8) -> Option<bool> {
        self.position += 1;
        if self.open_collections.len() >= MAX_DEPTH {
            return None;
        }
        if self.peek_token()? == close {
            self.position += 1;
            return Some(true);
        }
        self.open_collections.push(close);
        if close == b'}' {
            self.skip_name()?;
        }
        Some(false)
    }

    fn skip_name(&mut self) -> Option<()> {
        self.read_raw_string()?;
        self.expect(b':')
    }

    /// Advances to the next value. Whether there is none, since the outermost collection is closed.
    fn advance_to_next_value(&mut self) -> Option<bool> {
        while let Some(&close) = self.open_collections.last() {
            let byte = self.peek_token()?;
            self.position += 1;
            if byte == b',' {
                if close == b'}' {
                    self.skip_name()?;
                }
                return Some(false);
            }
            if byte != close {
                return None;
            }
            self.open_collections.pop();
        }
        Some(true)
    }
}

impl<'b> EventParser<'b> for JsonEventParser<'b> {
    type List = JsonCollectionState;
    type Map = JsonCollectionState;

    fn read_value(&mut self) -> Option<EventValue<'b, JsonCollectionState>> {
        match self.peek_token()? {
            b'"' => self.read_string().map(EventValue::Text),
            b'{' => {
                self.position += 1;
                Some(EventValue::Map(JsonCollectionState(false)))
            }
            _ => Some(if self.skip_value()? == EventValueKind::Null {
                EventValue::Null
            } else {
                EventValue::Other
            }),
        }
    }

    fn next_key(&mut self, map: &mut JsonCollectionState) -> Option<ParsedKey<'b>> {
        match (self.peek_token()?, std::mem::replace(&mut map.0, true)) {
            (b'}', _) => {
                self.position += 1;
                return Some(ParsedKey::End);
            }
            (b',', true) => self.position += 1,
            (_, false) => {}
            (_, true) => return None,
        }
        let name = self.read_string()?;
        self.expect(b':')?;
        Some(ParsedKey::Named(name))
    }

    fn read_list(&mut self) -> Option<ParsedList<JsonCollectionState>> {
        if self.peek_token()? == b'[' {
            self.position += 1;
            return Some(ParsedList::Items(JsonCollectionState(false)));
        }
        Some(if self.skip_value()? == EventValueKind::Null {
            ParsedList::Null
        } else {
            ParsedList::Other
        })
    }

    fn next_item(&mut self, list: &mut JsonCollectionState) -> Option<bool> {
        let started = std::mem::replace(&mut list.0, true);
        match (self.peek_token()?, started) {
            (b']', _) => {
                self.position += 1;
                return Some(false);
            }
            (b',', true) => self.position += 1, // a value must follow
            (_, false) => {}
            (_, true) => return None,
        }
        Some(true)
    }

    fn skip_value(&mut self) -> Option<EventValueKind> {
        match self.peek_token()? {
            b'"' => self.read_raw_string().map(|_| EventValueKind::Text),
            b'{' => self.skip_collection().map(|()| EventValueKind::Map),
            b'[' => self.skip_collection().map(|()| EventValueKind::Other),
            _ => self.skip_scalar(),
        }
    }

    fn expect_end(&mut self) -> Option<()> {
        self.peek_token().is_none().then_some(())
    }
}

/// Whether the text is a number by JSON's grammar.
fn is_number(text: &[u8]) -> bool {
    let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let text = text.strip_prefix(b"-").unwrap_or(text);
    let (mantissa, exponent) = match text.iter().position(|b| matches!(b, b'e' | b'E')) {
        Some(at) => {
            let (mantissa, rest) = text.split_at(at);
            let power = rest.get(1..).unwrap_or_default();
            let signed = power
                .strip_prefix(b"-")
                .or_else(|| power.strip_prefix(b"+"));
            (mantissa, Some(signed.unwrap_or(power)))
        }
        None => (text, None),
    };
    let (whole, fraction) = match mantissa.iter().position(|b| *b == b'.') {
        Some(at) => {
            let (whole, rest) = mantissa.split_at(at);
            (whole, rest.get(1..))
        }
        None => (mantissa, None),
    };
    digits(whole)
        && (whole.len() == 1 || !whole.starts_with(b"0"))
        && fraction.is_none_or(digits)
        && exponent.is_none_or(digits)
}
