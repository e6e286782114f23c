//! Settings without effect: another one is missing, without which nothing reads them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::cli::config_resolver::flag_resolver::FlagResolver;
use crate::cli::flags::origin;

/// Flags that have an effect only together with one of others. Where the others are needed for safety
/// or by mistake alone, their absence is an error elsewhere.
const NEEDS: [(&[&str], &[&str]); 5] = [
    (
        &["assert-by"],
        &[
            "client-ca-file",
            "requestheader-client-ca-file",
            "token-auth-file",
        ],
    ),
    (
        &[
            "record-max-size",
            "record-max-duration",
            "record-source-addresses",
        ],
        &["record-path"],
    ),
    (
        &[
            "audit-log-maxage",
            "audit-log-maxbackup",
            "audit-log-maxsize",
            "audit-log-compress",
        ],
        &["audit-log-path"],
    ),
    (
        &["event-rate-limit-groups", "event-rate-limit-retry-after"],
        &["event-rate-limit-config", "admission-control-config-file"],
    ),
    (&["access-reviews-per-second"], &["classify-impersonated"]),
];

impl FlagResolver {
    /// Warns about each of the given settings that has no effect. `given` are their names in a file.
    pub(super) fn warn_about_idle_settings(&mut self, given: &BTreeMap<String, Value>) {
        let is_given = |flag: &&str| given.contains_key(&origin::camel_case(flag));
        for (flags, needs) in NEEDS {
            if needs.iter().any(is_given) {
                continue;
            }
            let needed: Vec<_> = needs.iter().map(|flag| format!("--{flag}")).collect();
            for flag in flags.iter().copied().filter(is_given) {
                self.warn(flag, format!("no effect without {}", needed.join(" or ")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cli::flags::environment::Environment;

    #[test]
    fn a_setting_without_effect_is_a_warning_and_one_with_effect_is_none() {
        let warnings = |given: &[&str]| -> Vec<String> {
            let mut resolver =
                FlagResolver::new(BTreeMap::new(), Arc::default(), Environment::default());
            let given = given.iter().map(|name| ((*name).to_owned(), Value::Null));
            resolver.warn_about_idle_settings(&given.collect());
            let lines = resolver.findings.warnings().map(ToString::to_string);
            lines.collect()
        };
        assert_eq!(
            warnings(&["assertBy", "recordMaxDuration", "auditLogMaxage"]),
            [
                "--assert-by: no effect without --client-ca-file or --requestheader-client-ca-file or --token-auth-file",
                "--record-max-duration: no effect without --record-path",
                "--audit-log-maxage: no effect without --audit-log-path",
            ]
        );
        let with = [
            "assertBy",
            "clientCaFile",
            "recordMaxDuration",
            "recordPath",
            "eventRateLimitGroups",
            "admissionControlConfigFile",
        ];
        assert_eq!(warnings(&with), <[String; 0]>::default());
    }
}
