//! What is wrong with a configuration, or surely unwanted in it: flags, settings and the files that
//! they name. Pure data and its texts.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::upstream::tls::KEY_MISMATCH;
use weir_kubernetes::document::{Diagnostic, Severity, SourceLocation};
use weir_lint::rule::{LintFinding, Rule};

/// What a finding is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FindingSubject {
    /// A flag, or the setting of its name. Without dashes.
    Flag(String),
    /// An argument that the parser rejected. The message names it. Empty if it is not known.
    Argument(String),
    /// A setting of the `--config` file, as the name of its flag. Location and field name it.
    Setting(String),
    /// The configuration as a whole.
    Configuration,
}

impl FindingSubject {
    /// The name of the flag, without dashes.
    pub(crate) fn flag(&self) -> Option<&str> {
        match self {
            Self::Flag(name) | Self::Argument(name) | Self::Setting(name) => {
                Some(name.as_str()).filter(|name| !name.is_empty())
            }
            Self::Configuration => None,
        }
    }

    /// Whether texts name the flag before the message.
    const fn is_prefix(&self) -> bool {
        matches!(self, Self::Flag(_))
    }
}

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Finding {
    /// A configuration with an error cannot be used, unless the error is `tolerated`.
    pub(crate) severity: Severity,
    /// What kind of finding it is.
    pub(crate) rule: Rule,
    /// The flag or setting.
    pub(crate) subject: FindingSubject,
    /// Where the `--config` file sets the flag, if it is set there.
    pub(crate) set_at: Option<SourceLocation>,
    /// The place in the file that is wrong.
    pub(crate) location: Option<SourceLocation>,
    /// The path of the field, such as `limits[0].qps`. May be empty.
    pub(crate) field: String,
    /// What is wrong, and what would be right.
    pub(crate) message: String,
    /// An error that does not prevent a start here: an expired certificate still serves clients
    /// that do not verify it, and a file that is not there yet ends the start later, with an exit
    /// code after which it is tried again. A start logs it as a warning.
    pub(crate) tolerated: bool,
}

impl Finding {
    /// A finding without a location.
    pub(crate) fn new(severity: Severity, subject: FindingSubject, message: String) -> Self {
        Self {
            severity,
            rule: Rule::Configuration,
            subject,
            set_at: None,
            location: None,
            field: String::new(),
            message,
            tolerated: false,
        }
    }

    /// A diagnostic of a file.
    pub(crate) fn from_diagnostic(subject: FindingSubject, diagnostic: &Diagnostic) -> Self {
        Self {
            rule: Rule::from_diagnostic(diagnostic).unwrap_or(Rule::Configuration),
            location: Some(diagnostic.location.clone()),
            field: diagnostic.field.clone(),
            ..Self::new(diagnostic.severity, subject, diagnostic.message.clone())
        }
    }

    /// Whether a configuration with this finding cannot be used.
    fn prevents_start(&self) -> bool {
        self.severity == Severity::Error && !self.tolerated
    }

    /// The place to edit: where the file is wrong, or else where the flag is set.
    pub(crate) fn place(&self) -> Option<&SourceLocation> {
        self.location.as_ref().or(self.set_at.as_ref())
    }

    /// A warning of the linter.
    pub(crate) fn from_lint(subject: FindingSubject, found: LintFinding) -> Self {
        Self {
            rule: found.rule,
            location: Some(found.location),
            field: found.field,
            ..Self::new(found.rule.severity(), subject, found.message)
        }
    }

    /// `FILE:LINE:COLUMN: error: --flag: field: message [rule]`, as `weir check` prints it.
    pub(crate) fn report_line(&self) -> String {
        let severity = severity_name(self.severity);
        let place = self.place().map(ToString::to_string);
        let parts = [place, Some(severity.to_owned()), self.flag_prefix()];
        format!("{} [{}]", self.join(parts), self.rule)
    }

    /// All fields. `line` and `column` are left out where they are not known.
    pub(crate) fn to_json(&self) -> Value {
        let place = self.place();
        let number = |number: fn(&SourceLocation) -> u32| {
            place
                .map(number)
                .filter(|n| *n > 0)
                .map_or(Value::Null, Value::from)
        };
        json!({
            "severity": severity_name(self.severity),
            "rule": self.rule.id(),
            "flag": self.subject.flag(),
            "file": place.map(|place| &*place.file),
            "line": number(|place| place.line),
            "column": number(|place| place.column),
            "setAt": self.set_at.as_ref().map(ToString::to_string),
            "field": Some(&self.field).filter(|field| !field.is_empty()),
            "message": self.message,
        })
    }

