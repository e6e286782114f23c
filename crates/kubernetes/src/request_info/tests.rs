//! Whole requests: a table of examples, the errors, the deadline, and arbitrary bytes.

use std::borrow::Cow;
use std::time::Duration;

use super::info::SelectorName;
use super::target::MalformedTarget;
use super::{MetricLabels, RequestInfo, TargetError, Verb};

/// Method, target, resource request?, verb, group/version, namespace, resource, subresource, name,
/// long-running?
type Example = (
    &'static str,
    &'static str,
    bool,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    bool,
);

#[rustfmt::skip]
const EXAMPLES: &[Example] = &[
    ("GET", "/", false, "get", "", "", "", "", "", false),
    ("GET", "/api", false, "get", "", "", "", "", "", false),
    ("GET", "/api/v1", false, "get", "", "", "", "", "", false),
    ("GET", "/api/v1/", false, "get", "", "", "", "", "", false),
    ("GET", "/apis", false, "get", "", "", "", "", "", false),
    ("GET", "/apis/apps", false, "get", "", "", "", "", "", false),
    ("GET", "/apis/apps/v1", false, "get", "", "", "", "", "", false),
    ("GET", "/healthz", false, "get", "", "", "", "", "", false),
    ("GET", "/livez/etcd?verbose", false, "get", "", "", "", "", "", false),
    ("POST", "/foo/bar/baz", false, "post", "", "", "", "", "", false),
    ("OPTIONS", "/version", false, "options", "", "", "", "", "", false),
    ("GET", "/openapi/v3/apis/apps/v1", false, "get", "", "", "", "", "", false),
    ("GET", "/debug/pprof/heap", false, "get", "", "", "", "", "", true),
    ("GET", "/debug/pprof", false, "get", "", "", "", "", "", false),
    ("GET", "/api/v1/namespaces", true, "list", "v1", "", "namespaces", "", "", false),
    ("GET", "/api/v1/namespaces/foo", true, "get", "v1", "foo", "namespaces", "", "foo", false),
    ("GET", "/api/v1/namespaces/foo/", true, "get", "v1", "foo", "namespaces", "", "foo", false),
    ("PUT", "/api/v1/namespaces/foo/finalize", true, "update", "v1", "foo", "namespaces", "finalize", "foo", false),
    ("PATCH", "/api/v1/namespaces/foo/status", true, "patch", "v1", "foo", "namespaces", "status", "foo", false),
    ("DELETE", "/api/v1/namespaces/foo", true, "delete", "v1", "foo", "namespaces", "", "foo", false),
    ("POST", "/api/v1/namespaces", true, "create", "v1", "", "namespaces", "", "", false),
    ("GET", "/api/v1/pods", true, "list", "v1", "", "pods", "", "", false),
    ("HEAD", "/api/v1/pods", true, "list", "v1", "", "pods", "", "", false),
    ("GET", "/api/v1/pods?watch=true", true, "watch", "v1", "", "pods", "", "", true),
    ("GET", "/api/v1/pods?watch", true, "watch", "v1", "", "pods", "", "", true),
    ("GET", "/api/v1/pods?watch=FALSE", true, "list", "v1", "", "pods", "", "", false),
    ("GET", "/api/v1/pods?watch=no", true, "watch", "v1", "", "pods", "", "", true),
    ("GET", "/api/v1/namespaces/foo/pods/bar", true, "get", "v1", "foo", "pods", "", "bar", false),
    ("HEAD", "/api/v1/namespaces/foo/pods/bar", true, "get", "v1", "foo", "pods", "", "bar", false),
    ("GET", "/api/v1/namespaces/foo/pods/bar?watch=true", true, "get", "v1", "foo", "pods", "", "bar", false),
    ("GET", "/api/v1/namespaces/foo/pods/bar/log?follow=true", true, "get", "v1", "foo", "pods", "log", "bar", true),
    ("POST", "/api/v1/namespaces/foo/pods/bar/exec?command=sh", true, "create", "v1", "foo", "pods", "exec", "bar", true),
    ("GET", "/api/v1/namespaces/foo/pods/bar/proxy/a/b", true, "get", "v1", "foo", "pods", "proxy", "bar", true),
    ("POST", "/api/v1/namespaces/foo/pods/bar/binding", true, "create", "v1", "foo", "pods", "binding", "bar", false),
    ("POST", "/api/v1/namespaces/foo/serviceaccounts/sa/token", true, "create", "v1", "foo", "serviceaccounts", "token", "sa", false),
    ("GET", "/api/v1/namespaces/foo/pods?fieldSelector=metadata.name%3Dbar", true, "list", "v1", "foo", "pods", "", "bar", false),
    ("GET", "/api/v1/namespaces/foo/pods?fieldSelector=spec.nodeName%3Dn1,metadata.name%3D%3Dbar&watch=1", true, "watch", "v1", "foo", "pods", "", "bar", true),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name!%3Dbar", true, "list", "v1", "", "pods", "", "", false),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dbar&limit=abc", true, "list", "v1", "", "pods", "", "", false),
    ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Da/b", true, "list", "v1", "", "pods", "", "", false),
    ("DELETE", "/api/v1/namespaces/foo/pods", true, "deletecollection", "v1", "foo", "pods", "", "", false),
    ("DELETE", "/api/v1/namespaces/foo/pods?fieldSelector=metadata.name%3Dbar", true, "deletecollection", "v1", "foo", "pods", "", "", false),
    ("GET", "/api/v1/watch/pods", true, "watch", "v1", "", "pods", "", "", true),
    ("GET", "/api/v1/watch/namespaces/foo/pods/bar", true, "watch", "v1", "foo", "pods", "", "bar", true),
    ("GET", "/api/v1/watch/namespaces/foo", true, "watch", "v1", "foo", "namespaces", "", "foo", true),
    ("GET", "/api/v1/proxy/nodes/n1/stats/x", true, "proxy", "v1", "", "nodes", "", "n1", true),
    ("POST", "/api/v1/proxy/namespaces/foo/services/s/a", true, "proxy", "v1", "foo", "services", "", "s", true),
    ("GET", "/api/v1//pods", true, "get", "v1", "", "", "", "pods", false),
    ("GET", "//api/v1/pods", true, "list", "v1", "", "pods", "", "", false),
    ("GET", "/api/v1/namespaces//pods", true, "list", "v1", "", "pods", "", "", false),
    ("GET", "/api/v1/namespaces/foo%2Fbar/pods", true, "get", "v1", "foo", "bar", "", "pods", false),
    ("GET", "/api/v1/namespaces/foo/pods/a%20b", true, "get", "v1", "foo", "pods", "", "a b", false),
    ("OPTIONS", "/api/v1/pods", true, "", "v1", "", "pods", "", "", false),
    ("CONNECT", "/api/v1/namespaces/foo/pods/bar/attach", true, "", "v1", "foo", "pods", "attach", "bar", true),
    ("PATCH", "/apis/apps/v1/namespaces/foo/deployments/d/scale", true, "patch", "apps/v1", "foo", "deployments", "scale", "d", false),
    ("POST", "/apis/events.k8s.io/v1/namespaces/foo/events", true, "create", "events.k8s.io/v1", "foo", "events", "", "", false),
    ("PUT", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/probes/status", true, "update", "flowcontrol.apiserver.k8s.io/v1", "", "flowschemas", "status", "probes", false),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", true, "create", "authentication.k8s.io/v1", "", "tokenreviews", "", "", false),
    ("GET", "/apis/apps/v1/watch/deployments", true, "watch", "apps/v1", "", "deployments", "", "", true),
    ("GET", "/APIS/apps/v1/deployments", false, "get", "", "", "", "", "", false),
];

