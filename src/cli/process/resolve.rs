//! The configuration of a command that is about to run: its warnings are logged, its errors end the
//! command.

use tracing::warn;

use crate::cli::config_resolver;
use crate::cli::config_resolver::Resolved;
use crate::cli::config_resolver::findings::Finding;
use crate::cli::config_resolver::findings::FindingSubject;
use crate::cli::config_resolver::findings::Findings;
use crate::cli::flags::ServeArgs;
use crate::cli::process::exit::CommandError;
use crate::cli::process::signals;
use crate::config::Config;
use crate::document::Severity;
use crate::explain::explainer::ExplainedPolicies;

/// The configuration that the flags mean, after the open-file limit was raised, on which
/// `--max-connections` depends.
///
/// # Errors
/// All errors and warnings.
pub(in crate::cli) fn resolve(args: ServeArgs) -> Result<Resolved, Findings> {
    let unraised = signals::raise_open_file_limit().err().map(|why| {
        let message = format!("the open-file limit stays as it is: {why}");
        Finding::new(Severity::Warning, FindingSubject::Configuration, message)
    });
    let mut resolved = config_resolver::resolve(args);
    let (Ok(Resolved {
        warnings: findings, ..
    })
    | Err(findings)) = &mut resolved;
    if let Some(finding) = unraised {
        findings.push(finding);
    }
    resolved
}

/// The configuration that the flags mean. Logs the warnings, also if there are errors.
///
/// # Errors
/// All errors, one a line.
pub(in crate::cli) fn resolve_and_log(args: ServeArgs) -> Result<Config, CommandError> {
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
pub(in crate::cli) fn resolve_policies_and_log(
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
pub(in crate::cli) fn log_warnings(findings: &Findings) {
    for finding in findings.tolerated() {
        warn!("{finding}");
    }
}
