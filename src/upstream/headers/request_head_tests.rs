use std::net::IpAddr;

use http::Request;

use super::*;
use crate::upstream::headers::forwarded_for::{address_value, requested_host};
use crate::upstream::headers::{
    ENTRY_OVERHEAD, InvalidHeaders, MAX_HEADER_BYTES, detach_values, keep_unindexed,
    strip_hop_by_hop, validate,
};

static ADDRESS: HeaderValue = HeaderValue::from_static("192.0.2.7");

static CLIENT: ClientAddress<'_> = ClientAddress {
    peer: &ADDRESS,
    trusted: false,
    app_host: None,
};

fn head(headers: &[(&str, &str)]) -> Box<request::Parts> {
    let mut request = Request::get("/api/v1/pods?x=%2f");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    Box::new(request.body(()).unwrap().into_parts().0)
}

fn strip(headers: &[(&str, &str)]) -> (HeaderMap, Option<HeaderValue>) {
    let mut parts = head(headers);
    let upgrade = strip_hop_by_hop(&mut parts.headers);
    (parts.headers, upgrade)
}

fn alice() -> UserInfo {
    UserInfo {
        name: "alice".to_owned(),
        uid: "u1".to_owned(),
        groups: vec!["dev".to_owned(), "system:authenticated".to_owned()],
        extra: vec![(
            "example.com/Pod name%".to_owned(),
            vec!["a".to_owned(), "b".to_owned()],
        )],
    }
}

#[test]
fn an_impersonated_user_replaces_every_identity_of_the_client() {
    let mut head = Box::new(Request::new(()).into_parts().0);
    for name in [
        "impersonate-user",
        "impersonate_group",
        "impersonate-extra-a",
        "x-remote-user",
    ] {
        let name = HeaderName::from_static(name);
        head.headers
            .insert(name, HeaderValue::from_static("mallory"));
    }
    head.headers.insert(
        header::AUTHORIZATION,
        HeaderValue::from_static("Bearer client"),
    );
    let client = ClientAddress {
        peer: &address_value(IpAddr::from([127, 0, 0, 1])),
        ..CLIENT
    };
    let user = UserInfo {
        name: "alice".to_owned(),
        uid: "u-1".to_owned(),
        groups: vec![
            "dev".to_owned(),
            "ops".to_owned(),
            "system:authenticated".to_owned(),
        ],
        extra: vec![("a/b".to_owned(), vec!["1".to_owned(), "2".to_owned()])],
    };
    let own = HeaderValue::from_static("Bearer weirs-own");
    let names = IdentityHeaders::default();
    let dressed = impersonation_head(head, client, &names, &user, Some(own)).unwrap();
    let headers = &dressed.parts.headers;
    let all = |name: &str| -> Vec<&str> {
        headers
            .get_all(name)
            .iter()
            .map(|v| v.to_str().unwrap())
            .collect()
    };
    assert_eq!(all("impersonate-user"), ["alice"]);
    assert_eq!(all("impersonate-uid"), ["u-1"]);
    assert_eq!(all("impersonate-group"), ["dev", "ops"]);
    assert_eq!(all("impersonate-extra-a%2fb"), ["1", "2"]);
    assert_eq!(all("authorization"), ["Bearer weirs-own"]);
    assert!(
        !headers.values().any(|value| value == "mallory"),
        "{headers:?}"
    );
}

