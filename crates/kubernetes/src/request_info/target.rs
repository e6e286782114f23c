//! The request target of a request line, parsed as by Go's HTTP server.
//!
//! Follows `http.ReadRequest` and `url.ParseRequestURI` (Go 1.27): the forms of a target, the
//! malformed ones, and how a `url.URL` prints itself and its path. Nothing is cleaned or normalized.
//! The host is checked, because a bad one is a 400, and otherwise ignored.

// `core`, not `std`: the address is only text here, without sockets.
use core::net::Ipv6Addr;
use std::borrow::Cow;
use std::fmt;

use memchr::memchr;

use crate::encoding::percent;
use crate::encoding::percent::PlusMode;

/// A target that Go's server rejects with a plain 400, before any handler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MalformedTarget {
    /// The host of an absolute URL or of CONNECT is invalid.
    Authority,
    /// A byte below 0x20, or 0x7F.
    ControlByte,
    /// The target is empty.
    Empty,
    /// The path contains a `%` without two hexadecimal digits.
    Escape,
    /// The target is neither a path, nor a URL, nor `*`.
    Form,
    /// The method is empty, or contains a byte that is not allowed in an HTTP token.
    Method,
    /// A raw space, which ends the target in a request line.
    Space,
}

impl MalformedTarget {
    /// The reason in words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Authority => "the host in the request target is malformed",
            Self::ControlByte => "the request target holds a control character",
            Self::Empty => "the request target is empty",
            Self::Escape => "the path holds a malformed percent-escape",
            Self::Form => "the request target is neither a path nor a URL",
            Self::Method => "the method is no token",
            Self::Space => "the request target holds a space",
        }
    }
}

impl fmt::Display for MalformedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

/// The parts of a target, in order.
#[derive(Debug)]
pub(super) struct RequestTarget<'a> {
    /// Without the colon; empty in most targets.
    scheme: &'a [u8],
    /// The part between `//` and the path, if a host is allowed.
    authority: Option<&'a [u8]>,
    raw_path: &'a [u8],
    /// With its escapes decoded.
    pub(super) path: Cow<'a, [u8]>,
    /// From the first `?` on.
    tail: &'a [u8],
}

impl<'a> RequestTarget<'a> {
    pub(super) fn parse(method: &str, target: &'a [u8]) -> Result<Self, MalformedTarget> {
        // Without an early exit this compiles to a few vector instructions.
        if target.iter().fold(false, |found, b| {
            found | b.is_ascii_control() | (*b == b' ')
        }) {
            return Err(if target.contains(&b' ') {
                MalformedTarget::Space
            } else {
                MalformedTarget::ControlByte
            });
        }
        if method.is_empty() || !method.bytes().all(is_token_byte) {
            return Err(MalformedTarget::Method);
        }
        let question_mark = memchr(b'?', target).unwrap_or(target.len());
        let (before_query, tail) = target.split_at(question_mark);
        let (scheme, authority, raw_path): (&[u8], _, &[u8]) = if before_query.starts_with(b"/") {
            (b"", None, before_query)
        } else if method == "CONNECT" {
            let (authority, path) = split_authority(before_query);
            (b"", Some(authority), path)
        } else if target == b"*" {
            (b"", None, before_query)
        } else if target.is_empty() {
            return Err(MalformedTarget::Empty);
        } else {
            let (scheme, rest) = split_scheme(before_query).ok_or(MalformedTarget::Form)?;
            match rest.strip_prefix(b"//") {
                Some(rest) => {
                    let (authority, path) = split_authority(rest);
                    (scheme, Some(authority), path)
                }
                None if rest.starts_with(b"/") => (scheme, None, rest),
                // `mailto:someone`: opaque, without a path.
                None => (scheme, None, b""),
            }
        };
        if let Some(authority) = authority {
            // For CONNECT Go prepends `http://`.
            let web = scheme.is_empty()
                || scheme.eq_ignore_ascii_case(b"http")
                || scheme.eq_ignore_ascii_case(b"https");
            is_authority(authority, web)
                .then_some(())
                .ok_or(MalformedTarget::Authority)?;
        }
        let path = percent::decode(raw_path, PlusMode::Literal).ok_or(MalformedTarget::Escape)?;
        Ok(Self {
            scheme,
            authority,
            raw_path,
            path,
            tail,
        })
    }

