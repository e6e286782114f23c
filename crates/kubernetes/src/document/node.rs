//! A parsed document: scalars, sequences and mappings with their locations.
//!
//! Plain data. Aliases are expanded and `<<` is merged. Duplicate keys are kept, so that the
//! decoder can report them.

use std::fmt;
use std::sync::Arc;

use super::scalar::ResolvedScalar;

/// A location in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLocation {
    /// The name of the file, as shown in diagnostics.
    pub file: Arc<str>,
    /// The line, from 1. 0 for the whole file.
    pub line: u32,
    /// The column in characters, from 1. 0 for the whole line or file.
    pub column: u32,
}

impl SourceLocation {
    /// The location of a whole file.
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
            write!(f, ":{}", self.line)?;
        }
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        Ok(())
    }
}

/// A value in a document. A value that was inserted for an alias has the location of its anchor.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The start of the value.
    pub location: SourceLocation,
    /// The value.
    pub content: Content,
}

/// The kind and contents of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Keys and values in the written order, including duplicates.
    Mapping(Vec<MappingEntry>),
    /// A null, boolean, number or string.
    Scalar(ScalarNode),
    /// Values in the written order.
    Sequence(Vec<Node>),
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct MappingEntry {
    /// The key as in JSON: an unquoted `yes` is `true`.
    pub name: String,
    /// The location of the key.
    pub location: SourceLocation,
    /// The value.
    pub value: Node,
}

/// A scalar as written, and its meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalarNode {
    /// The text, unescaped.
    pub text: String,
    /// How the scalar was quoted.
    pub style: QuotingStyle,
    /// The type and value.
    pub value: ResolvedScalar,
}

/// How a scalar was quoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotingStyle {
    /// A block scalar with `|` or `>`: always a string.
    Literal,
    /// Unquoted: the text determines the type.
    Plain,
    /// In single or double quotes: always a string.
    Quoted,
}

impl Node {
    /// Whether the value is null or empty.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar(scalar) if scalar.value == ResolvedScalar::Null)
    }

    /// The text, if the value is a string.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar(scalar) if scalar.value == ResolvedScalar::String => Some(&scalar.text),
            Content::Mapping(_) | Content::Scalar(_) | Content::Sequence(_) => None,
        }
    }

    /// The value of a key in a mapping, the last one if the key is duplicate.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Self> {
        match &self.content {
            Content::Mapping(entries) => find_entry(entries, name).map(|entry| &entry.value),
            Content::Scalar(_) | Content::Sequence(_) => None,
        }
    }

    /// The location of the value at `path` (`spec.rules[0].verbs[1]`), or of the innermost existing
    /// value on that path.
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

    /// The kind of value, in words that follow "got". Contains nothing of the value itself: a
    /// string in the place of a mapping or a list may be a secret, such as `token:SECRET` without
    /// the space.
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

    /// The value in words that follow "got": `the number 5`, `a list`. Not for secrets.
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

/// The last entry with this name, which is the one that counts, as in Go's decoders.
pub(super) fn find_entry<'a>(entries: &'a [MappingEntry], name: &str) -> Option<&'a MappingEntry> {
    entries.iter().rev().find(|entry| entry.name == name)
}

/// Shortens a text for a message.
fn truncate(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    if text.chars().count() <= MAX_CHARS {
        return text.to_owned();
    }
    let start: String = text.chars().take(MAX_CHARS).collect();
    format!("{start}…")
}
