//! The limits as operators see them.

use crate::limits::events::config::Limit;
use crate::limits::events::enforce::EventRateLimit;
use crate::limits::rates::RateLimit;

impl EventRateLimit {
    /// Each limit as it stands.
    #[must_use]
    pub fn shown(&self) -> Vec<RateLimit> {
        let tops = self.top_keys().into_iter();
        let limits = self.configured().iter().zip(self.counted()).zip(tops);
        limits
            .map(|((limit, counted), (_, top))| RateLimit {
                name: format!("EventRateLimit/{}", limit.limit_type.name()),
                allows: allows(limit),
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
pub(super) struct Counted {
    pub(super) allowed: u64,
    pub(super) rejected: u64,
    pub(super) keys: u64,
}

fn allows(limit: &Limit) -> String {
    let Limit {
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