    /// The part after the first `?`.
    pub(super) fn query(&self) -> &'a [u8] {
        self.tail.get(1..).unwrap_or_default()
    }

    /// `URL.String`: the target as received, except for the case of the scheme and for bytes of the
    /// path that Go would have escaped.
    pub(super) fn url(&self) -> Vec<u8> {
        let mut url = self.scheme.to_ascii_lowercase();
        if !url.is_empty() {
            url.push(b':');
        }
        if let Some(authority) = self.authority {
            url.extend_from_slice(b"//");
            url.extend_from_slice(authority);
        }
        url.extend_from_slice(&escaped_path(self.raw_path, &self.path));
        url.extend_from_slice(self.tail);
        url
    }
}

/// The path as `URL.EscapedPath` prints it: as received, unless it contains a byte that Go would
/// have escaped. In that case the whole of `decoded` is escaped again. It need not be UTF-8. For
/// messages and logs only: escaping allocates.
#[must_use]
pub fn escaped_path<'p>(raw: &'p [u8], decoded: &[u8]) -> Cow<'p, [u8]> {
    let accepted = |b: u8| is_unescaped_in_path(b) || b"!'()*[]%".contains(&b);
    if raw.iter().all(|&b| accepted(b)) {
        return Cow::Borrowed(raw);
    }
    let mut escaped = Vec::with_capacity(decoded.len() * 2);
    for &byte in decoded {
        if is_unescaped_in_path(byte) {
            escaped.push(byte);
        } else {
            escaped.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
    Cow::Owned(escaped)
}

const fn is_unescaped_in_path(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'_' | b'.' | b'~')
        || matches!(
            byte,
            b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@'
        )
}

/// `tchar` of RFC 9110, which `http.ReadRequest` requires in a method.
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// The scheme of `front` and the part after its colon.
fn split_scheme(before_query: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = before_query.iter().position(|&b| b == b':')?;
    let (scheme, rest) = before_query.split_at(colon);
    let [first, others @ ..] = scheme else {
        return None;
    };
    let well_formed = first.is_ascii_alphabetic()
        && others
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b));
    well_formed.then(|| (scheme, rest.get(1..).unwrap_or_default()))
}

/// The authority at the beginning of `text`, and the path after it.
fn split_authority(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|&b| b == b'/').unwrap_or(text.len()))
}

/// `[userinfo@]host[:port]`. In `web` URLs a host outside of brackets must not contain a colon.
fn is_authority(authority: &[u8], web: bool) -> bool {
    let at = authority.iter().rposition(|&b| b == b'@');
    let (userinfo, host) = match at {
        Some(at) => (
            authority.get(..at).unwrap_or_default(),
            authority.get(at + 1..).unwrap_or_default(),
        ),
        None => (Default::default(), authority),
    };
    let userinfo_byte = |b: &u8| b.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(b);
    userinfo.iter().all(userinfo_byte)
        && percent::decode(userinfo, PlusMode::Literal).is_some()
        && is_host(host, web)
}

fn is_host(host: &[u8], web: bool) -> bool {
    match host.iter().rposition(|&b| b == b'[') {
        Some(0) => is_bracketed_host(host),
        Some(_) => false,
        None => {
            let mut bytes = host.iter();
            let is_colon = |&b: &u8| b == b':';
            let colon = if web {
                bytes.position(is_colon)
            } else {
                bytes.rposition(is_colon)
            };
            let port = colon
                .and_then(|colon| host.get(colon..))
                .unwrap_or_default();
            is_optional_port(port) && has_only_host_bytes(host, |b| b >= 0x80 || b == b'%')
        }
    }
}

