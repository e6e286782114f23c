//! `weir check`: everything that `weir serve` would say about the same flags, without binding an
//! address.
//!
//! The findings are those of [`config_resolver`](crate::cli::config_resolver), which a start
//! reports, too. With `--online` the API server is asked as well.
//!
//! # Layers
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `report` |

pub(in crate::cli) mod report;

use std::process::ExitCode;

use clap::Args;

use crate::app;
use crate::app::OnlineReport;
use crate::cli::check::report::ApiServerSummary;
use crate::cli::check::report::CheckFormat;
use crate::cli::check::report::CheckReport;
use crate::cli::config_resolver::Resolved;
use crate::cli::config_resolver::certificates;
use crate::cli::config_resolver::findings::Finding;
use crate::cli::config_resolver::findings::FindingSubject;
use crate::cli::config_resolver::findings::Findings;
use crate::cli::flags::ServeArgs;
use crate::cli::process::exit::print_stdout;
use crate::cli::process::resolve;
use crate::config::Config;
use crate::document::Severity;

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

/// The flags that `weir serve` does not have.
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Check")]
pub struct CheckOptions {
    /// Ask the API server, too, for at most 10 seconds: whether it can be reached and verified, and accepts weir's credential, its
    /// rights and its front-proxy certificate. Runs the credential plugin of --kubeconfig. Changes nothing.
    #[arg(long)]
    pub(crate) online: bool,
    /// How the findings are printed.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = CheckFormat::Text)]
    pub output: CheckFormat,
}

/// Runs the command. The exit code is 0 without errors, and 1 with errors.
pub(super) fn run(args: CheckArgs) -> ExitCode {
    let CheckArgs { serve, options } = args;
    let upstream_flag = match serve.upstream.kubeconfig {
        Some(_) => "kubeconfig",
        None => "upstream",
    };
    let locations = serve.proxy.origin.locations.clone();
    let Resolved { config, warnings } = match resolve::resolve(serve) {
        Ok(resolved) => resolved,
        Err(findings) => return print_findings(findings, options),
    };
    let mut report = CheckReport {
        certificate: certificates::summarize(&config.serving.tls.certificate.cert),
        findings: warnings,
        api_server: None,
    };
    if options.online {
        let OnlineReport {
            findings,
            server_version,
            user,
        } = ask_api_server(config, upstream_flag);
        for finding in findings {
            let flag = FindingSubject::Flag(finding.flag.to_owned());
            report.findings.push(Finding {
                set_at: locations.get(finding.flag).cloned(),
                ..Finding::new(finding.severity, flag, finding.message)
            });
        }
        report.api_server = Some(ApiServerSummary {
            version: server_version,
            user,
        });
    }
    print(&report, options.output)
}

/// Prints the findings about a command line that `weir serve` would reject.
pub(super) fn print_findings(findings: Findings, options: CheckOptions) -> ExitCode {
    let report = CheckReport {
        findings,
        certificate: None,
        api_server: None,
    };
    print(&report, options.output)
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

fn print(report: &CheckReport, format: CheckFormat) -> ExitCode {
    let printed = print_stdout(report.render(format).as_bytes());
    if printed == ExitCode::SUCCESS && !report.is_valid() {
        return ExitCode::FAILURE;
    }
    printed
}
