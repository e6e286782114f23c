//! What fuzzing runs: each target reads any bytes, and panics where something is wrong. `fuzz/run`
//! lets them be chosen by coverage; here they are run over `fuzz/seeds` and what becomes of these by
//! random changes.

mod two_users;

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::handover::message::{Message, decode_text, encode_frame};
use crate::identity::impersonation::target::{HeaderRules, impersonation_target};
use crate::identity::request_header::IdentityHeaders;
use crate::server::connection::head_model_tests;
use crate::upstream::headers::request_trailers;
use weir_agreement::lease::{LeaseScope, parse_lease, parse_list};
use weir_agreement::message::ReplicaMessage;
use weir_audit::policy::AuditPolicy;
use weir_base::clock::Clock;
use weir_cel::{Condition, ConditionInput};
use weir_flowcontrol::work_estimator::resource_metrics::ResourceMetrics;
use weir_io::frame_scanner::FrameScanner;
use weir_io::proxy_protocol::parse_source_address;
use weir_kubernetes::api::watch_frames::{MediaType, WatchFrames};
use weir_kubernetes::api::{UserInfo, flowcontrol};
use weir_kubernetes::document::{Diagnostics, parse_all};
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::events::body::EventEncoding;
use weir_limits::rate::{clients, events, policies};
use weir_limits::shared_limits::bucket::{CALL_INTERVAL, RefillStep, SharedBucket, SharedRate};
use weir_limits::shared_limits::replica_count::ReplicaCount;
use weir_limits::shared_limits::script::parse_answer;
use weir_limits::throttling::token_bucket::Rate;
use weir_status::replica_snapshot::ReplicaSnapshot;
use weir_tokens::bearer::bearer_credential;
use weir_tokens::jwt::{Jwt, KeySet, authentication_config};
use weir_x509::Certificate;
use weir_x509::CertificateSubject;

/// A target: its name, and what it does.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. Those of the network come first.
pub const TARGETS: &[Target] = &[
    ("request-target", request_target),
    ("event-body", event_body),
    ("http1-connection", http1_connection),
    ("http2-frames", http2_frames),
    ("two-users", two_users::run),
    ("redis-reply", redis_reply),
    ("proxy-header", proxy_header),
    ("certificate", certificate),
    ("jwt", jwt),
    ("identity-headers", identity_headers),
    ("trailers", trailers),
    ("peer-message", peer_message),
    ("replica-snapshot", replica_snapshot),
    ("replica-lease", replica_lease),
    ("watch-stream", watch_stream),
    ("handover-message", handover_message),
    ("server-metrics", server_metrics),
    ("configuration", configuration),
    ("policy-condition", policy_condition),
    ("audit-log", audit_log),
    ("queue-set", queue_set),
];

/// A method and a target, with a newline between them: as by a slow model of Kubernetes' rules.
fn request_target(bytes: &[u8]) {
    #[cfg(fuzzing)]
    weir_kubernetes::request_info::model_tests::compare_bytes(bytes);
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let (method, target) = (parts.next(), parts.next());
    if let (Some(Ok(method)), Some(target)) = (method.map(str::from_utf8), target) {
        let _ = RequestInfo::parse(method, target); // it is invalid, or not
    }
}

/// The first byte chooses encoding and version: as by general decoders.
fn event_body(bytes: &[u8]) {
    #[cfg(fuzzing)]
    events::body::model_tests::compare_bytes(bytes);
    for encoding in [
        EventEncoding::Cbor,
        EventEncoding::Json,
        EventEncoding::Protobuf,
        EventEncoding::Yaml,
    ] {
        let _ = events::body::parse(encoding, b"v1", bytes); // it is an event, or not
    }
}

/// What a client sends: as by a slow model, and however it is divided.
fn http1_connection(bytes: &[u8]) {
    thread_local! {
        static RUNTIME: RefCell<tokio::runtime::Runtime> = RefCell::new(
            tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap(),
        );
    }
    RUNTIME.with_borrow(|runtime| {
        runtime.block_on(head_model_tests::compare(0, bytes));
    });
}

