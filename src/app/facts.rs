//! What is shown besides what is counted.

use std::sync::Arc;

use rustls::sign::CertifiedKey;

use crate::config;
use crate::config::Limits;
use crate::flowcontrol::controller::Enforcement;
use crate::metrics::Registry;
use crate::observe::facts;
use crate::observe::facts::Expires;
use crate::observe::facts::Facts;
use crate::observe::process;
use crate::observe::readiness::Readiness;
use crate::upstream;
use crate::upstream::credentials::OwnCredentials;
use crate::upstream::tls;

/// Shows whether what limits only counts.
pub(super) fn show_mode(limits: &Limits, registry: &Registry) {
    let enforcement = match limits {
        Limits::Fairness { config, .. } => Some(config.enforcement),
        Limits::MaxInFlight(_) => None,
    };
    facts::dry_run(enforcement == Some(Enforcement::DryRun), registry);
}

/// Shows the process, readiness and the certificates that weir shows to others.
pub(super) fn show(
    serving: &config::Serving,
    upstream: &upstream::Config,
    own: &Arc<OwnCredentials>,
    readiness: &Arc<Readiness>,
    registry: &Registry,
) {
    let given = |key: &Arc<CertifiedKey>| -> Expires {
        let key = Arc::clone(key);
        Box::new(move || tls::expires(&key))
    };
    let renewed = Arc::clone(own);
    let mut certificates: Vec<(&'static str, Expires)> = vec![
        ("serving", given(&serving.tls.certificate)),
        (
            "own",
            Box::new(move || {
                let key = renewed.certificate()?;
                tls::expires(&key)
            }),
        ),
    ];
    if let Some(front_proxy) = &upstream.front_proxy {
        certificates.push(("front-proxy", given(front_proxy)));
    }
    process::register(registry);
    Facts::register(Some(Arc::clone(readiness)), certificates, registry);
}