fn resolve<'a>(method: &str, target: &'a str) -> RequestInfo<'a> {
    RequestInfo::parse(method, target.as_bytes()).unwrap()
}

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[test]
fn examples_are_resolved_as_kubernetes_does() {
    for &(
        method,
        target,
        resource_request,
        verb,
        version,
        namespace,
        resource,
        subresource,
        name,
        long,
    ) in EXAMPLES
    {
        let info = resolve(method, target);
        let group = text(info.api_group());
        let slash = if group.is_empty() { "" } else { "/" };
        let found = (
            info.is_resource_request(),
            info.verb().as_str(),
            format!("{group}{slash}{}", text(info.api_version())),
            [
                info.namespace(),
                info.resource(),
                info.subresource(),
                info.name(),
            ]
            .map(text),
            info.long_running(),
        );
        let names = [namespace, resource, subresource, name].map(Cow::Borrowed);
        let expected = (resource_request, verb, version.to_owned(), names, long);
        assert_eq!(found, expected, "{method} {target}");
        assert_eq!(
            info.mutating(),
            !matches!(verb, "get" | "list" | "watch"),
            "{method} {target}"
        );
    }
}

#[test]
fn selectors_are_kept_as_written_for_verbs_that_have_them() {
    let selectors =
        "fieldSelector=metadata.name%3Dfoo&fieldSelector=metadata.name%3Dbar&labelSelector=a+b";
    let cases = [
        ("GET", "/apis/g/v/r", "list", "", "metadata.name=foo", "a b"),
        (
            "GET",
            "/apis/g/v/r?watch",
            "watch",
            "",
            "metadata.name=foo",
            "a b",
        ),
        (
            "DELETE",
            "/apis/g/v/r",
            "deletecollection",
            "",
            "metadata.name=foo",
            "a b",
        ),
        ("GET", "/apis/g/v/r/n", "get", "n", "", ""),
        ("GET", "/apis/g/v/watch/r", "watch", "", "", ""),
        ("GET", "/apis/g/v/watch/r/n", "watch", "n", "", ""),
        ("POST", "/apis/g/v/r", "create", "", "", ""),
    ];
    for (method, path, verb, name, fields, labels) in cases {
        let separator = if path.contains('?') { '&' } else { '?' };
        let target = format!("{path}{separator}{selectors}");
        let info = resolve(method, &target);
        let found = [info.name(), info.field_selector(), info.label_selector()].map(text);
        assert_eq!(info.verb().as_str(), verb, "{target}");
        assert_eq!(found, [name, fields, labels].map(Cow::Borrowed), "{target}");
    }
}