/// The first byte says how the others are divided: they are counted alike.
fn http2_frames(bytes: &[u8]) {
    let Some((size, bytes)) = bytes.split_first() else {
        return;
    };
    let counts = |scanner: &FrameScanner| {
        (
            scanner.completed_units(),
            scanner.last_stream_id(),
            scanner.exceeds_fields(),
            scanner.ineffective_frames(),
            scanner.incomplete().is_some(),
        )
    };
    let (mut whole, mut divided) = (FrameScanner::default(), FrameScanner::default());
    whole.feed(bytes);
    for part in bytes.chunks(1 + usize::from(*size)) {
        divided.feed(part);
    }
    assert_eq!(counts(&whole), counts(&divided));
}

/// What a server of shared limits answers, reply by reply: a number of replicas, or the answer to a
/// call. Whatever it says, each answer lets its slice and one local share pass, and once nothing more
/// is said, requests pass again.
fn redis_reply(mut bytes: &[u8]) {
    let mut now = Clock.now();
    let mut replicas = ReplicaCount::new(2);
    let rate = SharedRate {
        total: Rate::from_share(10.0, 5.0),
        reserve: 0.2,
        replicas: 2,
    };
    let local = rate.local();
    let mut bucket = SharedBucket::new(&rate, now);
    let (mut granted, mut most) = (0.0, local.burst());
    let mut parser = redis::Parser::new();
    while let Ok(reply) = parser.parse_value(&mut bytes) {
        now += CALL_INTERVAL;
        most += local.per_second() * CALL_INTERVAL.as_secs_f64();
        if let Ok(counted) = redis::from_redis_value_ref(&reply) {
            assert!(replicas.record(counted, now) >= 1);
        }
        if let RefillStep::Call(call) = bucket.step(&rate, now)
            && let Ok(texts) = redis::from_redis_value(reply)
            && let Some(answer) = parse_answer(&texts)
        {
            let answer = answer.within(&rate.total, &call);
            most += answer.granted + local.burst();
            bucket.apply(&rate, answer, now);
        }
        for urgent in [false, true, false, true, false, true] {
            let reserved = bucket.reserve(&rate, urgent, now, Duration::ZERO);
            granted += f64::from(u8::from(reserved.is_ok()));
        }
        assert!(granted <= most, "{granted} of {most}");
    }
    let later = now + Duration::from_secs(120);
    let reserved = bucket.reserve(&rate, true, later, Duration::ZERO);
    assert_eq!(reserved, Ok(Duration::ZERO));
}

fn proxy_header(bytes: &[u8]) {
    let _ = parse_source_address(bytes); // it is invalid, or not
}

/// A certificate, or the name of a subject.
fn certificate(bytes: &[u8]) {
    let _ = CertificateSubject::parse(bytes); // it is invalid, or not
    if let Ok(certificate) = Certificate::parse(bytes) {
        let _ = CertificateSubject::parse(certificate.subject()); // likewise
        assert_eq!(certificate.der(), bytes);
    }
}

/// A token, or a key set.
fn jwt(bytes: &[u8]) {
    if let Some(token) = Jwt::parse(bytes) {
        let _ = (token.issuer(), token.key_id(), token.expiry());
    }
    let _ = KeySet::from_jwks(bytes); // it is none, or has keys
    let _ = KeySet::from_pem(bytes); // likewise
}