    fn flag_prefix(&self) -> Option<String> {
        let flag = self.subject.flag().filter(|_| self.subject.is_prefix());
        flag.map(|flag| format!("--{flag}"))
    }

    /// The parts that are there, the field and the message.
    fn join(&self, parts: [Option<String>; 3]) -> String {
        let field = Some(self.field.clone()).filter(|field| !field.is_empty());
        let all = parts.into_iter().chain([field]).flatten();
        let mut line: String = all.flat_map(|part| [part, ": ".to_owned()]).collect();
        line.push_str(&self.message);
        line
    }
}

impl fmt::Display for Finding {
    /// The line of a start: `SET_AT: --flag: FILE:LINE:COLUMN: field: message`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |place: &Option<SourceLocation>| place.as_ref().map(ToString::to_string);
        let parts = [
            place(&self.set_at),
            self.flag_prefix(),
            place(&self.location),
        ];
        f.write_str(&self.join(parts))
    }
}

pub(crate) const fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

/// Errors and warnings in the order in which they were found. Displays the errors that
/// prevent a start, one a line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    list: Vec<Finding>,
    /// All of them.
    seen: HashSet<Finding>,
    /// The rules and messages of those with a location, by that.
    at: HashMap<SourceLocation, Vec<(Rule, String)>>,
}

impl Findings {
    /// Adds a finding, unless the same is there already: a file may be read for several flags.
    pub(crate) fn push(&mut self, finding: Finding) {
        if !self.seen.insert(finding.clone()) {
            return;
        }
        if let Some(location) = &finding.location {
            let at = self.at.entry(location.clone()).or_default();
            at.push((finding.rule, finding.message.clone()));
        }
        self.list.push(finding);
    }

    /// Adds a finding, unless the same place has the same already: for another flag, or because a
    /// start reports it, too.
    pub(crate) fn push_new(&mut self, finding: Finding) {
        let is_same = |(rule, message): &(Rule, String)| {
            rule.is_alike(finding.rule)
                && (*message == finding.message || finding.rule == Rule::FlowSchemaDangling)
        };
        let at = finding.location.as_ref().and_then(|at| self.at.get(at));
        if !at.is_some_and(|there| there.iter().any(is_same)) {
            self.push(finding);
        }
    }

    /// Sorts by place. Findings without a place stay in front.
    pub(crate) fn sort_by_place(&mut self) {
        let key = |finding: &Finding| {
            let place = finding.place()?;
            Some((Arc::clone(&place.file), place.line, place.column))
        };
        self.list.sort_by_cached_key(key);
    }

    /// Leaves out the warnings of these rules.
    pub(crate) fn without(self, ignored: &[Rule]) -> Self {
        let kept = |finding: &Finding| {
            finding.severity == Severity::Error || !ignored.contains(&finding.rule)
        };
        let mut all = Self::default();
        self.list
            .into_iter()
            .filter(kept)
            .for_each(|finding| all.push(finding));
        all
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Finding> {
        self.list.iter()
    }

    pub(crate) fn errors(&self) -> impl Iterator<Item = &Finding> {
        self.of(Severity::Error)
    }

    pub(crate) fn warnings(&self) -> impl Iterator<Item = &Finding> {
        self.of(Severity::Warning)
    }

    /// What a start logs as warnings: warnings and tolerated errors.
    pub(crate) fn tolerated(&self) -> impl Iterator<Item = &Finding> {
        self.list.iter().filter(|finding| !finding.prevents_start())
    }

    /// Whether the configuration cannot be used.
    pub(crate) fn prevent_start(&self) -> bool {
        self.list.iter().any(Finding::prevents_start)
    }

    /// Whether all errors that prevent a start are keys that belong to another certificate: one
    /// file of each pair may be new already, and the other not yet.
    pub(crate) fn are_key_mismatches(&self) -> bool {
        let mut errors = self.list.iter().filter(|finding| finding.prevents_start());
        self.prevent_start() && errors.all(|finding| finding.message.starts_with(KEY_MISMATCH))
    }

    fn of(&self, severity: Severity) -> impl Iterator<Item = &Finding> {
        self.list
            .iter()
            .filter(move |finding| finding.severity == severity)
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.list.iter().filter(|finding| finding.prevents_start());
        for (n, finding) in errors.enumerate() {
            f.write_str(if n > 0 { "\n" } else { "" })?;
            finding.fmt(f)?;
        }
        Ok(())
    }
}

impl IntoIterator for Findings {
    type Item = Finding;
    type IntoIter = std::vec::IntoIter<Finding>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(file: &str, line: u32, column: u32) -> SourceLocation {
        SourceLocation {
            file: file.into(),
            line,
            column,
        }
    }

