//! The grammar of label selectors.
//!
//! Follows `labels.Parse` (Kubernetes 1.36, `apimachinery/pkg/labels/selector.go`) with the checks
//! of `NewRequirement`. Only the validity of a selector matters here, not what it selects.

/// Maximum length of the prefix of a key, in bytes (`DNS1123SubdomainMaxLength`).
const MAX_PREFIX_LENGTH: usize = 253;
/// Maximum length of the name of a key, and of a value, in bytes.
const MAX_NAME_LENGTH: usize = 63;

/// Whether kube-apiserver accepts `text` as a selector. The empty selector is valid.
pub(super) fn is_valid(text: &[u8]) -> bool {
    let mut parser = SelectorParser::new(text);
    parser.current == SelectorToken::End || parser.parse_requirements().is_some()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectorToken<'a> {
    CloseParenthesis,
    Comma,
    /// `>` or `<`.
    Compare,
    End,
    /// `=`, `==` or `!=`.
    Equality,
    Not,
    OpenParenthesis,
    /// A key, a value, or `in` and `notin`, which may be keys or values too.
    Identifier(&'a [u8]),
}

/// Methods return `None` if the text is not a selector.
struct SelectorParser<'a> {
    /// The text after `current`.
    rest: &'a [u8],
    current: SelectorToken<'a>,
}

impl<'a> SelectorParser<'a> {
    fn new(text: &'a [u8]) -> Self {
        let mut parser = Self {
            rest: text,
            current: SelectorToken::End,
        };
        parser.advance();
        parser
    }

    /// Takes the current token.
    fn advance(&mut self) -> SelectorToken<'a> {
        let next = self.lex();
        std::mem::replace(&mut self.current, next)
    }

    fn lex(&mut self) -> SelectorToken<'a> {
        let non_space = |b: &u8| !matches!(b, b' ' | b'\t' | b'\r' | b'\n');
        let start = self
            .rest
            .iter()
            .position(non_space)
            .unwrap_or(self.rest.len());
        let text = self.rest.get(start..).unwrap_or_default();
        let (token, length) = match text {
            // Go's scanner reads a NUL at the end of the text, and so takes any NUL for the end.
            [] | [0, ..] => return SelectorToken::End,
            [b'=', b'=', ..] | [b'!', b'=', ..] => (SelectorToken::Equality, 2),
            [b'=', ..] => (SelectorToken::Equality, 1),
            [b'!', ..] => (SelectorToken::Not, 1),
            [b'(', ..] => (SelectorToken::OpenParenthesis, 1),
            [b')', ..] => (SelectorToken::CloseParenthesis, 1),
            [b',', ..] => (SelectorToken::Comma, 1),
            [b'>' | b'<', ..] => (SelectorToken::Compare, 1),
            _ => {
                let length = text.iter().position(ends_identifier).unwrap_or(text.len());
                (
                    SelectorToken::Identifier(text.get(..length).unwrap_or_default()),
                    length,
                )
            }
        };
        self.rest = text.get(length..).unwrap_or_default();
        // The same, but here it only ends the token and is consumed.
        self.rest = self.rest.strip_prefix(b"\0").unwrap_or(self.rest);
        token
    }

    fn parse_requirements(&mut self) -> Option<()> {
        loop {
            self.parse_requirement()?;
            let separator = self.advance();
            if separator == SelectorToken::End {
                return Some(());
            }
            (separator == SelectorToken::Comma).then_some(())?;
        }
    }

    fn parse_requirement(&mut self) -> Option<()> {
        let negated = self.current == SelectorToken::Not;
        if negated {
            self.advance();
        }
        self.parse_identifier()
            .filter(|key| is_qualified_name(key))?;
        if negated || matches!(self.current, SelectorToken::Comma | SelectorToken::End) {
            return Some(());
        }
        let operator = self.advance();
        if let SelectorToken::Identifier(b"in" | b"notin") = operator {
            self.parse_values()
        } else if operator == SelectorToken::Equality {
            self.parse_exact_value()
                .filter(|value| is_value(value))
                .map(drop)
        } else if operator == SelectorToken::Compare {
            self.parse_exact_value()
                .filter(|value| is_number(value))
                .map(drop)
        } else {
            None
        }
    }

    fn parse_identifier(&mut self) -> Option<&'a [u8]> {
        if let SelectorToken::Identifier(identifier) = self.advance() {
            Some(identifier)
        } else {
            None
        }
    }

    /// The value after an operator; it may be empty.
    fn parse_exact_value(&mut self) -> Option<&'a [u8]> {
        if matches!(self.current, SelectorToken::Comma | SelectorToken::End) {
            Some(b"")
        } else {
            self.parse_identifier()
        }
    }

    /// Values between parentheses. Each may be empty; but of two commas in a row Go takes the
    /// second without looking at what follows, so that `(a,,b)` is valid and `(a,,)` is not.
    fn parse_values(&mut self) -> Option<()> {
        (self.advance() == SelectorToken::OpenParenthesis).then_some(())?;
        while self.current != SelectorToken::CloseParenthesis {
            let token = self.advance();
            let fine = if let SelectorToken::Identifier(value) = token {
                is_value(value)
                    && matches!(
                        self.current,
                        SelectorToken::CloseParenthesis | SelectorToken::Comma
                    )
            } else if token == SelectorToken::Comma && self.current == SelectorToken::Comma {
                self.advance();
                matches!(
                    self.current,
                    SelectorToken::Comma | SelectorToken::Identifier(_)
                )
            } else {
                token == SelectorToken::Comma
            };
            fine.then_some(())?;
        }
        self.advance();
        Some(())
    }
}

