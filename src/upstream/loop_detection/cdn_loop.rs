//! `CDN-Loop` (RFC 8586): the header by which weir recognises a request that it has forwarded
//! before. Pure.
//!
//! Each weir appends the ID of its process to every request for the API server, and neither changes
//! nor removes existing entries. A request that lists the ID of the weir that receives it has
//! returned.
//!
//! `CDN-Loop` and not `Via`: it exists for this purpose alone, and intermediaries must not change
//! or remove it. `Via` is often removed or rewritten, and servers answer differently because of it
//! (nginx does not compress, as its `gzip_proxied` says).
//!
//! Entries are split at every comma, also inside quoted strings. A parser that honoured quotes
//! would take the entries after a client's unclosed quote for a part of the client's own.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The header name.
pub const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// The response header in which a weir gives its ID, in answers to probes of weirs.
pub(crate) const INSTANCE: HeaderName = HeaderName::from_static("x-weir-instance");

/// Most entries of a forwarded request, this weir's included. A chain of proxies has a few.
pub(crate) const MAX_ENTRIES: usize = 16;

/// Most bytes of the entries that a request lists already: fifteen entries of weirs have 600.
pub(crate) const MAX_BYTES: usize = 2048;

/// Bytes of an ID.
pub(crate) const ID_BYTES: usize = 16;

/// The separator of entries.
const SEPARATOR: &[u8] = b", ";

/// The parameter of a probe's entry.
const PROBE_PARAMETER: &str = "probe=1";

/// The ID of this process as it is listed: `weir-` and 32 hexadecimal digits.
#[derive(Debug)]
pub struct InstanceId(HeaderValue);

impl Clone for InstanceId {
    /// A copy with a reference count of its own: workers do not share a cache line for each
    /// request.
    fn clone(&self) -> Self {
        Self(copy_value(&self.0))
    }
}

impl InstanceId {
    /// The ID of these bytes, which must be unguessable and unique to this process.
    #[must_use]
    pub fn from_bytes(bytes: [u8; ID_BYTES]) -> Self {
        Self(ascii_value(format!(
            "weir-{:032x}",
            u128::from_be_bytes(bytes)
        )))
    }

    /// The ID as it is listed.
    #[must_use]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The ID as a header value.
    #[must_use]
    pub(crate) fn to_header_value(&self) -> HeaderValue {
        copy_value(&self.0)
    }

    /// The entry of a probe.
    #[must_use]
    pub(crate) fn probe_entry(&self) -> HeaderValue {
        let id = String::from_utf8_lossy(self.as_bytes());
        ascii_value(format!("{id};{PROBE_PARAMETER}"))
    }
}

/// The result of inspecting a request's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CdnLoopStatus {
    /// This weir is not listed, and there is room for its ID.
    Absent,
    /// This weir has forwarded the request before.
    Present,
    /// [`MAX_ENTRIES`] are listed already, or more than [`MAX_BYTES`].
    TooMany,
}

/// Inspects the entries in `headers` for the ID `own`. At most [`MAX_BYTES`] are read.
#[must_use]
pub(crate) fn inspect(headers: &HeaderMap, own: &InstanceId) -> CdnLoopStatus {
    let (mut entries, mut room, mut too_long) = (0, MAX_BYTES, false);
    for value in headers.get_all(CDN_LOOP) {
        let text = value.as_bytes();
        let text = text.get(..room).map_or(text, |start| {
            too_long |= text.len() > room;
            start
        });
        room -= text.len();
        for entry in text.split(|byte| *byte == b',') {
            let mut parts = entry.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let id = parts.next().unwrap_or_default();
            if id == own.as_bytes() {
                return CdnLoopStatus::Present;
            }
            entries += usize::from(!id.is_empty());
        }
    }
    if too_long || entries >= MAX_ENTRIES {
        CdnLoopStatus::TooMany
    } else {
        CdnLoopStatus::Absent
    }
}

/// Whether the request is a probe of a weir, this one or another: an entry of a weir says so. At most
/// [`MAX_BYTES`] are read.
#[must_use]
pub(crate) fn is_probe(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CDN_LOOP).iter().map(HeaderValue::as_bytes);
    let mut entries = values
        .flat_map(|text| {
            text.get(..MAX_BYTES)
                .unwrap_or(text)
                .split(|byte| *byte == b',')
        })
        .take(MAX_ENTRIES);
    entries.any(|entry| {
        let mut parts = entry.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let id = parts.next().unwrap_or_default();
        id.starts_with(b"weir-") && parts.any(|parameter| parameter == PROBE_PARAMETER.as_bytes())
    })
}

/// Appends `own` to the entries, unless it is listed. Without entries, the usual case, nothing is
/// allocated for the value; with entries, the new list is.
pub fn append(headers: &mut HeaderMap, own: &InstanceId) {
    if !headers.contains_key(CDN_LOOP) {
        headers.insert(CDN_LOOP, own.0.clone());
        return;
    }
    if inspect(headers, own) == CdnLoopStatus::Present {
        return;
    }
    // In one header line: an intermediary that keeps only one of several lines would lose entries.
    let length = |value: &HeaderValue| value.len() + SEPARATOR.len();
    let before: usize = headers.get_all(CDN_LOOP).iter().map(length).sum();
    let mut list = Vec::with_capacity(before + own.as_bytes().len());
    for value in headers.get_all(CDN_LOOP) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(SEPARATOR);
    }
    list.extend_from_slice(own.as_bytes());
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(list)) {
        headers.insert(CDN_LOOP, value);
    }
}

