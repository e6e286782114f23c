//! The user of a request, as Kubernetes describes it.
//!
//! This is plain data: `identity` authenticates users, and the limits act on them.

/// The group of every authenticated user.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// The group of every unauthenticated user.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group whose requests kube-apiserver serves even when it is overloaded.
pub const GROUP_MASTERS: &str = "system:masters";
/// The group of kubelets.
pub const GROUP_NODES: &str = "system:nodes";
/// The name of the user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";

/// A user, as `k8s.io/apiserver/pkg/authentication/user.DefaultInfo`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    /// The name, e.g. `system:serviceaccount:default:builder`.
    pub name: String,
    /// A unique identifier that is never reused; empty if the authentication method has none.
    pub uid: String,
    /// The groups, in the order in which the authenticator returned them.
    pub groups: Vec<String>,
    /// Further attributes from the authenticator, by key; values are in order.
    pub extra: Vec<(String, Vec<String>)>,
}

impl UserInfo {
    /// Total size of all strings, in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let extra = self.extra.iter();
        let extra = extra.flat_map(|(key, values)| values.iter().chain([key]));
        let texts = [&self.name, &self.uid].into_iter().chain(&self.groups);
        texts.chain(extra).map(String::len).sum()
    }

    /// The user of a request without a credential that weir could verify.
    #[must_use]
    pub fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec![GROUP_UNAUTHENTICATED.to_owned()],
            ..Self::default()
        }
    }

    /// An anonymous user whose credential could not be verified. `distinguisher` separates its
    /// requests from those of other unverified users, so that they do not share a flow; it has no
    /// other effect.
    #[must_use]
    pub fn unverified(distinguisher: String) -> Self {
        Self {
            uid: distinguisher,
            ..Self::anonymous()
        }
    }

    /// Whether it is a user of [`unverified`](Self::unverified), rather than an authenticated one of
    /// that name.
    #[must_use]
    pub fn is_unverified(&self) -> bool {
        self.name == ANONYMOUS && !self.uid.is_empty() && self.groups == [GROUP_UNAUTHENTICATED]
    }

    /// Whether kube-apiserver treats the user as anonymous (`isAnonymousUser` of its authentication
    /// filter, Kubernetes 1.36) and closes the HTTP/2 connection of the request; independent of the
    /// method that authenticated the user.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS || self.in_group(GROUP_UNAUTHENTICATED)
    }

    /// The flow distinguisher of the user: its name, or the one passed to
    /// [`unverified`](Self::unverified).
    #[must_use]
    pub fn distinguisher(&self) -> &str {
        if self.is_unverified() {
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

    /// Adds `system:authenticated`, as the group adder of `WithAuthentication` does (Kubernetes
    /// 1.36, `authenticatedgroup.go`): not to anonymous users, and not if the user already has
    /// either group.
    #[must_use]
    pub fn with_authenticated_group(mut self) -> Self {
        let has_group = self.in_group(GROUP_AUTHENTICATED) || self.in_group(GROUP_UNAUTHENTICATED);
        if !has_group && self.name != ANONYMOUS {
            self.groups.push(GROUP_AUTHENTICATED.to_owned());
        }
        self
    }
}
