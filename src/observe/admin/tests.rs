//! Which requests the admin listener accepts.

use super::*;

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

#[test]
fn a_host_is_loopback_only_if_every_byte_matches() {
    for host in [
        "localhost",
        "LOCALHOST:8080",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:65535",
    ] {
        assert!(has_loopback_host(&headers(&[("host", host)])), "{host}");
    }
    assert!(has_loopback_host(&headers(&[])));
    for host in [
        "[::1].evil.com",
        "[::1]evil.com:80",
        "[::1]:80.evil.com",
        "[::1",
        "[127.0.0.1]",
        "[evil.com]",
        "::1",
        "127.0.0.1.evil.com",
        "localhost.evil.com",
        "localhost:80:80",
        "localhost:evil",
        "localhost:65536",
        "user@localhost",
        "evil.com",
        "",
    ] {
        assert!(!has_loopback_host(&headers(&[("host", host)])), "{host}");
    }
    let two = [("host", "localhost"), ("host", "evil.com")];
    assert!(!has_loopback_host(&headers(&two)));
}

#[test]
fn cross_origin_requests_are_detected_by_browser_headers() {
    const HOST: (&str, &str) = ("host", "localhost:9443");
    let other = |pairs: &[(&'static str, &'static str)]| {
        is_cross_origin(&headers(&[&[HOST], pairs].concat()))
    };
    assert!(!other(&[]));
    assert!(!other(&[
        ("sec-fetch-site", "same-origin"),
        ("origin", "http://localhost:9443")
    ]));
    assert!(!other(&[("sec-fetch-site", "none")]));
    assert!(!other(&[("origin", "https://LOCALHOST:9443")]));
    for site in ["cross-site", "same-site", ""] {
        assert!(other(&[("sec-fetch-site", site)]), "{site}");
    }
    for origin in [
        "http://localhost",
        "http://localhost:9444",
        "http://evil.com",
        "null",
        "",
    ] {
        assert!(other(&[("origin", origin)]), "{origin}");
    }
    assert!(is_cross_origin(&headers(&[(
        "origin",
        "http://localhost:9443"
    )])));
}
