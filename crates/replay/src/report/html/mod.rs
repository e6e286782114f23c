//! The report of a replay as one HTML page with plots, to be attached to a change request. Pure.
//!
//! The page loads nothing and runs no script. Its style is that of the status page.

mod levels;
mod plot;
mod summary;
mod tables;
#[cfg(test)]
mod tests;
mod text;
use crate::report::html::text::escape;
use crate::report::model::Report;

pub use self::summary::PageOrigin;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

/// The style of this page besides that of the status page.
const OWN_STYLE: &str = include_str!("page.css");

/// The page.
#[must_use]
pub fn render(report: &Report, origin: &PageOrigin) -> String {
    let style = format!("{}{OWN_STYLE}", origin.base_style);
    let hash = BASE64_STANDARD.encode(Sha256::digest(style.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'"
    );
    let title = match &report.runs[..] {
        [_, _, ..] => "weir replay: two configurations",
        [_] | [] => "weir replay",
    };
    [
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
        &format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n"),
        "<meta name=\"color-scheme\" content=\"light dark\">\n",
        &format!(
            "<title>{}</title>\n<style>{style}</style>\n</head>\n<body>\n",
            escape(title)
        ),
        &summary::header(report),
        "<main id=\"main\">\n",
        &summary::answers(report),
        &levels::overview(report),
        &levels::sections(report),
        &tables::levels(report),
        &tables::flows(report),
        &tables::changes(report),
        &tables::groups(report),
        &summary::origin(report, origin),
        "</main>\n</body>\n</html>\n",
    ]
    .concat()
}
