//! Every stream is read whole, byte by byte and cut in two; all results must be equal.

use super::*;

/// The initial events, and whether they have ended.
fn read_all(media_type: MediaType, stream: &[u8]) -> (InitialEvents, bool) {
    let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        let mut frames = WatchFrames::new(media_type);
        let mut has_ended = false;
        for chunk in chunks {
            has_ended = frames.feed(chunk);
            assert!(frames.head.len() <= HEAD_BYTES);
            assert!(frames.window.len() < JSON_INITIAL_EVENTS_END.len());
        }
        (frames.initial_events(), has_ended)
    };
    let whole = read(&mut [stream].into_iter());
    assert_eq!(read(&mut stream.chunks(1)), whole, "byte by byte");
    for at in 0..stream.len() {
        let (head, tail) = stream.split_at(at);
        assert_eq!(read(&mut [head, tail].into_iter()), whole, "cut at {at}");
    }
    whole
}

fn two(event: &[u8]) -> InitialEvents {
    InitialEvents {
        objects: 2,
        bytes: 2 * u64::try_from(event.len()).unwrap(),
    }
}

/// Only a bookmark with the annotation ends the initial events, of which there are two.
fn assert_only_the_bookmark_ends(
    media_type: MediaType,
    added: &[u8],
    plain_bookmark: &[u8],
    end_bookmark: &[u8],
) {
    let before = [added, plain_bookmark, added].concat();
    assert_eq!(read_all(media_type, &before), (two(added), false));
    let ended = [&*before, end_bookmark, added].concat();
    assert_eq!(read_all(media_type, &ended), (two(added), true));
}

#[test]
fn only_a_json_bookmark_with_the_annotation_ends_the_initial_events() {
    let added = br#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","annotations":{"k8s.io/initial-events-end":"true"}},"data":{"{\"type\":\"BOOKMARK\"}":"k8s.io/initial-events-end"}}}
"#;
    let plain =
        br#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"7"}}}
"#;
    let end = br#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}
"#;
    assert_only_the_bookmark_ends(MediaType::Json, added, plain, end);
    let table = br#"{"type":"BOOKMARK","object":{"kind":"Table","metadata":{"resourceVersion":"7"},"rows":[{"cells":[""],"object":{"kind":"PartialObjectMetadata","metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}]}}
"#;
    assert!(read_all(MediaType::Json, table).1);
    let others: [&[u8]; 5] = [
        b"{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n",
        b"{\"type\":\"BOOKMARKS\",\"object\":{\"metadata\":{\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n",
        b"{\"type\":\"BOOKMARK\",\"object\":{\"metadata\":{\"annotations\":{\"k8s.io/initial-events-end\":\"false\"}}}}\n",
        b"{\"type\":\"BOOKMARK\",\"object\":{}}\n{\"type\":\"ADDED\",\"object\":{\"\":{\"k8s.io/initial-events-end\":\"true\"}}}\n",
        b"\n\"BOOKMARK\",\"k8s.io/initial-events-end\":\"true\"\n",
    ];
    for other in others {
        assert!(
            !read_all(MediaType::Json, other).1,
            "{}",
            other.escape_ascii()
        );
    }
}

#[test]
fn only_a_protobuf_bookmark_with_the_annotation_ends_the_initial_events() {
    let event = protobuf_event;
    assert_only_the_bookmark_ends(
        MediaType::Protobuf,
        &event("ADDED", "k8s.io/initial-events-end"),
        &event("BOOKMARK", "other"),
        &event("BOOKMARK", "k8s.io/initial-events-end"),
    );
}

/// The members of an event have no order, and the data of an object may end like a bookmark.
#[test]
fn only_a_cbor_bookmark_with_the_annotation_ends_the_initial_events() {
    let mut like_bookmark = b"\x44type\x48BOOKMARK".to_vec();
    like_bookmark.splice(0..0, [0x4e]);
    let end = "k8s.io/initial-events-end";
    for (type_first, tag) in [
        (true, CBOR_SELF_DESCRIBED),
        (false, CBOR_SELF_DESCRIBED),
        (true, &[]),
        (false, &[]),
    ] {
        let event = |kind, annotation| {
            let object = cbor_map(&[
                ("metadata", cbor_map(&[(annotation, cbor_text("true"))])),
                ("numbers", vec![0x82, 0x19, 1, 0, 0xf6]),
                ("binary", like_bookmark.clone()),
            ]);
            let mut members = [("type", cbor_text(kind)), ("object", object)];
            if !type_first {
                members.reverse();
            }
            [tag, &cbor_map(&members)].concat()
        };
        assert_only_the_bookmark_ends(
            MediaType::Cbor,
            &event("ADDED", end),
            &event("BOOKMARK", "other"),
            &event("BOOKMARK", end),
        );
    }
}

