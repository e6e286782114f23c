//! `TracingConfiguration` (`apiserver.config.k8s.io`): kube-apiserver's own file format
//! (`--tracing-config-file`). Pure.

use http::uri::Authority;

use weir_kubernetes::document::{Diagnostics, MappingDecoder, Node, Strictness};

const API_VERSIONS: [&str; 3] = [
    "apiserver.config.k8s.io/v1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1alpha1",
];
const KIND: &str = "TracingConfiguration";

/// The default of OpenTelemetry, and so of kube-apiserver.
const DEFAULT_ENDPOINT: &str = "localhost:4317";

/// The collector and the sampling rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingConfig {
    /// The address of the collector. The protocol is OTLP over gRPC, without TLS.
    pub endpoint: Authority,
    /// Requests that are traced, per million of those whose clients have not started a trace.
    pub sampling_rate_per_million: u32,
}

/// Parses the documents of a file, of which there must be exactly one.
pub(crate) fn parse(documents: &[Node], diagnostics: &mut Diagnostics) -> Option<TracingConfig> {
    let mut documents = documents.iter().filter(|document| !document.is_null());
    let first = documents.next()?;
    if cfg!(not(feature = "otlp")) {
        let why = "this weir sends no traces: it was built without the cargo feature otlp";
        diagnostics.report_error(&first.location, "", why);
        return None;
    }
    if let Some(second) = documents.next() {
        diagnostics.report_error(&second.location, "", "a second document; one is expected");
    }
    first
        .decode(diagnostics, "", Strictness::Strict, parse_config)
        .flatten()
}

fn parse_config(fields: &mut MappingDecoder<'_>) -> Option<TracingConfig> {
    fields.parse("apiVersion", |text| {
        if API_VERSIONS.contains(&text) {
            Ok(())
        } else {
            Err(format!(
                "expected {}, got {text:?}",
                API_VERSIONS.join(" or ")
            ))
        }
    });
    fields.parse("kind", |text| {
        if text == KIND {
            Ok(())
        } else {
            Err(format!("expected {KIND}, got {text:?}"))
        }
    });
    fields.require(&["apiVersion", "kind"]);
    let rate = fields.integer("samplingRatePerMillion", 0..=1_000_000_u32);
    let endpoint = match fields.string("endpoint") {
        None => parse_endpoint(DEFAULT_ENDPOINT),
        Some(text) => parse_endpoint(&text),
    };
    match endpoint {
        Ok(endpoint) => Some(TracingConfig {
            endpoint,
            sampling_rate_per_million: rate.unwrap_or(0),
        }),
        Err(why) => {
            fields.report_error("endpoint", why);
            None
        }
    }
}

/// Parses `HOST:PORT`, with or without gRPC's `dns:`.
fn parse_endpoint(text: &str) -> Result<Authority, String> {
    let expected = || {
        format!(
            "expected HOST:PORT of a collector that speaks OTLP by gRPC without TLS, got {text:?}"
        )
    };
    let host = text
        .strip_prefix("dns:///")
        .or_else(|| text.strip_prefix("dns://"))
        .or_else(|| text.strip_prefix("dns:"))
        .unwrap_or(text);
    let authority: Authority = host.parse().map_err(|_| expected())?;
    if authority.port_u16().is_none() || host.contains('@') || authority.host().is_empty() {
        return Err(expected());
    }
    Ok(authority)
}

#[cfg(test)]
#[cfg(feature = "otlp")]
mod tests {
    use super::*;
    use weir_kubernetes::document;

    fn parse_text(text: &str) -> (Option<TracingConfig>, String) {
        let mut diagnostics = Diagnostics::default();
        let nodes = document::parse_all("tracing.yaml", text, &mut diagnostics);
        let read = parse(&nodes, &mut diagnostics);
        (read, diagnostics.to_string())
    }

    #[test]
    fn a_tracing_configuration_of_kube_apiserver_is_accepted() {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";
        for (rest, endpoint, rate_per_million) in [
            ("", "localhost:4317", 0),
            ("samplingRatePerMillion: 100\n", "localhost:4317", 100),
            ("endpoint: 10.0.0.1:4317\n", "10.0.0.1:4317", 0),
            (
                "endpoint: dns:///otel.monitoring.svc:4317\n",
                "otel.monitoring.svc:4317",
                0,
            ),
        ] {
            let config = TracingConfig {
                endpoint: endpoint.parse().unwrap(),
                sampling_rate_per_million: rate_per_million,
            };
            assert_eq!(
                parse_text(&format!("{head}{rest}")),
                (Some(config), String::new())
            );
        }
    }

    #[test]
    fn every_error_has_its_position() {
        let (_, diagnostics) = parse_text(
            "apiVersion: apiserver.config.k8s.io/v2\nkind: Tracing\nendpoint: https://collector/\nsamplingRatePerMillion: 1000001\nrate: 1\n",
        );
        for line in [
            "tracing.yaml:1:13: apiVersion: expected",
            "tracing.yaml:2:7: kind: expected TracingConfiguration",
            "tracing.yaml:3:11: endpoint: expected HOST:PORT",
            "tracing.yaml:4:25: samplingRatePerMillion: expected a whole number from 0 to 1000000",
            "tracing.yaml:5:1: rate: unknown field",
        ] {
            assert!(diagnostics.contains(line), "{line}: {diagnostics}");
        }
    }
}
