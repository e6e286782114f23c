use super::*;

#[test]
fn protobuf_is_used_only_if_nothing_else_is_accepted() {
    for (accept, expected) in [
        ("application/vnd.kubernetes.protobuf", true),
        (
            "application/vnd.kubernetes.protobuf, application/vnd.kubernetes.protobuf;q=0.5",
            true,
        ),
        (
            "application/vnd.kubernetes.protobuf,application/json",
            false,
        ),
        ("application/vnd.kubernetes.protobuf, */*", false),
        ("text/html", false),
    ] {
        assert_eq!(
            wants_protobuf(Some(&HeaderValue::from_static(accept))),
            expected,
            "{accept}"
        );
    }
}

#[test]
fn tools_and_browsers_and_those_that_ask_for_it_get_indented_json() {
    let encoding = |target: &str, headers: &[(&str, &str)]| {
        let mut request = http::Request::get(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        StatusEncoding::from_request(&head)
    };
    let curl = ("user-agent", "curl/7.88.1");
    let kubectl = ("user-agent", "kubectl/v1.36.2");
    let protobuf = ("accept", "application/vnd.kubernetes.protobuf");
    for (target, headers, expected) in [
        ("/api", &[kubectl][..], StatusEncoding::Json),
        ("/api", &[], StatusEncoding::Json),
        ("/api", &[curl], StatusEncoding::PrettyJson),
        (
            "/api",
            &[("user-agent", "Mozilla/5.0 (X11)")],
            StatusEncoding::PrettyJson,
        ),
        ("/api?pretty=true", &[kubectl], StatusEncoding::PrettyJson),
        ("/api?pretty=1", &[kubectl], StatusEncoding::PrettyJson),
        ("/api?pretty=false", &[curl], StatusEncoding::Json),
        ("/api?pretty=yes", &[curl], StatusEncoding::Json),
        ("/api?pretty=", &[curl], StatusEncoding::PrettyJson),
        ("/api", &[curl, protobuf], StatusEncoding::Protobuf),
    ] {
        assert_eq!(encoding(target, headers), expected, "{target} {headers:?}");
    }
}
