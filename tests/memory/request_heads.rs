//! Memory of a request's fields: no more than is reserved while the request is authenticated. And
//! the memory that weir adds for `CDN-Loop`: usually none.

use allocation_counter::measure;
use http::{HeaderMap, HeaderName, HeaderValue};
use weir::pipeline::connection::head_budget::head_memory;
use weir::upstream::loop_detection::cdn_loop;
use weir::upstream::loop_detection::cdn_loop::{CDN_LOOP, InstanceId};

#[test]
fn a_header_map_never_exceeds_its_reservation() {
    for count in [1, 2, 7, 15, 100, 769, 1000, 12_289, 20_000] {
        for distinct in [true, false] {
            let mut headers = HeaderMap::new();
            let taken = measure(|| {
                for n in 0..count {
                    let name = if distinct {
                        HeaderName::try_from(format!("x-{n}")).unwrap()
                    } else {
                        HeaderName::from_static("x-many")
                    };
                    headers.append(name, HeaderValue::from_static("v"));
                }
            });
            let taken = usize::try_from(taken.bytes_current).unwrap();
            let reserved = head_memory(&headers);
            assert!(
                taken <= reserved,
                "{taken} bytes for {count} fields, {reserved} reserved"
            );
        }
    }
}

#[test]
fn appending_to_cdn_loop_allocates_at_most_one_value() {
    let id = InstanceId::from_bytes([7; 16]);
    // A value is shared from its second use on, for which the library allocates once.
    for _ in 0..2 {
        cdn_loop::append(&mut HeaderMap::with_capacity(16), &id);
    }
    let mut headers = HeaderMap::with_capacity(16);
    let alone = measure(|| cdn_loop::append(&mut headers, &id));
    assert_eq!(alone.count_total, 0, "{alone:?}");
    let mut headers = HeaderMap::with_capacity(16);
    headers.insert(CDN_LOOP, HeaderValue::from_static("a"));
    headers.append(CDN_LOOP, HeaderValue::from_static("b"));
    let behind = measure(|| cdn_loop::append(&mut headers, &id));
    assert_eq!(behind.count_total, 1, "{behind:?}");
    assert!(behind.bytes_total < 64, "{behind:?}");
}
