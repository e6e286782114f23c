//! `weir version`: version, Kubernetes release and features of this build, as text or JSON.

use std::env::consts;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use crate::cli::process::exit::print_stdout;

/// The Kubernetes release whose kube-apiserver weir follows.
const KUBERNETES: &str = "1.36";

/// `weir version`.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct VersionArgs {
    /// How to print it.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = VersionFormat::Text)]
    output: VersionFormat,
}

/// How the version is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum VersionFormat {
    /// Lines for people; the first is that of `weir --version`.
    Text,
    /// One JSON object on one line.
    Json,
}

/// Prints the version.
pub(crate) fn run(args: VersionArgs) -> ExitCode {
    print_stdout(render(args.output).as_bytes())
}

fn render(output: VersionFormat) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let features = features();
    let platform = format!("{}/{}", consts::OS, consts::ARCH);
    match output {
        VersionFormat::Text => format!(
            "weir {version}\nkubernetes: {KUBERNETES}\nplatform: {platform}\nfeatures: {}\n",
            features.join(" ")
        ),
        VersionFormat::Json => {
            let object = json!({
                "version": version,
                "kubernetes": KUBERNETES,
                "platform": platform,
                "features": features,
            });
            format!("{object}\n")
        }
    }
}

/// The Cargo features of this build.
fn features() -> Vec<&'static str> {
    let all = [
        ("otlp", cfg!(feature = "otlp")),
        ("playground", cfg!(feature = "playground")),
        ("shared-limits", cfg!(feature = "shared-limits")),
        ("tools", cfg!(feature = "tools")),
    ];
    let enabled = all.into_iter().filter(|(_, enabled)| *enabled);
    enabled.map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn both_formats_name_the_version_and_each_enabled_feature() {
        let text = render(VersionFormat::Text);
        let first = text.lines().next().unwrap();
        assert_eq!(first, concat!("weir ", env!("CARGO_PKG_VERSION")));
        let object: Value = serde_json::from_str(&render(VersionFormat::Json)).unwrap();
        assert_eq!(object["version"], env!("CARGO_PKG_VERSION"));
        let listed = text
            .lines()
            .find_map(|line| line.strip_prefix("features: "));
        let listed: Vec<_> = listed.unwrap().split_whitespace().collect();
        assert_eq!(object["features"], Value::from(listed));
    }

    /// In a build with all features: a feature that is missing in `features` would never be shown.
    #[test]
    #[cfg(all(
        feature = "otlp",
        feature = "playground",
        feature = "shared-limits",
        feature = "tools"
    ))]
    fn every_feature_of_the_manifest_is_shown() {
        let manifest = include_str!("../../../Cargo.toml");
        let section = manifest.split("[features]\n").nth(1).unwrap();
        let section = section.split("\n[").next().unwrap();
        let lines = section.lines().filter(|line| !line.starts_with('#'));
        let named: Vec<_> = lines
            .filter_map(|line| Some(line.split_once(" = ")?.0))
            .filter(|name| *name != "default")
            .collect();
        assert_eq!(named, features());
    }
}
