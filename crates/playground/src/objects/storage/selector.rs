//! Label and field selectors: parsed and matched as by `apimachinery`'s `labels.Parse` and
//! `fields.ParseSelector`.
//!
//! Field selectors accept only the fields that kube-apiserver supports for the kind; any other
//! field is an error, not an empty result.

use crate::objects::resources::ObjectKind;
use crate::objects::storage::object::StoredObject;

/// The selectors of a list, a watch or the deletion of a collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    operator: Operator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Operator {
    Exists,
    In(Vec<String>),
    DoesNotExist,
    NotIn(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    equal: bool,
    value: String,
}

impl Selection {
    /// Parses both selectors. The error is the message of a 400.
    pub(crate) fn parse(
        kind: ObjectKind,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Result<Self, String> {
        let labels = parse_label_requirements(labels.unwrap_or_default())?;
        let fields = parse_field_requirements(fields.unwrap_or_default())?;
        if let Some(unknown) = fields.iter().find(|f| !is_selectable(kind, &f.field)) {
            return Err(format!("field label not supported: {}", unknown.field));
        }
        Ok(Self { labels, fields })
    }

    /// Restricts the selection to one name, as for a watch of a single object.
    pub(crate) fn with_name(mut self, name: &str) -> Self {
        self.fields.push(FieldRequirement {
            field: "metadata.name".to_owned(),
            equal: true,
            value: name.to_owned(),
        });
        self
    }

    /// Whether the selection matches every object.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &StoredObject) -> bool {
        self.labels.iter().all(|r| r.matches(object))
            && self.fields.iter().all(|r| r.matches(object))
    }
}

impl LabelRequirement {
    fn matches(&self, object: &StoredObject) -> bool {
        let value = object.label(&self.key);
        match &self.operator {
            Operator::Exists => value.is_some(),
            Operator::In(values) => value.is_some_and(|v| values.iter().any(|w| w == v)),
            Operator::DoesNotExist => value.is_none(),
            // An absent label differs from every value, as upstream.
            Operator::NotIn(values) => value.is_none_or(|v| values.iter().all(|w| w != v)),
        }
    }
}

impl FieldRequirement {
    fn matches(&self, object: &StoredObject) -> bool {
        (object.field(&self.field) == self.value) == self.equal
    }
}

fn is_selectable(kind: ObjectKind, field: &str) -> bool {
    matches!(field, "metadata.name" | "metadata.namespace")
        || kind.selectable_fields().contains(&field)
}

