//! Flow schemas and priority levels for the tests.

/// A priority level with this many shares that neither lends nor borrows, and a flow schema that
/// routes a group's requests to it, by user.
///
/// The shares of the built-in levels add up to 245: with as many, the level gets half of the total.
pub(crate) fn level_for(group: &str, name: &str, shares: u32, limit_response: &str) -> String {
    format!(
        "apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {{name: {name}, uid: {name}-level}}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: {shares}
    lendablePercent: 0
    borrowingLimitPercent: 0
    limitResponse: {limit_response}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{name: {name}}}
spec:
  matchingPrecedence: 50
  priorityLevelConfiguration: {{name: {name}}}
  distinguisherMethod: {{type: ByUser}}
  rules:
  - subjects: [{{kind: Group, group: {{name: {group}}}}}]
    resourceRules:
    - {{verbs: ['*'], apiGroups: ['*'], resources: ['*'], clusterScope: true, namespaces: ['*']}}
"
    )
}

/// The queues of the suggested levels.
pub(crate) const QUEUE: &str =
    "{type: Queue, queuing: {queues: 128, handSize: 6, queueLengthLimit: 50}}";

/// Requests are rejected instead of queued.
pub(crate) const REJECT: &str = "{type: Reject}";
