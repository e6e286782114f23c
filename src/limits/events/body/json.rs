//! JSON as Go's decoder takes it: half of a surrogate pair and bytes that are no UTF-8 become U+FFFD.

use std::borrow::Cow;

use super::Format;
use super::Key;
use super::Kind;
use super::Listed;
use super::Text;
use super::Value;

/// Go's `maxNestingDepth`, less the event itself.
const DEEPEST: usize = 9_999;

pub(super) struct Json<'b> {
    text: &'b [u8],
    at: usize,
    /// What will close the collections that are passed over, outermost first.
    open: Vec<u8>,
}

/// Whether a key or an item was there already.
pub(super) struct Begun(bool);

impl<'b> Json<'b> {
    pub(super) fn new(text: &'b [u8]) -> Self {
        Self {
            text,
            at: 0,
            open: Vec::new(),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// The next byte that is no white space, not yet passed.
    fn next(&mut self) -> Option<u8> {
        loop {
            match self.peek()? {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then(|| self.at += 1)
    }

    /// Passes a string's opening quote, text and closing quote; the text, and whether it has escapes.
    fn raw_string(&mut self) -> Option<(&'b [u8], bool)> {
        self.expect(b'"')?;
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = self.text.get(self.at..)?;
            let plain = rest
                .iter()
                .position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
            self.at += plain;
            match self.peek()? {
                b'"' => {
                    let raw = self.text.get(start..self.at)?;
                    self.at += 1;
                    return Some((raw, escaped));
                }
                b'\\' => {
                    escaped = true;
                    self.escape()?;
                }
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        match self.text.get(self.at + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 2,
            b'u' => {
                let digits = self.text.get(self.at + 2..self.at + 6)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                self.at += 6;
            }
            _ => return None,
        }
        Some(())
    }

    fn string(&mut self) -> Option<Text<'b>> {
        let (raw, escaped) = self.raw_string()?;
        Some(if escaped {
            Cow::Owned(unescape(raw))
        } else if std::str::from_utf8(raw).is_ok() {
            Cow::Borrowed(raw)
        } else {
            let mut text = Vec::new();
            push_lossy(&mut text, raw);
            Cow::Owned(text)
        })
    }

    /// A number, `true`, `false` or `null`.
    fn scalar(&mut self) -> Option<Kind> {
        let rest = self.text.get(self.at..)?;
        let length = rest
            .iter()
            .position(|byte| !matches!(byte, b'+' | b'-' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z'))
            .unwrap_or(rest.len());
        let scalar = rest.get(..length)?;
        self.at += length;
        match scalar {
            b"null" => Some(Kind::Null),
            b"true" | b"false" => Some(Kind::Bool),
            number if is_number(number) => {
                let whole = std::str::from_utf8(number).ok()?.parse::<i64>();
                Some(whole.map_or(Kind::Other, Kind::of_whole))
            }
            _ => None,
        }
    }

    /// Passes over a collection, however deep, without recursion.
    fn collection(&mut self) -> Option<()> {
        self.open.clear();
        loop {
            let empty = match self.next()? {
                b'{' => self.begin(b'}')?,
                b'[' => self.begin(b']')?,
                b'"' => self.raw_string().map(|_| true)?,
                _ => self.scalar().map(|_| true)?,
            };
            if empty && self.after_value()? {
                return Some(());
            }
        }
    }

    /// Enters a collection, up to its first value. Whether it is over already.
    fn begin(&mut self, close: u8) -> Option<bool> {
        self.at += 1;
        if self.open.len() >= DEEPEST {
            return None;
        }
        if self.next()? == close {
            self.at += 1;
            return Some(true);
        }
        self.open.push(close);
        if close == b'}' {
            self.name()?;
        }
        Some(false)
    }

    fn name(&mut self) -> Option<()> {
        self.raw_string()?;
        self.expect(b':')
    }

    /// Goes on to the next value. Whether there is none, since the outermost collection is closed.
    fn after_value(&mut self) -> Option<bool> {
        while let Some(&close) = self.open.last() {
            let byte = self.next()?;
            self.at += 1;
            if byte == b',' {
                if close == b'}' {
                    self.name()?;
                }
                return Some(false);
            }
            if byte != close {
                return None;
            }
            self.open.pop();
        }
        Some(true)
    }
}

impl<'b> Format<'b> for Json<'b> {
    type List = Begun;
    type Map = Begun;

    fn value(&mut self) -> Option<Value<'b, Begun>> {
        match self.next()? {
            b'"' => self.string().map(Value::Text),
            b'{' => {
                self.at += 1;
                Some(Value::Map(Begun(false)))
            }
            _ => Some(if self.skip()? == Kind::Null {
                Value::Null
            } else {
                Value::Other
            }),
        }
    }

    fn key(&mut self, map: &mut Begun) -> Option<Key<'b>> {
        match (self.next()?, std::mem::replace(&mut map.0, true)) {
            (b'}', _) => {
                self.at += 1;
                return Some(Key::End);
            }
            (b',', true) => self.at += 1,
            (_, false) => {}
            (_, true) => return None,
        }
        let name = self.string()?;
        self.expect(b':')?;
        Some(Key::Named(name))
    }

    fn list(&mut self) -> Option<Listed<Begun>> {
        if self.next()? == b'[' {
            self.at += 1;
            return Some(Listed::Items(Begun(false)));
        }
        Some(if self.skip()? == Kind::Null {
            Listed::Null
        } else {
            Listed::Other
        })
    }

    fn item(&mut self, list: &mut Begun) -> Option<bool> {
        let begun = std::mem::replace(&mut list.0, true);
        match (self.next()?, begun) {
            (b']', _) => {
                self.at += 1;
                return Some(false);
            }
            (b',', true) => self.at += 1, // what follows has to be a value
            (_, false) => {}
            (_, true) => return None,
        }
        Some(true)
    }

    fn skip(&mut self) -> Option<Kind> {
        match self.next()? {
            b'"' => self.raw_string().map(|_| Kind::Text),
            b'{' => self.collection().map(|()| Kind::Map),
            b'[' => self.collection().map(|()| Kind::Other),
            _ => self.scalar(),
        }
    }

    fn end(&mut self) -> Option<()> {
        self.next().is_none().then_some(())
    }
}

/// JSON's grammar of numbers.
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

/// Undoes escapes, which are well-formed.
fn unescape(raw: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|byte| *byte == b'\\') {
        let (plain, escape) = rest.split_at(at);
        push_lossy(&mut text, plain);
        let (c, length) = match escape.get(1) {
            Some(b'u') => unicode(escape),
            Some(other) => (simple(*other), 2),
            None => (char::REPLACEMENT_CHARACTER, 1),
        };
        push(&mut text, c);
        rest = escape.get(length..).unwrap_or_default();
    }
    push_lossy(&mut text, rest);
    text
}

fn simple(escaped: u8) -> char {
    match escaped {
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        itself => char::from(itself),
    }
}

/// What `\u0000`, or two of them, at the beginning of a text stand for, and their length.
fn unicode(escape: &[u8]) -> (char, usize) {
    let unit = |from: usize| {
        let digits = escape.get(from..from + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let first = unit(0).unwrap_or(0xfffd);
    let pair = [Some(first), unit(6)].into_iter().flatten();
    match char::decode_utf16(pair).next() {
        Some(Ok(c)) if c.len_utf16() == 2 => (c, 12),
        Some(Ok(c)) => (c, 6),
        Some(Err(_)) | None => (char::REPLACEMENT_CHARACTER, 6),
    }
}

fn push(text: &mut Vec<u8>, c: char) {
    text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Adds bytes, each that is no UTF-8 as a U+FFFD of its own, as Go does.
fn push_lossy(text: &mut Vec<u8>, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        text.extend_from_slice(chunk.valid().as_bytes());
        for _ in chunk.invalid() {
            push(text, char::REPLACEMENT_CHARACTER);
        }
    }
}
