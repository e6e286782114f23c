//! Lists in protobuf.

use fastrand::Rng;

use super::{PROTOBUF, scan, scan_all, scan_in_random_chunks};

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(u8::try_from(number & 0x7f).unwrap() | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap());
    bytes
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn field(field: u64, value: &[u8]) -> Vec<u8> {
    let length = u64::try_from(value.len()).unwrap();
    [varint(field << 3 | 2), varint(length), value.to_vec()].concat()
}

fn body(fields: &[Vec<u8>]) -> Vec<u8> {
    [b"k8s\0", &*fields.concat()].concat()
}

fn kind(kind: &str) -> Vec<u8> {
    field(1, &[field(1, b"v1"), field(2, kind.as_bytes())].concat())
}

/// A page of two, as kube-apiserver writes it.
pub(super) fn pod_list() -> Vec<u8> {
    list("PodList")
}

/// The same list with metadata only.
pub(super) fn metadata_list() -> Vec<u8> {
    list("PartialObjectMetadataList")
}

fn list(of: &str) -> Vec<u8> {
    let metadata = [
        field(1, b""),
        field(2, b"1450"),
        field(3, b"eyJ2IjoibWV0YSJ9"),
        number(4, 498),
    ];
    let pod = field(1, &field(1, b"web-01"));
    let raw = [field(1, &metadata.concat()), field(2, &pod), field(2, &pod)];
    body(&[
        kind(of),
        field(2, &raw.concat()),
        field(3, b""),
        field(4, b""),
    ])
}

#[test]
fn a_list_in_protobuf_is_summarized() {
    let kind = || kind("PodList");
    let cases = [
        (pod_list(), (2, Some(498), true)),
        (body(&[kind(), field(2, b"")]), (0, None, false)),
        (body(&[kind(), field(2, &field(1, b""))]), (0, None, false)),
        (body(&[field(2, &field(2, b"")), kind()]), (1, None, false)),
        (
            body(&[kind(), field(2, &field(1, &field(3, b"")))]),
            (0, None, false),
        ),
        (
            body(&[kind(), field(2, &field(1, &number(4, u64::MAX >> 1)))]),
            (0, Some(u64::MAX >> 1), false),
        ),
        (
            body(&[
                kind(),
                field(
                    2,
                    &[field(2, &[0; 300]), field(1, &field(3, b"x"))].concat(),
                ),
            ]),
            (1, None, true),
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(scan_all(PROTOBUF, &body), Some(expected), "{body:?}");
    }
}

#[test]
fn protobuf_that_is_not_a_list_has_no_summary() {
    let list = |raw: Vec<u8>| body(&[kind("PodList"), field(2, &raw)]);
    let endless = [vec![0x80; 9], vec![2]].concat();
    let bodies = [
        Vec::new(),
        b"k8s\0".to_vec(),
        b"{\"items\":[]}".to_vec(),
        body(&[kind("PodList")]),
        body(&[field(2, &field(2, b""))]),
        body(&[kind("Pod"), field(2, &field(2, b""))]),
        body(&[kind("Lis"), field(2, b"")]),
        body(&[kind("PodList"), field(2, b""), field(2, b"")]),
        body(&[kind("PodLis"), kind("t"), field(2, b"")]),
        [pod_list(), vec![0x80]].concat(),
        list(number(1, 0)),
        list(number(2, 0)),
        list(vec![3 << 3 | 3, 3 << 3 | 4]),
        list(vec![0, 0]),
        list(vec![3 << 3 | 6]),
        list(vec![2 << 3 | 2, 1]),
        list(vec![3 << 3 | 1, 0, 0, 0, 0, 0, 0, 0]),
        list(vec![2 << 3 | 2]),
        list([&[2 << 3 | 2], &*varint(u64::MAX)].concat()),
        list([&[3 << 3], &*endless].concat()),
        list(field(1, &number(3, 1))),
        list(field(1, &field(4, b"1"))),
        list(field(1, &number(4, u64::MAX))),
        list(field(1, &[4 << 3])),
        list(field(1, &[3 << 3 | 2, 1])),
    ];
    for body in bodies {
        assert_eq!(scan_all(PROTOBUF, &body), None, "{body:?}");
    }
}

#[test]
fn field_order_and_unknown_fields_do_not_matter() {
    for seed in 0..1000 {
        let mut rng = Rng::with_seed(seed);
        let mix = |rng: &mut Rng, mut fields: Vec<Vec<u8>>| {
            for _ in 0..rng.usize(0..4) {
                let unknown = rng.u64(5..1 << 20);
                fields.push(match rng.u8(0..4) {
                    0 => number(unknown, rng.u64(..)),
                    1 => [varint(unknown << 3 | 1), vec![0xff; 8]].concat(),
                    2 => [varint(unknown << 3 | 5), vec![0xff; 4]].concat(),
                    _ => field(unknown, &vec![0xff; rng.usize(0..300)]),
                });
            }
            rng.shuffle(&mut fields);
            fields.concat()
        };
        let items = rng.usize(0..5);
        let remaining = rng.bool().then(|| rng.u64(..) >> rng.u32(1..64));
        let continues = rng.bool();
        let mut metadata: Vec<_> = remaining.map(|n| number(4, n)).into_iter().collect();
        metadata.extend(continues.then(|| field(3, b"x")));
        let mut raw = vec![field(2, &[0xff; 70]); items];
        raw.push(field(1, &mix(&mut rng, metadata)));
        let type_meta = mix(&mut rng, vec![field(2, b"PodList")]);
        let raw = mix(&mut rng, raw);
        let body = body(&[mix(&mut rng, vec![field(1, &type_meta), field(2, &raw)])]);
        let expected = Some((u64::try_from(items).unwrap(), remaining, continues));
        assert_eq!(scan_all(PROTOBUF, &body), expected, "seed {seed}");
        let at_random = scan_in_random_chunks(PROTOBUF, &body, &mut rng);
        assert_eq!(at_random, scan(PROTOBUF, [&*body]), "seed {seed}");
    }
}