#[test]
fn a_selector_name_must_be_a_path_segment() {
    let name = |value: &str| {
        let target = format!("/api/v1/pods?fieldSelector=metadata.name%3D{value}");
        text(resolve("GET", &target).name()).into_owned()
    };
    for none in [".", "..", "a/b", "a%25b", "", "%5C", "a%3Db"] {
        assert_eq!(name(none), "", "{none}");
    }
    assert_eq!(name("..."), "...");
    assert_eq!(name("a%5C,b%5C%3Dc"), "a,b=c");
    assert_eq!(name("+a"), " a");
}

#[test]
fn parts_are_borrowed_where_possible() {
    let info = resolve(
        "GET",
        "/api/v1/namespaces/foo/pods?limit=500&resourceVersion=0&fieldSelector=a=b",
    );
    assert!(matches!(info.path, Cow::Borrowed(_)));
    assert!(matches!(info.field_selector, Cow::Borrowed(_)));
    let info = resolve(
        "GET",
        "/api/v1/secrets?fieldSelector=metadata.name=x&watch=true",
    );
    assert!(matches!(
        info.selector_name,
        Some(SelectorName::AsWritten(_))
    ));
    assert_eq!((info.name(), info.verb()), (&b"x"[..], &Verb::Watch));
}

#[test]
fn exact_matches_are_found_in_any_request_whose_options_decode() {
    let demanded = |target: &str| {
        let info = RequestInfo::parse("GET", target.as_bytes()).unwrap();
        let value = info.requires_exact_match("spec.nodeName");
        value.map(|value| String::from_utf8(value).unwrap())
    };
    let cases = [
        (
            "/api/v1/watch/pods?fieldSelector=a!%3Db,spec.nodeName%3Dn%5C,1",
            Some("n,1"),
        ),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3D", Some("")),
        ("/api/v1/pods?fieldSelector=spec.nodeName!%3Dn", None),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn&limit=x", None),
        (
            "/api/v1/pods?fieldSelector=spec.nodeName%3Dn&labelSelector=a+b",
            None,
        ),
        ("/api/v1/pods", None),
    ];
    for (target, value) in cases {
        assert_eq!(demanded(target).as_deref(), value, "{target}");
    }
}

#[test]
fn parts_begin_at_the_resource() {
    let parts = |target| {
        resolve("GET", target)
            .parts()
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
    };
    assert_eq!(parts("/healthz"), Vec::<Vec<u8>>::new());
    assert_eq!(
        parts("/api/v1/namespaces/a/pods/b//c/"),
        [&b"pods"[..], b"b", b"", b"c"]
    );
    assert_eq!(
        parts("/api/v1/namespaces/a/status"),
        [&b"namespaces"[..], b"a", b"status"]
    );
}

#[test]
fn a_method_named_like_a_verb_is_that_verb_on_non_resources() {
    assert!(resolve("WATCH", "/healthz").long_running());
    assert!(!resolve("LIST", "/healthz").mutating());
    assert!(resolve("WATCH", "/api/v1/pods").mutating());
    assert_eq!(resolve("PropFind", "/x").verb().as_str(), "propfind");
}

#[test]
fn a_path_verb_without_an_object_is_the_500_of_upstream() {
    let target = "/api/v1/watch/?a=\"<b>&\u{e9}\\";
    let Err(TargetError::Unresolvable(found)) = RequestInfo::parse("HEAD", target.as_bytes())
    else {
        panic!("{target} is not refused");
    };
    assert_eq!(
        text(&found.message()),
        "unable to determine kind and namespace from url, /api/v1/watch/?a=\"<b>&\u{e9}\\"
    );
    assert_eq!(
        text(&found.body()),
        "Internal Server Error: \"/api/v1/watch/?a=\\\"&lt;b&gt;&amp;\u{e9}\\\\\": failed to create RequestInfo: \
         unable to determine kind and namespace from url, /api/v1/watch/?a=\"&lt;b&gt;&amp;\u{e9}\\\n"
    );
    let info = found.info();
    assert_eq!((info.verb(), info.api_version()), (&Verb::Head, &b"v1"[..]));
    assert_eq!(
        (info.is_resource_request(), info.parts().count()),
        (true, 0)
    );

    let Err(TargetError::Unresolvable(found)) = RequestInfo::parse("GET", b"/api/\xff/proxy?\xff")
    else {
        panic!("not refused");
    };
    assert_eq!(
        found.body(),
        b"Internal Server Error: \"/api/\\xff/proxy?\\xff\": failed to create RequestInfo: \
          unable to determine kind and namespace from url, /api/%FF/proxy?\xff\n"
    );
}