/// `[IPv6 address]` or `[IPv6 address%25zone]`, with an optional port.
fn is_bracketed_host(host: &[u8]) -> bool {
    let Some(close) = host.iter().rposition(|&b| b == b']') else {
        return false;
    };
    let (inside, port) = (host.get(1..close), host.get(close + 1..));
    let (inside, port) = (inside.unwrap_or_default(), port.unwrap_or_default());
    let zone = inside.windows(3).position(|escape| escape == b"%25");
    let (address, zone) = inside.split_at(zone.unwrap_or(inside.len()));
    let address = str::from_utf8(address).unwrap_or_default();
    let zone_byte = |b: u8| b == b'%' || b == b' ' || is_host_byte(b);
    is_optional_port(port)
        && address.parse::<Ipv6Addr>().is_ok()
        && zone != b"%25"
        && has_only_host_bytes(zone, zone_byte)
}

/// Empty, or a colon and optional digits.
fn is_optional_port(port: &[u8]) -> bool {
    match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// Whether every ASCII byte is allowed in a host and every escape encodes an `escapable` byte.
fn has_only_host_bytes(text: &[u8], escapable: impl Fn(u8) -> bool) -> bool {
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        let fine = match byte {
            b'%' => percent::decode_escape(&mut bytes).is_some_and(&escapable),
            _ => byte >= 0x80 || is_host_byte(byte),
        };
        if !fine {
            return false;
        }
    }
    true
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path_and_query(method: &str, target: &str) -> Result<(String, String), MalformedTarget> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let target = RequestTarget::parse(method, target.as_bytes())?;
        Ok((text(&target.path), text(target.query())))
    }

    #[test]
    fn every_form_of_a_target_yields_its_path_and_query() {
        let cases = [
            ("GET", "/a?b?c", "/a", "b?c"),
            ("GET", "/a#b?c#d", "/a#b", "c#d"),
            ("GET", "//a//b/", "//a//b/", ""),
            ("GET", "/a?", "/a", ""),
            ("GET", "/%61%2Fb?%zz", "/a/b", "%zz"),
            ("OPTIONS", "*", "*", ""),
            ("x!#$%&'*+-.^_`|~9", "/a", "/a", ""),
            ("GET", "*", "*", ""),
            ("GET", "http://h/a?b", "/a", "b"),
            ("GET", "http://h", "", ""),
            ("GET", "http://h?b", "", "b"),
            ("GET", "http:///a", "/a", ""),
            ("GET", "http:/a", "/a", ""),
            ("GET", "HtTp+x.1-y://u:p@h:80/a", "/a", ""),
            ("GET", "mailto:some%zzone?x", "", "x"),
            ("CONNECT", "h:443", "", ""),
            ("CONNECT", "h:443/a?b", "/a", "b"),
            ("CONNECT", "*", "", ""),
            ("CONNECT", "/a", "/a", ""),
        ];
        for (method, target, path, query) in cases {
            let expected = Ok((path.to_owned(), query.to_owned()));
            assert_eq!(
                path_and_query(method, target),
                expected,
                "{method} {target}"
            );
        }
    }

    #[test]
    fn targets_that_go_rejects_are_malformed() {
        let cases = [
            ("GET", "", MalformedTarget::Empty),
            ("GET", "foo", MalformedTarget::Form),
            ("GET", "?x", MalformedTarget::Form),
            ("GET", ":x", MalformedTarget::Form),
            ("GET", "*?x", MalformedTarget::Form),
            ("GET", "**", MalformedTarget::Form),
            ("GET", "1http://h/a", MalformedTarget::Form),
            ("GET", "ht_tp://h/a", MalformedTarget::Form),
            ("GET", "/a\u{1f}", MalformedTarget::ControlByte),
            ("GET", "/a?\u{7f}", MalformedTarget::ControlByte),
            ("GET", "/a%2", MalformedTarget::Escape),
            ("GET", "http://h/%zz", MalformedTarget::Escape),
            ("GET", "http://h:8x/", MalformedTarget::Authority),
            ("CONNECT", "h:x", MalformedTarget::Authority),
            ("CONNECT", "a b", MalformedTarget::Space),
            ("GET", "/a b", MalformedTarget::Space),
            ("GET", "/a?b c", MalformedTarget::Space),
            ("GET", " /a", MalformedTarget::Space),
            ("G@T", "/a", MalformedTarget::Method),
            ("", "/a", MalformedTarget::Method),
            ("G\u{e9}T", "/a", MalformedTarget::Method),
        ];
        for (method, target, fault) in cases {
            assert_eq!(
                path_and_query(method, target),
                Err(fault),
                "{method} {target}"
            );
        }
    }

    #[test]
    fn hosts_are_accepted_as_in_go() {
        let hosts = [
            "",
            "h",
            "h:",
            "h:80",
            "u@h",
            "u:p%40@h",
            "a@b@h",
            "[::1]",
            "[::1]:80",
            "[fe80::1%25en0]",
            "[::ffff:1.2.3.4]",
            "h%C3%A9",
            "\u{e9}",
            "h<>",
            "h]",
            "[::1%25a%20b]",
        ];
        for host in hosts {
            assert!(is_authority(host.as_bytes(), true), "{host}");
        }
        let faulty = [
            "h:x",
            "h:1:2",
            "::1",
            "u%4@h",
            "u\u{e9}@h",
            "u<@h",
            "[::1",
            "[]",
            "[h]",
            "[1.2.3.4]",
            "a[::1]",
            "[::1]x",
            "[::1]:x",
            "[fe80::1%25]",
            "[fe80::1%25%C3]",
            "[fe80::1%en0]",
            "h%20",
            "h%2",
            "h^",
            "h 1",
            "[::1%251%2]",
        ];
        for host in faulty {
            assert!(!is_authority(host.as_bytes(), true), "{host}");
        }
        assert!(
            is_authority(b"a:1,b:2", false),
            "only the web is strict about colons"
        );
    }

    #[test]
    fn a_url_is_printed_as_received_except_for_what_go_escapes() {
        let cases = [
            ("GET", "/api/v1/watch/?a=<%zz>", "/api/v1/watch/?a=<%zz>"),
            ("GET", "/api/v1/watch?", "/api/v1/watch?"),
            ("GET", "/api/\u{e9}/watch", "/api/%C3%A9/watch"),
            (
                "GET",
                "HTTP://u@h:1/api/v1/watch?x",
                "http://u@h:1/api/v1/watch?x",
            ),
            ("GET", "http:/api/v1/watch", "http:/api/v1/watch"),
            ("GET", "http:///api/v1/watch", "http:///api/v1/watch"),
            ("CONNECT", "h:1/api/v1/watch", "//h:1/api/v1/watch"),
        ];
        for (method, target, url) in cases {
            let printed = RequestTarget::parse(method, target.as_bytes())
                .unwrap()
                .url();
            assert_eq!(
                String::from_utf8(printed).unwrap(),
                url,
                "{method} {target}"
            );
        }
    }

    #[test]
    fn a_path_is_printed_as_received_unless_go_would_escape_it() {
        let cases: [(&str, &str); 6] = [
            ("/a%2fb/(x)[1]!", "/a%2fb/(x)[1]!"),
            ("/\u{e9}/(x)", "/%C3%A9/%28x%29"),
            ("/a%2fb#c", "/a/b%23c"),
            ("/a b", "/a%20b"),
            ("/%3f|", "/%3F%7C"),
            ("/a\"<>", "/a%22%3C%3E"),
        ];
        for (raw, escaped) in cases {
            let decoded = percent::decode(raw.as_bytes(), PlusMode::Literal).unwrap();
            assert_eq!(
                escaped_path(raw.as_bytes(), &decoded),
                escaped.as_bytes(),
                "{raw}"
            );
        }
    }
}
