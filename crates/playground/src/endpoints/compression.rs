//! Compresses long responses for clients that accept it, as kube-apiserver does
//! (`endpoints/handlers/responsewriters`). Watches are not compressed.

use crate::endpoints::response;
use crate::serving::response_body::PlaygroundBody;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::stream;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use http::{HeaderMap, HeaderValue, Response};
use http_body::Body;
use http_body_util::BodyExt;
use std::io;
use std::io::Write;

/// `defaultGzipThresholdBytes`: longer responses are compressed.
const THRESHOLD: usize = 128 * 1024;
/// `defaultGzipContentEncodingLevel`.
const LEVEL: u32 = 1;

/// Whether `Accept-Encoding` names gzip. As in kube-apiserver, weights are ignored and only the
/// first header of the name is read.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers
        .get(ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok());
    accepted
        .unwrap_or_default()
        .split(',')
        .any(|encoding| encoding.trim() == "gzip")
}

/// Compresses the response if it is long and the `headers` of its request accept gzip.
pub(crate) async fn compress_if_long(
    response: Response<PlaygroundBody>,
    headers: &HeaderMap,
) -> Response<PlaygroundBody> {
    let length = response.body().size_hint().exact();
    let short = length.is_some_and(|length| usize::try_from(length).is_ok_and(|l| l <= THRESHOLD));
    if short || !accepts_gzip(headers) {
        return response;
    }
    let (mut parts, mut body) = response.into_parts();
    let mut prefix = Vec::new();
    while prefix.len() <= THRESHOLD {
        match next_chunk(&mut body).await {
            Some(bytes) => prefix.extend_from_slice(&bytes),
            None => {
                let whole = std::iter::once(Bytes::from(prefix));
                return Response::from_parts(parts, response::chunked_body(whole));
            }
        }
    }
    parts.headers.remove(CONTENT_LENGTH);
    let gzip = HeaderValue::from_static("gzip");
    parts.headers.insert(CONTENT_ENCODING, gzip);
    let accept_encoding = HeaderValue::from_static("Accept-Encoding");
    parts.headers.append(VARY, accept_encoding);
    Response::from_parts(parts, compress_body(prefix, body))
}

async fn next_chunk(body: &mut PlaygroundBody) -> Option<Bytes> {
    loop {
        let Ok(frame) = body.frame().await?;
        if let Ok(data) = frame.into_data() {
            return Some(data);
        }
    }
}

/// Compresses a body chunk by chunk, beginning with the bytes that were already read.
fn compress_body(prefix: Vec<u8>, body: PlaygroundBody) -> PlaygroundBody {
    let encoder = GzEncoder::new(Vec::new(), Compression::new(LEVEL));
    let rest = Some((encoder, Some(Bytes::from(prefix)), body));
    let chunks = stream::unfold(rest, |rest| async {
        let (mut encoder, mut prefix, mut body) = rest?;
        loop {
            let next = match prefix.take() {
                Some(bytes) => Some(bytes),
                None => next_chunk(&mut body).await,
            };
            let Some(bytes) = next else {
                return Some((finish_encoder(encoder), None));
            };
            if encoder.write_all(&bytes).is_err() {
                return None;
            }
            let made = std::mem::take(encoder.get_mut());
            if !made.is_empty() {
                return Some((Bytes::from(made), Some((encoder, None, body))));
            }
        }
    });
    response::stream_body(chunks)
}

fn finish_encoder(encoder: GzEncoder<Vec<u8>>) -> Bytes {
    let made: io::Result<Vec<u8>> = encoder.finish();
    made.unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::{THRESHOLD, compress_if_long};
    use crate::endpoints::response;
    use bytes::Bytes;
    use flate2::read::GzDecoder;
    use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
    use http::{HeaderMap, HeaderValue};
    use http_body_util::BodyExt;
    use std::io::Read;

    async fn send(length: usize, accepted: &'static str) -> (HeaderMap, Vec<u8>) {
        // The list is `[]` around one item.
        let item = Bytes::from(vec![b'1'; length - 2]);
        let response = response::list(b"[".to_vec(), std::iter::once(item), b"]");
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accepted));
        let (parts, body) = compress_if_long(response, &headers).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (parts.headers, body.to_vec())
    }

    #[tokio::test]
    async fn long_responses_are_compressed_for_clients_that_accept_it() {
        for (length, accepted, compressed) in [
            (100, "gzip", false),
            (THRESHOLD, "gzip", false),
            (THRESHOLD + 1, "gzip", true),
            (10 * THRESHOLD, "br, gzip", true),
            (10 * THRESHOLD, "br", false),
            (10 * THRESHOLD, "gzip;q=0", false),
        ] {
            let (headers, body) = send(length, accepted).await;
            let encoding = headers.get(CONTENT_ENCODING);
            assert_eq!(encoding.is_some(), compressed, "{length} {accepted}");
            let plain = if compressed {
                assert_eq!(headers[VARY], "Accept-Encoding");
                assert!(body.len() < length / 10);
                let mut plain = Vec::new();
                GzDecoder::new(&*body).read_to_end(&mut plain).unwrap();
                plain
            } else {
                assert!(!headers.contains_key(VARY));
                body
            };
            assert_eq!(plain.len(), length);
            assert_eq!((plain[0], plain[length - 1]), (b'[', b']'));
        }
    }
}