const fn ends_identifier(byte: &u8) -> bool {
    matches!(
        byte,
        0 | b' ' | b'\t' | b'\r' | b'\n' | b'=' | b'!' | b'(' | b')' | b',' | b'>' | b'<'
    )
}

/// `IsQualifiedName`: `[prefix/]name`.
fn is_qualified_name(key: &[u8]) -> bool {
    let mut parts = key.split(|&b| b == b'/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => is_name(name),
        (Some(prefix), Some(name), None) => is_subdomain(prefix) && is_name(name),
        _ => false,
    }
}

fn is_subdomain(prefix: &[u8]) -> bool {
    let is_alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let is_label = |label: &[u8]| {
        label.first().is_some_and(is_alphanumeric)
            && label.last().is_some_and(is_alphanumeric)
            && label.iter().all(|b| is_alphanumeric(b) || *b == b'-')
    };
    prefix.len() <= MAX_PREFIX_LENGTH && prefix.split(|&b| b == b'.').all(is_label)
}

fn is_name(name: &[u8]) -> bool {
    name.len() <= MAX_NAME_LENGTH
        && name.first().is_some_and(u8::is_ascii_alphanumeric)
        && name.last().is_some_and(u8::is_ascii_alphanumeric)
        && name
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// `IsValidLabelValue`.
fn is_value(value: &[u8]) -> bool {
    value.is_empty() || is_name(value)
}

/// A 64-bit integer that is also a valid value, and so has no sign.
fn is_number(value: &[u8]) -> bool {
    is_value(value) && str::from_utf8(value).is_ok_and(|digits| digits.parse::<i64>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_selectors_are_accepted() {
        let selectors = [
            "",
            " \t\r\n",
            "a",
            "!a",
            "! a",
            "a,b",
            "a,!b , c",
            "a=",
            "a=,b",
            "a=b",
            "a == b",
            "a!=b",
            "a in (b)",
            "a notin (b,c)",
            "a in ()",
            "a in (,)",
            "a in (,a)",
            "a in (a,)",
            "a in (a,,b)",
            "a in (,,,)",
            "a in (b),c",
            "in",
            "notin",
            "in in (in,notin)",
            "in=in",
            "a>1",
            "a < 0",
            "a>9223372036854775807",
            "example.com/a=b",
            "a.b-c/d_E.f",
            "A=B-_.9",
            "a=b\t,\nc",
            "!in",
            "a in(b)",
            "x in\n(y)",
            "\0anything=(",
            "a\0",
            "a\0,b",
            "a=\0b",
            "a in (\0)",
        ];
        for selector in selectors {
            assert!(is_valid(selector.as_bytes()), "{selector:?}");
        }
    }

    #[test]
    fn invalid_selectors_are_rejected() {
        let faulty = [
            ",",
            "a,",
            ",a",
            "a b",
            "a=b c",
            "!",
            "!!a",
            "!a=b",
            "!a in (b)",
            "a in",
            "a in b",
            "a in (b",
            "a in (b c)",
            "a in (b=c)",
            "a in (a,,)",
            "a in (,,)",
            "a in b)",
            "a notin",
            "a=(b)",
            "a===b",
            "a=!b",
            "a!b",
            "a>",
            "a>b",
            "a>-1",
            "a>+1",
            "a<1.5",
            "a>9223372036854775808",
            "(a)",
            "-a",
            "a-",
            "_a",
            "a/b/c",
            "/a",
            "a/",
            "A.com/a",
            "a..b/c",
            "-a/b",
            "a-/b",
            "a=-b",
            "a=b-",
            "a=b/c",
            "a in (-b)",
            "\u{e9}",
            "a=\u{e9}",
            "a\0b",
            "a in ((b)",
            "a in (b))",
            "a in (b)c",
            "a,,b",
            "in (a)",
        ];
        for selector in faulty {
            assert!(!is_valid(selector.as_bytes()), "{selector:?}");
        }
    }

    #[test]
    fn lengths_are_limited() {
        let name = "x".repeat(MAX_NAME_LENGTH);
        let prefix = format!("{}x", "x.".repeat(MAX_PREFIX_LENGTH / 2));
        assert!(is_valid(format!("{prefix}/{name}={name}").as_bytes()));
        assert!(!is_valid(format!("{name}x").as_bytes()));
        assert!(!is_valid(format!("a={name}x").as_bytes()));
        assert!(!is_valid(format!("{prefix}x/a").as_bytes()));
        assert!(is_valid(
            format!("a>{}1", "0".repeat(MAX_NAME_LENGTH - 1)).as_bytes()
        ));
        assert!(!is_valid(
            format!("a>{}1", "0".repeat(MAX_NAME_LENGTH)).as_bytes()
        ));
    }
}
