//! The formats of names, labels and annotations: `k8s.io/apimachinery/pkg/util/validation`
//! (Kubernetes 1.36).
//!
//! Each check returns the rules that a string breaks, in upstream's words; the list is empty if the
//! string is valid. Lengths are in bytes.

const DNS_LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED_NAME_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must \
                              start and end with an alphanumeric character";

/// Maximum lengths of a DNS label and subdomain; label values and the name part of keys have the
/// former too.
const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

/// Maximum length of the part of `generateName` that a generated name keeps, in bytes
/// (`maxGeneratedNameLength` of `k8s.io/apiserver/pkg/storage/names`).
const GENERATED_PREFIX_MAX: usize = 58;

/// Length of the suffix of a generated name and its alphabet (`k8s.io/apimachinery/pkg/util/rand`).
const GENERATED_SUFFIX_LENGTH: usize = 5;
const GENERATED_ALPHABET_SIZE: u64 = 27;
const GENERATED_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Generates a name with this prefix. Its suffix is a hash of the prefix and the number, where the
/// API server's is random, so that the same files give the same names at each start.
pub(super) fn generate_name(prefix: &str, number: u64) -> String {
    let prefix_length = prefix.floor_char_boundary(GENERATED_PREFIX_MAX);
    let mut name = prefix.get(..prefix_length).unwrap_or_default().to_owned();
    // FNV-1a, 64 bits.
    let bytes = prefix.bytes().chain(number.to_be_bytes());
    let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    for _ in 0..GENERATED_SUFFIX_LENGTH {
        let at = usize::try_from(hash % GENERATED_ALPHABET_SIZE).unwrap_or_default();
        hash /= GENERATED_ALPHABET_SIZE;
        name.extend(GENERATED_ALPHABET.get(at).map(|byte| char::from(*byte)));
    }
    name
}

/// The part of a `generateName` that is validated: a trailing `-` is allowed, because a suffix
/// follows (`MaskTrailingDash`).
pub(super) fn mask_trailing_dash(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(before) if !before.is_empty() => {
            let mut masked: String = before.to_owned();
            masked.pop();
            masked.push('a');
            masked
        }
        _ => prefix.to_owned(),
    }
}

/// Checks a DNS label, such as a namespace's name.
pub fn check_dns_label(text: &str) -> Vec<String> {
    let mut broken = check_length(text, LABEL_MAX);
    if is_dns_label(text) {
        return broken;
    }
    broken.push(if is_dns_subdomain(text) {
        "must not contain dots".to_owned()
    } else {
        let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric \
                    characters or '-', and must start and end with an alphanumeric character";
        format_rule(rule, DNS_LABEL_FORMAT, &["my-name", "123-abc"])
    });
    broken
}

/// Checks a DNS subdomain, such as the names of the objects here.
pub fn check_dns_subdomain(text: &str) -> Vec<String> {
    let mut broken = check_length(text, SUBDOMAIN_MAX);
    if !is_dns_subdomain(text) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric \
                    characters, '-' or '.', and must start and end with an alphanumeric character";
        let format = format!("{DNS_LABEL_FORMAT}(\\.{DNS_LABEL_FORMAT})*");
        broken.push(format_rule(rule, &format, &["example.com"]));
    }
    broken
}

