//! Lets the shared buckets of a rule be refilled.

use std::time::Instant;

use crate::rate::clients::enforcer::ClientRuleEnforcer;
use crate::rate::spin_lock::spin_lock;
use crate::shared_limits::bucket::RefillAnswer;
use crate::shared_limits::source::{RefillSource, SourceCall};

impl RefillSource for ClientRuleEnforcer {
    fn collect(&self, now: Instant, max_keys: usize, calls: &mut Vec<SourceCall>) {
        spin_lock(&self.tables).collect(now, max_keys, calls);
    }

    fn apply(&self, call: &SourceCall, answer: RefillAnswer, now: Instant) {
        spin_lock(&self.tables).apply(call, answer, now);
    }
}
