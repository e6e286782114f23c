//! `Policy` (`audit.k8s.io/v1`): which requests are logged, and at which stages. Pure.
//!
//! Follows kube-apiserver 1.36 (`audit/policy/checker.go`, `apis/audit/validation/validation.go`):
//! the first matching rule decides, and requests that match no rule are not logged. weir sees no
//! objects: the levels with bodies (`Request`, `RequestResponse`) count as `Metadata`, with a
//! warning.

use weir_kubernetes::api::UserInfo;
use weir_kubernetes::api::flowcontrol::check_dns_subdomain;
use weir_kubernetes::document;
use weir_kubernetes::document::{Diagnostics, MappingDecoder, Strictness, ValueDecoder};
use weir_kubernetes::request_info::RequestInfo;

const API_VERSION: &str = "audit.k8s.io/v1";
const KIND: &str = "Policy";

/// The amount that is logged of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditLevel {
    /// Nothing is logged.
    None,
    /// Everything but bodies is logged.
    Metadata,
}

impl AuditLevel {
    /// The name in events and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
        }
    }
}

/// The stage of a request at which an event is generated. In this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditStage {
    /// The request has arrived.
    RequestReceived,
    /// The response headers are sent, the body is not. Long-running requests only.
    ResponseStarted,
    /// The response is complete.
    ResponseComplete,
    /// The request panicked.
    Panic,
}

impl AuditStage {
    const ALL: [Self; 4] = [
        Self::RequestReceived,
        Self::ResponseStarted,
        Self::ResponseComplete,
        Self::Panic,
    ];

    /// The name in events and policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RequestReceived => "RequestReceived",
            Self::ResponseStarted => "ResponseStarted",
            Self::ResponseComplete => "ResponseComplete",
            Self::Panic => "Panic",
        }
    }
}

/// The policy's decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAuditConfig<'a> {
    /// The amount that is logged.
    pub level: AuditLevel,
    omit_stages: [&'a [AuditStage]; 2],
}

impl RequestAuditConfig<'_> {
    /// Whether an event is generated at `stage`.
    #[must_use]
    pub fn includes(&self, stage: AuditStage) -> bool {
        self.level != AuditLevel::None
            && !self
                .omit_stages
                .iter()
                .any(|omitted| omitted.contains(&stage))
    }
}

/// The rules that select the requests to log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPolicy {
    rules: Vec<PolicyRule>,
    omit_stages: Vec<AuditStage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PolicyRule {
    level: AuditLevel,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    non_resource_urls: Vec<String>,
    omit_stages: Vec<AuditStage>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

impl AuditPolicy {
    /// Logs all requests at every stage.
    #[must_use]
    pub fn log_all() -> Self {
        let all = PolicyRule {
            level: AuditLevel::Metadata,
            users: Vec::new(),
            user_groups: Vec::new(),
            verbs: Vec::new(),
            resources: Vec::new(),
            namespaces: Vec::new(),
            non_resource_urls: Vec::new(),
            omit_stages: Vec::new(),
        };
        Self {
            rules: vec![all],
            omit_stages: Vec::new(),
        }
    }

    /// Parses the policy of a file. `None`, with errors in `diagnostics`, if the file has no valid
    /// policy.
    pub fn parse(file: &str, text: &str, diagnostics: &mut Diagnostics) -> Option<Self> {
        let before = diagnostics.error_count();
        let documents = document::parse_all(file, text, diagnostics);
        let mut documents = documents.iter().filter(|document| !document.is_null());
        let Some(document) = documents.next() else {
            if diagnostics.error_count() == before {
                let message = format!("a {KIND} ({API_VERSION}) is expected, and nothing is there");
                diagnostics.report_error(&document::SourceLocation::whole_file(file), "", message);
            }
            return None;
        };
        for another in documents {
            let message = "one document is expected, this is another";
            diagnostics.report_error(&another.location, "", message);
        }
        let policy = document.decode(diagnostics, "", Strictness::Warn, parse_policy)?;
        (diagnostics.error_count() == before).then_some(policy)
    }

    /// Returns the decision for a request. `user` is `None` if the request was rejected before
    /// authentication.
    #[must_use]
    pub fn evaluate(
        &self,
        info: &RequestInfo<'_>,
        user: Option<&UserInfo>,
    ) -> RequestAuditConfig<'_> {
        let rule = self.rules.iter().find(|rule| rule.matches(info, user));
        RequestAuditConfig {
            level: rule.map_or(AuditLevel::None, |rule| rule.level),
            omit_stages: [
                &self.omit_stages,
                rule.map_or(&[][..], |rule| &rule.omit_stages),
            ],
        }
    }
}

