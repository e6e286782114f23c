//! The query of a list, as far as its RequestInfo depends on it.
//!
//! `RequestInfoFactory.NewRequestInfo` (Kubernetes 1.36) decodes the whole of
//! `metainternalversion.ListOptions` to find out whether a list is a watch and which name it
//! selects. If one option does not decode, it ignores all of them. The other options cannot fail to
//! decode and are not read.

pub(super) mod field_selector;
mod label_selector;

use std::borrow::Cow;

use super::path::ByteSpan;
use super::query::Query;

/// The first value of each option, not yet parsed as a number or selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListOptions<'a> {
    pub(super) field_selector: Option<Cow<'a, [u8]>>,
    pub(super) label_selector: Option<Cow<'a, [u8]>>,
    limit: Option<Cow<'a, [u8]>>,
    timeout_seconds: Option<Cow<'a, [u8]>>,
    watch: Option<Cow<'a, [u8]>>,
}

/// The position in a field selector of the name that it requires, still escaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SelectorNameSpan(pub(super) ByteSpan);

/// One of the options is malformed, so kube-apiserver ignores all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidListOptions;

impl<'a> ListOptions<'a> {
    /// Reads the query in one pass.
    pub(super) fn read(query: Query<'a>) -> Self {
        let mut options = Self::default();
        for pair in query.pairs() {
            let option = match pair.key().as_deref() {
                Some(b"fieldSelector") => &mut options.field_selector,
                Some(b"labelSelector") => &mut options.label_selector,
                Some(b"limit") => &mut options.limit,
                Some(b"timeoutSeconds") => &mut options.timeout_seconds,
                Some(b"watch") => &mut options.watch,
                _ => continue,
            };
            if option.is_none() {
                *option = pair.value();
            }
        }
        options
    }

    /// Whether the query requests a watch, and the name that the field selector requires.
    pub(super) fn decode(&self) -> (bool, Option<SelectorNameSpan>) {
        match self.exact_match(b"metadata.name") {
            Ok(name) => (
                self.watch.as_deref().is_some_and(is_true),
                name.map(SelectorNameSpan),
            ),
            Err(InvalidListOptions) => {
                (self.watch.as_deref().is_some_and(is_true_lower_cased), None)
            }
        }
    }

    /// The position in the field selector of the value that it requires of `field`.
    pub(super) fn exact_match(&self, field: &[u8]) -> Result<Option<ByteSpan>, InvalidListOptions> {
        let integers = [&self.limit, &self.timeout_seconds];
        let decodable = integers
            .into_iter()
            .flatten()
            .all(|value| is_integer(value))
            && self
                .label_selector
                .as_deref()
                .is_none_or(label_selector::is_valid);
        if !decodable {
            return Err(InvalidListOptions);
        }
        let selector = self.field_selector.as_deref().unwrap_or_default();
        field_selector::exact_match(selector, field).map_err(|_| InvalidListOptions)
    }
}

/// Whether `strconv.ParseInt(…, 10, 64)` succeeds.
fn is_integer(value: &[u8]) -> bool {
    str::from_utf8(value).is_ok_and(|digits| digits.parse::<i64>().is_ok())
}

/// `Convert_Slice_string_To_bool`: true except for `0` and values that fold to `false`. In
/// Unicode's folding `ſ` is an `s`.
fn is_true(value: &[u8]) -> bool {
    is_true_lower_cased(value)
        && !matches!(value, [f @ .., 0xC5, 0xBF, e] if f.eq_ignore_ascii_case(b"fal") && e.eq_ignore_ascii_case(&b'e'))
}

/// True except for `0` and values that are `false` in lower case.
pub(super) fn is_true_lower_cased(value: &[u8]) -> bool {
    value != b"0" && !value.eq_ignore_ascii_case(b"false")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(query: &str) -> (bool, Option<String>) {
        let options = ListOptions::read(Query::new(query.as_bytes()));
        let (watch, name) = options.decode();
        let selector = options.field_selector.as_deref().unwrap_or_default();
        let name =
            name.map(|SelectorNameSpan(span)| String::from_utf8(span.slice(selector).to_vec()));
        (watch, name.map(Result::unwrap))
    }

    #[test]
    fn only_zero_and_false_disable_a_watch() {
        for no in [
            "",
            "watch=0",
            "watch=false",
            "watch=FaLsE",
            "watch=fal%C5%BFE",
            "watch=0&watch=1",
        ] {
            assert!(!decode(no).0, "{no}");
        }
        for yes in [
            "watch",
            "watch=",
            "watch=1",
            "watch=no",
            "watch=00",
            "watch=false+",
            "w%61tch=1",
        ] {
            assert!(decode(yes).0, "{yes}");
        }
    }

    #[test]
    fn an_option_that_does_not_decode_hides_the_name_and_not_the_watch() {
        let faults = [
            "limit=",
            "limit=abc",
            "limit=1e3",
            "limit=9223372036854775808",
            "timeoutSeconds=1.5",
            "limit=%2B",
            "labelSelector=a+b",
            "limit=1_0",
            "limit=+1",
            "limit=%FF",
        ];
        for fault in faults {
            let query = format!("watch=1&fieldSelector=metadata.name%3Da&{fault}");
            assert_eq!(decode(&query), (true, None), "{fault}");
        }
        assert_eq!(
            decode("watch=1&fieldSelector=metadata.name%3Da,b"),
            (true, None)
        );
        assert_eq!(
            decode("watch=fal%C5%BFe&limit=x"),
            (true, None),
            "here nothing is folded"
        );
        assert_eq!(decode("watch=False&limit=x"), (false, None));
    }

    #[test]
    fn options_that_decode_keep_the_name() {
        let fine = [
            "limit=-5",
            "limit=%2B5",
            "limit=0500",
            "timeoutSeconds=9223372036854775807",
            "limit=5&limit=x",
            "limit=%zz",
            "limit=a;b",
            "labelSelector=a+in+(b)",
            "labelSelector",
            "allowWatchBookmarks=maybe",
            "sendInitialEvents=",
            "resourceVersion=x&continue=%00",
            "Limit=x",
        ];
        for query in fine {
            let query = format!("{query}&fieldSelector=metadata.name%3Da");
            assert_eq!(decode(&query), (false, Some("a".to_owned())), "{query}");
        }
    }
}
