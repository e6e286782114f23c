//! The parameters of a query, parsed as by Go's `url.ParseQuery` (Go 1.27).
//!
//! Parameters are parsed on demand, and allocate only if decoding changes the text. Of a repeated
//! parameter Kubernetes uses the first value. What Go drops is dropped: a pair with a raw `;`, a
//! pair with a bad percent-escape, and all pairs if there are too many.

use std::borrow::Cow;

use crate::encoding::percent;
use crate::encoding::percent::PlusMode;

/// With more pairs Go reads none (`urlmaxqueryparams`). Without this limit a client could show weir
/// a parameter that kube-apiserver does not see.
const MAX_PAIRS: usize = 10_000;

/// A parameter's decoded name and value.
pub(super) type Parameter<'a> = (Cow<'a, [u8]>, Cow<'a, [u8]>);

/// The part of a request target after the `?`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query<'a> {
    raw: &'a [u8],
    /// The same text, or empty if it has too many pairs.
    accepted: &'a [u8],
}

impl<'a> Query<'a> {
    /// Returns the query with the text `raw`, without the `?`.
    #[must_use]
    pub fn new(raw: &'a [u8]) -> Self {
        let too_many =
            raw.len() >= MAX_PAIRS && raw.iter().filter(|&&b| b == b'&').count() >= MAX_PAIRS;
        let readable = if too_many { Default::default() } else { raw };
        Self {
            raw,
            accepted: readable,
        }
    }

    /// The text as received.
    #[must_use]
    pub const fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The first value of the parameter `key`; empty if it has no `=`.
    #[must_use]
    pub fn first(&self, key: &str) -> Option<Cow<'a, [u8]>> {
        self.all(key).next()
    }

    /// Every value of the parameter `key`, in order.
    pub fn all(&self, key: &str) -> impl Iterator<Item = Cow<'a, [u8]>> {
        self.pairs()
            .filter(move |pair| pair.key().is_some_and(|name| *name == *key.as_bytes()))
            .filter_map(|pair| pair.value())
    }

    /// Name and value of each parameter, in order; `None` for one that Go drops.
    pub fn parameters(&self) -> impl Iterator<Item = Option<Parameter<'a>>> {
        self.pairs().map(|pair| pair.key().zip(pair.value()))
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = QueryPair<'a>> + use<'a> {
        self.accepted
            .split(|&b| b == b'&')
            .filter(|pair| !pair.is_empty())
            .map(QueryPair)
    }
}

/// One `key=value`, still encoded and possibly malformed.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueryPair<'a>(&'a [u8]);

impl<'a> QueryPair<'a> {
    fn split(self) -> (&'a [u8], &'a [u8]) {
        let equals = self
            .0
            .iter()
            .position(|&b| b == b'=')
            .unwrap_or(self.0.len());
        let (key, value) = self.0.split_at(equals);
        (key, value.get(1..).unwrap_or_default())
    }

    /// The name; `None` if it is malformed, in which case the pair is dropped.
    pub(super) fn key(self) -> Option<Cow<'a, [u8]>> {
        percent::decode(self.split().0, PlusMode::Space)
    }

    /// The value; `None` if the pair is dropped.
    pub(super) fn value(self) -> Option<Cow<'a, [u8]>> {
        if self.0.contains(&b';') {
            return None;
        }
        percent::decode(self.split().1, PlusMode::Space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(query: &str, key: &str) -> Option<String> {
        let value = Query::new(query.as_bytes()).first(key)?;
        Some(String::from_utf8_lossy(&value).into_owned())
    }

    #[test]
    fn the_first_value_counts_and_may_be_empty() {
        assert_eq!(first("a=1&b=2&a=3", "a").as_deref(), Some("1"));
        assert_eq!(first("&&b&a", "a").as_deref(), Some(""));
        assert_eq!(first("a=", "a").as_deref(), Some(""));
        assert_eq!(first("=x", "").as_deref(), Some("x"));
        assert_eq!(first("b=1", "a"), None);
        assert_eq!(first("", ""), None);
    }

    #[test]
    fn names_and_values_are_decoded() {
        assert_eq!(first("%61=b+%2B%3D=", "a").as_deref(), Some("b +=="));
        assert_eq!(first("a+b=1", "a b").as_deref(), Some("1"));
    }

    #[test]
    fn malformed_pairs_are_dropped_one_by_one() {
        assert_eq!(first("a=1;b=2&a=3", "a").as_deref(), Some("3"));
        assert_eq!(first("a=%zz&a=3", "a").as_deref(), Some("3"));
        assert_eq!(first("a%=1&a=3", "a").as_deref(), Some("3"));
        assert_eq!(first("a=1%3B2", "a").as_deref(), Some("1;2"));
    }

    #[test]
    fn nothing_is_allocated_for_a_plain_value() {
        assert!(matches!(
            Query::new(b"limit=500").first("limit"),
            Some(Cow::Borrowed(b"500"))
        ));
    }

    #[test]
    fn a_query_with_too_many_pairs_has_none() {
        let at_most = format!("watch=1{}", "&a".repeat(MAX_PAIRS - 1));
        assert_eq!(first(&at_most, "watch").as_deref(), Some("1"));
        let one_more = format!("{at_most}&");
        assert_eq!(first(&one_more, "watch"), None);
        assert_eq!(Query::new(one_more.as_bytes()).raw(), one_more.as_bytes());
    }

    #[test]
    fn all_values_come_in_order() {
        let query = Query::new(b"dryRun=All&x&dryRun=%zz&dryRun=b");
        let values: Vec<_> = query.all("dryRun").collect();
        assert_eq!(values, [&b"All"[..], &b"b"[..]]);
    }
}
