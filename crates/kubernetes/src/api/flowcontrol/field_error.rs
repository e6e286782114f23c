//! Errors of fields, in the words of `k8s.io/apimachinery/pkg/util/validation/field` (Kubernetes
//! 1.36).

use std::fmt;

use crate::encoding::go_text;

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

/// A list of errors under construction. Values are passed as messages print them: see [`go_text`].
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
        let allowed: Vec<String> = allowed
            .iter()
            .map(|text| go_text::quote(text.as_bytes()))
            .collect();
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
            self.invalid(field.to_owned(), go_text::quote(value.as_bytes()), detail);
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

#[cfg(test)]
mod tests {
    use super::FieldErrors;
    use crate::encoding::go_text;

    #[test]
    fn messages_omit_empty_parts() {
        let mut errors = FieldErrors::default();
        errors.required("a.b".to_owned(), "");
        errors.required("c".to_owned(), "say it");
        errors.forbidden("d".to_owned(), "not here");
        errors.duplicate("e".to_owned(), go_text::quote(b"x"));
        errors.not_supported("f".to_owned(), go_text::quote(b"x"), &["a", "b"]);
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
}
