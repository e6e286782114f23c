//! The permissions of weir's own credential, checked once at the start (`SelfSubjectAccessReview`),
//! so that a missing one is known before the first token or impersonation needs it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tracing::{debug, warn};

use crate::app::access_review::{SelfAccessDecision, parse_decision, self_access_review};
use crate::config::{AdminAuthorizationMode, AdmissionConfig, Config};
use crate::flowcontrol::sources::{ClusterResource, rbac_rule};
use crate::identity::self_subject_review;
use crate::identity::transport::{ApiTransport, RemoteRequest};
use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::document::Severity;

/// The interval of retries if the API server does not respond.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

const DELEGATOR: &str = "the ClusterRole system:auth-delegator";
const FLOWCONTROL_READER: &str = "the ClusterRole weir of deploy/kustomize/base/rbac.yaml";
const ENDPOINT_SLICE_READER: &str =
    "the Role of deploy/kustomize/overlays/endpoint-slices/rbac.yaml";
const METRICS_READER: &str = FLOWCONTROL_READER;
const SERVER_COUNTER: &str = "the Role weir:api-servers of deploy/kustomize/base/rbac.yaml";
const LEASE_WRITER: &str = "the Role weir:replicas of deploy/kustomize/base/rbac.yaml";
const ISSUER_DISCOVERY: &str = "the ClusterRole system:service-account-issuer-discovery";
const IMPERSONATOR: &str = "a ClusterRole with the verb impersonate for users, groups and serviceaccounts, and for * of authentication.k8s.io (RBAC has no userextras/*)";

/// The API group of EndpointSlices.
const DISCOVERY: &str = "discovery.k8s.io";

/// The API group of Leases.
const LEASES: &str = "coordination.k8s.io";

/// What a replica does with Leases.
const LEASE_VERBS: [&str; 5] = ["get", "list", "create", "update", "delete"];

/// The verbs of an informer.
const READ: [&str; 2] = ["list", "watch"];

/// The extra of every client certificate's user (`x509.CommonNameUserConversion`). Each key is a
/// permission of its own.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// A permission that weir needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Permission {
    verb: &'static str,
    /// The API group; `None` if `resource` is a path.
    group: Option<&'static str>,
    /// The resource or the path.
    resource: &'static str,
    /// Usually empty.
    subresource: &'static str,
    /// The only namespace; empty for all of them.
    namespace: String,
    /// The only object; empty for all of them.
    name: &'static str,
    /// What grants the permission.
    granted_by: &'static str,
    /// What happens without the permission.
    consequence: &'static str,
    /// Whether requests of clients are rejected without the permission.
    is_essential: bool,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if let Some(group) = self.group.filter(|group| !group.is_empty()) {
            write!(f, ".{group}")?;
        }
        if !self.subresource.is_empty() {
            write!(f, "/{}", self.subresource)?;
        }
        Ok(())
    }
}

impl Permission {
    async fn ask(&self, server: &dyn ApiTransport) -> SelfAccessDecision {
        match server.send(self.review_request()).await {
            Ok(reply) => parse_decision(&reply),
            Err(_) => SelfAccessDecision::NoDecision,
        }
    }

    /// The rule of a ClusterRole that gives the permission.
    fn rule(&self) -> String {
        let Self { verb, resource, .. } = self;
        match self.group {
            // One rule, not one for each resource and verb.
            Some(flowcontrol::GROUP) => rbac_rule(),
            Some(DISCOVERY) => format!(
                "{{apiGroups: [{DISCOVERY}], resources: [{resource}], verbs: [list, watch]}}"
            ),
            Some(LEASES) => format!(
                "{{apiGroups: [{LEASES}], resources: [{resource}], verbs: [{}]}}",
                LEASE_VERBS.join(", ")
            ),
            None => format!("{{nonResourceURLs: [{resource}], verbs: [{verb}]}}"),
            Some(group) => {
                let slash = if self.subresource.is_empty() { "" } else { "/" };
                let resource = format!("{resource}{slash}{}", self.subresource);
                format!("{{apiGroups: [{group:?}], resources: [{resource}], verbs: [{verb}]}}")
            }
        }
    }

