//! The `apiserver_flowcontrol_*` metrics of kube-apiserver 1.36, under the same names, with the
//! same labels and buckets.
//!
//! All values are read from the levels at each scrape. The values of one level are of one instant.
//! As upstream, a series begins with the first event that it counts. Other than upstream, it ends
//! some minutes after its level or schema was removed, and all end while another mode of admission
//! is in force. The metrics that upstream deprecates and hides by default are left out.
//! `metrics::in_flight` exposes `read_vs_write_current_requests`.
//!
//! Upstream keeps every series for ever. weir outlives many changes, so rows of counters are given
//! to other schemas after five minutes. A request that was classified before and arrives later
//! finds another generation in its row, and is classified again.

mod families;
mod view;

use std::sync::Arc;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use self::families::FAMILIES;
use self::view::LevelsView;
use crate::flowcontrol::level::PriorityLevel;
use weir_base::clock::Clock;
use weir_base::metrics::Registry;

/// Returns all levels that exist or have existed, and the `seat_fair_frac` of the last adjustment.
type ReadLevels = dyn Fn() -> (Vec<Arc<PriorityLevel>>, Option<f64>) + Send + Sync;

/// Exposes all families of one controller.
struct LevelCollector {
    read_levels: Box<ReadLevels>,
    descs: Vec<Desc>,
}

/// Registers a collector in `registry` that calls `read_levels` at each scrape.
pub(super) fn register(
    registry: &Registry,
    read_levels: impl Fn() -> (Vec<Arc<PriorityLevel>>, Option<f64>) + Send + Sync + 'static,
) {
    registry.register_collector(LevelCollector {
        read_levels: Box::new(read_levels),
        descs: FAMILIES.iter().map(|family| family.spec.desc()).collect(),
    });
}

impl Collector for LevelCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descs.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let (levels, fair_fraction) = (self.read_levels)();
        let mut view = LevelsView {
            now: Clock.now(),
            levels: levels
                .iter()
                .map(|level| (level.name().to_owned(), level.metrics()))
                .collect(),
            fair_fraction,
        };
        let families = FAMILIES.iter().map(|family| {
            let mut samples = family.spec.samples();
            (family.collect)(&mut view, &mut samples);
            samples.into_family()
        });
        families.collect()
    }
}