impl PolicyRule {
    fn matches(&self, info: &RequestInfo<'_>, user: Option<&UserInfo>) -> bool {
        let is_user = |user: &UserInfo| {
            (self.users.is_empty() || self.users.contains(&user.name))
                && (self.user_groups.is_empty()
                    || user.groups.iter().any(|g| self.user_groups.contains(g)))
        };
        let any_user = self.users.is_empty() && self.user_groups.is_empty();
        if !(any_user || user.is_some_and(is_user)) {
            return false;
        }
        if !(self.verbs.is_empty() || contains_bytes(&self.verbs, info.verb().as_str().as_bytes()))
        {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return info.is_resource_request() && self.matches_resource(info);
        }
        self.non_resource_urls.is_empty()
            || (!info.is_resource_request() && self.matches_path(info.path()))
    }

    fn matches_resource(&self, info: &RequestInfo<'_>) -> bool {
        // Cluster-scoped resources have the namespace "".
        if !(self.namespaces.is_empty() || contains_bytes(&self.namespaces, info.namespace())) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|resource| resource.matches(info))
    }

    fn matches_path(&self, path: &[u8]) -> bool {
        self.non_resource_urls.iter().any(|url| {
            let url = url.as_bytes();
            url == path
                || url
                    .strip_suffix(b"*")
                    .is_some_and(|prefix| path.starts_with(prefix))
        })
    }
}

impl GroupResources {
    fn matches(&self, info: &RequestInfo<'_>) -> bool {
        if self.group.as_bytes() != info.api_group() {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let name_matches =
            self.resource_names.is_empty() || contains_bytes(&self.resource_names, info.name());
        let (resource, subresource) = (info.resource(), info.subresource());
        name_matches
            && self.resources.iter().any(|wanted| {
                let wanted = wanted.as_bytes();
                wanted == b"*"
                    || resource_matches(wanted, resource, subresource)
                    || (!subresource.is_empty() && wanted.strip_prefix(b"*/") == Some(subresource))
                    || wanted.strip_suffix(b"/*") == Some(resource)
            })
    }
}

/// Whether `wanted` is `resource`, or `resource/subresource` if there is a subresource.
fn resource_matches(wanted: &[u8], resource: &[u8], subresource: &[u8]) -> bool {
    if subresource.is_empty() {
        return wanted == resource;
    }
    wanted
        .strip_prefix(resource)
        .and_then(|rest| rest.strip_prefix(b"/"))
        == Some(subresource)
}

fn contains_bytes(texts: &[String], bytes: &[u8]) -> bool {
    texts.iter().any(|text| text.as_bytes() == bytes)
}

fn parse_policy(fields: &mut MappingDecoder<'_>) -> AuditPolicy {
    let one_of = |expected: &'static str| {
        move |text: &str| {
            if text == expected {
                Ok(())
            } else {
                Err(format!("expected {expected}"))
            }
        }
    };
    fields.parse("apiVersion", one_of(API_VERSION));
    fields.parse("kind", one_of(KIND));
    fields.require(&["apiVersion", "kind"]);
    fields.mark_known(&["metadata"]);
    fields.boolean("omitManagedFields"); // applies to objects, which are not logged
    let omit_stages = parse_stages(fields);
    let rules = fields.objects("rules", parse_rule);
    if rules.as_ref().is_none_or(Vec::is_empty) {
        let message = "one rule at least is needed: level: Metadata notes everything";
        fields.report_error("rules", message);
    }
    AuditPolicy {
        rules: rules.unwrap_or_default(),
        omit_stages,
    }
}

