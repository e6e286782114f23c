//! `--flowcontrol-config`, `--flowcontrol-source` and `--state-dir`: the sources of flow schemas and
//! priority levels.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::flags::input_files::InputFiles;
use crate::cli::flags::{FlowcontrolSource, LimitArgs, UpstreamArgs};
use crate::config::{AdmissionConfig, ClusterSourceConfig};
use crate::flowcontrol::sources::FlowcontrolSources;
use crate::upstream::credentials::CredentialSource;
use weir_flowcontrol::matching::Matcher;
use weir_kubernetes::api::flowcontrol;
use weir_kubernetes::api::flowcontrol::Object;
use weir_kubernetes::document;
use weir_kubernetes::document::SourceLocation;
use weir_lint::rule::Rule;

const FLOWCONTROL: &str = "flowcontrol-config";

/// A permission that an operator adds is found within minutes.
const RETRY_AFTER_DENIAL: Duration = Duration::from_secs(60);

impl FlagResolver {
    /// The flow schemas and priority levels of files and folders, each with the location that
    /// [`flowcontrol::read_with_locations`] gives.
    pub(super) fn read_flowcontrol_objects(
        &mut self,
        paths: &[PathBuf],
    ) -> Option<Vec<(Object, SourceLocation)>> {
        const FLAG: &str = FLOWCONTROL;
        let mut diagnostics = document::Diagnostics::default();
        let mut nodes = Vec::new();
        for path in paths {
            let files = manifest_files(path, self.files());
            let files = self.check(FLAG, files)?;
            if files.is_empty() {
                self.warn_about_file(FLAG, path, "this folder has no .yaml, .yml or .json file");
            }
            for file in files {
                let text = self.read_text(FLAG, &file)?;
                nodes.extend(document::parse_all(
                    &file.display().to_string(),
                    &text,
                    &mut diagnostics,
                ));
            }
        }
        let objects = flowcontrol::read_with_locations(&nodes, &mut diagnostics);
        self.merge(FLAG, &diagnostics).then_some(objects)
    }

    /// Adds the cluster to the sources, if it is one: `credentials` are weir's own.
    pub(super) fn resolve_cluster_source(
        &mut self,
        admission: Option<AdmissionConfig>,
        limits: &LimitArgs,
        upstream: &UpstreamArgs,
        credentials: Option<&CredentialSource>,
    ) -> Option<AdmissionConfig> {
        let has_credentials = credentials.map_or_else(
            || upstream.may_have_credentials(),
            |source| !source.is_anonymous(),
        );
        let reads_cluster = match limits.flowcontrol_source {
            FlowcontrolSource::Auto => has_credentials,
            FlowcontrolSource::Cluster => true,
            FlowcontrolSource::Files => false,
        };
        if reads_cluster && credentials.is_some() && !has_credentials {
            self.add(
                "flowcontrol-source",
                "cluster needs credentials of weir's own: a --kubeconfig whose user may list and watch flowschemas and prioritylevelconfigurations",
            );
        }
        if let Some(folder) = &limits.state_dir
            && std::fs::metadata(folder).is_ok_and(|found| !found.is_dir())
        {
            self.add("state-dir", format!("{} is not a folder", folder.display()));
        }
        if !reads_cluster && limits.state_dir.is_some() {
            let why =
                "no effect: the API server's flow schemas are not read (--flowcontrol-source)";
            self.warn("state-dir", why);
        }
        let mut admission = admission?;
        if let AdmissionConfig::Fairness { sources, .. } = &mut admission {
            if reads_cluster {
                // The cluster may have the levels that files do not have.
                sources.cluster = Some(ClusterSourceConfig {
                    state_dir: limits.state_dir.clone(),
                    retry_after_denial: RETRY_AFTER_DENIAL,
                });
            } else {
                self.warn_about_missing_levels(&sources.files);
            }
        }
        Some(admission)
    }

    /// Warns about each flow schema that is left out because there is no such priority level.
    fn warn_about_missing_levels(&mut self, files: &[(Object, SourceLocation)]) {
        let all = FlowcontrolSources::from_files(files.to_vec()).merge();
        let matcher = Matcher::new(all.iter().map(|one| &one.object));
        for (object, location) in files {
            let Object::FlowSchema(schema) = object else {
                continue;
            };
            let name = &schema.metadata.name;
            if matcher.dangling().contains(name) {
                let level = &schema.spec.priority_level_configuration;
                let message = format!(
                    "FlowSchema {name:?} is left out: there is no priority level {level:?}"
                );
                let rule = Rule::FlowSchemaDangling;
                self.warn_at(FLOWCONTROL, rule, location.clone(), message);
            }
        }
    }
}

/// The file itself, or the manifests of a folder, sorted by name.
pub(crate) fn manifest_files(path: &Path, inputs: &InputFiles) -> Result<Vec<PathBuf>, String> {
    let cannot_read = |why: std::io::Error| format!("cannot read {}: {why}", path.display());
    let Some(mut files) = inputs.list(path).map_err(cannot_read)? else {
        return Ok(vec![path.to_owned()]);
    };
    let is_manifest = |file: &PathBuf| {
        file.extension()
            .is_some_and(|found| ["json", "yaml", "yml"].iter().any(|ext| found == *ext))
    };
    files.retain(is_manifest);
    files.sort();
    Ok(files)
}
