//! The ids of everything that `weir check` reports, and what they mean; and a warning with its place.

use std::fmt;
use std::str::FromStr;

use weir_kubernetes::document::{Diagnostic, GIVEN_TWICE, Severity, SourceLocation, UNKNOWN_FIELD};

/// A warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintFinding {
    /// What it is about.
    pub rule: Rule,
    /// The place in the file.
    pub location: SourceLocation,
    /// The path of the field, such as `spec.rules[0].subjects[1]`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// Defines the rules: variant, id, severity, what it reports, and why or what to do.
macro_rules! rules {
    ($($variant:ident, $severity:ident, $id:literal, $summary:literal, $help:literal;)+) => {
        /// What a finding is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(#[doc = $summary] $variant,)+
        }

        impl Rule {
            /// All rules: errors, then warnings.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The id, which stays the same between versions.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self { $(Self::$variant => $id,)+ }
            }

            /// What is reported.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$variant => $summary,)+ }
            }

            /// Why, and what to do.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)+ }
            }

            /// The severity of its findings. Errors of [`Rule::Configuration`] and of the files
            /// that a configuration names may also be warnings.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$variant => Severity::$severity,)+ }
            }
        }
    };
}

rules! {
    Syntax, Error, "syntax",
        "The file is neither YAML nor JSON, or not UTF-8.",
        "The place is where the parser stopped. What begins with a brace is read as JSON.";
    Unreadable, Error, "unreadable",
        "The file or folder cannot be read.",
        "The message is that of the operating system.";
    UnknownFile, Error, "unknown-file",
        "A file that is named on the command line is nothing that weir knows.",
        "PEM with neither a certificate nor a key is unknown, too. Files of folders that are something else are skipped and counted.";
    Configuration, Error, "configuration",
        "A flag or a setting is wrong, or a start would warn of it.",
        "These are the errors and warnings of `weir serve`.";
    FlowControlInvalid, Error, "flowcontrol",
        "kube-apiserver would reject the FlowSchema or PriorityLevelConfiguration.",
        "The words are those of Kubernetes' validation.";
    EventRateLimitInvalid, Error, "event-rate-limit",
        "kube-apiserver would reject the configuration of EventRateLimit.",
        "The words are those of Kubernetes' validation.";
    AdmissionInvalid, Error, "admission-configuration",
        "The AdmissionConfiguration has no usable configuration of EventRateLimit.",
        "weir uses only this plugin of the file.";
    AuditPolicyInvalid, Error, "audit-policy",
        "kube-apiserver would reject the audit policy.",
        "As a warning: weir logs no bodies, and treats these levels as `Metadata`.";
    AuthenticationInvalid, Error, "authentication-configuration",
        "weir cannot use the AuthenticationConfiguration.",
        "Expressions (CEL) are not evaluated. An issuer that is left out is reviewed by the API server.";
    TracingInvalid, Error, "tracing-configuration",
        "The TracingConfiguration is wrong.",
        "The fields are those of kube-apiserver's file.";
    KubeconfigInvalid, Error, "kubeconfig",
        "weir cannot use the kubeconfig, or its credential.",
        "Among others: unverified TLS, impersonation, and credentials that Kubernetes has removed.";
    CertificateInvalid, Error, "certificate",
        "A certificate or key cannot be read, or peers reject it.",
        "Certificates and keys are read as PEM.";
    KeyMismatch, Error, "key-mismatch",
        "The key does not belong to the certificate beside it.",
        "Files of one name (`tls.crt` and `tls.key`) are a pair, and so are two files on the command line.";
    CertificateExpired, Error, "certificate-expired",
        "A certificate or token has expired, or is not valid yet.",
        "Peers reject it.";

    UnknownField, Warning, "unknown-field",
        "kube-apiserver ignores a field that it does not know.",
        "Usually the name is misspelled. The message lists the fields that exist.";
    DuplicateField, Warning, "duplicate-field",
        "A field stands twice; the last one counts.",
        "Remove the other one.";
    MissingFile, Warning, "missing-file",
        "The configuration names a file that is not on this machine.",
        "A start would fail. Where a configuration is checked away from its machine, silence it.";
    UnparsableFile, Warning, "unparsable-file",
        "A YAML or JSON file of a folder cannot be parsed, and nothing in it shows that weir reads it.",
        "It is not checked. If weir reads it, that is the error `syntax`. Templates (`{{`) are only counted.";
    FlowSchemaShadowed, Warning, "flowschema-shadowed",
        "Schemas before it match every request that the FlowSchema matches.",
        "Schemas are tried by precedence, then by name. Give it a lower precedence, or remove it.";
    FlowSchemaShadowedByGroups, Warning, "flowschema-shadowed-by-groups",
        "As `flowschema-shadowed`, for users as authenticators yield them.",
        "Every user is in `system:authenticated` or `system:unauthenticated`, and every service account in `system:serviceaccounts`. So no schema after the built-in `service-accounts` (precedence 9000) receives a service account's request, and none after `global-default` (9900) receives any.";
    FlowSchemaWithoutRules, Warning, "flowschema-without-rules",
        "The FlowSchema has no rules, and matches no request.",
        "Add rules, or remove it.";
    FlowSchemaDangling, Warning, "flowschema-dangling",
        "There is no priority level of the name that the FlowSchema gives.",
        "weir and kube-apiserver leave the schema out. Levels are searched in the files and among the built-in ones; a level that is only in the cluster is not known here.";
    LevelUnreferenced, Warning, "level-unreferenced",
        "No FlowSchema leads to the priority level.",
        "It never has a request, and its shares reduce the nominal seats of the others.";
    ResourcePattern, Warning, "resource-pattern",
        "A resource such as `pods/*` or `*/scale` matches nothing.",
        "Unlike RBAC, priority and fairness compares whole names. Only `*` by itself is a wildcard.";
    SubresourceMissing, Warning, "subresource-missing",
        "A rule names a resource where a subresource of it was meant.",
        "`pods` does not match `pods/log`. Reported where the rule can match nothing otherwise (a bare subresource; the verb `proxy`), and where the schema's name says what was meant and its verbs are those of the subresource.";
    LongRunningOnly, Warning, "long-running-only",
        "The rule matches only requests that priority and fairness does not apply to.",
        "Requests for `log`, `exec`, `attach`, `portforward` and `proxy` are long-running: neither kube-apiserver nor weir queues them. clientLimits (`longRunning.streams`) limit them.";
    SubjectKind, Warning, "subject-kind",
        "A subject's name is that of another kind: a group as a user, or a service account's user name as a group.",
        "No authenticator of Kubernetes yields such a user or group.";
    SubjectMisspelled, Warning, "subject-misspelled",
        "A group begins with `system:` and resembles one that Kubernetes defines, but is none.",
        "Kubernetes reserves `system:` for groups such as `system:nodes`, `system:masters` and `system:serviceaccounts:NAMESPACE`. Not reported if a user of the token file is in the group.";
    SubjectUnknown, Warning, "subject-unknown",
        "No configured authenticator yields the user or group.",
        "Reported only where the configuration leaves no other way: no client CA, no front proxies, no token reviews, and no impersonation.";
    HandSize, Warning, "hand-size",
        "Two flows with many requests fill all queues of more than 1 % of the other flows.",
        "The probability follows from `queues` and `handSize`; the message has sizes that help.";
    LevelWithoutSeats, Warning, "level-without-seats",
        "The priority level has no seats of its own.",
        "A level of 0 seats is not closed: it admits one request at a time, as kube-apiserver does. To reject all requests use clientLimits with `requests: {qps: 0}`.";
    PercentWithoutEffect, Warning, "percent-without-effect",
        "A percentage of the level's seats rounds to 0, or is a bound that is never reached.",
        "Computed with the server's total of seats, which `maxRequestsInflight` and `maxMutatingRequestsInflight` add up to (600 without a configuration).";
    EventLimitUnreachable, Warning, "event-limit-unreachable",
        "A limit of events for each user, namespace or source is not below the server's.",
        "Each limit is charged for every event, also for one that another limit rejects. So such a limit never rejects first; but while the server's bucket is empty its own is charged for events that are rejected anyway, and then it rejects events for which the server has a token. Remove it, or set `qps` or `burst` below the server's.";
    EventReserve, Warning, "event-reserve",
        "`warningReservePercent` is 100: every token is reserved for events of type `Warning`.",
        "Other events are admitted only while their bucket is full.";
    ClientLimitUnreachable, Warning, "client-limit-unreachable",
        "A client limit is about requests that its rule does not match.",
        "For example `longRunning.streams` where the rules name `pods` and not `pods/exec`.";
    PolicyUserUnverified, Warning, "policy-user-unverified",
        "A policy denies by user, and weir cannot verify tokens.",
        "A client whose token nothing has verified is `system:anonymous` to limits and policies, so a denial by name, group or service account misses it. Give weir credentials that may create TokenReviews, or deny where users are authorized: RBAC, a ValidatingAdmissionPolicy, an authorizer webhook.";
    PolicyHitsControlPlane, Warning, "policy-hits-control-plane",
        "A policy denies, rejects or limits requests that keep the cluster alive.",
        "Each policy is tried with heartbeats and status of nodes, leader election, the scheduler's bindings, reviews of tokens and accesses, controllers of kube-system, and an administrator of `system:masters` who looks at a namespace. Policies spare nobody by themselves: name the clients that are meant, or add a condition, for example `!('system:nodes' in request.groups)`.";
    PolicyEnded, Warning, "policy-ended",
        "The time of a policy's `until` has passed: it does nothing.",
        "Remove it, or set another time.";
    CertificateExpiring, Warning, "certificate-expiring",
        "A certificate or token expires soon.",
        "Within 30 days, or within the last fifth of its life.";
    CertificateChain, Warning, "certificate-chain",
        "A certificate's chain is incomplete or out of order.",
        "Put each certificate before that of its issuer.";
    NotACa, Warning, "not-a-ca",
        "A certificate among CAs is none.",
        "Give the certificate that issued it.";
}

