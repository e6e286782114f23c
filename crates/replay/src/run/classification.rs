//! Whether the requests of a log match the flow schemas that they matched when they were recorded.
//!
//! A replay reads no objects of a cluster. If the log was written under others than those of the
//! configuration, the replay is not about the policies in force.

use std::sync::Arc;

use crate::clients::{Client, ClientTable};
use crate::logged::LoggedRequest;
use crate::report::model::ClassificationReport;
use crate::simulation::ReplayedPolicies;
use weir_explain::explainer::ConcurrencyPolicy;
use weir_flowcontrol::matching::{Matcher, RequestDigest};
use weir_kubernetes::request_info::RequestInfo;

/// Compares the schemas of a configuration with the recorded ones.
#[derive(Debug)]
pub(super) struct ClassificationCheck {
    /// `None` with max-in-flight.
    matcher: Option<Matcher>,
    table: Arc<ClientTable>,
    clients: Vec<Arc<Client>>,
    counts: ClassificationReport,
}

impl ClassificationCheck {
    /// A check of this configuration, for a log with these clients.
    pub(super) fn new(policies: Option<&ReplayedPolicies>, table: &Arc<ClientTable>) -> Self {
        let concurrency = policies.map(|policies| &policies.limits.concurrency);
        Self {
            matcher: match concurrency {
                Some(ConcurrencyPolicy::Fairness { objects, .. }) => Some(Matcher::new(objects)),
                Some(ConcurrencyPolicy::MaxInFlight(_)) | None => None,
            },
            table: Arc::clone(table),
            clients: Vec::new(),
            counts: ClassificationReport::default(),
        }
    }

    /// Checks a request of the log.
    pub(super) fn check(&mut self, request: &LoggedRequest) {
        let Some(matcher) = &self.matcher else {
            return;
        };
        let Some(recorded) = request.recorded.flow_schema else {
            return;
        };
        let client = usize::try_from(request.client.0).unwrap_or(usize::MAX);
        if client >= self.clients.len() {
            self.table.extend(&mut self.clients);
        }
        let info = RequestInfo::parse(request.method(), request.target());
        let (Some(client), Ok(info)) = (self.clients.get(client), info) else {
            return; // weir answers it before all limits
        };
        let digest = RequestDigest::new(&info, &client.user);
        let schema = matcher.classify(&digest).schema;
        let is_same = self
            .table
            .schema_name(recorded)
            .is_some_and(|recorded| *recorded == *schema.name);
        self.counts.recorded += 1;
        self.counts.different += u64::from(!is_same);
    }

    /// What was counted. `None` if no schema is recorded.
    pub(super) fn report(&self) -> Option<ClassificationReport> {
        (self.counts.recorded > 0).then_some(self.counts)
    }
}
