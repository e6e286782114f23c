//! Where a page comes from.

/// What the page says about its origin, besides the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageOrigin {
    /// The files that were read.
    pub(crate) files: Vec<String>,
    /// The command line, without the name of the program.
    pub(crate) command_line: Vec<String>,
    /// When the page was made, in RFC 3339.
    pub(crate) made_at: String,
}
