//! A parsed document: scalars, sequences and mappings, each with its place.
//!
//! Plain data. Aliases are expanded and `<<` is merged already; duplicate keys are kept, for the
//! decoder to report.

use std::fmt;
use std::sync::Arc;

use super::scalar::ResolvedScalar;

/// Where something stands in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceLocation {
    /// The file's name, as the reader of a fault knows it.
    pub file: Arc<str>,
    /// The line, from 1; 0 for the file as a whole.
    pub line: u32,
    /// The column in characters, from 1; 0 for the file as a whole.
    pub column: u32,
}

impl SourceLocation {
    /// The file as a whole.
    #[must_use]
    pub fn whole_file(file: &str) -> Self {
        Self {
            file: file.into(),
            line: 0,
            column: 0,
        }
    }
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}:{}", self.line, self.column)?;
        }
        Ok(())
    }
}

/// A value in a document. A value reached through an alias has the place of its anchor.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where the value begins.
    pub location: SourceLocation,
    /// The value.
    pub content: Content,
}

/// What a value is.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Keys and values in the order written, duplicates included.
    Mapping(Vec<MappingEntry>),
    /// Null, boolean, number or text.
    Scalar(ScalarNode),
    /// Values in order.
    Sequence(Vec<Node>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct MappingEntry {
    /// The key as JSON would have it: an unquoted `yes` is `true`.
    pub name: String,
    /// Where the key stands.
    pub location: SourceLocation,
    /// The value.
    pub value: Node,
}

/// A scalar as written and as understood.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalarNode {
    /// The text, unescaped.
    pub text: String,
    /// How it was written.
    pub style: QuotingStyle,
    /// What it means.
    pub value: ResolvedScalar,
}

/// How a scalar was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotingStyle {
    /// As a block behind `|` or `>`: always text.
    Literal,
    /// Bare: its form decides what it is.
    Plain,
    /// In quotes of either kind: always text.
    Quoted,
}

impl Node {
    /// Whether it is null, written or left out.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar(scalar) if scalar.value == ResolvedScalar::Null)
    }

    /// The text, if it is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(scalar) if scalar.value == ResolvedScalar::String => Some(&scalar.text),
            Content::Mapping(_) | Content::Scalar(_) | Content::Sequence(_) => None,
        }
    }

    /// The value of a mapping's key; of the last, if it is there twice.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Self> {
        match &self.content {
            Content::Mapping(entries) => find_entry(entries, name).map(|entry| &entry.value),
            Content::Scalar(_) | Content::Sequence(_) => None,
        }
    }

    /// The place of the field at `path` (`spec.rules[0].verbs[1]`), or of the innermost value on
    /// the way to it that is there.
    #[must_use]
    pub fn locate(&self, path: &str) -> &SourceLocation {
        let mut here = self;
        for step in path.split(['.', '[']) {
            let step = step.strip_suffix(']').unwrap_or(step);
            let next = match &here.content {
                Content::Mapping(entries) => find_entry(entries, step).map(|entry| &entry.value),
                Content::Sequence(items) => step.parse().ok().and_then(|n: usize| items.get(n)),
                Content::Scalar(_) => None,
            };
            let Some(next) = next else { break };
            here = next;
        }
        &here.location
    }

    /// What kind of value it is, in words that follow "got", without a word of the value itself: text where a mapping or
    /// a list should be may be anything, `token:SECRET` without the space among it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match &self.content {
            Content::Mapping(_) => "a mapping",
            Content::Sequence(_) => "a list",
            Content::Scalar(scalar) => match scalar.value {
                ResolvedScalar::Null => "nothing",
                ResolvedScalar::Bool(_) => "a boolean",
                ResolvedScalar::Float(_) | ResolvedScalar::Integer(_) => "a number",
                ResolvedScalar::String => "a string",
            },
        }
    }

    /// What it is, in words that follow "got": `the number 5`, `a list`. For values that are no secrets.
    #[must_use]
    pub fn describe(&self) -> String {
        let scalar = match &self.content {
            Content::Mapping(_) => return "a mapping".to_owned(),
            Content::Sequence(_) => return "a list".to_owned(),
            Content::Scalar(scalar) => scalar,
        };
        match scalar.value {
            ResolvedScalar::Null => "nothing".to_owned(),
            ResolvedScalar::Bool(value) if scalar.text == value.to_string() => {
                format!("the boolean {value}")
            }
            ResolvedScalar::Bool(value) => {
                format!("the boolean {value} (unquoted {} is one)", scalar.text)
            }
            ResolvedScalar::Float(_) | ResolvedScalar::Integer(_) => {
                format!("the number {}", scalar.text)
            }
            ResolvedScalar::String => format!("the string {:?}", truncate(&scalar.text)),
        }
    }
}

/// The last entry of that name: the one that counts, as in Go's decoders.
pub(super) fn find_entry<'a>(entries: &'a [MappingEntry], name: &str) -> Option<&'a MappingEntry> {
    entries.iter().rev().find(|entry| entry.name == name)
}

/// As much of a text as a message can bear.
fn truncate(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    if text.chars().count() <= MAX_CHARS {
        return text.to_owned();
    }
    let start: String = text.chars().take(MAX_CHARS).collect();
    format!("{start}…")
}
