//! `weir flowcontrol`: the flow schemas and priority levels of a running weir.

mod table;
mod yaml;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use crate::cli::admin_client;
use crate::cli::admin_client::AdminUrl;
use crate::cli::flags::LoggingFormat;
use crate::cli::process::exit::{exit_with_failure, print_stdout};
use weir_kubernetes::encoding::printable::escape_json;

/// The objects in force, on the admin listener.
const OBJECTS_PATH: &str = "/debug/api_priority_and_fairness/objects";

/// `weir flowcontrol`.
#[derive(Args, Clone, Debug)]
pub(crate) struct FlowcontrolArgs {
    /// What to do.
    #[command(subcommand)]
    command: FlowcontrolCommand,
}

/// What can be done.
#[derive(Clone, Debug, Subcommand)]
enum FlowcontrolCommand {
    /// Print the flow schemas and priority levels that are in force, and where each comes from.
    Show(ShowArgs),
}

/// `weir flowcontrol show`.
#[derive(Args, Clone, Debug)]
struct ShowArgs {
    /// weir's admin address: http://HOST:PORT, or https://HOST:PORT.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:6480", value_parser = AdminUrl::parse)]
    admin: AdminUrl,
    /// How it is reached over TLS.
    #[command(flatten)]
    access: admin_client::AdminAccessArgs,
    /// How: a table, or the objects with their specs.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = ShowFormat::Table)]
    output: ShowFormat,
}

/// How the objects are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ShowFormat {
    /// One line for each object.
    Table,
    /// As the admin listener serves it.
    Json,
    /// Manifests for kubectl and --flowcontrol-config, each with its origin in a comment.
    Yaml,
}

/// Runs the command.
pub(crate) fn run(args: FlowcontrolArgs) -> ExitCode {
    let FlowcontrolCommand::Show(args) = args.command;
    match show(&args) {
        Ok(text) => print_stdout(text.as_bytes()),
        Err(why) => {
            let why = format!("{}: {why}", args.admin);
            exit_with_failure(&why, LoggingFormat::Text)
        }
    }
}

fn show(args: &ShowArgs) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| why.to_string())?;
    let admin = args.access.resolve(&args.admin)?;
    let objects = runtime.block_on(admin_client::fetch_json(&admin, OBJECTS_PATH))?;
    Ok(render(&objects, args.output))
}

fn render(objects: &Value, format: ShowFormat) -> String {
    match format {
        ShowFormat::Table => table::render(objects),
        ShowFormat::Json => format!("{}\n", escape_json(&format!("{objects:#}"))),
        ShowFormat::Yaml => yaml::render(objects),
    }
}
