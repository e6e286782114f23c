//! Where a page comes from.

/// What the page says about its origin, besides the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageOrigin {
    /// The style that this page shares with others.
    pub base_style: &'static str,
    /// The files that were read.
    pub files: Vec<String>,
    /// The command line, without the name of the program.
    pub command_line: Vec<String>,
    /// When the page was made, in RFC 3339.
    pub made_at: String,
}
