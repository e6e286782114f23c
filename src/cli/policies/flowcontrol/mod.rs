//! `weir flowcontrol`: the flow schemas and priority levels of a running weir.

mod table;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use crate::cli::admin_client;
use crate::cli::admin_client::AdminUrl;
use crate::cli::flags::LoggingFormat;
use crate::cli::process::exit::{exit_with_failure, print_stdout};
use weir_kubernetes::encoding::printable::escape_json;
use weir_kubernetes::encoding::yaml::{comment, write_value};

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
        ShowFormat::Yaml => render_manifests(objects),
    }
}

/// Renders the response of the admin listener: a document for each object, with its origin in a
/// comment.
fn render_manifests(objects: &Value) -> String {
    let mut text = String::new();
    let listed = objects.get("objects").and_then(Value::as_array);
    for object in listed.into_iter().flatten() {
        let at = |key| object.get(key).and_then(Value::as_str);
        let origin = at("location").or_else(|| at("origin")).unwrap_or_default();
        text.push_str("---\n");
        text.push_str(&comment(&[format!("origin: {origin}")]));
        if let Some(manifest) = object.get("manifest") {
            write_value(&without_identity(manifest.clone()), 0, &mut text);
        }
    }
    text
}

/// The manifest without what belongs to the object in one cluster: with it kubectl applies to that
/// object only, and only as long as it does not change.
fn without_identity(mut manifest: Value) -> Value {
    if let Some(metadata) = manifest.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
    }
    manifest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use weir_flowcontrol::bootstrap;
    use weir_kubernetes::api::flowcontrol;
    use weir_kubernetes::api::flowcontrol::{Object, to_manifest};
    use weir_kubernetes::document;
    use weir_kubernetes::document::{Content, Diagnostics};
    use weir_kubernetes::encoding::printable::HOSTILE_NAMES;

    #[test]
    fn names_and_origins_stay_in_their_scalars_and_comments() {
        let listed: Value = HOSTILE_NAMES
            .iter()
            .map(|name| json!({"location": name, "manifest": {"kind": name, *name: [name]}}))
            .collect();
        let text = render_manifests(&json!({"objects": listed}));
        let mut diagnostics = Diagnostics::default();
        let documents = document::parse_all("shown", &text, &mut diagnostics);
        assert_eq!(diagnostics.to_string(), "", "{text}");
        assert_eq!(documents.len(), HOSTILE_NAMES.len(), "{text}");
        for (document, name) in documents.iter().zip(HOSTILE_NAMES) {
            let kind = document.field("kind").and_then(|kind| kind.as_str());
            assert_eq!(kind, Some(name));
            let of_name = document.field(name).map(|node| &node.content);
            let Some(Content::Sequence(items)) = of_name else {
                panic!("{name:?}: {text}");
            };
            assert_eq!(items[0].as_str(), Some(name));
        }
    }

    #[test]
    fn the_manifests_are_read_as_the_same_objects() {
        let objects = bootstrap::add_missing(Vec::new());
        let of_cluster = |object: &Object| {
            let mut object = object.clone();
            object.metadata_mut().uid = "u".to_owned();
            object.metadata_mut().resource_version = "1".to_owned();
            to_manifest(&object)
        };
        let listed: Value = objects
            .iter()
            .map(|object| json!({"origin": "built-in", "manifest": of_cluster(object)}))
            .collect();
        let text = render_manifests(&json!({"objects": listed}));
        let mut diagnostics = Diagnostics::default();
        let documents = document::parse_all("shown", &text, &mut diagnostics);
        let read = flowcontrol::read(&documents, &mut diagnostics);
        assert_eq!(diagnostics.to_string(), "", "{text}");
        assert_eq!(read, objects);
        assert!(
            text.starts_with(
                "---\n# origin: built-in\napiVersion: flowcontrol.apiserver.k8s.io/v1\n"
            )
        );
    }
}
