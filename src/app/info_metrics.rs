//! Metrics that show the configuration and the process, besides those that count.

use std::sync::Arc;

use rustls::sign::CertifiedKey;

use crate::observe::info_metrics::{CertificateExpiry, InfoMetrics};
use crate::observe::readiness::Readiness;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::tls;
use weir_base::metrics::Registry;
use weir_base::process_metrics;

/// Registers the metrics of the process, of readiness, and of the certificates that weir presents.
pub(super) fn register(
    (serving, front_proxy): (&Arc<CertifiedKey>, Option<&Arc<CertifiedKey>>),
    own_credentials: &Arc<OwnCredentials>,
    readiness: &Arc<Readiness>,
    registry: &Registry,
) {
    let expiry_of = |key: &Arc<CertifiedKey>| -> CertificateExpiry {
        let key = Arc::clone(key);
        Box::new(move || tls::expiry(&key))
    };
    let renewed = Arc::clone(own_credentials);
    let mut certificates: Vec<(&'static str, CertificateExpiry)> = vec![
        ("serving", expiry_of(serving)),
        (
            "own",
            Box::new(move || {
                let key = renewed.certificate()?;
                tls::expiry(&key)
            }),
        ),
    ];
    if let Some(front_proxy) = front_proxy {
        certificates.push(("front-proxy", expiry_of(front_proxy)));
    }
    process_metrics::register(registry);
    InfoMetrics::register(Some(Arc::clone(readiness)), certificates, registry);
}
