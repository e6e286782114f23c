//! Why a schema does not match a request.

/// The check of a schema's rules that a request fails. Where a schema has several rules, the check
/// of the rule that the request gets furthest with. In the order of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mismatch {
    /// The schema has no rules.
    NoRules,
    /// No subject of any rule is the user or one of its groups.
    Subject,
    /// Rules for the user exist, but none for resource requests.
    NoResourceRules,
    /// Rules for the user exist, but none for non-resource requests.
    NoNonResourceRules,
    /// No rule for the user has the verb.
    Verb,
    /// No rule with the verb has the resource (with its subresource).
    Resource,
    /// No rule with verb and resource has the API group.
    ApiGroup,
    /// No rule that matches otherwise has the namespace.
    Namespace,
    /// The request has no namespace, and no rule that matches otherwise has `clusterScope`.
    ClusterScope,
    /// No rule with the verb has the path.
    NonResourceUrl,
}

impl Mismatch {
    /// The name of the check.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoRules => "rules",
            Self::Subject => "subject",
            Self::NoResourceRules => "resource_rules",
            Self::NoNonResourceRules => "non_resource_rules",
            Self::Verb => "verb",
            Self::Resource => "resource",
            Self::ApiGroup => "api_group",
            Self::Namespace => "namespace",
            Self::ClusterScope => "cluster_scope",
            Self::NonResourceUrl => "non_resource_url",
        }
    }

    /// What does not match, in words.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NoRules => "it has no rules",
            Self::Subject => "no subject is this user",
            Self::NoResourceRules => "no resourceRules for this user",
            Self::NoNonResourceRules => "no nonResourceRules for this user",
            Self::Verb => "no rule has this verb",
            Self::Resource => "no rule has this resource",
            Self::ApiGroup => "no rule has this API group",
            Self::Namespace => "no rule has this namespace",
            Self::ClusterScope => "no rule has clusterScope",
            Self::NonResourceUrl => "no rule has this path",
        }
    }

    /// The mismatch of the rule that the request gets furthest with, or `Ok` if any rule matches.
    /// `none` if there are no rules.
    pub(super) fn furthest(
        none: Self,
        rules: impl IntoIterator<Item = Result<(), Self>>,
    ) -> Result<(), Self> {
        let mut furthest = none;
        for outcome in rules {
            match outcome {
                Ok(()) => return Ok(()),
                Err(mismatch) => furthest = furthest.max(mismatch),
            }
        }
        Err(furthest)
    }
}
