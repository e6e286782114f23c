//! The query of a list or a watch.

use std::borrow::Cow;

use weir_kubernetes::request_info::Query;

/// The query of a list, as `metav1.ListOptions`. Selectors are not parsed.
#[derive(Clone, Copy)]
pub(super) struct ListQuery<'a>(pub(super) Query<'a>);

/// An integer option does not parse.
pub(super) struct InvalidInteger;

impl<'a> ListQuery<'a> {
    /// The value of a parameter. Empty if it is absent.
    fn get(self, key: &str) -> Cow<'a, [u8]> {
        self.0.first(key).unwrap_or_default()
    }

    fn get_integer(self, key: &str) -> Result<Option<i64>, InvalidInteger> {
        let parse = |text: &[u8]| str::from_utf8(text).ok()?.parse().ok();
        self.0
            .first(key)
            .map(|text| parse(&text).ok_or(InvalidInteger))
            .transpose()
    }

    /// The limit, if it is positive. Also validates `timeoutSeconds`.
    pub(super) fn decode_integers(self) -> Result<Option<u64>, InvalidInteger> {
        let limit = self.get_integer("limit")?;
        self.get_integer("timeoutSeconds")?;
        Ok(limit
            .and_then(|limit| u64::try_from(limit).ok())
            .filter(|&limit| limit > 0))
    }

    /// Whether a watch begins with all current objects: it requests them, or has no start version.
    pub(super) fn wants_initial_events(self) -> bool {
        let requested = self
            .0
            .first("sendInitialEvents")
            .is_some_and(|text| is_true(&text));
        requested || matches!(&*self.get("resourceVersion"), b"" | b"0")
    }

    /// Whether kube-apiserver has to read from etcd: `delegator.ShouldDelegateList`, apart from
    /// snapshots.
    pub(super) fn should_delegate_list(
        self,
        limit: Option<u64>,
        consistent_reads_from_cache: impl FnOnce() -> bool,
    ) -> bool {
        match &*self.get("resourceVersionMatch") {
            b"" => {}
            b"NotOlderThan" => return false,
            _ => return true,
        }
        if !self.get("continue").is_empty() {
            return true;
        }
        match &*self.get("resourceVersion") {
            b"" => !consistent_reads_from_cache(),
            b"0" => false,
            _ => limit.is_some(),
        }
    }

    pub(super) fn has_selector(self) -> bool {
        ["fieldSelector", "labelSelector"]
            .iter()
            .any(|key| !self.get(key).is_empty())
    }
}

/// `Convert_Slice_string_To_Pointer_bool`: all but `0` and what folds to `false`. Under Unicode's
/// folding `ſ` is an `s`.
fn is_true(text: &[u8]) -> bool {
    let is_false = match text {
        [fal @ .., 0xC5, 0xBF, e] => {
            fal.eq_ignore_ascii_case(b"fal") && e.eq_ignore_ascii_case(&b'e')
        }
        _ => text.eq_ignore_ascii_case(b"false"),
    };
    text != b"0" && !is_false
}
