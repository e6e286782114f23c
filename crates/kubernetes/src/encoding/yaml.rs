//! YAML in block style, as people write manifests. Pure.

use serde_json::Value;

use super::printable;

/// The longest line of a comment in characters, if its words are not longer.
const MAX_COMMENT: usize = 100;

/// Lines as comments. Long ones are continued on the next line, indented as they begin. What is not
/// printable is escaped, so that nothing of a line is outside of its comment.
#[must_use]
pub fn comment(lines: &[String]) -> String {
    let mut text = String::new();
    for line in lines {
        let line = printable::escape(line);
        let words = line.trim_start();
        let indent = " ".repeat(line.len() - words.len());
        let mut length = 0;
        for word in words.split(' ') {
            let more = word.chars().count() + 1;
            if length > 0 && length + more > MAX_COMMENT {
                text.push('\n');
                length = 0;
            }
            if length == 0 {
                text.push_str(&format!("# {indent}{word}"));
                length = indent.len() + more + 1;
            } else {
                text.push_str(&format!(" {word}"));
                length += more;
            }
        }
        text.push('\n');
    }
    text
}

/// Writes a value in block style, at this indentation, at the begin of a line. The recursion ends
/// with the nesting of the value.
pub fn write_value(value: &Value, indentation: usize, text: &mut String) {
    let indent = " ".repeat(indentation);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                text.push_str(&format!("{indent}{}:", scalar(&Value::from(key.as_str()))));
                write_nested(value, indentation, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                text.push_str(&format!("{indent}-"));
                write_nested(item, indentation, text);
            }
        }
        Value::Object(_)
        | Value::Array(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_) => text.push_str(&format!("{indent}{}\n", scalar(value))),
    }
}

/// Writes the value of a key or an item: on the same line if it is a scalar or empty.
fn write_nested(value: &Value, indentation: usize, text: &mut String) {
    let is_nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    };
    if is_nested {
        text.push('\n');
        write_value(value, indentation + 2, text);
    } else {
        text.push_str(&format!(" {}\n", scalar(value)));
    }
}

/// A scalar or an empty collection. Text that is more than a plain word is quoted as in JSON, which
/// YAML reads alike, and what is not printable is escaped.
fn scalar(value: &Value) -> String {
    match value.as_str().filter(|text| is_plain_word(text)) {
        Some(plain) => plain.to_owned(),
        None => printable::escape_yaml(&value.to_string()).into_owned(),
    }
}

/// Whether YAML reads the text as this text without quotes.
fn is_plain_word(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/' | '_');
    let reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(is_word)
        && !reserved.contains(&text.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn comments_are_wrapped_and_hold_all_of_their_lines() {
        let long = format!("  {}", "word ".repeat(40).trim_end());
        let text = comment(&["short".to_owned(), long, "a\nb: c".to_owned()]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "# short");
        assert_eq!(lines.last(), Some(&"# a\\nb: c"));
        let wrapped = &lines[1..lines.len() - 1];
        assert!(wrapped.len() > 1, "{text}");
        for line in wrapped {
            assert!(line.starts_with("#   word"), "{text}");
            assert!(line.chars().count() <= MAX_COMMENT, "{text}");
        }
    }

    #[test]
    fn text_that_yaml_would_read_otherwise_is_quoted() {
        for (text, written) in [
            ("workload-low", "workload-low"),
            ("system:nodes", "\"system:nodes\""),
            ("*", "\"*\""),
            ("", "\"\""),
            ("No", "\"No\""),
            ("1", "\"1\""),
            ("1e3", "\"1e3\""),
            ("a b", "\"a b\""),
            ("a\n- b", "\"a\\n- b\""),
            ("\u{85}\u{2028}", r#""\u0085\u2028""#),
            ("\u{e0001}\u{1f600}", "\"\\U000e0001\u{1f600}\""),
        ] {
            assert_eq!(scalar(&json!(text)), written);
        }
    }

    #[test]
    fn names_stay_in_their_scalars_and_comments() {
        for name in printable::HOSTILE_NAMES {
            let value = json!({ name: name, "list": [name, {"nested": name}] });
            let mut text = comment(&[format!("of {name}"), name.to_owned()]);
            write_value(&value, 0, &mut text);
            let is_plain = |c: char| c == '\n' || printable::is_printable(c);
            assert!(text.chars().all(is_plain), "{text:?}");
            let of_value = text.lines().filter(|line| !line.starts_with("# "));
            assert_eq!(of_value.count(), 5, "{text}");
        }
    }

    #[test]
    fn collections_are_written_in_block_style() {
        let mut text = String::new();
        write_value(
            &json!({"a": [], "b": {}, "c": [1, {"d": null}]}),
            0,
            &mut text,
        );
        assert_eq!(text, "a: []\nb: {}\nc:\n  - 1\n  -\n    d: null\n");
    }
}
