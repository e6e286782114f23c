//! `--flowcontrol-config`: the files, and what is odd about them as a whole.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use tracing::warn;

use super::FlagErrors;
use crate::api::flowcontrol;
use crate::api::flowcontrol::Object;
use crate::document;
use crate::document::SourceLocation;
use crate::flowcontrol::matching::Matcher;

const FLOWCONTROL: &str = "flowcontrol-config";

impl FlagErrors {
    /// The flow schemas and priority levels of files, and of the files of folders, each with its [`reference`] to a level.
    ///
    /// [`reference`]: flowcontrol::read_with_places
    pub(super) fn read_flowcontrol_objects(
        &mut self,
        paths: &[PathBuf],
    ) -> Option<Vec<(Object, SourceLocation)>> {
        const FLAG: &str = FLOWCONTROL;
        let mut faults = document::Diagnostics::default();
        let mut nodes = Vec::new();
        for path in paths {
            let files = self.check(FLAG, manifest_files(path))?;
            if files.is_empty() {
                let place = SourceLocation::whole_file(&path.display().to_string());
                let why = "there is no file in this folder whose name ends in .yaml, .yml or .json";
                faults.report_warning(&place, "", why);
            }
            for file in files {
                let text = String::from_utf8_lossy(&self.read_file(FLAG, &file)?).into_owned();
                nodes.extend(document::parse_all(
                    &file.display().to_string(),
                    &text,
                    &mut faults,
                ));
            }
        }
        let objects = flowcontrol::read_with_locations(&nodes, &mut faults);
        self.merge(FLAG, &faults).then_some(objects)
    }
}

/// Warns of each flow schema that is left out, since `all` has no such priority level.
pub(super) fn warn_about_missing_levels(given: &[(Object, SourceLocation)], all: &[Object]) {
    for (schema, level, place) in missing_levels(given, all) {
        warn!(
            "--{FLOWCONTROL}: {place}: FlowSchema {schema:?} is left out: there is no priority level {level:?}"
        );
    }
}

/// The given flow schemas that name a priority level which is not among `all`: schema, level, where it is named.
fn missing_levels<'o>(
    given: &'o [(Object, SourceLocation)],
    all: &[Object],
) -> Vec<(&'o str, &'o str, &'o SourceLocation)> {
    let matcher = Matcher::new(all);
    let missing = |(object, place): &'o (Object, SourceLocation)| match object {
        Object::FlowSchema(schema) if matcher.dangling().contains(&schema.metadata.name) => Some((
            &*schema.metadata.name,
            &*schema.spec.priority_level_configuration,
            place,
        )),
        Object::FlowSchema(_) | Object::PriorityLevelConfiguration(_) => None,
    };
    given.iter().filter_map(missing).collect()
}

/// The file itself, or the manifests of the folder, by name.
fn manifest_files(path: &Path) -> Result<Vec<PathBuf>, String> {
    let cannot = |why: std::io::Error| format!("cannot read {}: {why}", path.display());
    if !fs::metadata(path).map_err(cannot)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries: Result<Vec<_>, _> = fs::read_dir(path).map_err(cannot)?.collect();
    let mut files: Vec<_> = entries
        .map_err(cannot)?
        .into_iter()
        .map(|entry| entry.path())
        .collect();
    let manifest = |file: &PathBuf| {
        file.extension()
            .is_some_and(|kind| ["json", "yaml", "yml"].iter().any(|known| kind == *known))
    };
    files.retain(manifest);
    files.sort();
    Ok(files)
}