/// The lines `NAME:VALUE` that are headers.
fn header_lines(bytes: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().map(HeaderName::from_bytes);
        let value = parts.next().map(HeaderValue::from_bytes);
        if let (Some(Ok(name)), Some(Ok(value))) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// Header lines. After the identity headers are removed, no header names a user.
fn identity_headers(bytes: &[u8]) {
    let mut headers = header_lines(bytes);
    let _ = bearer_credential(&headers, headers.get(header::UPGRADE)); // there is one, or not
    let asserted = impersonation_target(&headers, HeaderRules::Asserted);
    let forwarded = impersonation_target(&headers, HeaderRules::Forwarded);
    if let (Ok(Some(asserted)), Ok(forwarded)) = (asserted, forwarded) {
        let user = forwarded.map(|target| target.user);
        assert_eq!(
            user,
            Some(asserted.user),
            "what is asserted is what the API server would read"
        );
    }
    let identity = IdentityHeaders::default();
    let _ = identity.parse_user(&headers); // it names a user, or not
    identity.remove_from(&mut headers);
    assert_eq!(identity.parse_user(&headers), Ok(None));
}

/// Header lines after a body. What is forwarded of them names no user, and would be forwarded again.
fn trailers(bytes: &[u8]) {
    let identity = IdentityHeaders::default();
    if let Ok(Some(forwarded)) = request_trailers(header_lines(bytes), &identity) {
        assert_eq!(identity.parse_user(&forwarded), Ok(None));
        for name in [
            header::CONNECTION,
            header::CONTENT_LENGTH,
            header::AUTHORIZATION,
        ] {
            assert!(!forwarded.contains_key(name));
        }
        let again = request_trailers(forwarded.clone(), &identity);
        assert_eq!(again.ok().flatten(), Some(forwarded));
    }
}

/// The state of another replica: what is made of it is no longer than may be sent.
fn replica_snapshot(bytes: &[u8]) {
    const MOST: usize = 64 << 10;
    if let Ok(snapshot) = ReplicaSnapshot::parse(bytes) {
        assert!(snapshot.to_json(MOST).len() <= MOST);
    }
}

/// A Lease, or a list of them.
fn replica_lease(bytes: &[u8]) {
    let scope = LeaseScope {
        namespace: "weir-system".to_owned(),
        group: "weir".to_owned(),
        seconds: 30,
    };
    let _ = parse_lease(&scope, bytes); // it is one of weir, or not
    let _ = parse_list(&scope, bytes); // likewise
}

/// The first byte chooses the encoding, the second one says how the others are divided: they are read
/// alike.
fn watch_stream(bytes: &[u8]) {
    let [encoding, size, bytes @ ..] = bytes else {
        return;
    };
    let encoding = match encoding % 3 {
        0 => MediaType::Cbor,
        1 => MediaType::Json,
        _ => MediaType::Protobuf,
    };
    let (mut whole, mut divided) = (WatchFrames::new(encoding), WatchFrames::new(encoding));
    let has_ended = whole.feed(bytes);
    let parts = bytes.chunks(1 + usize::from(*size));
    let divided_has_ended = parts.map(|part| divided.feed(part)).last();
    assert_eq!(has_ended, divided_has_ended.unwrap_or_default());
    let read = |frames: &WatchFrames| (frames.initial_events(), frames.last_event());
    assert_eq!(read(&whole), read(&divided));
}

/// What is read is written as something that is read alike.
fn peer_message(bytes: &[u8]) {
    if let Ok(message) = ReplicaMessage::parse(bytes) {
        let text = message.to_text();
        let again = ReplicaMessage::parse(text.as_bytes()).map(|again| again.to_text());
        assert_eq!(again, Ok(text));
    }
}

fn handover_message(bytes: &[u8]) {
    if let Ok(message) = decode_text::<Message>(bytes) {
        let _ = encode_frame(&message); // it is too long, or not
    }
}

/// The first byte says how the others are divided: they are read alike.
fn server_metrics(bytes: &[u8]) {
    let Some((size, bytes)) = bytes.split_first() else {
        return;
    };
    let read = |metrics: &ResourceMetrics| {
        let mut counts: Vec<_> = metrics.counts().map(|count| format!("{count:?}")).collect();
        counts.sort();
        (counts, metrics.nominal_seats(), metrics.resident_memory())
    };
    let (mut whole, mut divided) = (ResourceMetrics::default(), ResourceMetrics::default());
    whole.feed(bytes);
    for part in bytes.chunks(1 + usize::from(*size)) {
        divided.feed(part);
    }
    assert_eq!(read(&whole), read(&divided));
}

/// A file, as each kind that weir reads.
fn configuration(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else {
        return;
    };
    let diagnostics = &mut Diagnostics::default();
    let documents = parse_all("file", text, diagnostics);
    for object in flowcontrol::read(&documents, diagnostics) {
        let _ = flowcontrol::to_manifest(&object);
    }
    for document in &documents {
        let _ = clients::config::parse_rules(document, "clientLimits", diagnostics);
        let _ = policies::config::parse_policies(document, "policies", diagnostics);
    }
    let _ = authentication_config::decode_documents(&documents, diagnostics);
    let _ = events::config::parse_configuration("file", text, diagnostics);
    let _ = events::config::parse_admission_configuration("file", text, diagnostics);
    let _ = AuditPolicy::parse("file", text, diagnostics);
    let _ = diagnostics.to_string();
}

/// A request's target and a condition of a policy, with a newline between them.
fn policy_condition(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let target = parts.next().unwrap_or_default();
    let (Ok(info), Some(Ok(text))) = (
        RequestInfo::parse("GET", target),
        parts.next().map(str::from_utf8),
    ) else {
        return;
    };
    let user = UserInfo {
        name: "alice".to_owned(),
        groups: vec!["dev".to_owned()],
        ..UserInfo::default()
    };
    if let Ok(condition) = Condition::compile(text) {
        let input = ConditionInput {
            info: &info,
            user: &user,
            is_verified: true,
            user_agent: b"kubectl/v1.36",
            source_address: Ipv4Addr::LOCALHOST.into(),
        };
        let _ = condition.evaluate(&input); // it is met, or not, or has no value
    }
}

/// A log, perhaps compressed.
fn audit_log(bytes: &[u8]) {
    #[cfg(all(fuzzing, feature = "tools"))]
    weir_replay::reader::parse_bytes(bytes);
    let _ = bytes;
}

/// Calls of a queue set, as by its slow model.
fn queue_set(bytes: &[u8]) {
    #[cfg(fuzzing)]
    weir_flowcontrol::fairqueuing::queue_set::tests::randomized::run_steps(bytes);
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fastrand::Rng;

    use super::*;

    /// For each seed.
    const CHANGED: usize = 200;

    /// For each seed of whole requests, which wait for what clients that leave had under way.
    const CHANGED_REQUESTS: usize = 8;

    /// Changes some bytes, at places that are likely to matter.
    fn changed(random: &mut Rng, seed: &[u8]) -> Vec<u8> {
        let mut bytes = seed.to_vec();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..=bytes.len());
            match random.u8(..5) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, random.u8(..)),
                2 if at < bytes.len() => bytes[at] ^= 1 << random.u8(..8),
                3 if at < bytes.len() => drop(bytes.remove(at)),
                _ => {
                    let from = random.usize(..=at);
                    let part = bytes[from..at].to_vec();
                    let to = random.usize(..=bytes.len());
                    bytes.splice(to..to, part);
                }
            }
        }
        bytes
    }

    #[test]
    fn each_target_takes_its_seeds_and_what_becomes_of_them() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = Rng::with_seed(seed);
        for (name, target) in TARGETS {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/seeds")
                .join(name);
            let mut seeds = 0;
            for file in std::fs::read_dir(folder).unwrap() {
                let bytes = std::fs::read(file.unwrap().path()).unwrap();
                target(&bytes);
                let changes = match *name {
                    "two-users" => CHANGED_REQUESTS,
                    _ => CHANGED,
                };
                for _ in 0..changes {
                    let bytes = changed(&mut random, &bytes);
                    println!("{name}: {}", bytes.escape_ascii());
                    target(&bytes);
                }
                seeds += 1;
            }
            assert!(seeds > 0, "{name} has no seeds");
        }
    }
}
