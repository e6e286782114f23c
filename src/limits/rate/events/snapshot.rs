//! The limits as operators see them.

use crate::limits::rate::RateLimitSnapshot;
use crate::limits::rate::events::config::EventLimitConfig;
use crate::limits::rate::events::enforcer::EventRateLimit;

impl EventRateLimit {
    /// Each limit as it stands.
    #[must_use]
    pub fn snapshot(&self) -> Vec<RateLimitSnapshot> {
        let tops = self.top_keys().into_iter();
        let limits = self.limit_configs().iter().zip(self.counts()).zip(tops);
        limits
            .map(|((limit, counted), (_, top))| RateLimitSnapshot {
                name: format!("EventRateLimit/{}", limit.limit_type.name()),
                allows: limit_summary(limit),
                dry_run: false,
                passed: counted.allowed,
                delayed: 0,
                rejected: counted.rejected,
                keys: counted.keys,
                most_keys: limit.cache_size.into(),
                top,
            })
            .collect()
    }
}

/// What a limit counts as so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct EventLimitCounts {
    pub(super) allowed: u64,
    pub(super) rejected: u64,
    pub(super) keys: u64,
}

fn limit_summary(limit: &EventLimitConfig) -> String {
    let EventLimitConfig {
        qps,
        burst,
        warning_reserve_percent: reserve,
        ..
    } = limit;
    let reserve = match reserve {
        0 => String::new(),
        percent => format!(", {percent} % for warnings"),
    };
    format!("{qps}/s, burst {burst}{reserve}")
}
