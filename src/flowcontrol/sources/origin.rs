//! Where an object comes from.

use std::fmt;

use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::document::SourceLocation;

/// The source of an object. Of two objects with the same kind and name, the one of the later
/// variant is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// weir's own copy of the objects that kube-apiserver creates for itself.
    BuiltIn,
    /// The API server.
    Cluster,
    /// `--flowcontrol-config`, with the location in the file: of a flow schema, the field that names
    /// its priority level; of a priority level, its beginning.
    File(SourceLocation),
}

impl Origin {
    /// The values of [`name`](Self::name).
    pub(crate) const NAMES: [&str; 3] = ["built-in", "cluster", "file"];

    /// The source in metrics and in JSON.
    #[must_use]
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::BuiltIn => "built-in",
            Self::Cluster => "cluster",
            Self::File(_) => "file",
        }
    }

    /// The location in a file, if the object comes from one.
    #[must_use]
    pub(crate) const fn location(&self) -> Option<&SourceLocation> {
        match self {
            Self::BuiltIn | Self::Cluster => None,
            Self::File(location) => Some(location),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn | Self::Cluster => f.write_str(self.name()),
            Self::File(location) => location.fmt(f),
        }
    }
}

/// An object that is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectiveObject {
    /// The object.
    pub object: Object,
    /// Where it comes from.
    pub(crate) origin: Origin,
    /// The name of the source whose object of the same kind and name it replaces, if there is one
    /// other than the built-in objects.
    pub(crate) replaces: Option<&'static str>,
}

impl EffectiveObject {
    /// Kind and name, which identify the object.
    #[must_use]
    pub(crate) fn key(&self) -> (&'static str, &str) {
        (self.object.kind(), &self.object.metadata().name)
    }
}
