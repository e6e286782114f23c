//! The configuration of a command that is about to run: its warnings are logged, its errors end the
//! command.

use tracing::warn;

use crate::cli::config_resolver;
use crate::cli::config_resolver::Resolved;
use crate::cli::config_resolver::findings::{Finding, FindingSubject, Findings};
use crate::cli::flags::ServeArgs;
use crate::cli::process::exit::CommandError;
use crate::cli::process::signals;
use crate::config::Config;
#[cfg(feature = "tools")]
use weir_explain::explainer::ExplainedPolicies;
use weir_kubernetes::document::Severity;

/// With fewer open files a start is an error: half of what exceeds the 256 spare ones are places for
/// clients, here 128.
const MIN_OPEN_FILES: u64 = 512;

/// With fewer open files a start warns: 384 clients are few for a cluster.
const FEW_OPEN_FILES: u64 = 1024;

/// What a limit of this many open files means.
fn open_files_finding(limit: u64) -> Option<Finding> {
    let (severity, consequence) = if limit < MIN_OPEN_FILES {
        (Severity::Error, "needed are at least 512")
    } else if limit < FEW_OPEN_FILES {
        (
            Severity::Warning,
            "connections beyond --max-connections are refused",
        )
    } else {
        return None;
    };
    Some(Finding::new(
        severity,
        FindingSubject::Configuration,
        format!(
            "only {limit} files may be open, and each client needs two: {consequence} (ulimit -n, LimitNOFILE=)"
        ),
    ))
}

/// The configuration that the flags mean, after the open-file limit was raised, on which
/// `--max-connections` depends.
///
/// # Errors
/// All errors and warnings.
pub(crate) fn resolve(args: ServeArgs) -> Result<Resolved, Findings> {
    let unraised = signals::raise_open_file_limit().err().map(|why| {
        let message = format!("the open-file limit stays as it is: {why}");
        Finding::new(Severity::Warning, FindingSubject::Configuration, message)
    });
    let mut resolved = config_resolver::resolve(args);
    let limit = rlimit::Resource::NOFILE.get().map(|(soft, _)| soft);
    let scarce = limit.ok().and_then(open_files_finding);
    let (Ok(Resolved {
        warnings: findings, ..
    })
    | Err(findings)) = &mut resolved;
    let is_error = scarce
        .as_ref()
        .is_some_and(|scarce| scarce.severity == Severity::Error);
    for finding in [unraised, scarce].into_iter().flatten() {
        findings.push(finding);
    }
    match resolved {
        Ok(Resolved { warnings, .. }) if is_error => Err(warnings),
        resolved => resolved,
    }
}

/// The configuration that the flags mean. Logs the warnings, also if there are errors.
///
/// # Errors
/// All errors, one a line.
pub(crate) fn resolve_and_log(args: ServeArgs) -> Result<Config, CommandError> {
    match resolve(args) {
        Ok(Resolved { config, warnings }) => {
            log_warnings(&warnings);
            Ok(config)
        }
        Err(findings) => {
            log_warnings(&findings);
            Err(CommandError::Usage(findings.to_string()))
        }
    }
}

/// The policies that the flags mean. Logs the warnings, also if there are errors.
///
/// # Errors
/// All errors, one a line.
#[cfg(feature = "tools")]
pub(crate) fn resolve_policies_and_log(
    args: &ServeArgs,
) -> Result<ExplainedPolicies, CommandError> {
    match config_resolver::resolve_policies(args) {
        Ok((policies, warnings)) => {
            log_warnings(&warnings);
            Ok(policies)
        }
        Err(findings) => {
            log_warnings(&findings);
            Err(CommandError::Usage(findings.to_string()))
        }
    }
}

/// Logs warnings and tolerated errors.
pub(crate) fn log_warnings(findings: &Findings) {
    for finding in findings.tolerated() {
        warn!("{finding}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_open_files_are_an_error_or_a_warning() {
        let severity = |limit| open_files_finding(limit).map(|finding| finding.severity);
        assert_eq!(
            [256, 511, 512, 1023, 1024, u64::MAX].map(severity),
            [
                Some(Severity::Error),
                Some(Severity::Error),
                Some(Severity::Warning),
                Some(Severity::Warning),
                None,
                None,
            ]
        );
    }
}