    /// The command that gives the permission to `user`.
    fn command(&self, user: &str) -> String {
        let Self {
            verb,
            resource,
            namespace,
            name,
            ..
        } = self;
        let what = match self.group {
            None => format!("--non-resource-url={resource}"),
            Some(group) => {
                let (dot, slash) = (
                    if group.is_empty() { "" } else { "." },
                    if self.subresource.is_empty() { "" } else { "/" },
                );
                let subresource = self.subresource;
                let only = match name.is_empty() {
                    true => String::new(),
                    false => format!(" --resource-name={name}"),
                };
                format!("--resource={resource}{dot}{group}{slash}{subresource}{only}")
            }
        };
        let (kind, namespaced) = match namespace.is_empty() {
            true => ("clusterrole", String::new()),
            false => ("role", format!(" -n {namespace}")),
        };
        let last = resource.rsplit('/').next().unwrap_or_default();
        let role = format!("weir:{verb}-{last}");
        let subject = match user.strip_prefix("system:serviceaccount:") {
            Some(account) => format!("--serviceaccount={account}"),
            None => format!("--user={}", shell_quoted(user)),
        };
        format!(
            "kubectl create {kind} {role}{namespaced} --verb={verb} {what} && kubectl create {kind}binding {role}{namespaced} --{kind}={role} {subject}"
        )
    }

    fn missing_text(&self) -> String {
        format!(
            "weir's own credential lacks a right, which {} gives: until then {}",
            self.granted_by, self.consequence
        )
    }

    fn review_request(&self) -> RemoteRequest {
        let Self {
            verb,
            resource: what,
            subresource,
            namespace,
            name,
            ..
        } = self;
        self_access_review(&match self.group {
            None => json!({"nonResourceAttributes": {"verb": verb, "path": what}}),
            Some(group) => json!({"resourceAttributes": {
                "verb": verb, "group": group, "resource": what, "subresource": subresource,
                "namespace": namespace, "name": name,
            }}),
        })
    }
}

/// A word of a command, as a shell reads it.
fn shell_quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@/".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let printable: String = word.chars().filter(|c| !c.is_control()).collect();
    format!("'{}'", printable.replace('\'', r"'\''"))
}

/// The permissions that a configuration requires, and the client that checks them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SelfAccess {
    required: Vec<Permission>,
}

impl SelfAccess {
    /// The permissions that `weir check --online` asks for: also those whose lack a start finds out
    /// by itself.
    pub(crate) fn for_check(config: &Config) -> Self {
        let Self { mut required } = Self::from_config(config);
        let read = |group, resource, verb| Permission {
            verb,
            group: Some(group),
            resource,
            granted_by: FLOWCONTROL_READER,
            consequence: "the cluster's flow schemas and priority levels are not known, and the built-in objects and those of \
                          --flowcontrol-config are in force",
            is_essential: false,
            ..Permission::default()
        };
        if let AdmissionConfig::Fairness { sources, .. } = &config.admission
            && sources.cluster.is_some()
        {
            for resource in ClusterResource::ALL.map(ClusterResource::plural) {
                required.extend(READ.map(|verb| read(flowcontrol::GROUP, resource, verb)));
            }
        }
        if config.upstream.endpoint_slices {
            required.extend(READ.map(|verb| Permission {
                namespace: "default".to_owned(),
                granted_by: ENDPOINT_SLICE_READER,
                consequence: "requests go to the configured API server only",
                ..read(DISCOVERY, "endpointslices", verb)
            }));
        }
        if let Some(replicas) = &config.replicas {
            required.extend(LEASE_VERBS.map(|verb| Permission {
                namespace: replicas.namespace.clone(),
                granted_by: LEASE_WRITER,
                consequence: "this weir does not divide the totals with others",
                ..read(LEASES, "leases", verb)
            }));
        }
        Self { required }
    }