impl Rule {
    /// The rule of a diagnostic, where the text of a decoder tells. `None` for the others.
    #[must_use]
    pub fn from_diagnostic(diagnostic: &Diagnostic) -> Option<Self> {
        if diagnostic.severity == Severity::Error {
            return None;
        }
        let rules = [
            (UNKNOWN_FIELD, Self::UnknownField),
            (GIVEN_TWICE, Self::DuplicateField),
        ];
        let found = rules
            .into_iter()
            .find(|(start, _)| diagnostic.message.starts_with(start));
        found.map(|(_, rule)| rule)
    }

    /// Whether both rules may report the same: a file is also a part of a configuration.
    #[must_use]
    pub fn is_alike(self, other: Self) -> bool {
        self == other || self == Self::Configuration || other == Self::Configuration
    }

    /// Whether findings of this rule can be silenced.
    #[must_use]
    pub const fn is_warning(self) -> bool {
        matches!(self.severity(), Severity::Warning)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut rules = Self::ALL.iter().copied();
        rules
            .find(|rule| rule.id() == text)
            .ok_or_else(|| "there is no such rule".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_read_back() {
        let ids: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.id()).collect();
        assert_eq!(ids.len(), Rule::ALL.len());
        for rule in Rule::ALL {
            assert_eq!(rule.id().parse(), Ok(*rule));
        }
        assert!("nothing".parse::<Rule>().is_err());
    }
}
