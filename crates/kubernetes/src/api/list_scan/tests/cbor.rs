//! Lists in CBOR.

use fastrand::Rng;

use super::{CBOR, scan, scan_all};
use crate::api::list_scan::tests::from_content_type;

/// The values that Kubernetes writes; names are byte strings, all other text is a text string.
enum CborValue {
    Text(&'static str),
    Number(u64),
    Null,
    List(Vec<Self>),
    Map(Vec<(&'static str, Self)>),
}

use CborValue::{List, Map, Null, Number, Text};

fn head(major: u8, argument: u64, out: &mut Vec<u8>) {
    match argument {
        0..24 => out.push(major << 5 | u8::try_from(argument).unwrap()),
        24..256 => out.extend([major << 5 | 24, u8::try_from(argument).unwrap()]),
        _ => {
            out.push(major << 5 | 27);
            out.extend(argument.to_be_bytes());
        }
    }
}

fn length<T>(of: &[T]) -> u64 {
    u64::try_from(of.len()).unwrap()
}

fn write(value: &CborValue, rng: &mut Rng, out: &mut Vec<u8>) {
    if rng.u8(0..8) == 0 {
        out.extend([0xd9, 0xd9, 0xf7]); // a tag changes nothing
    }
    let indefinite = rng.u8(0..4) == 0;
    match value {
        Number(number) => head(0, *number, out),
        Null => out.push(0xf6),
        Text(text) if indefinite => {
            let (one, two) = text.as_bytes().split_at(text.len() / 2);
            out.push(0x5f);
            for part in [one, two] {
                head(2, length(part), out);
                out.extend(part);
            }
            out.push(0xff);
        }
        Text(text) => {
            head(rng.u8(2..4), length(text.as_bytes()), out);
            out.extend(text.as_bytes());
        }
        List(items) => {
            if indefinite {
                out.push(0x9f);
            } else {
                head(4, length(items), out);
            }
            items.iter().for_each(|item| write(item, rng, out));
            out.extend(indefinite.then_some(0xff));
        }
        Map(members) => {
            if indefinite {
                out.push(0xbf);
            } else {
                head(5, length(members), out);
            }
            for (name, value) in members {
                head(2, length(name.as_bytes()), out);
                out.extend(name.as_bytes());
                write(value, rng, out);
            }
            out.extend(indefinite.then_some(0xff));
        }
    }
}

fn encode(value: &CborValue, seed: u64) -> Vec<u8> {
    let mut out = vec![0xd9, 0xd9, 0xf7];
    write(value, &mut Rng::with_seed(seed), &mut out);
    out
}

fn item(name: &'static str) -> CborValue {
    let labels = Map(vec![
        ("items", List(vec![Map(vec![])])),
        ("continue", Text("no")),
    ]);
    Map(vec![
        (
            "metadata",
            Map(vec![("name", Text(name)), ("labels", labels)]),
        ),
        ("spec", List(vec![Number(300), Null, List(vec![])])),
    ])
}

fn page(kind: &'static str) -> CborValue {
    let metadata = Map(vec![
        ("resourceVersion", Text("1450")),
        ("continue", Text("eyJ2IjoibWV0YSJ9")),
        ("remainingItemCount", Number(498)),
    ]);
    Map(vec![
        ("apiVersion", Text("v1")),
        ("metadata", metadata),
        ("items", List(vec![item("a"), item("b"), item("c")])),
        ("kind", Text(kind)),
    ])
}

#[test]
fn a_list_in_cbor_is_summarized() {
    for seed in 0..200 {
        let body = encode(&page("WidgetList"), seed);
        let expected = Some((3, Some(498), true));
        assert_eq!(scan_all(CBOR, &body), expected, "seed {seed}");
        assert!(!scan(CBOR, [&*body]).unwrap().transformed, "seed {seed}");
        let metadata = encode(&page("PartialObjectMetadataList"), seed);
        assert!(scan(CBOR, [&*metadata]).unwrap().transformed, "seed {seed}");
        let table = Map(vec![("rows", List(vec![item("a")])), ("metadata", Null)]);
        let table = scan(CBOR, [&*encode(&table, seed)]).unwrap();
        assert!(table.transformed && table.items == 1, "seed {seed}");
    }
}

#[test]
fn cbor_that_is_not_a_list_has_no_summary() {
    let others = [
        Null,
        item("a"),
        List(vec![page("WidgetList")]),
        Map(vec![("items", Map(vec![]))]),
        Map(vec![("items", List(vec![Number(1)]))]),
        Map(vec![("items", Null), ("items", Null)]),
        Map(vec![
            ("metadata", Map(vec![("continue", Number(1))])),
            ("items", Null),
        ]),
        Map(vec![
            ("metadata", Map(vec![("remainingItemCount", Text("1"))])),
            ("items", Null),
        ]),
    ];
    for (seed, other) in (0..).zip(&others) {
        assert_eq!(scan_all(CBOR, &encode(other, seed)), None, "number {seed}");
    }
    let whole = encode(&page("WidgetList"), 0);
    assert_eq!(scan_all(CBOR, &[&*whole, &[0xf6]].concat()), None);
    assert_eq!(scan_all(CBOR, &whole[..whole.len() - 1]), None);
}

#[test]
fn corrupt_cbor_causes_no_panic_and_chunking_does_not_matter() {
    for seed in 0..3000 {
        let mut rng = Rng::with_seed(seed);
        let mut body = encode(&page("WidgetList"), seed);
        for _ in 0..rng.usize(1..5) {
            let at = rng.usize(..body.len());
            body[at] = rng.u8(..);
        }
        let whole = scan(CBOR, [&*body]);
        assert_eq!(scan(CBOR, body.chunks(1)), whole, "seed {seed}");
    }
    let deep = [&[0xa1, 0x45][..], b"items", &[0x81; 1 << 20]].concat();
    let mut scan = from_content_type(CBOR).unwrap();
    scan.feed(&deep);
    assert_eq!(scan.finish(), None);
}
