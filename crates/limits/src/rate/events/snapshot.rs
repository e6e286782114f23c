//! The state of the limits for operators.

use crate::rate::events::config::EventLimitConfig;
use crate::rate::events::enforcer::EventRateLimit;
use crate::rate::top_keys::RateLimitSnapshot;

impl EventRateLimit {
    /// The state of each limit.
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
