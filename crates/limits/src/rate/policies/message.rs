//! The message of a policy: a text with fields of the request, as `{user}`. Pure.

use std::fmt::Write as _;

use super::request::{PolicyRequest, RequestField};
use weir_kubernetes::encoding::printable::escape;

/// The longest template in bytes.
const MAX_TEMPLATE_BYTES: usize = 512;

/// The most bytes of a field's value: a header may have a million.
const MAX_VALUE_BYTES: usize = 128;

/// A message with fields of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MessageTemplate(Vec<MessagePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum MessagePart {
    Text(String),
    Field(RequestField),
}

impl MessageTemplate {
    /// Parses a template. `{{` and `}}` are braces.
    ///
    /// # Errors
    /// What is wrong, and what would be right.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_TEMPLATE_BYTES {
            return Err(format!(
                "a message has at most {MAX_TEMPLATE_BYTES} bytes, this one has {}",
                text.len()
            ));
        }
        if text.chars().any(char::is_control) {
            return Err("a message is one line without control characters".to_owned());
        }
        let (mut parts, mut plain, mut rest) = (Vec::new(), String::new(), text);
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from) = rest.split_at(at);
            plain.push_str(before);
            if let Some(after) = from.strip_prefix("{{") {
                plain.push('{');
                rest = after;
            } else if let Some(after) = from.strip_prefix("}}") {
                plain.push('}');
                rest = after;
            } else if let Some((name, after)) =
                from.strip_prefix('{').and_then(|from| from.split_once('}'))
            {
                parts.push(MessagePart::Text(std::mem::take(&mut plain)));
                parts.push(MessagePart::Field(RequestField::from_name(name)?));
                rest = after;
            } else {
                return Err(
                    "a brace without its other one; {{ and }} are braces of the text".to_owned(),
                );
            }
        }
        plain.push_str(rest);
        parts.push(MessagePart::Text(plain));
        parts.retain(|part| *part != MessagePart::Text(String::new()));
        Ok(Self(parts))
    }

    /// The message about a request. `None` if the template is empty.
    pub(super) fn render(&self, request: &PolicyRequest<'_>) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        let mut message = String::new();
        for part in &self.0 {
            match part {
                MessagePart::Text(text) => message.push_str(text),
                MessagePart::Field(field) => {
                    let value = field.value(request);
                    let is_long = value.len() > MAX_VALUE_BYTES;
                    let value = value.get(..MAX_VALUE_BYTES).unwrap_or(&value);
                    let value = String::from_utf8_lossy(value);
                    let end = if is_long { "…" } else { "" };
                    let _ = write!(message, "{}{end}", escape(&value));
                }
            }
        }
        Some(message)
    }
}
