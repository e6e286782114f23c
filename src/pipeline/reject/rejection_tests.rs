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
