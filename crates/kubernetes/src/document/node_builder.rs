//! Builds nodes from saphyr-parser's events or from JSON tokens.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, Tag};

use super::json_tokenizer::{JsonToken, JsonTokenizer};
use super::node::{Content, MappingEntry, Node, QuotingStyle, ScalarNode, SourceLocation};
use super::scalar;
use super::scalar::ResolvedScalar;

use crate::numeric::saturating_u32;

/// The maximum depth of nested values, with aliases expanded. Kubernetes' own objects have a depth
/// below twenty (including managedFields).
pub(super) const MAX_DEPTH: usize = 100;

/// The tags that errors may quote.
const REPORTED_TAGS: [&str; 7] = ["binary", "bool", "float", "int", "null", "str", "timestamp"];

/// The location and the message of the error that ends parsing.
pub(super) type ParseError = (SourceLocation, String);

/// saphyr-parser's anchor id of a value without an anchor.
const NO_ANCHOR: usize = 0;

pub(super) struct NodeBuilder {
    file: Arc<str>,
    /// Unfinished collections, outermost first.
    open_collections: Vec<OpenCollection>,
    /// Anchored values by saphyr-parser's anchor id. Valid until the end of the document.
    anchors: HashMap<usize, AnchoredNode>,
    /// How much may still be copied for anchors, aliases and `<<`: bytes of scalars plus one per
    /// value.
    copy_budget: usize,
    roots: Vec<Node>,
}

struct AnchoredNode {
    node: Node,
    cost: NodeCost,
}

