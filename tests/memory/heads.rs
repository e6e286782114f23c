//! What a request's fields take of memory: no more than is reserved for them while it is looked up whose they are.

use allocation_counter::measure;
use http::HeaderMap;
use http::HeaderName;
use http::HeaderValue;
use weir::pipeline::heads::memory_of;

#[test]
fn no_map_takes_more_than_is_reserved_for_it() {
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
            let reserved = memory_of(&headers);
            assert!(
                taken <= reserved,
                "{taken} bytes for {count} fields, {reserved} reserved"
            );
        }
    }
}