fn parse_rule(fields: &mut MappingDecoder<'_>) -> PolicyRule {
    fields.require(&["level"]);
    let level = parse_level(fields);
    fields.boolean("omitManagedFields");
    let mut texts = |name| fields.strings(name).unwrap_or_default();
    let (users, user_groups) = (texts("users"), texts("userGroups"));
    let (verbs, namespaces) = (texts("verbs"), texts("namespaces"));
    let resources = fields
        .objects("resources", parse_group_resources)
        .unwrap_or_default();
    let non_resource_urls = fields
        .list("nonResourceURLs", parse_non_resource_url)
        .unwrap_or_default();
    let for_resources = !(resources.is_empty() && namespaces.is_empty());
    if for_resources && !non_resource_urls.is_empty() {
        let message = "rules cannot apply to both regular resources and non-resource URLs";
        fields.report_error("nonResourceURLs", message);
    }
    PolicyRule {
        level,
        users,
        user_groups,
        verbs,
        resources,
        namespaces,
        non_resource_urls,
        omit_stages: parse_stages(fields),
    }
}

fn parse_level(fields: &mut MappingDecoder<'_>) -> AuditLevel {
    let read = fields.parse("level", |text| match text {
        "None" => Ok((AuditLevel::None, false)),
        "Metadata" => Ok((AuditLevel::Metadata, false)),
        "Request" | "RequestResponse" => Ok((AuditLevel::Metadata, true)),
        _ => Err("expected None, Metadata, Request or RequestResponse"),
    });
    let (level, with_bodies) = read.unwrap_or((AuditLevel::None, false));
    if with_bodies {
        let message = "weir notes no bodies: these requests are noted at level Metadata";
        fields.report_warning("level", message);
    }
    level
}

fn parse_stages(fields: &mut MappingDecoder<'_>) -> Vec<AuditStage> {
    let stage = |value: ValueDecoder<'_>| {
        value.parse(|text| {
            let found = AuditStage::ALL
                .into_iter()
                .find(|stage| stage.name() == text);
            found.ok_or_else(|| {
                let all = AuditStage::ALL.map(AuditStage::name).join(", ");
                format!("expected one of {all}")
            })
        })
    };
    fields.list("omitStages", stage).unwrap_or_default()
}

fn parse_group_resources(fields: &mut MappingDecoder<'_>) -> GroupResources {
    let group = fields.parse("group", |text| {
        let errors = if text.is_empty() {
            Vec::new()
        } else {
            check_dns_subdomain(text)
        };
        if errors.is_empty() {
            Ok(text.to_owned())
        } else {
            Err(errors.join("; "))
        }
    });
    let mut texts = |name| fields.strings(name).unwrap_or_default();
    let (resources, names) = (texts("resources"), texts("resourceNames"));
    if resources.is_empty() && !names.is_empty() {
        let message = "using resourceNames requires at least one resource";
        fields.report_error("resourceNames", message);
    }
    GroupResources {
        group: group.unwrap_or_default(),
        resources,
        resource_names: names,
    }
}

