//! `weir record`: writes what passes a running weir, until it is interrupted or a limit is reached.
//!
//! The lines come from the admin listener. Names are replaced here, so that the key stays on this
//! machine.

mod output;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, future};

use clap::Args;
use http_body_util::BodyExt;
use tokio::time::sleep;

use crate::cli::admin_client;
use crate::cli::admin_client::AdminUrl;
use crate::cli::flags::LoggingFormat;
use crate::cli::policies::record::output::{RecordOutput, StreamEnd};
use crate::cli::process::exit::exit_with_failure;
use crate::cli::process::signals;
use crate::flag_values::parse_positive_duration;
use crate::observe::admin::RECORD_PATH;
use crate::observe::logging::recording::PseudonymKey;
use crate::observe::logging::recording::line::LinePseudonymizer;

/// `weir record`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Record")]
pub(crate) struct RecordArgs {
    /// weir's admin address: http://HOST:PORT, or https://HOST:PORT.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:6480", value_parser = AdminUrl::parse)]
    admin: AdminUrl,
    /// How it is reached over TLS.
    #[command(flatten)]
    access: admin_client::AdminAccessArgs,
    /// The file to write; - is the standard output. A file that is not empty is an error. It is compressed if its name ends with .gz.
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// How long to record; until SIGINT if not given.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_positive_duration)]
    duration: Option<Duration>,
    /// Size in megabytes at which the record ends.
    #[arg(long, value_name = "MB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    max_size: u32,
    /// Replace names by pseudonyms with the secret in this file (at least 16 bytes), so that the record can be shared. The secret
    /// is not sent.
    #[arg(long, value_name = "FILE")]
    pseudonym_key_file: Option<PathBuf>,
    /// Record clients' addresses, too.
    #[arg(long)]
    source_addresses: bool,
}

/// Runs the command. What was recorded stays, however it ends.
pub(crate) fn run(args: RecordArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(why) => return exit_with_failure(&why, LoggingFormat::Text),
    };
    match runtime.block_on(record(&args)) {
        Ok(summary) => {
            eprintln!("weir: {summary}");
            ExitCode::SUCCESS
        }
        Err(why) => exit_with_failure(&why, LoggingFormat::Text),
    }
}

/// Records, and returns a summary.
async fn record(args: &RecordArgs) -> Result<String, String> {
    let stop = signals::stop_signal();
    let key = args.pseudonym_key_file.as_deref().map(read_key);
    let pseudonyms = key.transpose()?.map(LinePseudonymizer::new);
    let query = if args.source_addresses {
        "?sourceAddresses=true"
    } else {
        ""
    };
    let admin = args.access.resolve(&args.admin)?;
    let body = admin_client::open_stream(&admin, &format!("{RECORD_PATH}{query}")).await;
    let mut body = body.map_err(|why| format!("{}: {why}", args.admin))?;
    let mut output = RecordOutput::open(&args.output, args.max_size, pseudonyms)
        .map_err(|why| format!("{}: {why}", args.output.display()))?;
    let failed = |why: std::io::Error| format!("{}: {why}", args.output.display());
    let limit = async {
        match args.duration {
            Some(duration) => sleep(duration).await,
            None => future::pending().await,
        }
    };
    let (mut stop, mut limit) = (std::pin::pin!(stop), std::pin::pin!(limit));
    let end = loop {
        let frame = tokio::select! {
            frame = body.frame() => frame,
            () = &mut stop => break StreamEnd::Stopped,
            () = &mut limit => break StreamEnd::MaxDuration,
        };
        let Some(Ok(frame)) = frame else {
            break StreamEnd::Closed;
        };
        let data = frame.into_data().unwrap_or_default();
        if let Some(end) = output.push(&data).map_err(failed)? {
            break end;
        }
    };
    let summary = output.end(end).map_err(failed)?;
    match end {
        StreamEnd::Closed => Err(format!(
            "{}: weir has ended the record: {summary}",
            args.admin
        )),
        StreamEnd::MaxDuration
        | StreamEnd::MaxSize
        | StreamEnd::ReaderGone
        | StreamEnd::Stopped => Ok(summary),
    }
}

fn read_key(file: &Path) -> Result<PseudonymKey, String> {
    let content = fs::read(file).map_err(|why| format!("{}: {why}", file.display()))?;
    PseudonymKey::parse(&content).map_err(|why| format!("{}: {why}", file.display()))
}
