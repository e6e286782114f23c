//! Every stream is scanned whole, byte by byte and cut in two; all results must be equal.

use super::*;

/// The result of the scan: the events, and whether the initial events have ended.
fn scan_all(coding: MediaType, stream: &[u8]) -> (InitialEvents, bool) {
    let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut scan = WatchScan::new(coding);
        let mut marked = false;
        for chunk in chunks {
            marked = scan.feed(chunk);
        }
        (scan.initial_events(), marked)
    };
    let whole = read(&mut [stream].into_iter());
    assert_eq!(read(&mut stream.chunks(1)), whole, "byte by byte");
    for at in 0..stream.len() {
        let (head, tail) = stream.split_at(at);
        assert_eq!(read(&mut [head, tail].into_iter()), whole, "cut at {at}");
    }
    whole
}

const ADDED: &str = r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","annotations":{"k8s.io/initial-events-end":"true"}},"data":{"{\"type\":\"BOOKMARK\"}":"k8s.io/initial-events-end"}}}"#;
const END_BOOKMARK: &str = r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
const PLAIN_BOOKMARK: &str = r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"7"},"spec":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#;

fn object_length(event: &str) -> u64 {
    let envelope = r#"{"type":"ADDED","object":}"#.len();
    u64::try_from(event.len() - envelope).unwrap()
}

#[test]
fn only_a_bookmark_with_the_annotation_ends_the_initial_events() {
    let two = InitialEvents {
        objects: 2,
        bytes: 2 * object_length(ADDED),
        transformed: false,
    };
    let before = format!("{ADDED}\n{PLAIN_BOOKMARK}\n{ADDED}\n");
    assert_eq!(scan_all(MediaType::Json, before.as_bytes()), (two, false));
    let marked = format!("{before}{END_BOOKMARK}\n{ADDED}\n");
    assert_eq!(scan_all(MediaType::Json, marked.as_bytes()), (two, true));
    let late_type = r#"{"object":{"metadata":{"annotations":{"k8s.io\/initial-events-end":"true"}}},"type":"BOOKMARK"}"#;
    assert!(scan_all(MediaType::Json, late_type.as_bytes()).1);
    let others = [
        r#"{"object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}},"type":"MODIFIED"}"#,
        r#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"false"}}}}"#,
        r#"{"type":"BOOKMARK","object":{"metadata":{"labels":{"k8s.io/initial-events-end":"true"}}}}"#,
        r#"{"type":"BOOKMARK","object":{"data":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
        r#"{"type":"BOOKMARK","object":["k8s.io/initial-events-end"]}"#,
        r#"["BOOKMARK"]{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
    ];
    for other in others {
        assert!(!scan_all(MediaType::Json, other.as_bytes()).1, "{other}");
    }
}

#[test]
fn tables_and_partial_metadata_are_recognized_by_kind() {
    let row = r#"{"type":"ADDED","object":{"kind":"Table","rows":[{"cells":["a"],"object":{"metadata":{"name":"a","annotations":{"k8s.io/initial-events-end":"true"}}}}]}}"#;
    let mark = r#"{"type":"BOOKMARK","object":{"kind":"Table","metadata":{"resourceVersion":"7"},"rows":[{"cells":[""],"object":{"kind":"PartialObjectMetadata","metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}]}}"#;
    let (events, marked) = scan_all(MediaType::Json, format!("{row}\n{mark}\n").as_bytes());
    assert!(
        events.transformed && events.objects == 1 && marked,
        "{events:?}"
    );
    let metadata = ADDED.replace("\"ConfigMap\"", "\"PartialObjectMetadata\"");
    let (events, marked) = scan_all(MediaType::Json, format!("{metadata}\n{row}").as_bytes());
    assert!(
        events.transformed && events.objects == 2 && !marked,
        "{events:?}"
    );
}

mod protobuf_streams {
    use super::*;

    fn field(number: u8, value: &[u8]) -> Vec<u8> {
        let length = value.len();
        let low = u8::try_from(length & 0x7f).unwrap();
        let high = u8::try_from(length >> 7).unwrap();
        [&[number << 3 | 2, low | 0x80, high], value].concat()
    }

