//! `/configz`, `/flagz` and `/statusz` of the admin listener, in the formats of Kubernetes'
//! components (`k8s.io/component-base/configz` and `zpages`, 1.36): weir's configuration and
//! version. Nothing here is secret: settings name files, and the contents of those files are not
//! included.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use http::{HeaderMap, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::observe::status::sources::ConfiguredSources;
use weir_status::alarms::CertificateLifetime;

/// The first lines of `/flagz` and `/statusz`.
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees \
                       and is for debugging purposes only.\n";

/// The configuration in force.
#[derive(Clone, Debug, Default)]
pub struct EffectiveConfig {
    /// Flags with their values as text, defaults included. A flag without a value is empty.
    pub(crate) flags: BTreeMap<String, String>,
    /// Settings by their names in a `--config` file.
    pub(crate) settings: BTreeMap<String, Value>,
    /// The name of the machine. Empty if it is not known.
    pub(crate) host: String,
    /// The certificates and CAs in files, for the alarms.
    pub(crate) certificates: Vec<CertificateLifetime>,
}

/// The data of the endpoints.
#[derive(Debug)]
pub(crate) struct Zpages {
    /// The configuration in force. A reload replaces it.
    pub(crate) effective: Arc<ArcSwap<EffectiveConfig>>,
    /// Names the API server.
    pub(crate) sources: Arc<ArcSwap<ConfiguredSources>>,
    /// The time at which weir started, on both clocks.
    pub(crate) start_time: (Instant, SystemTime),
}

impl Zpages {
    /// Returns the body of `/configz`: the settings under the component's name, and the flow schemas
    /// and priority levels in force, if there are any.
    #[must_use]
    pub(crate) fn configz(&self, flowcontrol: Option<Value>) -> String {
        let mut configz = json!({"weir": self.effective.load().settings});
        if let (Some(objects), Some(configz)) = (flowcontrol, configz.as_object_mut()) {
            configz.insert("flowcontrol".to_owned(), objects);
        }
        configz.to_string()
    }

    /// Returns the body of `/flagz`: the flags by name.
    #[must_use]
    pub(crate) fn flagz(&self) -> String {
        let mut text = format!("\nweir flags\n{WARNING}\n");
        for (name, value) in &self.effective.load().flags {
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "{name}={value}");
        }
        text
    }

    /// Returns the body of `/statusz`: version, uptime and further endpoints.
    #[must_use]
    pub(crate) fn statusz(&self, now: Instant) -> String {
        let (started, wall) = self.start_time;
        let up = format_uptime(now.saturating_duration_since(started));
        let wall = Timestamp::try_from(wall).unwrap_or_default();
        format!(
            "\nweir statusz\n{WARNING}\nStarted: {}\nUp: {up}\nBinary version: {}\nHost: {}\nUpstream: {}\nUseful Endpoints: \
             /configz /debug /flagz /livez /metrics /readyz /status\n",
            wall.strftime("%a %b %e %H:%M:%S UTC %Y"),
            env!("CARGO_PKG_VERSION"),
            self.effective.load().host,
            self.sources.load().upstream_address,
        )
    }
}

/// Formats a duration as Kubernetes does: `12 hr 05 min 00 sec`.
fn format_uptime(up: Duration) -> String {
    let seconds = up.as_secs();
    format!(
        "{} hr {:02} min {:02} sec",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

/// Whether a client accepts plain text (`httputil.AcceptableMediaType`). A client without `Accept`
/// accepts any type.
#[must_use]
pub(crate) fn accepts_plain_text(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter().peekable();
    accepted.peek().is_none()
        || accepted.any(|value| {
            value.to_str().is_ok_and(|value| {
                value.split(',').any(|range| {
                    let kind = range.split(';').next().unwrap_or_default().trim();
                    ["*/*", "text/*", "text/plain"].contains(&kind)
                })
            })
        })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::limits::Admission;
    use crate::pipeline::reject::delay::{RejectionDelay, RejectionDelayConfig};
    use weir_base::metrics::Registry;
    use weir_limits::MaxInFlight;
    use weir_limits::max_in_flight::MaxInFlightConfig;

    fn pages() -> (Zpages, Instant) {
        let began = weir_base::clock::Clock.now();
        let pages = Zpages {
            effective: Arc::new(ArcSwap::from_pointee(EffectiveConfig {
                flags: [
                    ("workers", "2"),
                    ("config", ""),
                    ("admin-address", "127.0.0.1:6480"),
                ]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
                settings: [("workers".to_owned(), json!(2))].into(),
                host: "node-1".to_owned(),
                certificates: Vec::new(),
            })),
            sources: Arc::new(ArcSwap::from_pointee(ConfiguredSources {
                upstream_address: "10.0.0.1:6443".to_owned(),
                rate_limits: Arc::default(),
                rejection_delay: Arc::new(RejectionDelay::new(
                    RejectionDelayConfig::default(),
                    &Registry::new(),
                )),
                max_connections: 1,
                health_metrics: false,
                admission: Admission::MaxInFlight(Arc::new(MaxInFlight::new(
                    MaxInFlightConfig {
                        read_only: 1.into(),
                        mutating: 1.into(),
                    },
                    &Registry::new(),
                ))),
                flowcontrol: None,
            })),
            start_time: (
                began,
                SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
            ),
        };
        (pages, began)
    }

    #[test]
    fn the_pages_have_the_forms_of_kubernetes_components() {
        let (pages, began) = pages();
        assert_eq!(pages.configz(None), r#"{"weir":{"workers":2}}"#);
        let flags = pages.flagz();
        assert!(flags.starts_with(
            "\nweir flags\nWarning: This endpoint is not meant to be machine parseable, "
        ));
        assert!(
            flags.ends_with(".\n\nadmin-address=127.0.0.1:6480\nconfig=\nworkers=2\n"),
            "{flags}"
        );
        let status = pages.statusz(began + Duration::from_secs(3 * 3600 + 5 * 60 + 7));
        let lines: Vec<_> = status.lines().collect();
        assert_eq!(lines[..2], ["", "weir statusz"]);
        assert_eq!(
            lines[4..6],
            [
                "Started: Fri Jan 15 08:00:00 UTC 2027",
                "Up: 3 hr 05 min 07 sec"
            ]
        );
        assert!(
            status.contains("\nHost: node-1\nUpstream: 10.0.0.1:6443\n"),
            "{status}"
        );
    }

    #[test]
    fn plain_text_is_accepted_without_an_accept_header_or_with_a_matching_one() {
        let takes = |accept: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            }
            accepts_plain_text(&headers)
        };
        for accept in [
            None,
            Some("*/*"),
            Some("text/plain;q=0.9"),
            Some("text/html, text/*"),
        ] {
            assert!(takes(accept), "{accept:?}");
        }
        for accept in [Some("application/json"), Some("")] {
            assert!(!takes(accept), "{accept:?}");
        }
    }
}
