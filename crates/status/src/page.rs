//! The status page: its markup, style and script, and its content security policy.
//!
//! Clients choose the names on the page, so they are untrusted input. The page has no markup made
//! from data. Its policy allows the script and style of its own origin, connections to that origin,
//! and nothing else: no script, handler or style within the markup. `tests/tools/page.sh` floods it
//! with a user agent that is a script.

use http::HeaderValue;

/// The markup. It loads nothing from other hosts, which may be out of reach.
pub const PAGE: &str = include_str!("page.html");

/// The script, at `page.js` beside the page.
pub const SCRIPT: &str = include_str!("page.js");

/// The style, at `page.css` beside the page; also that of other pages that look alike.
pub const STYLE: &str = include_str!("page.css");

/// The policy of the page. The page displays names that clients choose; if such a name ever became
/// markup, the policy would make it inert.
pub const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_markup_has_no_script_handler_or_style_of_its_own_and_loads_only_two_files() {
        let loaded = [
            r#"<link rel="stylesheet" href="page.css">"#,
            r#"<script src="page.js" defer></script>"#,
        ];
        for tag in loaded {
            assert_eq!(PAGE.matches(tag).count(), 1, "{tag}");
        }
        // The URL is the name of SVG's namespace; browsers do not request it.
        let namespace = "http://www.w3.org/2000/svg";
        let rest = loaded
            .iter()
            .fold(PAGE.replace(namespace, ""), |page, tag| {
                page.replace(tag, "")
            });
        let handlers = rest.split(" on").skip(1);
        let is_handler = |rest: &str| {
            let name = rest.trim_start_matches(|c: char| c.is_ascii_lowercase());
            name.starts_with('=')
        };
        assert!(!handlers.into_iter().any(is_handler), "a handler");
        let script = SCRIPT.replace(namespace, "");
        for (file, text) in [("html", &*rest), ("js", &*script), ("css", STYLE)] {
            for foreign in [
                "<script",
                "<style",
                " style=",
                "http://",
                "https://",
                "src=",
                "@import",
                "url(",
                "innerHTML",
                "javascript:",
            ] {
                assert!(!text.contains(foreign), "{foreign} in page.{file}");
            }
        }
    }

    #[test]
    fn the_policy_allows_only_files_of_the_page_s_own_origin() {
        let policy = CONTENT_SECURITY_POLICY;
        let policy = policy.to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"),
            "{policy}"
        );
        for wide in ["unsafe", "*", "http"] {
            assert!(!policy.contains(wide), "{policy}");
        }
    }
}
