//! Errors of fields, in the words of `k8s.io/apimachinery/pkg/util/validation/field` (Kubernetes
//! 1.36).

use std::fmt;

/// The type of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorType {
    /// The value is already present.
    Duplicate,
    /// The field must not be set.
    Forbidden,
    /// The value breaks a rule.
    Invalid,
    /// The value is not one of the allowed values.
    NotSupported,
    /// The field must be set.
    Required,
    /// The value is too long.
    TooLong,
}

impl ErrorType {
    /// The reason, as in the `causes` of a Status.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Required => "FieldValueRequired",
            Self::TooLong => "FieldValueTooLong",
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Required => "Required value",
            Self::TooLong => "Too long",
        }
    }
}

/// One error of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// The type of the error.
    pub error_type: ErrorType,
    /// The path of the field, e.g. `spec.rules[0].verbs`.
    pub field: String,
    /// The value as messages print it, if they do.
    value: Option<String>,
    /// What a valid value looks like; may be empty.
    detail: String,
}

impl FieldError {
    /// The message without the field: type, value and detail.
    #[must_use]
    pub fn body(&self) -> String {
        let mut body = self.error_type.label().to_owned();
        for part in self
            .value
            .iter()
            .chain(Some(&self.detail).filter(|text| !text.is_empty()))
        {
            body.push_str(": ");
            body.push_str(part);
        }
        body
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// A list of errors under construction. Values are passed as messages print them: see [`go_quote`]
/// and [`go_json`].
#[derive(Default)]
pub(super) struct FieldErrors(Vec<FieldError>);

impl FieldErrors {
    pub(super) fn duplicate(&mut self, field: String, value: String) {
        self.add(ErrorType::Duplicate, field, Some(value), String::new());
    }

    pub(super) fn forbidden(&mut self, field: String, detail: impl Into<String>) {
        self.add(ErrorType::Forbidden, field, None, detail.into());
    }

    pub(super) fn invalid(&mut self, field: String, value: String, detail: impl Into<String>) {
        self.add(ErrorType::Invalid, field, Some(value), detail.into());
    }

    pub(super) fn not_supported(&mut self, field: String, value: String, allowed: &[&str]) {
        let allowed: Vec<String> = allowed.iter().map(|text| go_quote(text)).collect();
        let detail = format!("supported values: {}", allowed.join(", "));
        self.add(ErrorType::NotSupported, field, Some(value), detail);
    }

    pub(super) fn required(&mut self, field: String, detail: impl Into<String>) {
        self.add(ErrorType::Required, field, None, detail.into());
    }

    pub(super) fn too_long(&mut self, field: String, max: usize) {
        let detail = format!("may not be more than {max} bytes");
        self.add(ErrorType::TooLong, field, None, detail);
    }

    /// Adds an invalid string, once for each rule that it breaks.
    pub(super) fn invalid_string(&mut self, field: &str, value: &str, broken: Vec<String>) {
        for detail in broken {
            self.invalid(field.to_owned(), go_quote(value), detail);
        }
    }

    /// Adds an error about a whole struct or list, whose value would be too long to print.
    pub(super) fn invalid_whole(&mut self, field: String, detail: String) {
        self.add(ErrorType::Invalid, field, None, detail);
    }

    fn add(&mut self, error_type: ErrorType, field: String, value: Option<String>, detail: String) {
        self.0.push(FieldError {
            error_type,
            field,
            value,
            detail,
        });
    }

    pub(super) fn into_vec(self) -> Vec<FieldError> {
        self.0
    }
}

/// Quotes a string as Go's `%q` does.
pub(super) fn go_quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\'' => quoted.push(c),
            c if c.is_ascii_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if is_printable(c) => quoted.push(c),
            c if u32::from(c) <= 0xffff => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// `unicode.IsPrint`. The standard library has the same table behind `escape_debug`; a preceding
/// letter keeps it from escaping marks, which Go prints unchanged.
fn is_printable(c: char) -> bool {
    c.is_ascii() || String::from_iter(['a', c]).escape_debug().count() == 2
}

/// Formats any other value as Go prints it: as the JSON of its encoder, which escapes HTML
/// characters.
pub(super) fn go_json(value: &serde_json::Value) -> String {
    value
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::FieldErrors;

    #[test]
    fn messages_omit_empty_parts() {
        let mut errors = FieldErrors::default();
        errors.required("a.b".to_owned(), "");
        errors.required("c".to_owned(), "say it");
        errors.forbidden("d".to_owned(), "not here");
        errors.duplicate("e".to_owned(), super::go_quote("x"));
        errors.not_supported("f".to_owned(), super::go_quote("x"), &["a", "b"]);
        errors.too_long("g".to_owned(), 5);
        let lines: Vec<String> = errors.into_vec().iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "a.b: Required value",
                "c: Required value: say it",
                "d: Forbidden: not here",
                "e: Duplicate value: \"x\"",
                "f: Unsupported value: \"x\": supported values: \"a\", \"b\"",
                "g: Too long: may not be more than 5 bytes",
            ]
        );
    }

    #[test]
    fn values_are_quoted_as_in_go() {
        assert_eq!(
            super::go_quote("a'\"\\\n\u{1}é\u{200b}😀"),
            "\"a'\\\"\\\\\\n\\x01é\\u200b😀\""
        );
        assert_eq!(super::go_quote("cafe\u{301}"), "\"cafe\u{301}\"");
        assert_eq!(
            super::go_json(&json!(["a<b", "*"])),
            "[\"a\\u003cb\",\"*\"]"
        );
    }
}
