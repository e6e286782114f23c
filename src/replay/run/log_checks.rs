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
}

/// What the checks have found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CheckedLog {
    /// Whether the requests match the recorded flow schemas.
    pub(crate) classification: Option<ClassificationReport>,
    /// Whether the clients wait for their own requests.
    pub(crate) waiting: WaitingReport,
}

impl LogChecks {
    /// The checks of a log with these clients. `policies` are those of the configuration.
    pub(crate) fn new(policies: Option<&ReplayedPolicies>, table: &Arc<ClientTable>) -> Self {
        Self {
            classification: ClassificationCheck::new(policies, table),
            waiting: WaitingClients::default(),
        }
    }

    /// Checks an item of the log. Items come in the order of their times.
    pub(crate) fn check(&mut self, item: &LogItem) {
        let LogItem::Request(request) = item else {
            return;
        };
        self.classification.check(request);
        self.waiting.count(request);
    }

    /// What was found.
    pub(crate) fn report(&self) -> CheckedLog {
        CheckedLog {
            classification: self.classification.report(),
            waiting: self.waiting.report(),
        }
    }
}
