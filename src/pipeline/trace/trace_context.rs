//! Distributed traces (W3C Trace Context): whether a request is traced, and the context that is
//! propagated to the API server.
//!
//! Without tracing, the headers pass unchanged. Otherwise a request is traced if its parent is, and
//! a request without a parent at random (OpenTelemetry's `ParentBased(TraceIDRatioBased)`, as in
//! kube-apiserver). The headers of a request that is not traced pass unchanged, too.

use std::fmt::Write;
use std::time::Instant;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::upstream::headers::TRACEPARENT;
use weir_kubernetes::numeric::saturating_u64;

const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The bit of the parent's flags that means sampled.
const SAMPLED: u8 = 1;

/// Decides which requests are traced.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    /// The second half of a trace id, without its last bit, must be below this.
    threshold: u64,
}

/// The context of a traced request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The id of the trace.
    pub(crate) trace_id: [u8; 16],
    /// The client's span, if it has one.
    pub(crate) parent_span: Option<[u8; 8]>,
    /// weir's span of the request.
    pub(crate) request_span: [u8; 8],
    /// weir's span of the forwarding, which is the parent of the API server's span.
    pub(crate) upstream_span: [u8; 8],
    /// When the request was forwarded to the API server.
    pub(crate) forwarded_at: Option<Instant>,
    /// When the API server started to respond.
    pub(crate) responded_at: Option<Instant>,
}

/// The client's `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ParentContext {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    sampled: bool,
}

impl Sampler {
    /// Samples this many of a million requests without a parent.
    #[must_use]
    pub(crate) fn new(rate_per_million: u32) -> Self {
        // OpenTelemetry's arithmetic, so that every sampler of the same id decides alike.
        let whole = 1_u128 << 63;
        let below = whole * u128::from(rate_per_million) / 1_000_000;
        Self {
            threshold: saturating_u64(below),
        }
    }

    /// The trace of a request with these headers, if it is traced; `random` generates its ids.
    pub(super) fn start(
        self,
        headers: &HeaderMap,
        mut random: impl FnMut() -> u64,
    ) -> Option<TraceContext> {
        let parent = parse_traceparent(headers);
        let trace = match parent {
            Some(parent) if parent.sampled => parent.trace_id,
            Some(_) => return None,
            None => {
                let (high, low) = (random().max(1), random());
                if low >> 1 >= self.threshold {
                    return None;
                }
                let mut trace = [0; 16];
                let halves = [high.to_be_bytes(), low.to_be_bytes()];
                trace.copy_from_slice(halves.as_flattened());
                trace
            }
        };
        Some(TraceContext {
            trace_id: trace,
            parent_span: parent.map(|parent| parent.span_id),
            request_span: random().max(1).to_be_bytes(),
            upstream_span: random().max(1).to_be_bytes(),
            forwarded_at: None,
            responded_at: None,
        })
    }
}

impl TraceContext {
    /// Sets the headers that make the upstream span the parent of the API server's span.
    pub(super) fn propagate(&self, headers: &mut HeaderMap) {
        let mut text = String::with_capacity(55);
        text.push_str("00-");
        push_hex(&mut text, &self.trace_id);
        text.push('-');
        push_hex(&mut text, &self.upstream_span);
        text.push_str("-01");
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(TRACEPARENT, value);
        }
        if self.parent_span.is_none() {
            headers.remove(TRACESTATE); // belongs to a trace that could not be parsed
        }
    }
}

/// Lower case, as required.
fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        let _ = write!(text, "{byte:02x}"); // infallible for a string
    }
}

/// Parses `traceparent` (<https://www.w3.org/TR/trace-context/#traceparent-header>); `None` for
/// anything else, and for more than one.
fn parse_traceparent(headers: &HeaderMap) -> Option<ParentContext> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let text = values.next().filter(|_| values.next().is_none())?;
    let mut parts = text.to_str().ok()?.split('-');
    let [version] = parse_hex(parts.next()?)?;
    let trace: [u8; 16] = parse_hex(parts.next()?)?;
    let span: [u8; 8] = parse_hex(parts.next()?)?;
    let [flags] = parse_hex(parts.next()?)?;
    // A later version may have more parts.
    let more = parts.next().is_some();
    let good = version != 0xff && (version != 0 || !more) && trace != [0; 16] && span != [0; 8];
    good.then_some(ParentContext {
        trace_id: trace,
        span_id: span,
        sampled: flags & SAMPLED != 0,
    })
}

/// Parses exactly `N` bytes of lower-case hexadecimal digits.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut found = [0; N];
    for (byte, [high, low]) in found.iter_mut().zip(pairs) {
        *byte = (digit(*high)? << 4) | digit(*low)?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(parents: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for parent in parents {
            headers.append(TRACEPARENT, HeaderValue::from_static(parent));
        }
        headers.insert(TRACESTATE, HeaderValue::from_static("a=b"));
        headers
    }

    /// The numbers from 1.
    fn counting_ids() -> impl FnMut() -> u64 {
        let mut last = 0;
        move || {
            last += 1;
            last
        }
    }

    #[test]
    fn a_sampled_parent_is_continued_with_a_child_span() {
        let mut headers = headers(&[PARENT]);
        let context = Sampler::new(0).start(&headers, counting_ids()).unwrap();
        assert_eq!(
            context.parent_span,
            Some([0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31])
        );
        context.propagate(&mut headers);
        assert_eq!(
            headers[TRACEPARENT],
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000002-01"
        );
        assert_eq!(headers[TRACESTATE], "a=b");
    }

    #[test]
    fn an_unsampled_parent_is_not_traced() {
        let headers = headers(&["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"]);
        assert_eq!(
            Sampler::new(1_000_000).start(&headers, counting_ids()),
            None
        );
    }

    #[test]
    fn an_invalid_traceparent_is_ignored() {
        let mut later = headers(&["01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more"]);
        assert!(Sampler::new(0).start(&later, counting_ids()).is_some());
        for bad in [
            &["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more"][..],
            &["ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
            &["00-00000000000000000000000000000000-b7ad6b7169203331-01"],
            &["00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"],
            &["00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"],
            &["00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01"],
            &["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"],
            &["nonsense"],
            &[PARENT, PARENT],
        ] {
            later = headers(bad);
            assert_eq!(
                Sampler::new(0).start(&later, counting_ids()),
                None,
                "{bad:?}"
            );
            let context = Sampler::new(1_000_000)
                .start(&later, counting_ids())
                .unwrap();
            assert_eq!(context.parent_span, None, "{bad:?}");
            context.propagate(&mut later);
            assert_eq!(later.get_all(TRACEPARENT).iter().count(), 1, "{bad:?}");
            assert_eq!(later.get(TRACESTATE), None, "{bad:?}");
        }
    }

    #[test]
    fn the_sampling_rate_is_per_million() {
        let mut random = fastrand::Rng::with_seed(7);
        let sampler = Sampler::new(250_000);
        let none = HeaderMap::new();
        let context = (0..100_000)
            .filter(|_| sampler.start(&none, || random.u64(..)).is_some())
            .count();
        assert!((24_000..26_000).contains(&context), "{context}");
    }
}
