//! `weir status`: health, alarms and the status page as a table, for scripts and for hosts without a
//! terminal. The exit code says whether there are alarms.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::admin_client;
use crate::cli::flags::LoggingFormat;
use crate::cli::process::exit::{exit_with_failure, exit_with_usage_error, print_stdout};
use crate::cli::top::ViewArgs;
use weir_kubernetes::encoding::printable::escape_json;
use weir_status::alarms::AlarmSeverity;
use weir_status::snapshot::StatusSnapshot;
use weir_top::model::{StatusUpdate, TopModel};
use weir_top::{format, text_table};

/// Time between the two snapshots of a table, from which rates are computed.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The exit codes, as plugins of monitoring systems have them.
const WARNING: u8 = 1;
const CRITICAL: u8 = 2;
const NOT_REACHABLE: u8 = 3;

/// `weir status`.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    view: ViewArgs,
    /// How it is printed. The table looks twice, a second apart, for its rates.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = StatusFormat::Table, help_heading = "View")]
    output: StatusFormat,
}

/// How it is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StatusFormat {
    /// As weir's /status.json has it.
    Json,
    /// For people.
    Table,
}

/// Prints the status once.
pub(super) fn run(args: &StatusArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(why) => return exit_with_failure(&why, LoggingFormat::Text),
    };
    let admin = match args.view.access.resolve(&args.view.admin) {
        Ok(admin) => admin,
        Err(why) => return exit_with_usage_error(&why, LoggingFormat::Text),
    };
    let fetched = runtime.block_on(async {
        match args.output {
            StatusFormat::Json => fetch_json(&admin, &args.view).await,
            StatusFormat::Table => fetch_table(&admin, &args.view).await,
        }
    });
    match fetched {
        Ok((text, code)) => match print_stdout(text.as_bytes()) {
            ExitCode::SUCCESS => ExitCode::from(code),
            failure => failure,
        },
        Err(why) => {
            let message = format!("{} is not reachable: {why}", args.view.admin);
            let _ = exit_with_failure(&message, LoggingFormat::Text); // its code is another
            ExitCode::from(NOT_REACHABLE)
        }
    }
}

/// 0 if weir is ready and has no alarm.
fn exit_code(now: &StatusSnapshot) -> u8 {
    let (_, is_healthy) = format::readiness(now);
    let worst = now.alarms.iter().map(|alarm| alarm.severity).min();
    match (is_healthy, worst) {
        (false, _) | (_, Some(AlarmSeverity::Critical)) => CRITICAL,
        (true, Some(AlarmSeverity::Warning)) => WARNING,
        (true, None) if now.readiness.ready.is_none() => WARNING, // nothing is known yet
        (true, None) => 0,
    }
}

async fn fetch_json(
    admin: &admin_client::AdminUrl,
    args: &ViewArgs,
) -> Result<(String, u8), String> {
    let mut snapshot = admin_client::fetch_snapshot(admin, Some(&args.replica)).await?;
    text_table::select_lists(&mut snapshot.talkers, args.by, args.window, args.sort);
    let text = serde_json::to_string_pretty(&snapshot).map_err(|why| why.to_string())?;
    Ok((format!("{}\n", escape_json(&text)), exit_code(&snapshot)))
}

async fn fetch_table(
    admin: &admin_client::AdminUrl,
    args: &ViewArgs,
) -> Result<(String, u8), String> {
    let mut model = TopModel::new(args.options());
    let first = admin_client::fetch_snapshot(admin, Some(&args.replica)).await?;
    model.handle_update(StatusUpdate::Snapshot(Box::new(first)));
    tokio::time::sleep(SAMPLE_INTERVAL).await;
    let last = admin_client::fetch_snapshot(admin, Some(&args.replica)).await?;
    let code = exit_code(&last);
    model.handle_update(StatusUpdate::Snapshot(Box::new(last)));
    let text = text_table::render_table(&model.view_model, &model.options);
    Ok((text, code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_status::alarms::AlarmStatus;

    #[test]
    fn the_exit_code_is_that_of_the_worst() {
        let code = |ready, severities: &[AlarmSeverity]| {
            let mut now = StatusSnapshot::default();
            now.readiness.ready = ready;
            let alarm = |severity: &AlarmSeverity| AlarmStatus {
                severity: *severity,
                ..AlarmStatus::default()
            };
            now.alarms = severities.iter().map(alarm).collect();
            exit_code(&now)
        };
        let (critical, warning) = (AlarmSeverity::Critical, AlarmSeverity::Warning);
        for (ready, severities, expected) in [
            (Some(true), &[][..], 0),
            (Some(true), &[warning], 1),
            (Some(true), &[warning, critical], 2),
            (Some(false), &[], 2),
            (None, &[], 1),
        ] {
            assert_eq!(
                code(ready, severities),
                expected,
                "{ready:?} {severities:?}"
            );
        }
    }
}
