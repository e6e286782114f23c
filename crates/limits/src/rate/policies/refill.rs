//! Lets the shared buckets of a policy's limit be refilled.

use std::time::Instant;

use super::enforcer::PolicyEnforcer;
use crate::rate::spin_lock::spin_lock;
use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::source::{RefillSource, SourceCall};

impl RefillSource for PolicyEnforcer {
    fn collect(&self, now: Instant, max_keys: usize, calls: &mut Vec<SourceCall>) {
        if let Some(buckets) = &self.buckets {
            spin_lock(buckets).collect(0, now, max_keys, calls);
        }
    }

    fn apply(&self, call: &SourceCall, answer: RefillAnswer, now: Instant) {
        if let Some(buckets) = &self.buckets {
            spin_lock(buckets).apply(call.key, answer, now);
        }
    }
}
