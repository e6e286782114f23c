//! The status page as one file, and its content security policy.
//!
//! Clients choose the names on the page, so they are untrusted input. The page has no markup made
//! from data. Its policy allows its own script and style by hash, connections to its own origin,
//! and nothing else. `tests/tools/page.sh` floods it with a user agent that is a script.

use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;
use sha2::{Digest, Sha256};

/// The page with its script and style. It loads nothing from other hosts, which may be out of
/// reach.
pub(crate) const PAGE: &str = include_str!("page.html");

/// The style of the page, for other pages that look alike.
#[cfg(feature = "tools")]
pub(crate) fn style() -> &'static str {
    let style = PAGE
        .split_once("<style>")
        .and_then(|(_, rest)| rest.split_once("</style>"));
    style.map_or("", |(style, _)| style)
}

/// Returns the policy of the page: it may run its own script and style, identified by their hashes,
/// and connect to its own origin. The page displays names that clients choose; if such a name ever
/// became markup, the policy would make it inert.
pub(crate) fn content_security_policy() -> HeaderValue {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        let (script, style) = (csp_hash("script"), csp_hash("style"));
        format!(
            "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
        )
    });
    HeaderValue::from_str(&POLICY)
        .unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
}

/// Returns the source expression for the page's only element of this name.
fn csp_hash(element: &str) -> String {
    let (begin, end) = (format!("<{element}>"), format!("</{element}>"));
    let text = PAGE
        .split_once(&begin)
        .and_then(|(_, rest)| rest.split_once(&end))
        .map_or("", |(text, _)| text);
    let hash = BASE64_STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!("'sha256-{hash}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_script_and_one_style_and_loads_nothing() {
        for element in ["<script", "<style"] {
            assert_eq!(PAGE.matches(element).count(), 1, "{element}");
        }
        for foreign in [
            "http://",
            "https://",
            "src=",
            "@import",
            "url(",
            " onclick",
            "innerHTML",
            " style=",
        ] {
            // The URL is the name of SVG's namespace; browsers do not request it.
            let page = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn the_policy_allows_only_the_page_s_own_script_and_style() {
        let policy = content_security_policy();
        let policy = policy.to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'sha256-"),
            "{policy}"
        );
        assert!(
            !policy.contains("unsafe") && !policy.contains('*'),
            "{policy}"
        );
        let empty = BASE64_STANDARD.encode(Sha256::digest(b""));
        assert!(!policy.contains(&empty), "an element was not found");
    }
}
