//! Every body is scanned whole, byte by byte and in random chunks; all results must be equal.

mod cbor;
mod json;
mod protobuf;

use fastrand::Rng;

use super::*;

const CBOR: &[u8] = b"application/cbor";
const JSON: &[u8] = b"application/json";
const PROTOBUF: &[u8] = b"application/vnd.kubernetes.protobuf";

fn from_content_type(content_type: &[u8]) -> Option<ListScan> {
    MediaType::from_content_type(content_type).map(ListScan::new)
}

fn scan<'c>(
    content_type: &[u8],
    chunks: impl IntoIterator<Item = &'c [u8]>,
) -> Option<ListSummary> {
    let mut scan = from_content_type(content_type).unwrap();
    for chunk in chunks {
        scan.feed(chunk);
    }
    scan.finish()
}

fn scan_in_random_chunks(
    content_type: &[u8],
    mut body: &[u8],
    rng: &mut Rng,
) -> Option<ListSummary> {
    let cut = || {
        (!body.is_empty()).then(|| {
            let (chunk, rest) = body.split_at(rng.usize(0..=body.len().min(200)));
            body = rest;
            chunk
        })
    };
    scan(content_type, std::iter::from_fn(cut))
}

/// The result of the scan, as (items, remaining items, has a continue token).
fn scan_all(content_type: &[u8], body: &[u8]) -> Option<(u64, Option<u64>, bool)> {
    let whole = scan(content_type, [body]);
    assert_eq!(scan(content_type, body.chunks(1)), whole, "byte by byte");
    let ListSummary {
        items,
        remaining_items,
        has_continue_token: continues,
        bytes,
        transformed: _,
        media_type: _,
    } = whole?;
    assert_eq!(bytes, u64::try_from(body.len()).unwrap());
    Some((items, remaining_items, continues))
}

#[test]
fn json_cbor_and_protobuf_are_read_and_nothing_else() {
    let readable = [
        "application/json",
        " Application/JSON ; charset=utf-8",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/cbor",
        "application/vnd.kubernetes.protobuf",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    ];
    for content_type in readable {
        let scan = from_content_type(content_type.as_bytes());
        assert!(scan.is_some(), "{content_type}");
    }
    for content_type in [
        "",
        ";",
        "application/cbo",
        "application/yaml",
        "text/plain",
        "json",
    ] {
        let scan = from_content_type(content_type.as_bytes());
        assert!(scan.is_none(), "{content_type}");
    }
}

#[test]
fn chunk_boundaries_do_not_matter_but_truncation_does() {
    let bodies = [
        (JSON, json::PAGE.trim_end().as_bytes()),
        (JSON, json::TABLE.as_bytes()),
        (JSON, json::LATE_METADATA.as_bytes()),
        (PROTOBUF, &*protobuf::pod_list()),
    ];
    for (content_type, body) in bodies {
        let whole = scan(content_type, [body]);
        assert!(whole.is_some());
        for at in 0..body.len() {
            let (head, tail) = body.split_at(at);
            assert_eq!(scan(content_type, [head, tail]), whole, "cut at {at}");
            let early = scan(content_type, [head]);
            // Protobuf has no end marker: a body that lacks its last fields, of two bytes each, is
            // complete.
            let whole_field = content_type == PROTOBUF && [2, 4].contains(&(body.len() - at));
            assert_eq!(early.is_some(), whole_field, "ended at {at}");
        }
    }
}

#[test]
fn corrupt_bodies_cause_no_panic_and_chunking_does_not_matter() {
    for seed in 0..3000 {
        let mut rng = Rng::with_seed(seed);
        let alphabet = b"\"\\{}[],: \x00\x01\x02\x08\x0a\x12\x1a\x20\x80\xff";
        let mut noise: Vec<u8> = (0..rng.usize(0..300))
            .map(|_| *rng.choice(alphabet).unwrap())
            .collect();
        let (content_type, head) = match rng.u8(0..3) {
            0 => (JSON, &b"{\"items\":[{"[..]),
            1 => (JSON, &b"{"[..]),
            _ => (PROTOBUF, &b"k8s\0"[..]),
        };
        noise.splice(0..0, head.iter().copied());
        if rng.bool() {
            noise = protobuf::pod_list();
            let at = rng.usize(4..noise.len());
            noise[at] = rng.u8(..);
        }
        let whole = scan(content_type, [&*noise]);
        assert_eq!(scan(content_type, noise.chunks(1)), whole, "seed {seed}");
        let at_random = scan_in_random_chunks(content_type, &noise, &mut rng);
        assert_eq!(at_random, whole, "seed {seed}");
    }
    let deep = [b"{\"items\":[{\"a\":".to_vec(), vec![b'['; 1 << 20]].concat();
    assert_eq!(scan(JSON, [&*deep]), None);
    let closed = [&*deep, &[b']'; 1 << 20], b"}]}"].concat();
    assert_eq!(scan(JSON, [&*closed]).unwrap().items, 1);
    let long_name = [
        b"{\"".to_vec(),
        vec![b'a'; 1 << 20],
        b"\":1,\"items\":[]}".to_vec(),
    ];
    assert_eq!(scan(JSON, [&*long_name.concat()]).unwrap().items, 0);
}

/// Tables and metadata lists have the `Content-Type` of any other JSON.
#[test]
fn tables_and_partial_metadata_lists_are_recognized_by_kind() {
    let abridged = |content_type, body: &[u8]| scan(content_type, [body]).unwrap().transformed;
    assert!(!abridged(JSON, json::PAGE.as_bytes()));
    assert!(abridged(JSON, json::TABLE.as_bytes()));
    let metadata = json::PAGE.replace("PodList", "PartialObjectMetadataList");
    assert!(abridged(JSON, metadata.as_bytes()));
    assert!(!abridged(PROTOBUF, &protobuf::pod_list()));
    assert!(abridged(PROTOBUF, &protobuf::metadata_list()));
}

#[test]
fn a_list_is_estimated_from_its_beginning() {
    let item = format!(r#"{{"metadata":{{"name":"{}"}}}}"#, "x".repeat(473));
    let items = vec![item; 1000].join(",");
    let body = format!(
        r#"{{"kind":"PodList","metadata":{{"remainingItemCount":7,"continue":"x"}},"items":[{items}]}}"#
    );
    for seen in [600, 10_000, 100_001, body.len()] {
        let mut scan = from_content_type(JSON).unwrap();
        scan.feed(&body.as_bytes()[..seen]);
        let summary = scan.extrapolate(body.len().try_into().unwrap()).unwrap();
        assert!(summary.items.abs_diff(1000) <= 2, "{seen}: {summary:?}");
        assert_eq!(summary.remaining_items, Some(7));
        assert!(summary.has_continue_token);
    }
    let mut early = from_content_type(JSON).unwrap();
    early.feed(&body.as_bytes()[..300]);
    assert_eq!(early.extrapolate(1 << 20), None, "not even one item");
    let mut late = from_content_type(JSON).unwrap();
    late.feed(br#"{"items":[{},{},"#);
    assert_eq!(
        late.extrapolate(1 << 20),
        None,
        "there may be more than this"
    );
}
