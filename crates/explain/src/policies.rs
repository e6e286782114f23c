//! The policies whose fields select a request, and what each would do.

use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;

use crate::request::ExplainRequest;
use weir_flowcontrol::matching::{Policies, RequestDigest};
use weir_kubernetes::api::UserInfo;
use weir_kubernetes::request_info::RequestInfo;
use weir_limits::rate::policies::config::PolicyRule;
use weir_limits::rate::policies::request::PolicyRequest;
use weir_limits::{AdmissionAttributes, RequestSource};

/// The policies of a configuration.
#[derive(Debug)]
pub struct PolicyRules {
    index: Policies,
    policies: Vec<PolicyRule>,
}

/// A policy whose fields select the request.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyReport<'e> {
    /// The policy's name.
    pub policy: &'e str,
    /// `deny`, `reject`, `limit` or `tag`.
    pub action: &'static str,
    /// What that does, in a few words.
    pub does: String,
    /// Whether the policy only counts.
    pub dry_run: bool,
    /// Whether it is for the request.
    pub applies: bool,
    /// Why it is not, or what its conditions fail by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl PolicyReport<'_> {
    /// The code of the response, if the policy rejects every request that it is for.
    pub(super) fn rejection_code(&self) -> Option<u16> {
        match self.action {
            _ if self.dry_run || !self.applies => None,
            "deny" => Some(403),
            "reject" => Some(429),
            _ => None,
        }
    }
}

impl PolicyRules {
    /// Compiles the policies.
    pub(super) fn new(policies: Vec<PolicyRule>) -> Self {
        Self {
            index: Policies::indexed(policies.iter().map(|policy| &policy.rules[..])),
            policies,
        }
    }

    /// The policies that select the request, in their order. `None` if none are configured. The user
    /// counts as proven, unless it is anonymous.
    pub(super) fn reports<'e>(
        &'e self,
        request: &ExplainRequest<'_>,
        info: &RequestInfo<'_>,
        user: &UserInfo,
    ) -> Option<Vec<PolicyReport<'e>>> {
        if self.policies.is_empty() {
            return None;
        }
        let policy_request = PolicyRequest {
            attributes: AdmissionAttributes { info, user },
            source: RequestSource {
                address: request
                    .source_address
                    .unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
                user_agent: request.user_agent.as_deref().unwrap_or_default().as_bytes(),
            },
            is_verified: !user.is_anonymous(),
        };
        let digest = RequestDigest::new(info, user);
        let selected = self.index.matching_entries(&digest);
        let selected = selected.filter_map(|n| self.policies.get(n));
        Some(
            selected
                .map(|policy| report(policy, &policy_request))
                .collect(),
        )
    }
}

fn report<'e>(policy: &'e PolicyRule, request: &PolicyRequest<'_>) -> PolicyReport<'e> {
    // Those that have ended are left out before.
    let outcome = policy.matches(request, i64::MIN);
    let why = match outcome {
        Ok(true) => None,
        Ok(false) => Some("a condition or the user agent does not match".to_owned()),
        Err(error) => Some(format!("a condition has no value: {error}")),
    };
    PolicyReport {
        policy: &policy.name,
        action: policy.action.label(),
        does: policy.action.summary(),
        dry_run: policy.dry_run,
        applies: outcome.unwrap_or(policy.applies_on_error),
        why,
    }
}
