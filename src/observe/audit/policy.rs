//! `Policy` (`audit.k8s.io/v1`): which requests are noted, and at which stages. Pure.
//!
//! Follows kube-apiserver 1.36 (`audit/policy/checker.go`, `apis/audit/validation/validation.go`): the first rule that matches
//! decides, and what no rule matches is not noted. weir sees no objects: what is to be noted with its body (`Request`,
//! `RequestResponse`) is noted as `Metadata`, and a warning says so.

use crate::api::UserInfo;
use crate::api::flowcontrol::check_dns_subdomain;
use crate::document;
use crate::document::Diagnostics;
use crate::document::MappingDecoder;
use crate::document::Strictness;
use crate::document::ValueDecoder;
use crate::request_info::RequestInfo;

const API_VERSION: &str = "audit.k8s.io/v1";
const KIND: &str = "Policy";

/// How much is noted of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditLevel {
    /// Nothing.
    None,
    /// Everything but bodies.
    Metadata,
}

impl AuditLevel {
    /// As in events and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
        }
    }
}

/// When in the life of a request an event is made. In this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditStage {
    /// It has come.
    RequestReceived,
    /// The head of the answer is there, the rest not yet: of long-running requests only.
    ResponseStarted,
    /// The answer has gone out.
    ResponseComplete,
    /// There was a defect.
    Panic,
}

impl AuditStage {
    const ALL: [Self; 4] = [
        Self::RequestReceived,
        Self::ResponseStarted,
        Self::ResponseComplete,
        Self::Panic,
    ];

    /// As in events and policies.
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

/// What is done with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAuditConfig<'a> {
    /// How much is noted.
    pub level: AuditLevel,
    omit_stages: [&'a [AuditStage]; 2],
}

impl RequestAuditConfig<'_> {
    /// Whether an event is made at `stage`.
    #[must_use]
    pub fn includes(&self, stage: AuditStage) -> bool {
        self.level != AuditLevel::None
            && !self
                .omit_stages
                .iter()
                .any(|omitted| omitted.contains(&stage))
    }
}

/// Which requests are noted.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Everything, at every stage.
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

    /// The policy of a file; `None`, and faults, if it has none.
    pub fn parse(file: &str, text: &str, faults: &mut Diagnostics) -> Option<Self> {
        let before = faults.errors().count();
        let documents = document::parse_all(file, text, faults);
        let mut documents = documents.iter().filter(|document| !document.is_null());
        let Some(document) = documents.next() else {
            if faults.errors().count() == before {
                let message = format!("a {KIND} ({API_VERSION}) is expected, and nothing is there");
                faults.report_error(&document::SourceLocation::whole_file(file), "", message);
            }
            return None;
        };
        for another in documents {
            let message = "one document is expected, this is another";
            faults.report_error(&another.location, "", message);
        }
        let policy = document.decode(faults, "", Strictness::Warn, parse_policy)?;
        (faults.errors().count() == before).then_some(policy)
    }

    /// What is done with a request of `user`; `None` where it was refused before that was known.
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
        let anybody = self.users.is_empty() && self.user_groups.is_empty();
        if !(anybody || user.is_some_and(is_user)) {
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
        // What stands outside namespaces is in "".
        if !(self.namespaces.is_empty() || contains_bytes(&self.namespaces, info.namespace())) {
            return false;
        }
        self.resources.is_empty() || self.resources.iter().any(|of| of.matches(info))
    }

    fn matches_path(&self, path: &[u8]) -> bool {
        self.non_resource_urls.iter().any(|url| {
            let url = url.as_bytes();
            url == path
                || url
                    .strip_suffix(b"*")
                    .is_some_and(|begin| path.starts_with(begin))
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
        let named =
            self.resource_names.is_empty() || contains_bytes(&self.resource_names, info.name());
        let (resource, subresource) = (info.resource(), info.subresource());
        named
            && self.resources.iter().any(|wanted| {
                let wanted = wanted.as_bytes();
                wanted == b"*"
                    || resource_matches(wanted, resource, subresource)
                    || (!subresource.is_empty() && wanted.strip_prefix(b"*/") == Some(subresource))
                    || wanted.strip_suffix(b"/*") == Some(resource)
            })
    }
}

/// Whether `wanted` is `resource`, or `resource/subresource` where there is one.
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
    fields.boolean("omitManagedFields"); // of objects, which are not noted
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
    let resourceful = !(resources.is_empty() && namespaces.is_empty());
    if resourceful && !non_resource_urls.is_empty() {
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
        let broken = if text.is_empty() {
            Vec::new()
        } else {
            check_dns_subdomain(text)
        };
        if broken.is_empty() {
            Ok(text.to_owned())
        } else {
            Err(broken.join("; "))
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
        begin if !begin.starts_with('/') => {
            Err("non-resource URL rules must begin with a '/' character")
        }
        begin if begin.contains('*') => {
            Err("non-resource URL wildcards '*' must be the final character of the rule")
        }
        _ => Ok(text.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of Kubernetes' own documentation, as far as it says something of its own.
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
        let mut faults = Diagnostics::default();
        let policy = AuditPolicy::parse("policy.yaml", text, &mut faults);
        let lines: Vec<_> = faults.iter().map(ToString::to_string).collect();
        (policy, lines.join("\n"))
    }

    fn user(name: &str) -> UserInfo {
        UserInfo {
            name: name.to_owned(),
            ..UserInfo::default()
        }
        .with_authenticated_group()
    }

    /// `level: stages that are wanted`.
    fn evaluate(
        policy: &AuditPolicy,
        method: &str,
        target: &str,
        user: Option<&UserInfo>,
    ) -> String {
        let info = RequestInfo::parse(method, target.as_bytes()).unwrap();
        let verdict = policy.evaluate(&info, user);
        let wanted: Vec<_> = AuditStage::ALL
            .into_iter()
            .filter(|stage| verdict.includes(*stage))
            .map(AuditStage::name)
            .collect();
        format!("{}: {}", verdict.level.name(), wanted.join(" "))
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
            // a subresource is something else
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
        // no rule
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
        let (policy, faults) = parse_text(
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
        let lines: Vec<_> = faults.lines().collect();
        assert_eq!(lines.len(), expected.len(), "{faults}");
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
