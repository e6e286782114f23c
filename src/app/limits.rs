//! The limits of a configuration: puts them in force, and compares their total with an API server.

use std::sync::Arc;

use http::StatusCode;

use crate::app::cluster::object_counts::read_metrics;
use crate::app::cluster::server_facts::count_live;
use crate::config::AdmissionConfig;
use crate::limits::limiters::{LimiterInForce, Limiters};
use crate::limits::total_finder::{AutoTotalConfig, TotalFinder};
use crate::upstream::forward::api_server_client::ApiServerClient;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;
use weir_kubernetes::numeric::saturating_u64;

/// Puts the configured mode and limits of admission in force, with `total` instead of the configured
/// one.
pub(super) fn apply_limits(
    limiters: &Limiters,
    configured: &AdmissionConfig,
    total: Option<u32>,
) -> LimiterInForce {
    let now = Clock.now();
    match configured {
        AdmissionConfig::Fairness { config, sources } => {
            let (files, reads_cluster) = (sources.files.clone(), sources.cluster.is_some());
            limiters.apply_fairness(now, *config, total, files, reads_cluster)
        }
        AdmissionConfig::MaxInFlight(config) => limiters.apply_max_in_flight(now, *config, total),
    }
}

/// The limits of a configuration.
pub(super) struct ConfiguredLimits<'c> {
    pub(super) admission: &'c AdmissionConfig,
    pub(super) finder: AutoTotalConfig,
    pub(super) is_auto: bool,
    /// The number of API servers that have an address of their own.
    pub(super) servers: usize,
    /// Whether they are on this machine.
    pub(super) are_local: bool,
}

impl ConfiguredLimits<'_> {
    /// What is wrong with the total in front of this API server, as a start would find out.
    pub(super) async fn warning(&self, calls: &ApiServerClient) -> Option<String> {
        let registry = Registry::new();
        let limiters = Arc::new(Limiters::new(&registry));
        let finder = TotalFinder::new(&limiters, &registry);
        finder.configure(Clock.now(), self.finder, self.is_auto, |total| {
            apply_limits(&limiters, self.admission, total)
        });
        let servers = async {
            match self.servers {
                1 if !self.are_local => count_live(calls).await.and_then(Result::ok),
                several => Some(saturating_u64(several)),
            }
        };
        let ((metrics, response), servers) = tokio::join!(read_metrics(calls), servers);
        if let Ok((StatusCode::OK, _)) = response {
            finder.record_server(metrics.nominal_seats(), 0);
        }
        if let Some(servers) = servers {
            finder.record_servers(servers);
        }
        finder.warning()
    }
}
