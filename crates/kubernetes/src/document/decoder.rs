//! Decodes a [`Node`] field by field, and reports what is invalid.
//!
//! A decoder function reads each field that it knows. Fields that it did not read are unknown, and
//! [`Strictness`] determines what follows. A field that cannot be decoded adds a diagnostic and
//! yields `None`, so that one pass reports all errors. Null is the same as absent.

use std::collections::HashSet;
use std::fmt::Display;
use std::ops::RangeInclusive;

use super::diagnostics::{Diagnostic, Diagnostics, Severity};
use super::node::{Content, MappingEntry, Node, SourceLocation, find_entry};
use super::scalar::ResolvedScalar;

/// How the message about an unknown field begins.
pub const UNKNOWN_FIELD: &str = "unknown field";

/// How the message about a duplicate field begins.
pub const GIVEN_TWICE: &str = "given twice";

/// How unknown and duplicate fields are treated. The last of duplicate fields counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// They are ignored, as when Kubernetes reads its configuration files and with
    /// `fieldValidation=Ignore`. A null in a list is an empty item.
    Lenient,
    /// They are errors, and so is a null in a list.
    Strict,
    /// They are warnings, as with `fieldValidation=Warn`. A null in a list is an empty item.
    Warn,
}

impl Strictness {
    fn severity(self) -> Option<Severity> {
        match self {
            Self::Lenient => None,
            Self::Strict => Some(Severity::Error),
            Self::Warn => Some(Severity::Warning),
        }
    }
}

impl Node {
    /// Decodes this mapping, whose path is `field` (empty for a whole document). `None` and an
    /// error if it is not a mapping.
    pub fn decode<T>(
        &self,
        diagnostics: &mut Diagnostics,
        field: &str,
        strictness: Strictness,
        read: impl FnOnce(&mut MappingDecoder<'_>) -> T,
    ) -> Option<T> {
        self.decoder(diagnostics, field, strictness).object(read)
    }

    /// A [`ValueDecoder`] for this value, whose path is `field`. For values that need not be
    /// mappings.
    pub fn decoder<'a>(
        &'a self,
        diagnostics: &'a mut Diagnostics,
        field: &str,
        strictness: Strictness,
    ) -> ValueDecoder<'a> {
        ValueDecoder {
            node: self,
            path: field.to_owned(),
            diagnostics,
            strictness,
        }
    }
}

/// Decodes the fields of a mapping.
#[derive(Debug)]
pub struct MappingDecoder<'a> {
    node: &'a Node,
    entries: &'a [MappingEntry],
    path: String,
    known_fields: Vec<&'static str>,
    diagnostics: &'a mut Diagnostics,
    strictness: Strictness,
}

