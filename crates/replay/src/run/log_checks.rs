//! What a log says about how well it can be replayed.

use std::sync::Arc;

use super::classification::ClassificationCheck;
use super::waiting::WaitingClients;
use crate::clients::ClientTable;
use crate::logged::LogItem;
use crate::report::model::{ClassificationReport, WaitingReport};
use crate::simulation::ReplayedPolicies;

/// The checks of one log.
#[derive(Debug)]
pub struct LogChecks {
    classification: ClassificationCheck,
    waiting: WaitingClients,
}

/// What the checks have found.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckedLog {
    /// Whether the requests match the recorded flow schemas.
    pub classification: Option<ClassificationReport>,
    /// Whether the clients wait for their own requests.
    pub waiting: WaitingReport,
}

impl LogChecks {
    /// The checks of a log with these clients. `policies` are those of the configuration.
    pub fn new(policies: Option<&ReplayedPolicies>, table: &Arc<ClientTable>) -> Self {
        Self {
            classification: ClassificationCheck::new(policies, table),
            waiting: WaitingClients::default(),
        }
    }

    /// Checks an item of the log. Items come in the order of their times.
    pub fn check(&mut self, item: &LogItem) {
        let LogItem::Request(request) = item else {
            return;
        };
        self.classification.check(request);
        self.waiting.count(request);
    }

    /// What was found.
    pub fn report(&self) -> CheckedLog {
        CheckedLog {
            classification: self.classification.report(),
            waiting: self.waiting.report(),
        }
    }
}
