//! Metrics about the process's state: version, readiness, and expiry of certificates.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntGauge, IntGaugeVec};

use crate::observe::readiness::Readiness;
use weir_base::metrics::Registry;
use weir_kubernetes::numeric::saturating_i64;

/// Returns the expiry of a certificate. Called for each scrape, since certificates are renewed.
pub(crate) type CertificateExpiry = Box<dyn Fn() -> Option<SystemTime> + Send + Sync>;

/// Collects the metrics whose values are read at the time of a scrape.
pub struct InfoMetrics {
    ready: IntGauge,
    readiness: Option<Arc<Readiness>>,
    expiration: IntGaugeVec,
    /// Certificates by their purpose, the label `which`.
    certificates: Vec<(&'static str, CertificateExpiry)>,
}

impl InfoMetrics {
    /// Registers the metrics.
    #[expect(
        clippy::expect_used,
        reason = "names and labels are constants of this program; a test renders them all"
    )]
    pub fn register(
        readiness: Option<Arc<Readiness>>,
        certificates: Vec<(&'static str, CertificateExpiry)>,
        registry: &Registry,
    ) {
        registry
            .gauges(
                "weir_build_info",
                "1 for the version that runs.",
                &["version"],
            )
            .with_label_values(&[env!("CARGO_PKG_VERSION")])
            .set(1);
        let ready = IntGauge::new(
            "weir_ready",
            "0 while weir shuts down, while the API server does not answer /readyz (probed every two seconds), or while that probe loops back to weir itself; 1 otherwise.",
        );
        let opts = prometheus::Opts::new(
            "weir_certificate_expiration_timestamp_seconds",
            "When a certificate that weir shows ends (serving, front-proxy, own), or the first of its chain, in seconds since 1970.",
        );
        registry.register_collector(Self {
            ready: ready.expect("a name is well-formed"),
            readiness,
            expiration: IntGaugeVec::new(opts, &["which"]).expect("a name is well-formed"),
            certificates,
        });
    }
}

impl Collector for InfoMetrics {
    fn desc(&self) -> Vec<&Desc> {
        [self.ready.desc(), self.expiration.desc()].concat()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let ready = self
            .readiness
            .as_ref()
            .is_none_or(|readiness| readiness.last_known_ready());
        self.ready.set(ready.into());
        self.expiration.reset();
        for (which, expires) in &self.certificates {
            let Some(expiry) = expires() else { continue };
            let since_1970 = expiry
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default();
            self.expiration
                .with_label_values(&[*which])
                .set(saturating_i64(since_1970.as_secs()));
        }
        [self.ready.collect(), self.expiration.collect()].concat()
    }
}

impl fmt::Debug for InfoMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InfoMetrics({} certificates)", self.certificates.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_expiration_is_that_of_the_certificate_in_use() {
        let registry = Registry::new();
        let end = Arc::new(AtomicU64::new(1_800_000_000));
        let seen = Arc::clone(&end);
        let expires: CertificateExpiry = Box::new(move || match seen.load(Ordering::Relaxed) {
            0 => None,
            at => Some(SystemTime::UNIX_EPOCH + Duration::from_secs(at)),
        });
        InfoMetrics::register(None, vec![("serving", expires)], &registry);
        let line = |at: &str| {
            format!("weir_certificate_expiration_timestamp_seconds{{which=\"serving\"}} {at}\n")
        };
        assert!(
            registry.render().contains(&line("1800000000")),
            "{}",
            registry.render()
        );
        end.store(1_900_000_000, Ordering::Relaxed);
        assert!(registry.render().contains(&line("1900000000")));
        end.store(0, Ordering::Relaxed);
        assert!(!registry.render().contains("which="), "it is gone");
    }
}
