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

use super::faults::Faults;
use super::json::Token;
use super::json::Tokens;
use super::node::Content;
use super::node::Entry;
use super::node::Node;
use super::node::Place;
use super::node::Scalar;
use super::node::Style;
use super::resolve;
use super::resolve::Resolved;

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
pub fn parse_all(file: &str, text: &str, faults: &mut Faults) -> Vec<Node> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reading = Reading::new(file, MAX_EXPANSION);
    let result = if serde_json::from_str::<IgnoredAny>(text).is_ok() {
        reading.read_json(text, resolve::json)
    } else {
        reading.read_yaml(text)
    };
    if let Err((place, message)) = result {
        faults.error(&place, "", message);
    }
    reading.roots
}

/// The first document of a YAML stream.
#[derive(Debug, Default, PartialEq)]
pub struct First {
    /// What it holds; `None` if it is empty, or there is none.
    pub document: Option<Node>,
    /// Where more follows, which nobody has looked at.
    pub further: Option<Place>,
}

/// Reads the first document of a YAML stream, as sigs.k8s.io/yaml does: what follows may be
/// anything, and a text that is JSON as well is still read by YAML's rules (`3.0` is whole, and
/// escapes are YAML's). `None`, and a fault, if it cannot be read.
pub fn parse_first(file: &str, text: &str, faults: &mut Faults) -> Option<First> {
    parse_first_within(file, text, MAX_EXPANSION, faults)
}

/// Likewise, of a text that anybody may have sent: no more than `most` is copied for its anchors,
/// aliases and `<<`, in the measure of [`MAX_EXPANSION`].
pub fn parse_first_within(
    file: &str,
    text: &str,
    most: usize,
    faults: &mut Faults,
) -> Option<First> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reading = Reading::new(file, most);
    let result = if !text.chars().all(is_yaml) {
        let message = "the text holds a control character".to_owned();
        Err((Place::whole(file), message))
    } else if text.trim_start_matches([' ', '\n', '\r']).starts_with('\t') {
        let message = "a tab cannot stand before the first value".to_owned();
        Err((Place::whole(file), message))
    } else if is_flow_json(text) {
        let read = reading.read_json(text, resolve::yaml);
        if has_json_escape(text) {
            let message = "YAML has neither surrogates nor the escape \\/".to_owned();
            Err((Place::whole(file), message))
        } else {
            read.map(|()| None)
        }
    } else {
        reading.read_first(text)
    };
    match result {
        Ok(further) => Some(First {
            document: reading.roots.pop(),
            further,
        }),
        Err((place, message)) => {
            faults.error(&place, "", message);
            None
        }
    }
}