/// Checks the key of a label, or a finalizer (`IsQualifiedName` is the same since 1.34). The key of
/// an annotation is checked in lower case.
pub(super) fn check_label_key(text: &str) -> Vec<String> {
    let rule = |start: &str| {
        let rule = format!("{start}{QUALIFIED_NAME_RULE}");
        format_rule(
            &rule,
            QUALIFIED_NAME_FORMAT,
            &["MyName", "my.name", "123-abc"],
        )
    };
    let (prefix, name) = match text.split_once('/') {
        Some((_, name)) if name.contains('/') => {
            let optional =
                " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![rule("a valid label key ") + optional];
        }
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let mut broken: Vec<String> = match prefix {
        Some("") => vec!["prefix part must be non-empty".to_owned()],
        Some(prefix) => check_dns_subdomain(prefix)
            .into_iter()
            .map(|rule| format!("prefix part {rule}"))
            .collect(),
        None => Vec::new(),
    };
    if name.is_empty() {
        broken.push("name part must be non-empty".to_owned());
    }
    broken.extend(
        check_length(name, LABEL_MAX)
            .into_iter()
            .map(|rule| format!("name part {rule}")),
    );
    if !is_qualified_name(name) {
        broken.push(rule("name part "));
    }
    broken
}

/// Checks the value of a label.
pub(super) fn check_label_value(text: &str) -> Vec<String> {
    let mut broken = check_length(text, LABEL_MAX);
    if !text.is_empty() && !is_qualified_name(text) {
        let rule = "a valid label must be an empty string or consist of alphanumeric characters, \
                    '-', '_' or '.', and must start and end with an alphanumeric character";
        let format = format!("({QUALIFIED_NAME_FORMAT})?");
        broken.push(format_rule(
            rule,
            &format,
            &["MyValue", "my_value", "12345"],
        ));
    }
    broken
}

fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || c == '-')
}

fn is_dns_subdomain(text: &str) -> bool {
    text.split('.').all(is_dns_label)
}

fn is_qualified_name(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || "-_.".contains(c))
}

fn check_length(text: &str, max: usize) -> Vec<String> {
    let long = text.len() > max;
    long.then(|| format!("must be no more than {max} characters"))
        .into_iter()
        .collect()
}

/// `validation.RegexError`. Upstream too writes two spaces after the comma before "or".
fn format_rule(rule: &str, format: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples
        .iter()
        .map(|example| format!("'{example}'"))
        .collect();
    let examples = examples.join(",  or ");
    format!("{rule} (e.g. {examples}, regex used for validation is '{format}')")
}

#[cfg(test)]
mod tests {
    use super::{check_dns_label, check_dns_subdomain, check_label_key, check_label_value};

    #[test]
    fn names_that_upstream_accepts_are_accepted() {
        for text in ["a", "0", "a-b", "a--b", &"x".repeat(63)] {
            assert_eq!(check_dns_label(text), [""; 0], "{text:?}");
        }
        for text in ["a.b", "0.0", "a-b.c", &"x".repeat(253)] {
            assert_eq!(check_dns_subdomain(text), [""; 0], "{text:?}");
        }
        for text in ["a", "A_b.c-d", "example.com/x", "0"] {
            assert_eq!(check_label_key(text), [""; 0], "{text:?}");
        }
        for text in ["", "a", "A_b.c-d"] {
            assert_eq!(check_label_value(text), [""; 0], "{text:?}");
        }
    }

    #[test]
    fn every_broken_rule_is_reported() {
        assert_eq!(check_dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            check_dns_label(&"x".repeat(64)),
            ["must be no more than 63 characters"]
        );
        assert_eq!(check_dns_label(&"X".repeat(64)).len(), 2);
        for text in ["", "-a", "a-", "A", "a_b", "é"] {
            assert_eq!(check_dns_label(text).len(), 1, "{text:?}");
        }
        for text in ["", ".", "a.", ".a", "a..b", "A.b", "-a.b"] {
            assert_eq!(check_dns_subdomain(text).len(), 1, "{text:?}");
        }
        assert_eq!(check_label_key("")[0], "name part must be non-empty");
        assert_eq!(check_label_key("").len(), 2);
        assert_eq!(check_label_key("/x"), ["prefix part must be non-empty"]);
        assert!(check_label_key("a/b/c")[0].starts_with("a valid label key must consist"));
        assert!(
            check_label_key("A!/b")[0].starts_with("prefix part a lowercase RFC 1123 subdomain")
        );
        assert_eq!(
            check_label_key(&"x".repeat(64)),
            ["name part must be no more than 63 characters"]
        );
        assert_eq!(check_label_value("-x").len(), 1);
        assert_eq!(
            check_label_value(&"x".repeat(64)),
            ["must be no more than 63 characters"]
        );
    }
}
