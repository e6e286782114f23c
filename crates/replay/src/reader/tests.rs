//! Whole logs.

use std::io::Write;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::input::LogSource;
use super::merge::{ReadCounts, ReadOptions, read_log};
use crate::clients::{Client, ClientTable};
use crate::logged::{LogItem, LoggedRequest};

/// Events as kube-apiserver 1.36 writes them.
pub(super) const AUDIT_LOG: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"37aa9919-3f8f-440e-97ab-0097dbe15e17","stage":"ResponseComplete","requestURI":"/openapi/v3","verb":"get","user":{"username":"system:apiserver","uid":"f0eaa49a-5f50-4b1a-9e26-89d640323729","groups":["system:authenticated","system:masters"]},"sourceIPs":["127.0.0.1"],"userAgent":"kube-apiserver/v0.0.0 (linux/amd64) kubernetes/$Format","responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-11-21T03:43:48.039540Z","stageTimestamp":"2026-11-21T03:43:48.061011Z","annotations":{"authorization.k8s.io/decision":"allow","authorization.k8s.io/reason":""}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"825861ca-3710-4894-a245-0483924281a4","stage":"ResponseStarted","requestURI":"/apis/discovery.k8s.io/v1/endpointslices?allowWatchBookmarks=true\u0026sendInitialEvents=true\u0026timeoutSeconds=402\u0026watch=true","verb":"watch","user":{"username":"kubelet-a","groups":["system:nodes","system:authenticated"]},"sourceIPs":["192.0.2.7","10.0.0.1"],"userAgent":"kubelet/v1.36","objectRef":{"resource":"endpointslices","apiGroup":"discovery.k8s.io","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-11-21T03:43:48.054794Z","stageTimestamp":"2026-11-21T03:43:48.072373Z"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"RequestReceived","requestURI":"/api/v1/nodes","verb":"list","user":{"username":"alice"},"requestReceivedTimestamp":"2026-11-21T03:43:48.000000Z","stageTimestamp":"2026-11-21T03:43:48.000000Z"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete","requestURI":"/api/v1/nodes","verb":"list","user":{"username":"admin"},"impersonatedUser":{"username":"alice","groups":["devs"]},"sourceIPs":["127.0.0.1"],"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-11-21T03:43:48.000000Z","stageTimestamp":"2026-11-21T03:43:50.000000Z","annotations":{"apiserver.latency.k8s.io/apf-queue-wait":"1.5s","apiserver.latency.k8s.io/total":"2s"}}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"2","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/events","verb":"create","user":{"username":"system:node:n1","groups":["system:nodes"]},"objectRef":{"resource":"events","namespace":"a","name":"web.17f9","apiVersion":"v1"},"responseStatus":{"metadata":{},"status":"Failure","code":429},"requestReceivedTimestamp":"2026-11-21T03:43:50.100000Z","stageTimestamp":"2026-11-21T03:43:50.100500Z"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"3","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/pods/p/eviction","verb":"create","user":{"username":"drainer"},"objectRef":{"resource":"pods","namespace":"a","name":"p","apiVersion":"v1","subresource":"eviction"},"responseStatus":{"metadata":{},"status":"Failure","code":429},"requestReceivedTimestamp":"2026-11-21T03:43:50.200000Z","stageTimestamp":"2026-11-21T03:43:50.201000Z"}
{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"825861ca-3710-4894-a245-0483924281a4","stage":"ResponseComplete","requestURI":"/apis/discovery.k8s.io/v1/endpointslices?watch=true","verb":"watch","user":{"username":"kubelet-a"},"responseStatus":{"metadata":{},"code":200},"requestReceivedTimestamp":"2026-11-21T03:43:48.054794Z","stageTimestamp":"2026-11-21T03:43:51.000000Z"}
"#;

/// A log in memory.
pub(super) struct ReadLog {
    pub items: Vec<LogItem>,
    pub table: Arc<ClientTable>,
    pub result: Result<ReadCounts, String>,
}

fn read_files(files: &[&[u8]], strict: bool) -> ReadLog {
    let folder = tempfile::tempdir().unwrap();
    let mut sources = Vec::new();
    for (n, text) in files.iter().enumerate() {
        let path = folder.path().join(format!("audit-{n}.log"));
        std::fs::write(&path, text).unwrap();
        sources.push(LogSource::File(path));
    }
    read_sources(&sources, strict)
}

fn read_sources(sources: &[LogSource], strict: bool) -> ReadLog {
    let options = ReadOptions {
        window_us: 60_000_000,
        strict,
        progress: Arc::default(),
    };
    let table = Arc::new(ClientTable::default());
    let mut items = Vec::new();
    let result = read_log(sources, &options, &table, &mut |item| items.push(item));
    ReadLog {
        items,
        table,
        result: result.map_err(|why| why.to_string()),
    }
}

impl ReadLog {
    fn requests(&self) -> Vec<(&LoggedRequest, Arc<Client>)> {
        let mut clients = Vec::new();
        self.table.extend(&mut clients);
        let requests = self.items.iter().filter_map(|item| match item {
            LogItem::Request(request) => Some(request),
            LogItem::Start { .. } | LogItem::StreamEnd { .. } => None,
        });
        requests
            .map(|request| {
                let client = &clients[usize::try_from(request.client.0).unwrap()];
                (request, Arc::clone(client))
            })
            .collect()
    }

    fn counts(&self) -> ReadCounts {
        self.result.clone().unwrap()
    }
}

#[test]
fn what_an_operator_has_done_is_no_request() {
    let first = AUDIT_LOG.lines().next().unwrap();
    let own = first
        .replace("/openapi/v3", "/weir/levers/1")
        .replace("system:apiserver", "weir:control-socket");
    let drain = own.replace("/weir/levers/1", "/weir/drain");
    let of_client = first.replace("/openapi/v3", "/weir/levers/1");
    let text = [AUDIT_LOG, &own, "\n", &drain, "\n", &of_client, "\n"].concat();
    let without = read_files(&[AUDIT_LOG.as_bytes()], true);
    let log = read_files(&[text.as_bytes()], true);
    assert_eq!(log.requests().len(), without.requests().len() + 1);
    assert_eq!(
        log.counts().lines.incomplete,
        without.counts().lines.incomplete
    );
    assert_eq!(
        log.counts().lines.not_events,
        without.counts().lines.not_events
    );
}

#[test]
fn events_of_an_audit_log_are_requests_in_the_order_of_their_arrival() {
    let log = read_files(&[AUDIT_LOG.as_bytes()], true);
    let requests = log.requests();
    let seen: Vec<_> = requests
        .iter()
        .map(|(request, client)| {
            let url = String::from_utf8_lossy(request.target()).into_owned();
            let url = url.split('?').next().unwrap().to_owned();
            (
                url,
                client.user.name.clone(),
                request.service_ns.get().map(|ns| ns / 1000),
            )
        })
        .collect();
    let expected = [
        ("/api/v1/nodes", "alice", Some(500_000)),
        ("/openapi/v3", "system:apiserver", Some(21_471)),
        (
            "/apis/discovery.k8s.io/v1/endpointslices",
            "kubelet-a",
            Some(17_579),
        ),
        ("/api/v1/namespaces/a/events", "system:node:n1", None),
        (
            "/api/v1/namespaces/a/pods/p/eviction",
            "drainer",
            Some(1000),
        ),
    ];
    let expected = expected.map(|(url, user, service)| (url.to_owned(), user.to_owned(), service));
    assert_eq!(seen, expected);
    let (nodes, alice) = &requests[0];
    assert_eq!(alice.user.groups, ["devs"]);
    assert_eq!(nodes.recorded.wait_ns, 1_500_000_000);
    let (watch, kubelet) = &requests[2];
    assert_eq!(&*kubelet.source, "192.0.2.7");
    assert_ne!(watch.stream, 0);
    let (event, _) = &requests[3];
    assert!(event.recorded.rejected);
    assert_eq!(&*event.event().unwrap().key, "web");
    assert!(!requests[4].0.recorded.rejected);
    let counts = log.counts();
    assert_eq!(
        (counts.lines.lines, counts.lines.received, counts.ends),
        (7, 1, 1)
    );
    assert_eq!((counts.requests, counts.rejected), (5, 1));
}

#[test]
fn compressed_files_and_files_of_several_servers_are_read_as_one() {
    let lines: Vec<&str> = AUDIT_LOG.lines().collect();
    let [one, other] = [0, 1].map(|first| {
        let lines: Vec<&str> = lines.iter().skip(first).step_by(2).copied().collect();
        lines.join("\n") + "\n"
    });
    let gzip = gzip(one.as_bytes());
    let zstd = zstd(other.as_bytes());
    let twice = [&zstd[..], &zstd[..]].concat();
    let plain = read_files(&[AUDIT_LOG.as_bytes()], true);
    let split = read_files(&[&gzip, &zstd], true);
    let times = |log: &ReadLog| -> Vec<i64> { log.items.iter().map(LogItem::at_us).collect() };
    assert_eq!(times(&split), times(&plain));
    let frames = read_files(&[&twice], true);
    let lines = u64::try_from(other.lines().count()).unwrap();
    assert_eq!(frames.counts().lines.lines, 2 * lines);
}

#[test]
fn lines_that_cannot_be_used_are_counted_or_an_error_if_strict() {
    let first = AUDIT_LOG.lines().next().unwrap();
    let text = format!(
        "{first}\n\nnot json\n{{\"a\":1}}\n{}\n{}\n{}",
        first.replace("2026-11-21T03:43:48.039540Z", "yesterday"),
        first.replace("\"verb\"", "\"new\":{\"a\":[1,\"\\\"\"]},\"verb\""),
        &first[..200]
    );
    let log = read_files(&[text.as_bytes()], false);
    let lines = log.counts().lines;
    assert_eq!(log.items.len(), 2);
    assert_eq!(
        (
            lines.lines,
            lines.not_json,
            lines.not_events,
            lines.incomplete,
            lines.truncated,
            lines.unknown_fields
        ),
        (6, 1, 1, 1, 1, 1)
    );
    let strict = read_files(&[text.as_bytes()], true).result.unwrap_err();
    assert!(
        strict.ends_with("audit-0.log: line 3: not JSON"),
        "{strict}"
    );
    let whole = first.to_owned();
    assert_eq!(
        read_files(&[whole.as_bytes()], true).counts().requests,
        1,
        "a last line without its end"
    );
}

#[test]
fn mutated_logs_are_read_to_their_end() {
    let seed = 0x5eed;
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..300 {
        let mut text = AUDIT_LOG.as_bytes().to_vec();
        for _ in 0..random.usize(1..20) {
            let at = random.usize(..text.len().max(1));
            if text.is_empty() {
                break;
            }
            match random.u8(..4) {
                0 => text[at] = random.u8(..),
                1 => drop(text.remove(at)),
                2 => text.insert(at, b"{}[]\"\\,:\n019-eE."[random.usize(..16)]),
                _ => text.truncate(at.max(1)),
            }
        }
        let log = read_files(&[&text], false);
        let counts = log.counts();
        let lines = counts.lines;
        let unused =
            lines.not_json + lines.not_events + lines.incomplete + lines.truncated + lines.received;
        assert_eq!(
            counts.requests + counts.ends + unused,
            lines.lines,
            "seed {seed}, round {round}"
        );
    }
}

#[test]
fn arrivals_are_read_and_a_user_gets_the_groups_of_its_name() {
    let text = r#"{"record":{"version":1}}
{"at_ms":2000.5,"method":"GET","url":"/api/v1/pods","user":"system:serviceaccount:ns:a","service_ms":12}
{"at_ms":1000,"method":"DELETE","url":"/api/v1/namespaces/a/pods/b","user":"bob","groups":["g"],"code":429,"rejected_by":"queue-full","source":"192.0.2.1"}
{"record":{"dropped":3}}
{"record":{"end":"stopped","dropped":3,"lines":2}}
"#;
    let log = read_files(&[text.as_bytes()], true);
    let requests = log.requests();
    let (first, bob) = &requests[0];
    assert_eq!(
        (first.at_us, first.recorded.rejected, first.method()),
        (1_000_000, true, "DELETE")
    );
    assert_eq!(
        (&*bob.source, &*bob.user.groups),
        ("192.0.2.1", &["g".to_owned()][..])
    );
    let (second, account) = &requests[1];
    assert_eq!(
        (second.at_us, second.service_ns.get()),
        (2_000_500, Some(12_000_000))
    );
    assert_eq!(account.user.groups.len(), 3);
    assert_eq!(log.counts().lines.dropped, 3);
}

fn zstd(text: &[u8]) -> Vec<u8> {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    ruzstd::encoding::compress_to_vec(text, level)
}

#[test]
fn a_compressed_file_that_is_cut_anywhere_gives_what_it_has_and_is_counted() {
    let line = |n: usize| {
        AUDIT_LOG.replace(
            "825861ca",
            &format!("{:08x}", n * 2_654_435_761 % 0xffff_ffff),
        )
    };
    let text: String = (0..60).map(line).collect(); // several blocks
    let compressed = zstd(text.as_bytes());
    let mut most = 0;
    for cut in (1..compressed.len())
        .rev()
        .step_by(compressed.len() / 100 + 1)
    {
        let log = read_files(&[&compressed[..cut]], false);
        let counts = log.counts();
        assert_eq!(counts.lines.truncated, 1, "{cut} of {}", compressed.len());
        most = most.max(counts.requests);
    }
    for cut in 1..12 {
        let log = read_files(&[&compressed[..cut]], false);
        assert_eq!(log.counts().lines.truncated, 1, "{cut}");
    }
    let whole = read_files(&[&compressed], false).counts();
    assert_eq!(whole.lines.truncated, 0);
    assert!(most > whole.requests / 2, "{most} of {}", whole.requests);
    let strict = read_files(&[&compressed[..compressed.len() - 1]], true);
    assert!(strict.result.is_err());

    // Exactly behind the end of a line.
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(AUDIT_LOG.as_bytes()).unwrap();
    gzip.flush().unwrap();
    let counts = read_files(&[gzip.get_ref()], false).counts();
    assert_eq!((counts.requests, counts.lines.truncated), (5, 1));
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn zeros_behind_what_is_compressed_are_padding() {
    let first = AUDIT_LOG.lines().next().unwrap();
    for compressed in [gzip, zstd] {
        let member = compressed(AUDIT_LOG.as_bytes());
        let lines = |file: &[u8]| {
            let lines = read_files(&[file], true).counts().lines;
            (lines.lines, lines.trailing, lines.truncated)
        };
        for zeros in [1, 3, 511, 300_000] {
            let padding = vec![0; zeros];
            assert_eq!(lines(&[&*member, &padding].concat()), (7, 0, 0), "{zeros}");
            let twice = [&*member, &padding, &member, &padding].concat();
            assert_eq!(lines(&twice), (14, 0, 0), "{zeros}");
        }
        // A member that ends where a buffer of the reader ends.
        let line = compressed(format!("{first}\n").as_bytes());
        let padding = vec![0; (128 << 10) - line.len() - 2];
        assert_eq!(lines(&[&*line, &padding, &line].concat()), (2, 0, 0));
    }
}

#[test]
fn other_bytes_behind_what_is_compressed_are_counted_and_fatal_if_strict() {
    let garbage: [&[u8]; 5] = [
        b"x",
        b"not compressed\n",
        b"\0\0\0{\"kind\":\"Event\"}\n",
        &[0x1f],
        &[0x28, 0xb5],
    ];
    for compressed in [gzip, zstd] {
        let member = compressed(AUDIT_LOG.as_bytes());
        for garbage in garbage {
            let file = [&*member, &member, garbage].concat();
            let log = read_files(&[&file, AUDIT_LOG.as_bytes()], false);
            let lines = log.counts().lines;
            let expected = (21, 1, 0, 0);
            let seen = (lines.lines, lines.trailing, lines.truncated, lines.not_json);
            assert_eq!(seen, expected, "{garbage:?}");
            let why = read_files(&[&file], true).result.unwrap_err();
            assert!(
                why.ends_with("other bytes follow the end of the compressed file"),
                "{why}"
            );
        }
    }
    // Damage is not what follows the end.
    let member = gzip(AUDIT_LOG.as_bytes());
    let mut damaged = [&*member, &member].concat();
    damaged[member.len() + 10..][..20].fill(0xff);
    assert!(read_files(&[&damaged], false).result.is_err());
}

#[test]
fn skippable_frames_are_skipped() {
    let skippable = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    let frame = zstd(AUDIT_LOG.as_bytes());
    let file = [&skippable[..], &frame, &skippable, &frame, &skippable].concat();
    let counts = read_files(&[&file], true).counts();
    assert_eq!(counts.lines.lines, 14);
    let cut = &file[..file.len() - 1];
    let counts = read_files(&[cut], false).counts();
    assert_eq!((counts.lines.lines, counts.lines.truncated), (14, 1));
}

#[test]
fn what_is_wrong_is_named_with_its_own_line() {
    let first = AUDIT_LOG.lines().next().unwrap();
    let unknown = first.replace("\"verb\"", "\"new\":1,\"verb\"");
    let text = format!("{first}\n\n{unknown}\n{first}\nnot json\n{first}\n");
    let why = read_files(&[text.as_bytes()], true).result.unwrap_err();
    assert!(why.ends_with("line 3: a field that is not known"), "{why}");
    let text = format!("{}\n{first}\n{unknown}\n", "x".repeat(33 << 20));
    let why = read_files(&[text.as_bytes()], true).result.unwrap_err();
    assert!(why.ends_with("line 1: longer than 32 MiB"), "{why}");
    let counts = read_files(&[text.as_bytes()], false).counts();
    assert_eq!((counts.requests, counts.lines.not_json), (2, 1));
}

#[test]
fn a_user_with_null_for_what_is_empty_stays_this_user() {
    let line = |user: &str| {
        let old = r#""user":{"username":"alice"},"requestReceived"#;
        let received = AUDIT_LOG.lines().nth(2).unwrap();
        assert!(received.contains(old));
        let line = received.replace(old, &format!(r#""user":{user},"requestReceived"#));
        line.replace("RequestReceived", "ResponseComplete") + "\n"
    };
    let text = [
        line(r#"{"username":"alice","uid":null,"groups":null,"extra":{"a":null,"b":["c"]}}"#),
        line("null"),
        line(r#"{"username":"bob","groups":"devs"}"#),
    ]
    .concat();
    let log = read_files(&[text.as_bytes()], false);
    let requests = log.requests();
    let names: Vec<_> = requests
        .iter()
        .map(|(_, client)| client.user.name.as_str())
        .collect();
    assert_eq!(names, ["alice", "system:anonymous"]);
    assert_eq!(requests[0].1.user.extra.len(), 2);
    assert_eq!(log.counts().lines.incomplete, 1);
}

#[test]
fn pipes_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<&str> = AUDIT_LOG.lines().collect();
    let mut writers = Vec::new();
    let mut sources = Vec::new();
    for first in [0, 1] {
        let path = folder.path().join(format!("pipe-{first}"));
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let some: Vec<&str> = lines.iter().skip(first).step_by(2).copied().collect();
        let text = some.join("\n") + "\n";
        sources.push(LogSource::from_path(&path));
        writers.push(std::thread::spawn(move || std::fs::write(path, text)));
    }
    assert!(sources.iter().all(LogSource::is_read_once));
    let log = read_sources(&sources, true);
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    let plain = read_files(&[AUDIT_LOG.as_bytes()], true);
    let times = |log: &ReadLog| -> Vec<i64> { log.items.iter().map(LogItem::at_us).collect() };
    assert_eq!(times(&log), times(&plain));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(!LogSource::from_path(&file).is_read_once());
    assert!(LogSource::from_path("-".as_ref()).is_read_once());
}