    /// The permissions that `config` requires; none if weir does not check itself.
    pub(crate) fn from_config(config: &Config) -> Self {
        let verification = &config.identity.verification;
        let mut needed = Vec::new();
        if config.admin.self_check_interval.is_none() {
            return Self { required: needed };
        }
        let is_delegated = config.admin.access.authorization == AdminAuthorizationMode::Webhook;
        let reviews_clients = verification.reviews_per_second > 0;
        if reviews_clients || is_delegated {
            needed.push(Permission {
                verb: "create",
                group: Some("authentication.k8s.io"),
                resource: "tokenreviews",
                granted_by: DELEGATOR,
                consequence: match reviews_clients {
                    true => "tokens that weir cannot verify by their signature count as system:anonymous",
                    false => "bearer tokens that are in no file get 503 on the admin address",
                },
                is_essential: false,
                ..Permission::default()
            });
        }
        let impersonates = config.identity.impersonation.classify || config.assert_by_impersonation;
        if impersonates || is_delegated {
            needed.push(Permission {
                verb: "create",
                group: Some("authorization.k8s.io"),
                resource: "subjectaccessreviews",
                granted_by: DELEGATOR,
                consequence: match (impersonates, is_delegated) {
                    (true, true) => {
                        "weir allows no impersonation, and users get 503 on the admin address"
                    }
                    (true, false) => "weir allows no impersonation",
                    (false, _) => "users get 503 on the admin address",
                },
                is_essential: impersonates,
                ..Permission::default()
            });
        }
        if verification.service_account_keys.is_none() {
            needed.extend(
                ["/.well-known/openid-configuration", "/openid/v1/jwks"].map(|what| Permission {
                    verb: "get",
                    group: None,
                    resource: what,
                    granted_by: ISSUER_DISCOVERY,
                    consequence: "every token is reviewed, also those of service accounts",
                    is_essential: false,
                    ..Permission::default()
                }),
            );
        }
        if !config.object_count_poll_period.is_zero() {
            needed.push(Permission {
                verb: "get",
                resource: "/metrics",
                granted_by: METRICS_READER,
                consequence: "the API server counts as one with kube-apiserver's default limits, and seats are estimated by the lists that pass through",
                ..Permission::default()
            });
        }
        if config.is_auto_total {
            needed.push(Permission {
                verb: "get",
                group: Some(""),
                resource: "namespaces",
                namespace: "default".to_owned(),
                name: "default",
                granted_by: METRICS_READER,
                consequence: "the total follows from the time of /livez/ping, which does not reach etcd",
                ..Permission::default()
            });
            needed.push(Permission {
                verb: "list",
                group: Some(LEASES),
                resource: "leases",
                namespace: "kube-system".to_owned(),
                granted_by: SERVER_COUNTER,
                consequence: "an address of the API server counts as one server",
                ..Permission::default()
            });
        }
        if config.assert_by_impersonation {
            needed.extend(impersonation_permissions());
        }
        Self { required: needed }
    }

