//! From text to nodes: over saphyr-parser's events, or over JSON's tokens where the text is JSON.
//!
//! Bounds: values nest at most [`MAX_DEPTH`] deep, and all anchors, aliases and `<<` of a text
//! together copy at most [`MAX_EXPANSION`]; beyond either is a fault. The first syntax error ends the reading;
//! documents before it are still given.

use std::collections::HashMap;
use std::collections::HashSet;
use std::sync::Arc;

use saphyr_parser::Event;
use saphyr_parser::Parser;
use saphyr_parser::ScalarStyle;
use saphyr_parser::Span;
use saphyr_parser::Tag;
use serde::de::IgnoredAny;

use super::diagnostics::Diagnostics;
use super::json_tokenizer::JsonToken;
use super::json_tokenizer::JsonTokenizer;
use super::node::Content;
use super::node::MappingEntry;
use super::node::Node;
use super::node::QuotingStyle;
use super::node::ScalarNode;
use super::node::SourceLocation;
use super::scalar;
use super::scalar::ResolvedScalar;

/// How deep values may nest, aliases expanded. Kubernetes' own objects stay below twenty
/// (managedFields included).
pub(super) const MAX_DEPTH: usize = 100;

/// What may be copied for the anchors, aliases and `<<` of a text, in bytes of scalars plus one for
/// each value: far above any file written by hand, far below what hurts.
pub(super) const MAX_EXPANSION: usize = 1 << 20;

/// Reads all documents of a YAML stream, or one JSON value. `file` is what faults shall call it.
/// Documents without content are passed over; a document that cannot be read is a fault, and not in
/// the result.
#[must_use]
pub fn parse_all(file: &str, text: &str, faults: &mut Diagnostics) -> Vec<Node> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reading = NodeBuilder::new(file, MAX_EXPANSION);
    let result = if serde_json::from_str::<IgnoredAny>(text).is_ok() {
        reading.read_json(text, scalar::resolve_json)
    } else {
        reading.read_yaml(text)
    };
    if let Err((place, message)) = result {
        faults.report_error(&place, "", message);
    }
    reading.roots
}

/// The first document of a YAML stream.
#[derive(Debug, Default, PartialEq)]
pub struct FirstDocument {
    /// What it holds; `None` if it is empty, or there is none.
    pub document: Option<Node>,
    /// Where more follows, which nobody has looked at.
    pub trailing: Option<SourceLocation>,
}

/// Reads the first document of a YAML stream, as sigs.k8s.io/yaml does: what follows may be
/// anything, and a text that is JSON as well is still read by YAML's rules (`3.0` is whole, and
/// escapes are YAML's). `None`, and a fault, if it cannot be read.
pub fn parse_first(file: &str, text: &str, faults: &mut Diagnostics) -> Option<FirstDocument> {
    parse_first_bounded(file, text, MAX_EXPANSION, faults)
}

/// Likewise, of a text that anybody may have sent: no more than `most` is copied for its anchors,
/// aliases and `<<`, in the measure of [`MAX_EXPANSION`].
pub fn parse_first_bounded(
    file: &str,
    text: &str,
    most: usize,
    faults: &mut Diagnostics,
) -> Option<FirstDocument> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reading = NodeBuilder::new(file, most);
    let result = if !text.chars().all(is_yaml_char) {
        let message = "the text holds a control character".to_owned();
        Err((SourceLocation::whole_file(file), message))
    } else if text.trim_start_matches([' ', '\n', '\r']).starts_with('\t') {
        let message = "a tab cannot stand before the first value".to_owned();
        Err((SourceLocation::whole_file(file), message))
    } else if is_flow_json(text) {
        let read = reading.read_json(text, scalar::resolve_yaml);
        if has_json_only_escape(text) {
            let message = "YAML has neither surrogates nor the escape \\/".to_owned();
            Err((SourceLocation::whole_file(file), message))
        } else {
            read.map(|()| None)
        }
    } else {
        reading.read_first_document(text)
    };
    match result {
        Ok(further) => Some(FirstDocument {
            document: reading.roots.pop(),
            trailing: further,
        }),
        Err((place, message)) => {
            faults.report_error(&place, "", message);
            None
        }
    }
}

