//! Tests of events against those of kube-apiserver.

use serde_json::{Value, json};

use super::*;

/// Written by kube-apiserver 1.36. The reasons of authorization, which weir cannot know, are
/// removed from each.
const KUBE_APISERVER_EVENTS: [&str; 3] = [
    r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"f9fbc0fe-b1e5-4a97-9183-c4eaa7ef4292","stage":"ResponseStarted","requestURI":"/api/v1/namespaces/team-a/pods/web-01-16dc368a8-9b428/exec?command=true\u0026container=c0\u0026stderr=true\u0026stdout=true","verb":"get","user":{"username":"kubernetes-admin","groups":["system:masters","system:authenticated"],"extra":{"authentication.kubernetes.io/credential-id":["X509SHA256=22cb98fed9224b619dbd158b8d9b5c1d0688069115d8b83b6ec882f55d98c0f2"]}},"sourceIPs":["127.0.0.1"],"userAgent":"kubectl/v1.32.4 (linux/amd64) kubernetes/4cb5f07","objectRef":{"resource":"pods","namespace":"team-a","name":"web-01-16dc368a8-9b428","apiVersion":"v1","subresource":"exec"},"responseStatus":{"metadata":{},"code":101},"requestReceivedTimestamp":"2026-11-21T03:44:46.038141Z","stageTimestamp":"2026-11-21T03:44:46.039427Z"}"#,
    r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"825861ca-3710-4894-a245-0483924281a4","stage":"ResponseStarted","requestURI":"/apis/discovery.k8s.io/v1/endpointslices?allowWatchBookmarks=true\u0026resourceVersionMatch=NotOlderThan\u0026sendInitialEvents=true\u0026timeout=6m42s\u0026timeoutSeconds=402\u0026watch=true","verb":"watch","user":{"username":"system:apiserver","uid":"f0eaa49a-5f50-4b1a-9e26-89d640323729","groups":["system:authenticated","system:masters"]},"sourceIPs":["127.0.0.1"],"userAgent":"kube-apiserver/v0.0.0 (linux/amd64) kubernetes/$Format","objectRef":{"resource":"endpointslices","apiGroup":"discovery.k8s.io","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-11-21T03:43:48.054794Z","stageTimestamp":"2026-11-21T03:43:48.072373Z"}"#,
    r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"a5f40c28-1e7a-4e5f-95b7-39590a1d4c96","stage":"ResponseComplete","requestURI":"/readyz","verb":"get","user":{"username":"system:apiserver","uid":"f0eaa49a-5f50-4b1a-9e26-89d640323729","groups":["system:authenticated","system:masters"]},"sourceIPs":["127.0.0.1"],"userAgent":"kube-apiserver/v0.0.0 (linux/amd64) kubernetes/$Format","responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-11-21T03:43:49.368689Z","stageTimestamp":"2026-11-21T03:43:49.369042Z"}"#,
];

fn strings(value: &Value) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items
        .map(|text| text.as_str().unwrap().to_owned())
        .collect()
}

/// Returns the entry that weir would have made for the request of an event.
fn entry_from_event(event: &Value) -> AuditEntry {
    let text = |field: &str| event[field].as_str().unwrap();
    let user = &event["user"];
    let extra = user["extra"].as_object().into_iter().flatten();
    let target = text("requestURI");
    let long_running = RequestInfo::parse("GET", target.as_bytes())
        .unwrap()
        .long_running();
    let received: Timestamp = text("requestReceivedTimestamp").parse().unwrap();
    let stage: Timestamp = text("stageTimestamp").parse().unwrap();
    let code = event["responseStatus"]["code"].as_u64().unwrap();
    let code = u16::try_from(code).unwrap().try_into().unwrap();
    AuditEntry {
        id: text("auditID").as_bytes().into(),
        method: Method::GET,
        target: target.into(),
        user: Some(Arc::new(UserInfo {
            name: user["username"].as_str().unwrap().to_owned(),
            uid: user["uid"].as_str().unwrap_or_default().to_owned(),
            groups: strings(&user["groups"]),
            extra: extra
                .map(|(key, values)| (key.clone(), strings(values)))
                .collect(),
        })),
        impersonated: None,
        peer: event["sourceIPs"][0].as_str().unwrap().parse().unwrap(),
        forwarded_for: Box::default(),
        user_agent: text("userAgent").as_bytes().into(),
        long_running,
        response_started: false,
        decision: None,
        rule: None,
        policies: None,
        dry_run: None,
        outcome: RequestOutcome::Responded(code),
        phase: if long_running {
            AuditPhase::ResponseStarted
        } else {
            AuditPhase::RequestEnded
        },
        received_at: received,
        elapsed: stage.duration_since(received).unsigned_abs(),
    }
}

