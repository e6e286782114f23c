//! Who asks, as Kubernetes describes a user.
//!
//! Plain data: how a user came to be known is `identity`'s business, what follows from it that of the limits.

/// Every user that proved who it is, by whatever method.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// Every user that did not.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that kube-apiserver lets through when it is full.
pub const GROUP_MASTERS: &str = "system:masters";
/// The name of who did not say.
pub const ANONYMOUS: &str = "system:anonymous";

/// A user as `k8s.io/apiserver/pkg/authentication/user.DefaultInfo` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// The name, e.g. `system:serviceaccount:default:builder`.
    pub name: String,
    /// A name for this very user that is never given twice; empty where the method has none.
    pub uid: String,
    /// The groups, in the order in which they became known.
    pub groups: Vec<String>,
    /// What else the method knows, key by key, values in order.
    pub extra: Vec<(String, Vec<String>)>,
}

impl UserInfo {
    /// The bytes of all that it says.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let extra = self.extra.iter();
        let extra = extra.flat_map(|(key, values)| values.iter().chain([key]));
        let texts = [&self.name, &self.uid].into_iter().chain(&self.groups);
        texts.chain(extra).map(String::len).sum()
    }

    /// The user of a request that carries no credential that weir could verify.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![GROUP_UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// Nobody as well, who came with a credential that could not be verified. `mark` tells its requests from those of other
    /// such, so that they do not share a flow; nothing else follows from it.
    #[must_use]
    pub fn unverified(mark: String) -> Self {
        Self {
            uid: mark,
            ..Self::anonymous()
        }
    }

    /// Whether kube-apiserver takes it for nobody (`isAnonymousUser` of its authentication filter, Kubernetes 1.36), and closes the
    /// HTTP/2 connection that it comes by; whoever says who it is.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.in_group(GROUP_UNAUTHENTICATED)
    }

    /// What tells the flows of users apart: the name, but for strangers, who have one in common.
    #[must_use]
    pub fn distinguisher(&self) -> &str {
        if self.name == ANONYMOUS && !self.uid.is_empty() {
            &self.uid
        } else {
            &self.name
        }
    }

    /// Whether the user is in `group`.
    #[must_use]
    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Adds `system:authenticated`, as `WithAuthentication`'s group adder does (Kubernetes 1.36,
    /// `authenticatedgroup.go`): not for the anonymous, and not where either group is there already.
    #[must_use]
    pub fn with_authenticated_group(mut self) -> Self {
        let told = self.in_group(GROUP_AUTHENTICATED) || self.in_group(GROUP_UNAUTHENTICATED);
        if !told && self.name != ANONYMOUS {
            self.groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        self
    }
}