    /// An event and the length of its object.
    fn event(event: &str, kind: &str, annotation: &str) -> (Vec<u8>, u64) {
        let annotation = [field(1, annotation.as_bytes()), field(2, b"true")].concat();
        let metadata = [field(1, b"name"), field(12, &annotation)].concat();
        let object = [field(1, &metadata), field(2, b"k8s.io/initial-events-end")].concat();
        let type_meta = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        let unknown = [field(1, &type_meta), field(2, &object), field(3, b"")].concat();
        let raw = [b"k8s\0", &*unknown].concat();
        let length = u64::try_from(raw.len()).unwrap();
        let event = [field(1, event.as_bytes()), field(2, &field(1, &raw))].concat();
        let frame = u32::try_from(event.len()).unwrap().to_be_bytes();
        ([&frame[..], &event].concat(), length)
    }

    #[test]
    fn only_a_bookmark_with_the_annotation_ends_the_initial_events() {
        let mark = "k8s.io/initial-events-end";
        let (added, length) = event("ADDED", "ConfigMap", mark);
        let (plain, _) = event("BOOKMARK", "ConfigMap", "other");
        let stream = [&*added, &plain, &added].concat();
        let two = InitialEvents {
            objects: 2,
            bytes: 2 * length,
            transformed: false,
        };
        assert_eq!(scan_all(MediaType::Protobuf, &stream), (two, false));
        let (bookmark, _) = event("BOOKMARK", "ConfigMap", mark);
        let marked = [stream, bookmark, added].concat();
        assert_eq!(scan_all(MediaType::Protobuf, &marked), (two, true));
        let (metadata, _) = event("ADDED", "PartialObjectMetadata", "");
        assert!(scan_all(MediaType::Protobuf, &metadata).0.transformed);
    }

    #[test]
    fn corrupt_streams_cause_no_panic_and_chunking_does_not_matter() {
        let whole = event("BOOKMARK", "ConfigMap", "k8s.io/initial-events-end").0;
        for seed in 0..2000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut stream = [&*whole, &whole].concat();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..stream.len());
                stream[at] = rng.u8(..);
            }
            let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
                let mut scan = WatchScan::new(MediaType::Protobuf);
                chunks.for_each(|chunk| _ = scan.feed(chunk));
                (
                    scan.initial_events(),
                    scan.totals().initial_events_ended,
                    scan.is_malformed(),
                )
            };
            let at_once = read(&mut [&*stream].into_iter());
            assert_eq!(read(&mut stream.chunks(1)), at_once, "seed {seed}");
        }
    }
}

mod cbor_streams {
    use super::*;

    fn text(text: &str) -> Vec<u8> {
        // Byte strings, as Kubernetes writes them.
        let length = u8::try_from(text.len()).unwrap();
        [&[0x58, length], text.as_bytes()].concat()
    }

    fn map(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let mut map = vec![0xa0 | u8::try_from(members.len()).unwrap()];
        for (name, value) in members {
            map.extend(text(name));
            map.extend(value);
        }
        map
    }

    fn event(event: &str) -> (Vec<u8>, u64) {
        let annotations = map(&[("k8s.io/initial-events-end", text("true"))]);
        let metadata = map(&[("name", text("a")), ("annotations", annotations)]);
        let object = map(&[
            ("kind", text("ConfigMap")),
            ("metadata", metadata),
            ("binary", vec![0x82, 0x01, 0xf6]),
        ]);
        let length = u64::try_from(object.len()).unwrap();
        let event = map(&[("type", text(event)), ("object", object)]);
        ([&[0xd9, 0xd9, 0xf7], &*event].concat(), length)
    }

    #[test]
    fn only_a_bookmark_with_the_annotation_ends_the_initial_events() {
        let ((added, length), (bookmark, _)) = (event("ADDED"), event("BOOKMARK"));
        let stream = [&*added, &added].concat();
        let two = InitialEvents {
            objects: 2,
            bytes: 2 * length,
            transformed: false,
        };
        assert_eq!(scan_all(MediaType::Cbor, &stream), (two, false));
        assert_eq!(
            scan_all(MediaType::Cbor, &[stream, bookmark].concat()),
            (two, true)
        );
    }
}