/// The depth of a value, and its weight: bytes of scalars plus one per value.
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
    pub(super) fn new(file: &str, copy_budget: usize) -> Self {
        Self {
            file: file.into(),
            open_collections: Vec::new(),
            anchors: HashMap::new(),
            copy_budget,
            roots: Vec::new(),
        }
    }

    /// All documents that were read.
    pub(super) fn into_roots(self) -> Vec<Node> {
        self.roots
    }

    /// Removes and returns the last document that was read.
    pub(super) fn pop_root(&mut self) -> Option<Node> {
        self.roots.pop()
    }

    /// Reads a JSON text. `resolve` determines the type of unquoted scalars.
    pub(super) fn read_json(
        &mut self,
        text: &str,
        resolve: fn(&str) -> ResolvedScalar,
    ) -> Result<(), ParseError> {
        for (line, column, token) in JsonTokenizer::new(text) {
            let location = SourceLocation {
                file: Arc::clone(&self.file),
                line,
                column,
            };
            match token {
                JsonToken::CollectionEnd => self.end_collection()?,
                JsonToken::ObjectStart => {
                    self.begin_collection(location, NO_ANCHOR, PartialContent::empty_mapping())?
                }
                JsonToken::ArrayStart => self.begin_collection(
                    location,
                    NO_ANCHOR,
                    PartialContent::Sequence(Vec::new()),
                )?,
                JsonToken::Primitive(text) => {
                    let resolved = resolve(text);
                    let scalar = ScalarNode {
                        text: text.to_owned(),
                        style: QuotingStyle::Plain,
                        value: resolved,
                    };
                    self.finish_scalar(location, scalar, NO_ANCHOR)?;
                }
                JsonToken::String(text) => {
                    let scalar = ScalarNode {
                        text,
                        style: QuotingStyle::Quoted,
                        value: ResolvedScalar::String,
                    };
                    self.finish_scalar(location, scalar, NO_ANCHOR)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn read_yaml(&mut self, text: &str) -> Result<(), ParseError> {
        let mut parser = Parser::new_from_str(text);
        while let Some(event) = parser.next_event() {
            match event {
                Ok((event, span)) => self.handle_event(event, span)?,
                Err(e) => return Err((self.location(*e.marker()), e.info().to_owned())),
            }
        }
        Ok(())
    }

    /// Reads the first document. Returns the location of what follows it, if anything does.
    pub(super) fn read_first_document(
        &mut self,
        text: &str,
    ) -> Result<Option<SourceLocation>, ParseError> {
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
        let location = self.location(span.start);
        match event {
            Event::DocumentStart(_) => self.anchors.clear(),
            Event::Alias(anchor) => {
                let (node, cost) = self.expand_alias(anchor, &location)?;
                self.attach(node, cost)?;
            }
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = build_scalar(text.into_owned(), style, tag.as_deref(), &location)?;
                self.finish_scalar(location, scalar, anchor)?;
            }
            Event::SequenceStart(anchor, tag) => {
                check_tag(tag.as_deref(), "seq", &location)?;
                self.begin_collection(location, anchor, PartialContent::Sequence(Vec::new()))?;
            }
            Event::MappingStart(anchor, tag) => {
                check_tag(tag.as_deref(), "map", &location)?;
                self.begin_collection(location, anchor, PartialContent::empty_mapping())?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end_collection()?,
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn location(&self, marker: saphyr_parser::Marker) -> SourceLocation {
        SourceLocation {
            file: Arc::clone(&self.file),
            line: saturating_u32(marker.line()),
            column: saturating_u32(marker.col()).saturating_add(1),
        }
    }

    fn finish_scalar(
        &mut self,
        location: SourceLocation,
        scalar: ScalarNode,
        anchor: usize,
    ) -> Result<(), ParseError> {
        let cost = NodeCost {
            depth: 1,
            weight: scalar.text.len().saturating_add(1),
        };
        self.finish_node(
            Node {
                location,
                content: Content::Scalar(scalar),
            },
            anchor,
            cost,
        )
    }

    fn begin_collection(
        &mut self,
        location: SourceLocation,
        anchor: usize,
        content: PartialContent,
    ) -> Result<(), ParseError> {
        if self.open_collections.len() >= MAX_DEPTH {
            return Err((location, format!("values nest deeper than {MAX_DEPTH}")));
        }
        self.open_collections.push(OpenCollection {
            location,
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
            location,
            anchor,
            content,
            cost,
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
                // Each nested merge moves all entries of those inside it again.
                charge_copy(&mut self.copy_budget, cost, &location)?;
                merge_entries(entries, merged)?
            }),
        };
        self.finish_node(Node { location, content }, anchor, cost)
    }

    fn finish_node(&mut self, node: Node, anchor: usize, cost: NodeCost) -> Result<(), ParseError> {
        if anchor != NO_ANCHOR {
            // Charged even if no alias uses the anchor. Anchors may be nested.
            charge_copy(&mut self.copy_budget, cost, &node.location)?;
            self.anchors.insert(
                anchor,
                AnchoredNode {
                    node: node.clone(),
                    cost,
                },
            );
        }
        self.attach(node, cost)
    }

    fn expand_alias(
        &mut self,
        anchor: usize,
        location: &SourceLocation,
    ) -> Result<(Node, NodeCost), ParseError> {
        let Some(AnchoredNode { node, cost }) = self.anchors.get(&anchor) else {
            return Err((
                location.clone(),
                "an alias to the value that it is part of".to_owned(),
            ));
        };
        charge_copy(&mut self.copy_budget, *cost, location)?;
        if self.open_collections.len().saturating_add(cost.depth) > MAX_DEPTH {
            return Err((
                location.clone(),
                format!("values nest deeper than {MAX_DEPTH}"),
            ));
        }
        Ok((node.clone(), *cost))
    }

    /// Adds a finished value to its parent: the roots, a list, or the next key or value of a
    /// mapping.
    fn attach(&mut self, node: Node, cost: NodeCost) -> Result<(), ParseError> {
        let Some(parent) = self.open_collections.last_mut() else {
            if !node.is_null() {
                self.roots.push(node);
            }
            return Ok(());
        };
        parent.cost.depth = parent.cost.depth.max(cost.depth.saturating_add(1));
        parent.cost.weight = parent.cost.weight.saturating_add(cost.weight);
        match &mut parent.content {
            PartialContent::Sequence(items) => items.push(node),
            PartialContent::Mapping {
                entries,
                key,
                merged,
            } => match key.take() {
                None => *key = Some((mapping_key(&node)?, node.location)),
                Some((MappingKey::Merge, _)) => merged.push(node),
                Some((MappingKey::Name(name), location)) => entries.push(MappingEntry {
                    name,
                    location,
                    value: node,
                }),
            },
        }
        Ok(())
    }
}

/// Subtracts the copy of a value from the budget `left`.
fn charge_copy(
    budget: &mut usize,
    cost: NodeCost,
    location: &SourceLocation,
) -> Result<(), ParseError> {
    match budget.checked_sub(cost.weight) {
        Some(remaining) => *budget = remaining,
        None => {
            let message = "the anchors, aliases and << up to here copy too much";
            return Err((location.clone(), message.to_owned()));
        }
    }
    Ok(())
}

fn build_scalar(
    text: String,
    style: ScalarStyle,
    tag: Option<&Tag>,
    location: &SourceLocation,
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
            // The value may be a secret, and so may a tag: a password may begin with `!`.
            let tag = match name {
                Some(name) if REPORTED_TAGS.contains(&name) => format!("the tag {name}"),
                Some(_) | None => "a tag of its own; quote what begins with !".to_owned(),
            };
            return Err((location.clone(), format!("the value cannot have {tag}")));
        }
    };
    Ok(ScalarNode {
        text,
        style,
        value: resolved,
    })
}

/// The key as in JSON.
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

/// Merges the mappings of `<<`. Existing keys are kept, and of several mappings the first counts.
fn merge_entries(
    mut entries: Vec<MappingEntry>,
    merged: Vec<Node>,
) -> Result<Vec<MappingEntry>, ParseError> {
    let mut existing: HashSet<String> = entries.iter().map(|entry| entry.name.clone()).collect();
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
            .filter(|entry| !existing.contains(&entry.name))
            .collect();
        existing.extend(new.iter().map(|entry| entry.name.clone()));
        entries.extend(new);
    }
    Ok(entries)
}

/// The name of a tag of YAML's core schema. Empty for `!`, which makes any value a string.
fn core_tag_name(tag: &Tag) -> Option<&str> {
    if tag.is_yaml_core_schema() {
        return Some(&tag.suffix);
    }
    (tag.handle.is_empty() && tag.suffix == "!" || tag.handle == "!" && tag.suffix.is_empty())
        .then_some("")
}

fn check_tag(
    tag: Option<&Tag>,
    allowed: &str,
    location: &SourceLocation,
) -> Result<(), ParseError> {
    match tag {
        Some(tag) if core_tag_name(tag).is_none_or(|name| !name.is_empty() && name != allowed) => {
            Err((
                location.clone(),
                format!("only the tag {allowed} can stand here"),
            ))
        }
        _ => Ok(()),
    }
}
