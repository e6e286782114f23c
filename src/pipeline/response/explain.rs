//! `--explain-responses`: headers of a response that name the decision about its request, if there
//! is one.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::flowcontrol::level::FlowControlDecision;

const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-weir-flow-schema");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-weir-priority-level");
const QUEUE_WAIT: HeaderName = HeaderName::from_static("x-weir-queue-wait");
const SEATS: HeaderName = HeaderName::from_static("x-weir-seats");

/// Sets the headers of a decision, if there is one. Headers of these names from the API server are
/// removed.
pub(crate) fn set_explain_headers(headers: &mut HeaderMap, decision: Option<&FlowControlDecision>) {
    let values = decision.map(|decision| {
        [
            decision.flow_schema().name.to_string(),
            decision.priority_level().name.to_string(),
            format_seconds(decision.queue_wait),
            decision.seats().to_string(),
        ]
    });
    let names = [FLOW_SCHEMA, PRIORITY_LEVEL, QUEUE_WAIT, SEATS];
    for name in &names {
        headers.remove(name);
    }
    for (name, text) in names.into_iter().zip(values.into_iter().flatten()) {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    }
}

/// `0s`, `0.0125s`: seconds, to the microsecond.
fn format_seconds(duration: Duration) -> String {
    let text = format!("{:.6}", duration.as_secs_f64());
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_seconds() {
        for (micros, text) in [
            (0, "0s"),
            (12_500, "0.0125s"),
            (1_000_000, "1s"),
            (100_000_000, "100s"),
            (1, "0.000001s"),
        ] {
            assert_eq!(format_seconds(Duration::from_micros(micros)), text);
        }
    }

    #[test]
    fn headers_of_these_names_from_the_api_server_are_removed() {
        let mut headers = HeaderMap::new();
        for name in [FLOW_SCHEMA, PRIORITY_LEVEL, QUEUE_WAIT, SEATS] {
            headers.append(&name, HeaderValue::from_static("forged"));
            headers.append(&name, HeaderValue::from_static("twice"));
        }
        set_explain_headers(&mut headers, None);
        assert!(headers.is_empty(), "{headers:?}");
    }
}