fn sample_entry() -> AuditEntry {
    entry_from_event(&serde_json::from_str(KUBE_APISERVER_EVENTS[2]).unwrap())
}

fn watch_entry() -> AuditEntry {
    entry_from_event(&serde_json::from_str(KUBE_APISERVER_EVENTS[1]).unwrap())
}

fn events(entry: &AuditEntry, policy: &AuditPolicy) -> Vec<Value> {
    let mut lines = Vec::new();
    let (count, _) = entry.append_events(policy, &mut lines);
    let events: Vec<Value> = String::from_utf8(lines)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(usize::try_from(count).unwrap(), events.len());
    events
}

fn all_events(entry: &AuditEntry) -> Vec<Value> {
    events(entry, &AuditPolicy::log_all())
}

fn stages(entry: &AuditEntry) -> Vec<String> {
    let stage = |event: &Value| event["stage"].as_str().unwrap().to_owned();
    all_events(entry).iter().map(stage).collect()
}

#[test]
fn events_are_written_as_kube_apiserver_writes_them() {
    for written in KUBE_APISERVER_EVENTS {
        let entry = entry_from_event(&serde_json::from_str(written).unwrap());
        let mut lines = Vec::new();
        entry.append_events(&AuditPolicy::log_all(), &mut lines);
        let lines = String::from_utf8(lines).unwrap();
        let (received, last) = lines.trim_end().split_once('\n').unwrap();
        assert_eq!(last, written);
        let received: Value = serde_json::from_str(received).unwrap();
        assert_eq!(received["stage"], "RequestReceived");
        assert_eq!(
            received["stageTimestamp"],
            received["requestReceivedTimestamp"]
        );
        assert_eq!(received["responseStatus"], Value::Null);
        assert_eq!(received["annotations"], Value::Null);
    }
}

#[test]
fn each_stage_is_written_once_wherever_a_request_ends() {
    let mut ended = watch_entry();
    assert_eq!(stages(&ended), ["RequestReceived", "ResponseStarted"]);
    (ended.phase, ended.response_started) = (AuditPhase::RequestEnded, true);
    assert_eq!(stages(&ended), ["ResponseComplete"]);
    ended.outcome = RequestOutcome::Panicked;
    assert_eq!(stages(&ended), ["Panic"]);

    let mut rejected = watch_entry();
    rejected.phase = AuditPhase::RequestEnded;
    rejected.outcome = RequestOutcome::Rejected("queue-full");
    let three = ["RequestReceived", "ResponseStarted", "ResponseComplete"];
    assert_eq!(stages(&rejected), three);

    let mut panicked = sample_entry();
    panicked.outcome = RequestOutcome::Panicked;
    let events = all_events(&panicked);
    assert_eq!(events.len(), 2);
    assert_eq!(events[1]["stage"], "Panic");
    assert_eq!(events[1]["responseStatus"]["code"], 500);
}

