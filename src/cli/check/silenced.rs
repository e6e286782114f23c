//! Comments that silence a warning: `# weir-check: ignore RULE, RULE`, at the end of the line or in
//! the line before.

use std::path::Path;

use crate::cli::check::lint;
use crate::cli::config_resolver::findings::Findings;
use crate::cli::flags::input_files::InputFiles;
use weir_kubernetes::document::Severity;
use weir_lint::rule::Rule;

const MARK: &str = "# weir-check: ignore ";

/// Removes the warnings that a comment in the file silences.
pub(super) fn without_silenced(findings: Findings, files: &InputFiles) -> Findings {
    let mut kept = Findings::default();
    for finding in findings {
        let text = finding
            .place()
            .and_then(|place| lint::read_text(Path::new(&*place.file), files));
        let line = finding.place().map_or(0, |place| place.line);
        let silenced = finding.severity == Severity::Warning
            && text.is_some_and(|text| is_silenced(&text, line, finding.rule));
        if !silenced {
            kept.push(finding);
        }
    }
    kept
}

/// Whether a comment silences findings of this rule in this line, which is counted from 1.
fn is_silenced(text: &str, line: u32, rule: Rule) -> bool {
    let Some(at) = usize::try_from(line)
        .ok()
        .and_then(|line| line.checked_sub(1))
    else {
        return false;
    };
    let lines = text.lines().skip(at.saturating_sub(1));
    let before_and_own = lines.take(if at == 0 { 1 } else { 2 }).enumerate();
    for (n, line) in before_and_own {
        let is_own = at == 0 || n == 1;
        // A comment at the end of a line is about that line only.
        if !is_own && !line.trim_start().starts_with('#') {
            continue;
        }
        if let Some((_, rules)) = line.split_once(MARK)
            && rules.split(',').any(|id| id.trim() == rule.id())
        {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_silences_its_own_line_and_the_next() {
        let text = "a: 1\n# weir-check: ignore hand-size, unknown-field\nb: 2\nc: 3 # weir-check: ignore hand-size\nd: 4\n";
        let silenced = |line| is_silenced(text, line, Rule::HandSize);
        assert_eq!(
            [1, 2, 3, 4, 5].map(silenced),
            [false, true, true, true, false]
        );
        assert!(is_silenced(text, 3, Rule::UnknownField));
        assert!(!is_silenced(text, 3, Rule::LevelUnreferenced));
        assert!(!silenced(0) && !silenced(99));
        assert!(is_silenced(
            "a: 1 # weir-check: ignore hand-size",
            1,
            Rule::HandSize
        ));
    }
}
