//! What clients write, as far as logs and traces repeat it. Pure.

use std::borrow::Cow;

use http::HeaderValue;

/// The beginning of a text, so many bytes at most.
pub(super) fn clipped(text: &str, longest: usize) -> &str {
    text.get(..text.floor_char_boundary(longest))
        .unwrap_or(text)
}

/// The beginning of a header; what is no UTF-8 in it is shown as such, and hides nothing of the rest.
pub(super) fn shown(header: &HeaderValue, longest: usize) -> Cow<'_, str> {
    let all = header.as_bytes();
    let beginning = all.get(..longest).unwrap_or(all);
    match String::from_utf8_lossy(beginning) {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        // What stands for a byte is longer than it.
        Cow::Owned(text) => Cow::Owned(clipped(&text, longest).to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_that_is_no_text_hides_nothing_but_itself_and_makes_nothing_longer() {
        let header = |bytes: &[u8]| HeaderValue::from_bytes(bytes).unwrap();
        assert_eq!(shown(&header(b"flood/1.0"), 512), "flood/1.0");
        assert_eq!(shown(&header(b"fl\xffod/1.0"), 512), "fl\u{fffd}od/1.0");
        assert_eq!(shown(&header("é/1".as_bytes()), 512), "é/1");
        for bytes in [&[b'x'; 1000], &[0xff; 1000]] {
            assert!(shown(&header(bytes), 512).len() <= 512);
        }
    }
}
