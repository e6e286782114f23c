//! How a report is printed.

use clap::ValueEnum;

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReplayFormat {
    /// One page with plots, to be attached to a change request. It loads nothing.
    Html,
    /// One JSON object.
    Json,
    /// For people.
    Table,
    /// With --suggest: the objects that change, ready to be applied, and what was found in comments.
    Yaml,
}
