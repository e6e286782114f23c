//! The verb of a request, as in Kubernetes' RequestInfo.

/// `RequestInfo.Verb`: an API verb for a resource request, the lower-cased method for any other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// A non-resource request's CONNECT.
    Connect,
    /// POST on a resource.
    Create,
    /// DELETE of a named object, or of a non-resource path.
    Delete,
    /// DELETE on a resource without a name.
    DeleteCollection,
    /// GET or HEAD of a named object; GET of a non-resource path.
    Get,
    /// A non-resource request's HEAD.
    Head,
    /// GET or HEAD on a resource without a name.
    List,
    /// A resource request whose method has no verb; prints as the empty string.
    None,
    /// A non-resource request's OPTIONS.
    Options,
    /// Any other method of a non-resource request, lower-cased.
    Other(Box<str>),
    /// PATCH.
    Patch,
    /// A non-resource request's POST.
    Post,
    /// The verb of paths such as `/api/v1/proxy/…`.
    Proxy,
    /// A non-resource request's PUT.
    Put,
    /// A non-resource request's TRACE.
    Trace,
    /// PUT on a resource.
    Update,
    /// A list or get with `watch`, or the verb of paths such as `/api/v1/watch/…`.
    Watch,
}

impl Verb {
    /// The verb of a method on a resource, before the name and the query are considered.
    pub(super) fn for_resource(method: &str) -> Self {
        match method {
            "DELETE" => Self::Delete,
            "GET" | "HEAD" => Self::Get,
            "PATCH" => Self::Patch,
            "POST" => Self::Create,
            "PUT" => Self::Update,
            _ => Self::None,
        }
    }

    /// The lower-cased method. An unknown method may equal an API verb, and then it is treated as
    /// that verb.
    pub(super) fn for_non_resource(method: &str) -> Self {
        match method {
            "" => Self::None,
            "CONNECT" => Self::Connect,
            "DELETE" => Self::Delete,
            "GET" => Self::Get,
            "HEAD" => Self::Head,
            "OPTIONS" => Self::Options,
            "PATCH" => Self::Patch,
            "POST" => Self::Post,
            "PUT" => Self::Put,
            "TRACE" => Self::Trace,
            _ => Self::from_name(method.to_ascii_lowercase()),
        }
    }

    /// The verb that prints as `text`.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        match text {
            "" => Self::None,
            _ => Self::from_name(text.to_owned()),
        }
    }

    fn from_name(name: String) -> Self {
        match name.as_str() {
            "connect" => Self::Connect,
            "create" => Self::Create,
            "delete" => Self::Delete,
            "deletecollection" => Self::DeleteCollection,
            "get" => Self::Get,
            "head" => Self::Head,
            "list" => Self::List,
            "options" => Self::Options,
            "patch" => Self::Patch,
            "post" => Self::Post,
            "proxy" => Self::Proxy,
            "put" => Self::Put,
            "trace" => Self::Trace,
            "update" => Self::Update,
            "watch" => Self::Watch,
            _ => Self::Other(name.into_boxed_str()),
        }
    }

    /// The verb as Kubernetes writes it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Connect => "connect",
            Self::Create => "create",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Get => "get",
            Self::Head => "head",
            Self::List => "list",
            Self::None => "",
            Self::Options => "options",
            Self::Other(method) => method,
            Self::Patch => "patch",
            Self::Post => "post",
            Self::Proxy => "proxy",
            Self::Put => "put",
            Self::Trace => "trace",
            Self::Update => "update",
            Self::Watch => "watch",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verb_of_a_non_resource_request_is_the_lower_case_method() {
        let methods = [
            "",
            "CONNECT",
            "CREATE",
            "DELETE",
            "DELETECOLLECTION",
            "GET",
            "HEAD",
            "LIST",
            "OPTIONS",
            "PATCH",
            "POST",
            "PROXY",
            "PUT",
            "TRACE",
            "UPDATE",
            "WATCH",
            "PROPFIND",
            "Get",
            "weird!",
        ];
        for method in methods {
            let verb = Verb::for_non_resource(method);
            assert_eq!(verb.as_str(), method.to_ascii_lowercase(), "{verb:?}");
        }
    }

    #[test]
    fn methods_are_case_sensitive_on_resources() {
        assert_eq!(Verb::for_resource("get"), Verb::None);
        assert_eq!(Verb::for_resource("LIST"), Verb::None);
    }
}