#[test]
fn a_request_that_fails_before_it_is_authenticated_is_one_event_without_a_user() {
    let unauthorized = RequestOutcome::Responded(StatusCode::UNAUTHORIZED);
    for (entry, outcome) in [
        (sample_entry(), unauthorized),
        (watch_entry(), unauthorized),
        (
            sample_entry(),
            RequestOutcome::Failed(StatusCode::UNAUTHORIZED),
        ),
        (
            AuditEntry {
                user: None,
                ..sample_entry()
            },
            RequestOutcome::Failed(StatusCode::BAD_REQUEST), // ?timeout=abc
        ),
    ] {
        let mut entry = AuditEntry { outcome, ..entry };
        let events = all_events(&entry);
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(events[0]["stage"], "ResponseStarted");
        assert_eq!(events[0]["user"], json!({}));
        assert_eq!(
            events[0]["responseStatus"]["code"],
            outcome.code().unwrap().as_u16()
        );
        if entry.long_running {
            (entry.phase, entry.response_started) = (AuditPhase::RequestEnded, true);
            assert_eq!(all_events(&entry).len(), 0, "no end of its own");
        }
    }
    let mut proxied = entry_from_event(&serde_json::from_str(KUBE_APISERVER_EVENTS[0]).unwrap());
    proxied.outcome = unauthorized;
    assert_eq!(stages(&proxied), ["RequestReceived", "ResponseStarted"]);
}

#[test]
fn texts_are_printed_as_go_prints_them() {
    let mut entry = sample_entry();
    entry.user_agent = b"a\xe2\x82b".as_slice().into();
    for (target, printed) in [
        (
            "/api/v1/namespaces/\u{fc}?x=\u{fc}",
            "/api/v1/namespaces/%C3%BC?x=\u{fc}",
        ),
        ("/api/v1/namespaces/a%2fb", "/api/v1/namespaces/a%2fb"),
        ("/x%2fy|?token=a", "/x/y%7C?token=redacted"),
    ] {
        entry.target = target.into();
        let event = all_events(&entry).pop().unwrap();
        assert_eq!(event["requestURI"], printed);
        assert_eq!(event["userAgent"], "a\u{fffd}\u{fffd}b");
    }
}

#[test]
fn only_the_uid_that_weir_gives_an_unauthenticated_user_is_left_out() {
    let named = |groups: &[&str]| UserInfo {
        name: "system:anonymous".to_owned(),
        uid: "u-1".to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        extra: Vec::new(),
    };
    for (user, uid) in [
        (named(&["dev", ""]), json!("u-1")),
        (
            UserInfo::unverified("network:10.0.0.0/24".to_owned()),
            Value::Null,
        ),
    ] {
        let entry = AuditEntry {
            user: Some(Arc::new(user)),
            ..sample_entry()
        };
        assert_eq!(all_events(&entry)[0]["user"]["uid"], uid);
    }
}

#[test]
fn a_policy_omits_stages_and_requests() {
    let read = |text: &str| {
        let mut diagnostics = weir_kubernetes::document::Diagnostics::default();
        let policy = AuditPolicy::parse("policy.yaml", text, &mut diagnostics);
        assert!(diagnostics.is_empty(), "{diagnostics}");
        policy.unwrap()
    };
    let stages = read(
        "{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: [{level: Metadata}]}",
    );
    let remaining = events(&sample_entry(), &stages);
    assert_eq!(remaining.len(), 1);
    assert_eq!(remaining[0]["stage"], "ResponseComplete");
    let others = read(
        "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata, users: [alice]}]}",
    );
    let (count, level) = sample_entry().append_events(&others, &mut Vec::new());
    assert_eq!((count, level), (0, AuditLevel::None));
}

#[test]
fn unknown_fields_are_omitted() {
    let mut aborted = sample_entry();
    aborted.outcome = RequestOutcome::NoResponse;
    aborted.user = None;
    aborted.user_agent = Box::default();
    let event = &all_events(&aborted)[1];
    let status = serde_json::json!({
        "metadata": {}, "status": "Failure", "message": "Connection closed early",
    });
    assert_eq!(event["responseStatus"], status);
    assert_eq!(event["user"], serde_json::json!({}));
    assert_eq!(event.get("userAgent"), None);
    assert_eq!(event.get("annotations"), None);
}

