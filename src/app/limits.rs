//! The limits of a configuration: puts them in force, and compares their total with an API server.

use std::sync::Arc;

use http::StatusCode;

use crate::app::cluster::object_counts::read_metrics;
use crate::app::cluster::server_facts::count_live;
use crate::config::AdmissionConfig;
use crate::limits::limiters::{LimiterInForce, Limiters};
use crate::limits::total_finder::{AutoTotalConfig, PublishedSeats, TotalFinder};
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
        AdmissionConfig::MaxInFlight {
            config,
            enforcement,
        } => limiters.apply_max_in_flight(now, *config, *enforcement, total),
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

/// What the limits are in front of an API server.
pub(super) struct LimitsReview {
    /// What is wrong with the total, as a start would find out.
    pub(super) warning: Option<String>,
    /// The memory that the API server uses, in bytes, if it says so.
    pub(super) server_memory: Option<u64>,
}

impl ConfiguredLimits<'_> {
    /// Compares them with what this API server publishes.
    pub(super) async fn review(&self, calls: &ApiServerClient) -> LimitsReview {
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
        let ((metrics, response), servers) = tokio::join!(read_metrics(calls, None), servers);
        let is_read = matches!(response, Ok((StatusCode::OK, _)));
        if is_read {
            let mut published = PublishedSeats::default();
            published.add(&metrics);
            finder.record_seats(published);
        }
        if let Some(servers) = servers {
            finder.record_servers(servers);
        }
        LimitsReview {
            warning: finder.warning(),
            server_memory: metrics.resident_memory().filter(|_| is_read),
        }
    }
}
