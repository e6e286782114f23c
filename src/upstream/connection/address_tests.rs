use super::*;

#[test]
fn a_server_is_an_https_url_without_a_path() {
    let cases = [
        ("https://10.0.0.1:6443", "10.0.0.1:6443", "10.0.0.1"),
        (
            "https://api.example.com",
            "api.example.com",
            "api.example.com",
        ),
        (
            "HTTPS://api.example.com/",
            "api.example.com",
            "api.example.com",
        ),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", "fd00::1"),
        ("https://kube_api:443", "kube_api:443", "kube_api"),
    ];
    for (url, authority, name) in cases {
        let (found, host) = parse_server(url).unwrap();
        assert_eq!(found, authority, "{url}");
        assert_eq!(host, ServerName::try_from(name).unwrap(), "{url}");
    }
}

#[test]
fn a_server_url_that_weir_cannot_honour_is_rejected() {
    let cases = [
        ("", "not a URL"),
        ("10.0.0.1:6443", "expected https://HOST[:PORT]"),
        ("api.example.com", "expected https://HOST[:PORT]"),
        ("/api", "expected https://HOST[:PORT]"),
        ("http://10.0.0.1:8080", "credentials go by https only"),
        ("unix:///run/api.sock", "expected https://HOST[:PORT]"),
        (
            "https://rancher.example.com/k8s/clusters/c-1",
            "byte for byte",
        ),
        (
            "https://rancher.example.com/k8s/clusters/c-1",
            "\"/k8s/clusters/c-1\"",
        ),
        ("https://api?x=y", "only host and port"),
        ("https://api#part", "only host and port"),
        ("https://me:secret@api", "only host and port"),
        ("https://api:", "the port must be a number from 1 to 65535"),
        ("https://api:0", "the port must be a number from 1 to 65535"),
        (
            "https://api:65536",
            "the port must be a number from 1 to 65535",
        ),
        (
            "https://api:+1",
            "the port must be a number from 1 to 65535",
        ),
        ("https://:6443", ""),
        ("https://", ""),
        ("https://ap i", "not a URL"),
        (
            "https://10.0.0.256.",
            "neither a host name nor an IP address",
        ),
    ];
    for (url, expected) in cases {
        let message = parse_server(url)
            .err()
            .unwrap_or_else(|| panic!("{url:?} is accepted"));
        assert!(message.contains(expected), "{url:?}: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn a_proxy_url_has_a_default_port_and_an_optional_user() {
    let plain = parse_proxy("http://proxy.example.com:3128/").unwrap();
    assert_eq!(plain.authority, "proxy.example.com:3128");
    assert_eq!(plain.authorization, None);
    assert_eq!(parse_proxy("http://proxy").unwrap().authority, "proxy:80");
    assert_eq!(
        parse_proxy("http://[fd00::2]:8080").unwrap().authority,
        "[fd00::2]:8080"
    );
    let named = parse_proxy("http://us%65r:p%40ss:word@proxy:3128").unwrap();
    assert_eq!(named.authority, "proxy:3128");
    let value = named.authorization.clone().unwrap();
    assert_eq!(
        value,
        format!("Basic {}", BASE64_STANDARD.encode("user:p@ss:word"))
    );
    assert!(!format!("{named:?}").contains("Basic"), "{named:?}");
}

#[test]
fn other_proxy_urls_are_rejected_without_quoting_passwords() {
    let cases = [
        (
            "https://u:secret@proxy",
            "only http:// proxies are supported (by CONNECT), not https://",
        ),
        ("socks5://u:secret@proxy:1080", "not socks5://"),
        ("proxy:3128", "expected http://HOST[:PORT]"),
        ("proxy", "expected http://HOST[:PORT]"),
        ("http://u:secret@", "expected http://HOST[:PORT]"),
        ("http://u:secret@proxy:99999", "the port must be"),
        ("http://u:secret@proxy/path", "expected http://HOST[:PORT]"),
        ("http://u:secret%4@proxy", "not followed by two digits"),
        ("http://u:secret%zz@proxy", "not followed by two digits"),
    ];
    for (url, expected) in cases {
        let message = parse_proxy(url)
            .err()
            .unwrap_or_else(|| panic!("{url:?} is accepted"));
        assert!(message.contains(expected), "{url:?}: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
}
