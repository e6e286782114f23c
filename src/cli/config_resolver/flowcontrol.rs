//! `--flowcontrol-config`: reads the files, and warns about flow schemas without a priority level.

use std::path::Path;
use std::path::PathBuf;

use crate::api::flowcontrol;
use crate::api::flowcontrol::Object;
use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::flags::input_files::InputFiles;
use crate::document;
use crate::document::SourceLocation;
use crate::flowcontrol::matching::Matcher;

const FLOWCONTROL: &str = "flowcontrol-config";

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
            let files = {
                let files = manifest_files(path, self.files());
                self.check(FLAG, files)?
            };
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

    /// Warns about each flow schema that is left out because `all` does not have its priority
    /// level.
    pub(super) fn warn_about_missing_levels(
        &mut self,
        configured: &[(Object, SourceLocation)],
        all: &[Object],
    ) {
        for (schema, level, location) in missing_levels(configured, all) {
            let message =
                format!("FlowSchema {schema:?} is left out: there is no priority level {level:?}");
            self.warn_at(FLOWCONTROL, location.clone(), message);
        }
    }
}

/// The flow schemas whose priority level is not in `all`: schema, level, location of the reference.
fn missing_levels<'o>(
    configured: &'o [(Object, SourceLocation)],
    all: &[Object],
) -> Vec<(&'o str, &'o str, &'o SourceLocation)> {
    let matcher = Matcher::new(all);
    let missing = |(object, location): &'o (Object, SourceLocation)| match object {
        Object::FlowSchema(schema) if matcher.dangling().contains(&schema.metadata.name) => Some((
            &*schema.metadata.name,
            &*schema.spec.priority_level_configuration,
            location,
        )),
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    };
    configured.iter().filter_map(missing).collect()
}

/// The file itself, or the manifests of a folder, sorted by name.
fn manifest_files(path: &Path, inputs: &InputFiles) -> Result<Vec<PathBuf>, String> {
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