/// Reads a text that has to be one JSON value and nothing besides. `None`, and a fault, if it is
/// not, or null.
pub fn parse_json(file: &str, text: &str, faults: &mut Diagnostics) -> Option<Node> {
    let mut reading = NodeBuilder::new(file, MAX_EXPANSION);
    let result = match serde_json::from_str::<IgnoredAny>(text) {
        Ok(IgnoredAny) => reading.read_json(text, scalar::resolve_json),
        Err(e) => {
            let place = SourceLocation {
                file: file.into(),
                line: u32::try_from(e.line()).unwrap_or(u32::MAX),
                column: u32::try_from(e.column()).unwrap_or(u32::MAX),
            };
            let message = e.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            let why = "what begins with { is read as JSON, not as YAML";
            Err((place, format!("{message}; {why}")))
        }
    };
    if let Err((place, message)) = result {
        faults.report_error(&place, "", message);
        return None;
    }
    reading.roots.pop()
}

/// What go-yaml takes in a text at all.
const fn is_yaml_char(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
}

/// Whether a YAML text is one JSON object, which is read as such: within it saphyr-parser minds tabs
/// that go-yaml does not.
fn is_flow_json(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Whether a JSON text has an escape that go-yaml refuses: half a surrogate pair, or `\/`.
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

/// The tags of values that faults name.
const REPORTED_TAGS: [&str; 7] = ["binary", "bool", "float", "int", "null", "str", "timestamp"];

/// What ends the reading, and where.
type ParseError = (SourceLocation, String);

/// What saphyr-parser gives a value that has no anchor.
const NO_ANCHOR: usize = 0;

struct NodeBuilder {
    file: Arc<str>,
    /// Collections begun and not ended, outermost first.
    open_collections: Vec<OpenCollection>,
    /// Anchored values by the parser's number for them; they may be used until their document ends.
    anchors: HashMap<usize, AnchoredNode>,
    /// What may still be copied, in the measure of [`MAX_EXPANSION`].
    copy_budget: usize,
    roots: Vec<Node>,
}

struct AnchoredNode {
    node: Node,
    cost: NodeCost,
}

/// What a value costs.
#[derive(Clone, Copy, Default)]
struct NodeCost {
    depth: usize,
    weight: usize,
}

struct OpenCollection {
    location: SourceLocation,
    anchor: usize,
    content: PartialContent,
    cost: NodeCost,
}

enum PartialContent {
    Mapping {
        entries: Vec<MappingEntry>,
        key: Option<(MappingKey, SourceLocation)>,
        merged: Vec<Node>,
    },
    Sequence(Vec<Node>),
}

enum MappingKey {
    /// `<<`
    Merge,
    Name(String),
}

impl PartialContent {
    fn empty_mapping() -> Self {
        Self::Mapping {
            entries: Vec::new(),
            key: None,
            merged: Vec::new(),
        }
    }
}

impl NodeBuilder {
    fn new(file: &str, most: usize) -> Self {
        Self {
            file: file.into(),
            open_collections: Vec::new(),
            anchors: HashMap::new(),
            copy_budget: most,
            roots: Vec::new(),
        }
    }

    /// Reads a text that is JSON, whose unquoted scalars mean what `resolve` says.
    fn read_json(
        &mut self,
        text: &str,
        resolve: fn(&str) -> ResolvedScalar,
    ) -> Result<(), ParseError> {
        for (line, column, token) in JsonTokenizer::new(text) {
            let place = SourceLocation {
                file: Arc::clone(&self.file),
                line,
                column,
            };
            match token {
                JsonToken::CollectionEnd => self.end_collection()?,
                JsonToken::ObjectStart => {
                    self.begin_collection(place, NO_ANCHOR, PartialContent::empty_mapping())?
                }
                JsonToken::ArrayStart => {
                    self.begin_collection(place, NO_ANCHOR, PartialContent::Sequence(Vec::new()))?
                }
                JsonToken::Primitive(text) => {
                    let resolved = resolve(text);
                    let scalar = ScalarNode {
                        text: text.to_owned(),
                        style: QuotingStyle::Plain,
                        value: resolved,
                    };
                    self.finish_scalar(place, scalar, NO_ANCHOR)?;
                }
                JsonToken::String(text) => {
                    let scalar = ScalarNode {
                        text,
                        style: QuotingStyle::Quoted,
                        value: ResolvedScalar::String,
                    };
                    self.finish_scalar(place, scalar, NO_ANCHOR)?;
                }
            }
        }
        Ok(())
    }

    fn read_yaml(&mut self, text: &str) -> Result<(), ParseError> {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            match event {
                Ok((event, span)) => self.handle_event(event, span)?,
                Err(e) => return Err((self.location(*e.marker()), e.info().to_owned())),
            }
        }
        Ok(())
    }

    /// Reads up to the end of the first document, and finds out where more follows.
    fn read_first_document(&mut self, text: &str) -> Result<Option<SourceLocation>, ParseError> {
        let mut parser = Parser::new_from_str(text);
        let mut over = false;
        while let Some(event) = parser.next_event() {
            match event {
                Ok((Event::DocumentEnd, _)) => over = true,
                Ok((Event::DocumentStart(_) | Event::StreamEnd, _)) if over => {}
                Ok((Event::Scalar(text, ScalarStyle::Plain, ..), _))
                    if over && scalar::resolve_yaml(&text) == ResolvedScalar::Null => {}
                Ok((_, span)) if over => return Ok(Some(self.location(span.start))),
                Err(e) if over => return Ok(Some(self.location(*e.marker()))),
                Ok((event, span)) => self.handle_event(event, span)?,
                Err(e) => return Err((self.location(*e.marker()), e.info().to_owned())),
            }
        }
        Ok(None)
    }

    fn handle_event(&mut self, event: Event<'_>, span: Span) -> Result<(), ParseError> {
        let place = self.location(span.start);
        match event {
            Event::DocumentStart(_) => self.anchors.clear(),
            Event::Alias(anchor) => {
                let (node, size) = self.expand_alias(anchor, &place)?;
                self.attach(node, size)?;
            }
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = build_scalar(text.into_owned(), style, tag.as_deref(), &place)?;
                self.finish_scalar(place, scalar, anchor)?;
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq", &place)?;
                self.begin_collection(place, anchor, PartialContent::Sequence(Vec::new()))?;
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map", &place)?;
                self.begin_collection(place, anchor, PartialContent::empty_mapping())?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end_collection()?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn location(&self, at: saphyr_parser::Marker) -> SourceLocation {
        SourceLocation {
            file: Arc::clone(&self.file),
            line: u32::try_from(at.line()).unwrap_or(u32::MAX),
            column: u32::try_from(at.col())
                .unwrap_or(u32::MAX)
                .saturating_add(1),
        }
    }

    fn finish_scalar(
        &mut self,
        place: SourceLocation,
        scalar: ScalarNode,
        anchor: usize,
    ) -> Result<(), ParseError> {
        let size = NodeCost {
            depth: 1,
            weight: scalar.text.len().saturating_add(1),
        };
        self.finish_node(
            Node {
                location: place,
                content: Content::Scalar(scalar),
            },
            anchor,
            size,
        )
    }

    fn begin_collection(
        &mut self,
        place: SourceLocation,
        anchor: usize,
        content: PartialContent,
    ) -> Result<(), ParseError> {
        if self.open_collections.len() >= MAX_DEPTH {
            return Err((place, format!("values nest deeper than {MAX_DEPTH}")));
        }
        self.open_collections.push(OpenCollection {
            location: place,
            anchor,
            content,
            cost: NodeCost {
                depth: 1,
                weight: 1,
            },
        });
        Ok(())
    }

    fn end_collection(&mut self) -> Result<(), ParseError> {
        let Some(OpenCollection {
            location: place,
            anchor,
            content,
            cost: size,
        }) = self.open_collections.pop()
        else {
            return Ok(());
        };
        let content = match content {
            PartialContent::Sequence(items) => Content::Sequence(items),
            PartialContent::Mapping {
                entries, merged, ..
            } => Content::Mapping(if merged.is_empty() {
                entries
            } else {
                // One within the other, each moves all that those within it did.
                charge_copy(&mut self.copy_budget, size, &place)?;
                merge_entries(entries, merged)?
            }),
        };
        self.finish_node(
            Node {
                location: place,
                content,
            },
            anchor,
            size,
        )
    }

    fn finish_node(&mut self, node: Node, anchor: usize, size: NodeCost) -> Result<(), ParseError> {
        if anchor != NO_ANCHOR {
            // Whether or not an alias ever uses it; and one anchor may stand within another.
            charge_copy(&mut self.copy_budget, size, &node.location)?;
            self.anchors.insert(
                anchor,
                AnchoredNode {
                    node: node.clone(),
                    cost: size,
                },
            );
        }
        self.attach(node, size)
    }

    fn expand_alias(
        &mut self,
        anchor: usize,
        place: &SourceLocation,
    ) -> Result<(Node, NodeCost), ParseError> {
        let Some(AnchoredNode { node, cost: size }) = self.anchors.get(&anchor) else {
            return Err((
                place.clone(),
                "an alias to the value that it is part of".to_owned(),
            ));
        };
        charge_copy(&mut self.copy_budget, *size, place)?;
        if self.open_collections.len().saturating_add(size.depth) > MAX_DEPTH {
            return Err((
                place.clone(),
                format!("values nest deeper than {MAX_DEPTH}"),
            ));
        }
        Ok((node.clone(), *size))
    }

    /// Puts a finished value where it belongs: at the root, in a list, or as the key or value that
    /// is next in a mapping.
    fn attach(&mut self, node: Node, size: NodeCost) -> Result<(), ParseError> {
        let Some(parent) = self.open_collections.last_mut() else {
            if !node.is_null() {
                self.roots.push(node);
            }
            return Ok(());
        };
        parent.cost.depth = parent.cost.depth.max(size.depth.saturating_add(1));
        parent.cost.weight = parent.cost.weight.saturating_add(size.weight);
        match &mut parent.content {
            PartialContent::Sequence(items) => items.push(node),
            PartialContent::Mapping {
                entries,
                key,
                merged,
            } => match key.take() {
                None => *key = Some((mapping_key(&node)?, node.location)),
                Some((MappingKey::Merge, _)) => merged.push(node),
                Some((MappingKey::Name(name), place)) => entries.push(MappingEntry {
                    name,
                    location: place,
                    value: node,
                }),
            },
        }
        Ok(())
    }
}

/// Counts what is about to be copied for the value at `place`.
fn charge_copy(left: &mut usize, size: NodeCost, place: &SourceLocation) -> Result<(), ParseError> {
    match left.checked_sub(size.weight) {
        Some(less) => *left = less,
        None => {
            let message = "the anchors, aliases and << up to here copy too much";
            return Err((place.clone(), message.to_owned()));
        }
    }
    Ok(())
}

fn build_scalar(
    text: String,
    style: ScalarStyle,
    tag: Option<&Tag>,
    place: &SourceLocation,
) -> Result<ScalarNode, ParseError> {
    let style = match style {
        ScalarStyle::Plain => QuotingStyle::Plain,
        ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => QuotingStyle::Quoted,
        ScalarStyle::Literal | ScalarStyle::Folded => QuotingStyle::Literal,
    };
    let plain = scalar::resolve_yaml(&text);
    let resolved = match (tag.map(core_tag_name), plain) {
        (None, _) if style == QuotingStyle::Plain => plain,
        (None | Some(Some("" | "str")), _) => ResolvedScalar::String,
        (Some(Some("bool")), ResolvedScalar::Bool(_))
        | (Some(Some("null")), ResolvedScalar::Null)
        | (Some(Some("int")), ResolvedScalar::Integer(_))
        | (Some(Some("float")), ResolvedScalar::Float(_) | ResolvedScalar::Integer(_)) => plain,
        (Some(name), _) => {
            // The value may be a secret, and so may what looks like a tag: a password may begin with `!`.
            let tag = match name {
                Some(name) if REPORTED_TAGS.contains(&name) => format!("the tag {name}"),
                Some(_) | None => "a tag of its own; quote what begins with !".to_owned(),
            };
            return Err((place.clone(), format!("the value cannot have {tag}")));
        }
    };
    Ok(ScalarNode {
        text,
        style,
        value: resolved,
    })
}

/// A key as JSON would have it.
fn mapping_key(node: &Node) -> Result<MappingKey, ParseError> {
    let Content::Scalar(scalar) = &node.content else {
        return Err((
            node.location.clone(),
            format!("a key must be a string, not {}", node.kind()),
        ));
    };
    Ok(match scalar.value {
        ResolvedScalar::Bool(value) => MappingKey::Name(value.to_string()),
        ResolvedScalar::Integer(value) => MappingKey::Name(value.to_string()),
        ResolvedScalar::Null => {
            return Err((
                node.location.clone(),
                "a key must not be empty; quote it".to_owned(),
            ));
        }
        ResolvedScalar::String if scalar.text == "<<" && scalar.style == QuotingStyle::Plain => {
            MappingKey::Merge
        }
        ResolvedScalar::Float(_) | ResolvedScalar::String => MappingKey::Name(scalar.text.clone()),
    })
}

/// Adds what `<<` brings: a key that is there already stays as it is, and of several mappings the
/// first counts.
fn merge_entries(
    mut entries: Vec<MappingEntry>,
    merged: Vec<Node>,
) -> Result<Vec<MappingEntry>, ParseError> {
    let mut known: HashSet<String> = entries.iter().map(|entry| entry.name.clone()).collect();
    let sources = merged.into_iter().flat_map(|node| match node.content {
        Content::Sequence(items) => items,
        Content::Mapping(_) | Content::Scalar(_) => vec![node],
    });
    for source in sources {
        let Content::Mapping(added) = source.content else {
            let message = format!(
                "<< takes a mapping or a list of them, not {}",
                source.kind()
            );
            return Err((source.location, message));
        };
        let new: Vec<_> = added
            .into_iter()
            .filter(|entry| !known.contains(&entry.name))
            .collect();
        known.extend(new.iter().map(|entry| entry.name.clone()));
        entries.extend(new);
    }
    Ok(entries)
}

/// The name of one of YAML's own tags; empty for the lone `!`, which means "text, whatever it looks
/// like".
fn core_tag_name(tag: &Tag) -> Option<&str> {
    if tag.is_yaml_core_schema() {
        return Some(&tag.suffix);
    }
    (tag.handle.is_empty() && tag.suffix == "!" || tag.handle == "!" && tag.suffix.is_empty())
        .then_some("")
}

fn check_tag(tag: Option<&Tag>, allowed: &str, place: &SourceLocation) -> Result<(), ParseError> {
    match tag {
        Some(tag) if core_tag_name(tag).is_none_or(|name| !name.is_empty() && name != allowed) => {
            Err((
                place.clone(),
                format!("only the tag {allowed} can stand here"),
            ))
        }
        _ => Ok(()),
    }
}