fn parse_non_resource_url(value: ValueDecoder<'_>) -> Option<String> {
    value.parse(|text| match text.strip_suffix('*').unwrap_or(text) {
        "" if text == "*" => Ok(text.to_owned()),
        prefix if !prefix.starts_with('/') => {
            Err("non-resource URL rules must begin with a '/' character")
        }
        prefix if prefix.contains('*') => {
            Err("non-resource URL wildcards '*' must be the final character of the rule")
        }
        _ => Ok(text.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Kubernetes' documentation, without rules that repeat others.
    const EXAMPLE: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: RequestResponse
  resources: [{group: "", resources: [pods]}]
- level: Metadata
  resources: [{group: "", resources: [pods/log, pods/status]}]
- level: None
  resources: [{group: "", resources: [configmaps], resourceNames: [controller-leader]}]
- level: None
  users: ["system:kube-proxy"]
  verbs: [watch]
  resources: [{group: "", resources: [endpoints, services]}]
- level: None
  userGroups: ["system:authenticated"]
  nonResourceURLs: ["/api*", /version]
- level: Request
  resources: [{group: "", resources: [configmaps]}]
  namespaces: [kube-system]
- level: Metadata
  resources: [{group: ""}, {group: extensions, resources: ["*/scale", "deployments/*"]}]
  omitStages: [ResponseStarted]
- level: None
  namespaces: [""]
  verbs: [list]
"#;

    fn parse_text(text: &str) -> (Option<AuditPolicy>, String) {
        let mut diagnostics = Diagnostics::default();
        let policy = AuditPolicy::parse("policy.yaml", text, &mut diagnostics);
        let lines: Vec<_> = diagnostics.iter().map(ToString::to_string).collect();
        (policy, lines.join("\n"))
    }

    fn user(name: &str) -> UserInfo {
        UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        }
        .with_authenticated_group()
    }

    /// Returns `level: included stages`.
    fn evaluate(
        policy: &AuditPolicy,
        method: &str,
        target: &str,
        user: Option<&UserInfo>,
    ) -> String {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        let config = policy.evaluate(&info, user);
        let included: Vec<_> = AuditStage::ALL
            .into_iter()
            .filter(|stage| config.includes(*stage))
            .map(AuditStage::name)
            .collect();
        format!("{}: {}", config.level.name(), included.join(" "))
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        const NOTHING: &str = "None: ";
        const ALL: &str = "Metadata: ResponseStarted ResponseComplete Panic";
        const LESS: &str = "Metadata: ResponseComplete Panic";
        let (policy, _) = parse_text(EXAMPLE);
        let policy = policy.unwrap();
        let alice = user("alice");
        let cases = [
            ("GET", "/api/v1/namespaces/a/pods/p", ALL),
            // A subresource is a resource of its own.
            ("GET", "/api/v1/namespaces/a/pods/p/exec", LESS),
            ("GET", "/api/v1/namespaces/a/pods/p/log", ALL),
            (
                "GET",
                "/api/v1/namespaces/a/configmaps/controller-leader",
                NOTHING,
            ),
            (
                "GET",
                "/api/v1/namespaces/kube-system/configmaps/other",
                ALL,
            ),
            ("GET", "/api/v1/namespaces/a/configmaps/other", LESS),
            ("GET", "/api/v1/services?watch=true", LESS),
            ("GET", "/version", NOTHING),
            ("GET", "/apis", NOTHING),
            ("GET", "/versions", NOTHING),
            (
                "PUT",
                "/apis/extensions/v1/namespaces/a/anything/n/scale",
                LESS,
            ),
            (
                "PUT",
                "/apis/extensions/v1/namespaces/a/deployments/n/status",
                LESS,
            ),
            (
                "PUT",
                "/apis/extensions/v1/namespaces/a/deployments/n",
                LESS,
            ),
            (
                "PUT",
                "/apis/extensions/v1/namespaces/a/replicasets/n/status",
                NOTHING,
            ),
        ];
        for (method, target, expected) in cases {
            assert_eq!(
                evaluate(&policy, method, target, Some(&alice)),
                expected,
                "{method} {target}"
            );
        }
        let proxy = user("system:kube-proxy");
        let services = "/api/v1/services?watch=true";
        assert_eq!(evaluate(&policy, "GET", services, Some(&proxy)), NOTHING);
    }

    #[test]
    fn a_rule_for_users_does_not_match_a_request_without_a_user() {
        let (policy, _) = parse_text(
            "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: None, userGroups: ['system:unauthenticated']}, \
             {level: None, users: [a]}, {level: Metadata, nonResourceURLs: ['*']}]}",
        );
        let policy = policy.unwrap();
        let everything = "Metadata: RequestReceived ResponseStarted ResponseComplete Panic";
        assert_eq!(evaluate(&policy, "GET", "/healthz", None), everything);
        let anonymous = UserInfo::anonymous();
        assert_eq!(
            evaluate(&policy, "GET", "/healthz", Some(&anonymous)),
            "None: "
        );
        // No rule matches.
        assert_eq!(evaluate(&policy, "GET", "/api/v1/pods", None), "None: ");
    }

    #[test]
    fn levels_with_bodies_give_a_warning() {
        let (policy, warnings) = parse_text(EXAMPLE);
        assert!(policy.is_some());
        assert_eq!(
            warnings,
            "policy.yaml:6:10: warning: rules[0].level: weir notes no bodies: these requests are noted at level Metadata\n\
             policy.yaml:19:10: warning: rules[5].level: weir notes no bodies: these requests are noted at level Metadata"
        );
    }

    #[test]
    fn every_error_has_its_position() {
        let (policy, diagnostics) = parse_text(
            r#"apiVersion: audit.k8s.io/v1beta1
kind: Policy
omitStages: [RequestDone]
rules:
- users: [a]
- level: All
- level: None
  nonResourceURLs: [healthz, "/a*/b", "/ok*", "*", ""]
  namespaces: [a]
- level: None
  resources:
  - group: rbac.authorization.k8s.io/v1
  - resourceNames: [a]
"#,
        );
        assert_eq!(policy, None);
        let expected = [
            "1:13: apiVersion: expected audit.k8s.io/v1, got the string \"audit.k8s.io/v1beta1\"",
            "3:14: omitStages[0]: expected one of RequestReceived, ResponseStarted, ResponseComplete, Panic, got \
             the string \"RequestDone\"",
            "5:3: rules[0].level: required, but not given",
            "6:10: rules[1].level: expected None, Metadata, Request or RequestResponse, got the string \"All\"",
            "8:21: rules[2].nonResourceURLs[0]: non-resource URL rules must begin with a '/' character",
            "8:30: rules[2].nonResourceURLs[1]: non-resource URL wildcards '*' must be the final character of the rule",
            "8:52: rules[2].nonResourceURLs[4]: non-resource URL rules must begin with a '/' character",
            "8:20: rules[2].nonResourceURLs: rules cannot apply to both regular resources and non-resource URLs",
            "12:12: rules[3].resources[0].group: a lowercase RFC 1123 \
             subdomain must consist of",
            "13:20: rules[3].resources[1].resourceNames: using resourceNames requires at least one resource",
        ];
        let lines: Vec<_> = diagnostics.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{diagnostics}");
        for (line, expected) in lines.iter().zip(expected) {
            let expected = format!("policy.yaml:{expected}");
            assert!(line.starts_with(&expected), "{line}\nnot\n{expected}");
        }
    }

    #[test]
    fn a_policy_without_rules_is_an_error() {
        for (text, fault) in [
            (
                "",
                "policy.yaml: a Policy (audit.k8s.io/v1) is expected, and nothing is there",
            ),
            (
                "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: []}",
                "policy.yaml:1:52: rules: one rule at least is needed: level: Metadata notes everything",
            ),
            (
                "{apiVersion: audit.k8s.io/v1, kind: Policy}",
                "policy.yaml:1:1: rules: one rule at least is needed: level: Metadata notes everything",
            ),
        ] {
            assert_eq!(parse_text(text), (None, fault.to_owned()));
        }
    }
}