impl<'a> MappingDecoder<'a> {
    /// The decoder of a field; `None` if it is absent or null.
    pub fn value(&mut self, name: &'static str) -> Option<ValueDecoder<'_>> {
        let node = self.node(name)?;
        let path = self.path(name);
        Some(ValueDecoder {
            node,
            path,
            diagnostics: self.diagnostics,
            strictness: self.strictness,
        })
    }

    /// The parsed field; `None` if it is absent or null.
    pub fn node(&mut self, name: &'static str) -> Option<&'a Node> {
        self.mark_known(&[name]);
        find_entry(self.entries, name)
            .map(|entry| &entry.value)
            .filter(|node| !node.is_null())
    }

    /// Decodes a string.
    pub fn string(&mut self, name: &'static str) -> Option<String> {
        self.value(name)?.string()
    }

    /// Decodes a string and converts it with `parse`.
    pub fn parse<T, E: Display>(
        &mut self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.value(name)?.parse(parse)
    }

    /// Decodes a boolean.
    pub fn boolean(&mut self, name: &'static str) -> Option<bool> {
        self.value(name)?.boolean()
    }

    /// Decodes a whole number within `range`.
    pub fn integer<T>(&mut self, name: &'static str, range: RangeInclusive<T>) -> Option<T>
    where
        T: Copy + Display + PartialOrd + TryFrom<i128>,
    {
        self.value(name)?.integer(range)
    }

    /// Decodes a mapping with `read`.
    pub fn object<T>(
        &mut self,
        name: &'static str,
        read: impl FnOnce(&mut MappingDecoder<'_>) -> T,
    ) -> Option<T> {
        self.value(name)?.object(read)
    }

    /// Decodes a list, each item with `read`. Items for which `read` yields `None` are left out.
    pub fn list<T>(
        &mut self,
        name: &'static str,
        read: impl FnMut(ValueDecoder<'_>) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.value(name)?.list(read)
    }

    /// Decodes a list of mappings.
    pub fn objects<T>(
        &mut self,
        name: &'static str,
        mut read: impl FnMut(&mut MappingDecoder<'_>) -> T,
    ) -> Option<Vec<T>> {
        self.list(name, |item| item.object(&mut read))
    }

    /// Decodes a list of strings.
    pub fn strings(&mut self, name: &'static str) -> Option<Vec<String>> {
        self.list(name, |item| item.string())
    }

    /// Decodes a mapping with arbitrary keys, in the written order. The last of duplicate keys is
    /// kept.
    pub fn map<T>(
        &mut self,
        name: &'static str,
        read: impl FnMut(ValueDecoder<'_>) -> Option<T>,
    ) -> Option<Vec<(String, T)>> {
        self.value(name)?.map(read)
    }

    /// Reports an error for each of these fields that is absent or null.
    pub fn require(&mut self, names: &[&'static str]) {
        for &name in names {
            if self.node(name).is_none() {
                self.report_error(name, "required, but not given");
            }
        }
    }

    /// Marks fields as known without reading them.
    pub fn mark_known(&mut self, names: &[&'static str]) {
        for &name in names {
            if !self.known_fields.contains(&name) {
                self.known_fields.push(name);
            }
        }
    }

    /// Reports an error of a field, at its location if it is present. An empty `name` stands for
    /// the mapping itself.
    pub fn report_error(&mut self, name: &str, message: impl Into<String>) {
        let (location, path) = (self.location(name).clone(), self.path(name));
        self.diagnostics.report_error(&location, &path, message);
    }

    /// Reports a warning of a field, at its location if it is present. An empty `name` stands for
    /// the mapping itself.
    pub fn report_warning(&mut self, name: &str, message: impl Into<String>) {
        let (location, path) = (self.location(name).clone(), self.path(name));
        self.diagnostics.report_warning(&location, &path, message);
    }

    /// The location of a field's value; that of the mapping if the field is absent or `name` is
    /// empty.
    #[must_use]
    pub fn location(&self, name: &str) -> &'a SourceLocation {
        find_entry(self.entries, name).map_or(&self.node.location, |entry| &entry.value.location)
    }

    /// The path of a field; that of the mapping if `name` is empty.
    #[must_use]
    pub fn path(&self, name: &str) -> String {
        match (self.path.as_str(), name) {
            (path, "") => path.to_owned(),
            ("", name) => name.to_owned(),
            (path, name) => format!("{path}.{name}"),
        }
    }

    fn unknown_field_message(&self) -> String {
        if self.known_fields.is_empty() {
            return format!("{UNKNOWN_FIELD}; no field is allowed here");
        }
        format!(
            "{UNKNOWN_FIELD}; allowed here: {}",
            self.known_fields.join(", ")
        )
    }

    /// Reports unknown and duplicate fields, each name once, as Go does.
    fn finish(self) {
        let Some(severity) = self.strictness.severity() else {
            return;
        };
        let mut seen = HashSet::new();
        let mut reported = HashSet::new();
        for MappingEntry { name, location, .. } in self.entries {
            let known = self.known_fields.contains(&name.as_str());
            let again = !seen.insert(name);
            if known != again || !reported.insert(name) {
                continue;
            }
            let message = if known {
                format!("{GIVEN_TWICE}; the last one counts")
            } else {
                self.unknown_field_message()
            };
            let (location, field) = (location.clone(), self.path(name));
            self.diagnostics.push(Diagnostic {
                location,
                severity,
                field,
                message,
            });
        }
    }
}

/// Decodes one value.
#[derive(Debug)]
pub struct ValueDecoder<'a> {
    node: &'a Node,
    path: String,
    diagnostics: &'a mut Diagnostics,
    strictness: Strictness,
}

impl<'a> ValueDecoder<'a> {
    /// The parsed value.
    #[must_use]
    pub fn node(&self) -> &'a Node {
        self.node
    }

    /// The path, such as `spec.rules[0]`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The diagnostics, for functions that decode the node themselves.
    pub fn diagnostics(&mut self) -> &mut Diagnostics {
        self.diagnostics
    }

    /// Decodes a string.
    pub fn string(self) -> Option<String> {
        if self.is_zero_value() {
            return Some(String::new());
        }
        match self.node.as_str() {
            Some(text) => Some(text.to_owned()),
            None => self.report_expected("a string"),
        }
    }

    /// Decodes a string and converts it with `parse`. If that fails, the diagnostic quotes the
    /// string.
    pub fn parse<T, E: Display>(self, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        let Some(text) = self.node.as_str() else {
            return self.report_expected("a string");
        };
        parse(text)
            .map_err(|e| {
                let message = format!("{e}, got {}", self.node.describe());
                self.diagnostics
                    .report_error(&self.node.location, &self.path, message);
            })
            .ok()
    }

    /// Decodes a boolean.
    pub fn boolean(self) -> Option<bool> {
        match self.resolved_scalar() {
            Some(ResolvedScalar::Bool(value)) => Some(value),
            _ if self.is_zero_value() => Some(false),
            _ => self.report_expected("true or false"),
        }
    }

    /// Decodes a whole number within `range`.
    pub fn integer<T>(self, range: RangeInclusive<T>) -> Option<T>
    where
        T: Copy + Display + PartialOrd + TryFrom<i128>,
    {
        let value = match self.resolved_scalar() {
            Some(ResolvedScalar::Integer(value)) => T::try_from(value).ok(),
            _ if self.is_zero_value() => T::try_from(0).ok(),
            _ => None,
        };
        match value.filter(|value| range.contains(value)) {
            Some(value) => Some(value),
            None => self.report_expected(&format!(
                "a whole number from {} to {}",
                range.start(),
                range.end()
            )),
        }
    }

    /// Decodes a mapping with `read`.
    pub fn object<T>(self, read: impl FnOnce(&mut MappingDecoder<'_>) -> T) -> Option<T> {
        let entries: &[MappingEntry] = match &self.node.content {
            Content::Mapping(entries) => entries,
            Content::Scalar(_) if self.is_zero_value() => &[],
            Content::Scalar(_) | Content::Sequence(_) => {
                return self.report_expected_collection("a mapping");
            }
        };
        let Self {
            node,
            path,
            diagnostics,
            strictness,
        } = self;
        let mut fields = MappingDecoder {
            node,
            entries,
            path,
            known_fields: Vec::new(),
            diagnostics,
            strictness,
        };
        let value = read(&mut fields);
        fields.finish();
        Some(value)
    }

    /// Decodes a list, each item with `read`. Items for which `read` yields `None` are left out.
    pub fn list<T>(self, mut read: impl FnMut(ValueDecoder<'_>) -> Option<T>) -> Option<Vec<T>> {
        let items: &[Node] = match &self.node.content {
            Content::Sequence(items) => items,
            Content::Scalar(_) if self.is_zero_value() => &[],
            Content::Mapping(_) | Content::Scalar(_) => {
                return self.report_expected_collection("a list");
            }
        };
        let Self {
            path,
            diagnostics,
            strictness,
            ..
        } = self;
        let read_one = |(n, node)| {
            let path = format!("{path}[{n}]");
            read(ValueDecoder {
                node,
                path,
                diagnostics: &mut *diagnostics,
                strictness,
            })
        };
        Some(items.iter().enumerate().filter_map(read_one).collect())
    }

    /// Decodes a mapping with arbitrary keys, in the written order. The last of duplicate keys is
    /// kept. Values for which `read` yields `None` are left out.
    pub fn map<T>(
        self,
        mut read: impl FnMut(ValueDecoder<'_>) -> Option<T>,
    ) -> Option<Vec<(String, T)>> {
        let entries: &[MappingEntry] = match &self.node.content {
            Content::Mapping(entries) => entries,
            Content::Scalar(_) if self.is_zero_value() => &[],
            Content::Scalar(_) | Content::Sequence(_) => {
                return self.report_expected_collection("a mapping");
            }
        };
        let Self {
            path,
            diagnostics,
            strictness,
            ..
        } = self;
        let mut seen = HashSet::new();
        let mut values = Vec::new();
        for MappingEntry {
            name,
            location,
            value: node,
        } in entries.iter().rev()
        {
            let path = format!("{path}[{name}]");
            if seen.insert(name) {
                let value = ValueDecoder {
                    node,
                    path,
                    diagnostics: &mut *diagnostics,
                    strictness,
                };
                values.extend(read(value).map(|value| (name.clone(), value)));
            } else if let Some(severity) = strictness.severity() {
                let message = format!("{GIVEN_TWICE}; the last one counts");
                diagnostics.push(Diagnostic {
                    location: location.clone(),
                    severity,
                    field: path,
                    message,
                });
            }
        }
        values.reverse();
        Some(values)
    }

    /// Reports that the value should have been `what`, without quoting the value.
    fn report_expected_collection<T>(self, what: &str) -> Option<T> {
        let message = format!("expected {what}, got {}", self.node.kind());
        self.diagnostics
            .report_error(&self.node.location, &self.path, message);
        None
    }

    /// Reports that the value should have been `what`, and quotes the value. Not for secrets.
    pub fn report_expected<T>(self, what: &str) -> Option<T> {
        let message = format!("expected {what}, got {}", self.node.describe());
        self.diagnostics
            .report_error(&self.node.location, &self.path, message);
        None
    }

    fn resolved_scalar(&self) -> Option<ResolvedScalar> {
        match &self.node.content {
            Content::Scalar(scalar) => Some(scalar.value),
            Content::Mapping(_) | Content::Sequence(_) => None,
        }
    }

    /// Whether the value is a null that Go decodes as the zero value.
    fn is_zero_value(&self) -> bool {
        self.strictness != Strictness::Strict && self.node.is_null()
    }
}