/// `a=b,c!=d,e in (f,g),!h`: commas in parentheses do not separate.
fn parse_label_requirements(text: &str) -> Result<Vec<LabelRequirement>, String> {
    let mut depth = 0_u32;
    let mut parts = vec![String::new()];
    for character in text.chars() {
        match character {
            '(' => depth = depth.saturating_add(1),
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
        .iter()
        .map(|part| part.trim())
        .filter(|part| !part.is_empty())
        .map(parse_label_requirement)
        .collect()
}

fn parse_label_requirement(text: &str) -> Result<LabelRequirement, String> {
    if let Some(key) = text.strip_prefix('!') {
        return new_label_requirement(key, Operator::DoesNotExist);
    }
    if let Some((key, value)) = text.split_once("!=") {
        return new_label_requirement(key, Operator::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = text.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return new_label_requirement(key, Operator::In(vec![value.trim().to_owned()]));
    }
    if let Some((head, values)) = text.split_once('(') {
        let values = values
            .strip_suffix(')')
            .ok_or_else(|| parse_error(text))?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        return match head.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => new_label_requirement(key, Operator::In(values)),
            Some((key, "notin")) => new_label_requirement(key, Operator::NotIn(values)),
            Some(_) | None => Err(parse_error(text)),
        };
    }
    new_label_requirement(text, Operator::Exists)
}

fn new_label_requirement(key: &str, operator: Operator) -> Result<LabelRequirement, String> {
    let key = key.trim();
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if key.is_empty() || !key.chars().all(legal) {
        return Err(parse_error(key));
    }
    Ok(LabelRequirement {
        key: key.to_owned(),
        operator,
    })
}

fn parse_error(text: &str) -> String {
    format!("unable to parse requirement: {text:?}")
}

/// `a=b,c!=d`, with `\` before `\`, `,` and `=` in values.
fn parse_field_requirements(text: &str) -> Result<Vec<FieldRequirement>, String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for character in text.chars() {
        if character == ',' && !escaped {
            parts.push(String::new());
            continue;
        }
        escaped = character == '\\' && !escaped;
        if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
        .iter()
        .filter(|part| !part.is_empty())
        .map(|part| parse_field_requirement(part))
        .collect()
}

fn parse_field_requirement(text: &str) -> Result<FieldRequirement, String> {
    let (field, equal, value) = if let Some((field, value)) = text.split_once("!=") {
        (field, false, value)
    } else if let Some((field, value)) = text.split_once('=') {
        (field, true, value.strip_prefix('=').unwrap_or(value))
    } else {
        return Err(format!(
            "invalid selector: '{text}'; can't understand '{text}'"
        ));
    };
    Ok(FieldRequirement {
        field: field.trim().to_owned(),
        equal,
        value: unescape(value.trim()),
    })
}

fn unescape(text: &str) -> String {
    let mut characters = text.chars();
    let mut out = String::with_capacity(text.len());
    while let Some(character) = characters.next() {
        match character {
            '\\' => out.extend(characters.next()),
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::Selection;
    use crate::objects::resources::ObjectKind;
    use crate::objects::storage::object::StoredObject;
    use serde_json::json;

    fn pod() -> StoredObject {
        let value = json!({
            "metadata": {"name": "web-1", "namespace": "team-a", "labels": {"app": "web", "tier": "1"}},
            "spec": {"nodeName": "node-1"},
            "status": {"phase": "Running"},
        });
        StoredObject::new(ObjectKind::Pod, value, 1).unwrap()
    }

    fn matches(labels: &str, fields: &str) -> bool {
        Selection::parse(ObjectKind::Pod, Some(labels), Some(fields))
            .unwrap()
            .matches(&pod())
    }

    #[test]
    fn label_selectors_match() {
        for selector in [
            "",
            "app=web",
            "app==web",
            "app",
            "!db",
            "app in (x, web)",
            "app notin (x,y),tier=1",
            "db notin (x)",
            "db!=x",
        ] {
            assert!(matches(selector, ""), "{selector}");
        }
        for selector in [
            "app=x",
            "db",
            "!app",
            "app!=web",
            "app in (x)",
            "app notin (web)",
            "app=web,tier=2",
        ] {
            assert!(!matches(selector, ""), "{selector}");
        }
    }

    #[test]
    fn field_selectors_match() {
        for selector in [
            "metadata.name=web-1",
            "spec.nodeName=node-1,status.phase!=Failed",
            "status.podIP=",
            "metadata.namespace==team-a",
        ] {
            assert!(matches("", selector), "{selector}");
        }
        assert!(!matches("", "spec.nodeName=node-2"));
        assert!(!matches("", r"metadata.name=web\,1"));
    }

    #[test]
    fn unknown_fields_and_broken_selectors_are_errors() {
        assert_eq!(
            Selection::parse(ObjectKind::Pod, None, Some("spec.hostname=x")),
            Err("field label not supported: spec.hostname".to_owned())
        );
        for broken in ["a in x,", "a in (x", "a b", "=x", "a has (x)"] {
            assert!(
                Selection::parse(ObjectKind::Pod, Some(broken), None).is_err(),
                "{broken}"
            );
        }
        assert!(Selection::parse(ObjectKind::Pod, None, Some("metadata.name")).is_err());
    }
}