/// Reads a text that has to be one JSON value and nothing besides. `None`, and a fault, if it is
/// not, or null.
pub fn parse_json(file: &str, text: &str, faults: &mut Faults) -> Option<Node> {
    let mut reading = Reading::new(file, MAX_EXPANSION);
    let result = match serde_json::from_str::<IgnoredAny>(text) {
        Ok(IgnoredAny) => reading.read_json(text, resolve::json),
        Err(e) => {
            let place = Place {
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
        faults.error(&place, "", message);
        return None;
    }
    reading.roots.pop()
}

/// What go-yaml takes in a text at all.
const fn is_yaml(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
}

/// Whether a YAML text is one JSON object, which is read as such: within it saphyr-parser minds tabs
/// that go-yaml does not.
fn is_flow_json(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// Whether a JSON text has an escape that go-yaml refuses: half a surrogate pair, or `\/`.
fn has_json_escape(text: &str) -> bool {
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
const TAGS: [&str; 7] = ["binary", "bool", "float", "int", "null", "str", "timestamp"];

/// What ends the reading, and where.
type Fatal = (Place, String);

/// What saphyr-parser gives a value that has no anchor.
const NO_ANCHOR: usize = 0;

struct Reading {
    file: Arc<str>,
    /// Collections begun and not ended, outermost first.
    open: Vec<Open>,
    /// Anchored values by the parser's number for them; they may be used until their document ends.
    anchors: HashMap<usize, Anchored>,
    /// What may still be copied, in the measure of [`MAX_EXPANSION`].
    left: usize,
    roots: Vec<Node>,
}

struct Anchored {
    node: Node,
    size: Size,
}

/// What a value costs.
#[derive(Clone, Copy, Default)]
struct Size {
    depth: usize,
    weight: usize,
}

struct Open {
    place: Place,
    anchor: usize,
    content: Partial,
    size: Size,
}

enum Partial {
    Mapping {
        entries: Vec<Entry>,
        key: Option<(Key, Place)>,
        merged: Vec<Node>,
    },
    Sequence(Vec<Node>),
}

enum Key {
    /// `<<`
    Merge,
    Name(String),
}

impl Partial {
    fn mapping() -> Self {
        Self::Mapping {
            entries: Vec::new(),
            key: None,
            merged: Vec::new(),
        }
    }
}

impl Reading {
    fn new(file: &str, most: usize) -> Self {
        Self {
            file: file.into(),
            open: Vec::new(),
            anchors: HashMap::new(),
            left: most,
            roots: Vec::new(),
        }
    }

    /// Reads a text that is JSON, whose unquoted scalars mean what `resolve` says.
    fn read_json(&mut self, text: &str, resolve: fn(&str) -> Resolved) -> Result<(), Fatal> {
        for (line, column, token) in Tokens::of(text) {
            let place = Place {
                file: Arc::clone(&self.file),
                line,
                column,
            };
            match token {
                Token::End => self.end()?,
                Token::Mapping => self.begin(place, NO_ANCHOR, Partial::mapping())?,
                Token::Sequence => self.begin(place, NO_ANCHOR, Partial::Sequence(Vec::new()))?,
                Token::Bare(text) => {
                    let resolved = resolve(text);
                    let scalar = Scalar {
                        text: text.to_owned(),
                        style: Style::Plain,
                        resolved,
                    };
                    self.finished_scalar(place, scalar, NO_ANCHOR)?;
                }
                Token::Text(text) => {
                    let scalar = Scalar {
                        text,
                        style: Style::Quoted,
                        resolved: Resolved::Text,
                    };
                    self.finished_scalar(place, scalar, NO_ANCHOR)?;
                }
            }
        }
        Ok(())
    }

    fn read_yaml(&mut self, text: &str) -> Result<(), Fatal> {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            match event {
                Ok((event, span)) => self.take(event, span)?,
                Err(e) => return Err((self.place(*e.marker()), e.info().to_owned())),
            }
        }
        Ok(())
    }

    /// Reads up to the end of the first document, and finds out where more follows.
    fn read_first(&mut self, text: &str) -> Result<Option<Place>, Fatal> {
        let mut parser = Parser::new_from_str(text);
        let mut over = false;
        while let Some(event) = parser.next_event() {
            match event {
                Ok((Event::DocumentEnd, _)) => over = true,
                Ok((Event::DocumentStart(_) | Event::StreamEnd, _)) if over => {}
                Ok((Event::Scalar(text, ScalarStyle::Plain, ..), _))
                    if over && resolve::yaml(&text) == Resolved::Null => {}
                Ok((_, span)) if over => return Ok(Some(self.place(span.start))),
                Err(e) if over => return Ok(Some(self.place(*e.marker()))),
                Ok((event, span)) => self.take(event, span)?,
                Err(e) => return Err((self.place(*e.marker()), e.info().to_owned())),
            }
        }
        Ok(None)
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Fatal> {
        let place = self.place(span.start);
        match event {
            Event::DocumentStart(_) => self.anchors.clear(),
            Event::Alias(anchor) => {
                let (node, size) = self.expand(anchor, &place)?;
                self.add(node, size)?;
            }
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = scalar(text.into_owned(), style, tag.as_deref(), &place)?;
                self.finished_scalar(place, scalar, anchor)?;
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq", &place)?;
                self.begin(place, anchor, Partial::Sequence(Vec::new()))?;
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map", &place)?;
                self.begin(place, anchor, Partial::mapping())?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn place(&self, at: saphyr_parser::Marker) -> Place {
        Place {
            file: Arc::clone(&self.file),
            line: u32::try_from(at.line()).unwrap_or(u32::MAX),
            column: u32::try_from(at.col())
                .unwrap_or(u32::MAX)
                .saturating_add(1),
        }
    }

    fn finished_scalar(
        &mut self,
        place: Place,
        scalar: Scalar,
        anchor: usize,
    ) -> Result<(), Fatal> {
        let size = Size {
            depth: 1,
            weight: scalar.text.len().saturating_add(1),
        };
        self.finished(
            Node {
                place,
                content: Content::Scalar(scalar),
            },
            anchor,
            size,
        )
    }

    fn begin(&mut self, place: Place, anchor: usize, content: Partial) -> Result<(), Fatal> {
        if self.open.len() >= MAX_DEPTH {
            return Err((place, format!("values nest deeper than {MAX_DEPTH}")));
        }
        self.open.push(Open {
            place,
            anchor,
            content,
            size: Size {
                depth: 1,
                weight: 1,
            },
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fatal> {
        let Some(Open {
            place,
            anchor,
            content,
            size,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let content = match content {
            Partial::Sequence(items) => Content::Sequence(items),
            Partial::Mapping {
                entries, merged, ..
            } => Content::Mapping(if merged.is_empty() {
                entries
            } else {
                // One within the other, each moves all that those within it did.
                copied(&mut self.left, size, &place)?;
                merge(entries, merged)?
            }),
        };
        self.finished(Node { place, content }, anchor, size)
    }

    fn finished(&mut self, node: Node, anchor: usize, size: Size) -> Result<(), Fatal> {
        if anchor != NO_ANCHOR {
            // Whether or not an alias ever uses it; and one anchor may stand within another.
            copied(&mut self.left, size, &node.place)?;
            self.anchors.insert(
                anchor,
                Anchored {
                    node: node.clone(),
                    size,
                },
            );
        }
        self.add(node, size)
    }

    fn expand(&mut self, anchor: usize, place: &Place) -> Result<(Node, Size), Fatal> {
        let Some(Anchored { node, size }) = self.anchors.get(&anchor) else {
            return Err((
                place.clone(),
                "an alias to the value that it is part of".to_owned(),
            ));
        };
        copied(&mut self.left, *size, place)?;
        if self.open.len().saturating_add(size.depth) > MAX_DEPTH {
            return Err((
                place.clone(),
                format!("values nest deeper than {MAX_DEPTH}"),
            ));
        }
        Ok((node.clone(), *size))
    }

    /// Puts a finished value where it belongs: at the root, in a list, or as the key or value that
    /// is next in a mapping.
    fn add(&mut self, node: Node, size: Size) -> Result<(), Fatal> {
        let Some(parent) = self.open.last_mut() else {
            if !node.is_null() {
                self.roots.push(node);
            }
            return Ok(());
        };
        parent.size.depth = parent.size.depth.max(size.depth.saturating_add(1));
        parent.size.weight = parent.size.weight.saturating_add(size.weight);
        match &mut parent.content {
            Partial::Sequence(items) => items.push(node),
            Partial::Mapping {
                entries,
                key,
                merged,
            } => match key.take() {
                None => *key = Some((name(&node)?, node.place)),
                Some((Key::Merge, _)) => merged.push(node),
                Some((Key::Name(name), place)) => entries.push(Entry {
                    name,
                    place,
                    value: node,
                }),
            },
        }
        Ok(())
    }
}

/// Counts what is about to be copied for the value at `place`.
fn copied(left: &mut usize, size: Size, place: &Place) -> Result<(), Fatal> {
    match left.checked_sub(size.weight) {
        Some(less) => *left = less,
        None => {
            let message = "the anchors, aliases and << up to here copy too much";
            return Err((place.clone(), message.to_owned()));
        }
    }
    Ok(())
}

fn scalar(
    text: String,
    style: ScalarStyle,
    tag: Option<&Tag>,
    place: &Place,
) -> Result<Scalar, Fatal> {
    let style = match style {
        ScalarStyle::Plain => Style::Plain,
        ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
        ScalarStyle::Literal | ScalarStyle::Folded => Style::Literal,
    };
    let plain = resolve::yaml(&text);
    let resolved = match (tag.map(core), plain) {
        (None, _) if style == Style::Plain => plain,
        (None | Some(Some("" | "str")), _) => Resolved::Text,
        (Some(Some("bool")), Resolved::Bool(_))
        | (Some(Some("null")), Resolved::Null)
        | (Some(Some("int")), Resolved::Integer(_))
        | (Some(Some("float")), Resolved::Float(_) | Resolved::Integer(_)) => plain,
        (Some(name), _) => {
            // The value may be a secret, and so may what looks like a tag: a password may begin with `!`.
            let tag = match name {
                Some(name) if TAGS.contains(&name) => format!("the tag {name}"),
                Some(_) | None => "a tag of its own; quote what begins with !".to_owned(),
            };
            return Err((place.clone(), format!("the value cannot have {tag}")));
        }
    };
    Ok(Scalar {
        text,
        style,
        resolved,
    })
}

/// A key as JSON would have it.
fn name(node: &Node) -> Result<Key, Fatal> {
    let Content::Scalar(scalar) = &node.content else {
        return Err((
            node.place.clone(),
            format!("a key must be a string, not {}", node.kind()),
        ));
    };
    Ok(match scalar.resolved {
        Resolved::Bool(value) => Key::Name(value.to_string()),
        Resolved::Integer(value) => Key::Name(value.to_string()),
        Resolved::Null => {
            return Err((
                node.place.clone(),
                "a key must not be empty; quote it".to_owned(),
            ));
        }
        Resolved::Text if scalar.text == "<<" && scalar.style == Style::Plain => Key::Merge,
        Resolved::Float(_) | Resolved::Text => Key::Name(scalar.text.clone()),
    })
}

/// Adds what `<<` brings: a key that is there already stays as it is, and of several mappings the
/// first counts.
fn merge(mut entries: Vec<Entry>, merged: Vec<Node>) -> Result<Vec<Entry>, Fatal> {
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
            return Err((source.place, message));
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
fn core(tag: &Tag) -> Option<&str> {
    if tag.is_yaml_core_schema() {
        return Some(&tag.suffix);
    }
    (tag.handle.is_empty() && tag.suffix == "!" || tag.handle == "!" && tag.suffix.is_empty())
        .then_some("")
}

fn check_tag(tag: Option<&Tag>, allowed: &str, place: &Place) -> Result<(), Fatal> {
    match tag {
        Some(tag) if core(tag).is_none_or(|name| !name.is_empty() && name != allowed) => Err((
            place.clone(),
            format!("only the tag {allowed} can stand here"),
        )),
        _ => Ok(()),
    }
}