fn ascii_value(text: String) -> HeaderValue {
    // Consists of letters, digits and `-;=`, all of which a value may have.
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("weir"))
}

fn copy_value(value: &HeaderValue) -> HeaderValue {
    HeaderValue::from_bytes(value.as_bytes()).unwrap_or_else(|_| value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_says_so_beside_the_id_of_a_weir() {
        let probe = own_id().probe_entry();
        let probe = probe.to_str().unwrap();
        assert!(is_probe(&map(&[probe])));
        assert!(is_probe(&map(&["cdn.example", &format!("a, {probe}, b")])));
        for other in [
            "",
            "cdn.example;probe=1",
            "weir-1",
            "weir-1;x=probe=1",
            ";probe=1",
        ] {
            assert!(!is_probe(&map(&[other])), "{other:?}");
        }
        assert!(!is_probe(&HeaderMap::new()));
    }

    fn own_id() -> InstanceId {
        InstanceId::from_bytes([7; ID_BYTES])
    }

    fn other_id(n: u8) -> String {
        let id = InstanceId::from_bytes([n + 100; ID_BYTES]);
        String::from_utf8(id.as_bytes().to_vec()).unwrap()
    }

    fn map(values: &[&str]) -> HeaderMap {
        let value = |value: &&str| HeaderValue::from_bytes(value.as_bytes()).unwrap();
        let values = values.iter().map(|text| (CDN_LOOP, value(text)));
        values.collect()
    }

    fn lines(headers: &HeaderMap) -> Vec<&str> {
        let values = headers.get_all(CDN_LOOP).iter();
        values.map(|value| value.to_str().unwrap()).collect()
    }

    #[test]
    fn an_id_is_a_token_of_rfc_8586() {
        let id = "weir-07070707070707070707070707070707";
        assert_eq!(own_id().as_bytes(), id.as_bytes());
        assert_eq!(own_id().probe_entry(), format!("{id};probe=1"));
    }

    #[test]
    fn append_keeps_the_entries_and_adds_one() {
        let id = String::from_utf8(own_id().as_bytes().to_vec()).unwrap();
        for (before, after) in [
            (&[][..], id.clone()),
            (&["a"], format!("a, {id}")),
            (&["a, b;x=\"", "c"], format!("a, b;x=\", c, {id}")),
            (&[""], format!(", {id}")),
        ] {
            let mut headers = map(before);
            append(&mut headers, &own_id());
            assert_eq!(lines(&headers), [after.as_str()]);
            append(&mut headers, &own_id());
            assert_eq!(lines(&headers), [after.as_str()], "once");
            assert_eq!(inspect(&headers, &own_id()), CdnLoopStatus::Present);
        }
    }

    #[test]
    fn entries_before_an_id_do_not_hide_it() {
        let id = String::from_utf8(own_id().as_bytes().to_vec()).unwrap();
        for before in ["a;x=\"", "\\", "(", ";", "a;b;c", "\"a,", ",,,", "\u{e4}"] {
            for list in [format!("{before},{id}"), format!("{before}, {id} ;x=1, z")] {
                let found = inspect(&map(&[list.as_str()]), &own_id());
                assert_eq!(found, CdnLoopStatus::Present, "{list}");
            }
        }
        let two = inspect(&map(&["a;x=\"", id.as_str()]), &own_id());
        assert_eq!(two, CdnLoopStatus::Present);
        for not in [
            format!("x{id}"),
            format!("{id}0"),
            format!("a;{id}"),
            id.to_uppercase(),
        ] {
            let found = inspect(&map(&[&not]), &own_id());
            assert_eq!(found, CdnLoopStatus::Absent, "{not}");
        }
    }

    #[test]
    fn entries_and_bytes_are_bounded() {
        let list = |count: u8| (0..count).map(other_id).collect::<Vec<_>>().join(", ");
        let read = |values: &[&str]| inspect(&map(values), &own_id());
        let (few, most, half) = (list(15), list(16), list(8));
        assert_eq!(read(&[&few]), CdnLoopStatus::Absent);
        assert_eq!(read(&[&most]), CdnLoopStatus::TooMany);
        assert_eq!(read(&[&half, &half]), CdnLoopStatus::TooMany);
        let id = String::from_utf8(own_id().as_bytes().to_vec()).unwrap();
        let late = format!("{}, {id}", list(40));
        assert_eq!(read(&[&late]), CdnLoopStatus::Present);
        let (long, longer) = ("a".repeat(MAX_BYTES), "a".repeat(MAX_BYTES + 1));
        assert_eq!(read(&[&long]), CdnLoopStatus::Absent);
        assert_eq!(read(&[&longer]), CdnLoopStatus::TooMany);
        assert_eq!(read(&[&long, "a"]), CdnLoopStatus::TooMany);
        assert_eq!(read(&[&long, &id]), CdnLoopStatus::TooMany);
    }
}
