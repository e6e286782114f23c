//! Parses texts into nodes: with saphyr-parser, or with the JSON tokenizer if the text is JSON.
//!
//! Values nest at most `MAX_DEPTH` deep. All anchors, aliases and `<<` of a text together copy at
//! most `MAX_EXPANSION`. Exceeding either is an error. Parsing ends at the first syntax error, and
//! the documents before it are returned.

use serde::de::IgnoredAny;

use super::diagnostics::Diagnostics;
use super::node::{Node, SourceLocation};
use super::node_builder::NodeBuilder;
use super::scalar;

use crate::numeric::saturating_u32;

/// How much may be copied for the anchors, aliases and `<<` of a text: bytes of scalars plus one
/// per value. Far more than any hand-written file needs, and far less than what affects the
/// process.
pub(super) const MAX_EXPANSION: usize = 1 << 20;

/// Parses all documents of a YAML stream, or one JSON value. `file` is the name for diagnostics.
/// Empty documents are skipped. A document that cannot be parsed adds an error and is not in the
/// result.
#[must_use]
pub fn parse_all(file: &str, text: &str, diagnostics: &mut Diagnostics) -> Vec<Node> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = NodeBuilder::new(file, MAX_EXPANSION);
    let result = if serde_json::from_str::<IgnoredAny>(text).is_ok() {
        builder.read_json(text, scalar::resolve_json)
    } else {
        builder.read_yaml(text)
    };
    if let Err((location, message)) = result {
        diagnostics.report_error(&location, "", message);
    }
    builder.into_roots()
}

/// The first document of a YAML stream.
#[derive(Debug, Default, PartialEq)]
pub struct FirstDocument {
    /// The document. `None` if it is empty or missing.
    pub document: Option<Node>,
    /// The location of what follows, which is not parsed.
    pub trailing: Option<SourceLocation>,
}

/// Parses the first document of a YAML stream, like sigs.k8s.io/yaml. Anything may follow it. A
/// text that is also JSON is still read by the rules of YAML (`3.0` is a whole number, and escapes
/// are YAML's). `None` and an error if it cannot be parsed.
pub fn parse_first(file: &str, text: &str, diagnostics: &mut Diagnostics) -> Option<FirstDocument> {
    parse_first_bounded(file, text, MAX_EXPANSION, diagnostics)
}

/// Like [`parse_first`], for texts from clients: copies at most `max_expansion` for anchors,
/// aliases and `<<`, in bytes of scalars plus one per value.
pub fn parse_first_bounded(
    file: &str,
    text: &str,
    max_expansion: usize,
    diagnostics: &mut Diagnostics,
) -> Option<FirstDocument> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut builder = NodeBuilder::new(file, max_expansion);
    let result = if !text.chars().all(is_yaml_char) {
        let message = "the text holds a control character".to_owned();
        Err((SourceLocation::whole_file(file), message))
    } else if text.trim_start_matches([' ', '\n', '\r']).starts_with('\t') {
        let message = "a tab cannot stand before the first value".to_owned();
        Err((SourceLocation::whole_file(file), message))
    } else if is_flow_json(text) {
        let read = builder.read_json(text, scalar::resolve_yaml);
        if has_json_only_escape(text) {
            let message = "YAML has neither surrogates nor the escape \\/".to_owned();
            Err((SourceLocation::whole_file(file), message))
        } else {
            read.map(|()| None)
        }
    } else {
        builder.read_first_document(text)
    };
    match result {
        Ok(trailing) => Some(FirstDocument {
            document: builder.pop_root(),
            trailing,
        }),
        Err((location, message)) => {
            diagnostics.report_error(&location, "", message);
            None
        }
    }
}

/// Parses a text that has to be one JSON value. `None` if the value is null, and `None` and an
/// error if the text is not JSON.
pub fn parse_json(file: &str, text: &str, diagnostics: &mut Diagnostics) -> Option<Node> {
    let mut builder = NodeBuilder::new(file, MAX_EXPANSION);
    let result = match serde_json::from_str::<IgnoredAny>(text) {
        Ok(IgnoredAny) => builder.read_json(text, scalar::resolve_json),
        Err(e) => {
            let location = SourceLocation {
                file: file.into(),
                line: saturating_u32(e.line()),
                column: saturating_u32(e.column()),
            };
            let message = e.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            let hint = "what begins with { is read as JSON, not as YAML";
            Err((location, format!("{message}; {hint}")))
        }
    };
    if let Err((location, message)) = result {
        diagnostics.report_error(&location, "", message);
        return None;
    }
    builder.pop_root()
}

/// Whether go-yaml accepts this character.
const fn is_yaml_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
}

/// Whether a YAML text is a JSON object. It is then tokenized as JSON: within it, saphyr-parser
/// rejects tabs that go-yaml accepts.
fn is_flow_json(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Whether a JSON text has an escape that go-yaml rejects: an unpaired surrogate, or `\/`.
fn has_json_only_escape(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            continue;
        }
        let found = match bytes.next() {
            Some(b'/') => true,
            Some(b'u') => {
                matches!(bytes.next(), Some(b'd' | b'D'))
                    && matches!(bytes.next(), Some(b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F'))
            }
            _ => false,
        };
        if found {
            return true;
        }
    }
    false
}