    fn finding() -> Finding {
        Finding {
            set_at: Some(location("weir.yaml", 3, 9)),
            location: Some(location("events.yaml", 3, 30)),
            field: "limits[0].qps".to_owned(),
            ..Finding::new(
                Severity::Error,
                FindingSubject::Flag("event-rate-limit-config".to_owned()),
                "expected 1 or more".to_owned(),
            )
        }
    }

    #[test]
    fn a_start_names_the_setting_before_the_file_and_a_check_names_the_file_first() {
        let finding = finding();
        assert_eq!(
            finding.to_string(),
            "weir.yaml:3:9: --event-rate-limit-config: events.yaml:3:30: limits[0].qps: expected 1 or more"
        );
        assert_eq!(
            finding.report_line(),
            "events.yaml:3:30: error: --event-rate-limit-config: limits[0].qps: expected 1 or more [configuration]"
        );
    }

    #[test]
    fn json_has_every_field_and_null_for_what_is_unknown() {
        assert_eq!(
            finding().to_json(),
            json!({
                "severity": "error", "rule": "configuration", "flag": "event-rate-limit-config",
                "file": "events.yaml", "line": 3, "column": 30, "setAt": "weir.yaml:3:9",
                "field": "limits[0].qps", "message": "expected 1 or more",
            })
        );
        let (severity, subject) = (Severity::Warning, FindingSubject::Configuration);
        assert_eq!(
            Finding::new(severity, subject, "m".to_owned()).to_json(),
            json!({
                "severity": "warning", "rule": "configuration", "flag": null, "file": null, "line": null, "column": null,
                "setAt": null, "field": null, "message": "m",
            })
        );
    }

    #[test]
    fn a_flag_whose_file_is_absent_is_found_where_it_is_set() {
        let finding = Finding {
            set_at: Some(location("weir.yaml", 3, 9)),
            ..Finding::new(
                Severity::Error,
                FindingSubject::Flag("tls-cert-file".to_owned()),
                "cannot read a.crt".to_owned(),
            )
        };
        assert_eq!(
            finding.report_line(),
            "weir.yaml:3:9: error: --tls-cert-file: cannot read a.crt [configuration]"
        );
    }

    #[test]
    fn a_parser_s_message_names_its_argument_itself() {
        let argument = FindingSubject::Argument("workers".to_owned());
        let finding = Finding::new(
            Severity::Error,
            argument,
            "invalid value 'x' for '--workers <N>'".to_owned(),
        );
        assert_eq!(finding.to_string(), "invalid value 'x' for '--workers <N>'");
        assert_eq!(finding.to_json()["flag"], "workers");
    }

    #[test]
    fn a_place_has_one_finding_of_a_kind_also_among_many() {
        let mut findings = Findings::default();
        let at = |n: u32| Finding {
            location: Some(location("a.yaml", n, 1)),
            ..finding()
        };
        for n in 0..20_000 {
            findings.push(at(n));
        }
        for n in 0..20_000 {
            findings.push_new(Finding {
                field: "other".to_owned(),
                ..at(n)
            });
        }
        assert_eq!(findings.iter().count(), 20_000);
        findings.push_new(Finding {
            message: "another".to_owned(),
            ..at(7)
        });
        findings.sort_by_place();
        assert_eq!(findings.iter().count(), 20_001);
    }

    #[test]
    fn the_same_finding_is_reported_once() {
        let mut findings = Findings::default();
        findings.push(finding());
        findings.push(finding());
        assert_eq!(findings.iter().count(), 1);
    }
}