#[test]
fn a_malformed_target_has_a_reason() {
    let Err(TargetError::Malformed(fault)) = RequestInfo::parse("GET", b"/api/v1/pods/%zz") else {
        panic!("not refused");
    };
    assert_eq!(fault, MalformedTarget::Escape);
    assert_eq!(
        fault.to_string(),
        "the path holds a malformed percent-escape"
    );
}

#[test]
fn a_timeout_applies_if_it_is_shorter_than_the_deadline() {
    let timeout = |query: &str| {
        let target = format!("/api/v1/pods?{query}");
        let info = resolve("GET", &target);
        info.timeout(Duration::from_secs(60))
            .map_err(|error| error.to_string())
    };
    for none in [
        "",
        "timeout",
        "timeout=",
        "timeout=0",
        "timeout=0s",
        "timeout=-5s",
        "timeout=60s",
        "timeout=2h",
    ] {
        assert_eq!(timeout(none), Ok(None), "{none}");
    }
    assert_eq!(
        timeout("timeout=59.5s&timeout=x"),
        Ok(Some(Duration::from_millis(59_500)))
    );
    assert_eq!(
        timeout("timeout=1%C2%B5s"),
        Ok(Some(Duration::from_micros(1)))
    );
    assert_eq!(
        timeout("timeout=x&watch=1"),
        Ok(None),
        "a watch has no deadline"
    );
    assert_eq!(
        timeout("timeout=30"),
        Err(
            "invalid timeout specified in the request URL - time: missing unit in duration \"30\""
                .to_owned()
        )
    );
}

/// Marsaglia's xorshift: the seed determines a run.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let length = u64::try_from(from.len()).unwrap();
        from[usize::try_from(self.next() % length).unwrap()]
    }
}

/// Reads every attribute of a request.
fn read_all_parts(method: &str, target: &[u8]) {
    match RequestInfo::parse(method, target) {
        Ok(info) => {
            let labels = MetricLabels::from_request(method, &info, Some(target));
            let _ = (
                info.timeout(Duration::from_secs(60)),
                labels,
                info.long_running(),
            );
            assert!(info.parts().count() <= target.len() + 1);
            assert_eq!(info.parts().next().unwrap_or_default(), info.resource());
        }
        Err(TargetError::Malformed(_)) => {}
        Err(TargetError::Unresolvable(found)) => assert!(found.body().ends_with(b"\n")),
    }
}

/// Pieces of random targets.
#[rustfmt::skip]
const PIECES: &[&[u8]] = &[
    b"/", b"//", b"api", b"apis", b"v1", b"watch", b"proxy", b"namespaces", b"status", b"pods",
    b"a", b"?", b"&", b"=", b";", b"%", b"%2", b"%2F", b"%3D", b"%2C", b"%5C", b"%00", b"%FF",
    b"fieldSelector=", b"labelSelector=", b"metadata.name", b"watch=", b"limit=", b"timeout=",
    b"dryRun=", b"timeoutSeconds", b"in", b"notin", b"(", b")", b"!", b"<", b">", b",", b"+",
    b"\\", b"\xff", b"\xc3\xa9", b"\xe2\x82", b"http://", b"[", b"]", b"@", b":", b"::1", b"%25",
    b"*", b"9223372036854775808", b"ns", b".", b"-", b" ", b"\n", b"#",
];
#[rustfmt::skip]
const METHODS: &[&str] = &[
    "GET", "HEAD", "POST", "DELETE", "CONNECT", "OPTIONS", "get", "WATCH", "", "Ünüsüäl", "\0",
];

#[test]
fn arbitrary_methods_and_targets_cause_no_panic() {
    for seed in 1..=20_000_u64 {
        let mut random = Xorshift(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let method = random.pick(METHODS);
        let pieces = random.next() % 24;
        let mut target = if seed % 2 == 0 {
            b"/api/v1".to_vec()
        } else {
            Vec::new()
        };
        for _ in 0..pieces {
            if seed % 5 == 0 {
                target.push(random.next().to_le_bytes()[3]);
            } else {
                target.extend_from_slice(random.pick(PIECES));
            }
        }
        let caught = std::panic::catch_unwind(|| read_all_parts(method, &target));
        assert!(
            caught.is_ok(),
            "seed {seed}: {method:?} {:?}",
            text(&target)
        );
    }
}