#[test]
fn a_credential_in_a_query_is_redacted() {
    let mut entry = sample_entry();
    entry.target = "/readyz?verbose&access_token=abc".into();
    for event in all_events(&entry) {
        assert_eq!(event["requestURI"], "/readyz?verbose&access_token=redacted");
    }
}

#[test]
fn the_token_hash_of_an_unverified_user_is_not_written() {
    let mut unverified = sample_entry();
    unverified.user = Some(Arc::new(UserInfo::unverified("mark".to_owned())));
    let expected = serde_json::json!({
        "username": "system:anonymous", "groups": ["system:unauthenticated"],
    });
    assert_eq!(all_events(&unverified)[1]["user"], expected);
}

#[test]
fn the_impersonated_user_is_written_once_impersonation_is_decided() {
    let mut entry = sample_entry();
    entry.impersonated = Some(Arc::new(UserInfo {
        name: "bob".to_owned(),
        ..UserInfo::default()
    }));
    let [received, event] = &all_events(&entry)[..] else {
        panic!("two events");
    };
    assert_eq!(received.get("impersonatedUser"), None);
    assert_eq!(event["user"]["username"], "system:apiserver");
    assert_eq!(
        event["impersonatedUser"],
        serde_json::json!({"username": "bob"})
    );
}

#[test]
fn source_ips_are_the_forwarded_addresses_and_the_peer() {
    for (named, sources) in [
        ("", &["127.0.0.1"][..]),
        (
            "192.0.2.7, nonsense,2001:db8::1",
            &["192.0.2.7", "2001:db8::1", "127.0.0.1"],
        ),
        ("192.0.2.7,127.0.0.1", &["192.0.2.7", "127.0.0.1"]),
        ("::ffff:192.0.2.7", &["192.0.2.7", "127.0.0.1"]),
    ] {
        let mut entry = sample_entry();
        entry.forwarded_for = named.as_bytes().into();
        assert_eq!(
            all_events(&entry)[0]["sourceIPs"],
            serde_json::json!(sources)
        );
    }
}

#[test]
fn long_client_headers_are_truncated() {
    let header = |text: &str| HeaderValue::from_str(text).unwrap();
    let user_agent = "x".repeat(1024);
    assert_eq!(
        *truncate_user_agent(Some(&header(&user_agent))),
        *user_agent.as_bytes()
    );
    let too_long = format!("{user_agent}y");
    let truncated = format!("{user_agent}...TRUNCATED");
    assert_eq!(
        *truncate_user_agent(Some(&header(&too_long))),
        *truncated.as_bytes()
    );

    let addresses = "192.0.2.71, ".repeat(1000) + "192.0.2.1";
    let kept = truncate_forwarded_for(Some(&header(&addresses)));
    assert!(kept.len() <= MAX_FORWARDED_FOR_BYTES);
    let kept = String::from_utf8(kept.into()).unwrap();
    assert!(
        kept.split(',')
            .all(|ip| ip.trim().parse::<IpAddr>().is_ok())
    );
    assert!(kept.ends_with("192.0.2.71, 192.0.2.1"));
}

#[test]
fn invalid_utf8_is_replaced_and_every_line_is_valid_json() {
    let mut odd = sample_entry();
    odd.id = b"\"\xff\n".as_slice().into();
    odd.user_agent = b"\xfe\\".as_slice().into();
    odd.target = "/api/v1/namespaces/a/pods/%ff%0a?\u{e9}".into();
    let event = &all_events(&odd)[1];
    assert_eq!(event["auditID"], "\"\u{fffd}\n");
    assert_eq!(event["objectRef"]["name"], "\u{fffd}\n");
    assert_eq!(event["requestURI"], &*odd.target);
}

#[test]
fn the_size_of_an_entry_includes_its_texts() {
    let (mut entry, light) = (sample_entry(), sample_entry().size_bytes());
    entry.target = "x".repeat(60_000).into();
    entry.user = Some(Arc::new(UserInfo {
        groups: vec!["g".repeat(100); 1000],
        ..UserInfo::default()
    }));
    assert!(entry.size_bytes() > light + 160_000 - 1000);
    assert!(light < 1000, "{light}");
}
