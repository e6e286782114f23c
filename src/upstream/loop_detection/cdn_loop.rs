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

use std::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The header name.
pub const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// The response header in which a weir gives its ID, in answers to probes of weirs.
pub(crate) const INSTANCE: HeaderName = HeaderName::from_static("x-weir-instance");

/// Most entries of a forwarded request, this weir's included. A chain of proxies has a few.
pub(crate) const MAX_ENTRIES: usize = 16;

/// Most bytes of the entries that a request lists already: fifteen entries of weirs have 600.
pub(crate) const MAX_BYTES: usize = 2048;

/// Bytes of an ID and of a nonce.
pub(crate) const ID_BYTES: usize = 16;

/// The separator of entries.
const SEPARATOR: &[u8] = b", ";

/// The parameter of a probe's entry.
const PROBE_PARAMETER: &[u8] = b"probe=";

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
        Self(ascii_value(format!("weir-{}", hex(&bytes))))
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
    pub(crate) fn probe_entry(&self, nonce: &Nonce) -> HeaderValue {
        let id = String::from_utf8_lossy(self.as_bytes());
        ascii_value(format!("{id};probe={}", hex(&nonce.0)))
    }
}

/// The nonce of a probe, used once. `Debug` does not show it: a client that knew it could repeat it
/// while the probe is in flight.
#[derive(Clone)]
pub(crate) struct Nonce([u8; ID_BYTES]);

impl Nonce {
    /// The nonce of these bytes, which must be unguessable.
    #[must_use]
    pub(crate) const fn from_bytes(bytes: [u8; ID_BYTES]) -> Self {
        Self(bytes)
    }

    /// Whether both are equal, in a time that does not depend on where they differ.
    #[must_use]
    pub(crate) fn constant_time_eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }

    fn parse(digits: &[u8]) -> Option<Self> {
        if digits.len() != 2 * ID_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let number = u128::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        Some(Self(number.to_be_bytes()))
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Nonce")
    }
}

/// The result of inspecting a request's entries.
#[derive(Debug)]
pub(crate) enum CdnLoopStatus {
    /// This weir is not listed, and there is room for its ID.
    Absent,
    /// This weir has forwarded the request before; as its own probe, if there is a nonce.
    Present(Option<Nonce>),
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
                let nonce = parts.find_map(|parameter| parameter.strip_prefix(PROBE_PARAMETER));
                return CdnLoopStatus::Present(nonce.and_then(Nonce::parse));
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

/// Whether the request is a probe of a weir, this one or another: an entry of a weir has a nonce. At
/// most [`MAX_BYTES`] are read.
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
        id.starts_with(b"weir-") && parts.any(|parameter| parameter.starts_with(PROBE_PARAMETER))
    })
}

/// Appends `own` to the entries, unless it is listed. Without entries, the usual case, nothing is
/// allocated for the value; with entries, the new list is.
pub fn append(headers: &mut HeaderMap, own: &InstanceId) {
    if !headers.contains_key(CDN_LOOP) {
        headers.insert(CDN_LOOP, own.0.clone());
        return;
    }
    if matches!(inspect(headers, own), CdnLoopStatus::Present(_)) {
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

fn hex(bytes: &[u8; ID_BYTES]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
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
    fn a_probe_has_a_nonce_beside_the_id_of_a_weir() {
        let nonce = Nonce::from_bytes([1; ID_BYTES]);
        let probe = own_id().probe_entry(&nonce);
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
        let probe = own_id().probe_entry(&Nonce::from_bytes([0xab; ID_BYTES]));
        assert_eq!(probe, format!("{id};probe={}", "ab".repeat(16)));
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
            assert!(matches!(
                inspect(&headers, &own_id()),
                CdnLoopStatus::Present(None)
            ));
        }
    }

    #[test]
    fn entries_before_an_id_do_not_hide_it() {
        let id = String::from_utf8(own_id().as_bytes().to_vec()).unwrap();
        for before in ["a;x=\"", "\\", "(", ";", "a;b;c", "\"a,", ",,,", "\u{e4}"] {
            for list in [format!("{before},{id}"), format!("{before}, {id} ;x=1, z")] {
                let found = inspect(&map(&[list.as_str()]), &own_id());
                assert!(
                    matches!(found, CdnLoopStatus::Present(None)),
                    "{list}: {found:?}"
                );
            }
        }
        let two = inspect(&map(&["a;x=\"", id.as_str()]), &own_id());
        assert!(matches!(two, CdnLoopStatus::Present(None)));
        for not in [
            format!("x{id}"),
            format!("{id}0"),
            format!("a;{id}"),
            id.to_uppercase(),
        ] {
            assert!(
                matches!(inspect(&map(&[&not]), &own_id()), CdnLoopStatus::Absent),
                "{not}"
            );
        }
    }

    #[test]
    fn only_a_well_formed_nonce_is_parsed() {
        let nonce = Nonce::from_bytes([0x1f; ID_BYTES]);
        let entry = own_id().probe_entry(&nonce);
        let entry = entry.to_str().unwrap();
        let read = |list: &str| match inspect(&map(&[list]), &own_id()) {
            CdnLoopStatus::Present(nonce) => nonce,
            CdnLoopStatus::Absent | CdnLoopStatus::TooMany => panic!("{list}"),
        };
        for list in [entry.to_owned(), format!("a, {entry}, {}", other_id(1))] {
            assert!(read(&list).unwrap().constant_time_eq(&nonce), "{list}");
        }
        let id = entry.split(';').next().unwrap();
        let digits = "1f".repeat(16);
        for bad in [
            format!("{id};probe="),
            format!("{id};probe={digits}0"),
            format!("{id};probe=+{}", &digits[1..]),
            format!("{id};probe=zz{}", &digits[2..]),
            format!("{id};nonce={digits}"),
        ] {
            assert!(read(&bad).is_none(), "{bad}");
        }
        assert!(!nonce.constant_time_eq(&Nonce::from_bytes([0x1e; ID_BYTES])));
        assert_eq!(format!("{nonce:?}"), "Nonce");
    }

    #[test]
    fn entries_and_bytes_are_bounded() {
        let list = |count: u8| (0..count).map(other_id).collect::<Vec<_>>().join(", ");
        let read = |values: &[&str]| inspect(&map(values), &own_id());
        let (few, most, half) = (list(15), list(16), list(8));
        assert!(matches!(read(&[&few]), CdnLoopStatus::Absent));
        assert!(matches!(read(&[&most]), CdnLoopStatus::TooMany));
        assert!(matches!(read(&[&half, &half]), CdnLoopStatus::TooMany));
        let id = String::from_utf8(own_id().as_bytes().to_vec()).unwrap();
        let late = format!("{}, {id}", list(40));
        assert!(matches!(read(&[&late]), CdnLoopStatus::Present(None)));
        let (long, longer) = ("a".repeat(MAX_BYTES), "a".repeat(MAX_BYTES + 1));
        assert!(matches!(read(&[&long]), CdnLoopStatus::Absent));
        assert!(matches!(read(&[&longer]), CdnLoopStatus::TooMany));
        assert!(matches!(read(&[&long, "a"]), CdnLoopStatus::TooMany));
        assert!(matches!(read(&[&long, &id]), CdnLoopStatus::TooMany));
    }
}
