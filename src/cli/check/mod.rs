//! `weir check`: everything that `weir serve` would say about the same flags, without binding an
//! address; and everything that is wrong with files and folders.
//!
//! The findings are those of [`config_resolver`](crate::cli::config_resolver), which a start
//! reports, too, and those of the [linter](weir_lint). With `--online` the API server is asked as
//! well.

pub(crate) mod configuration;
mod files;
mod lint;
pub(crate) mod report;
mod silenced;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;

use crate::app;
use crate::app::OnlineReport;
use crate::cli::check::configuration::ConfigurationCheck;
use crate::cli::check::files::ConfigurationChecker;
use crate::cli::check::report::{ApiServerSummary, CheckFormat, CheckReport, CheckedFileNames};
use crate::cli::config_resolver::certificates;
use crate::cli::config_resolver::findings::{Finding, FindingSubject, Findings};
use crate::cli::flags::ServeArgs;
use crate::cli::process::exit::print_stdout;
use crate::config::Config;
use weir_kubernetes::document::Severity;
use weir_lint::rule::Rule;

/// `weir check`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CheckArgs {
    /// What is checked.
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    /// How.
    #[command(flatten)]
    pub(crate) options: CheckOptions,
}

/// The names of the flags that `weir serve` does not have.
pub(super) const OWN_FLAGS: [&str; 5] =
    ["ignore", "online", "output", "strict", "warnings-as-errors"];

/// The flags that `weir serve` does not have.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Check")]
pub(crate) struct CheckOptions {
    /// Files and folders to check, each recognised by its content: configurations of weir, FlowSchemas and
    /// PriorityLevelConfigurations, EventRateLimit, AdmissionConfiguration, AuthenticationConfiguration, TracingConfiguration, audit
    /// policies, kubeconfigs, certificates and keys. Folders are searched; what is something else is skipped there. The flags of
    /// serve are then checked only if there are any.
    #[arg(value_name = "FILE")]
    pub(crate) paths: Vec<PathBuf>,
    /// Ask the API server, too, for at most 10 seconds: whether it can be reached and verified, and accepts weir's credential, its
    /// rights and its front-proxy certificate. Runs the credential plugin of --kubeconfig. Changes nothing.
    #[arg(long)]
    pub(crate) online: bool,
    /// How the findings are printed.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = CheckFormat::Text)]
    pub(crate) output: CheckFormat,
    /// Warnings make the exit code 1, too.
    #[arg(long, visible_alias = "warnings-as-errors")]
    pub(crate) strict: bool,
    /// Leave out warnings of these rules, by their ids. May be given several times, or as a list.
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = parse_ignored)]
    pub(crate) ignore: Vec<Rule>,
}

/// A rule whose findings are warnings.
fn parse_ignored(text: &str) -> Result<Rule, String> {
    let rule: Rule = text.parse()?;
    if !rule.is_warning() {
        return Err("its findings are errors".to_owned());
    }
    Ok(rule)
}

/// Runs the command. The exit code is 0 without errors, and 1 with errors.
pub(super) fn run(args: CheckArgs, checker: &ConfigurationChecker) -> ExitCode {
    let CheckArgs { serve, options } = args;
    let files = Arc::clone(&serve.proxy.origin.files);
    let mut report = CheckReport::default();
    let mut typed = None;
    if options.paths.is_empty() || serve.proxy.origin.is_typed {
        typed = Some(check_flags(serve, &options, &mut report));
    }
    let found = files::check(&options.paths, typed.as_ref(), &files, checker);
    for finding in found.findings {
        report.findings.push_new(finding);
    }
    if !options.paths.is_empty() {
        report.findings.sort_by_place();
        report.files = Some(CheckedFileNames {
            checked: found.checked,
            skipped: found.skipped,
            unparsable: found.unparsable,
        });
    }
    report.findings = silenced::without_silenced(report.findings, &files);
    print(report, &options)
}

/// Checks the flags, and asks the API server if that is wanted.
fn check_flags(
    serve: ServeArgs,
    options: &CheckOptions,
    report: &mut CheckReport,
) -> ConfigurationCheck {
    let upstream_flag = if serve.upstream.upstream.is_empty() {
        "kubeconfig"
    } else {
        "upstream"
    };
    let locations = serve.proxy.origin.locations.clone();
    let mut checked = ConfigurationCheck::resolve(serve);
    report.findings = std::mem::take(&mut checked.findings);
    let Some(config) = checked.config.take() else {
        return checked;
    };
    report.certificate = certificates::summarize(&config.serving.tls.certificate.cert);
    if options.online {
        let OnlineReport {
            findings,
            server_version,
            list_budget,
            user,
        } = ask_api_server(*config, upstream_flag);
        for finding in findings {
            let flag = FindingSubject::Flag(finding.flag.to_owned());
            report.findings.push(Finding {
                set_at: locations.get(finding.flag).cloned(),
                ..Finding::new(finding.severity, flag, finding.message)
            });
        }
        report.api_server = Some(ApiServerSummary {
            version: server_version,
            list_budget,
            user,
        });
    }
    checked
}

/// Prints the findings about a command line that `weir serve` would reject.
pub(super) fn print_findings(findings: Findings, options: &CheckOptions) -> ExitCode {
    let report = CheckReport {
        findings,
        ..CheckReport::default()
    };
    print(report, options)
}

fn ask_api_server(config: Config, upstream_flag: &'static str) -> OnlineReport {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    match runtime {
        Ok(runtime) => {
            let report = runtime.block_on(app::check_online(config, upstream_flag));
            // A look-up of a name cannot be cancelled.
            runtime.shutdown_background();
            report
        }
        Err(why) => OnlineReport {
            findings: vec![app::OnlineFinding {
                severity: Severity::Error,
                flag: upstream_flag,
                message: format!("the API server cannot be asked: {why}"),
            }],
            ..OnlineReport::default()
        },
    }
}

fn print(report: CheckReport, options: &CheckOptions) -> ExitCode {
    let report = CheckReport {
        findings: report.findings.without(&options.ignore),
        is_strict: options.strict,
        ..report
    };
    let printed = print_stdout(report.render(options.output).as_bytes());
    if printed == ExitCode::SUCCESS && !report.is_valid() {
        return ExitCode::FAILURE;
    }
    printed
}