#[test]
fn the_length_of_the_last_event_and_an_incomplete_one_are_known() {
    for (media_type, event) in [
        (
            MediaType::Json,
            b"{\"type\":\"ADDED\",\"object\":{}}\n".to_vec(),
        ),
        (MediaType::Protobuf, protobuf_event("ADDED", "a")),
        (
            MediaType::Cbor,
            cbor_map(&[("type", cbor_text("ADDED")), ("object", vec![0xa0])]),
        ),
    ] {
        let mut frames = WatchFrames::new(media_type);
        assert!(frames.is_between_events() && frames.last_event().is_none());
        let (head, tail) = event.split_at(9);
        frames.feed(head);
        assert!(!frames.is_between_events() && frames.last_event().is_none());
        frames.feed(tail);
        let length = u64::try_from(event.len()).unwrap();
        assert!(frames.is_between_events(), "{media_type:?}");
        assert_eq!(frames.last_event(), Some(length), "{media_type:?}");
    }
}

#[test]
fn corrupt_streams_cause_no_panic_and_chunking_does_not_matter() {
    let end = "k8s.io/initial-events-end";
    let object = cbor_map(&[(end, cbor_text("true"))]);
    let bookmark = cbor_map(&[("object", object), ("type", cbor_text("BOOKMARK"))]);
    for seed in 0..2000 {
        for (media_type, event) in [
            (MediaType::Cbor, &bookmark),
            (MediaType::Protobuf, &protobuf_event("BOOKMARK", end)),
        ] {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut stream = [&**event, event].concat();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..stream.len());
                stream[at] = rng.u8(..);
            }
            let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
                let mut frames = WatchFrames::new(media_type);
                chunks.for_each(|chunk| _ = frames.feed(chunk));
                let ended = frames.initial_events_ended;
                (frames.initial_events(), ended, frames.is_malformed())
            };
            let at_once = read(&mut [&*stream].into_iter());
            assert_eq!(read(&mut stream.chunks(1)), at_once, "seed {seed}");
        }
    }
}

#[test]
fn cbor_of_indefinite_length_or_of_an_endless_number_of_items_is_malformed() {
    let endless = [[0x9b].as_slice(), &[0xff; 8]].concat();
    for stream in [&[0x9f][..], &[0xbf], &[0x1c], &[0x82, 0x9b], &endless] {
        let mut frames = WatchFrames::new(MediaType::Cbor);
        frames.feed(&[stream, &endless, &endless].concat());
        assert!(frames.is_malformed(), "{stream:x?}");
    }
}

fn protobuf_field(number: u8, value: &[u8]) -> Vec<u8> {
    let length = value.len();
    let low = u8::try_from(length & 0x7f).unwrap();
    let high = u8::try_from(length >> 7).unwrap();
    let length = if high == 0 {
        vec![low]
    } else {
        vec![low | 0x80, high]
    };
    [&[number << 3 | 2], &*length, value].concat()
}

/// An event whose object has this annotation.
fn protobuf_event(event: &str, annotation: &str) -> Vec<u8> {
    let field = protobuf_field;
    let annotation = [field(1, annotation.as_bytes()), field(2, b"true")].concat();
    let metadata = [field(1, b"name"), field(12, &annotation)].concat();
    let object = [field(1, &metadata), field(2, b"BOOKMARK")].concat();
    let type_meta = [field(1, b"v1"), field(2, b"ConfigMap")].concat();
    let unknown = [field(1, &type_meta), field(2, &object), field(3, b"")].concat();
    let raw = [b"k8s\0", &*unknown].concat();
    let event = [field(1, event.as_bytes()), field(2, &field(1, &raw))].concat();
    let length = u32::try_from(event.len()).unwrap().to_be_bytes();
    [&length[..], &event].concat()
}

/// A byte string, as Kubernetes writes text.
fn cbor_text(text: &str) -> Vec<u8> {
    let length = u8::try_from(text.len()).unwrap();
    let head = if length < 24 {
        vec![0x40 | length]
    } else {
        vec![0x58, length]
    };
    [&*head, text.as_bytes()].concat()
}

fn cbor_map(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut map = vec![0xa0 | u8::try_from(members.len()).unwrap()];
    for (name, value) in members {
        map.extend(cbor_text(name));
        map.extend(value);
    }
    map
}
