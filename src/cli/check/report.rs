//! The report of `weir check`, as text or JSON. Pure.

use clap::ValueEnum;
use serde_json::{Value, json};

use crate::cli::config_resolver::certificates::{CertificateSummary, date};
use crate::cli::config_resolver::findings::{Finding, Findings};
use crate::flag_values::MEBIBYTE;
use weir_kubernetes::encoding::printable::{escape_json, escape_message};

/// How the report is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CheckFormat {
    /// A line for each finding, and a summary.
    #[default]
    Text,
    /// One JSON object on one line.
    Json,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct CheckReport {
    pub(crate) findings: Findings,
    /// The serving certificate, if the configuration can be used.
    pub(crate) certificate: Option<CertificateSummary>,
    /// With `--online`.
    pub(crate) api_server: Option<ApiServerSummary>,
    /// With files or folders.
    pub(crate) files: Option<CheckedFileNames>,
    /// Whether warnings count as errors.
    pub(crate) is_strict: bool,
}

/// The files that were found.
#[derive(Debug)]
pub(crate) struct CheckedFileNames {
    pub(crate) checked: Vec<String>,
    /// Files of folders that are nothing that weir knows.
    pub(crate) skipped: Vec<String>,
    /// Files of folders that cannot be parsed.
    pub(crate) unparsable: Vec<String>,
}

/// What the API server says.
#[derive(Debug)]
pub(crate) struct ApiServerSummary {
    pub(crate) version: Option<String>,
    /// The --max-list-bytes-inflight that would suit it, in bytes, if there is none.
    pub(crate) list_budget: Option<u64>,
    /// The user of weir's own credential.
    pub(crate) user: Option<String>,
}

impl CheckReport {
    /// Whether there are no errors, and no warnings if these count as errors.
    pub(crate) fn is_valid(&self) -> bool {
        let mut warnings = self.findings.warnings().filter(|_| self.is_strict);
        self.findings.errors().next().is_none() && warnings.next().is_none()
    }

    pub(crate) fn render(&self, format: CheckFormat) -> String {
        match format {
            CheckFormat::Text => self.text(),
            CheckFormat::Json => format!("{}\n", escape_json(&self.json().to_string())),
        }
    }

    fn text(&self) -> String {
        let mut lines: Vec<String> = self.findings.iter().map(Finding::report_line).collect();
        if let Some(CertificateSummary { names, not_after }) = &self.certificate {
            let names = match &**names {
                [] => "no name".to_owned(),
                names => names.join(", "),
            };
            lines.push(format!(
                "serving certificate: for {names}; until {}",
                date(*not_after)
            ));
        }
        if let Some(ApiServerSummary {
            version,
            list_budget,
            user,
        }) = &self.api_server
        {
            let unknown = || "not known".to_owned();
            lines.push(format!(
                "API server: version {}; weir's own user {}",
                version.clone().unwrap_or_else(unknown),
                user.clone().unwrap_or_else(unknown)
            ));
            if let Some(budget) = list_budget {
                lines.push(format!(
                    "lists: no budget of bytes; a tenth of the memory that the API server uses now is --max-list-bytes-inflight={}Mi",
                    budget / MEBIBYTE
                ));
            }
        }
        if let Some(files) = &self.files {
            let unparsable = match files.unparsable.len() {
                0 => String::new(),
                count => format!(", {count} that cannot be parsed"),
            };
            lines.push(format!(
                "files: {} checked, {} skipped (nothing that weir knows){unparsable}",
                files.checked.len(),
                files.skipped.len()
            ));
        }
        let verdict = if self.is_valid() {
            "valid"
        } else {
            "not valid"
        };
        lines.push(format!(
            "{verdict}: {}, {}",
            counted(self.findings.errors().count(), "error"),
            counted(self.findings.warnings().count(), "warning")
        ));
        let lines = lines.iter().map(|line| escape_message(line) + "\n");
        lines.collect()
    }

    fn json(&self) -> Value {
        let certificate = self.certificate.as_ref();
        json!({
            "valid": self.is_valid(),
            "errors": self.findings.errors().map(Finding::to_json).collect::<Vec<_>>(),
            "warnings": self.findings.warnings().map(Finding::to_json).collect::<Vec<_>>(),
            "servingCertificate": certificate.map(|certificate| json!({
                "names": certificate.names,
                "notAfter": date(certificate.not_after),
            })),
            "apiServer": self.api_server.as_ref().map(|server| json!({
                "version": server.version,
                "user": server.user,
                "suggestedMaxListBytesInflight": server.list_budget,
            })),
            "files": self.files.as_ref().map(|files| json!({
                "checked": files.checked,
                "skipped": files.skipped,
                "unparsable": files.unparsable,
            })),
        })
    }
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::cli::config_resolver::findings::FindingSubject;
    use weir_kubernetes::document::Severity;

    fn report(severities: &[Severity]) -> CheckReport {
        let mut findings = Findings::default();
        for (n, severity) in severities.iter().enumerate() {
            let flag = FindingSubject::Flag(format!("flag-{n}"));
            findings.push(Finding::new(*severity, flag, "wrong".to_owned()));
        }
        CheckReport {
            findings,
            certificate: Some(CertificateSummary {
                names: vec!["a".to_owned(), "::1".to_owned()],
                not_after: SystemTime::UNIX_EPOCH + Duration::from_secs(86_400),
            }),
            api_server: Some(ApiServerSummary {
                version: Some("v1.36.0".to_owned()),
                list_budget: Some(120 * MEBIBYTE + 1),
                user: None,
            }),
            ..CheckReport::default()
        }
    }

    #[test]
    fn text_has_a_line_for_each_finding_and_a_summary() {
        assert_eq!(
            report(&[Severity::Warning, Severity::Error]).render(CheckFormat::Text),
            "warning: --flag-0: wrong [configuration]\n\
             error: --flag-1: wrong [configuration]\n\
             serving certificate: for a, ::1; until 1970-01-02T00:00:00Z\n\
             API server: version v1.36.0; weir's own user not known\n\
             lists: no budget of bytes; a tenth of the memory that the API server uses now is --max-list-bytes-inflight=120Mi\n\
             not valid: 1 error, 1 warning\n"
        );
    }

    #[test]
    fn warnings_alone_are_valid() {
        let report = report(&[Severity::Warning, Severity::Warning]);
        assert!(report.is_valid());
        let text = report.render(CheckFormat::Text);
        assert!(text.ends_with("\nvalid: 0 errors, 2 warnings\n"), "{text}");
    }

    #[test]
    fn json_is_one_object() {
        let text = report(&[Severity::Error]).render(CheckFormat::Json);
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["valid"], false);
        assert_eq!(json["errors"][0]["flag"], "flag-0");
        assert_eq!(json["warnings"], json!([]));
        assert_eq!(
            json["servingCertificate"],
            json!({"names": ["a", "::1"], "notAfter": "1970-01-02T00:00:00Z"})
        );
        assert_eq!(json["apiServer"]["version"], "v1.36.0");
        let budget = &json["apiServer"]["suggestedMaxListBytesInflight"];
        assert_eq!(budget.as_u64(), Some(120 * MEBIBYTE + 1));
    }
}