    /// Checks each permission until there is a decision, and warns of those that are missing.
    pub(crate) async fn check(self, server: Arc<dyn ApiTransport>) {
        let mut user: Option<String> = None;
        for right in self.required {
            let decision = loop {
                let decision = right.ask(&*server).await;
                if decision != SelfAccessDecision::NoDecision {
                    break decision;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            };
            match decision {
                SelfAccessDecision::Denied => {
                    let user = match &user {
                        Some(user) => user,
                        None => user.insert(own_user(&*server).await),
                    };
                    warn!(%right, command = right.command(user), "{}", right.missing_text());
                }
                SelfAccessDecision::NotServed(code) => {
                    debug!(%code, "the API server does not report the permissions of weir's own credentials");
                    return;
                }
                SelfAccessDecision::Allowed | SelfAccessDecision::NoDecision => {}
            }
        }
    }

    /// Asks once for each permission. Returns a sentence for each that is missing or not known.
    pub(crate) async fn missing(&self, server: &dyn ApiTransport) -> Vec<(Severity, String)> {
        let mut missing = Vec::new();
        for right in &self.required {
            match right.ask(server).await {
                SelfAccessDecision::Allowed => {}
                SelfAccessDecision::Denied => {
                    let severity = if right.is_essential {
                        Severity::Error
                    } else {
                        Severity::Warning
                    };
                    let text = format!("{}. It is the rule {}", right.missing_text(), right.rule());
                    // Several permissions of one rule are one finding.
                    if !missing.iter().any(|(_, earlier)| *earlier == text) {
                        missing.push((severity, text));
                    }
                }
                SelfAccessDecision::NotServed(code) => {
                    let message = format!(
                        "the API server does not report the rights of weir's own credential: {code}"
                    );
                    missing.push((Severity::Warning, message));
                    return missing;
                }
                SelfAccessDecision::NoDecision => {
                    let message =
                        format!("not known whether weir's own credential has the right: {right}");
                    missing.push((Severity::Warning, message));
                }
            }
        }
        missing
    }
}

/// The user that weir's own credential belongs to; empty if the API server does not say.
async fn own_user(server: &dyn ApiTransport) -> String {
    let reply = server.send(self_subject_review::request()).await;
    let user = reply
        .ok()
        .and_then(|reply| self_subject_review::user_name(&reply));
    user.unwrap_or_default()
}

/// The permissions that weir needs to assert users by impersonation.
fn impersonation_permissions() -> impl Iterator<Item = Permission> {
    let kinds = [
        ("", "users", ""),
        ("", "groups", ""),
        ("", "serviceaccounts", ""),
        ("authentication.k8s.io", "uids", ""),
        ("authentication.k8s.io", "userextras", CREDENTIAL_ID),
    ];
    kinds
        .into_iter()
        .map(|(group, resource, subresource)| Permission {
            verb: "impersonate",
            group: Some(group),
            resource,
            subresource,
            granted_by: IMPERSONATOR,
            consequence: "requests of clients with certificates get 403",
            is_essential: true,
            ..Permission::default()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rule_is_one_of_a_cluster_role() {
        let mut permission = Permission {
            verb: "impersonate",
            group: Some("authentication.k8s.io"),
            resource: "userextras",
            subresource: CREDENTIAL_ID,
            granted_by: IMPERSONATOR,
            consequence: "",
            is_essential: true,
            ..Permission::default()
        };
        assert_eq!(
            permission.rule(),
            r#"{apiGroups: ["authentication.k8s.io"], resources: [userextras/authentication.kubernetes.io/credential-id], verbs: [impersonate]}"#
        );
        assert_eq!(
            permission.command("weir's own"),
            "kubectl create clusterrole weir:impersonate-userextras --verb=impersonate --resource=userextras.authentication.k8s.io/authentication.kubernetes.io/credential-id && kubectl create clusterrolebinding weir:impersonate-userextras --clusterrole=weir:impersonate-userextras --user='weir'\\''s own'"
        );
        let leases = Permission {
            verb: "list",
            group: Some(LEASES),
            resource: "leases",
            namespace: "kube-system".to_owned(),
            ..Permission::default()
        };
        assert_eq!(
            leases.command("system:serviceaccount:weir-system:weir"),
            "kubectl create role weir:list-leases -n kube-system --verb=list --resource=leases.coordination.k8s.io && kubectl create rolebinding weir:list-leases -n kube-system --role=weir:list-leases --serviceaccount=weir-system:weir"
        );
        permission.group = None;
        permission.resource = "/openid/v1/jwks";
        permission.verb = "get";
        assert_eq!(
            permission.rule(),
            "{nonResourceURLs: [/openid/v1/jwks], verbs: [get]}"
        );
    }
}