#[test]
fn an_impersonated_user_always_has_a_group() {
    let client = ClientAddress {
        peer: &address_value(IpAddr::from([127, 0, 0, 1])),
        ..CLIENT
    };
    for (name, groups, sent) in [
        (
            "alice",
            &["system:authenticated"][..],
            &["system:authenticated"][..],
        ),
        (
            "system:node:n1",
            &["system:authenticated"],
            &["system:authenticated"],
        ),
        (
            "system:serviceaccount:team:builder",
            &["system:authenticated"],
            &["system:authenticated"],
        ),
        ("alice", &["dev", "system:authenticated"], &["dev"]),
        (
            "alice",
            &["system:authenticated", "system:unauthenticated"],
            &["system:authenticated", "system:unauthenticated"],
        ),
        (
            "system:anonymous",
            &["system:authenticated", "system:unauthenticated"],
            &["system:authenticated", "system:unauthenticated"],
        ),
        (
            "system:anonymous",
            &["system:unauthenticated"],
            &["system:unauthenticated"],
        ),
    ] {
        let user = UserInfo {
            name: name.to_owned(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
            ..UserInfo::default()
        };
        let head = Box::new(Request::new(()).into_parts().0);
        let names = IdentityHeaders::default();
        let dressed = impersonation_head(head, client, &names, &user, None).unwrap();
        let named = dressed.parts.headers.get_all("impersonate-group");
        assert_eq!(named.iter().collect::<Vec<_>>(), sent, "{name}");
    }
}

/// Go's server would trim the space, and `system:masters ` is a group that a certificate may have.
#[test]
fn space_around_a_part_of_the_user_is_an_error() {
    let plain = UserInfo {
        name: "alice".to_owned(),
        ..UserInfo::default()
    };
    let users = [
        (
            "name",
            UserInfo {
                name: " admin".to_owned(),
                ..plain.clone()
            },
        ),
        (
            "uid",
            UserInfo {
                uid: "u-1\t".to_owned(),
                ..plain.clone()
            },
        ),
        (
            "group",
            UserInfo {
                groups: vec!["system:masters ".to_owned()],
                ..plain.clone()
            },
        ),
        (
            "extra value",
            UserInfo {
                extra: vec![("a".to_owned(), vec![" b".to_owned()])],
                ..plain
            },
        ),
    ];
    let client = ClientAddress {
        peer: &address_value(IpAddr::from([127, 0, 0, 1])),
        ..CLIENT
    };
    let (names, head) = (IdentityHeaders::default(), || {
        Box::new(Request::new(()).into_parts().0)
    });
    for (part, user) in users {
        let asserted = front_proxy_head(head(), client, &names, &user);
        assert_eq!(asserted.unwrap_err(), UnencodableUser(part));
        let impersonated = impersonation_head(head(), client, &names, &user, None);
        assert_eq!(impersonated.unwrap_err(), UnencodableUser(part));
    }
}

#[test]
fn groups_of_blanks_are_left_out_and_none_becomes_another() {
    let with_groups = |groups: &[&str]| UserInfo {
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..alice()
    };
    let values = |headers: &HeaderMap, name: &str| -> Vec<String> {
        let values = headers.get_all(name).iter();
        values.map(|v| v.to_str().unwrap().to_owned()).collect()
    };
    let names = IdentityHeaders::default();
    let asserted = |groups: &[&str]| {
        let head = front_proxy_head(head(&[]), CLIENT, &names, &with_groups(groups)).unwrap();
        values(&head.parts.headers, "x-remote-group")
    };
    let impersonated = |groups: &[&str]| {
        let user = with_groups(groups);
        let head = impersonation_head(head(&[]), CLIENT, &names, &user, None).unwrap();
        values(&head.parts.headers, "impersonate-group")
    };
    let groups = ["dev", "", " ", "\t ", "ops"];
    assert_eq!(asserted(&groups), ["dev", "", "ops"]);
    assert_eq!(impersonated(&groups), ["dev", "", "ops"]);
    // A group is named in any case, since the upstream gives others to a user without any.
    let only_blanks = [" ", GROUP_AUTHENTICATED];
    assert_eq!(impersonated(&only_blanks), [GROUP_AUTHENTICATED]);
    assert_eq!(impersonated(&["", GROUP_AUTHENTICATED]), [""]);
}

#[test]
fn only_hop_by_hop_headers_are_removed_whatever_connection_names() {
    let (headers, upgrade) = strip(&[
        ("connection", "close, X-Private"),
        ("Connection", " impersonate-user ,keep-alive"),
        ("x-private", "1"),
        ("impersonate-user", "root"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "keep-alive"),
        ("transfer-encoding", "chunked"),
        ("te", "gzip, trailers"),
        ("http2-settings", "AAMAAABkAAQAoAAAAAIAAAAA"),
        ("upgrade", "h2c"),
        ("x-kept", "1"),
        ("trailer", "x-checksum"),
    ]);
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    let kept = ["impersonate-user", "te", "trailer", "x-kept", "x-private"];
    assert_eq!(names, kept);
    assert_eq!(headers["te"], "trailers");
    assert_eq!(
        upgrade, None,
        "an Upgrade that Connection does not name is no wish to upgrade"
    );
}

#[test]
fn an_upgrade_is_returned_once_connection_names_it() {
    let (headers, upgrade) = strip(&[
        ("connection", "keep-alive, Upgrade"),
        ("upgrade", "SPDY/3.1"),
    ]);
    assert_eq!(upgrade.unwrap(), "SPDY/3.1");
    assert!(headers.is_empty());
}

#[test]
fn headers_that_would_end_a_connection_are_invalid() {
    let of = |byte: u8, length| {
        let value = HeaderValue::from_bytes(&vec![byte; length]).unwrap();
        HeaderMap::from_iter([(HeaderName::from_static("x-a"), value)])
    };
    let room = MAX_HEADER_BYTES - ENTRY_OVERHEAD - "x-a".len() - 10;
    assert_eq!(validate(&of(b'v', room), 10), Ok(()));
    assert_eq!(
        validate(&of(b'v', room + 1), 10),
        Err(InvalidHeaders::TooLong)
    );
    assert_eq!(validate(&of(b'v', room), 11), Err(InvalidHeaders::TooLong));
    assert_eq!(validate(&of(0xff, MAX_HEADER_BYTES / 4), 10), Ok(()));
    assert_eq!(
        validate(&of(0xff, MAX_HEADER_BYTES / 4 + 1), 10),
        Err(InvalidHeaders::TooLong)
    );
    let odd = HeaderName::from_lowercase(b"a\"b").unwrap();
    let odd = HeaderMap::from_iter([(odd, HeaderValue::from_static("v"))]);
    assert_eq!(validate(&odd, 10), Err(InvalidHeaders::InvalidName));
}

#[test]
fn every_spelling_of_an_identity_header_is_removed() {
    let names = IdentityHeaders {
        username: vec![
            HeaderName::from_static("x-remote-user"),
            HeaderName::from_static("x_custom_user"),
        ],
        extra_prefix: vec!["x-remote-extra-".to_owned(), "corp-".to_owned()],
        ..IdentityHeaders::default()
    };
    let forged = [
        ("X-Remote-User", "root"),
        ("x_remote_user", "root"),
        ("X-REMOTE_user", "root"),
        ("X-Remote-Group", "system:masters"),
        ("X-Remote-Extra-Scopes", "all"),
        ("x-remote_extra_scopes", "all"),
        ("X-Remote-Uid", "0"),
        ("X-Custom-User", "root"),
        ("x_custom_user", "root"),
        ("Corp-Anything", "1"),
        ("corp_anything", "1"),
        ("X-Kept", "1"),
        ("Authorization", "Bearer t"),
    ];
    let outbound = unverified_head(head(&forged), CLIENT, &names);
    let mut kept: Vec<_> = outbound
        .parts
        .headers
        .keys()
        .map(HeaderName::as_str)
        .collect();
    kept.sort_unstable();
    assert_eq!(kept, ["authorization", "x-forwarded-for", "x-kept"]);
}

#[test]
fn a_front_proxy_user_is_the_only_identity_and_the_token_is_removed() {
    let sent = [
        ("Authorization", "Bearer secret"),
        ("X-Remote-User", "root"),
        ("X-Remote-Group", "system:masters"),
        (
            "Sec-WebSocket-Protocol",
            "v4.channel.k8s.io, base64url.bearer.authorization.k8s.io.c2VjcmV0",
        ),
        ("Impersonate-User", "bob"),
    ];
    let outbound =
        front_proxy_head(head(&sent), CLIENT, &IdentityHeaders::default(), &alice()).unwrap();
    let headers = &outbound.parts.headers;
    let all = |name: &str| {
        headers
            .get_all(name)
            .iter()
            .map(|v| v.to_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(all("x-remote-user"), ["alice"]);
    assert_eq!(all("x-remote-uid"), ["u1"]);
    assert_eq!(all("x-remote-group"), ["dev", "system:authenticated"]);
    assert_eq!(
        all("x-remote-extra-example.com%2f%50od%20name%25"), // the upstream decodes a capital
        ["a", "b"]
    );
    assert_eq!(all("sec-websocket-protocol"), ["v4.channel.k8s.io"]);
    assert_eq!(
        all("impersonate-user"),
        ["bob"],
        "the API server judges it, by the asserted user"
    );
    assert!(!headers.contains_key("authorization"));
}

#[test]
fn a_user_that_no_header_can_carry_is_an_error() {
    let user = UserInfo {
        name: "a\nb".to_owned(),
        ..alice()
    };
    let refused = front_proxy_head(head(&[]), CLIENT, &IdentityHeaders::default(), &user);
    assert_eq!(refused.unwrap_err(), UnencodableUser("name"));
}

#[test]
fn earlier_hops_are_kept_from_trusted_proxies_only() {
    let sent = [
        ("x-forwarded-for", "198.51.100.1"),
        ("x-forwarded-for", "198.51.100.2"),
        ("x-real-ip", "198.51.100.1"),
    ];
    let names = IdentityHeaders::default();
    let told = |trusted| {
        let outbound = pass_through_head(head(&sent), ClientAddress { trusted, ..CLIENT }, &names);
        let headers = outbound.parts.headers;
        (
            headers["x-forwarded-for"].to_str().unwrap().to_owned(),
            headers.contains_key("x-real-ip"),
        )
    };
    assert_eq!(
        told(true),
        ("198.51.100.1, 198.51.100.2, 192.0.2.7".to_owned(), true)
    );
    assert_eq!(told(false), ("192.0.2.7".to_owned(), false));
}

#[test]
fn the_target_is_forwarded_unchanged_with_the_upstream_authority() {
    let names = IdentityHeaders::default();
    let authority = Authority::from_static("upstream:6443");
    let sent = [("host", "weir"), ("cookie", "a=1"), ("cookie", "b=2")];
    let one = unverified_head(head(&sent), CLIENT, &names)
        .into_http1((), &HeaderValue::from_static("upstream:6443"));
    assert_eq!(one.uri().to_string(), "/api/v1/pods?x=%2f");
    assert_eq!(one.headers()["host"], "upstream:6443");
    assert_eq!(
        one.headers().get_all("cookie").iter().collect::<Vec<_>>(),
        ["a=1; b=2"]
    );
    let two = pass_through_head(head(&sent), CLIENT, &names).into_http2((), &authority);
    assert_eq!(
        two.uri().to_string(),
        "https://upstream:6443/api/v1/pods?x=%2f"
    );
    assert!(!two.headers().contains_key("host"));
}

#[test]
fn an_application_is_addressed_by_the_host_of_its_client() {
    let names = IdentityHeaders::default();
    let (host, upstream) = (
        Authority::from_static("weir:8443"),
        Authority::from_static("upstream:6443"),
    );
    let upstream_value = HeaderValue::from_static("upstream:6443");
    let client = ClientAddress {
        app_host: Some(&host),
        ..CLIENT
    };
    let sent = [("host", "weir:8443")];
    let one = unverified_head(head(&sent), client, &names);
    let again = one.duplicate().into_http1((), &upstream_value);
    for request in [one.into_http1((), &upstream_value), again] {
        assert_eq!(request.headers()["host"], "weir:8443");
    }
    // A head that a connection returned goes to another server.
    let two = pass_through_head(head(&sent), client, &names);
    let kept = two.app_host();
    let (parts, ()) = two.into_http2((), &upstream).into_parts();
    assert_eq!(parts.uri.authority(), Some(&host));
    let two = RequestHead::<PassThrough>::from_unsent(parts, kept).into_http2((), &upstream);
    assert_eq!(two.uri().authority(), Some(&host));
    // weir's token goes to the upstream only.
    for (own, expected) in [
        (None, "weir:8443"),
        (Some(HeaderValue::from_static("Bearer a")), "upstream:6443"),
    ] {
        let impersonated = impersonation_head(head(&sent), client, &names, &alice(), own);
        let sent = impersonated.unwrap().into_http1((), &upstream_value);
        assert_eq!(sent.headers()["host"], expected);
    }
}

#[test]
fn only_a_trusted_proxy_may_say_which_host_was_addressed() {
    let host = Authority::from_static("weir:8443");
    let sent = [
        ("x-forwarded-host", "a.example"),
        ("x-forwarded-host", "b.example"),
        ("x-forwarded-proto", "http"),
    ];
    let forwarded = |sent: &[(&str, &str)], app_host, trusted| {
        let client = ClientAddress {
            app_host,
            trusted,
            ..CLIENT
        };
        let head = pass_through_head(head(sent), client, &IdentityHeaders::default());
        ["x-forwarded-host", "x-forwarded-proto"].map(|name| {
            let values = head.parts.headers.get_all(name).iter();
            let values: Vec<_> = values.map(|v| v.to_str().unwrap().to_owned()).collect();
            values.join(" ")
        })
    };
    let own = ["weir:8443", "https"];
    let theirs = ["a.example b.example", "http"];
    assert_eq!(forwarded(&sent, Some(&host), false), own);
    assert_eq!(forwarded(&[], Some(&host), false), own);
    assert_eq!(forwarded(&[], Some(&host), true), own);
    assert_eq!(forwarded(&sent, Some(&host), true), theirs);
    // The API server itself reads neither.
    assert_eq!(forwarded(&sent, None, false), theirs);
}

#[test]
fn the_requested_host_is_that_of_the_target_and_otherwise_the_header() {
    for (target, headers, host) in [
        ("/a", &[("host", "weir:8443")][..], Some("weir:8443")),
        (
            "/a",
            &[("host", "[2001:db8::7]:6443")],
            Some("[2001:db8::7]:6443"),
        ),
        ("https://one/a", &[("host", "two")], Some("one")),
        ("https://one/a", &[], Some("one")),
        ("https://user:secret@one:1/a", &[], Some("one:1")),
        ("/a", &[], None),
        ("/a", &[("host", "")], None),
        ("/a", &[("host", "a b")], None),
        ("/a", &[("host", "a/b")], None),
    ] {
        let mut parts = head(headers);
        parts.uri = target.parse().unwrap();
        let found = requested_host(&parts);
        assert_eq!(found.as_ref().map(Authority::as_str), host, "{target}");
    }
}

#[test]
fn values_that_always_change_are_never_indexed() {
    let usual = [
        ("audit-id", "5f1d"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("traceparent", "00-0af7-b7ad-01"),
        ("content-type", "application/json"),
    ];
    let mut headers = head(&usual).headers;
    keep_unindexed(&mut headers);
    let marked = usual.map(|(name, _)| headers[name].is_sensitive());
    assert_eq!(marked, [true, true, true, false]);
    // An index keeps no more than the value.
    let places = usual.map(|(name, _)| headers[name].as_bytes().as_ptr());
    detach_values(&mut headers);
    for ((name, value), place) in usual.into_iter().zip(places) {
        assert_eq!(headers[name], value);
        let is_copy = headers[name].as_bytes().as_ptr() != place;
        assert_eq!(is_copy, name == "content-type", "{name}");
    }
}
