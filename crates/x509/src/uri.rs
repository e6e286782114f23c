//! Whether Go accepts a URI (`net/url.Parse`), and its host. Pure.
//!
//! The checks that newer versions of Go added are made too: brackets enclose an IPv6 address at the
//! begin of the host (CVE-2026-25679), and a host without brackets has one colon at most.

use std::net::Ipv6Addr;

/// The host, with its port. Empty if there is none. `None` if the URI is invalid.
pub(super) fn parse_host(uri: &str) -> Option<String> {
    let (uri, fragment) = uri.split_once('#').unwrap_or((uri, ""));
    if uri.bytes().any(|byte| byte < b' ' || byte == 0x7f) || unescape(fragment, |_| true).is_none()
    {
        return None;
    }
    if uri == "*" {
        return Some(String::new());
    }
    let (has_scheme, rest) = split_scheme(uri)?;
    let (rest, _query) = rest.split_once('?').unwrap_or((rest, ""));
    if !rest.starts_with('/') {
        let segment = rest.split('/').next().unwrap_or_default();
        // With a scheme, the rest is opaque.
        return (has_scheme || !segment.contains(':') && unescape(rest, |_| true).is_some())
            .then(String::new);
    }
    let authority = rest
        .strip_prefix("//")
        .filter(|_| has_scheme || !rest.starts_with("///"));
    let (host, path) = match authority {
        Some(rest) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at_checked(end)?;
            (parse_authority(authority)?, path)
        }
        None => (String::new(), rest),
    };
    unescape(path, |_| true).map(|_| host)
}

/// Whether there is a scheme, and what follows it (`getScheme`).
fn split_scheme(uri: &str) -> Option<(bool, &str)> {
    for (at, byte) in uri.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return None,
            b':' => return uri.split_once(':').map(|(_, rest)| (true, rest)),
            _ => break,
        }
    }
    Some((false, uri))
}

fn parse_authority(authority: &str) -> Option<String> {
    let Some((user, host)) = authority.rsplit_once('@') else {
        return parse_host_and_port(authority);
    };
    let in_user = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    let valid = user.bytes().all(in_user) && unescape(user, |_| true).is_some();
    parse_host_and_port(host).filter(|_| valid)
}

fn parse_host_and_port(host: &str) -> Option<String> {
    if host.rfind('[').is_some_and(|at| at > 0) {
        return None;
    }
    let is_port = |port: &str| {
        let digits = port.strip_prefix(':');
        port.is_empty() || digits.is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()))
    };
    if let Some(rest) = host.strip_prefix('[') {
        let (address, port) = rest.rsplit_once(']')?;
        let (address, zone) = address.split_once("%25").unwrap_or((address, ""));
        let in_zone = |byte: u8| byte == b' ' || is_host_byte(byte);
        let valid = is_port(port)
            && address.parse::<Ipv6Addr>().is_ok()
            && zone.bytes().all(|byte| byte == b'%' || is_host_byte(byte));
        let zone = unescape(zone, in_zone).filter(|_| valid)?;
        return Some(if rest.contains("%25") {
            format!("[{address}%{zone}]{port}")
        } else {
            host.to_owned()
        });
    }
    let port = host.find(':').map_or("", |at| host.get(at..).unwrap_or(""));
    let valid = is_port(port)
        && host
            .bytes()
            .all(|byte| byte == b'%' || !byte.is_ascii() || is_host_byte(byte));
    // Only bytes beyond ASCII may be escaped in a host.
    unescape(host, |byte| !byte.is_ascii()).filter(|_| valid)
}

const fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'$'
                | b'&'
                | b'\''
                | b'('
                | b')'
                | b'*'
                | b'+'
                | b','
                | b';'
                | b'='
                | b':'
                | b'['
                | b']'
                | b'<'
                | b'>'
                | b'"'
                | b'-'
                | b'_'
                | b'.'
                | b'~'
        )
}

/// The text without escapes, each of which has to stand for a byte that is `allowed`. What is not
/// UTF-8 then is replaced.
fn unescape(text: &str, allowed: impl Fn(u8) -> bool) -> Option<String> {
    let mut bytes = text.bytes();
    let mut unescaped = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        unescaped.push(if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            let value = digit()? * 16 + digit()?;
            u8::try_from(value).ok().filter(|byte| allowed(*byte))?
        } else {
            byte
        });
    }
    Some(String::from_utf8_lossy(&unescaped).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_accepted_as_go_accepts_them() {
        for (uri, host) in [
            ("spiffe://cluster.local/ns/a/sa/b", Some("cluster.local")),
            (
                "https://user:secret@example.com:6443/a?b#c",
                Some("example.com:6443"),
            ),
            ("urn:uuid:1", Some("")),
            ("", Some("")),
            ("*", Some("")),
            ("/a/b", Some("")),
            ("//example.com", Some("example.com")),
            ("///a", Some("")),
            ("http:///a", Some("")),
            ("http://[::1]:80/", Some("[::1]:80")),
            ("http://[fe80::1%25en0]/", Some("[fe80::1%en0]")),
            ("mailto:a%zz", Some("")),
            (":a", None),
            ("a\u{1}b", None),
            ("1a:b", None),
            ("a b:c", None),
            ("http://a b/", None),
            ("http://a:b/", None),
            ("http://a:1:2/", None),
            ("http://[::1/", None),
            ("http://[example.com]/", None),
            ("http://a[b]/", None),
            ("http://a[::1]/", None),
            ("http://u ser@a/", None),
            ("http://a%2fb/", None),
            ("http://a/%zz", None),
            ("http://a/%2", None),
            ("http://a/#%2", None),
        ] {
            assert_eq!(parse_host(uri).as_deref(), host, "{uri:?}");
        }
    }
}
