//! What a log says about how well it can be replayed.

use std::sync::Arc;

use super::classification::ClassificationCheck;
use super::waiting::WaitingClients;
use crate::replay::clients::ClientTable;
use crate::replay::logged::LogItem;
use crate::replay::report::model::{ClassificationReport, WaitingReport};
use crate::replay::simulation::ReplayedPolicies;

/// The checks of one log.
#[derive(Debug)]
pub(crate) struct LogChecks {
    classification: ClassificationCheck,
    waiting: WaitingClients,
    began_under_way: bool,
}

/// What the checks have found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckedLog {
    /// Whether the requests match the recorded flow schemas.
    pub(crate) classification: Option<ClassificationReport>,
    /// Whether the clients wait for their own requests.
    pub(crate) waiting: WaitingReport,
    /// Whether weir was serving already when its record began.
    pub(crate) began_under_way: bool,
}

impl LogChecks {
    /// The checks of a log with these clients. `policies` are those of the configuration.
    pub(crate) fn new(policies: Option<&ReplayedPolicies>, table: &Arc<ClientTable>) -> Self {
        Self {
            classification: ClassificationCheck::new(policies, table),
            waiting: WaitingClients::default(),
            began_under_way: false,
        }
    }

    /// Checks an item of the log. Items come in the order of their times.
    pub(crate) fn check(&mut self, item: &LogItem) {
        let LogItem::Request(request) = item else {
            return;
        };
        self.classification.check(request);
        self.waiting.count(request);
        let adjustment = request.order().and_then(|order| order.adjustment);
        self.began_under_way |= adjustment.is_some_and(|adjustment| adjustment.number == 0);
    }

    /// What was found.
    pub(crate) fn report(&self) -> CheckedLog {
        CheckedLog {
            classification: self.classification.report(),
            waiting: self.waiting.report(),
            began_under_way: self.began_under_way,
        }
    }
}
