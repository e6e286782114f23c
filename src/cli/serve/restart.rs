//! Settings that a reload cannot change. Pure.

use std::collections::BTreeMap;

use crate::cli::flags::origin::camel_case;
use crate::observe::admin::zpages::EffectiveConfig;
use weir_kubernetes::document::SourceLocation;

/// The flags of these settings. docs/changes.md lists them, too.
pub(super) const RESTART_ONLY: [&str; 22] = [
    "admin-address",
    "bind-address",
    "control-socket",
    "health-address",
    "peer-advertise-address",
    "peer-bind-address",
    "peer-secure-port",
    "replica-group",
    "replica-lease-duration",
    "replica-membership",
    "replica-name",
    "replica-namespace",
    "secure-port",
    "shared-key-file",
    "shared-limits",
    "shared-limits-ca-file",
    "shared-limits-cert-file",
    "shared-limits-key-file",
    "shared-limits-password-file",
    "shared-limits-replicas",
    "shared-limits-user",
    "workers",
];

/// Keeps the settings in `new` that need a restart as they are in `in_force`. Returns a line for
/// each that differs.
pub(super) fn keep_restart_only(
    in_force: &EffectiveConfig,
    new: &mut EffectiveConfig,
    locations: &BTreeMap<String, SourceLocation>,
) -> Vec<String> {
    let mut lines = Vec::new();
    for flag in RESTART_ONLY {
        let (old, changed) = (in_force.flags.get(flag), new.flags.get(flag));
        if old == changed {
            continue;
        }
        let location = locations.get(flag);
        let location = location.map_or_else(String::new, |location| format!("{location}: "));
        let value = |value: Option<&String>| match value {
            Some(value) if !value.is_empty() => value.clone(),
            _ => "its default".to_owned(),
        };
        let (old_value, new_value) = (value(old), value(changed));
        lines.push(format!(
            "{location}--{flag}: needs a restart to change from {old_value} to {new_value}"
        ));
        keep(&in_force.flags, &mut new.flags, flag);
        keep(&in_force.settings, &mut new.settings, &camel_case(flag));
    }
    lines
}

fn keep<V: Clone>(old: &BTreeMap<String, V>, new: &mut BTreeMap<String, V>, name: &str) {
    match old.get(name) {
        Some(value) => drop(new.insert(name.to_owned(), value.clone())),
        None => drop(new.remove(name)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(workers: &str, timeout: &str) -> EffectiveConfig {
        let flags = [("workers", workers), ("request-timeout", timeout)];
        let settings = [("workers", workers), ("requestTimeout", timeout)];
        EffectiveConfig {
            flags: flags
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            settings: settings
                .map(|(name, value)| (name.to_owned(), json!(value)))
                .into(),
            ..EffectiveConfig::default()
        }
    }

    #[test]
    fn a_setting_that_needs_a_restart_keeps_its_value_and_is_named_with_file_and_line() {
        let (in_force, mut new) = (config("2", "60s"), config("4", "30s"));
        let location = SourceLocation {
            file: "weir.yaml".into(),
            line: 3,
            column: 10,
        };
        let locations = [("workers".to_owned(), location)].into();
        assert_eq!(
            keep_restart_only(&in_force, &mut new, &locations),
            ["weir.yaml:3:10: --workers: needs a restart to change from 2 to 4"]
        );
        let kept = config("2", "30s");
        assert_eq!((new.flags, new.settings), (kept.flags, kept.settings));
    }

    #[test]
    fn a_flag_that_is_no_longer_set_is_named_too() {
        let (in_force, mut new) = (config("2", "60s"), config("", "60s"));
        let lines = keep_restart_only(&in_force, &mut new, &BTreeMap::new());
        assert_eq!(
            lines,
            ["--workers: needs a restart to change from 2 to its default"]
        );
    }
}
