//! Tokenizes a text that is known to be JSON, with the location of each token.
//!
//! YAML contains JSON in theory only: saphyr-parser rejects surrogate pairs and a tab after a
//! colon, and reads `1e3` differently. Therefore a text that serde_json accepts as one JSON value
//! is tokenized here. Valid JSON causes no errors, so there is no error handling. For any other
//! text the result is unspecified, but the tokenizer terminates and does not panic.

use std::iter::Peekable;
use std::str::CharIndices;

use crate::encoding::go_text;

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JsonToken<'t> {
    /// A number, a boolean or null, as written.
    Primitive(&'t str),
    /// `]` or `}`.
    CollectionEnd,
    /// `{`
    ObjectStart,
    /// `[`
    ArrayStart,
    /// A string, unescaped.
    String(String),
}

/// The tokens of a text with their line and column, both from 1. Colons and commas are skipped: the
/// order of the other tokens is sufficient.
pub(super) struct JsonTokenizer<'t> {
    text: &'t str,
    chars: Peekable<CharIndices<'t>>,
    line: u32,
    column: u32,
}

impl<'t> JsonTokenizer<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            chars: text.char_indices().peekable(),
            line: 1,
            column: 1,
        }
    }

    fn advance(&mut self) -> Option<(usize, char)> {
        let (at, c) = self.chars.next()?;
        if c == '\n' {
            (self.line, self.column) = (self.line.saturating_add(1), 1);
        } else {
            self.column = self.column.saturating_add(1);
        }
        Some((at, c))
    }

    /// The text from `start` up to the next character.
    fn text_since(&mut self, start: usize) -> &'t str {
        let end = self.chars.peek().map_or(self.text.len(), |(at, _)| *at);
        self.text.get(start..end).unwrap_or_default()
    }

    fn read_string(&mut self) -> String {
        let start = self.chars.peek().map_or(self.text.len(), |(at, _)| *at);
        while self.chars.peek().is_some_and(|(_, c)| *c != '"') {
            if matches!(self.advance(), Some((_, '\\'))) {
                self.advance();
            }
        }
        let text = unescape(self.text_since(start));
        self.advance();
        text
    }

    fn read_primitive(&mut self, start: usize) -> &'t str {
        let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
        while self.chars.peek().is_some_and(|(_, c)| part(*c)) {
            self.advance();
        }
        self.text_since(start)
    }
}

impl<'t> Iterator for JsonTokenizer<'t> {
    type Item = (u32, u32, JsonToken<'t>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (line, column) = (self.line, self.column);
            let (start, c) = self.advance()?;
            let token = match c {
                '{' => JsonToken::ObjectStart,
                '[' => JsonToken::ArrayStart,
                '}' | ']' => JsonToken::CollectionEnd,
                '"' => JsonToken::String(self.read_string()),
                c if c.is_ascii_alphanumeric() || c == '-' => {
                    JsonToken::Primitive(self.read_primitive(start))
                }
                _ => continue,
            };
            return Some((line, column, token));
        }
    }
}

fn unescape(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    String::from_utf8(go_text::unescape_json(text.as_bytes())).unwrap_or_default()
}
